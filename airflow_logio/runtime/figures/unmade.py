"""What receivers have done with events from which they have made nothing (so far): lineage leads nowhere there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

from airflow_logio.protocol.replicas import is_dispatcher, is_merger, slot_of
from airflow_logio.protocol.values import Port, Status
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage.queries import AnyPort
from airflow_logio.store.lineage.result import InputSetNode
from airflow_logio.store.lineage_port import Delivered, LineageLog
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import Run


class Use(StrEnum):
    """What an operator has done with an event of which it has made nothing."""

    UNUSED_YET = "unused_yet"
    """It has not processed the event."""
    WAITING = "waiting"
    """The Input Set is not complete, or not generated."""
    ASIDE = "aside"
    """The Input Set is quarantined."""
    WITHOUT_OUTPUT = "without_output"
    """The Input Set was generated, and nothing was made on a port of a lineage scope."""
    IGNORED = "ignored"
    """No Input Set uses the event."""


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
    """What has become of events at their receivers in lineage scopes, apart from what was made of them; and whether there may
    be more of that.

    It takes at most `most_rows` rows of each statement. Raises `LineageUnknown`, `LogUnavailable`.
    """
    ports = CapturedPorts(run)
    begin = ports.checked(port)
    with store.lineage(run) as log:
        log.most_rows = most_rows
        looking = _Looking(log, ports, most_rows)
        looking.at(begin, {number: number for number in event_ids})
    return list(looking.found.values()), looking.is_cut


class _Looking:
    def __init__(self, log: LineageLog, ports: CapturedPorts, most_rows: int) -> None:
        self._log = log
        self._ports = ports
        self._most_rows = most_rows
        self.found: dict[tuple[str, Use], Unmade] = {}
        self.is_cut = False

    def at(self, sender: Port, events: Mapping[int, int]) -> None:
        """`events`: number at this port → the event that was asked for, which it counts as one with."""
        rows = list(islice(self._log.deliveries_of(sender, events), self._most_rows))
        self.is_cut = self.is_cut or len(rows) == self._most_rows
        by_operator: dict[str, list[Delivered]] = defaultdict(list)
        for row in rows:
            if row.receiver.name in self._ports.inputs(row.receiver.operator):
                by_operator[row.receiver.operator].append(row)
        for operator, some in by_operator.items():
            self._received(operator, some, events)

    def _received(self, operator: str, rows: Iterable[Delivered], events: Mapping[int, int]) -> None:
        of_set = {row.inset_id: row.event_id for row in rows if row.inset_id is not None}
        # Of all ports, which asks for no order: of the million outputs of an Input Set, the first ones are enough.
        outputs = list(islice(self._log.outputs_of(operator, of_set), self._most_rows))
        is_cut = len(outputs) == self._most_rows
        self.is_cut = self.is_cut or is_cut
        recorded = self._ports.recorded_outputs(operator)
        made = {inset_id for inset_id, sender, _ in outputs if sender in recorded}
        for row in rows:
            use = _use(row)
            # Something may have been made of an Input Set whose outputs were not asked for.
            if row.inset_id not in made and not (is_cut and use is Use.WITHOUT_OUTPUT):
                self._add(row, use, events[row.event_id])
        if is_dispatcher(operator) or is_merger(operator):  # their outputs count as one with what they got
            onwards: dict[Port, dict[int, int]] = defaultdict(dict)
            for inset_id, sender, number in outputs:
                onwards[sender][number] = events[of_set[inset_id]]
            for sender, passed in onwards.items():
                self.at(sender, passed)

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
