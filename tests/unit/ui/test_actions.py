"""What the page does to runs: who may, how it must be asked, what is noted, and what the log says then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_logio.errors import LogInconsistent, NotPermitted
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import OperatorShape, Supervision
from airflow_logio.supervision.stop_run import StopRun
from airflow_logio.ui import actions
from airflow_logio.ui.access import LONGEST
from airflow_logio.ui.alone import alone_app
from airflow_logio.ui.looks import LogSource
from tests.support.app_routes import routes
from tests.support.logs import start_driver
from tests.support.page_readers import Readers, Retries
from tests.support.replicated import GROUP, replicated_spec
from tests.support.two_groups import TwoGroups, two_groups
from tests.unit.ui.conftest import BOSS, OWNER, STRANGER

CHANGING = ("stop", "drain", "retry", "scale", "give_up", "again")
BODIES: dict[str, dict[str, Any]] = {"scale": {"group": "totals", "replicas": 2}}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers of these tests do not obey by themselves."""
    monkeypatch.setattr(actions, "STOP_SECONDS", 0.0)
    monkeypatch.setattr(actions, "GIVE_UP_SECONDS", 0.0)


def path(uid: str, action: str) -> str:
    return f"/api/runs/{uid}/{action}"


def body(action: str) -> dict[str, Any]:
    return BODIES.get(action, {})


def states(flow: TwoGroups) -> dict[str, GroupState]:
    return {one.group: one.state for one in flow.store.groups(flow.run.run_id)}


def wishes(flow: TwoGroups) -> dict[str, GroupState]:
    return {one.group: one.desired for one in flow.store.groups(flow.run.run_id)}


# --- who --------------------------------------------------------------------------------------------------------------


def test_what_changes_a_run_is_a_post_and_nothing_else_is(client: TestClient, flow: TwoGroups) -> None:
    posts = [one for method, one in routes(client.app, uid=flow.run.uid, group="g", name="n") if method == "POST"]
    changing = [path(flow.run.uid, action) for action in CHANGING]
    assert set(changing) <= set(posts)
    for one in changing:
        assert client.get(one, headers=BOSS).status_code == 405
    assert wishes(flow) == {"ingest": GroupState.RUNNING, "totals": GroupState.RUNNING}


@pytest.mark.parametrize("action", CHANGING)
def test_only_who_may_change_the_runs_of_the_dag_does(
    client: TestClient, flow: TwoGroups, readers: Readers, retries: Retries, action: str
) -> None:
    where = path(flow.run.uid, action)
    refused = {"": 401, "nobody": 401, "owner": 403, "quiet": 403, "stranger": 403}
    for reader, status in refused.items():
        answer = client.post(where, json=body(action), headers={"x-reader": reader})
        assert answer.status_code == status, reader
        assert "totals" not in answer.text and flow.run.uid not in answer.text
    unknown = client.post(path("0" * 32, action), json=body(action), headers=BOSS)
    assert (unknown.status_code, unknown.json()) == (404, {"detail": "there is no such run, or no such group in it"})
    assert client.post(path(flow.run.uid[:8], action), json=body(action), headers=BOSS).status_code == 404
    assert wishes(flow) == {"ingest": GroupState.RUNNING, "totals": GroupState.RUNNING}
    assert readers.noted == []
    assert retries.asked == []


NO_TEXT = b'{"group": "\\u0000"}', b'{"group": "\xff"}', b'{"group": "\\ud800"}'
"""What no database takes as text: NUL, a byte that is no UTF-8, and half of a character."""


@pytest.mark.parametrize("action", CHANGING)
def test_only_json_that_the_page_has_sent_is_taken(
    client: TestClient, flow: TwoGroups, readers: Readers, action: str
) -> None:
    where = path(flow.run.uid, action)
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data", ""):
        assert client.post(where, content=b"{}", headers={**BOSS, "content-type": kind}).status_code == 415
    as_json = {**BOSS, "content-type": "application/json; charset=utf-8"}
    for site in ("cross-site", "same-site"):
        assert client.post(where, content=b"{}", headers={**as_json, "sec-fetch-site": site}).status_code == 403
    long = b'{"group": "' + b"g" * 300 + b'"}'
    for content in (b"{", b"[]", b'{"group": 7}', b'{"another": 1}', long, *NO_TEXT):
        assert client.post(where, content=content, headers=as_json).status_code == 422, content
    assert client.post(where, content=b" " * (LONGEST + 1), headers=as_json).status_code == 413
    assert client.post(where, content=b"{", headers={"content-type": "text/plain"}).status_code == 401, (
        "first, who asks"
    )
    assert readers.noted == []


def test_alone_the_token_is_needed_in_a_header(store: LogStore, flow: TwoGroups) -> None:
    """No cookie does, which other pages could send."""
    app = alone_app(LogSource(lambda: store, None), "secret", Retries().retrying())
    page = TestClient(app, base_url="http://127.0.0.1", cookies={"token": "secret", "authorization": "Bearer secret"})
    for method, where in routes(app, uid=flow.run.uid, group="totals", name="n"):
        if method == "POST":
            assert page.post(where, json=body(where.rpartition("/")[2])).status_code == 401, where
    assert wishes(flow) == {"ingest": GroupState.RUNNING, "totals": GroupState.RUNNING}
    stopped = page.post(path(flow.run.uid, "stop"), json={}, headers={"authorization": "Bearer secret"})
    assert stopped.status_code == 200
    assert wishes(flow) == {"ingest": GroupState.HALTED, "totals": GroupState.HALTED}


def test_what_may_be_done_is_said_before(client: TestClient, flow: TwoGroups) -> None:
    where = f"/api/runs/{flow.run.uid}/rights"
    told = "It will be launched again."
    assert client.get(where, headers=BOSS).json() == {"change": True, "data": True, "retry": told, "puts_back": True}
    nothing = {"change": False, "data": False, "retry": None, "puts_back": True}
    assert client.get(where, headers={"x-reader": "quiet"}).json() == nothing
    assert client.get(where, headers=STRANGER).status_code == 403


# --- what -------------------------------------------------------------------------------------------------------------


def test_a_group_is_halted_and_who_asked_is_noted(client: TestClient, flow: TwoGroups, readers: Readers) -> None:
    answer = client.post(path(flow.run.uid, "stop"), json={"group": "totals"}, headers=BOSS)
    assert answer.status_code == 200
    assert answer.json()["said"].startswith("totals: still not ended after 0 s; the request stands")
    assert wishes(flow) == {"ingest": GroupState.RUNNING, "totals": GroupState.HALTED}
    assert readers.noted == [("Grace", "stop", {"uid": flow.run.uid, "group": "totals"})]


def test_a_group_without_a_driver_is_halted_at_once(client: TestClient, flow: TwoGroups) -> None:
    assert flow.store.declare_dead(flow.drivers["totals"].ref, "a test")
    answer = client.post(path(flow.run.uid, "stop"), json={"group": "totals"}, headers=BOSS)
    assert answer.json() == {"said": "totals halted", "warning": None}
    assert states(flow) == {"ingest": GroupState.RUNNING, "totals": GroupState.HALTED}


def test_sources_drain_and_what_cannot_is_refused_as_the_command_does(client: TestClient, flow: TwoGroups) -> None:
    refused = client.post(path(flow.run.uid, "drain"), json={"group": "totals"}, headers=BOSS)
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        "group 'totals' has no source: it ends by itself when the groups before it have drained",
    )
    answer = client.post(path(flow.run.uid, "drain"), json={}, headers=BOSS)
    assert answer.json() == {"said": "asked to drain; now: ingest running, totals running", "warning": None}
    assert wishes(flow) == {"ingest": GroupState.DRAINING, "totals": GroupState.RUNNING}


@pytest.mark.parametrize("older", [False, True])
def test_a_run_that_was_stopped_and_retried_can_be_drained(client: TestClient, store: LogStore, older: bool) -> None:
    """One source has finished before the stop, and is never launched again; `older`: its log kept the halt as a wish."""
    both = replace(two_groups(), operators={**two_groups().operators, "other": OperatorShape("totals", outputs=("x",))})
    run = store.start_run(both)
    drivers = {group: start_driver(store, group=group, run=run) for group in run.spec.groups}
    if older:
        store.request(run.run_id, "ingest", GroupState.HALTED)
    drivers["ingest"].session.commit([fx.FinishGroup()])
    client.post(path(run.uid, "stop"), json={}, headers=BOSS)
    assert store.halted(drivers["totals"].ref)
    store.claim(run.run_id, "totals", expected=1, reason="a retry", by_user=True)
    answer = client.post(path(run.uid, "drain"), json={}, headers=BOSS)
    assert (answer.status_code, answer.json()["said"]) == (200, "asked to drain; now: ingest finished, totals claimed")
    assert store.group(run.run_id, "totals").desired is GroupState.DRAINING


def test_a_group_is_scaled_by_a_request_with_the_persons_name(client: TestClient, store: LogStore) -> None:
    run = store.start_run(replace(replicated_spec(), supervision=Supervision.TASK))
    asked = {"group": GROUP, "replicas": 3, "reason": "Friday"}
    answer = client.post(path(run.uid, "scale"), json=asked, headers=BOSS)
    (request,) = store.scalings(run.run_id, GROUP)
    assert answer.json()["said"] == f"request {request.request_id}: work is to have 3 replicas"
    assert "no supervisor looks for failed groups" in answer.json()["warning"], "no supervisor would carry it out now"
    assert (request.replicas, request.by, request.reason) == (3, "Grace, on the page", "Friday")
    refused = client.post(path(run.uid, "scale"), json={"group": GROUP, "replicas": 9}, headers=BOSS)
    assert (refused.status_code, len(store.scalings(run.run_id, GROUP))) == (409, 1)
    assert "its author allows 0 to 3" in refused.json()["detail"]
    for many in (-1, 1.5, "2", None, 10_000):
        wrong = client.post(path(run.uid, "scale"), json={"group": GROUP, "replicas": many}, headers=BOSS)
        assert wrong.status_code == 422, many


def test_a_run_is_given_up_once_its_drivers_have_ended(client: TestClient, flow: TwoGroups) -> None:
    where = path(flow.run.uid, "give_up")
    waiting = client.post(where, json={}, headers=BOSS)
    assert waiting.status_code == 409
    assert "ingest, totals: still not ended after 0 s" in waiting.json()["detail"]
    assert flow.store.find_run(flow.run.uid).state is RunState.RUNNING
    for driver in flow.drivers.values():
        assert flow.store.halted(driver.ref)
    for said in ("is given up", "was given up before"):
        answer = client.post(where, json={}, headers=BOSS)
        assert answer.json()["said"].startswith(f"run {flow.run.spec.key}, uid {flow.run.uid[:8]}, {said}. ")
    assert flow.store.find_run(flow.run.uid).state is RunState.SUPERSEDED


def test_a_day_is_computed_again_and_the_list_says_why(
    client: TestClient, store: LogStore, flow: TwoGroups, readers: Readers
) -> None:
    refused = client.post(path(flow.run.uid, "again"), json={"because": "a late file"}, headers=BOSS)
    assert refused.status_code == 409 and "is of no day or hour" in refused.json()["detail"]
    plain = flow.run.spec
    of_day = replace(plain, key=replace(plain.key, pipeline="clicks"), partition="2026-03-01")
    day = store.start_run(of_day)
    for group in day.spec.groups:
        start_driver(store, group=group, run=day).session.commit([fx.FinishGroup()])
    assert store.finish_run(day.run_id)
    asked = {"because": "a late file"}
    for said in ("is given up", "was given up before"):
        answer = client.post(path(day.uid, "again"), json=asked, headers=BOSS)
        assert answer.json()["said"].startswith(f"run {day.spec.key}, uid {day.uid[:8]}, {said}. ")
    assert readers.noted[-1] == ("Grace", "again", {"uid": day.uid, **asked})
    following = store.start_run(of_day)
    listed = {one["uid"]: one for one in client.get("/api/runs", headers=BOSS).json()["runs"]}
    fields = ("partition", "state", "superseded_by", "because")
    assert [listed[day.uid][name] for name in fields] == ["2026-03-01", "superseded", following.uid, "a late file"]
    assert [listed[following.uid][name] for name in fields] == ["2026-03-01", "running", None, None]
    assert listed[flow.run.uid]["partition"] is None


def test_a_retry_is_for_who_launches_drivers(client: TestClient, flow: TwoGroups, retries: Retries) -> None:
    answer = client.post(path(flow.run.uid, "retry"), json={"group": "totals"}, headers=BOSS)
    assert answer.json()["said"] == "it is launched again"
    assert retries.asked == [(flow.run.uid, "totals")]


@pytest.mark.parametrize("action", ["stop", "drain", "retry", "scale"])
def test_a_group_that_the_run_does_not_have(client: TestClient, flow: TwoGroups, action: str) -> None:
    asked = {**body(action), "group": "another"}
    assert client.post(path(flow.run.uid, action), json=asked, headers=BOSS).status_code == 404
    assert wishes(flow) == {"ingest": GroupState.RUNNING, "totals": GroupState.RUNNING}


def test_what_cannot_be_noted_is_not_done(
    client: TestClient, flow: TwoGroups, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("Airflow's database is unavailable")

    monkeypatch.setattr(readers, "note", fail)
    with pytest.raises(RuntimeError):
        client.post(path(flow.run.uid, "stop"), json={}, headers=BOSS)
    assert wishes(flow) == {"ingest": GroupState.RUNNING, "totals": GroupState.RUNNING}


def test_a_role_that_only_reads_is_said(client: TestClient, flow: TwoGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise NotPermitted("log database postgresql://logio_reader@host/db: permission denied for table logio_group")

    monkeypatch.setattr(type(flow.store), "request", refuse)
    answer = client.post(path(flow.run.uid, "stop"), json={}, headers=BOSS)
    assert (answer.status_code, "page_action_conn_id" in answer.text, "host" in answer.text) == (409, True, False)


def test_what_is_wrong_with_the_log_is_not_said_to_those_who_act(
    client: TestClient, flow: TwoGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise LogInconsistent("log database postgresql://logio@host/db: a row is damaged")

    monkeypatch.setattr(type(flow.store), "request", fail)
    answer = client.post(path(flow.run.uid, "stop"), json={}, headers=BOSS)
    assert (answer.status_code, "host" in answer.text) == (500, False)


def test_a_stop_of_which_nothing_is_known_is_no_success(
    client: TestClient, flow: TwoGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was taken, and then the log did not answer."""
    monkeypatch.setattr(StopRun, "look", lambda self: None)
    answer = client.post(path(flow.run.uid, "stop"), json={}, headers=BOSS)
    assert "the log does not answer: still not ended" in answer.json()["said"]
    answer = client.post(path(flow.run.uid, "give_up"), json={}, headers=BOSS)
    assert answer.status_code == 409 and "is not given up" in answer.json()["detail"]


def test_a_reader_who_may_not_change_sees_the_run_all_the_same(client: TestClient, flow: TwoGroups) -> None:
    assert client.get(f"/api/runs/{flow.run.uid}", headers=OWNER).status_code == 200
