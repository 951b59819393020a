"""Connections and acknowledgements that are lost in a commit: it happens once, or the caller is told that it did not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.errors import Fenced, LogUnavailable
from airflow_logio.protocol import effects as fx
from airflow_logio.store.opening import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import QUICK
from tests.store.conftest import OpenStore
from tests.support.faults import acknowledgement_lost, around_commit, before_statement, commit_lost, lose_connection
from tests.support.logs import OUT, Driver, assigned, fetched, held, sent, spec, start_driver

EVERY_KIND: fx.Effects = [
    sent(4),
    assigned(1, "A", "B"),
    assigned(2, "A"),
    assigned(3),
    fx.MarkDone("receiver", "A", 2),
    fx.LogWrite("receiver", "wh", 2, {}, 1, None, b"w2"),
    fx.WritesDone("receiver", "wh", 1, 1),
    fx.StoreState("receiver", b"after"),
    fx.LogStateEvent("receiver", 1, "B", b"at B"),
    fx.RecordLineage(OUT, 4, "A"),
    fx.StartReadAction("source", "source", 1, {}),
    fx.CompleteReadAction("source", "source", 1),
    fx.LogRead("receiver", "wh", 1, {}, ("A",), 1, None, b"r"),
    fx.Count(OUT, "out", 1, 3, 4),
]


def prepared(store: LogStore, dag_run: str) -> Driver:
    driver = start_driver(store, run=store.start_run(spec(dag_run=dag_run)))
    driver.session.commit(
        [
            sent(1),
            sent(2),
            sent(3),
            fx.LogWrite("receiver", "wh", 1, {}, 1, None, b"w1"),
            fx.Count(OUT, "out", 3, 9, 12),
        ]
    )
    return driver


def picture(driver: Driver) -> dict[str, Any]:
    """What a later incarnation would see."""
    session = driver.store.session(driver.ref)
    recovered = session.recover(["receiver"])
    return {
        "fence": session.open(),
        "waiting": fetched(session),
        "held": held(session),
        "states": recovered.states,
        "snapshots": recovered.snapshots,
        "writes": [write.number for write in recovered.writes],
        "counters": [(row.port, row.events, row.bytes) for row in driver.store.progress(driver.run.run_id)],
    }


@pytest.fixture
def expected(sql_store: SqlLogStore) -> dict[str, Any]:
    """The picture after an undisturbed commit."""
    driver = prepared(sql_store, "undisturbed")
    driver.session.commit(EVERY_KIND)
    return picture(driver)


def test_a_connection_lost_before_any_statement_of_a_commit(sql_store: SqlLogStore, expected: dict[str, Any]) -> None:
    number, struck = 0, True
    while struck:
        number += 1
        driver = prepared(sql_store, f"run {number}")
        with before_statement(sql_store, number, lose_connection) as seen:
            driver.session.commit(EVERY_KIND)
        struck = len(seen) >= number
        assert picture(driver) == expected, f"connection lost before statement {number}: {seen[number - 1 :][:1]}"
    assert number > 10, "a commit of every kind of effect has more statements than that"


@pytest.mark.parametrize("lost", [acknowledgement_lost, commit_lost])
def test_an_unknown_outcome_is_read_back(
    sql_store: SqlLogStore, expected: dict[str, Any], lost: Callable[[Any], None]
) -> None:
    driver = prepared(sql_store, "run")
    when = {"after" if lost is acknowledgement_lost else "before": lost}
    with around_commit(sql_store, **when):
        driver.session.commit(EVERY_KIND)
    assert picture(driver) == expected
    driver.session.commit([sent(5)])
    assert fetched(driver.session) == [4, 5]


@pytest.mark.parametrize("lost", [acknowledgement_lost, commit_lost])
def test_an_unknown_outcome_of_a_replaced_driver_is_fenced(
    sql_store: SqlLogStore, open_another: OpenStore, lost: Callable[[Any], None]
) -> None:
    """It may have been committed or not; the next incarnation reads which, and this one commits nothing more."""
    driver = prepared(sql_store, "run")
    supervisor = open_another()

    def lose_and_replace(connection: Any) -> None:
        try:
            lost(connection)
        finally:
            supervisor.declare_dead(driver.ref, "test")
            supervisor.claim(driver.run.run_id, "g", expected=1, reason="test")

    when = {"after" if lost is acknowledgement_lost else "before": lose_and_replace}
    with around_commit(sql_store, **when), pytest.raises(Fenced):
        driver.session.commit([sent(4)])
    successor = supervisor.session(driver.ref)
    assert fetched(successor) == ([1, 2, 3, 4] if lost is acknowledgement_lost else [1, 2, 3])


def test_reads_after_a_lost_connection_say_that_the_log_is_away(sql_store: SqlLogStore) -> None:
    driver = prepared(sql_store, "run")
    for number in range(1, 4):
        with before_statement(sql_store, number, lose_connection) as seen:
            try:
                assert fetched(driver.session) == [1, 2, 3]
            except LogUnavailable:
                assert len(seen) >= number
    assert fetched(driver.session) == [1, 2, 3]


@pytest.mark.postgres
@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_conflicts_mean_the_same_effects_again(postgres_url: str, code: str) -> None:
    store = open_store(postgres_url, patience=QUICK)
    undisturbed, driver = prepared(store, "undisturbed"), prepared(store, "run")
    undisturbed.session.commit(EVERY_KIND)
    with store.engine.begin() as connection:
        for statement in _failing_trigger(code, times=3):
            connection.execute(sa.text(statement))
    driver.session.commit(EVERY_KIND)
    assert picture(driver) == picture(undisturbed)
    with store.engine.begin() as connection:
        assert connection.execute(sa.text("SELECT last_value FROM failures")).scalar_one() >= 4
    store.dispose()


def _failing_trigger(code: str, *, times: int) -> list[str]:
    """A sequence is not rolled back: it counts the failures."""
    return [
        "CREATE SEQUENCE failures",
        f"""
        CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('failures') <= {times} THEN RAISE EXCEPTION 'a conflict' USING ERRCODE = '{code}'; END IF;
            RETURN NEW;
        END $$
        """,
        "CREATE TRIGGER fail BEFORE INSERT ON logio_event_data FOR EACH STATEMENT EXECUTE FUNCTION fail()",
    ]
