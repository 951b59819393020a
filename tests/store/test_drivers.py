"""What becomes of every driver of a run: the same on the log in memory, in SQLite and in PostgreSQL."""

from __future__ import annotations

from itertools import pairwise

from msgspec import structs

from airflow_logio.protocol import effects as fx
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import DriverRecord
from tests.support.logs import SOMEBODY, spec, start_driver

LAUNCHER = structs.replace(SOMEBODY, pid=4700)


def times(one: DriverRecord) -> list[float | None]:
    """In the order in which a driver gets there."""
    return [one.claimed_at, one.submitted_at, one.registered_at, one.first_commit_at, one.ended_at]


def test_a_driver_from_its_claim_to_its_end(log_store: LogStore) -> None:
    run = log_store.start_run(spec("g"))
    assert list(log_store.drivers(run.run_id)) == []

    claim = log_store.claim(run.run_id, "g", expected=0, reason="start")
    [claimed] = log_store.drivers(run.run_id)
    assert claimed == DriverRecord(
        "g", 1, "start", False, claimed.claimed_at, None, None, None, None, None, None, None, None
    )

    log_store.submitted(claim, log_path="/driver.log", launcher=LAUNCHER)
    [submitted] = log_store.drivers(run.run_id)
    assert submitted.submitted_at is not None
    assert (submitted.log_path, submitted.host) == ("/driver.log", LAUNCHER.host)
    assert submitted.pid is None, "only a driver knows its process"
    assert submitted.registered_at is None

    ref = log_store.register(claim, SOMEBODY)
    [registered] = log_store.drivers(run.run_id)
    assert registered.registered_at is not None
    assert (registered.host, registered.pid) == (SOMEBODY.host, SOMEBODY.pid)
    assert registered.last_beat_at is None

    log_store.heartbeat(ref, 1, ready=True, rss_bytes=1)
    session = log_store.session(ref)
    session.open()
    assert log_store.drivers(run.run_id)[0].first_commit_at is None
    session.commit([])
    [committed] = log_store.drivers(run.run_id)
    session.commit([])
    assert log_store.drivers(run.run_id) == [committed], "the first commit"
    assert committed.last_beat_at is not None

    log_store.declare_dead(ref, "killed")
    [dead] = log_store.drivers(run.run_id)
    assert dead.error == "killed"
    reached = times(dead)
    assert None not in reached
    assert all(one <= other for one, other in pairwise(reached) if one is not None and other is not None)
    assert dead == structs.replace(committed, ended_at=dead.ended_at, error="killed")
    session.close()


def test_all_drivers_of_a_run_in_the_order_of_their_claims(log_store: LogStore) -> None:
    run = log_store.start_run(spec("b", "a"))
    elsewhere = start_driver(log_store, run=log_store.start_run(spec(dag_run="run-2")))
    first = start_driver(log_store, group="b", run=run)
    log_store.declare_dead(first.ref, "killed")
    other = start_driver(log_store, group="a", run=run)
    recovery = start_driver(log_store, group="b", expected=1, run=run)
    other.session.commit([fx.FinishGroup()])
    log_store.declare_dead(recovery.ref, "killed again")
    log_store.claim(run.run_id, "b", expected=2, reason="a person's", by_user=True)
    found = log_store.drivers(run.run_id)
    assert [(one.group, one.incarnation, one.is_recovery, one.error) for one in found] == [
        ("b", 1, False, "killed"),
        ("a", 1, False, None),
        ("b", 2, True, "killed again"),
        ("b", 3, False, None),
    ]
    assert found[1].ended_at is not None, "it has finished"
    assert [one.group for one in log_store.drivers(elsewhere.run.run_id)] == ["g"]


def test_callers_wait_as_patiently_as_the_log_says(log_store: LogStore) -> None:
    assert log_store.patience.call("looking", log_store.list_runs) == []
