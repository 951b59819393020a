"""``python -m tests.bench``: throughput and recovery of the sales pipeline, also under Airflow, replicas, the simulator, and
DataFrames against PySpark scripts and on a cluster, Delta tables, commits against hand-written SQL, the paper's evaluation,
an aggregation beside Structured Streaming and Flink, its latency at half load; all checked."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.bench import (
    clicks,
    cluster,
    constants,
    days,
    days_in_airflow,
    delta,
    delta_files,
    floods,
    growth,
    half_load,
    hops,
    in_airflow,
    lineage,
    log_commits,
    many_groups,
    page,
    page_requests,
    partitions,
    recovery,
    replay,
    replicas,
    simulation,
    spark,
    spark_kills,
    spark_stores,
    throughput,
    undone,
)
from tests.bench.databases import DATABASES, Databases, Postgres, Sqlite
from tests.bench.paper import evaluation
from tests.bench.paper.series import BY_NAME
from tests.bench.peers import evaluation as peers

RECOVERED = ("totals", "hourly")
FOLDER = "folder"


def main() -> int:
    arguments = _arguments()
    results: dict[str, Any] = {"load_average_before": os.getloadavg()[0], **{part: [] for part in PARTS}}
    print(f"load average before: {os.getloadavg()[0]:.2f}; cores: {os.cpu_count()}", flush=True)
    try:
        if arguments.only in (None, "simulation"):
            _simulation(arguments.runs, results)
        if arguments.only != "simulation":
            for name in arguments.database or list(DATABASES):
                _with_database(DATABASES[name](), arguments, results)
    except throughput.WrongResult as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


def _with_database(databases: Databases, arguments: argparse.Namespace, results: dict[str, Any]) -> None:
    try:
        for part, measured_on, measure in OF_A_DATABASE:
            wanted = arguments.only == part or (arguments.only is None and part not in ASKED_FOR)
            if wanted and isinstance(databases, measured_on):
                for measured in measure(databases, arguments):
                    results[part].append(measured.as_json())
                    print(measured.line(), flush=True)
    except throughput.WrongResult as error:
        raise throughput.WrongResult(f"{databases.name}: {error}") from error
    finally:
        databases.close()


def _simulation(runs: int, results: dict[str, Any]) -> None:
    for measured in simulation.measure(runs):
        results["simulation"].append(measured.as_json())
        print(measured.line(), flush=True)


def _recovery(databases: Databases, runs: int) -> Iterator[Any]:
    both = (False, True)
    for group, connect, standby, idle in itertools.product(RECOVERED, both, both, both):
        kills = [recovery.measure(databases, group, idle=idle, standby=standby, connect=connect) for _ in range(runs)]
        yield sorted(kills, key=lambda kill: kill.total)[runs // 2]


def _in_airflow(databases: Any, arguments: argparse.Namespace) -> Iterator[Any]:
    for form in arguments.form or in_airflow.FORMS:
        yield from in_airflow.measure(databases, form, arguments.kills, arguments.events_per_second)


def _spark(databases: Sqlite, asked: argparse.Namespace) -> Iterator[Any]:
    size = (asked.runs, asked.events, asked.event_mb)
    stores = asked.payloads or ((FOLDER, *spark_stores.STORES) if asked.only else (FOLDER,))
    if FOLDER in stores:
        yield from spark.measure(databases, *size)
        yield from delta_files.measure(databases, asked.runs, asked.table_records)
    yield from spark_stores.measure(databases, *size, [name for name in stores if name != FOLDER])


Measure = Callable[[Any, argparse.Namespace], Iterable[Any]]
OF_A_DATABASE: tuple[tuple[str, type[Databases], Measure], ...] = (
    ("throughput", Databases, lambda at, asked: [throughput.measure(at, asked.runs)]),
    ("recovery", Databases, lambda at, asked: _recovery(at, asked.runs)),
    ("replicas", Postgres, lambda at, asked: replicas.measure(at, asked.runs)),
    ("airflow", Postgres, _in_airflow),
    ("constants", Databases, lambda at, _: constants.measure(at)),
    ("spark", Sqlite, _spark),
    ("spark_killed", Sqlite, lambda at, asked: spark_kills.measure(at, asked.runs, *asked.killed)),
    ("delta", Sqlite, lambda at, asked: delta.measure(at, asked.runs, asked.delta_files)),
    (
        "cluster",
        Postgres,
        lambda at, asked: cluster.measure(at, *(cluster.Bound(*bound) for bound in (asked.small, asked.large))),
    ),
    ("log", Postgres, lambda at, asked: log_commits.measure(at, asked.runs, asked.log_rows)),
    ("growth", Databases, lambda at, asked: growth.measure(at, asked.log_rows)),
    ("groups", Postgres, lambda at, _: many_groups.measure(at)),
    ("partitions", Postgres, lambda at, asked: partitions.measure(at, asked.log_runs, asked.run_events)),
    ("undone", Databases, lambda at, asked: undone.measure(at, asked.runs)),
    ("lineage", Postgres, lambda at, asked: lineage.measure(at, asked.runs)),
    ("peers", Postgres, lambda at, asked: peers.measure(at, asked.runs, asked.records)),
    ("half_load", Postgres, lambda at, asked: half_load.measure(at, asked.runs)),
    ("replay", Postgres, lambda at, asked: replay.measure(at, asked.runs)),
    ("hops", Postgres, lambda at, asked: hops.measure(at, asked.runs)),
    ("floods", Postgres, lambda at, asked: floods.measure(at, asked.runs)),
    ("page", Databases, lambda at, _: itertools.chain(page.measure(at), page_requests.measure(at), clicks.measure(at))),
    ("days", Databases, lambda at, asked: days.measure(at, asked.runs, asked.held_mb)),
    ("days_airflow", Postgres, lambda at, asked: days_in_airflow.measure(at, asked.backfilled)),
    ("paper", Postgres, lambda at, to: evaluation.evaluate(at, to.factor, to.results, to.paper_runs, to.series)),
)
"""Part → where it is measured, and how."""
PARTS = ("simulation", *(part for part, *_ in OF_A_DATABASE))
ASKED_FOR = ("paper", "partitions", "peers", "half_load", "days_airflow", "delta")
"""Parts that take long, so that they are measured only if they are named; so are stores other than folders, of ``spark``."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs per figure of throughput and recovery (medians)")
    parser.add_argument("--kills", type=int, default=5, help="kills per recovery figure under Airflow (medians)")
    parser.add_argument("--form", action="append", choices=list(in_airflow.FORMS), help="under Airflow, only this one")
    parser.add_argument(
        "--events-per-second", type=float, default=20.0, help="of the source while others are killed under load"
    )
    parser.add_argument("--events", type=int, default=4, help="of DataFrames that are measured against scripts")
    parser.add_argument("--event-mb", type=int, default=256, help="MB of Parquet files in each of these events")
    parser.add_argument("--table-records", type=int, default=8_000_000, help="of a Delta table that executors write")
    parser.add_argument(
        "--payloads",
        action="append",
        choices=[FOLDER, *spark_stores.STORES],
        help="where DataFrames that are measured against scripts have their payload store, only this (repeatable)",
    )
    parser.add_argument(
        "--killed",
        type=int,
        nargs=2,
        default=(24, 32),
        metavar=("EVENTS", "MB"),
        help="of DataFrames, in the middle of which a driver is killed",
    )
    for kind, bound in (("small", (10_000, 600)), ("large", (200, 600))):
        parser.add_argument(
            f"--{kind}",
            type=int,
            nargs=2,
            default=bound,
            metavar=("EVENTS", "SECONDS"),
            help=f"{kind} events on the cluster, while memory is looked at: so many, in so many seconds at most",
        )
    parser.add_argument(
        "--log-rows",
        type=int,
        default=1_000_000,
        help="of events in the log, up to which commits and lineage are measured",
    )
    parser.add_argument("--log-runs", type=int, default=1_000, help="in the log, whose tables are partitioned by run")
    parser.add_argument("--run-events", type=int, default=1_500, help="of each of these runs, with two rows each")
    parser.add_argument(
        "--factor", type=float, default=0.2, help="of the paper's numbers of events; 0.2 takes three hours, 1 twelve"
    )
    parser.add_argument("--series", action="append", choices=list(BY_NAME), help="of the paper, only this one")
    parser.add_argument("--paper-runs", type=int, default=1, help="runs per figure of the paper's evaluation (medians)")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(".bench/paper.jsonl"),
        help="of the paper's evaluation, as JSON lines; what is in the file is not measured again",
    )
    parser.add_argument(
        "--records", type=int, action="append", help="beside Structured Streaming and Flink, only so many (repeatable)"
    )
    parser.add_argument(
        "--delta-files",
        type=int,
        nargs=2,
        action="append",
        metavar=("FILES", "RECORDS"),
        help="that go into a Delta table, and records of each (repeatable)",
    )
    parser.add_argument("--held-mb", type=int, default=256, help="MB of a day that is held in the log")
    parser.add_argument("--backfilled", type=int, default=days.BACKFILLED, help="days that Airflow backfills at once")
    parser.add_argument("--database", action="append", choices=list(DATABASES), help="only this one (repeatable)")
    parser.add_argument("--only", choices=PARTS, help="only this part")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
