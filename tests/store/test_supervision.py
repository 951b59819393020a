"""What supervisors write and read: the same on the log in memory, in SQLite and in PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, LaunchRecipe
from airflow_logio.store.records.run_records import RunKey, Supervision
from airflow_logio.store.records.status_records import SupervisorNote, SupervisorRecord
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import writing
from airflow_logio.store.sql.hearings import FailureListener
from airflow_logio.store.sql.store import SqlLogStore
from tests.support.logs import open_sql_store, replace_driver, spec, start_driver
from tests.support.postgres import PostgresServer
from tests.support.replicated import GROUP, replicated_spec
from tests.support.statements import counted_statements
from tests.support.two_groups import TwoGroups
from tests.support.waiting import eventually

RECIPE = LaunchRecipe(
    "spark_default", {"warehouse": "other_db"}, {"conf": {"spark.a": "'\"ü"}, "driver_memory": "1g", "num_executors": 3}
)


# --- how a group is launched ------------------------------------------------------------------------------------------


def test_a_recipe_comes_back_as_it_was_given(log_store: LogStore) -> None:
    run = log_store.start_run(spec("g", "h")).run_id
    assert log_store.launch_recipe(run, "g") is None
    log_store.note_launch(run, "g", RECIPE)
    assert log_store.launch_recipe(run, "g") == RECIPE
    assert log_store.launch_recipe(run, "h") is None
    log_store.note_launch(run, "g", LaunchRecipe())
    assert log_store.launch_recipe(run, "g") == LaunchRecipe()
    assert log_store.launch_recipe(run + 1, "g") is None


def test_a_place_of_its_own_is_seen_at_every_look(log_store: LogStore) -> None:
    run = log_store.start_run(spec("g", "h"))
    log_store.note_launch(run.run_id, "g", replace(RECIPE, own_place=True))
    log_store.note_launch(run.run_id, "h", RECIPE)
    [sight] = log_store.sight([run.uid])
    expected = {"g": True, "h": False}
    assert {one.group: one.own_place for one in sight.groups} == expected
    assert {one.group: one.own_place for one in log_store.groups(run.run_id)} == expected
    log_store.note_launch(run.run_id, "g", RECIPE)
    assert not log_store.group(run.run_id, "g").own_place


def test_a_recipe_outlives_claims_and_deaths(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    log_store.note_launch(driver.run.run_id, "g", RECIPE)
    replace_driver(driver)
    assert log_store.launch_recipe(driver.run.run_id, "g") == RECIPE


def test_a_damaged_recipe_is_refused_by_name(sql_store: SqlLogStore) -> None:
    run = sql_store.start_run(spec("g")).run_id
    with writing(sql_store.engine) as connection:
        connection.execute(sa.update(schema.group).values(launch='{"connections": 3}'))
    with pytest.raises(LogInconsistent, match="the launch recipe of group 'g' of run"):
        sql_store.launch_recipe(run, "g")


# --- who looks --------------------------------------------------------------------------------------------------------


def test_the_latest_look_comes_first(log_store: LogStore) -> None:
    assert list(log_store.supervisors()) == []
    log_store.note_supervisor("first", run_uid="uid")
    log_store.note_supervisor("second", pipeline="sales")
    log_store.note_supervisor("first", run_uid="another")
    seen = log_store.supervisors()
    assert [(one.name, one.pipeline, one.run_uid) for one in seen] == [
        ("first", None, "another"),
        ("second", "sales", None),
    ]
    assert all(0 <= one.age_seconds < 60 for one in seen)


def test_whom_a_supervisor_looks_after(log_store: LogStore) -> None:
    run = log_store.start_run(replace(spec(), supervision=Supervision.TASK))
    other = log_store.start_run(replace(spec(), key=RunKey("other", "dag", "run-1"), supervision=Supervision.DAG))
    mine = log_store.start_run(replace(spec(), key=RunKey("mine", "dag", "run-1")))
    for record, covered in [
        (SupervisorRecord("all", None, None, 0.0), (True, True, False)),
        (SupervisorRecord("pipeline", "sales", None, 0.0), (True, False, False)),
        (SupervisorRecord("run", None, other.uid, 0.0), (False, True, False)),
        (SupervisorRecord("logio run", None, mine.uid, 0.0), (False, False, True)),
    ]:
        assert (record.covers(run), record.covers(other), record.covers(mine)) == covered


def test_who_looks_no_more_takes_leave(log_store: LogStore) -> None:
    for name in ("first", "second"):
        log_store.note_supervisor(name)
    for _ in range(2):
        log_store.forget_supervisor("first")
        assert [one.name for one in log_store.supervisors()] == ["second"]


# --- what there is to look at -----------------------------------------------------------------------------------------


def test_unfinished_runs_with_their_groups(log_store: LogStore) -> None:
    first = start_driver(log_store)
    second = log_store.start_run(spec("a", "b", dag_run="run-2"))
    other = log_store.start_run(replace(spec(), key=RunKey("other", "dag", "run-1")))
    log_store.heartbeat(first.ref, 7, ready=True, rss_bytes=5)

    def found(**only: str) -> list[tuple[int, list[str]]]:
        return [(run.run_id, [group.group for group in groups]) for run, groups in log_store.unfinished(**only)]

    assert found() == [(first.run.run_id, ["g"]), (second.run_id, ["a", "b"]), (other.run_id, ["g"])]
    assert found(pipeline="other") == [(other.run_id, ["g"])]
    assert found(run_uid=second.uid) == [(second.run_id, ["a", "b"])]
    for run, groups in log_store.unfinished():
        assert list(groups) == list(log_store.groups(run.run_id)), "what a look at one run says"
    [(_, [status])] = log_store.unfinished(run_uid=first.run.uid)
    assert (status.state, status.beat, status.incarnation) == (GroupState.RUNNING, 7, 1)

    first.session.commit([fx.FinishGroup()])
    assert log_store.finish_run(first.run.run_id)
    assert found() == [(second.run_id, ["a", "b"]), (other.run_id, ["g"])]


def test_runs_are_seen_by_their_uids_whatever_their_state(log_store: LogStore) -> None:
    first = start_driver(log_store)
    second = log_store.start_run(spec("a", "b", dag_run="run-2"))
    log_store.heartbeat(first.ref, 7, ready=True, rss_bytes=5)
    first.session.commit([fx.FinishGroup()])
    assert log_store.finish_run(first.run.run_id)
    for _ in range(2):
        seen = log_store.sight([second.uid, "no such run", first.run.uid])
        assert [one.run for one in seen] == [log_store.find_run(uid) for uid in (first.run.uid, second.uid)]
        assert [list(one.groups) for one in seen] == [list(log_store.groups(one.run.run_id)) for one in seen]
    assert [one.run.uid for one in log_store.sight(None)] == [second.uid]
    assert list(log_store.sight([])) == []


def test_open_requests_to_scale_are_seen_the_oldest_first(log_store: LogStore) -> None:
    run = log_store.start_run(replicated_spec())
    first = log_store.request_scaling(run.run_id, GROUP, 2, by="a")
    [seen] = log_store.sight([run.uid])
    assert list(seen.requests) == [first]
    second = log_store.request_scaling(run.run_id, GROUP, 1, by="b")
    [seen] = log_store.sight(None)
    assert list(seen.requests) == [second], "the first one is refused by the second"


def test_figures_of_several_runs_are_those_of_each(log_store: LogStore) -> None:
    flow = TwoGroups(log_store)
    flow.send(3, 30)
    flow.use(2, 20)
    other = log_store.start_run(spec("a", dag_run="run-2"))
    ids = [flow.run.run_id, other.run_id]
    found = log_store.figures(ids)
    assert set(found) == set(ids)
    for run_id, figures in found.items():
        assert list(figures.ports) == list(log_store.progress(run_id))
        assert figures.under_way == log_store.under_way(run_id)
        assert list(figures.drivers) == list(log_store.drivers(run_id))
    assert found[flow.run.run_id].ports and found[flow.run.run_id].drivers
    assert log_store.figures([]) == {}


def test_many_supervisors_say_at_once_that_they_look(log_store: LogStore) -> None:
    log_store.note_supervisors([])
    notes = [SupervisorNote(f"task {number}", run_uid=str(number)) for number in range(300)]
    log_store.note_supervisors([*notes, SupervisorNote("task 0", pipeline="sales")])
    seen = {one.name: one for one in log_store.supervisors()}
    assert len(seen) == 300
    assert (seen["task 0"].pipeline, seen["task 0"].run_uid, seen["task 299"].run_uid) == ("sales", None, "299")


@pytest.mark.postgres
def test_a_look_at_many_runs_is_one_statement(postgres_url: str) -> None:
    """And figures of many runs are four: counters, drivers, heartbeats, what is set aside."""
    store = open_sql_store(postgres_url)
    runs = [store.start_run(spec("a", "b", dag_run=f"run-{number}")) for number in range(20)]
    uids = [run.uid for run in runs]
    store.sight(uids)
    with counted_statements(store.engine) as statements:
        assert len(store.sight(uids)) == 20
        assert len(statements) == 1, statements
        store.figures([run.run_id for run in runs])
        assert len(statements) == 5, statements
    store.dispose()


# --- hearing of failures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_store", ["memory", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_a_failure_rings(log_store: LogStore) -> None:
    """When listening begins, then once per failure, until the hearing is closed; whatever another hearing does."""
    rings, others = list[None](), list[None]()
    hearing, other = log_store.listen(lambda: rings.append(None)), log_store.listen(lambda: others.append(None))
    assert hearing is not None and other is not None
    eventually(lambda: rings and others, what="listening has begun")
    driver = start_driver(log_store)
    before = len(rings), len(others)
    assert log_store.declare_dead(driver.ref, "test")
    eventually(lambda: len(rings) > before[0] and len(others) > before[1], what="both ring")
    assert not log_store.declare_dead(driver.ref, "test"), "no failure"
    hearing.close()
    hearing.close()
    before = len(rings), len(others)
    successor = start_driver(log_store, run=driver.run, expected=1)
    assert log_store.declare_dead(successor.ref, "test")
    eventually(lambda: len(others) > before[1], what="the other one rings")
    assert len(rings) == before[0], "who has left hears nothing"
    other.close()


@pytest.mark.postgres
def test_a_failure_is_announced_to_whoever_listens(postgres_url: str) -> None:
    store, other = open_sql_store(postgres_url), open_sql_store(postgres_url)
    listener = FailureListener.open(other.engine)
    assert listener is not None
    driver = start_driver(store)
    assert not listener.heard()
    assert store.declare_dead(driver.ref, "test")
    eventually(listener.heard, what="the failure is heard of")
    assert not listener.heard(), "once"
    assert not store.declare_dead(driver.ref, "test")
    assert not listener.heard(), "what was no failure is not announced"
    listener.close()
    store.dispose()
    other.dispose()


def test_a_file_cannot_be_listened_to(sqlite_url: str) -> None:
    store = open_sql_store(sqlite_url)
    assert FailureListener.open(store.engine) is None
    assert store.listen(lambda: None) is None
    store.dispose()


@pytest.mark.postgres
def test_ending_a_stopped_drivers_sessions_spares_other_logs_of_the_server(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Two logs on one server number their runs alike."""
    another = postgres_server.new_database()
    claim = Claim(1, "uid", "g", 1, "nonce", recovery=False)
    ours, theirs = (open_sql_store(url, driver=claim) for url in (postgres_url, another))
    for store in (ours, theirs):
        store.start_run(spec("g"))
    supervisor = open_sql_store(postgres_url)
    assert supervisor.end_backends(1, "g", 1) >= 1
    assert len(theirs.groups(1)) == 1, "its connection lives"
    for store in (ours, theirs, supervisor):
        store.dispose()
    postgres_server.drop_database(another)
