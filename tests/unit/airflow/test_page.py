"""The page inside Airflow: its plugin is loaded, and Airflow's own auth manager decides who sees which run."""

from __future__ import annotations

import ast
import importlib
import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow import plugins_manager, settings
from airflow.api_fastapi import app as airflow_app
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models import DagRun, Log, TaskInstance
from airflow.models.dag import DagModel
from airflow.models.dagbag import DBDagBag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.tasklog import LogTemplate
from airflow.models.xcom import XComModel
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, timezone
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_logio import _compat
from airflow_logio.cli.airflow_dags import AirflowDags
from airflow_logio.operators.scale import LogioScaleOperator
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.operators.supervise import LogioSuperviseOperator
from airflow_logio.protocol.states import GroupState
from airflow_logio.run_report import report
from airflow_logio.run_report.causes import HIDDEN
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run, Supervision
from airflow_logio.ui import group_tasks
from airflow_logio.ui.airflow_plugin import LogioPlugin
from airflow_logio.ui.page_places import NAME, PLUGIN, PREFIX, ROUTES, address, page_of_run
from tests.support.app_routes import routes
from tests.support.logs import start_driver
from tests.support.two_groups import TwoGroups, two_groups


@pytest.fixture
def metadata(airflow_database: None) -> None:
    """Airflow's own database, with a DAG that has runs in the log and one that has none."""
    with settings.Session() as session:
        session.add(DagBundleModel(name="dags"))
        session.flush()
        for dag_id in ("dag", "other"):
            session.add(DagModel(dag_id=dag_id, bundle_name="dags", fileloc="x", is_paused=False))
        session.commit()


@pytest.fixture
def api(metadata: None, log: LogStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """Airflow's application as far as plugins and users go."""
    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", "tests.unit.airflow.page_auth.OwnDagManager")
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a secret that is long enough for any algorithm" * 2)
    monkeypatch.setattr(airflow_app._AuthManagerState, "instance", None)
    plugins_manager._get_plugins.cache_clear()
    plugins_manager.get_fastapi_plugins.cache_clear()
    main = FastAPI()
    airflow_app.init_plugins(main)
    main.state.auth_manager = airflow_app.create_auth_manager()
    yield TestClient(main)
    plugins_manager._get_plugins.cache_clear()
    plugins_manager.get_fastapi_plugins.cache_clear()


def token(name: str) -> str:
    user = SimpleAuthManagerUser(username=name, role="viewer")
    made: str = airflow_app.get_auth_manager().generate_jwt(user)
    return made


def as_user(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token(name)}"}


def test_airflow_loads_it_with_one_bundle_in_four_places(api: TestClient) -> None:
    (plugin,) = [one for one in plugins_manager._get_plugins()[0] if isinstance(one, LogioPlugin)]
    assert {one["destination"]: one["url_route"] for one in plugin.react_apps} == ROUTES
    assert {(one["name"], one["bundle_url"]) for one in plugin.react_apps} == {
        (NAME, f"/logio/assets/{address(PLUGIN)}")
    }
    assert [one["url_prefix"] for one in plugin.fastapi_apps] == [PREFIX]


@pytest.mark.parametrize(
    ("base_url", "path"),
    [("", ""), ("http://host:8080", ""), ("https://host/", ""), ("https://host/team/airflow/", "/team/airflow")],
)
def test_its_bundle_is_below_the_path_of_airflow(base_url: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow 3.2 looks for it from where its own script is, if it is not told the path from the root."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    bundles = {one["bundle_url"] for one in LogioPlugin().react_apps}
    assert bundles == {f"{path}/logio/assets/{address(PLUGIN)}"}


def test_the_address_of_a_run_is_that_of_its_tab() -> None:
    """Airflow's routes: /dags/<dag>/runs/<run>/plugin/<route>, each part escaped."""
    address = page_of_run("http://localhost:8080/", "logio_sales", "manual__2026-11-25T10:00:00+00:00")
    run = "manual__2026-11-25T10%3A00%3A00%2B00%3A00"
    assert address == f"http://localhost:8080/dags/logio_sales/runs/{run}/plugin/logio_run"
    assert not plugins_manager._get_plugins()[1], "no import errors"


def test_airflows_users_see_the_runs_of_their_dags(api: TestClient, log: LogStore) -> None:
    flow = TwoGroups(log)
    flow.send(10, 500)
    look, panel = f"{PREFIX}/api/runs/{flow.run.uid}", f"{PREFIX}/api/runs/{flow.run.uid}/groups/totals"
    bundle = f"{PREFIX}/assets/{address(PLUGIN)}"
    for path in (f"{PREFIX}/api/runs", look, panel, bundle):
        assert api.get(path).status_code == 401, path
        assert api.get(path, headers={"authorization": "Bearer nonsense"}).status_code in (401, 403), path
    reader, stranger = as_user("dag"), as_user("other")
    assert api.get(look, headers=reader).json()["uid"] == flow.run.uid
    assert api.get(panel, headers=reader).json()["lines"] == []
    assert [one["uid"] for one in api.get(f"{PREFIX}/api/runs", headers=reader).json()["runs"]] == [flow.run.uid]
    assert api.get(bundle, headers=stranger).status_code == 200
    assert api.get(f"{PREFIX}/api/runs", headers=stranger).json()["runs"] == []
    for path in (look, panel, f"{PREFIX}/api/runs?dag_id=dag"):
        assert api.get(path, headers=stranger).status_code == 403, path
    assert api.get(f"{PREFIX}/api/runs/{'0' * 32}", headers=reader).status_code == 404
    with_cookie = TestClient(api.app, cookies={"_token": token("dag")})
    assert with_cookie.get(look).json()["uid"] == flow.run.uid


def test_airflow_decides_by_what_is_shown_of_a_dag(api: TestClient, log: LogStore) -> None:
    """Some see a DAG and none of its runs, or its runs and none of its tasks' logs."""
    flow, error = TwoGroups(log), "KeyError: Jane Doe"
    assert log.park(flow.drivers["totals"].ref, error)
    listed, look = f"{PREFIX}/api/runs", f"{PREFIX}/api/runs/{flow.run.uid}"
    without_runs = as_user("dag-RUN")
    assert api.get(listed, headers=without_runs).json()["runs"] == []
    assert api.get(look, headers=without_runs).status_code == 403
    for path in (listed, look, f"{look}/groups/totals"):
        quiet = api.get(path, headers=as_user("dag-TASK_LOGS"))
        assert (quiet.status_code, error in quiet.text, HIDDEN in quiet.text) == (200, False, True), path
        assert error in api.get(path, headers=as_user("dag")).text


ASKED = "?port=ingest.out&event=1&place=0&direction=backward&operator=totals&connection=db&action=1"
WHERE = {"port": "ingest.out", "where": {"id": "1"}}
SEARCHES = {"find": WHERE, "why_not": WHERE}
"""Routes that are posted, and change nothing."""
BODIES: dict[str, dict[str, Any]] = {"scale": {"group": "totals", "replicas": 2}, **SEARCHES}
OF_DATA = {"records", "behind", "read", *SEARCHES}
"""Routes that show values of records."""


def answered(api: TestClient, method: str, path: str, of: str) -> int:
    headers, where = as_user(of) if of else {}, PREFIX + path
    if method == "GET":
        return api.get(where + ASKED, headers=headers).status_code
    return api.post(where, json=BODIES.get(path.rpartition("/")[2], {}), headers=headers).status_code


def test_every_route_asks_airflow_who_may(api: TestClient, log: LogStore) -> None:
    """Anonymous 401, the reader of another DAG 403, an unknown run 404; what changes a run or shows data, that right, too."""
    flow = TwoGroups(log)
    (mounted,) = [one["app"] for one in LogioPlugin().fastapi_apps]
    of_runs = [one for one in routes(mounted, uid=flow.run.uid, group="totals", name="") if flow.run.uid in one[1]]
    assert len(of_runs) >= 14
    for method, path in of_runs:
        last = path.rpartition("/")[2]
        refused = {"": 401, "other": 403, "other+": 403, "dag+-RUN": 403}
        if method == "POST" and last not in SEARCHES:
            refused["dag"] = 403
        if last in OF_DATA:
            refused["dag-XCOM"] = 403
        assert {of: answered(api, method, path, of) for of in refused} == refused, path
        if "dag" not in refused:
            assert answered(api, method, path, "dag") not in (401, 403), path
        assert answered(api, method, path.replace(flow.run.uid, "0" * 32), "dag+") == 404, path
    assert {one.desired for one in log.groups(flow.run.run_id)} == {GroupState.RUNNING}
    assert audited() == []


def audited() -> list[tuple[Any, ...]]:
    """Who did what to which DAG run, in Airflow's audit log."""
    with settings.Session() as session:
        return [(one.owner, one.event, one.dag_id, one.run_id, one.extra) for one in session.query(Log)]


def test_what_changes_a_run_needs_that_right_in_airflow_and_stands_in_its_audit_log(
    api: TestClient, log: LogStore
) -> None:
    flow = TwoGroups(log)
    stop = f"{PREFIX}/api/runs/{flow.run.uid}/stop"
    for headers, status in (({}, 401), (as_user("dag"), 403), (as_user("other+"), 403)):
        assert api.post(stop, json={"group": "ingest"}, headers=headers).status_code == status
    with_cookie = TestClient(api.app, cookies={"_token": token("dag+")})
    from_elsewhere = {"sec-fetch-site": "cross-site"}
    assert with_cookie.post(stop, json={"group": "ingest"}, headers=from_elsewhere).status_code == 403
    assert with_cookie.post(stop, data={"group": "ingest"}).status_code == 415, "as a form of another site would"
    assert audited() == []
    assert log.group(flow.run.run_id, "ingest").desired is GroupState.RUNNING
    assert log.halted(flow.drivers["ingest"].ref)
    assert with_cookie.post(stop, json={"group": "ingest"}).json()["said"] == "ingest halted"
    rights = f"{PREFIX}/api/runs/{flow.run.uid}/rights"
    assert api.get(rights, headers=as_user("dag-XCOM")).json()["data"] is False
    assert api.get(rights, headers=as_user("dag+")).json()["change"] is True
    extra = json.dumps({"uid": flow.run.uid, "group": "ingest", "method": "POST"})
    assert audited() == [("dag+", "logio_stop", "dag", "run-1", extra)]


def test_a_retry_clears_the_groups_task_and_what_is_behind_it(api: TestClient, log: LogStore) -> None:
    flow = TwoGroups(log)
    retry = f"{PREFIX}/api/runs/{flow.run.uid}/retry"
    nothing = api.post(retry, json={}, headers=as_user("dag+"))
    assert (nothing.status_code, "has nothing to retry: ingest is running" in nothing.text) == (409, True)
    assert log.park(flow.drivers["totals"].ref, "KeyError")
    without_tasks = api.post(retry, json={"group": "totals"}, headers=as_user("dag+"))
    assert without_tasks.status_code == 409
    assert "no task that has ended launches totals in DAG run run-1 of dag" in without_tasks.text
    tasks = {"ingest": "running", "totals": "failed", "finish": "upstream_failed", "supervise": "deferred"}
    run_of_tasks(tasks, uid=flow.run.uid)
    refused = api.post(retry, json={"group": "totals"}, headers=as_user("dag+-TASK_INSTANCE"))
    assert refused.status_code == 403, "Airflow asks for this right where it clears tasks"
    rights = f"{PREFIX}/api/runs/{flow.run.uid}/rights"
    assert api.get(rights, headers=as_user("dag+-TASK_INSTANCE")).json()["retry"] is None
    assert api.get(rights, headers=as_user("dag+")).json()["puts_back"] is False, "that needs the author's code"
    in_state("finish", "running")
    waits = api.post(retry, json={"group": "totals"}, headers=as_user("dag+"))
    assert (waits.status_code, "behind totals, finish is running" in waits.text) == (409, True), waits.text
    in_state("finish", "upstream_failed")
    answer = api.post(retry, json={"group": "totals"}, headers=as_user("dag+"))
    assert answer.json()["said"].startswith("cleared, with what is behind: totals.")
    assert states_now() == {**GREEN, "ingest": "running", "totals": None, "finish": None, "supervise": "deferred"}
    with settings.Session() as session:
        assert [one.state for one in session.query(DagRun)] == ["queued"]
    assert [one[:2] for one in audited()] == [("dag+", "logio_retry")] * 4


@pytest.mark.parametrize("behind", [True, False], ids=["behind the groups", "beside them"])
@pytest.mark.parametrize("supervise", ["success", "skipped"])
def test_a_run_that_is_retried_has_its_supervisor_again(
    api: TestClient, log: LogStore, supervise: str, behind: bool
) -> None:
    """It ended when the last group had stopped. Another pipeline's, whose groups have the same names, is not touched."""
    flow = TwoGroups(log)
    flow.finish(["ingest"])
    assert log.park(flow.drivers["totals"].ref, "KeyError")
    of_the_other = {"other_start": "success", "other_totals": "failed", "other_supervise": "success"}
    run_of_tasks({"totals": "failed", "supervise": supervise, **of_the_other}, uid=flow.run.uid, behind=behind)
    answer = api.post(f"{PREFIX}/api/runs/{flow.run.uid}/retry", json={}, headers=as_user("dag+")).json()
    assert answer["said"].startswith("cleared, with what is behind: totals, and supervise, which had ended. ")
    assert states_now() == {**GREEN, "totals": None, "finish": None, "supervise": None, **of_the_other}


@pytest.mark.parametrize(
    ("state", "launched"), [("skipped", True), ("skipped", False), ("success", True), ("upstream_failed", False)]
)
def test_a_retry_brings_back_whatever_airflow_has_ended(
    api: TestClient, log: LogStore, state: str, launched: bool
) -> None:
    """A DAG run that times out skips its tasks, those that were never launched as well; a mark as successful halts, too."""
    flow = TwoGroups(log)
    if launched:
        assert all(log.halted(driver.ref) for driver in flow.drivers.values())
        run = flow.run
    else:
        flow.finish()
        assert log.finish_run(flow.run.run_id)
        run = log.start_run(replace(two_groups(), key=replace(flow.run.spec.key, dag_run_id="run-2")))
    ended = dict.fromkeys(["ingest", "totals", "finish", "supervise"], state)
    run_of_tasks({**ended, "start": "skipped"}, uid=run.uid, dag_run=run.spec.key.dag_run_id)
    answer = api.post(f"{PREFIX}/api/runs/{run.uid}/retry", json={}, headers=as_user("dag+"))
    assert "cleared, with what is behind: ingest, totals, and start, supervise, which had ended" in answer.text
    assert states_now() == {**GREEN, **dict.fromkeys(ended), "start": None}


@pytest.mark.parametrize("paused", [False, True])
def test_a_retry_of_what_was_never_launched_says_what_it_waits_for(
    api: TestClient, log: LogStore, paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All groups are new while their tasks wait for a worker: the person who asks for a retry learns that."""
    monkeypatch.setattr(_compat, "is_paused", lambda dag_id: paused)
    run = log.start_run(two_groups())
    run_of_tasks(dict.fromkeys(("ingest", "totals", "finish", "supervise"), "queued"), uid=run.uid)
    retry = f"{PREFIX}/api/runs/{run.uid}/retry"
    for asked, named in (({}, "ingest, totals"), ({"group": "totals"}, "totals")):
        answer = api.post(retry, json=asked, headers=as_user("dag+"))
        assert answer.status_code == 409
        assert f"no task that has ended launches {named} in DAG run run-1 of dag" in answer.text
        assert ("until DAG dag is unpaused" in answer.text) is paused and "nothing has run there yet" in answer.text
    in_state("totals", "failed")
    assert "cleared, with what is behind: totals" in api.post(retry, json={}, headers=as_user("dag+")).text


@pytest.mark.parametrize("over", ["group", "replica", "dicts"])
def test_a_retry_clears_instances_of_mapped_tasks(api: TestClient, log: LogStore, over: str) -> None:
    """Those of the groups that have stopped, and no other."""
    flow = TwoGroups(log)
    assert log.park(flow.drivers["totals"].ref, "KeyError")
    task = partial(LogioSparkOperator.partial, task_id="totals", pipeline="not.here:sales", run_uid="x")
    with DAG("dag", schedule=None) as dag:
        if over == "group":
            task().expand(group=["ingest", "totals"])
        elif over == "replica":
            task(group="totals").expand(replica=[1, 2])
        else:
            task().expand_kwargs([{"group": "ingest"}, {"driver_memory": "1g"}])
    stored_run(dag, dict.fromkeys(dag.task_dict, "failed"))
    said = api.post(f"{PREFIX}/api/runs/{flow.run.uid}/retry", json={"group": "totals"}, headers=as_user("dag+")).text
    assert "cleared, with what is behind: totals." in said
    with settings.Session() as session:
        states = {one.map_index: one.state for one in session.query(TaskInstance)}
    assert states == {0: None if over == "replica" else "failed", 1: None}


def test_a_run_that_was_given_up_leaves_the_tasks_of_the_fresh_one_alone(api: TestClient, log: LogStore) -> None:
    """A tab that was open before still offers to act on it, and its DAG run has the fresh run by now."""
    flow = TwoGroups(log)
    assert all(log.halted(driver.ref) for driver in flow.drivers.values())
    assert log.supersede(flow.run.run_id)
    run_of_tasks({"ingest": "failed"}, uid=log.start_run(two_groups()).uid)
    before = states_now()
    for action in ("retry", "drain"):
        answer = api.post(f"{PREFIX}/api/runs/{flow.run.uid}/{action}", json={}, headers=as_user("dag+"))
        assert (answer.status_code, "was given up for a fresh run" in answer.text) == (409, True), answer.text
        assert "logio retry" not in answer.text
    assert states_now() == before


@pytest.mark.parametrize("other", ["totals", "sums"])
def test_where_no_result_tells_two_pipelines_apart_a_retry_clears_nothing_of_the_other(
    api: TestClient, log: LogStore, other: str
) -> None:
    """A deployment may keep results of tasks elsewhere. Names of groups tell, or the person is told what to clear."""
    flow = TwoGroups(log)
    assert log.park(flow.drivers["totals"].ref, "KeyError")
    ref = "not.here:sales"
    with DAG("dag", schedule=None) as dag:
        for prefix, group in (("", "totals"), ("other_", other)):
            start = LogioStartRunOperator(task_id=f"{prefix}start", pipeline=f"{ref}{prefix}", pipeline_params={})
            task = LogioSparkOperator(task_id=f"{prefix}all", pipeline=ref, group=group, run_uid="x")
            start >> task >> LogioSuperviseOperator(task_id=f"{prefix}supervise", pipeline=ref, run_uid="x")
    ended = {**dict.fromkeys(dag.task_dict, "failed"), "start": "success", "other_start": "success"}
    stored_run(dag, ended)
    answer = api.post(f"{PREFIX}/api/runs/{flow.run.uid}/retry", json={"group": "totals"}, headers=as_user("dag+"))
    if other == "totals":
        assert answer.status_code == 409 and "clear all or other_all in Airflow instead" in answer.text, answer.text
        assert states_now() == ended
    else:
        assert "cleared, with what is behind: all, and supervise, which had ended" in answer.text, answer.text
        assert states_now() == {**ended, "all": None, "supervise": None}


def test_what_has_finished_is_left_as_it_is_unless_its_task_is_red(api: TestClient, log: LogStore) -> None:
    """Its last try may have been lost by Airflow: cleared, the task is green at once, and the run can finish."""
    flow = TwoGroups(log)
    flow.finish()
    retry = f"{PREFIX}/api/runs/{flow.run.uid}/retry"
    run_of_tasks({"totals": "success"})
    nothing = api.post(retry, json={}, headers=as_user("dag+"))
    assert (nothing.status_code, "has nothing to retry: ingest is finished" in nothing.text) == (409, True)
    in_state("totals", "failed")
    assert api.post(retry, json={}, headers=as_user("dag+")).status_code == 200
    assert states_now()["totals"] is None and states_now()["ingest"] == "success"


GREEN = dict.fromkeys(
    ("start", "ingest", "totals", "scale", "finish", "supervise", "other_start", "other_totals", "other_supervise"),
    "success",
)


def states_now() -> dict[str, str | None]:
    with settings.Session() as session:
        return {one.task_id: one.state for one in session.query(TaskInstance)}


# --- what Airflow knows of a run, and the log does not ------------------------------------------------------------------


def pause(dag_id: str = "dag") -> None:
    with settings.Session() as session:
        session.query(DagModel).filter(DagModel.dag_id == dag_id).update({"is_paused": True})
        session.commit()


def of_airflow(log: LogStore, dag_run: str = "run-1", supervision: Supervision = Supervision.TASK) -> Run:
    return log.start_run(replace(two_groups(dag_run), supervision=supervision))


@pytest.mark.parametrize("supervision", [Supervision.TASK, Supervision.DAG])
def test_a_paused_dag_is_said_with_what_follows_and_is_no_missing_supervisor(
    api: TestClient, log: LogStore, supervision: Supervision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MISSING_SECONDS", -1.0)
    run, other = of_airflow(log, supervision=supervision), of_airflow(log, "run-2", supervision)

    def warnings(one: Run) -> list[str]:
        found: list[str] = api.get(f"{PREFIX}/api/runs/{one.uid}", headers=as_user("dag")).json()["warnings"]
        return found

    missing = [] if supervision is Supervision.TASK else ["no supervisor looks for failed groups of this run"]
    before = warnings(run)
    assert [one.partition(" (")[0] for one in before] == missing, "`supervise` has not had its first turn"
    environment = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path / 'airflow.db'}"}
    asked = AirflowDags(environment)
    assert not asked.is_paused("other") and not asked.is_paused("unknown")
    pause()
    first, *rest = warnings(other)
    assert first.startswith("DAG dag is paused: its drivers keep running, but Airflow starts no task of it.")
    assert "until it is unpaused" in first
    assert ("`logio tend" in first) == (supervision is Supervision.TASK), "the recovery DAG is another one"
    assert len(rest) == len(missing)
    assert AirflowDags(environment).is_paused("dag"), "`logio status` asks the same table"


def test_a_run_that_was_refused_says_so_in_its_tab(api: TestClient, log: LogStore) -> None:
    flow = TwoGroups(log)
    run = of_airflow(log, "first")
    flow.finish()
    assert log.finish_run(flow.run.run_id)
    assert log.park(start_driver(log, group="totals", run=run).ref, "KeyError: Jane Doe")

    def note(of: str = "dag", dag_run: str = "second") -> str | None:
        path = f"{PREFIX}/api/runs?dag_id=dag&dag_run_id={dag_run}"
        found: str | None = api.get(path, headers=as_user(of)).json().get("note")
        return found

    assert note() is None, "it may just not have begun"
    run_of_tasks({"start": "up_for_retry", "ingest": "upstream_failed"}, dag_run="second", starts=True)
    said = note()
    assert said is not None and said.startswith(
        f"The log has no run of this DAG run, because its task start has failed. In its way is run first of sales, uid "
        f"{run.uid[:8]}, has not finished (ingest is new, totals is parked)"
    )
    assert f"`logio retry {run.uid[:8]}`), or give it up (`logio fresh {run.uid[:8]}`)" in said
    assert "Jane" not in said
    assert note("other") is None, "who may not read the DAG is told nothing"
    assert note(dag_run="first") is None, "that run is shown"
    assert log.supersede(run.run_id)
    assert note() == "The log has no run of this DAG run, because its task start has failed. The task's log says why."
    in_state("start", "deferred")
    waits = "waits for its input since 2026-03-02 00:10:00 UTC: source 'web': /data/x is not there"
    with settings.Session() as session:
        XComModel.set(_compat.WAITING_FOR, waits, dag_id="dag", task_id="start", run_id="second", session=session)
        session.commit()
    assert note() == f"The log has no run of this DAG run yet: its task start {waits}."
    assert note("other") is None
    listed = {of: api.get(f"{PREFIX}/api/runs", headers=as_user(of)).json()["waiting"] for of in ("dag", "other")}
    assert listed == {"dag": [{"dag_id": "dag", "dag_run_id": "second", "said": waits}], "other": []}
    in_state("start", "queued")
    assert note() is None, "what it waited for is there"
    assert api.get(f"{PREFIX}/api/runs?dag_id=dag", headers=as_user("dag")).json()["waiting"] == []
    pause()
    assert note() == "DAG dag is paused: Airflow starts no task of it until it is unpaused."


def in_state(task_id: str, state: str) -> None:
    with settings.Session() as session:
        session.query(TaskInstance).filter(TaskInstance.task_id == task_id).update({"state": state})
        session.commit()


def run_of_tasks(
    states: dict[str, str], *, uid: str | None = None, behind: bool = True, dag_run: str = "run-1", starts: bool = False
) -> None:
    """A DAG run of ``dag``, with tasks in these states, else green: those of a pipeline, one that scales, and another
    pipeline with a group of the same name. `uid`: what task ``start`` has returned; `starts`: it is the real operator."""
    ref = "tests.support.bundle.plain_sales:sales"
    with DAG("dag", schedule=None) as dag:
        other = EmptyOperator(task_id="other_start")
        start = (
            LogioStartRunOperator(
                task_id="start", pipeline=ref, pipeline_params={"transactions": "x"}, connections={"warehouse": "w"}
            )
            if starts
            else EmptyOperator(task_id="start")
        )
        groups = [
            LogioSparkOperator(task_id=name, pipeline=ref, group=name, run_uid="x") for name in ("ingest", "totals")
        ]
        supervise = LogioSuperviseOperator(task_id="supervise", pipeline=ref, run_uid="x")
        LogioScaleOperator(task_id="scale", group="totals", replicas=1, run_uid="x")
        start >> groups >> EmptyOperator(task_id="finish")
        [start, *(groups if behind else [])] >> supervise
        others = LogioSparkOperator(task_id="other_totals", pipeline=ref, group="totals", run_uid="y")
        other >> others >> LogioSuperviseOperator(task_id="other_supervise", pipeline=ref, run_uid="y")
    stored_run(dag, {**GREEN, **states}, dag_run)
    with settings.Session() as session:
        for task_id, value in (("start", uid), ("other_start", "another")) if uid else ():
            XComModel.set("return_value", value, dag_id="dag", task_id=task_id, run_id=dag_run, session=session)
        session.commit()


def stored_run(dag: DAG, states: Mapping[str, str], dag_run: str = "run-1") -> None:
    """A DAG run of it as Airflow has it in its database."""
    with settings.Session() as session:
        session.add(LogTemplate(id=0, filename="log", elasticsearch_id="log"))
        SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), "dags", session=session)
        session.flush()
        known = DBDagBag().get_latest_version_of_dag("dag", session=session)
        assert known is not None
        run = known.create_dagrun(
            run_id=dag_run,
            run_after=timezone.utcnow(),
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state=DagRunState.FAILED,
            session=session,
        )
        for task in run.get_task_instances(session=session):
            task.state = states[task.task_id]
        session.commit()


def test_the_log_is_that_of_the_configured_connection(
    api: TestClient, log: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__LOGIO__PAGE_CONN_ID", "logio_reader")
    (app,) = LogioPlugin().fastapi_apps
    answer = TestClient(app["app"]).get("/api/runs", headers=as_user("dag"))
    assert answer.status_code == 503
    assert answer.json() == {"detail": "the log cannot be read; why is in the log of this server"}


def test_airflow_runs_on_without_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def moved() -> Any:
        raise ImportError("Airflow has moved it")

    monkeypatch.setattr(_compat, "page_conn_id", moved)
    with caplog.at_level(logging.ERROR):
        plugin = LogioPlugin()
        assert (plugin.fastapi_apps, plugin.react_apps, plugin.fastapi_apps) == ([], [], [])
    assert len([one for one in caplog.records if "page of LOG.io" in one.getMessage()]) == 1


def imported_by_the_page() -> set[tuple[str, str]]:
    """(module, name) of Airflow, as functions of `_compat` and `group_tasks` import them in the API server."""
    source = Path(_compat.__file__).read_text()
    of_the_server = source[source.index("# --- the API server") :] + Path(group_tasks.__file__).read_text()
    nodes = [node for node in ast.walk(ast.parse(of_the_server)) if isinstance(node, ast.ImportFrom)]
    return {(str(node.module), one.name) for node in nodes for one in node.names if str(node.module)[:8] == "airflow."}


def test_what_the_page_needs_of_airflow_is_looked_for_before_there_is_one() -> None:
    assert imported_by_the_page() == {(module, name) for module, names in _compat.PAGE_NEEDS.items() for name in names}


@pytest.mark.parametrize("needed", sorted(imported_by_the_page()))
def test_there_is_no_page_where_airflow_has_moved_something(
    needed: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert LogioPlugin().fastapi_apps, "there is one; and Airflow's modules are loaded, which need each other"
    module, name = needed
    without = ModuleType(module)
    had = vars(importlib.import_module(module))
    vars(without).update({one: value for one, value in had.items() if one not in (name, "__getattr__")})
    monkeypatch.setitem(sys.modules, module, without)
    with caplog.at_level(logging.ERROR):
        assert (LogioPlugin().fastapi_apps, LogioPlugin().react_apps) == ([], [])
    assert name in caplog.text


def test_other_processes_of_airflow_load_no_web_application() -> None:
    """Every process loads the plugin; only the API server asks for its parts."""
    program = (
        "import sys, airflow_logio.ui.airflow_plugin\n"
        "heavy = {'airflow_logio.ui.web_app', 'uvicorn', 'airflow_logio.store.sql'}\n"
        "print('loaded:', *heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "loaded:"


def test_a_dag_run_whose_run_was_removed_says_so_in_its_tab(api: TestClient, log: LogStore) -> None:
    run = of_airflow(log, "long ago")
    log.supersede(run.run_id)
    of_airflow(log, "the row of the last one stays on SQLite")
    while log.remove_run(run.run_id, 100, reason="by keep_runs='90d'").more:
        pass

    def note(of: str) -> str | None:
        path = f"{PREFIX}/api/runs?dag_id=dag&dag_run_id=long ago"
        found: str | None = api.get(path, headers=as_user(of)).json().get("note")
        return found

    said = note("dag")
    assert said is not None and said.startswith("The run of this DAG run was removed from the log on 20")
    assert said.endswith("UTC, by keep_runs='90d'. Clear its tasks to compute it again.")
    assert note("other") is None
