"""``python -m tests.bench``: throughput and recovery of the sales pipeline, also under Airflow, replicas, the simulator, and
DataFrames against PySpark scripts, and on a cluster; all checked."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.bench import cluster, constants, in_airflow, page, recovery, replicas, simulation, spark, throughput
from tests.bench.databases import DATABASES, Databases, Postgres, Sqlite

RECOVERED = ("totals", "hourly")
PARTS = ("throughput", "recovery", "replicas", "airflow", "simulation", "spark", "constants", "cluster", "page")


def main() -> int:
    arguments = _arguments()
    results: dict[str, Any] = {
        "load_average_before": os.getloadavg()[0],
        "throughput": [],
        "recovery": [],
        "in_airflow": [],
        "replicas": [],
        "simulation": [],
        "spark": [],
        "constants": [],
        "cluster": [],
        "page": [],
    }
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
        if arguments.only in (None, "throughput"):
            _throughput(databases, arguments.runs, results)
        if arguments.only in (None, "recovery"):
            _recovery(databases, results)
        if arguments.only in (None, "replicas") and isinstance(databases, Postgres):
            _replicas(databases, arguments.runs, results)
        if arguments.only in (None, "airflow") and isinstance(databases, Postgres):
            _in_airflow(databases, arguments, results)
        if arguments.only in (None, "constants"):
            _constants(databases, results)
        if arguments.only in (None, "spark") and isinstance(databases, Sqlite):
            _spark(databases, arguments, results)
        if arguments.only in (None, "cluster") and isinstance(databases, Postgres):
            _cluster(databases, arguments, results)
        if arguments.only in (None, "page"):
            _page(databases, results)
    except throughput.WrongResult as error:
        raise throughput.WrongResult(f"{databases.name}: {error}") from error
    finally:
        databases.close()


def _simulation(runs: int, results: dict[str, Any]) -> None:
    for measured in simulation.measure(runs):
        results["simulation"].append(measured.as_json())
        print(measured.line(), flush=True)


def _throughput(databases: Databases, runs: int, results: dict[str, Any]) -> None:
    measured = throughput.measure(databases, runs)
    results["throughput"].append(measured.as_json())
    print(measured.line(), flush=True)


def _recovery(databases: Databases, results: dict[str, Any]) -> None:
    for group in RECOVERED:
        for idle in (True, False):
            measured = recovery.measure(databases, group, idle=idle)
            results["recovery"].append(measured.as_json())
            print(measured.line(), flush=True)


def _replicas(databases: Postgres, runs: int, results: dict[str, Any]) -> None:
    for measured in replicas.measure(databases, runs):
        results["replicas"].append(measured.as_json())
        print(measured.line(), flush=True)


def _in_airflow(databases: Postgres, arguments: argparse.Namespace, results: dict[str, Any]) -> None:
    for form in arguments.form or in_airflow.FORMS:
        for measured in in_airflow.measure(databases, form, arguments.kills, arguments.events_per_second):
            results["in_airflow"].append(measured.as_json())
            print(measured.line(), flush=True)


def _constants(databases: Databases, results: dict[str, Any]) -> None:
    for measured in constants.measure(databases):
        results["constants"].append(measured.as_json())
        print(measured.line(), flush=True)


def _spark(databases: Sqlite, arguments: argparse.Namespace, results: dict[str, Any]) -> None:
    for measured in spark.measure(databases, arguments.runs, arguments.events, arguments.event_mb):
        results["spark"].append(measured.as_json())
        print(measured.line(), flush=True)


def _cluster(databases: Postgres, arguments: argparse.Namespace, results: dict[str, Any]) -> None:
    for measured in cluster.measure(databases, arguments.small_events, arguments.small_seconds):
        results["cluster"].append(measured.as_json())
        print(measured.line(), flush=True)


def _page(databases: Databases, results: dict[str, Any]) -> None:
    for measured in page.measure(databases):
        results["page"].append(measured.as_json())
        print(measured.line(), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs per throughput figure (the median is reported)")
    parser.add_argument("--kills", type=int, default=5, help="kills per recovery figure under Airflow (medians)")
    parser.add_argument("--form", action="append", choices=list(in_airflow.FORMS), help="under Airflow, only this one")
    parser.add_argument(
        "--events-per-second", type=float, default=20.0, help="of the source while others are killed under load"
    )
    parser.add_argument("--events", type=int, default=4, help="of DataFrames that are measured against scripts")
    parser.add_argument("--event-mb", type=int, default=256, help="MB of Parquet files in each of these events")
    parser.add_argument("--small-events", type=int, default=10_000, help="on the cluster, while memory is looked at")
    parser.add_argument(
        "--small-seconds", type=float, default=600.0, help="for these events at most; fewer are done then"
    )
    parser.add_argument("--database", action="append", choices=list(DATABASES), help="only this one (repeatable)")
    parser.add_argument("--only", choices=PARTS, help="only this part")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
