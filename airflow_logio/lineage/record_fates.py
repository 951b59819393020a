"""What operators have done with the records that reached them, when such a record is missing further on (Section 7.3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import pyarrow as pa

from airflow_logio.lineage.dependence_rules import InputSetPart
from airflow_logio.lineage.event_columns import EventColumns
from airflow_logio.lineage.lineage_records import Elsewhere
from airflow_logio.lineage.record_values import Sought, holding
from airflow_logio.lineage.search_limits import Spent
from airflow_logio.protocol.replicas import is_dispatcher
from airflow_logio.protocol.values import Port, Status
from airflow_logio.store.lineage.authored_events import authored_events
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage.result import EventNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import Delivered, LineageLog
from airflow_logio.store.records.run_records import Run

LEAST_FATES = 20
"""Events whose fate is always told, even if the time is over."""


class Fate(StrEnum):
    """What an operator has done with a record that reached it."""

    UNUSED_YET = "unused_yet"
    """It has not processed the event."""
    WAITING = "waiting"
    """The Input Set is not complete, or not generated."""
    ASIDE = "aside"
    """The Input Set is quarantined."""
    IGNORED = "ignored"
    """No Input Set uses the event."""
    LEFT_OUT = "left_out"
    """The Input Set was generated, without the record that is sought."""
    MADE_SINCE = "made_since"
    """The Input Set was generated after its output was searched."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way from a port towards the one that was asked for: through one operator, that did not have the record behind it."""

    receiver: Port
    outputs: Mapping[Port, int]
    """Its output ports on the way, that were searched → the largest number that was looked at there."""
    every: Sequence[Port]
    """All its output ports from which the port that was asked for can be reached."""
    is_known: bool
    """All records of all these ports were searched, and none of them is what is sought."""


@dataclass(frozen=True, slots=True)
class Met:
    """An event with such records, and what an operator behind it has done with it."""

    event_id: int
    """On the port of the search."""
    operator: str
    """As the log names it."""
    inset_id: str | None
    fate: Fate
    made: tuple[EventNode, ...] = ()
    """What was made from the Input Set on the way to the port that was asked for, as its author numbers events."""
    error: str = ""
    """Why the Input Set is quarantined."""
    is_output_known: bool = True
    """All records behind the operator were searched, and none of them is what was sought."""


class RecordFates:
    """What has become of the events of one port that hold such records."""

    def __init__(self, store: LogStore, run: Run, load: Elsewhere | None, spent: Spent) -> None:
        self._store = store
        self._run = run
        self._ports = CapturedPorts(run)
        self._load = load
        self._spent = spent

    @cached_property
    def _errors(self) -> Mapping[tuple[str, str], str]:
        """(operator, Input Set) → why it is quarantined."""
        return {(one.operator, one.inset_id): one.error for one in self._store.quarantined(self._run.run_id)}

    def of(self, port: Port, values: Sought, found: Mapping[int, int], ways: Sequence[Way]) -> tuple[list[Met], bool]:
        """In the order of the events; and whether some may be missing, for want of time. Raises `SearchStopped`."""
        met: list[Met] = []
        is_cut = False
        with self._store.lineage(self._run) as log:
            rows = list(log.deliveries_of(port, found))
            for way in ways:
                some, is_less = self._on(way, port, values, [row for row in rows if row.receiver == way.receiver], log)
                met += some
                is_cut = is_cut or is_less
        # After that, for the log lends a search one connection at a time.
        met = [self._with_error(one) for one in met]
        return sorted(met, key=lambda one: one.event_id), is_cut

    def _with_error(self, met: Met) -> Met:
        if met.fate is not Fate.ASIDE:
            return met
        return replace(met, error=self._errors.get((met.operator, met.inset_id or ""), ""))

    def _on(
        self, way: Way, port: Port, values: Sought, rows: Sequence[Delivered], log: LineageLog
    ) -> tuple[list[Met], bool]:
        of_event: dict[int, list[Delivered]] = defaultdict(list)
        for row in rows:
            of_event[row.event_id].append(row)
        met: list[Met] = []
        for known, with_such in enumerate(self._delivered(way, port, values, of_event, log)):
            if (
                self._spent.is_late() and known >= LEAST_FATES
            ):  # asked at each event: the caller may have stopped waiting
                return met, True
            for row in with_such:  # each may be a question to the log
                if self._spent.is_late() and len(met) >= LEAST_FATES:
                    return met, True
                met.append(self._fate(row, way, log))
        return met, False

    def _delivered(
        self, way: Way, port: Port, values: Sought, rows: Mapping[int, Sequence[Delivered]], log: LineageLog
    ) -> Iterator[Sequence[Delivered]]:
        """For each event, the rows without an Input Set, or whose Input Set has such a record of it.

        Events that retention has removed meanwhile are left out.
        """
        rules = self._run.spec.operators[way.receiver.operator].rules
        insets = {row.inset_id for some in rows.values() for row in some if row.inset_id is not None}
        parts = {inset: InputSetPart.of(rules, inset) for inset in insets}
        assigned = {number for number, some in rows.items() if any(row.inset_id is not None for row in some)}
        yield from (some for number, some in rows.items() if number not in assigned)
        columns = dict.fromkeys([*values, *(name for part in parts.values() for name in part.columns)])
        events = [EventNode(port, number) for number in sorted(assigned)]
        for event, table in EventColumns(log, self._load).each_kept(events, tuple(columns)):
            some = rows[event.event_id]
            yield [one for one in some if one.inset_id is None or _has(one, values, parts[one.inset_id], table)]

    def _fate(self, row: Delivered, way: Way, log: LineageLog) -> Met:
        operator = row.receiver.operator
        if row.inset_id is None:
            fate = Fate.IGNORED if row.status is Status.DONE else Fate.UNUSED_YET
            return Met(row.event_id, operator, None, fate)
        if row.status is Status.ASIDE:
            return Met(row.event_id, operator, row.inset_id, Fate.ASIDE)
        if row.status is not Status.DONE:
            return Met(row.event_id, operator, row.inset_id, Fate.WAITING)
        names = [output.name for output in way.every]
        made = [(sender, number) for _, sender, number in log.outputs_of(operator, [row.inset_id], names)]
        is_new = any(number > way.outputs[sender] for sender, number in made if sender in way.outputs)
        fate = Fate.MADE_SINCE if is_new else Fate.LEFT_OUT
        named = tuple(self._named(made, log))
        return Met(row.event_id, operator, row.inset_id, fate, named, is_output_known=way.is_known)

    def _named(self, made: Sequence[tuple[Port, int]], log: LineageLog) -> Iterator[EventNode]:
        of_sender: dict[Port, list[int]] = {}
        for sender, number in made:
            of_sender.setdefault(sender, []).append(number)
        if any(is_dispatcher(sender.operator) for sender in of_sender):
            of_sender = dict([next(iter(of_sender.items()))])  # all are parts of one event
        for sender, ids in of_sender.items():
            events = authored_events(log, self._ports, sender, ids)
            yield from dict.fromkeys(events[number] for number in ids if number in events)


def _has(row: Delivered, values: Sought, part: InputSetPart, table: pa.Table) -> bool:
    """Whether the Input Set has such a record of the event."""
    inside = part.mask(row.receiver.name, row.event_id, table, table.num_rows)
    has = holding(table, values).to_numpy()
    return bool((has if inside is None else has & inside).any())
