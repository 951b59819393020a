"""A commit that fails anywhere leaves nothing, wherever it fails, and the session can continue."""

from __future__ import annotations

import typing
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, GroupRef
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.store.every_effect import EVERY_KIND, prepared, undone
from tests.support.faults import Injected, after_statement, around_commit, before_change, before_statement, inject
from tests.support.logs import SOMEBODY, contents, spec

Failure = Callable[[int], AbstractContextManager[list[str]]]


def failures(store: LogStore) -> list[Failure]:
    """Ways to fail at the n-th statement (or change, in memory)."""
    if isinstance(store, MemoryLogStore):
        return [lambda number: before_change(store, number, inject)]
    assert isinstance(store, SqlLogStore)
    return [
        lambda number: before_statement(store, number, inject),
        lambda number: after_statement(store, number, inject),
    ]


def test_the_commit_of_these_tests_has_an_effect_of_every_kind() -> None:
    assert {type(effect) for effect in EVERY_KIND} == set(typing.get_args(fx.Effect))


def test_a_commit_that_fails_at_any_statement_leaves_nothing(log_store: LogStore) -> None:
    for way, failing in enumerate(failures(log_store)):
        driver = prepared(log_store, f"run {way}")
        before = contents(log_store)
        number, failed = 0, True
        while failed:
            number += 1
            try:
                with failing(number):
                    driver.session.commit(EVERY_KIND)
                failed = False
            except Injected:
                assert contents(log_store) == before, f"failed at statement {number}"
        assert number > 20, "a commit of every kind of effect has more statements than that"
        assert undone(log_store, driver) == [5]
        assert driver.session.open().commit_no == 2, "and it has happened once"


def test_a_commit_that_fails_before_its_commit_statement_leaves_nothing(sql_store: SqlLogStore) -> None:
    driver = prepared(sql_store, "run")
    before = contents(sql_store)
    with around_commit(sql_store, before=inject), pytest.raises(Injected):
        driver.session.commit(EVERY_KIND)
    assert contents(sql_store) == before
    driver.session.commit(EVERY_KIND)
    assert undone(sql_store, driver) == [5]


def refused_claim(store: LogStore, ref: GroupRef) -> None:
    """A group that is to halt is moved there, and then the claim is refused."""
    with pytest.raises(ProtocolViolation, match="asked to halt"):
        store.claim(ref.run_id, ref.group, expected=ref.incarnation, reason="test")


OF_RUNNING: dict[str, Callable[[LogStore, GroupRef], Any]] = {
    "declare_dead": lambda store, ref: store.declare_dead(ref, "test"),
    "park": lambda store, ref: store.session(ref).park("test"),
    "raise the epoch": lambda store, ref: store.session(ref).open(raise_epoch=True),
    "refuse a claim": refused_claim,
}
OF_CLAIMED: dict[str, Callable[[LogStore, Claim], Any]] = {
    "submitted": lambda store, claim: store.submitted(claim, log_path="/logs/1", launcher=SOMEBODY),
    "register": lambda store, claim: store.register(claim, SOMEBODY),
}
OF_NEW: dict[str, Callable[[LogStore, int], Any]] = {
    "claim": lambda store, run_id: store.claim(run_id, "g", expected=0, reason="test"),
    "start another run": lambda store, _: store.start_run(
        replace(spec("a", "b", dag_run="another"), code_digest="first"), code=b"its code"
    ),
    "take code": lambda store, run_id: store.take_code(run_id, "g", "other", "f", archive=b"other code", by="a person"),
}


def move(store: LogStore, name: str) -> Callable[[], Any]:
    """Something other than a commit that changes the log, with the log made ready for it."""
    run_id = store.start_run(spec()).run_id
    if name in OF_NEW:
        return lambda: OF_NEW[name](store, run_id)
    claim = store.claim(run_id, "g", expected=0, reason="test")
    if name in OF_CLAIMED:
        return lambda: OF_CLAIMED[name](store, claim)
    ref = store.register(claim, SOMEBODY)
    if name == "refuse a claim":
        store.request(run_id, "g", GroupState.HALTED)
        store.declare_dead(ref, "test")
    return lambda: OF_RUNNING[name](store, ref)


@pytest.mark.parametrize("name", [*OF_NEW, *OF_CLAIMED, *OF_RUNNING])
def test_a_move_that_fails_at_any_statement_leaves_nothing(log_store: LogStore, name: str) -> None:
    act = move(log_store, name)
    before = contents(log_store)
    for failing in failures(log_store)[:1]:
        number, failed = 0, True
        while failed:
            number += 1
            try:
                with failing(number):
                    act()
                failed = False
            except Injected:
                assert contents(log_store) == before, f"failed at statement {number}"
    assert number > 1
    assert contents(log_store) != before
