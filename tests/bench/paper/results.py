"""Results as JSON lines: what is there is not measured again, what has failed is tried again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.paper.experiments import SAME_AS, Experiment


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the file; `error` instead of `seconds` if the experiment has failed."""

    key: str
    series: str
    kind: str
    factor: float
    seconds: float | None
    load: tuple[float, float]
    """Load average of the last minute, before and after."""
    at: str
    """When it ended, UTC."""
    recoveries: tuple[dict[str, float], ...] = ()
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        took = f"{self.seconds:7.2f} s" if self.seconds is not None else f"failed: {self.error}"
        recovered = "; ".join(", ".join(f"{step} {at:g} s" for step, at in one.items()) for one in self.recoveries)
        tail = f"; after the kill: {recovered}" if recovered else ""
        return f"{self.key:58} {took} (load {self.load[0]:.1f} to {self.load[1]:.1f}){tail}"


class ResultFile:
    """A line is written whole when its experiment has ended, so a bench that is ended loses one at most."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Result]:
        """The last line of each experiment. A line that is not whole counts as not there."""
        found: dict[str, Result] = {}
        lines = self._path.read_text().splitlines() if self._path.is_file() else []
        for line in lines:
            try:
                result = Result(**json.loads(line))
            except (ValueError, TypeError):
                continue
            found[result.key] = result
        return list(found.values())

    def left(self, wanted: Iterable[Experiment], factor: float) -> list[Experiment]:
        """Those that are still to be measured, in their order."""
        done = {result.key for result in self.read() if result.error is None}
        return [one for one in wanted if one.key(factor) not in done]

    def add(self, result: Result) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(result.as_json()) + "\n")


Medians = dict[tuple[str, str], float]
"""(Series, kind) → seconds."""


def medians(results: Iterable[Result], factor: float) -> Medians:
    """Of all runs with this factor that have ended well."""
    found: dict[tuple[str, str], list[float]] = {}
    for one in results:
        if one.seconds is not None and one.factor == factor:
            found.setdefault((one.series, one.kind), []).append(one.seconds)
    return {key: median(seconds) for key, seconds in found.items()}


def baseline(found: Medians, series: str) -> float | None:
    """Seconds of the baseline of a series; None if it was not measured."""
    name = SAME_AS.get(series, series)
    return found.get((name, Experiment(name, plain=True).kind))


def more(found: Medians, experiment: Experiment) -> float | None:
    """Percent that an experiment takes longer than the baseline of its series; None if either was not measured."""
    ours, base = found.get((experiment.series, experiment.kind)), baseline(found, experiment.series)
    return None if ours is None or base is None else 100 * (ours / base - 1)
