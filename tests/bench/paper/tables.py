"""The tables of docs/performance.md, as Markdown: what was measured, and beside it what the paper says.

``python -m tests.bench.paper.tables FILE [FACTOR]`` prints them of a file of results, also while it grows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from tests.bench.paper.experiments import COMMITS_MS, SAME_AS, SIZED, Experiment
from tests.bench.paper.results import Medians, Result, ResultFile, medians
from tests.bench.paper.series import SERIES, SIZES, Series

NOT_MEASURED = "-"


def tables(results: Iterable[Result], factor: float) -> str:
    """All of them; what was not measured is "-"."""
    found = medians(results, factor)
    return "\n\n".join((_normal(found), _failures(found), _sizes(found), _commits(found)))


def _normal(found: Medians) -> str:
    rows = []
    for series in SERIES:
        if series.name in SAME_AS:
            continue
        published = series.published
        base = _base(found, series.name)
        rows.append(
            (
                f"{series.name}: {series.title.rsplit(', ', 1)[0]}",
                NOT_MEASURED if base is None else f"{base:.1f}",
                _more(found, series, Experiment(series.name)),
                _points(found, series, Experiment(series.name, lineage=True)),
                _more(found, series, Experiment(series.name, lineage=True, replay=True)),
                _more(found, series, Experiment(series.name, flink=True)),
                published.normal,
                published.lineage,
                published.abs_normal,
            )
        )
    head = ("series", "baseline, s", "LOG.io, %", "lineage, more %", "replay, %", "ABS on Flink, %")
    return _table((*head, "paper: LOG.io, %", "lineage, more %", "ABS, %"), rows)


def _failures(found: Medians) -> str:
    rows = []
    for series in SERIES:
        ours = [_more(found, series, Experiment(series.name, failures=number)) for number in (1, 2, 3)]
        standby = _more(found, series, Experiment(series.name, failures=1, standby=True))
        flink = [_more(found, series, Experiment(series.name, flink=True, failures=number)) for number in (1, 2, 3)]
        paper = series.published
        rows.append((f"{series.name}: {series.title}", *ours, standby, *flink, *paper.failures, *paper.abs_failures))
    head = ("series", "1 failure, %", "2", "3", "1, with a standby", "ABS on Flink, 1", "2", "3")
    return _table((*head, "paper: LOG.io, 1", "2", "3", "ABS, 1", "2", "3"), rows)


def _sizes(found: Medians) -> str:
    rows = []
    for size, published in SIZES.items():
        base = found.get((SIZED, Experiment(SIZED, plain=True, event_bytes=size).kind))
        ours = found.get((SIZED, Experiment(SIZED, event_bytes=size).kind))
        rows.append((f"{size // 10**6} MB", _seconds(base), _percent(ours, base), published))
    return _table((f"size of an event, {SIZED}", "baseline, s", "LOG.io, %", "paper: LOG.io, %"), rows)


def _commits(found: Medians) -> str:
    rows = []
    for series in SERIES:
        if series.name not in SAME_AS:
            ours = [_more(found, series, Experiment(series.name, commit_ms=delay)) for delay in COMMITS_MS]
            rows.append((series.name, _more(found, series, Experiment(series.name)), *ours))
    return _table(("commits that take longer", "0 ms, %", *(f"{delay} ms, %" for delay in COMMITS_MS)), rows)


def _base(found: Medians, name: str) -> float | None:
    name = SAME_AS.get(name, name)
    return found.get((name, Experiment(name, plain=True).kind))


def _more(found: Medians, series: Series, experiment: Experiment) -> str:
    return _percent(found.get((experiment.series, experiment.kind)), _base(found, series.name))


def _points(found: Medians, series: Series, experiment: Experiment) -> str:
    """Percent of the baseline more than without lineage."""
    without = found.get((series.name, Experiment(series.name).kind))
    ours, base = found.get((experiment.series, experiment.kind)), _base(found, series.name)
    if without is None or ours is None or base is None:
        return NOT_MEASURED
    return f"{100 * (ours - without) / base:.1f}"


def _percent(ours: float | None, base: float | None) -> str:
    return NOT_MEASURED if ours is None or base is None else f"{100 * (ours / base - 1):.1f}"


def _seconds(seconds: float | None) -> str:
    return NOT_MEASURED if seconds is None else f"{seconds:.1f}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


if __name__ == "__main__":
    print(tables(ResultFile(Path(sys.argv[1])).read(), float(sys.argv[2]) if len(sys.argv) > 2 else 0.2))
