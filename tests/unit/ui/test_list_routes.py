"""The days of a pipeline as the page gets them: who sees which, one day's runs, and days that are computed again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.run_writers import Repeats, Together, WriterShape
from airflow_logio.protocol.states import RunState
from airflow_logio.run_report.causes import HIDDEN
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Allowed, Run, RunSpec
from tests.support.logs import spec, start_driver
from tests.support.page_readers import Readers
from tests.unit.ui.conftest import BOSS, OWNER, SILENT, STRANGER

GRAPH = {"partition": {"partition": "Days", "name": "day", "zone": "Europe/Berlin", "rules": "r"}}
REFUSED = "WriteRefused: day=2026-03-03 is of another log: `logio again ... --take-over` lets the next run replace it"


def of(day: str, dag: str = "dag") -> RunSpec:
    one = replace(spec("g", dag_run=day), partition=day, graph=GRAPH)
    owns = WriterShape("save", "table 'top'", ("warehouse", "top"), Together.BY_PARTITION, Repeats.REPLACED)
    return replace(one, key=replace(one.key, dag_id=dag), writers=(owns,))


def finished(store: LogStore, day: str, dag: str = "dag") -> Run:
    run = store.start_run(of(day, dag))
    start_driver(store, run=run).session.commit([fx.FinishGroup()])
    assert store.finish_run(run.run_id)
    return run


@pytest.fixture
def red(store: LogStore) -> Run:
    """1 March is done, 2 March is of another DAG, 3 March is red."""
    finished(store, "2026-03-01")
    finished(store, "2026-03-02", "other")
    run = store.start_run(of("2026-03-03"))
    start_driver(store, run=run).session.park(REFUSED)
    return run


def cells(client: TestClient, reader: dict[str, str]) -> list[dict[str, object]]:
    answer = client.get("/api/days", params={"pipeline": "sales"}, headers=reader)
    assert answer.status_code == 200, answer.text
    return [cell for row in answer.json()["rows"] for cell in row["cells"]][:3]


def test_readers_see_the_days_of_their_dags_and_that_others_have_something(client: TestClient, red: Run) -> None:
    first, second, third = cells(client, OWNER)
    assert (first["state"], third["state"], third["uid"]) == ("done", "red", red.uid)
    assert second == {"key": "2026-03-02", "state": "hidden"}
    assert (third["cause"], third["options"]) == (REFUSED, ["take-over"])
    assert cells(client, SILENT)[2]["cause"] == HIDDEN
    assert [cell["state"] for cell in cells(client, STRANGER)] == ["hidden", "done", "hidden"]
    assert client.get("/api/days", params={"pipeline": "sales"}).status_code == 401


def test_a_pipeline_of_which_nothing_may_be_seen_is_not_there(client: TestClient, store: LogStore, red: Run) -> None:
    other = of("2026-03-01", "another")
    store.start_run(replace(other, key=replace(other.key, pipeline="hidden")))
    for name in ("hidden", "nothing"):
        answer = client.get("/api/days", params={"pipeline": name}, headers=OWNER)
        assert answer.status_code == 404, name
        assert "another" not in answer.text


def test_the_runs_of_one_day_are_listed_the_youngest_first(client: TestClient, store: LogStore, red: Run) -> None:
    store.supersede(red.run_id, because="a late file")
    following = store.start_run(of("2026-03-03"))
    asked = {"pipeline": "sales", "partition": "2026-03-03"}
    listed = client.get("/api/runs", params=asked, headers=OWNER).json()["runs"]
    assert [one["uid"] for one in listed] == [following.uid, red.uid]
    assert client.get("/api/runs", params=asked, headers=STRANGER).json()["runs"] == []


def test_what_names_no_day_is_refused(client: TestClient, red: Run) -> None:
    answer = client.get("/api/days", params={"pipeline": "sales", "last": "March"}, headers=OWNER)
    assert (answer.status_code, "no day" in answer.json()["detail"]) == (422, True)


# --- again ------------------------------------------------------------------------------------------------------------


def test_the_next_run_of_a_red_day_takes_over_what_a_person_lets_it(
    client: TestClient, store: LogStore, readers: Readers, red: Run
) -> None:
    assert client.get(f"/api/runs/{red.uid}", headers=OWNER).json()["options"] == ["take-over"]
    body = {"because": "moved here", "allowed": ["take-over"]}
    answer = client.post(f"/api/runs/{red.uid}/again", json=body, headers=BOSS)
    assert answer.status_code == 200, answer.text
    assert "The next run of 2026-03-03 has --take-over, no later one" in answer.json()["said"]
    assert readers.noted[-1][-1] == {"uid": red.uid, **body}
    following = store.start_run(of("2026-03-03"))
    assert following.spec.allowed == {Allowed.TAKE_OVER}
    assert store.find_run(red.uid).because == "moved here"


def test_what_is_no_option_of_a_person_is_refused(client: TestClient, store: LogStore, red: Run) -> None:
    answer = client.post(f"/api/runs/{red.uid}/again", json={"allowed": ["everything"]}, headers=BOSS)
    assert answer.status_code == 422
    owns_nothing = store.start_run(replace(of("2026-03-04"), writers=()))
    answer = client.post(f"/api/runs/{owns_nothing.uid}/again", json={"allowed": ["take-over"]}, headers=BOSS)
    assert (answer.status_code, "has by=" in answer.json()["detail"]) == (409, True)
    assert store.find_run(owns_nothing.uid).state is RunState.RUNNING


def test_of_many_days_those_that_are_at_work_are_left_alone(client: TestClient, store: LogStore) -> None:
    at_work = start_driver(store, run=store.start_run(of("2026-03-04"))).run
    answer = client.post(f"/api/runs/{at_work.uid}/again", json={"only_stopped": True}, headers=BOSS)
    assert (answer.status_code, "left alone" in answer.json()["detail"]) == (409, True)
    assert store.find_run(at_work.uid).state is RunState.RUNNING
