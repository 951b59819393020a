"""The events of a port of the log, as the pipeline's author would number them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from airflow_logio.protocol.replicas import is_dispatcher, is_merger, slot_of
from airflow_logio.protocol.values import Port
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage.result import EventNode
from airflow_logio.store.port.lineage_port import LineageLog


def authored_events(
    log: LineageLog, ports: CapturedPorts, place: Port, event_ids: Collection[int]
) -> Mapping[int, EventNode]:
    """Number at a port of the log → the event that it counts as one with (as `as_authored` shows it).

    A part that a Dispatcher has made counts as the event that it is a part of, and an event that a Merger has passed on as
    the Merger's. Other events inside of a replicated group keep the numbers of their slots. Events that retention has
    removed meanwhile are left out.
    """
    if is_dispatcher(place.operator):
        return _before_dispatcher(log, ports, place, event_ids)
    own = {number: EventNode(ports.authored.seen(place), number, slot=slot_of(place.operator)) for number in event_ids}
    if not ports.passes_on(place):
        return own
    return {**own, **dict(_behind_merger(log, ports, place, event_ids))}


def _before_dispatcher(
    log: LineageLog, ports: CapturedPorts, place: Port, event_ids: Collection[int]
) -> Mapping[int, EventNode]:
    inset_of = dict(log.input_sets_of(place, event_ids))
    event_of: dict[str, tuple[Port, int]] = {}
    for inset, _, sender, number in log.events_in(place.operator, set(inset_of.values())):
        event_of[inset] = sender, number
    whole = {number: event_of[inset] for number, inset in inset_of.items() if inset in event_of}
    senders = {sender for sender, _ in whole.values()}  # a Dispatcher has one input
    named = {
        sender: authored_events(log, ports, sender, {number for at, number in whole.values() if at == sender})
        for sender in senders
    }
    return {part: named[sender][number] for part, (sender, number) in whole.items() if number in named[sender]}


def _behind_merger(
    log: LineageLog, ports: CapturedPorts, place: Port, event_ids: Collection[int]
) -> Iterator[tuple[int, EventNode]]:
    """Without the events that the Merger has not taken yet."""
    taken = [
        (number, receiver.operator, inset)
        for number, receiver, inset in log.uses_of(place, event_ids)
        if is_merger(receiver.operator)
    ]
    for merger in {operator for _, operator, _ in taken}:
        insets = {inset for _, operator, inset in taken if operator == merger}
        merged = {
            inset: EventNode(ports.authored.seen(sender), number)
            for inset, sender, number in log.outputs_of(merger, insets)
        }
        yield from (
            (number, merged[inset]) for number, operator, inset in taken if operator == merger and inset in merged
        )
