"""A run of `logio run` whose process is gone: what `logio status` says of it, and what `logio retry` does."""

from __future__ import annotations

import io
import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from airflow_logio.cli import retry
from airflow_logio.cli.status import PlainScreen
from airflow_logio.launch import start_run
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.launch.processes import boot_id, this_host
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.run_report.report import Reporter
from airflow_logio.status import condition
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import DriverIdentity, GroupRef, LaunchRecipe
from airflow_logio.store.records.run_records import Run, Supervision
from airflow_logio.supervision.retry import find_lost
from tests.support.logs import SOMEBODY, start_driver
from tests.unit.cli.test_fresh import Logio, logio, start

__all__ = ["logio", "start"]  # fixtures

LEASE_SECONDS = 600.0
GROUPS = ["hourly", "ingest", "publish", "totals"]
GONE = DriverIdentity(this_host(), boot_id(), 2**22 + 1, 12.5)
"""Of a process of this machine that has ended: no pid is so large."""


@pytest.fixture(autouse=True)
def long_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers of these tests give one heartbeat: they live until the end of the test, unless it says otherwise."""
    monkeypatch.setattr(start_run, "Lease", lambda: Lease(LEASE_SECONDS))


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `logio retry` launches, and "supervise" where it supervises the whole run."""
    found: list[str] = []

    def supervise(_context: LaunchContext, groups: Sequence[str] | None, _json: object) -> int:
        assert groups is None
        found.append("supervise")
        return 0

    monkeypatch.setattr(retry, "_launch", lambda _context, group: found.append(group))
    monkeypatch.setattr(retry, "supervise", supervise)
    return found


@pytest.fixture
def run(start: Callable[..., Run], store: LogStore, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Supervised a minute ago. A driver of each group has given a heartbeat."""
    found = start("mine")
    store.note_supervisor("process 12 on here", run_uid=found.uid)
    monkeypatch.setattr(condition, "LEFT_SECONDS", -1.0)
    return found


def drive(store: LogStore, run: Run, identity: DriverIdentity = SOMEBODY, *, silent: str = "") -> None:
    """A driver of each group; that of group `silent` dies before its first heartbeat."""
    for name in GROUPS:
        ref = store.register(store.claim(run.run_id, name, expected=0, reason="test"), identity)
        if name != silent:
            store.heartbeat(ref, 1, ready=True, rss_bytes=1 << 20)


def silence(sqlite_url: str, seconds: float) -> None:
    """Both since the last heartbeat and since the driver has registered."""
    log = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    with log:
        log.execute("UPDATE logio_group SET since = since - ?", (seconds,))
    log.close()
    beats = sqlite3.connect(sqlite_url.removeprefix("sqlite:///") + ".heartbeat")
    with beats:
        beats.execute("UPDATE logio_heartbeat SET at = at - ?", (seconds,))
    beats.close()


def listed(logio: Logio) -> tuple[str, str]:
    (found,) = json.loads(logio("status", "--json")[1])
    return found["condition"], found["next_step"]


@pytest.mark.parametrize("silent", ["", "publish"])
def test_a_run_that_was_killed_with_its_drivers_waits_for_a_person(
    run: Run, store: LogStore, logio: Logio, sqlite_url: str, launched: list[str], silent: str
) -> None:
    drive(store, run, GONE, silent=silent)
    assert listed(logio) == ("running", f"no process supervises it; `logio retry {run.uid[:8]}` does")
    silence(sqlite_url, LEASE_SECONDS / 2)
    assert listed(logio)[0] == "running", "the lease has not run out"
    silence(sqlite_url, LEASE_SECONDS / 2)
    assert listed(logio) == ("waiting for a person", f"no process runs it; `logio retry {run.uid[:8]}` continues it")
    shown = logio("status", run.uid)[1]
    assert all(re.search(rf"group {name} is running, no heartbeat for 6\d\d s", shown) for name in GROUPS), shown
    assert "waiting for a person, started" in shown and "process 12 on here did so" in shown
    code, said = logio("retry", run.uid[:8])
    assert (code, launched) == (0, [*GROUPS, "supervise"]), said
    assert "group ingest is dead: the driver's process" in said
    assert {group.recoveries for group in store.groups(run.run_id)} == {0}, "it costs no budget"


def test_a_run_whose_drivers_live_is_running_and_warned_of(
    run: Run, store: LogStore, logio: Logio, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drive(store, run)
    code, shown = logio("status", run.uid)
    first, *_ = shown.splitlines()
    assert code == 0 and first.startswith("warning: no process supervises this run (process 12 on here did so"), shown
    assert f"`logio retry {run.uid[:8]}` supervises it again" in first
    assert "\nrunning, started " in shown and f"next: no process supervises it; `logio retry {run.uid[:8]}`" in shown
    printed = io.StringIO()
    screen, reporter = PlainScreen(Console(file=printed, width=200)), Reporter(store, run.uid)
    for _ in range(2):
        screen.show(reporter.look())
    assert printed.getvalue().count("warning: no process supervises this run") == 1, "--watch says so as well, once"
    monkeypatch.setattr(retry, "find_lost", lambda *_: {})  # they give heartbeats
    assert logio("retry", run.uid[:8])[0] == 0
    assert launched == ["supervise"]


def test_a_run_that_somebody_supervises_is_left_to_them(
    run: Run, store: LogStore, logio: Logio, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drive(store, run)
    monkeypatch.setattr(condition, "LEFT_SECONDS", 30.0)
    monkeypatch.setattr(retry, "find_lost", lambda *_: {})
    assert listed(logio) == ("running", "")
    shown = logio("status", run.uid)[1]
    assert "no process supervises" not in shown and "supervised by process 12 on here, last seen" in shown
    code, said = logio("retry", run.uid[:8])
    said = " ".join(said.split())
    assert (code, launched) == (1, []) and "has nothing to retry: hourly is running" in said
    assert "process 12 on here supervised it" in said and "the same command takes the run over in" in said


def test_a_run_whose_groups_have_finished_unseen_is_finished_by_a_retry(
    run: Run, store: LogStore, logio: Logio, launched: list[str]
) -> None:
    for name in GROUPS:
        start_driver(store, group=name, run=run).session.commit([fx.FinishGroup()])
    assert store.find_run(run.uid).state is RunState.RUNNING
    assert listed(logio)[0] == "waiting for a person"
    assert logio("retry", run.uid[:8])[0] == 0
    assert launched == ["supervise"]


def test_drivers_are_lost_by_their_lease_where_nobody_sees_their_process(run: Run, store: LogStore) -> None:
    drive(store, run)
    quick = replace(run, spec=replace(run.spec, lease=replace(run.spec.lease, seconds=0.5)))
    lost = find_lost(store, quick, ["ingest", "totals"])
    assert list(lost) == ["ingest", "totals"] and "gave no heartbeat" in lost["ingest"]
    assert store.group(run.run_id, "publish").state is GroupState.RUNNING
    assert find_lost(store, quick, ["ingest"]) == {}, "it is dead, as the log says"


def test_a_retry_leaves_no_drivers_to_nobody(
    run: Run, store: LogStore, logio: Logio, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--detach, of a run of `logio run`."""
    drive(store, run, GONE)
    store.forget_supervisor("process 12 on here")
    store.note_supervisor("logio tend on here")  # which leaves such runs alone
    for options in ([], ["totals"]):
        code, said = logio("retry", run.uid[:8], *options, "--detach")
        said = " ".join(said.split())
        assert (code, launched) == (1, [])
        assert (
            "no process supervises it now" in said and f"`{' '.join(['logio retry', run.uid[:8], *options])}`" in said
        )
    assert store.group(run.run_id, "totals").state is GroupState.RUNNING, "nothing was done"
    monkeypatch.setattr(retry, "LEFT_SECONDS", 30.0)
    store.note_supervisor("process 13 on here", run_uid=run.uid)
    assert logio("retry", run.uid[:8], "--detach")[0] == 0
    assert launched == GROUPS


@pytest.fixture
def of_airflow(start: Callable[..., Run], store: LogStore, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of a DAG run, as the log tells of it."""
    find, every = type(store).find_run, type(store).list_runs

    def so(found: Run) -> Run:
        key = replace(found.spec.key, dag_id="dag")
        return replace(found, spec=replace(found.spec, supervision=Supervision.TASK, key=key))

    run = start("mine")
    monkeypatch.setattr(type(store), "find_run", lambda self, name: so(find(self, name)))
    monkeypatch.setattr(type(store), "list_runs", lambda self, **how: [so(one) for one in every(self, **how)])
    sight = type(store).sight
    monkeypatch.setattr(
        type(store), "sight", lambda self, uids: [replace(one, run=so(one.run)) for one in sight(self, uids)]
    )
    return so(run)


def test_a_run_of_airflow_that_nobody_supervises_says_what_it_waits_for(
    of_airflow: Run, store: LogStore, logio: Logio, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, uid = of_airflow, of_airflow.uid[:8]
    assert listed(logio) == ("running", ""), "it has just begun"
    monkeypatch.setattr(condition, "MISSING_SECONDS", -1.0)
    new = ", ".join(f"{name} new" for name in GROUPS)
    assert listed(logio) == ("running", f"{new}: launched by no task of DAG run mine yet")
    drive(store, run)
    _, first = listed(logio)
    assert first.startswith("task `supervise` of DAG run mine does not look after it yet: it waits for a worker"), first
    assert "warning" not in logio("status", run.uid)[1], "it has not had its first turn"
    store.note_supervisor("task supervise", run_uid=run.uid)
    supervise = f"no process supervises it: clear task `supervise` (DAG run mine), or `logio tend {uid}`"
    assert listed(logio) == ("running", supervise)
    refs = {group.group: GroupRef(run.run_id, group.group, group.incarnation) for group in store.groups(run.run_id)}
    assert store.declare_dead(refs["ingest"], "test") and store.declare_dead(refs["totals"], "test")
    assert store.park(refs["hourly"], "a test")
    parked = f"hourly parked: fix the cause, then clear the task, or `logio retry {uid}`"
    assert listed(logio) == ("running", f"{supervise}; {parked}"), "publish runs"
    assert store.declare_dead(refs["publish"], "test")
    assert listed(logio) == ("waiting for a person", f"{supervise}; {parked}")
    assert f"next: {supervise}; {parked}" in logio("status", run.uid)[1]
    store.note_supervisor("logio tend on here")
    monkeypatch.setattr(condition, "MISSING_SECONDS", 60.0)
    assert listed(logio) == ("running", ""), "it is recovered"


@pytest.mark.parametrize("known", ["environment", "airflow.cfg", "its default file"])
def test_a_dag_that_is_paused_is_said_with_what_follows_from_it(
    known: str, of_airflow: Run, store: LogStore, logio: Logio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow starts no task of it: not `supervise`, which a dead group wakes, nor what is cleared."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    database = tmp_path / ("airflow.db" if known == "its default file" else "other.db")
    url = f"sqlite:///{database}"
    if known == "environment":
        monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", url)
    elif known == "airflow.cfg":
        (tmp_path / "airflow.cfg").write_text(f"[database]\nsql_alchemy_conn = {url}\n")
    drive(store, of_airflow)
    assert "paused" not in logio("status", of_airflow.uid)[1], "there is no such database"
    assert not database.exists(), "asking makes none"
    with closing(sqlite3.connect(database)) as airflow:
        assert "paused" not in logio("status", of_airflow.uid)[1], "nor such a table"
        airflow.execute("CREATE TABLE dag (dag_id TEXT, is_paused BOOLEAN)")
        airflow.execute("INSERT INTO dag VALUES ('dag', 0), ('other', 1)")
        airflow.commit()
        assert "paused" not in logio("status", of_airflow.uid)[1]
        airflow.execute("UPDATE dag SET is_paused = 1")
        airflow.commit()
    said = " ".join(logio("status", of_airflow.uid)[1].split())
    assert "warning: DAG dag is paused: its drivers keep running, but Airflow starts no task of it." in said
    assert (
        "unless they ran beside the triggerer, requests to scale wait, what is cleared or retried is not launched"
        in said
    )
    assert f"`logio tend {of_airflow.uid[:8]}` recovers and scales meanwhile" in said
    assert json.loads(logio("status", of_airflow.uid, "--json")[1])["supervision"]["dag_paused"] is True
    unpause = "unpause DAG dag: Airflow starts no task of it"
    assert listed(logio) == ("running", unpause), "the list says so, too"
    assert "unpause DAG dag" in " ".join(logio("status")[1].split())
    assert f"next: {unpause}" in " ".join(logio("status", of_airflow.uid)[1].split())
    monkeypatch.setattr(condition, "MISSING_SECONDS", -1.0)
    assert listed(logio) == ("running", unpause), "no supervisor looks: that follows from it"
    hourly = next(one for one in store.groups(of_airflow.run_id) if one.group == "hourly")
    assert store.park(GroupRef(of_airflow.run_id, "hourly", hourly.incarnation), "a test")
    assert listed(logio)[1].startswith(f"{unpause}; hourly parked: fix the cause")
    assert "no supervisor looks" not in logio("status", of_airflow.uid)[1], "that follows from it"


def test_a_group_that_only_its_own_task_launches_is_said_to_wait_for_it(
    of_airflow: Run, store: LogStore, logio: Logio, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ingest", "totals"):
        store.note_launch(of_airflow.run_id, name, LaunchRecipe(own_place=True))
    drive(store, of_airflow)
    for status in store.groups(of_airflow.run_id):
        if status.group != "totals":
            assert store.declare_dead(GroupRef(of_airflow.run_id, status.group, 1), "test")
    store.note_supervisor("task supervise", run_uid=of_airflow.uid)
    assert listed(logio) == ("running", ""), "its task has been woken, perhaps"
    monkeypatch.setattr(condition, "MISSING_SECONDS", -1.0)
    word, step = listed(logio)
    assert word == "running"
    assert step.startswith(
        "only the task of ingest launches it: clear it in DAG run mine if it has ended, or `logio retry"
    )


def test_a_run_of_airflow_whose_groups_have_finished_is_finished_by_its_task(
    of_airflow: Run, store: LogStore, logio: Logio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condition, "MISSING_SECONDS", -1.0)
    for name in GROUPS:
        start_driver(store, group=name, run=of_airflow).session.commit([fx.FinishGroup()])
    assert listed(logio) == ("running", "task `finish_run` of DAG run mine finishes it")


def test_nor_in_a_run_of_airflow(of_airflow: Run, store: LogStore, logio: Logio, launched: list[str]) -> None:
    run = of_airflow
    drive(store, run, GONE)
    code, said = logio("retry", run.uid[:8], "--detach")
    said = " ".join(said.split())
    assert (code, launched) == (1, []) and f"start `logio tend {run.uid[:8]}`" in said


def test_a_parked_group_does_not_go_on_beside_another_one(
    run: Run, store: LogStore, logio: Logio, launched: list[str]
) -> None:
    """Both have lost their warehouse, say. Who supervises the run would end at once."""
    drive(store, run, GONE)
    for status in store.groups(run.run_id):
        ref = GroupRef(run.run_id, status.group, status.incarnation)
        assert store.park(ref, "away") if status.group in ("hourly", "totals") else store.halted(ref)
    code, said = logio("retry", run.uid[:8], "totals", "--code", "new")
    said = " ".join(said.split())
    assert (code, launched) == (1, []) and "hourly is parked, too" in said and f"`logio retry {run.uid[:8]}`" in said
    assert logio("retry", run.uid[:8])[0] == 0 and launched == [*GROUPS, "supervise"]


def test_a_drain_that_nobody_supervises_says_so_and_names_the_run(run: Run, store: LogStore, logio: Logio) -> None:
    drive(store, run, GONE)
    for status in store.groups(run.run_id):
        if status.group != "ingest":
            assert store.park(GroupRef(run.run_id, status.group, status.incarnation), "away")
    code, said = logio("stop", run.uid[:8], "--drain")
    said = " ".join(said.split())
    assert code == 1 and "warning: no process supervises this run" in said, said
    assert f"fix the cause, then `logio retry {run.uid[:8]}` lets the drain continue" in said
