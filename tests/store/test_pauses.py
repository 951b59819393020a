"""Two connections, one of them standing still before and after each of its SQL statements while the other continues.

What a driver was told is committed is what its successor reads, and nothing else; wherever either of them stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from airflow_logio import databases
from airflow_logio.errors import Fenced, LogUnavailable
from airflow_logio.protocol.values import Port
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.sql import engines
from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import QUICK
from tests.store.every_effect import EVERY_KIND, picture, prepared, undone
from tests.support.faults import STANDS_SECONDS, Pause, place
from tests.support.logs import IN, SOMEBODY, Driver, driver_name, sent, spec, start_driver

OF_ITS_OWN = ("logio_driver", "logio_group", "logio_fence")
"""Tables in which a log with a replaced driver differs from one without."""


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as any transaction of a living driver takes, in a test."""
    monkeypatch.setattr(engines, "LOCK_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(databases, "BUSY_TIMEOUT_SECONDS", 0.02)


OpenNamed = Callable[..., SqlLogStore]


@pytest.fixture
def open_named(log_url: str) -> Iterator[OpenNamed]:
    with ExitStack() as stack:

        def opened(application: str = "logio test") -> SqlLogStore:
            store = SqlLogStore.at(log_url, application=application, patience=QUICK)
            stack.callback(store.dispose)
            return store

        yield opened


@pytest.fixture
def everything(log_url: str) -> dict[str, Any]:
    """The log after an undisturbed commit."""
    store = SqlLogStore.at(log_url, patience=QUICK)
    driver = prepared(store, "undisturbed")
    driver.session.commit(EVERY_KIND[:-1])
    seen = picture(store, driver.run.run_id, without=OF_ITS_OWN)
    store.dispose()
    return seen


def test_a_driver_stands_still_anywhere_in_a_commit_while_it_is_replaced(
    open_named: OpenNamed, everything: dict[str, Any]
) -> None:
    """EVERY_KIND without its last effect: a group that has finished is not replaced."""
    supervisor = open_named()
    index, reached = 0, True
    while reached:
        run = supervisor.start_run(spec(dag_run=f"run {index}"))
        store = open_named(driver_name(supervisor, run.run_id, "g"))
        driver = prepared(store, f"run {index}")
        pause = Pause()
        where, standing = place(store, index, pause)
        with ThreadPoolExecutor(1) as pool, standing:
            commit = pool.submit(driver.session.commit, EVERY_KIND[:-1])
            reached = pause.is_reached_before(commit)
            try:
                if reached:
                    _replace_while_it_stands(supervisor, driver, where, pause, commit, everything)
            finally:
                pause.release()
        store.engine.dispose()
        index += 1
    assert index > 40, "a commit of every kind of effect has more statements than that"


def _replace_while_it_stands(
    supervisor: SqlLogStore,
    driver: Driver,
    where: str,
    pause: Pause,
    commit: Future[Any],
    everything: dict[str, Any],
) -> None:
    run_id = driver.run.run_id
    held = {"before": picture(supervisor, run_id, without=OF_ITS_OWN)}
    if where == "after COMMIT":
        assert held["before"] == everything, where
    try:
        supervisor.declare_dead(driver.ref, "no heartbeat")
    except LogUnavailable as error:
        assert supervisor.ends_old_driver_first and "locked" in str(error), where
        # SQLite: a stopped writer shuts every other one out (and is ended first); it has not committed, and continues.
        pause.release()
        commit.result(90)
        supervisor.declare_dead(driver.ref, "no heartbeat")
    successor = start_driver(supervisor, run=driver.run, expected=1)
    if not pause.is_released():
        assert picture(supervisor, run_id, without=OF_ITS_OWN) == held["before"], where
    if picture(supervisor, run_id, without=OF_ITS_OWN) != everything:
        successor.session.commit(EVERY_KIND[:-1])  # nothing of it was left in the way
    assert picture(supervisor, run_id, without=OF_ITS_OWN) == everything, where
    was_released = pause.is_released()
    pause.release()
    if was_released or where == "after COMMIT":
        commit.result(90)
    else:
        with pytest.raises(Fenced):
            commit.result(90)
    with pytest.raises(Fenced):
        driver.session.commit([sent(9)])
    assert picture(supervisor, run_id, without=OF_ITS_OWN) == everything, where


# --- the other way round ----------------------------------------------------------------------------------------------

TAKEN: dict[str, Callable[[SqlLogStore, Driver], Any]] = {
    "declare_dead": lambda store, driver: store.declare_dead(driver.ref, "test"),
    "claim": lambda store, driver: store.claim(driver.run.run_id, "g", expected=1, reason="test"),
    "raise the epoch": lambda store, driver: store.session(driver.ref).open(raise_epoch=True),
    "read back": lambda store, driver: store.session(driver.ref).open(),
}
REFUSES = {"claim": "Fenced", "raise the epoch": "EpochVoid"}
"""What a commit is told that comes later."""


@pytest.mark.parametrize("name", TAKEN)
def test_somebody_else_stands_still_anywhere_while_a_driver_commits(open_named: OpenNamed, name: str) -> None:
    index, reached = 0, True
    while reached:
        store = open_named()
        run = store.start_run(spec(dag_run=f"run {index}"))
        driver = start_driver(open_named(driver_name(store, run.run_id, "g")), run=run)
        if name == "claim":
            assert store.declare_dead(driver.ref, "test")
        pause = Pause()
        where, standing = place(store, index, pause)
        index += 1
        told: list[int] = []
        refused: list[str] = []
        with ThreadPoolExecutor(2) as pool, standing:
            action = pool.submit(_patiently, TAKEN[name], store, driver)
            reached = pause.is_reached_before(action)
            commits = pool.submit(_commit_until_refused, driver, told, refused)
            if reached:
                wait([commits], STANDS_SECONDS)
            pause.release()
            action.result(90)
            commits.result(90)
        assert undone(store, driver) == told, f"{name} stands {where}"
        assert refused in ([], [REFUSES.get(name)]), f"{name} stands {where}"
        if name == "claim":
            claimed = store.group(run.run_id, "g")
            assert claimed.incarnation == 2
            with pytest.raises(Fenced):
                driver.session.commit([sent(99)])
        for opened in (store, driver.store):
            opened.dispose()
    assert index > 4


def _patiently(action: Callable[[SqlLogStore, Driver], Any], store: SqlLogStore, driver: Driver) -> Any:
    """As everybody does who asks the log: on SQLite a commit may hold its only lock for longer than a test's patience."""
    return QUICK.call("the other one", lambda: action(store, driver))


def _commit_until_refused(driver: Driver, told: list[int], refused: list[str]) -> None:
    for number in (1, 2, 3):
        try:
            driver.session.commit([sent(number)])
        except Exception as error:
            refused.append(type(error).__name__)
            return
        told.append(number)


def test_a_reader_stands_still_anywhere_and_sees_one_moment(open_named: OpenNamed) -> None:
    """Delivery and recovery are several statements, and one snapshot."""
    actions: dict[str, Callable[[Driver], Any]] = {
        "fetch of one port": lambda driver: undone(driver.store, driver),
        "fetch": lambda driver: waiting(driver.store.session(driver.ref)),
        "recover": lambda driver: driver.store.session(driver.ref).recover(["receiver"]),
    }
    for name, read in actions.items():
        index, reached = 2, True  # a reader commits nothing
        while reached:
            store = open_named()
            driver = prepared(store, f"{name} {index}")
            writer = open_named().session(driver.ref)
            writer.open()
            seen_before = read(driver)
            pause = Pause()
            where, standing = place(store, index, pause)
            index += 1
            with ThreadPoolExecutor(1) as pool, standing:
                reading = pool.submit(read, driver)
                reached = pause.is_reached_before(reading)
                if reached:
                    writer.commit(EVERY_KIND)
                pause.release()
                seen = reading.result(90)
            seen_after = read(driver)
            assert seen in (seen_before, seen_after), f"{name} stands {where}"
            assert not reached or seen_before != seen_after
            store.dispose()
        assert index > (3 if name == "fetch of one port" else 5), "that one is a single statement on PostgreSQL"


def waiting(session: GroupSession) -> list[int]:
    """Event ids that wait at `IN`, asked for with another port."""
    found = session.fetch_all({IN: 0, Port("nothing", "in"): 0}, max_events=100, max_bytes=1 << 30)
    return [row.event.event_id for row in found.events.get(IN, ())]


@pytest.mark.parametrize("name", ["register", "claim"])
def test_of_two_who_want_one_incarnation_one_gets_it_wherever_the_other_stands(
    open_named: OpenNamed, name: str
) -> None:
    index, reached = 0, True
    while reached:
        store, rival = open_named(), open_named()
        run = store.start_run(spec(dag_run=f"{name} {index}"))
        if name == "register":
            claim = store.claim(run.run_id, "g", expected=0, reason="test")
            acts: list[Callable[[], Any]] = [
                partial(store.register, claim, SOMEBODY),
                partial(rival.register, claim, structs.replace(SOMEBODY, pid=1)),
            ]
        else:
            acts = [
                partial(one.claim, run.run_id, "g", expected=0, reason=reason)
                for one, reason in ((store, "one"), (rival, "two"))
            ]
        pause = Pause()
        where, standing = place(store, index, pause)
        index += 1
        with ThreadPoolExecutor(2) as pool, standing:
            first = pool.submit(acts[0])
            reached = pause.is_reached_before(first)
            second = pool.submit(QUICK.call, "test", acts[1])
            wait([second], STANDS_SECONDS)
            pause.release()
            outcomes = [first.exception(90), second.exception(90)]
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Fenced", "NoneType"], f"{where}: {outcomes}"
        for opened in (store, rival):
            opened.dispose()
    assert index > 4
