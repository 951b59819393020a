"""How long the last records of a minute take to their rows while a pipeline does half of what it can.

The aggregation is that of the comparison with Structured Streaming and Flink (`tests/bench/peers/`). Each round runs it
twice: as fast as it goes, then at half the speed that it kept up in the middle of that run. The clock of the second run
starts when a minute's last record was due, so that a source that is held up makes the figure worse. It stops at the commit
of the minute's last row, by PostgreSQL's time, which is taken before the flush. Two things are in every figure that are none
of the log's: a window ends when the next event arrives, and the source has read and decoded an event before it is due.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from tests.bench.databases import Postgres
from tests.bench.figure import Figure
from tests.bench.peers.logged_run import run_logged
from tests.bench.peers.strict_clock import Taken, create_table, taken
from tests.bench.peers.work import Work, prepared

RECORDS = 10_000_000
"""A hundred minutes of them, each of which is a sample."""

TARGETS = {50: "60", 99: "200"}
"""Percentile → milliseconds, of four groups with 10,000 records an event."""


@dataclass(frozen=True, slots=True)
class Form:
    """A pipeline of `tests/bench/pipelines/peers.py`."""

    attr: str
    name: str
    has_target: bool = False


FORMS = (
    Form("four_10000", "four groups, 10,000 an event", has_target=True),
    Form("fused_10000", "fused, 10,000 an event"),
    Form("four_1000", "four groups, 1,000 an event"),
)


def measure(databases: Postgres, runs: int) -> Iterator[Figure]:
    """Two figures per form. Raises `WrongResult` if a run is not exact."""
    speeds: dict[Form, list[float]] = {form: [] for form in FORMS}
    waited: dict[Form, list[float]] = {form: [] for form in FORMS}
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        work = prepared(Path(name), RECORDS)
        for _ in range(runs):
            for form in FORMS:
                half = _run(databases, form, work).steady / 2
                speeds[form].append(half)
                waited[form] += _run(databases, form, work, half).latencies
    for form in FORMS:
        yield from _figures(databases.name, form, speeds[form], waited[form])


def _run(databases: Postgres, form: Form, work: Work, pace: float = 0.0) -> Taken:
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder = Path(name)
        log_url, warehouse = databases.fresh(folder)
        create_table(warehouse)
        run_logged(form.attr, work, folder, folder / "reads", log_url, warehouse, pace=pace)
        return taken(form.name, work, folder / "reads", warehouse)


def _figures(database: str, form: Form, speeds: Sequence[float], waited: Sequence[float]) -> Iterator[Figure]:
    percents = quantiles(waited, n=100, method="inclusive")
    details = (
        f"{len(waited)} minutes in {len(speeds)} runs at {median(speeds):,.0f} records/s ({min(speeds):,.0f} to "
        f"{max(speeds):,.0f}); longest {max(waited) * 1e3:,.0f} ms"
    )
    for percent, target in TARGETS.items():
        what = f"{form.name}, half load, p{percent}"
        yield Figure(database, what, percents[percent - 1] * 1e3, "ms", target if form.has_target else "none", details)
