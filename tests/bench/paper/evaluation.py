"""The evaluation: all experiments one after the other, each bounded, resumed where the file of results ends."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path

from tests.bench.databases import Postgres
from tests.bench.paper import flink_setup
from tests.bench.paper.experiments import Experiment, experiments
from tests.bench.paper.measured_run import measure
from tests.bench.paper.plots import draw
from tests.bench.paper.results import Result, ResultFile
from tests.bench.paper.tables import tables
from tests.bench.throughput import WrongResult


def evaluate(databases: Postgres, factor: float, results: Path, runs: int, only: list[str] | None) -> Iterator[Result]:
    """`only`: names of series. One that fails is said, and the others follow.

    At the end the tables are printed, and plots are drawn beside the file of results.
    """
    file = ResultFile(results)
    wanted = [one for one in experiments(runs) if not only or one.series in only]
    for experiment in _possible(file.left(wanted, factor)):
        result = _measured(databases, experiment, factor)
        file.add(result)
        yield result
    print(f"\n{tables(file.read(), factor)}", flush=True)
    print(*draw(file.read(), factor, results.parent), sep="\n", flush=True)


def _possible(wanted: list[Experiment]) -> list[Experiment]:
    """Without ABS on Flink where Flink cannot be had; a sentence says so."""
    if any(one.flink for one in wanted):
        try:
            flink_setup.class_path()
        except flink_setup.NoFlink as missing:
            print(f"ABS on Flink is not measured: {missing}", flush=True)
            return [one for one in wanted if not one.flink]
    return wanted


def _measured(databases: Postgres, experiment: Experiment, factor: float) -> Result:
    before = os.getloadavg()[0]
    seconds, recoveries, error = None, [], None
    try:
        taken = measure(databases, experiment, factor)
        seconds, recoveries = round(taken.seconds, 3), [dict(one) for one in taken.recoveries]
    except (WrongResult, AssertionError, OSError) as failed:
        error = f"{type(failed).__name__}: {failed}"
    return Result(
        key=experiment.key(factor),
        series=experiment.series,
        kind=experiment.kind,
        factor=factor,
        seconds=seconds,
        load=(round(before, 2), round(os.getloadavg()[0], 2)),
        at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        recoveries=tuple(recoveries),
        error=error,
    )
