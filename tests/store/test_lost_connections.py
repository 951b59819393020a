"""Connections and acknowledgements that are lost in a commit: it happens once, or the caller is told that it did not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from psycopg2.extras import HstoreAdapter

from airflow_logio.errors import Fenced, LogUnavailable
from airflow_logio.store.records.driver_records import Claim
from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import QUICK
from tests.store.conftest import OpenStore
from tests.store.every_effect import EVERY_KIND, picture, prepared
from tests.support.connections import connections_made, is_open
from tests.support.faults import (
    acknowledgement_lost,
    after_statement,
    around_commit,
    before_statement,
    commit_lost,
    lose_connection,
    slow_commit,
)
from tests.support.logs import IN, OUT, SOMEBODY, Driver, fetched, open_sql_store, sent, spec, start_driver


@pytest.fixture
def expected(sql_store: SqlLogStore) -> dict[str, Any]:
    """The picture after an undisturbed commit."""
    driver = prepared(sql_store, "undisturbed")
    driver.session.commit(EVERY_KIND)
    return picture(sql_store, driver.run.run_id)


ON_ITS_WAY_SECONDS = 0.4
LOSSES = {"before": before_statement, "after": after_statement}


@pytest.mark.parametrize("when", LOSSES)
def test_a_connection_lost_around_any_statement_of_a_commit(
    sql_store: SqlLogStore, expected: dict[str, Any], when: str
) -> None:
    number, struck = 0, True
    while struck:
        number += 1
        driver = prepared(sql_store, f"run {number}")
        with LOSSES[when](sql_store, number, lose_connection) as seen:
            driver.session.commit(EVERY_KIND)
        struck = len(seen) >= number
        found = picture(sql_store, driver.run.run_id)
        assert found == expected, f"connection lost {when} statement {number}: {seen[number - 1 :][:1]}"
    assert number > 20, "a commit of every kind of effect has more statements than that"


@pytest.mark.parametrize("lost", [acknowledgement_lost, commit_lost])
def test_an_unknown_outcome_is_read_back(
    sql_store: SqlLogStore, expected: dict[str, Any], lost: Callable[[Any], None]
) -> None:
    driver = prepared(sql_store, "run")
    when = {"after" if lost is acknowledgement_lost else "before": lost}
    with around_commit(sql_store, **when):
        driver.session.commit(EVERY_KIND)
    assert picture(sql_store, driver.run.run_id) == expected
    driver.session.commit([sent(6)])
    assert fetched(driver.session) == [5, 6]


@pytest.mark.postgres
@pytest.mark.parametrize("rolls_back", [False, True], ids=["it commits", "it is rolled back"])
def test_a_read_back_waits_for_a_commit_that_is_still_on_its_way(postgres_url: str, *, rolls_back: bool) -> None:
    """Without the fence row's lock it would read that nothing was committed, and be wrong a moment later.

    SQLite has no such moment: COMMIT is a call in the driver's own process.
    """
    store = SqlLogStore.at(postgres_url, patience=QUICK)
    driver = prepared(store, "undisturbed")
    driver.session.commit(EVERY_KIND)
    expected = picture(store, driver.run.run_id)
    driver = prepared(store, "run")
    with slow_commit(store, ON_ITS_WAY_SECONDS, rolls_back=rolls_back) as ending:
        driver.session.commit(EVERY_KIND)
        assert ending.is_set(), "whether it was committed was known before the transaction had ended"
    assert picture(store, driver.run.run_id) == expected
    driver.session.commit([sent(6)])
    assert fetched(driver.session) == [5, 6]
    store.dispose()


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
        driver.session.commit([sent(5)])
    successor = supervisor.session(driver.ref)
    assert fetched(successor) == ([1, 2, 3, 4, 5] if lost is acknowledgement_lost else [1, 2, 3, 4])


# --- everything else that a driver, its launcher and its observers ask ------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """A question or a move, on a log made ready for it."""

    act: Callable[[], Any]
    outcome: Callable[[], Any]
    """What it has changed, or what it answers."""


def of_a_driver(act: Callable[[Driver], Any], outcome: Callable[[Driver], Any]) -> Callable[[SqlLogStore, str], Asked]:
    def ask(store: SqlLogStore, dag_run: str) -> Asked:
        driver = start_driver(store, run=store.start_run(spec(dag_run=dag_run)))
        return Asked(lambda: act(driver), lambda: outcome(driver))

    return ask


def state(driver: Driver) -> tuple[Any, ...]:
    found = driver.store.group(driver.run.run_id, "g")
    return found.state, found.incarnation, found.error, found.beat


def answers(act: Callable[[Driver], Any]) -> Callable[[SqlLogStore, str], Asked]:
    """A question, which changes nothing: one log is enough for all of them."""
    drivers: dict[SqlLogStore, Driver] = {}

    def ask(store: SqlLogStore, _: str) -> Asked:
        if store not in drivers:
            drivers[store] = prepared(store, "run")
            drivers[store].session.commit(EVERY_KIND[:-1])
        driver = drivers[store]
        return Asked(lambda: act(driver), lambda: act(driver))

    return ask


def of_a_claim(act: Callable[[SqlLogStore, Claim], Any]) -> Callable[[SqlLogStore, str], Asked]:
    def ask(store: SqlLogStore, dag_run: str) -> Asked:
        claim = store.claim(store.start_run(spec(dag_run=dag_run)).run_id, "g", expected=0, reason="test")

        def outcome() -> tuple[Any, ...]:
            found = store.group(claim.run_id, "g")
            return found.state, found.incarnation, found.identity, found.log_path

        return Asked(lambda: act(store, claim), outcome)

    return ask


def a_claim(store: SqlLogStore, dag_run: str) -> Asked:
    """A process that asks again after a lost answer is refused if the claim was made; its launch deadline then passes."""
    run = store.start_run(spec(dag_run=dag_run))

    def act() -> None:
        try:
            store.claim(run.run_id, "g", expected=0, reason="test")
        except Fenced as error:
            assert "claimed by another process: incarnation 1" in str(error)

    def outcome() -> tuple[Any, ...]:
        found = store.group(run.run_id, "g")
        return found.state, found.incarnation

    return Asked(act, outcome)


def a_run(store: SqlLogStore, dag_run: str) -> Asked:
    def act() -> Any:
        return store.start_run(spec("a", "b", dag_run=dag_run))

    def outcome() -> list[Any]:
        groups = store.groups(act().run_id)
        return [(found.group, found.state, found.incarnation) for found in groups]

    return Asked(act, outcome)


ASKED: dict[str, Callable[[SqlLogStore, str], Asked]] = {
    "fetch": answers(lambda driver: fetched(driver.session)),
    "recover": answers(lambda driver: driver.store.session(driver.ref).recover(["receiver", "sender"])),
    "acknowledged": answers(lambda driver: driver.session.acknowledged([OUT, IN])),
    "status": answers(state),
    "open": answers(lambda driver: driver.store.session(driver.ref).open()),
    "heartbeat": of_a_driver(lambda driver: driver.store.heartbeat(driver.ref, 3, ready=True, rss_bytes=1), state),
    "declare_dead": of_a_driver(lambda driver: driver.store.declare_dead(driver.ref, "test"), state),
    "park": of_a_driver(lambda driver: driver.session.park("test"), state),
    "register": of_a_claim(lambda store, claim: store.register(claim, SOMEBODY)),
    "submitted": of_a_claim(lambda store, claim: store.submitted(claim, log_path="/l", launcher=SOMEBODY)),
    "claim": a_claim,
    "start_run": a_run,
}
READS = ("fetch", "recover", "acknowledged", "status")


@pytest.mark.parametrize("name", ASKED)
def test_a_connection_lost_around_any_statement_is_an_outage(sql_store: SqlLogStore, name: str) -> None:
    """The one who asked is told that the log is unavailable, asks again, and has what an undisturbed one has."""
    undisturbed = ASKED[name](sql_store, "undisturbed")
    undisturbed.act()
    expected = undisturbed.outcome()
    for when, loss in LOSSES.items():
        number, struck = 0, True
        while struck:
            number += 1
            asked = ASKED[name](sql_store, f"{when} {number}")
            with loss(sql_store, number, lose_connection) as seen:
                _until_it_answers(asked.act)
            struck = len(seen) >= number
            # One lost after the last statement of a look is met by the next one.
            found = _until_it_answers(asked.outcome)
            assert found == expected, f"connection lost {when} statement {number}: {seen}"
        assert number > 1
    if name not in READS:
        for index, lost in enumerate((acknowledgement_lost, commit_lost)):
            asked = ASKED[name](sql_store, f"commit {index}")
            with around_commit(sql_store, **{"after" if lost is acknowledgement_lost else "before": lost}):
                _until_it_answers(asked.act)
            assert asked.outcome() == expected, lost.__name__


def _until_it_answers(act: Callable[[], Any]) -> Any:
    refused = 0
    while True:
        try:
            return act()
        except LogUnavailable:
            refused += 1
            assert refused < 8, "a lost connection is replaced, not met again and again"


def test_a_store_that_is_closed_leaves_no_connection(open_another: OpenStore) -> None:
    """A session that nobody has closed keeps one for its waiting."""
    with connections_made() as made:
        store = open_another()
        driver = start_driver(store)
        driver.session.commit([sent(1)])
        driver.session.wait(0.01)
        store.heartbeat(driver.ref, 1, ready=True, rss_bytes=1)
        assert any(map(is_open, made))
        store.dispose()
        assert not any(map(is_open, made))


def test_a_new_connection_does_not_ask_for_types_that_the_log_does_not_have(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLAlchemy looks for hstore otherwise, in three round trips of each connection."""
    asked: list[object] = []
    monkeypatch.setattr(HstoreAdapter, "get_oids", asked.append)
    store = open_sql_store(postgres_url)
    start_driver(store).session.commit([sent(1)])
    store.dispose()
    assert asked == []
