"""A run takes other types of columns: its description changes as a whole, for groups without a driver only."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest

from airflow_logio.errors import Fenced, IncompatibleRun, ProtocolViolation, UnknownRun
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.memory import MemoryLogStore
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import OperatorShape, Run, RunSpec
from airflow_logio.store.rules.graph_changes import check_graph
from airflow_logio.store.rules.type_rules import TypeChange, changed_types
from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import QUICK
from tests.store.conftest import OpenStore
from tests.support.faults import Injected, Pause, around_commit, before_change, before_statement, inject
from tests.support.logs import spec, start_driver
from tests.support.racing import race

STANDS_SECONDS = 0.1


def graph(kind: str, table: str = "sums") -> dict[str, Any]:
    columns = {"hour": "timestamp", "total": kind}
    return {
        "operators": {"save": {"class": "TableWriter", "settings": {"table": table, "columns": columns}}, "sum": {}}
    }


def described(kind: str = "double", run: str = "run-1") -> RunSpec:
    shapes = {"sum": OperatorShape("g", {}, ("out",)), "save": OperatorShape("store", {"in": "sum.out"}, ())}
    return replace(spec("g", "store", dag_run=run, graph=kind), graph=graph(kind), operators=shapes)


def change(run: Run, kind: str, incarnation: int = 0) -> TypeChange:
    types = changed_types(run.spec.graph, graph(kind), {"save"})
    assert types
    return TypeChange(types, graph(kind), kind, run.spec.graph_fingerprint, {"store": incarnation})


def parked(store: LogStore, run: Run) -> Run:
    driver = start_driver(store, group="store", run=run)
    assert store.park(driver.ref, "a decimal does not fit into a double")
    return run


def accepts(run: Run, kind: str, group: str | None = None) -> bool:
    try:
        check_graph(run, kind, graph(kind), group)
    except IncompatibleRun:
        return False
    return True


def test_a_parked_group_gets_columns_of_other_types(log_store: LogStore) -> None:
    run = parked(log_store, log_store.start_run(described()))
    changed = log_store.change_types(run.run_id, change(run, "decimal(10,2)", 1))
    assert changed == log_store.find_run(run.uid) == log_store.start_run(described("decimal(10,2)"))
    assert (changed.spec.graph, changed.spec.graph_fingerprint) == (graph("decimal(10,2)"), "decimal(10,2)")
    assert changed.spec.former_types == {"save": {"total": ("double",)}}
    assert replace(changed.spec, graph={}, graph_fingerprint="", former_types={}) == replace(
        run.spec, graph={}, graph_fingerprint=""
    )
    assert log_store.claim(run.run_id, "store", expected=1, reason="retry", by_user=True).incarnation == 2


def test_the_writers_group_runs_with_the_new_types_alone_and_others_with_either(log_store: LogStore) -> None:
    run = parked(log_store, log_store.start_run(described()))
    changed = log_store.change_types(run.run_id, change(run, "text", 1))
    assert [accepts(changed, "text", group) for group in (None, "g", "store")] == [True] * 3
    assert [accepts(changed, "double", group) for group in (None, "g", "store")] == [True, True, False]
    assert not accepts(changed, "bigint"), "a type that it never had"
    with pytest.raises(IncompatibleRun, match="table was 'sums', is now 't'"):
        check_graph(changed, "double", graph("double", "t"), "g")


def test_types_change_again_and_back_and_each_change_once(log_store: LogStore) -> None:
    run = log_store.start_run(described())
    for kind in ("text", "bigint", "double"):
        wanted = change(log_store.find_run(run.uid), kind)
        assert (
            race(*[lambda wanted=wanted: log_store.change_types(run.run_id, wanted)] * 3)
            == [log_store.find_run(run.uid)] * 3
        )
    assert log_store.find_run(run.uid).spec.former_types == {"save": {"total": ("double", "text", "bigint")}}


def test_what_is_wrong_is_refused_and_changes_nothing(log_store: LogStore) -> None:
    run = log_store.start_run(described())
    wanted = change(run, "text")
    refused: list[tuple[TypeChange, type[Exception], str]] = [
        (replace(wanted, incarnations={"other": 0}), ProtocolViolation, "no group 'other'"),
        (replace(wanted, incarnations={"store": 1}), IncompatibleRun, "launched by another process at the same time"),
        (replace(wanted, replaced="bigint"), IncompatibleRun, "was changed by another process at the same time"),
    ]
    driver = start_driver(log_store, group="g", run=run)
    refused.append((replace(wanted, incarnations={"g": 1}), IncompatibleRun, "it is running: halt it .`logio stop"))
    for one, error, words in refused:
        with pytest.raises(error, match=words):
            log_store.change_types(run.run_id, one)
    with pytest.raises(UnknownRun):
        log_store.change_types(run.run_id + 1, wanted)
    log_store.declare_dead(driver.ref, "test")
    log_store.supersede(run.run_id)
    with pytest.raises(ProtocolViolation, match="was given up for a fresh run"):
        log_store.change_types(run.run_id, wanted)
    assert log_store.find_run(run.uid).spec == run.spec


def test_a_change_that_fails_anywhere_leaves_nothing(log_store: LogStore) -> None:
    run = parked(log_store, log_store.start_run(described()))
    wanted, number, failed = change(run, "text", 1), 0, True
    while failed:
        number += 1
        try:
            with failing(log_store, number):
                log_store.change_types(run.run_id, wanted)
            failed = False
        except Injected:
            assert log_store.find_run(run.uid).spec == run.spec
    assert number > 1
    assert log_store.find_run(run.uid).spec.graph == graph("text")


def failing(store: LogStore, number: int) -> AbstractContextManager[Any]:
    """Fail at the n-th statement, or change in memory."""
    if isinstance(store, MemoryLogStore):
        return before_change(store, number, inject)
    assert isinstance(store, SqlLogStore)
    return before_statement(store, number, inject)


def test_dying_before_and_after_its_commit(sql_store: SqlLogStore) -> None:
    run = parked(sql_store, sql_store.start_run(described()))
    wanted = change(run, "text", 1)
    with around_commit(sql_store, before=inject), pytest.raises(Injected):
        sql_store.change_types(run.run_id, wanted)
    assert sql_store.find_run(run.uid).spec == run.spec
    with around_commit(sql_store, after=inject), pytest.raises(Injected):
        sql_store.change_types(run.run_id, wanted)
    changed = sql_store.find_run(run.uid)
    assert changed.spec.graph == graph("text")
    assert sql_store.change_types(run.run_id, wanted) == changed


RIVALS: dict[str, Callable[[SqlLogStore, Run], Any]] = {
    "claim": lambda store, run: store.claim(run.run_id, "store", expected=0, reason="test", by_user=True),
    "supersede": lambda store, run: store.supersede(run.run_id),
    "another type": lambda store, run: store.change_types(run.run_id, change(run, "bigint")),
}


@pytest.mark.parametrize("name", RIVALS)
def test_wherever_it_stands_a_rival_comes_before_it_or_after(open_another: OpenStore, name: str) -> None:
    """It stands still before each of its statements, while the rival comes: no driver has types that the log has not."""
    store, rival = open_another(), open_another(application="logio rival")
    number, reached = 0, True
    while reached:
        number += 1
        run = store.start_run(described(run=f"run {number}"))
        pause = Pause()
        with ThreadPoolExecutor(2) as pool, before_statement(store, number, pause):
            changing = pool.submit(store.change_types, run.run_id, change(run, "text"))
            reached = pause.is_reached_before(changing)
            coming = pool.submit(QUICK.call, "the rival", lambda run=run: RIVALS[name](rival, run))
            wait([coming], STANDS_SECONDS)
            pause.release()
            outcome = changing.exception(30), coming.exception(30)
        _check(store, run, name, outcome)
    assert number > 3


def _check(store: SqlLogStore, run: Run, name: str, outcome: tuple[Any, Any]) -> None:
    changing, rival = outcome
    found = store.find_run(run.uid)
    if name == "another type":
        assert [type(one) for one in outcome] in ([type(None), IncompatibleRun], [IncompatibleRun, type(None)])
        assert found.spec.graph == graph("text" if changing is None else "bigint")
        return
    assert rival is None or isinstance(rival, Fenced)
    assert changing is None or isinstance(changing, IncompatibleRun | ProtocolViolation)
    assert found.spec.graph == graph("text" if changing is None else "double")
    if changing is not None:  # the rival came first
        assert name == "supersede" or store.group(run.run_id, "store").state is GroupState.CLAIMED
