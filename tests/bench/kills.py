"""What is measured of kills under Airflow, and how it is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

STEPS = ("fenced", "launched", "running", "first commit")


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill; seconds after it."""

    detected: float
    steps: dict[str, float]
    """fenced, launched, running, first commit: each after the one before."""
    output_set: float
    """The first new Output Set is committed."""
    others: dict[str, float]
    """Group → its commits per second until then, against those before the kill; groups without input left out."""
    load_average: float
    """Of the machine's last minute, when the Output Set was committed."""

    def __str__(self) -> str:
        steps = ", ".join(f"{name} +{seconds:.2f}" for name, seconds in self.steps.items())
        others = "".join(f", {name} {share:.0%}" for name, share in self.others.items())
        return f"{self.output_set:5.1f} s: detected {self.detected:.2f}, {steps}; load {self.load_average:.1f}" + (
            f"; commit rates{others[1:]}" if others else ""
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most of some figures."""

    values: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        if not self.values:
            return {}
        return {
            "median": round(median(self.values), 2),
            "least": round(min(self.values), 2),
            "most": round(max(self.values), 2),
            "all": [round(value, 2) for value in self.values],
        }

    def __str__(self) -> str:
        return f"{median(self.values):.1f} ({min(self.values):.1f} to {max(self.values):.1f})"


@dataclass(frozen=True, slots=True)
class Recovered:
    """All kills of one group in one form and condition."""

    form: str
    group: str
    condition: str
    kills: tuple[Kill, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "form": self.form,
            "group": self.group,
            "condition": self.condition,
            "detected": _spread(kill.detected for kill in self.kills),
            "steps": {name: _spread(kill.steps.get(name, 0.0) for kill in self.kills) for name in STEPS},
            "output_set": _spread(kill.output_set for kill in self.kills),
            "others": {name: Spread(shares).as_json() for name, shares in self._others().items()},
            "load_average": _spread(kill.load_average for kill in self.kills),
        }

    def line(self) -> str:
        steps = [(name, [kill.steps.get(name, 0.0) for kill in self.kills]) for name in STEPS]
        told = ", ".join(f"{name} +{median(seconds):.2f}" for name, seconds in steps)
        output = Spread(tuple(kill.output_set for kill in self.kills))
        detected = [kill.detected for kill in self.kills]
        load = max(kill.load_average for kill in self.kills)
        line = (
            f"{self.form:12} {self.group:7} {self.condition:7} {output} s to the first new Output Set, {len(self.kills)} "
            f"kills: detected {median(detected):.2f} (at most {max(detected):.2f}), {told}; load at most {load:.1f}"
        )
        others = self._others()
        if others:
            every = [share for shares in others.values() for share in shares]
            told = ", ".join(f"{name} {median(some):.0%} (least {min(some):.0%})" for name, some in others.items())
            line += f"; commit rate of the others: median {median(every):.0%}, least {min(every):.0%}: {told}"
        return line

    def _others(self) -> dict[str, tuple[float, ...]]:
        names = sorted({name for kill in self.kills for name in kill.others})
        return {name: tuple(kill.others[name] for kill in self.kills if name in kill.others) for name in names}


def _spread(values: Iterable[float]) -> dict[str, Any]:
    return Spread(tuple(values)).as_json()
