"""`make demo DAG=logio_daily`: three days are backfilled, a driver is killed, two days are cleared and computed again.

Then the DAG gets `lookback=1`: a day that is computed again has the day before, whose late rows have come, computed again.
What the demonstration compares with DuckDB after each step is its own affair (`tests/demo/test_daily.py`); here is what the
log says of its runs.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from airflow_logio.cli.display import Progress
from airflow_logio.protocol.states import RunState
from airflow_logio.store import open_store
from demo import demonstration
from demo.checks import CheckResult, check_clicks
from demo.clicks import DAYS
from demo.examples import DailyExample, Params, Say, Step, example, replace_once
from demo.places import Places
from demo.rest import Airflow, AirflowUnavailable
from demo.standalone import Standalone

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(2400)]

DAGS = Path(__file__).parents[2] / "dags"
LONG = 600.0
"""Seconds that Airflow may take to start on a machine with much else to do."""


LOOK = "clicks.look_back"
PREFIX = "lookback__"


@dataclass(frozen=True, slots=True)
class LookingBack(DailyExample):
    """The demonstration, and a look back behind it."""

    def steps(self, places: Places, params: Params, run_id: str, say: Say) -> Iterator[Step]:
        yield from DailyExample.steps(self, places, params, run_id, say)
        data = Path(params["data"])

        def clear_the_day_after(airflow: Airflow) -> list[str]:
            replace_once(places.dags / "logio_daily.py", "        clicks,\n", "        clicks,\n        lookback=1,\n")
            tasks = f"/api/v2/dags/{self.dag_id}/tasks"
            until("the DAG looks back", lambda: LOOK in [one["task_id"] for one in call(airflow, tasks)["tasks"]])
            later_file(data)
            run = self.run_of(airflow, 1)
            airflow.clear_run(self.dag_id, run)
            until("a look back is made", lambda: bool(self.made(airflow)))
            return [run, *self.made(airflow)]

        def clear_it_alone_twice(airflow: Airflow) -> list[str]:
            run = self.run_of(airflow, 1)
            before = self.made(airflow)
            for _ in range(2):
                tries = self.look_back(airflow, run)["try_number"]
                body = {"dry_run": False, "only_failed": False, "task_ids": [LOOK], "dag_run_id": run}
                airflow._call("POST", f"/api/v2/dags/{self.dag_id}/clearTaskInstances", body)

                def done(tries: int = tries) -> bool:
                    now = self.look_back(airflow, run)
                    assert now["state"] not in ("failed", "skipped"), now
                    return bool(now["try_number"] > tries and now["state"] == "success")

                until("it has looked back once more", done)
            assert self.made(airflow) == before and len(before) == 1
            assert self.look_back(airflow, before[0])["state"] == "skipped", "it looks no further back"
            return [run]

        def check() -> CheckResult:
            return check_clicks(places.lake, places.warehouse_url, data, set(DAYS[:2]))

        yield Step(f"{DAYS[1]} looks back", clear_the_day_after, check)
        yield Step("cleared alone, twice", clear_it_alone_twice, check)

    def run_of(self, airflow: Airflow, number: int) -> str:
        """The DAG run of a day."""
        found = call(airflow, f"/api/v2/dags/{self.dag_id}/dagRuns?run_type=backfill&limit=50")["dag_runs"]
        return next(str(one["dag_run_id"]) for one in found if one["partition_key"] == str(DAYS[number]))

    def made(self, airflow: Airflow) -> list[str]:
        found = call(airflow, f"/api/v2/dags/{self.dag_id}/dagRuns?limit=50")["dag_runs"]
        return [str(one["dag_run_id"]) for one in found if one["dag_run_id"].startswith(PREFIX)]

    def look_back(self, airflow: Airflow, run: str) -> dict[str, Any]:
        return call(airflow, f"{airflow._run(self.dag_id, run)}/taskInstances/{LOOK}")


def call(airflow: Airflow, path: str) -> dict[str, Any]:
    return airflow._call("GET", path)


def until(what: str, done: Callable[[], bool]) -> None:
    ends = time.monotonic() + LONG
    while time.monotonic() < ends:
        try:
            if done():
                return
        except AirflowUnavailable:
            pass
        time.sleep(0.5)
    raise AssertionError(f"timed out: {what}")


def later_file(data: Path) -> None:
    """One more file of the first day: clicks that are there already, under other ids."""
    folder = data / "web" / f"dt={DAYS[0]}"
    some = pq.read_table(folder / "part-1.parquet").slice(0, 40)
    ids = some["id"].to_numpy() + 100_000_000
    pq.write_table(some.set_column(some.schema.get_field_index("id"), "id", [ids]), folder / "_later")
    (folder / "_later").rename(folder / "part-9.parquet")


def test_days_are_backfilled_killed_and_cleared_and_each_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demonstration, "START_SECONDS", LONG)
    monkeypatch.setattr(demonstration, "PARSE_SECONDS", LONG)
    dags = shutil.copytree(DAGS, tmp_path / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    log, warehouse = f"sqlite:///{tmp_path}/logio.db", f"sqlite:///{tmp_path}/warehouse.db"
    places = Places(tmp_path, Path(dags), log, warehouse)
    standalone = Standalone(places, wanted_port=0)
    looking_back = LookingBack("logio_daily", example("logio_daily").pipeline)
    demo = demonstration.Demonstration(places, Progress(Console(width=200)), standalone, looking_back)
    try:
        verdict = demo.run()
    finally:
        demo.stop(lambda: True)
    assert verdict.is_good, str(verdict)

    backfilled, second_again, first_again, looked, alone = json.loads(places.summary.read_text())["steps"]
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

    third, back = looked["dag_runs"]
    assert (third["dag_run"], back["partition"]) == (runs[str(DAYS[1])]["dag_run"], str(DAYS[0]))
    assert back["dag_run"] == f"{PREFIX}{DAYS[0]}__{third['uid']}"
    assert [run["uid"] for run in alone["dag_runs"]] == [third["uid"]], "nothing was computed again"

    store = open_store(log, application="logio test")
    states = {run.uid: run.state for run in store.list_runs()}
    store.dispose()
    replaced = {*(runs[str(day)]["uid"] for day in DAYS[:2]), second_again["dag_runs"][0]["uid"]}
    assert {uid for uid, state in states.items() if state is RunState.SUPERSEDED} == replaced
    assert list(states.values()).count(RunState.FINISHED) == 4 and len(states) == 7
    with closing(sqlite3.connect(places.airflow_home / "airflow.db")) as database:
        ended = database.execute("SELECT run_type, state FROM dag_run ORDER BY id").fetchall()
    wanted = [*[("backfill", "success")] * len(DAYS), ("operator_triggered", "success")]
    assert ended == wanted, "the schedule begins none of today, which would be red"
