"""What groups leave behind, and whole runs that have ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.errors import Fenced, LogUnavailable, ProtocolViolation, UnknownRun
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.protocol.values import Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import OperatorShape, Run, RunSpec
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.supervision import tidying
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.garbage import NOTHING, OTHER, event, left, used
from tests.support.logs import IN, OUT, UNDONE, contents, fetched, held, spec, start_driver

SHAPES = {
    "sender": OperatorShape("a", {}, ("out",)),
    "receiver": OperatorShape("b", {"in": "sender.out"}),
    "other": OperatorShape("c", {"in": "sender.out"}),
}


def three_groups(dag_run: str = "run-1") -> RunSpec:
    return replace(spec("a", "b", "c", dag_run=dag_run), operators=SHAPES)


def started(store: LogStore, dag_run: str = "run-1") -> tuple[Run, dict[str, Any]]:
    run = store.start_run(three_groups(dag_run))
    return run, {name: start_driver(store, group=name, run=run) for name in ("a", "b", "c")}


def finish(drivers: dict[str, Any], *names: str) -> None:
    for name in names:
        drivers[name].session.commit([fx.FinishGroup()])


def rows_of(store: LogStore, run_id: int) -> dict[str, int]:
    """Rows of a run by table, heartbeats included, where there are any."""
    if isinstance(store, MemoryLogStore):
        tables = store.tables
        keyed: dict[str, Any] = {
            "groups": tables.groups,
            "fences": tables.fences,
            "bodies": tables.bodies,
            "reads": tables.reads,
            "states": tables.states,
            "lineage": tables.lineage,
            "counters": tables.counters,
            "quarantine": tables.quarantine,
            "slots": tables.slots,
            "scalings": tables.scalings,
        }
        counts = {name: sum(key[0] == run_id for key in table) for name, table in keyed.items()}
        counts["log"] = sum(row.body.run_id == run_id for row in tables.events.rows.values())
        counts["drivers"] = sum(key[0].run_id == run_id for key in (*tables.drivers, *tables.beats))
        counts["runs"] = int(run_id in tables.runs)
    else:
        assert isinstance(store, SqlLogStore)
        counts = {}
        for engine, metadata in ((store.engine, schema.metadata), (store.beats, schema.beat_metadata)):
            for table in metadata.sorted_tables:
                if "run_id" not in table.c:
                    continue  # who looks for failed groups: not of one run
                query = sa.select(sa.func.count()).select_from(table).where(table.c.run_id == run_id)
                with engine.connect().execution_options(logio_writes=False) as connection:
                    counts[table.name] = connection.execute(query).scalar_one()
    return {name: count for name, count in counts.items() if count}


# --- collect ----------------------------------------------------------------------------------------------------------


def test_finished_groups_are_tidied_up(log_store: LogStore) -> None:
    run, drivers = started(log_store)
    session = drivers["a"].session
    session.commit([event(n, IN, OTHER) for n in range(1, 8)])
    session.commit([*(used(n, "A") for n in range(1, 8)), *(used(n, "A", receiver=OTHER) for n in range(1, 6))])
    session.commit([used(6, "open", receiver=OTHER, status=UNDONE)])
    assert log_store.garbage(run.run_id) == 0
    assert tidying.tidy(log_store, run.run_id) == 0, "all of its groups are running: they collect for themselves"
    finish(drivers, "a", "b")
    assert log_store.garbage(run.run_id) == 7
    batches = [log_store.collect(run.run_id, 3) for _ in range(3)]
    assert [(batch.rows, batch.more) for batch in batches] == [(3, True), (3, True), (1, False)]
    assert {row[0] for row in left(log_store).rows} == {"other"}
    assert fetched(drivers["c"].session, receiver=OTHER) == [7]
    assert held(drivers["c"].session, "other") == [(6, "open")]
    drivers["c"].session.commit([used(7, "A", receiver=OTHER), fx.MarkDone("other", "open", 1), fx.FinishGroup()])
    assert tidying.tidy(log_store, run.run_id) == 7
    assert left(log_store) == NOTHING


def test_bodies_that_two_groups_have_left_are_found(log_store: LogStore) -> None:
    run, drivers = started(log_store)
    orphan = fx.LogEvent(event(2).event, ())  # a body without a row is what they leave
    referring = fx.LogEvent(event(3, ref="a/3").event, ())
    drivers["a"].session.commit([event(1, IN, OTHER), orphan, referring])
    collected = log_store.collect(run.run_id, 10)
    assert (collected.rows, collected.refs) == (2, ("a/3",))
    assert left(log_store).bodies == [("out", 1)]
    assert fetched(drivers["b"].session) == [1]


def test_what_is_set_aside_stays_and_can_be_retried(log_store: LogStore) -> None:
    run, drivers = started(log_store)
    session = drivers["b"].session
    session.commit([event(1), used(1, "Q", status=UNDONE), fx.SetAside("receiver", "Q", 1, "ValueError: no")])
    finish(drivers, "a", "b", "c")
    tidying.tidy(log_store, run.run_id)
    assert left(log_store).rows == [("receiver", 1, "Q", "aside")]
    assert left(log_store).bodies == [("out", 1)]


# --- whole runs -------------------------------------------------------------------------------------------------------


def filled(store: LogStore, dag_run: str) -> tuple[Run, dict[str, Any]]:
    """A run with rows in every table."""
    run, drivers = started(store, dag_run)
    session = drivers["b"].session
    session.commit(
        [
            *(event(n, ref=f"{dag_run}/{n}") for n in range(1, 6)),
            *(used(n, "A", status=UNDONE) for n in (1, 2, 3)),
            used(4, "Q", status=UNDONE),
            fx.SetAside("receiver", "Q", 1, "no"),
            fx.RecordLineage(OUT, 1, "A"),
            fx.LogStateEvent("receiver", 1, "A", b"s"),
            fx.StoreState("receiver", b"s"),
            fx.LogRead("receiver", "wh", 1, {}, ("A",), 1, None, b"r"),
            fx.CountEvents(IN, "in", 1, 1),
        ]
    )
    for driver in drivers.values():
        store.heartbeat(driver.ref, 1, ready=True, rss_bytes=1)
    return run, drivers


def test_an_ended_run_is_removed_from_all_tables(log_store: LogStore) -> None:
    run, drivers = filled(log_store, "run-1")
    other, _ = filled(log_store, "run-2")
    untouched = rows_of(log_store, other.run_id)
    assert len(rows_of(log_store, run.run_id)) >= 10
    finish(drivers, "a", "b", "c")
    assert log_store.finish_run(run.run_id)
    assert [found.uid for found in log_store.removable(0.0)] == [run.uid]
    assert log_store.removable(3600.0) == []
    discarded: list[str] = []
    batches: list[int] = []
    total = 0
    more = True
    while more:
        removed = log_store.remove_run(run.run_id, 2)
        discarded += removed.refs
        batches.append(removed.rows)
        total, more = total + removed.rows, removed.more
    assert rows_of(log_store, run.run_id) == {}
    assert rows_of(log_store, other.run_id) == untouched
    assert sorted(discarded) == [f"run-1/{n}" for n in range(1, 6)]
    assert max(batches[1:]) <= 2
    with pytest.raises(UnknownRun):
        log_store.find_run(run.uid)
    with pytest.raises(Fenced):
        drivers["b"].session.commit([])


def test_a_run_that_has_not_ended_is_not_removed(log_store: LogStore) -> None:
    run, drivers = filled(log_store, "run-1")
    finish(drivers, "a", "b")
    before = contents(log_store)
    with pytest.raises(ProtocolViolation, match="has not ended: c is running"):
        log_store.remove_run(run.run_id, 10)
    with pytest.raises(ProtocolViolation, match="logio stop"):
        log_store.remove_run(run.run_id, 10, unfinished=True)
    assert log_store.removable(0.0, unfinished=True) == []
    assert contents(log_store) == before


def test_a_run_that_was_given_up_is_removed_if_asked_for(log_store: LogStore) -> None:
    run, drivers = filled(log_store, "run-1")
    finish(drivers, "a", "b")
    log_store.halted(drivers["c"].ref)
    log_store.start_run(three_groups("run-2"))
    assert log_store.removable(0.0) == []
    with pytest.raises(ProtocolViolation, match=r"c is halted; .*--unfinished"):
        log_store.remove_run(run.run_id, 10)
    assert run.uid in [found.uid for found in log_store.removable(0.0, unfinished=True)]
    assert log_store.removable(3600.0, unfinished=True) == []


def test_an_interrupted_removal_is_made_good_by_the_next(log_store: LogStore) -> None:
    """In between no process can continue the run, and its key is free."""
    run, drivers = filled(log_store, "run-1")
    finish(drivers, "a", "b", "c")
    assert log_store.remove_run(run.run_id, 2).more
    assert log_store.find_run(run.uid).state is RunState.REMOVING
    assert log_store.groups(run.run_id) == []
    with pytest.raises(Fenced):
        drivers["a"].session.commit([])
    again = log_store.start_run(three_groups("run-1"))
    assert again.uid != run.uid
    assert {group.state for group in log_store.groups(again.run_id)} == {GroupState.NEW}
    assert [found.uid for found in log_store.removable(3600.0)] == [run.uid]
    tidying.remove(log_store, run.run_id)
    assert rows_of(log_store, run.run_id) == {}
    assert log_store.find_run(again.uid) == again


def test_a_removal_that_has_not_removed_the_files_is_made_good_by_the_next(log_store: LogStore) -> None:
    """All rows but the run's own are gone by then; without that one nothing would say that there are files."""
    run, drivers = filled(log_store, "run-1")
    finish(drivers, "a", "b", "c")
    log_store.start_run(three_groups("run-2"))  # SQLite keeps the row of the newest run
    with pytest.raises(LogUnavailable, match="the store of the files"):
        tidying.remove(log_store, run.run_id, clear=_unavailable)
    assert sum(rows_of(log_store, run.run_id).values()) == 1
    assert [found.uid for found in log_store.removable(3600.0)] == [run.uid]
    left = ["a file"]
    tidying.remove(log_store, run.run_id, clear=left.clear)
    assert left == []
    assert log_store.removable(0.0) == []


def _unavailable() -> None:
    raise LogUnavailable("the store of the files")


def test_two_may_remove_a_run_at_once(log_store: LogStore) -> None:
    """The one that is late finds nothing, which is what it wants."""
    run, drivers = filled(log_store, "run-1")
    finish(drivers, "a", "b", "c")
    log_store.start_run(three_groups("run-2"))
    faster: list[int] = []
    rows = tidying.remove(log_store, run.run_id, clear=lambda: faster.append(tidying.remove(log_store, run.run_id)))
    assert faster == [1] and rows > 1, "the other one has removed the run's own row"
    assert tidying.remove(log_store, run.run_id) == tidying.tidy(log_store, run.run_id) == 0


def test_the_id_of_a_removed_run_is_not_given_to_another(log_store: LogStore) -> None:
    """A driver of it may still be about: it must not find itself in another run."""
    run, drivers = started(log_store)
    finish(drivers, "a", "b", "c")
    tidying.remove(log_store, run.run_id)
    assert log_store.start_run(three_groups("run-2")).run_id > run.run_id


def test_a_run_that_is_not_there(log_store: LogStore) -> None:
    for batch in (log_store.collect, log_store.remove_run):
        with pytest.raises(UnknownRun):
            batch(7, 9)


def test_ports_of_one_group_or_with_lineage_are_not_shared(log_store: LogStore) -> None:
    """What is kept is not looked at, and one group leaves nothing."""
    shapes = {**SHAPES, "sender": OperatorShape("a", {}, ("out",), lineage_out=("out",))}
    run = log_store.start_run(replace(three_groups(), operators=shapes))
    session = start_driver(log_store, group="a", run=run).session
    session.commit([fx.LogEvent(event(1).event, (), kept=True)])
    assert log_store.collect(run.run_id, 9).rows == 0
    assert left(log_store).bodies == [(Port("sender", "out").name, 1)]
