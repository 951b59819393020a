"""The page's web application: who gets what, and what a log that is strange or away does to it."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_logio.errors import FailurePoint, LogUnavailable
from airflow_logio.protocol.states import GroupState
from airflow_logio.run_report.causes import HIDDEN
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef, Load, SparkApplication, Standby
from airflow_logio.systems.calls import CallWatch
from airflow_logio.ui import looks as looks_module
from airflow_logio.ui import run_list
from airflow_logio.ui.access import DATA_HIDDEN, LONGEST_TEXT, names_input_set, without_ids
from airflow_logio.ui.alone import alone_app
from airflow_logio.ui.looks import LogSource
from airflow_logio.ui.page_places import ALONE, PLUGIN, address
from airflow_logio.ui.run_look import MOST_QUARANTINED
from airflow_logio.ui.web_app import SECURITY_HEADERS
from tests.support.app_routes import routes
from tests.support.logs import spec, start_driver
from tests.support.page_readers import Retries
from tests.support.replicated import GROUP, REPLICAS, launch, replicated_spec
from tests.support.two_groups import TwoGroups
from tests.unit.lineage.test_why_not import logged
from tests.unit.ui.conftest import OWNER, QUIET, SILENT, STRANGER, TALKER

TOKEN = {"authorization": "Bearer secret"}
UNKNOWN = "0" * 32


@pytest.fixture
def alone(store: LogStore) -> TestClient:
    return TestClient(
        alone_app(LogSource(lambda: store, None), "secret", Retries().retrying()), base_url="http://127.0.0.1"
    )


def is_empty(answer: Any) -> bool:
    found = answer.json()
    return not found["runs"] and not found["older"]


def paths(app: Any, **values: str) -> list[str]:
    """Every route of an application that reads, filled in. Anything that is no plain route fails."""
    return [path for method, path in routes(app, **values) if method == "GET"]


# --- who --------------------------------------------------------------------------------------------------------------


def test_an_anonymous_caller_gets_nothing(client: TestClient, flow: TwoGroups) -> None:
    for path in paths(client.app, uid=flow.run.uid, group="totals", name=address(PLUGIN)):
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert flow.run.uid not in answer.text


def test_alone_only_the_page_itself_is_open_and_it_has_no_data(alone: TestClient, flow: TwoGroups) -> None:
    for path in paths(alone.app, uid=flow.run.uid, group="totals", name=address(ALONE)):
        expected = 200 if path == "/" or path.startswith("/assets/") else 401
        assert alone.get(path).status_code == expected, path
        assert alone.get(path, headers={"authorization": "Bearer secre"}).status_code == expected
        opened = (
            422 if "/lineage/" in path or path == "/api/days" else 200
        )  # it does not say of which event, or pipeline
        assert alone.get(path, headers=TOKEN).status_code == opened, path
    assert "secret" not in alone.get("/").text


def test_alone_another_name_of_this_machine_is_refused(alone: TestClient) -> None:
    assert alone.get("/api/runs", headers={**TOKEN, "host": "attacker.example"}).status_code == 400


def test_the_reader_of_another_dag_gets_nothing(client: TestClient, flow: TwoGroups) -> None:
    for path in (f"/api/runs/{flow.run.uid}", f"/api/runs/{flow.run.uid}/groups/totals", "/api/runs?dag_id=dag"):
        answer = client.get(path, headers=STRANGER)
        assert answer.status_code == 403, path
        assert "totals" not in answer.text and "sales" not in answer.text
    asked = "?port=totals.out&event=1&place=0&direction=backward&operator=totals&connection=db&action=1"
    of_runs = [path for path in paths(client.app, uid=flow.run.uid, group="totals", name="") if flow.run.uid in path]
    assert len(of_runs) > 5
    for path in of_runs:
        assert client.get(path + asked, headers=STRANGER).status_code == 403, path
        unknown = client.get(path.replace(flow.run.uid, UNKNOWN) + asked, headers=STRANGER)
        assert unknown.status_code == 404 and "totals" not in unknown.text, path
    for path in ("/api/runs", f"/api/runs?dag_run_id={flow.run.spec.key.dag_run_id}"):
        assert is_empty(client.get(path, headers=STRANGER))


def test_runs_are_found_by_a_part_of_their_names_among_those_that_one_may_read(
    client: TestClient, store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, not only those that a list has."""
    monkeypatch.setattr(run_list, "MOST_RUNS", 2)
    oldest = store.start_run(spec("g", dag_run="the one"))
    for number in range(3):
        run = store.start_run(spec("g", dag_run=f"run-{number}"))
        assert store.request(run.run_id, "g", GroupState.HALTED) and store.supersede(run.run_id)
    assert store.request(oldest.run_id, "g", GroupState.HALTED) and store.supersede(oldest.run_id)

    def found(named: str, reader: dict[str, str] = OWNER) -> list[str]:
        return [
            one["run_id"] for one in client.get("/api/runs", params={"named": named}, headers=reader).json()["runs"]
        ]

    assert found("run") == ["run-2", "run-1"]
    assert found("The O") == ["the one"]
    assert found("the o", STRANGER) == []
    assert client.get("/api/runs?named=x&dag_id=dag", headers=STRANGER).status_code == 403
    for wrong in ("", "x" * 251):
        assert client.get("/api/runs", params={"named": wrong}, headers=OWNER).status_code == 422


def test_a_reader_sees_the_runs_of_the_dag(client: TestClient, flow: TwoGroups) -> None:
    for query in ("", "?dag_id=dag", "?dag_id=dag&dag_run_id=run-1"):
        (listed,) = client.get(f"/api/runs{query}", headers=OWNER).json()["runs"]
        assert (listed["uid"], listed["states"]) == (flow.run.uid, {"running": 2})
    assert is_empty(client.get("/api/runs?dag_id=dag&dag_run_id=run-2", headers=OWNER))


@pytest.mark.parametrize(
    "uid", [UNKNOWN, "run-1", "%00", "%2e%2e", "A" * 32, "\u0661" * 32, "0" * 4000, "%25", "_" * 32, "' OR 1=1 --"]
)
def test_an_unknown_run_is_unknown_whatever_its_name(client: TestClient, flow: TwoGroups, uid: str) -> None:
    """Neither the beginning of a uid nor a run's name opens one here: they could be tried."""
    known = client.get(f"/api/runs/{flow.run.uid}x", headers=OWNER)
    for reader in (OWNER, STRANGER):
        answer = client.get(f"/api/runs/{uid}", headers=reader)
        assert answer.status_code == 404
    assert known.status_code == client.get(f"/api/runs/{flow.run.uid[:8]}", headers=OWNER).status_code == 404
    assert known.json() == {"detail": "there is no such run, or no such group in it"}


def test_an_unknown_group_and_an_unknown_file(client: TestClient, flow: TwoGroups) -> None:
    for path in (f"/api/runs/{flow.run.uid}/groups/another", "/assets/plugin.js", "/assets/..%2fweb_app.py", "/docs"):
        assert client.get(path, headers=OWNER).status_code == 404, path


def test_what_drivers_print_needs_the_right_to_read_task_logs(client: TestClient, flow: TwoGroups) -> None:
    ref = flow.drivers["totals"].ref
    flow.store.output.add(ref, 1, 10, "first\nlast <b>line</b>\n", mark="m")
    path = f"/api/runs/{flow.run.uid}/groups/totals"
    assert client.get(path, headers=OWNER).json()["lines"] == ["first", "last <b>line</b>"]
    quiet = client.get(path, headers=QUIET).json()
    assert quiet["lines"] is None and quiet["drivers"]


def test_error_texts_need_the_right_to_read_task_logs(client: TestClient, flow: TwoGroups) -> None:
    """They come from the author's code and data, as what drivers print does."""
    private, totals = "KeyError: Jane Doe", flow.drivers["totals"]
    flow.set_aside("1", error=private)
    assert flow.store.declare_dead(totals.ref, private)
    group = GroupRef(flow.run.run_id, "totals", 1)
    flow.store.claim(flow.run.run_id, "totals", expected=1, reason=private)
    assert flow.store.park(GroupRef(flow.run.run_id, "totals", 2), private), group
    paths = ("/api/runs", f"/api/runs/{flow.run.uid}", f"/api/runs/{flow.run.uid}/groups/totals")
    for path in paths:
        shown, quiet = (client.get(path, headers=reader).text for reader in (OWNER, QUIET))
        assert private in shown and HIDDEN not in shown, path
        assert "Jane Doe" not in quiet and HIDDEN in quiet, path
    look, panel = (client.get(path, headers=QUIET).json() for path in paths[1:])
    assert {one["name"]: one["state"] for one in look["groups"]} == {"ingest": "running", "totals": "parked"}
    assert look["quarantine"]["by_group"] == {"totals": 1}
    assert [one["incarnation"] for one in panel["drivers"]] == [2, 1]


def everything(client: TestClient, uid: str, reader: dict[str, str], group: str, port: str) -> dict[str, str]:
    """The whole text of every answer that a person gets about a run, whatever it is."""
    query = f"?port={port}&event=1&event=2&event=5&direction=forward&place=0&operator=total&connection=db&action=1"
    bodies: dict[str, list[dict[str, Any]]] = {
        "find": [{"port": port, "event": 1}, {"port": port, "at": 0}, {"port": port, "input_set": "Jane Doe"}],
        "why_not": [{"port": port, "where": {"shop": "aside"}}],
    }
    texts = {}
    for method, path in routes(client.app, uid=uid, group=group, name=address(PLUGIN)):
        if path.startswith("/assets/"):
            continue
        if method == "GET":
            asked = query.replace("&event=2&event=5", "") if "/lineage" in path and "/step" not in path else query
            texts[path] = client.get(path + ("" if path == "/api/runs" else asked), headers=reader).text
            texts[f"{path}, backward"] = client.get(path + asked.replace("forward", "backward"), headers=reader).text
        for body in bodies.get(path.rpartition("/")[2], [{}]) if method == "POST" else ():
            texts[f"{path} {body}"] = client.post(path, json=body, headers=reader).text
    return texts


def test_ids_of_input_sets_need_the_right_to_data(client: TestClient, flow: TwoGroups) -> None:
    """An author may make them of values. Who may read errors only, and who may not, see that there are some."""
    flow.set_aside("Jane Doe", error="KeyError")
    at = FailurePoint("total", inset_id="Jane O'Doe")
    assert flow.store.declare_dead(flow.drivers["totals"].ref, "KeyError", failed_at=at)
    in_call(flow.store, flow.drivers["ingest"].ref, FailurePoint("read", "in", 7, 'Jane "x" O\'Doe of operator'))
    path = f"/api/runs/{flow.run.uid}"
    for reader, shown in ((OWNER, True), (SILENT, True), (QUIET, False), (TALKER, False)):
        seen = client.get(path, headers=reader).json()
        (one,) = seen["quarantine"]["shown"]
        assert (one["operator"], one["input_set"]) == ("total", "Jane Doe" if shown else None), reader
        inset = "Input Set 'Jane \"x\" O\\'Doe of operator'" if shown else "an Input Set"
        assert {group["name"]: group["call"] for group in seen["groups"]} == {
            "ingest": f"`generate` of event 7 on port read.in, {inset} of operator 'read' for 42 s",
            "totals": "",
        }
        (driver,) = client.get(f"{path}/groups/totals", headers=reader).json()["drivers"]
        assert driver["failed_at"] == ("Input Set \"Jane O'Doe\" of operator 'total'" if shown else DATA_HIDDEN), reader
        texts = everything(client, flow.run.uid, reader, "totals", "read.out")
        named = [path for path, text in texts.items() if "Jane" in text or "Doe" in text]
        assert bool(named) == shown, (reader, named)
    assert client.get(path, headers=TALKER).json()["quarantine"]["shown"][0]["error"] == "KeyError"


def test_lineage_names_no_input_sets_without_the_right_to_data(client: TestClient, store: LogStore) -> None:
    run = logged(store).run
    hours = ("T10:00", "T11:00", "T12:00")
    for reader, shown in ((OWNER, True), (SILENT, True), (QUIET, False), (TALKER, False)):
        texts = everything(client, run.uid, reader, "g", "clean.out")
        named = [path for path, text in texts.items() if any(hour in text for hour in hours)]
        assert (len(named) > 1) == shown and bool(named) == shown, (reader, named)


def in_call(store: LogStore, ref: GroupRef, at: FailurePoint, seconds: float = 42.0) -> None:
    """The driver is in a call of the author's code."""
    load = Load(1.0, 0.0, 1.0, 0.0, 0, 0, 0, 0, call=str(CallWatch().call("generate", at)), call_seconds=seconds)
    store.heartbeat(ref, 1, ready=True, rss_bytes=1, load=load)


def test_what_a_driver_does_names_no_input_set_to_those_who_may_not_read_data(
    client: TestClient, flow: TwoGroups
) -> None:
    """Also where nothing is in quarantine, and nothing is hidden of what names none."""
    path = f"/api/runs/{flow.run.uid}"
    many = FailurePoint("read", action="a Spark job of 12 Input Sets")
    assert flow.store.declare_dead(flow.drivers["ingest"].ref, "KeyError", failed_at=many)
    in_call(flow.store, flow.drivers["totals"].ref, FailurePoint("total", inset_id="Jane Doe"))
    assert "Jane Doe" in client.get(path, headers=OWNER).text
    assert "Jane" not in client.get(path, headers=TALKER).text
    (driver,) = client.get(f"{path}/groups/ingest", headers=QUIET).json()["drivers"]
    assert driver["failed_at"] == "a Spark job of 12 Input Sets of operator 'read'"


def test_why_something_waits_is_told_to_those_who_may_read_data(client: TestClient, flow: TwoGroups) -> None:
    """The others are told that it does, and for what."""
    calls = CallWatch()
    calls.waits("write action 3 of 'publish'", "connection 'wh': could not connect, says Jane")
    load = Load(1.0, 0.0, 1.0, 0.0, 0, 0, 0, 0, call=calls.longest()[0], call_seconds=3.0)
    flow.store.heartbeat(flow.drivers["totals"].ref, 1, ready=True, rss_bytes=1, load=load)
    path = f"/api/runs/{flow.run.uid}"
    assert "could not connect, says Jane for 3 s" in client.get(path, headers=OWNER).text
    said = client.get(path, headers=TALKER).text
    assert "Jane" not in said and "`wait` for write action 3 of 'publish' for 3 s" in said


@pytest.mark.parametrize(
    "inset_id", ["Doe", "O'Doe", 'O"Doe', "O'\"Doe", "a\\", "a\\'\"Doe", "a\nDoe", "x' of operator 'Doe", ""]
)
def test_an_id_is_hidden_whatever_is_in_it(inset_id: str) -> None:
    place = str(FailurePoint("total", "in", 3, inset_id, "the flush"))
    hidden = "event 3 on port total.in, an Input Set of operator 'total', the flush of operator 'total'"
    assert names_input_set(place) and without_ids(place) == hidden
    assert not names_input_set(hidden) and not names_input_set(None)
    cut = place[: place.index("Input Set ") + len("Input Set ") + max(1, len(repr(inset_id)) - 1)]
    assert names_input_set(cut) and without_ids(cut) == "event 3 on port total.in, an Input Set", "a text that was cut"


def test_every_answer_keeps_a_browser_from_more(client: TestClient, flow: TwoGroups) -> None:
    for path in (f"/api/runs/{flow.run.uid}", f"/api/runs/{UNKNOWN}", "/nothing"):
        for headers in (OWNER, {}):
            answer = client.get(path, headers=headers)
            assert answer.headers["cache-control"] == "no-store"
            assert {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
    file = client.get(f"/assets/{address(PLUGIN)}", headers=OWNER)
    assert file.headers["content-type"].startswith("text/javascript")
    assert "immutable" in file.headers["cache-control"] and "private" in file.headers["cache-control"]


# --- what -------------------------------------------------------------------------------------------------------------


def look(client: TestClient, flow: TwoGroups) -> dict[str, Any]:
    answer = client.get(f"/api/runs/{flow.run.uid}", headers=OWNER)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_what_stands_by_for_a_driver_is_shown(client: TestClient, flow: TwoGroups) -> None:
    load = Load(1.0, 0.0, 1.0, 0.0, 0, 0, 0, 0, standby=Standby(4711, False, 64 << 20))
    flow.store.heartbeat(flow.drivers["totals"].ref, 1, ready=True, rss_bytes=1, load=load)
    assert {one["name"]: one["standby"] for one in look(client, flow)["groups"]} == {
        "ingest": "",
        "totals": "starting, 64 MB",
    }


@pytest.mark.parametrize(("has_died", "expected"), [(False, [0.5, 0.3, 10.0]), (True, [None, None, None])])
def test_what_a_driver_did_last_is_no_figure_once_it_has_ended(
    client: TestClient, flow: TwoGroups, has_died: bool, expected: list[float | None]
) -> None:
    spark = SparkApplication("local-1", "http://spark", keeps_events=False)
    load = Load(2.0, 0.5, 0.2, 0.3, 20, 200, 20, 200, application=spark)
    flow.store.heartbeat(flow.drivers["totals"].ref, 1, ready=True, rss_bytes=1, load=load)
    assert not has_died or flow.store.declare_dead(flow.drivers["totals"].ref, "killed")
    (found,) = [one for one in look(client, flow)["groups"] if one["name"] == "totals"]
    assert [found[name] for name in ("busy", "blocked", "events_per_second")] == expected
    assert found["spark"] == {"application": "local-1", "ui": "http://spark"}, "its history may be kept"


def test_a_death_is_followed_from_its_cause_to_the_first_commit(client: TestClient, flow: TwoGroups) -> None:
    flow.recover("totals")
    flow.use(1, 50)
    found = look(client, flow)
    assert [(one["name"], one["incarnation"], one["recoveries"]) for one in found["groups"]] == [
        ("ingest", 1, 0),
        ("totals", 2, 1),
    ]
    (between,) = [one for one in found["connections"] if one["from_group"] != one["to_group"]]
    assert (between["from"], between["to"], between["lag"]) == ("read.out", "total.in", {"events": 2, "records": 100})
    kinds = [(one["kind"], one["group"], one["incarnation"]) for one in found["history"]["latest"]]
    assert kinds[:3] == [("recovery", "totals", 2), ("launch", "totals", 2), ("death", "totals", 1)]
    assert {one["name"]: (one["group"], one["inputs"], one["outputs"]) for one in found["operators"]} == {
        "read": ("ingest", [], ["out"]),
        "total": ("totals", ["in"], ["out"]),
        "save": ("totals", ["in"], []),
    }
    panel = client.get(f"/api/runs/{flow.run.uid}/groups/totals", headers=OWNER).json()
    assert [(one["incarnation"], one["error"]) for one in panel["drivers"]] == [(2, None), (1, "test")]
    assert (panel["spark_ui"], panel["manager_page"]) == ("", ""), "a process of this machine, without Spark"


def test_what_is_parked_says_why(client: TestClient, flow: TwoGroups) -> None:
    where = "pipeline 'sales', operator 'total', port 'in', event 3 of read.out: "
    frame = '\n  File "/w/totals/1/code/sales_operators.py", line 12, in totals\n    sales["department"]'
    error = f"OperatorFailed: {where}KeyError: <department>{frame}"
    assert flow.store.park(flow.drivers["totals"].ref, error)
    cause = {"said": "KeyError: <department>", "place": "sales_operators.py:12, in totals"}
    (listed,) = client.get("/api/runs", headers=OWNER).json()["runs"]
    (stopped,) = listed["stopped"]
    assert (stopped["group"], stopped["state"]) == ("totals", "parked")
    assert {"said": stopped["reason"], "place": stopped["place"]} == cause
    found = look(client, flow)
    ingest, totals = found["groups"]
    assert (totals["state"], totals["cause"], totals["last_error"]["text"]) == ("parked", cause, error)
    assert ingest["cause"] is None
    latest = found["history"]["latest"][0]
    assert (latest["kind"], latest["text"]) == ("parked", f"{cause['said']}, {cause['place']}")
    (hidden,) = client.get("/api/runs", headers=QUIET).json()["runs"][0]["stopped"]
    assert (hidden["reason"], hidden["place"]) == (HIDDEN, "")
    unseen = client.get(f"/api/runs/{flow.run.uid}", headers=QUIET)
    assert unseen.json()["groups"][1]["cause"] == {"said": HIDDEN, "place": ""}
    assert "department" not in unseen.text and "sales_operators" not in unseen.text


def test_of_many_groups_that_have_stopped_the_most_pressing_are_named(store: LogStore) -> None:
    """The list is bounded: what was halted on request must not hide what only its author can mend."""
    groups = [f"g{number:02}" for number in range(run_list.MOST_STOPPED + 1)]
    run = store.start_run(spec(*groups))
    for group in groups[:-1]:
        assert store.halted(GroupRef(run.run_id, group, 0))
    assert store.park(GroupRef(run.run_id, groups[-1], 0), "KeyError: 'department'")
    (listed,) = run_list.listed_runs(store, None, None).runs
    assert [one["group"] for one in listed["stopped"]] == [groups[-1], *groups[: run_list.MOST_STOPPED - 1]]
    assert listed["states"] == {"halted": run_list.MOST_STOPPED, "parked": 1}, "so a reader knows that one is not named"


def test_a_group_that_was_asked_to_halt_says_so_to_everyone(client: TestClient, flow: TwoGroups) -> None:
    assert flow.store.request(flow.run.run_id, "totals", GroupState.HALTED)
    assert flow.store.halted(flow.drivers["totals"].ref)
    for reader in (OWNER, QUIET):
        assert (
            client.get("/api/runs", headers=reader).json()["runs"][0]["stopped"][0]["reason"] == "it was asked to halt"
        )


def test_a_run_says_how_far_it_is_how_long_it_takes_and_how_old_that_is(client: TestClient, flow: TwoGroups) -> None:
    """Ten events of 500 records were sent, of 1,000 that the input has; seven of them were used."""
    answer = client.get(f"/api/runs/{flow.run.uid}", headers=OWNER)
    assert answer.json()["progress"] == pytest.approx(500 / 1_000 * 350 / 500)
    assert 0 <= int(answer.headers["age"]) <= 60
    answer = client.get("/api/runs", headers=OWNER)
    (listed,) = answer.json()["runs"]
    assert listed["progress"] == pytest.approx(0.35)
    assert answer.json()["at"] >= listed["created_at"] - 60 and listed["ended_at"] is None
    assert 0 <= int(answer.headers["age"]) <= 60
    assert "age" in client.get(f"/api/runs/{flow.run.uid}/groups/totals", headers=OWNER).headers


def test_quarantine_and_errors_are_bounded(client: TestClient, flow: TwoGroups) -> None:
    insets = [f"{number:03d}" for number in range(MOST_QUARANTINED + 7)]
    flow.set_aside(*insets, error="at the beginning " + "x" * 3 * LONGEST_TEXT + " at the end")
    found = look(client, flow)["quarantine"]
    assert found["by_group"] == {"totals": len(insets)}
    assert [one["input_set"] for one in found["shown"]] == insets[:MOST_QUARANTINED]
    error = found["shown"][0]["error"]
    assert len(error) < LONGEST_TEXT + 100
    assert error.startswith("at the beginning") and error.endswith("at the end") and "left out" in error


def test_a_run_that_has_ended_is_shown_as_it_was(client: TestClient, flow: TwoGroups) -> None:
    flow.finish()
    assert flow.store.finish_run(flow.run.run_id)
    found = look(client, flow)
    assert (found["condition"], found["ended"], found["warnings"]) == ("finished", True, [])
    assert {one["state"] for one in found["groups"]} == {"finished"}


def test_a_name_that_looks_like_a_page_is_a_name(client: TestClient, store: LogStore) -> None:
    """Values go out as JSON, and a browser is told that nothing of it is a page."""
    name = "<img src=x onerror=alert(1)>"
    run = start_driver(store, group=name).run
    answer = client.get(f"/api/runs/{run.uid}", headers=OWNER)
    assert answer.json()["groups"][0]["name"] == name
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    panel = client.get(f"/api/runs/{run.uid}/groups/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E", headers=OWNER)
    assert panel.json()["group"] == name


def test_an_empty_log_has_no_runs(client: TestClient) -> None:
    assert is_empty(client.get("/api/runs", headers=OWNER))


@pytest.fixture
def never_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is a look of its own."""
    monkeypatch.setattr(looks_module, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(looks_module, "LIST_FRESH_SECONDS", 0.0)
    monkeypatch.setattr(looks_module, "SHARE", float("inf"))


@pytest.mark.usefixtures("never_shared")
def test_a_run_that_was_removed_meanwhile_is_unknown(client: TestClient, flow: TwoGroups) -> None:
    look(client, flow)
    for group in ("ingest", "totals"):
        assert flow.store.park(GroupRef(flow.run.run_id, group, 1), "a test")
    assert flow.store.supersede(flow.run.run_id)
    flow.store.start_run(spec("g", dag_run="the row of the last one stays on SQLite"))
    while flow.store.remove_run(flow.run.run_id, 1000).more:
        pass
    answer = client.get(f"/api/runs/{flow.run.uid}", headers=OWNER)
    assert answer.status_code == 404
    assert re.fullmatch(r"this run was removed from the log on [\d :-]+ UTC, by a person", answer.json()["detail"])


# --- a log that is unavailable ----------------------------------------------------------------------------------------


def test_a_log_that_is_away_is_said_and_asked_again_later(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    opening: list[Callable[[], LogStore]] = []

    def refuse() -> LogStore:
        raise LogUnavailable("the database at postgresql://host does not answer")

    def open_it() -> LogStore:
        asked.append("")
        return opening[0]()

    opening.append(refuse)
    source = LogSource(open_it, None)
    client = TestClient(alone_app(source, "secret", Retries().retrying()), base_url="http://127.0.0.1")
    for path in ("/api/runs", f"/api/runs/{UNKNOWN}", f"/api/runs/{UNKNOWN}/groups/g"):
        answer = client.get(path, headers=TOKEN)
        assert answer.status_code == 503
        assert answer.json() == {"detail": "the log cannot be read: the database at postgresql://host does not answer"}
    assert len(asked) == 1, "a refusal holds for a moment, for everyone"
    monkeypatch.setattr(looks_module, "REFUSED_SECONDS", 0.0)
    opening[0] = lambda: open_store(sqlite_url)
    assert is_empty(client.get("/api/runs", headers=TOKEN))
    with source.asking() as log:
        log.store.dispose()


def test_an_error_of_a_connections_lookup_says_no_more_than_its_kind() -> None:
    def fail() -> LogStore:
        raise RuntimeError("postgresql://user:password@host")

    client = TestClient(alone_app(LogSource(fail, None), "secret", Retries().retrying()), base_url="http://127.0.0.1")
    answer = client.get("/api/runs", headers=TOKEN)
    assert answer.status_code == 503
    assert "RuntimeError" in answer.text and "password" not in answer.text


@pytest.mark.usefixtures("never_shared")
def test_a_log_that_goes_away_later_is_said_too(
    client: TestClient, flow: TwoGroups, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: Any) -> Any:
        raise LogUnavailable("role airflow at host db.internal: connection refused")

    assert look(client, flow)["groups"]
    with monkeypatch.context() as patch:
        patch.setattr(type(flow.store), "sight", away)
        with caplog.at_level(logging.ERROR):
            for path in (f"/api/runs/{flow.run.uid}", "/api/runs") * 2:
                answer = client.get(path, headers=OWNER)
                assert (answer.status_code, "db.internal" in answer.text) == (503, False)
                assert answer.json()["detail"] == "the log cannot be read; why is in the log of this server"
        (said,) = [one.getMessage() for one in caplog.records if "page of LOG.io" in one.getMessage()]
        assert "db.internal: connection refused" in said
    assert look(client, flow)["groups"][0]["state"] == GroupState.RUNNING


def test_a_log_that_hangs_takes_few_threads(
    client: TestClient, flow: TwoGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's API has forty threads, and the page shares them: more requests do not wait."""
    watched = look(client, flow)
    hanging, ended = threading.Semaphore(0), threading.Event()

    def hang(*_: Any, **__: Any) -> Any:
        hanging.release()
        assert ended.wait(90)
        return []

    with monkeypatch.context() as patch, ThreadPoolExecutor(looks_module.MOST_ASKING) as waiting:
        patch.setattr(type(flow.store), "list_runs", hang)
        queries = [f"/api/runs?dag_id=dag&dag_run_id={number}" for number in range(looks_module.MOST_ASKING)]
        asked = [waiting.submit(client.get, query, headers=OWNER) for query in queries]
        for _ in asked:
            assert hanging.acquire(timeout=90)
        answer = client.get("/api/runs", headers=OWNER)
        assert (answer.status_code, "requests wait for the log" in answer.text) == (503, True)
        assert look(client, flow) == watched, "what still holds waits for nothing"
        ended.set()
        assert [one.result(90).status_code for one in asked] == [200] * looks_module.MOST_ASKING
    assert look(client, flow)["groups"]


def test_two_runs_of_one_dag_run_are_both_listed_the_newest_first(client: TestClient, store: LogStore) -> None:
    first = store.start_run(spec("g"))
    assert store.request(first.run_id, "g", GroupState.HALTED) and store.supersede(first.run_id)
    second = store.start_run(spec("g"))
    listed = client.get("/api/runs?dag_id=dag&dag_run_id=run-1", headers=OWNER).json()["runs"]
    assert [(one["uid"], one["generation"]) for one in listed] == [(second.uid, 2), (first.uid, 1)]


def test_a_replicated_group_says_the_cause_of_its_replica(client: TestClient, store: LogStore) -> None:
    run = store.start_run(replicated_spec())
    drivers = [launch(store, run, name) for name in REPLICAS[:2]]
    assert store.park(drivers[1].ref, "KeyError: 1")
    found = client.get(f"/api/runs/{run.uid}", headers=OWNER).json()
    causes = {one["name"]: one["cause"] for one in found["groups"] + found["wholes"]}
    expected = {"said": "KeyError: 1", "place": ""}
    assert (causes[REPLICAS[0]], causes[REPLICAS[1]], causes[GROUP]) == (None, expected, expected)
