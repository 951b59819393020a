"""One epoch of a hand-written operator: its `run` in place of the group's loop (Section 6.3).

The log, the fence, the heartbeat and the end are those of every group; the operator drives the protocol through a `Logio`
handle. It runs on the driver's main thread, which is also the one that commits.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from airflow_logio.contrib.paper_api import Logio, Stopped
from airflow_logio.contrib.paper_api.book import Station
from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.operators import ManualOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.writers.action_writers import Marker
from airflow_logio.driver.back_pressure import Backlog
from airflow_logio.driver.committer import serialize
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.garbage import Collection, sweeps_of
from airflow_logio.driver.logics.operator_specs import captured_inputs, specs_of
from airflow_logio.errors import FailurePoint, LogioError, LogUnavailable, OperatorFailed
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import decode_state
from airflow_logio.protocol.values import Event, Port
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.systems.arrow import encode
from airflow_logio.systems.calls import replay
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.bodies import Bodies, table_of

log = logging.getLogger(__name__)

T = TypeVar("T")

CHECK_SECONDS = 1.0
"""How long a driver that commits nothing may be unaware that it was replaced."""


def manual_operator(pipeline: Pipeline, group: str) -> ManualOperator | None:
    """The hand-written operator that drives the group, if there is one."""
    operator = pipeline.operators[pipeline.group_of(group).operators[0]]
    return operator if isinstance(operator, ManualOperator) else None


class ManualEpoch:
    def __init__(self, settings: EpochSettings, session: GroupSession, epoch: int, operator: ManualOperator) -> None:
        self._settings = settings
        self._session = session
        self._operator = operator
        specs, receivers = specs_of(
            settings.pipeline, settings.pipeline.groups[settings.group].operators, settings.connections
        )
        self._spec = specs[0]
        self._station = Station(
            spec=self._spec,
            receivers={port.name: behind for port, behind in receivers.items()},
            captured=captured_inputs(settings.pipeline),
            connections=frozenset((*operator.connections(), *operator.writes())),
            writable=frozenset(operator.writes()),
        )
        self._payloads = self._open_payloads(epoch)
        self._host = DriverHost(settings, session, self._station, Bodies(self._payloads))

    def run(self) -> bool:
        """Drive the operator; True if it has finished, False if it was asked to halt. Raises `OperatorFailed` for what
        its author's code raises, and what the log says of the driver as it is."""
        try:
            logio = self._recover()
            if not logio.has_finished:
                self._run(logio)
            crash_here(CrashPoint.BEFORE_FINISH)
            self._host.commit([fx.FinishGroup()])
            crash_here(CrashPoint.AFTER_FINISH)
        except Stopped:
            return False
        finally:
            if self._payloads is not None:
                self._payloads.stop()  # first: nothing waits then for one that cannot be removed
            self._host.stop()
        return True

    def _open_payloads(self, epoch: int) -> EpochPayloads | None:
        payloads, ref = self._settings.payloads, self._session.ref
        if payloads is None:
            return None
        calls = self._settings.connections.calls
        return payloads.epoch(self._settings.run.uid, ref.group, ref.incarnation, epoch, calls)

    def _recover(self) -> Logio:
        crash_here(CrashPoint.BEFORE_RECOVERY)
        started = time.monotonic()
        recovered = self._session.recover([self._spec.name])
        if (data := recovered.states.get(self._spec.name)) is not None:
            self._host.note_taken_back(decode_state(self._spec.name, data).context.taken_back)
        logio = Logio(self._station, self._session, self._host, recovered)
        log.info(
            "operator %s, by hand: read from the log in %.2f s: %d acknowledged events, %d pending write actions",
            self._spec.name,
            time.monotonic() - started,
            len(recovered.acknowledged),
            len(recovered.writes),
        )
        crash_here(CrashPoint.AFTER_RECOVERY)
        return logio

    def _run(self, logio: Logio) -> None:
        if not self._spec.inputs:
            self._settings.may_start(self._settings.stop_requested)
        try:
            self._operator.run(logio)
        except (LogioError, Stopped):
            raise
        except Exception as error:
            last = logio.last_received
            where = f", after {last}" if last is not None else ""
            raise OperatorFailed(
                f"pipeline {self._settings.pipeline.name!r}, operator {self._spec.name!r}, run() by hand{where}: "
                f"{type(error).__name__}: {error}",
                FailurePoint(self._spec.name, last.port, last.event_id) if last is not None else None,
            ) from error
        logio.end_of_stream()


class DriverHost:
    """`airflow_logio.contrib.paper_api.book.Host`: the driver around the operator. Used by one thread."""

    def __init__(self, settings: EpochSettings, session: GroupSession, station: Station, bodies: Bodies) -> None:
        self._settings = settings
        self._session = session
        self._bodies = bodies
        self._operator = station.spec.name
        self._collection = Collection([self._operator], sweeps_of(settings.pipeline, settings.group), bodies.remove)
        self._checked_at = time.monotonic()
        self._drain_noted = False
        self._last_sent = dict.fromkeys(station.spec.outputs, 0)
        self._backlogs = {
            port: Backlog(
                behind, session.acknowledged, settings.run.spec.backlog, partial(self._last_sent.__getitem__, port)
            )
            for port, behind in station.receivers.items()
            if behind
        }

    def commit(self, effects: fx.Effects) -> None:
        noted = [*effects, *self._drain_to_note()]
        serialized = serialize(noted + self._collection.due(effects), self._bodies)
        crash_here(CrashPoint.BEFORE_COMMIT)
        collected = self._session.commit(serialized)
        crash_here(CrashPoint.AFTER_COMMIT)
        if len(noted) > len(effects):
            crash_here(CrashPoint.AFTER_DRAIN)
        self._checked_at = time.monotonic()
        self._collection.committed(serialized, collected)
        for effect in serialized:
            if isinstance(effect, fx.LogEvent) and effect.event.sender.name in self._backlogs:
                event = effect.event
                self._backlogs[event.sender.name].note_size(event.event_id, len(event.body or b""))

    def _drain_to_note(self) -> fx.Effects:
        """With the first commit after the wish was heard, the log says that the group drains."""
        if self._drain_noted or not self.is_draining():
            return []
        self._drain_noted = True
        crash_here(CrashPoint.BEFORE_DRAIN)
        return [fx.DrainGroup()]

    def note_taken_back(self, ends: int) -> None:
        """Recovery has found that retries have taken so many ends of the stream back."""
        for backlog in self._backlogs.values():
            backlog.taken_back = ends

    def idle(self) -> None:
        if self._collection.is_overdue():
            self.commit([])
        elif time.monotonic() - self._checked_at >= CHECK_SECONDS:
            self._checked_at = time.monotonic()
            with contextlib.suppress(LogUnavailable):  # the next commit reports an outage that lasts
                self._session.check()

    def stop(self) -> None:
        self._collection.stop()

    @property
    def params(self) -> Mapping[str, Any]:
        return self._settings.run.spec.params

    def url(self, connection: str) -> str:
        return self._settings.connections.url(connection)

    def marker(self, connection: str) -> Marker:
        identity = self._settings.connections.identity
        where = (identity.run_uid, self._operator, connection, 0)
        return Marker(*where, identity.token, identity.started_at, line=identity.line)

    def encode(self, table: pa.Table) -> bytes:
        return encode(table)

    def decode(self, event: Event) -> pa.Table:
        return table_of(self._bodies.unpacked(event).payload)

    def loaded(self, write: PendingWrite) -> PendingWrite:
        return self._bodies.loaded(write)

    def replay(self, what: str, action: Callable[[], T]) -> T:
        connections = self._settings.connections
        return replay(what, action, connections.replay_seconds, self._settings.stop_requested, calls=connections.calls)

    def is_stopping(self) -> bool:
        return self._settings.stop_requested.is_set()

    def is_draining(self) -> bool:
        return self._settings.drain_requested.is_set()

    def groups_behind(self, port: str) -> Sequence[str]:
        receivers = self._settings.pipeline.receivers(Port(self._operator, port))
        return sorted({name for to in receivers for name in self._settings.pipeline.applications_of(to.operator)})

    def sent(self, port: str, event_id: int) -> None:
        self._last_sent[port] = event_id

    def is_full(self, port: str) -> bool:
        return port in self._backlogs and self._backlogs[port].is_full()
