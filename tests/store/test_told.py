"""What tasks have told of a run, as the log keeps it: the same in memory, in SQLite and in PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pytest
import sqlalchemy as sa

from airflow_logio.errors import UnknownRun
from airflow_logio.store.port import LogStore
from airflow_logio.store.sql.store import SqlLogStore
from tests.support.logs import open_sql_store, spec

FIRST, SECOND = '["dag", "run-1", "supervise", -1]', '["dag", "run-1", "täglich", 3]'
SEEN = {"parked": {"totals": 1}, "scaling": {"größe": 2}}


def test_each_task_keeps_what_it_has_told_of_each_run(log_store: LogStore) -> None:
    run, other = (log_store.start_run(spec("g", dag_run=name)).run_id for name in ("run-1", "run-2"))
    assert log_store.told_by(run, FIRST) is None
    log_store.note_told(run, FIRST, {"halted": {"g": 1}})
    log_store.note_told(run, SECOND, ["logio://warehouse/top"])
    log_store.note_told(run, FIRST, SEEN)
    assert (log_store.told_by(run, FIRST), log_store.told_by(run, SECOND)) == (SEEN, ["logio://warehouse/top"])
    assert log_store.told_by(other, FIRST) is None
    assert log_store.finish_run(run) is False
    assert log_store.supersede(run)
    assert log_store.told_by(run, FIRST) == SEEN, "it is that of the run, whatever becomes of that"


def test_nothing_is_told_of_a_run_that_is_gone(log_store: LogStore) -> None:
    run = log_store.start_run(spec("g")).run_id
    log_store.note_told(run, FIRST, SEEN)
    log_store.supersede(run)
    more = True
    while more:
        more = log_store.remove_run(run, 100).more
        with pytest.raises(UnknownRun):
            log_store.told_by(run, FIRST)
        with pytest.raises(UnknownRun):
            log_store.note_told(run, FIRST, SEEN)


def test_tasks_that_note_at_once_lose_nothing_of_each_other(log_store: LogStore) -> None:
    run, together, last = log_store.start_run(spec("g")).run_id, Barrier(2), 30

    def note(task: str) -> None:
        together.wait(60)
        for number in range(last + 1):
            log_store.patience.call("noting", partial(log_store.note_told, run, task, number))
            assert log_store.told_by(run, task) == number

    with ThreadPoolExecutor(2) as pool:
        for noted in [pool.submit(note, task) for task in (FIRST, SECOND)]:
            noted.result(90)
    assert (log_store.told_by(run, FIRST), log_store.told_by(run, SECOND)) == (last, last)


@pytest.mark.parametrize("damage", ["no JSON", '{"a": [', "[1]", "[" * 100_000], ids=["text", "cut", "list", "deep"])
def test_what_cannot_be_read_was_not_told(sql_store: SqlLogStore, damage: str) -> None:
    run = sql_store.start_run(spec("g"))
    with sql_store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE logio_run SET told = :told"), {"told": damage})
    assert sql_store.told_by(run.run_id, FIRST) is None
    assert sql_store.find_run(run.uid) == run, "the run is as it was"
    sql_store.note_told(run.run_id, FIRST, SEEN)
    assert sql_store.told_by(run.run_id, FIRST) == SEEN


def test_bytes_that_are_no_text_were_not_told(sqlite_url: str) -> None:
    store = open_sql_store(sqlite_url)
    run = store.start_run(spec("g")).run_id
    store.note_told(run, FIRST, SEEN)
    with store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE logio_run SET told = CAST(:told AS TEXT)"), {"told": b'{"a": "\xff"}'})
    assert store.told_by(run, "a") is None
    store.note_told(run, FIRST, SEEN)
    assert store.told_by(run, FIRST) == SEEN
    store.dispose()
