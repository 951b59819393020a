"""A body is replaced because a person wants it: in one transaction, and no driver keeps using the one before."""

from __future__ import annotations

import pytest

from airflow_logio.errors import EpochVoid, ProtocolViolation, UnknownRun
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import StoredBody
from airflow_logio.store.rules.row_forms import decode_header, encode_header
from airflow_logio.store.sql.store import SqlLogStore
from tests.support.faults import Injected, around_commit, inject
from tests.support.logs import IN, OUT, Driver, assigned, contents, fetched, sent, start_driver

WRITE = Port("receiver", "write:wh")


def driver(store: LogStore) -> Driver:
    """Event 1 is held, 2 waits, and a write action is pending."""
    started = start_driver(store)
    started.session.commit(
        [sent(1), sent(2), assigned(1, "A"), fx.LogWrite("receiver", "wh", 1, {"t": 1}, 1, None, b"w")]
    )
    return started


def stored(started: Driver, sender: Port, event_id: int) -> StoredBody:
    with started.store.lineage(started.run) as log:
        return dict(log.bodies(sender.operator, sender.name, [event_id]))[event_id]


def mended(started: Driver, sender: Port, event_id: int, body: bytes = b"mended") -> None:
    before = stored(started, sender, event_id)
    about = decode_header("it", *before).about
    header = encode_header(Kind.DATA, 2, body, about, mended="by a test")
    started.store.replace_body(started.run.run_id, sender, event_id, before, header, body)


def test_every_reader_gets_the_new_body_and_no_driver_keeps_the_old_one(log_store: LogStore) -> None:
    started = driver(log_store)
    for sender, number in ((OUT, 1), (OUT, 2), (WRITE, 1)):
        mended(started, sender, number)
    with pytest.raises(EpochVoid):
        started.session.commit([])
    started.session.open()
    (waiting,) = started.session.fetch(IN, 0, max_events=9, max_bytes=1 << 30)
    found = started.session.recover(["receiver"])
    assert (waiting.event.event_id, waiting.event.body, waiting.event.records) == (2, b"mended", 2)
    assert [(row.event.event_id, row.event.body) for row in found.acknowledged] == [(1, b"mended")]
    assert [(write.number, write.body, dict(write.header)) for write in found.writes] == [(1, b"mended", {"t": 1})]
    assert decode_header("it", *stored(started, OUT, 2)).mended == "by a test"


def test_it_is_refused_for_what_is_not_there_has_changed_or_is_given_up(log_store: LogStore) -> None:
    started = driver(log_store)
    before, run = stored(started, OUT, 2), started.run.run_id
    mended(started, OUT, 2)
    rows = contents(log_store)
    with pytest.raises(ProtocolViolation, match=r"event 2 of sender\.out is not what it was when you looked"):
        log_store.replace_body(run, OUT, 2, before, b"", b"")
    with pytest.raises(ProtocolViolation, match=r"event 9 of sender\.out is not in the log any more"):
        log_store.replace_body(run, OUT, 9, before, b"", b"")
    with pytest.raises(UnknownRun):
        log_store.replace_body(run + 1, OUT, 2, before, b"", b"")
    assert contents(log_store) == rows
    log_store.declare_dead(started.ref, "test")
    assert log_store.supersede(run)
    with pytest.raises(ProtocolViolation, match="was given up for a fresh run"):
        mended(started, OUT, 2)


def test_dying_before_and_after_its_commit(sql_store: SqlLogStore) -> None:
    started = driver(sql_store)
    rows = contents(sql_store)
    with around_commit(sql_store, before=inject), pytest.raises(Injected):
        mended(started, OUT, 2)
    assert contents(sql_store) == rows
    assert fetched(started.session) == [2], "its driver has noticed nothing"
    with around_commit(sql_store, after=inject), pytest.raises(Injected):
        mended(started, OUT, 2)
    assert stored(started, OUT, 2).body == b"mended"
    with pytest.raises(EpochVoid):
        started.session.commit([])
