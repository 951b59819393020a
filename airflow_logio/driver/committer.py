"""Pipelined group commit (design D3): one thread, one connection, transactions strictly in sequence.

The loop keeps running while a commit is under way; everything it submits meanwhile goes into the next transaction.
Nothing leaves the group before its commit: write actions are handed to their writer threads, and receivers are woken,
after it. The order is that of `protocol/commit.py`, whose `CommitQueue` stands here behind a lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.driver.logics.replay_check import contents
from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import CommitQueue, CommitStep, HandOver
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.spark.chains import Evaluated
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.systems.arrow import bytes_shown, encode
from airflow_logio.systems.payloads.bodies import Bodies, table_of
from airflow_logio.systems.payloads.dataset import Borrowed, Dataset

log = logging.getLogger(__name__)
IDLE_CHECK_SECONDS = 1.0
Unlogged = Callable[[Port, bytes, pa.Table], None]
"""(sender, digest, records) of an event whose body does not go into the log; before its commit."""


def not_kept(_sender: Port, _digest: bytes, _table: pa.Table) -> None:
    """Receivers make it again."""


class Committer:
    """`release` gets what each transaction releases, in order, on the committer's thread, once it is durable.

    `collected` gets the effects of each transaction, with what the garbage collection among them has done; `unlogged` the
    bodies that do not go into the log; `freed` is called when nothing is queued or under way any more.
    """

    def __init__(
        self,
        session: GroupSession,
        bodies: Bodies,
        release: Callable[[HandOver], None],
        failed: Callable[[BaseException], None],
        collected: Callable[[Sequence[fx.Effect], Sequence[Collected]], None] = lambda _, __: None,
        unlogged: Unlogged = not_kept,
        freed: Callable[[], None] = lambda: None,
    ) -> None:
        self._bodies = bodies
        self._session = session
        self._collected = collected
        self._unlogged = unlogged
        self._release = release
        self._failed = failed
        self._freed = freed
        self._queue = CommitQueue()
        self._steps: Mapping[CommitStep, Callable[[], None]] = {
            CommitStep.ENCODE: self._encode,
            CommitStep.COMMIT: self._commit,
            CommitStep.HAND_OVER: self._hand_over,
        }
        self._stopping = False
        self._broken = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="logio-committer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, effects: fx.Effects) -> None:
        """Queue the effects of a step; waits while too many are queued, so that memory stays bounded."""
        if not effects:
            return
        with self._changed:
            while self._queue.is_full() and not (self._broken or self._stopping):
                self._changed.wait()
            if self._stopping:
                return  # what was queued before it is dropped
            self._queue.add(effects)
            self._changed.notify_all()

    def is_idle(self) -> bool:
        """Nothing is queued or under way: a step that is closed now is committed at once."""
        with self._changed:
            return self._queue.is_idle()

    def drain(self) -> None:
        """Wait until everything submitted is committed, or a commit has failed."""
        with self._changed:
            while not self._queue.is_idle() and not self._broken:
                self._changed.wait()

    def stop(self) -> None:
        """Drop what is queued and join: after a refused commit nothing later may be applied."""
        with self._changed:
            self._stopping = True
            self._queue.drop()
            self._changed.notify_all()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take():
                while (step := self._queue.wants) is not None:
                    self._steps[step]()
        except BaseException as error:
            self._failed(error)  # first: a thread that waits in drain() looks for the failure when it returns
            with self._changed:
                self._broken = True
                self._changed.notify_all()

    def _take(self) -> bool:
        """Wait for a step, and take what there is; False when the thread is to end."""
        with self._changed:
            self._changed.notify_all()
            while not self._queue.steps:
                if self._stopping:
                    return False
                if not self._changed.wait(IDLE_CHECK_SECONDS):
                    self._check_idle()
            self._queue.take(_payload_bytes)
            self._changed.notify_all()
        return True

    def _check_idle(self) -> None:
        """A group that has nothing to commit would never learn that it was replaced, or its epoch raised."""
        self._changed.release()
        try:
            self._session.check()
        except LogUnavailable as error:
            log.debug("the fence cannot be read: %s", error)
        finally:
            self._changed.acquire()

    def _encode(self) -> None:
        effects = serialize(self._queue.taken, self._bodies, self._unlogged)
        with self._changed:
            self._queue.encoded(effects)

    def _commit(self) -> None:
        effects = self._queue.taken
        crash_here(CrashPoint.BEFORE_COMMIT)
        collected = self._session.commit(effects)
        crash_here(CrashPoint.AFTER_COMMIT)
        with self._changed:
            self._queue.committed()
        self._collected(effects, collected)

    def _hand_over(self) -> None:
        with self._changed:
            released = self._queue.peek()
        self._release(released)
        with self._changed:
            self._queue.handed_over()
            self._changed.notify_all()
            is_free = self._queue.is_idle()
        if is_free:
            self._freed()


def _payload_bytes(effect: fx.Effect) -> int:
    match effect:
        case fx.LogEvent(event, _):
            return _bytes(event.body, event.payload)
        case fx.LogWrite() | fx.LogRead():
            return _bytes(effect.body, effect.payload)
    return 0


def _bytes(body: bytes | None, payload: Any) -> int:
    """What goes into the log; of a dataset, as good as nothing."""
    if body:
        return len(body)
    return bytes_shown(payload) if isinstance(payload, pa.Table) else 0


def serialize(effects: fx.Effects, bodies: Bodies, unlogged: Unlogged = not_kept) -> fx.Effects:
    """Bodies as bytes, before the transaction is opened; and the bytes sent per port, which are known only now.

    Large ones are durable in the payload store when this returns.
    """
    sent: dict[Port, int] = {}
    result: fx.Effects = []
    datasets = DatasetRows(bodies)
    for effect in effects:
        match effect:
            case fx.LogEvent(event, _) if event.made_of is not None:
                made_of = replace(
                    event.made_of, digest=contents(event.payload), size=bytes_shown(table_of(event.payload))
                )
                unlogged(event.sender, made_of.digest, table_of(event.payload))
                sent[event.sender] = sent.get(event.sender, 0) + made_of.size
                result.append(replace(effect, event=replace(event, payload=None, body=None, made_of=made_of)))
            case fx.LogEvent(event, _) if event.kind is Kind.DATA and (made := _dataset_of_event(datasets, event)):
                sent[event.sender] = sent.get(event.sender, 0) + made.nbytes
                result.append(replace(effect, event=replace(event, body=b"", ref=str(made.reference))))
            case fx.LogWrite() | fx.LogRead() if made := _dataset_of_action(datasets, effect):
                result.append(replace(effect, body=b"", ref=str(made.reference)))
            case fx.LogEvent(event, _) if event.kind is Kind.DATA:
                body = encode(event.payload) if event.body is None else event.body
                sent[event.sender] = sent.get(event.sender, 0) + len(body)
                ref = bodies.outside(f"bodies/{event.sender}/{event.event_id}", body)
                result.append(replace(effect, event=replace(event, body=body, ref=ref)))
            case fx.LogWrite() | fx.LogRead() if effect.body is not None or effect.payload is not None:
                body = encode(effect.payload) if effect.body is None else effect.body
                result.append(replace(effect, body=body, ref=bodies.outside(_purpose(effect), body)))
            case _:
                result.append(effect)
    return result + [fx.CountEvents(port, "out", 0, 0, size) for port, size in sent.items()]


def _dataset_of_event(datasets: DatasetRows, event: Event) -> Dataset | None:
    where = f"event {event.event_id} of {event.sender}"
    return datasets.dataset(event.payload, where, f"bodies/{event.sender}/{event.event_id}")


def _dataset_of_action(datasets: DatasetRows, action: fx.LogWrite | fx.LogRead) -> Dataset | None:
    kind, number = ("write", action.number) if isinstance(action, fx.LogWrite) else ("read", action.action_id)
    return datasets.dataset(action.payload, f"{kind} action {number} of {action.operator}", _purpose(action))


def _purpose(action: fx.LogWrite | fx.LogRead) -> str:
    kind, number = ("writes", action.number) if isinstance(action, fx.LogWrite) else ("reads", action.action_id)
    return f"{kind}/{action.operator}.{action.connection}/{number}"


class DatasetRows:
    """Which dataset each row of one transaction names: each row has files of its own (ADR-80), whatever has the same records.

    All rows that name what a chain has made of one event are in one transaction (ADR-86).
    """

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._named: set[str] = set()

    def dataset(self, payload: Any, where: str, purpose: str) -> Dataset | None:
        """The dataset that the row `where` names for a payload; None if that is no dataset.

        What a chain has materialized belongs to the first row that asks. Every further row, and a row of an event that the
        log has since an earlier transaction, gets other names of the files, durable when this returns. Raises
        `LogUnavailable`.
        """
        match payload:
            case Dataset():  # written for this row
                return payload
            case Evaluated():
                made = payload.materialized
                if (ref := str(made.reference)) not in self._named:
                    self._named.add(ref)
                    return made
                return self._bodies.own(where, purpose, made)
            case Borrowed():
                return self._bodies.own(where, purpose, payload.dataset)
        return None
