"""Events from which receivers have made nothing so far, and why: lineage leads nowhere there."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, TypeVar

from airflow_logio.protocol.replicas import is_dispatcher, is_merger, slot_of
from airflow_logio.protocol.values import Kind, Port, Status
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage.queries import AnyPort
from airflow_logio.store.lineage.result import InputSetNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import LARGEST, Delivered, LineageLog
from airflow_logio.store.records.run_records import Run

_Row = TypeVar("_Row")
MOST_SENDERS = 64
"""Ports of the log whose events are followed: a Dispatcher has one for each slot."""
MOST_SECONDS = 0.2
"""A click is to be answered within 300 ms, and the step itself takes its part (docs/performance.md)."""
MOST_COUNTED = 100
"""Events of a port, the first ones, that are looked for in the log: retention begins with them."""
CLOCK_SECONDS = 60.0
"""This machine's clock and the database's may be so far apart."""


class Use(StrEnum):
    """What an operator has done with an event that it has made nothing from."""

    UNUSED_YET = "unused_yet"
    """It has not processed the event."""
    WAITING = "waiting"
    """The Input Set is not complete, or not generated."""
    ASIDE = "aside"
    """The Input Set is quarantined."""
    WITHOUT_OUTPUT = "without_output"
    """The Input Set was generated, and nothing was made on a port of a lineage scope."""
    LET_GO = "let_go"
    """The Input Set was generated; nothing that was made of it is in the log any more, or nothing was made."""
    IGNORED = "ignored"
    """No Input Set uses the event."""
    NO_RECORDS = "no_records"
    """A Dispatcher had no records of it to send on."""


@dataclass
class Unmade:
    """Events, and Input Sets, with which an operator has done the same."""

    operator: str
    """Under its author's name."""
    use: Use
    events: set[int] = field(default_factory=set)
    input_sets: set[InputSetNode] = field(default_factory=set)


def unmade_of(
    store: LogStore, run: Run, port: AnyPort, event_ids: Iterable[int], *, most_rows: int
) -> tuple[list[Unmade], bool]:
    """What has become of events at their receivers in lineage scopes, apart from what was made of them.

    Also whether there may be more of that.

    It takes at most `most_rows` rows of each kind. Raises `LineageUnknown`, `LogUnavailable`.
    """
    ports = CapturedPorts(run)
    begin = ports.checked(port)
    with store.lineage(run) as log:
        looking = _Looking(log, ports, run, most_rows)
        looking.at(begin, {number: number for number in event_ids})
    return list(looking.found.values()), looking.is_cut


class _Looking:
    def __init__(self, log: LineageLog, ports: CapturedPorts, run: Run, most_rows: int) -> None:
        self._log = log
        self._ports = ports
        self._lost = LostOutputs(log, ports, run, most_rows)
        self._deliveries = self._outputs = most_rows
        """Rows that may still be taken."""
        self._senders = 0
        self._end = time.monotonic() + MOST_SECONDS
        self.found: dict[tuple[str, Use], Unmade] = {}
        self.is_cut = False

    def at(self, sender: Port, events: Mapping[int, int]) -> None:
        """`events`: number at this port → the event that was asked for, which it counts as one with."""
        self._senders += 1
        rows = self._taken(self._log.deliveries_of, self._deliveries, sender, events)
        self._deliveries -= len(rows)
        self.is_cut = self.is_cut or not self._deliveries
        by_operator: dict[str, list[Delivered]] = defaultdict(list)
        for row in rows:
            if row.receiver.name in self._ports.inputs(row.receiver.operator):
                by_operator[row.receiver.operator].append(row)
        for operator, some in by_operator.items():
            taken = self._with_records(sender, some, events) if is_dispatcher(operator) else some
            self._received(operator, sender, taken, events)

    def _taken(self, ask: Callable[..., Iterable[_Row]], most: int, *of: Any) -> list[_Row]:
        if not most:
            return []
        self._log.most_rows = most
        rows = list(islice(ask(*of), most))
        self._log.most_rows = None
        return rows

    def _with_records(self, sender: Port, rows: Iterable[Delivered], events: Mapping[int, int]) -> list[Delivered]:
        """The rows of a Dispatcher, but those of events without records: it sends on no more than how far time has come."""
        found, empty = [], self._empty(sender, events)
        for row in rows:
            if row.event_id in empty and row.status is Status.DONE:
                self._add(row, Use.NO_RECORDS, events[row.event_id])
            else:
                found.append(row)
        return found

    def _empty(self, port: Port, events: Iterable[int]) -> set[int]:
        headers = self._log.headers(port.operator, port.name, list(events))
        return {number for number, header in headers if header.kind is Kind.DATA and not header.records}

    def _received(self, operator: str, sender: Port, rows: Iterable[Delivered], events: Mapping[int, int]) -> None:
        of_set = {row.inset_id: row.event_id for row in rows if row.inset_id is not None}
        # Of all ports, which asks for no order: of the million outputs of an Input Set, the first ones are enough.
        outputs = self._taken(self._log.outputs_of, self._outputs, operator, of_set) if of_set else []
        self._outputs -= len(outputs)
        is_cut = bool(of_set) and not self._outputs
        self.is_cut = self.is_cut or is_cut
        recorded = self._ports.recorded_outputs(operator)
        made = {inset_id for inset_id, port, _ in outputs if port in recorded}
        first_safe: int | None = None
        for row in rows:
            use = _use(row)
            # Something may have been made of an Input Set whose outputs were not asked for.
            if row.inset_id in made or (is_cut and use is Use.WITHOUT_OUTPUT):
                continue
            if use is Use.WITHOUT_OUTPUT:
                if first_safe is None:
                    first_safe = self._lost.first_safe(operator, sender)
                use = use if row.event_id >= first_safe else Use.LET_GO
            self._add(row, use, events[row.event_id])
        if is_dispatcher(operator) or is_merger(operator):  # their outputs count as one with what they got
            onwards: dict[Port, dict[int, int]] = defaultdict(dict)
            for inset_id, port, number in outputs:
                onwards[port][number] = events[of_set[inset_id]]
            self._passed_on(onwards)

    def _passed_on(self, onwards: Mapping[Port, Mapping[int, int]]) -> None:
        for port, passed in onwards.items():
            if self._senders >= MOST_SENDERS or time.monotonic() >= self._end:
                self.is_cut = True
                return
            # A part without records says how far time has come: what becomes of it is not what became of the event.
            empty = self._empty(port, passed) if is_dispatcher(port.operator) else ()
            if parts := {number: event for number, event in passed.items() if number not in empty}:
                self.at(port, parts)

    def _add(self, row: Delivered, use: Use, event: int) -> None:
        passes = is_dispatcher(row.receiver.operator) or is_merger(row.receiver.operator)
        if passes and use is Use.WAITING:
            use = Use.UNUSED_YET
        for receiver in self._ports.authored.seen_receivers(row.receiver):
            one = self.found.setdefault((receiver.operator, use), Unmade(receiver.operator, use))
            one.events.add(event)
            if row.inset_id is not None and not passes:
                one.input_sets.add(InputSetNode(receiver.operator, row.inset_id, slot_of(row.receiver.operator)))


def _use(row: Delivered) -> Use:
    if row.inset_id is None:
        return Use.IGNORED if row.status is Status.DONE else Use.UNUSED_YET
    if row.status is Status.ASIDE:
        return Use.ASIDE
    return Use.WITHOUT_OUTPUT if row.status is Status.DONE else Use.WAITING


# --- outputs that retention may have removed --------------------------------------------------------------------------


class LostOutputs:
    """Whether retention may have removed what an operator made: it goes by port, and inputs may be kept for longer.

    Asks for at most `most_rows` events. In doubt, outputs count as lost.
    """

    def __init__(self, log: LineageLog, ports: CapturedPorts, run: Run, most_rows: int) -> None:
        self._log = log
        self._ports = ports
        self._left = most_rows
        self._lossy: dict[str, bool] = {}
        periods = [scope.retention_seconds for scope in run.spec.scopes if scope.retention_seconds is not None]
        self._shortest = min(periods, default=None)

    def first_safe(self, operator: str, sender: Port) -> int:
        """From which event of `sender` on everything is in the log that the operator has made of it."""
        if operator not in self._lossy:
            self._lossy[operator] = self._may_have_lost(operator)
        if not self._lossy[operator]:
            return 0
        if self._shortest is None:
            return LARGEST + 1
        since = time.time() - self._shortest + CLOCK_SECONDS  # an output is no older than what it was made of
        return next(iter(self._log.logged_since(sender, since, 1)), LARGEST + 1)

    def _may_have_lost(self, operator: str) -> bool:
        return any(
            self._misses(port, sent) or (sent > MOST_COUNTED and self._shortest is not None)
            for port, sent in self._log.sent_by(self._ports.recorded_outputs(operator)).items()
        )

    def _misses(self, port: Port, sent: int) -> bool:
        """Whether one of its first events is not in the log."""
        first = range(1, min(sent, MOST_COUNTED) + 1)
        self._left -= len(first)
        if self._left < 0:
            return True
        kinds = [header.kind for _, header in self._log.headers(port.operator, port.name, first)]
        return kinds.count(Kind.DATA) < len(first)
