"""The tables of docs/performance.md, as Markdown: what was measured, and beside it what the paper says.

``python -m tests.bench.paper.tables FILE [FACTOR]`` prints them of a file of results, also while it grows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from tests.bench.paper.experiments import COMMITS_MS, SAME_AS, SIZED, Experiment
from tests.bench.paper.results import Medians, Result, ResultFile, baseline, medians, more
from tests.bench.paper.series import SERIES, SIZES

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
        rows.append(
            (
                f"{series.name}: {series.title.rsplit(', ', 1)[0]}",
                _said(baseline(found, series.name)),
                _more(found, Experiment(series.name)),
                _points(found, Experiment(series.name, lineage=True)),
                _more(found, Experiment(series.name, lineage=True, replay=True)),
                _more(found, Experiment(series.name, flink=True)),
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
        ours = [_more(found, Experiment(series.name, failures=number)) for number in (1, 2, 3)]
        standby = _more(found, Experiment(series.name, failures=1, standby=True))
        flink = [_more(found, Experiment(series.name, flink=True, failures=number)) for number in (1, 2, 3)]
        paper = series.published
        rows.append((f"{series.name}: {series.title}", *ours, standby, *flink, *paper.failures, *paper.abs_failures))
    head = ("series", "1 failure, %", "2", "3", "1, with a standby", "ABS on Flink, 1", "2", "3")
    return _table((*head, "paper: LOG.io, 1", "2", "3", "ABS, 1", "2", "3"), rows)


def _sizes(found: Medians) -> str:
    rows = []
    for size, published in SIZES.items():
        base = found.get((SIZED, Experiment(SIZED, plain=True, event_bytes=size).kind))
        ours = found.get((SIZED, Experiment(SIZED, event_bytes=size).kind))
        percent = None if ours is None or base is None else 100 * (ours / base - 1)
        rows.append((f"{size // 10**6} MB", _said(base), _said(percent), published))
    return _table((f"size of an event, {SIZED}", "baseline, s", "LOG.io, %", "paper: LOG.io, %"), rows)


def _commits(found: Medians) -> str:
    rows = []
    for series in SERIES:
        if series.name not in SAME_AS:
            ours = [_more(found, Experiment(series.name, commit_ms=delay)) for delay in COMMITS_MS]
            rows.append((series.name, _more(found, Experiment(series.name)), *ours))
    return _table(("commits that take longer", "0 ms, %", *(f"{delay} ms, %" for delay in COMMITS_MS)), rows)


def _more(found: Medians, experiment: Experiment) -> str:
    return _said(more(found, experiment))


def _points(found: Medians, experiment: Experiment) -> str:
    """Percent of the baseline more than without lineage."""
    without, ours = more(found, Experiment(experiment.series)), more(found, experiment)
    return _said(None if without is None or ours is None else ours - without)


def _said(number: float | None) -> str:
    return NOT_MEASURED if number is None else f"{number:.1f}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


if __name__ == "__main__":
    print(tables(ResultFile(Path(sys.argv[1])).read(), float(sys.argv[2]) if len(sys.argv) > 2 else 0.2))
