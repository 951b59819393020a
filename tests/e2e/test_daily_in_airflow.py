"""`make demo DAG=logio_daily`: three days are backfilled, a driver is killed, two days are cleared and computed again.

What the demonstration compares with DuckDB after each step is its own affair (`tests/demo/test_daily.py`); here is what the
log says of its runs.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from airflow_logio.cli.display import Progress
from airflow_logio.protocol.states import RunState
from airflow_logio.store import open_store
from demo import demonstration
from demo.clicks import DAYS
from demo.examples import example
from demo.places import Places
from demo.standalone import Standalone

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(2400)]

DAGS = Path(__file__).parents[2] / "dags"
LONG = 600.0
"""Seconds that Airflow may take to start on a machine with much else to do."""


def test_days_are_backfilled_killed_and_cleared_and_each_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demonstration, "START_SECONDS", LONG)
    monkeypatch.setattr(demonstration, "PARSE_SECONDS", LONG)
    dags = shutil.copytree(DAGS, tmp_path / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    log, warehouse = f"sqlite:///{tmp_path}/logio.db", f"sqlite:///{tmp_path}/warehouse.db"
    places = Places(tmp_path, Path(dags), log, warehouse)
    standalone = Standalone(places, wanted_port=0)
    demo = demonstration.Demonstration(places, Progress(Console(width=200)), standalone, example("logio_daily"))
    try:
        verdict = demo.run()
    finally:
        demo.stop(lambda: True)
    assert verdict.is_good, str(verdict)

    backfilled, second_again, first_again = json.loads(places.summary.read_text())["steps"]
    runs = {run["partition"]: run for run in backfilled["dag_runs"]}
    assert list(runs) == [str(day) for day in DAYS]
    assert sum(run["incarnations"]["all"] for run in runs.values()) > len(DAYS), "a driver was killed"
    assert len({run["code_digest"] for run in runs.values()}) == 1
    for step, day in ((second_again, DAYS[1]), (first_again, DAYS[0])):
        [again] = step["dag_runs"]
        before = runs[str(day)]
        assert again["dag_run"] == before["dag_run"] and again["partition"] == str(day), "it was cleared"
        assert again["uid"] != before["uid"] and again["code_digest"] != before["code_digest"]
    assert second_again["dag_runs"][0]["code_digest"] == first_again["dag_runs"][0]["code_digest"]

    store = open_store(log, application="logio test")
    states = {run.uid: run.state for run in store.list_runs()}
    store.dispose()
    replaced = {runs[str(day)]["uid"] for day in DAYS[:2]}
    assert {uid for uid, state in states.items() if state is RunState.SUPERSEDED} == replaced
    assert list(states.values()).count(RunState.FINISHED) == 3 and len(states) == 5
    with closing(sqlite3.connect(places.airflow_home / "airflow.db")) as database:
        ended = database.execute("SELECT run_type, state FROM dag_run").fetchall()
    assert ended == [("backfill", "success")] * len(DAYS), "the schedule begins none of today, which would be red"
