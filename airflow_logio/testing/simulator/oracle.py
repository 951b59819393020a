"""The oracle compares what a schedule left behind with what it must have left: event by event, or record by record.

Where groups are replicated, chance decides which slot gets what, in which order the Merger passes it on, how many events
there are, and their numbers. The records at every destination, and the records that they were made from, must not depend on
that: Dispatchers, Mergers and slots are collapsed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

from airflow_logio.protocol.replicas import base_operator
from airflow_logio.protocol.values import Port
from airflow_logio.testing.memory_log.tables import Tables
from airflow_logio.testing.simulator.codec import Codec
from airflow_logio.testing.simulator.plan import Logged, Observed, Pair, Scenario

# --- event by event ---------------------------------------------------------------------------------------------------


def lineage_of(tables: Tables) -> frozenset[Pair]:
    """EVENT_LINEAGE joined with EVENT_LOG: which input event went into which output event."""
    inputs: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for row in tables.events.rows.values():
        if row.inset_id is not None and row.rec_port is not None:
            port = f"{row.receiver}.{row.rec_port}"
            inputs.setdefault((row.receiver, row.inset_id), []).append((port, row.body.event_id))
    return frozenset(
        (port, event_id, str(sender), output)
        for _, sender, output, inset_id in tables.lineage
        for port, event_id in inputs.get((sender.operator, inset_id), ())
    )


def aside_of(tables: Tables) -> frozenset[tuple[str, str]]:
    """(operator, Input Set) of each quarantined Input Set."""
    return frozenset((operator, inset_id) for _, operator, inset_id in tables.quarantine)


def unordered(
    observed: Observed,
    logged: Logged,
    senders: Mapping[Port, Port],
    codec: Codec,
) -> Observed:
    """The same without what late Input Sets change: the order of events, and the numbers that follow from it.

    Events are numbered by their contents, so events with the same contents count as one. Ends of streams are left out.
    """
    by_content = partial(_content, codec)
    ranks = {
        name: {key: rank for rank, key in enumerate(sorted({by_content(body) for body in bodies if body}), start=1)}
        for name, bodies in observed.ports.items()
    }

    def number(port: str, event_id: int) -> int:
        """0 for an event whose body is no longer in the log."""
        body = logged.get((port, event_id)) or observed.expired.get((port, event_id))
        return ranks.get(port, {}).get(by_content(body), 0) if body else 0

    sender_of = {str(receiver): str(sender) for receiver, sender in senders.items()}
    expired = {(port, number(port, event_id)): None for port, event_id in observed.expired}
    pairs = (
        (into, number(sender_of[into], event_id), port, number(port, made))
        for into, event_id, port, made in observed.lineage
    )
    return replace(
        observed,
        ports={name: sorted(filter(None, bodies), key=by_content) for name, bodies in observed.ports.items()},
        writes={name: sorted(bodies, key=by_content) for name, bodies in observed.writes.items()},
        lineage=frozenset(pair for pair in pairs if pair[2:] not in expired),
        aside=frozenset((name, f"{n} Input Sets") for name, n in Counter(name for name, _ in observed.aside).items()),
        expired=expired,
    )


def _content(codec: Codec, body: bytes) -> str:
    return repr(codec.comparable(body))


def compare(scenario: Scenario, observed: Observed, reference: Observed | None) -> str:
    """What is wrong, in one sentence; empty if nothing is. Without a reference, checks only what the scenario expects."""
    codec = scenario.codec
    if scenario.expected is not None and reference is None:
        expected = scenario.expected()
        ports = {name: [codec.encode(payload) for payload in events] for name, events in expected.ports.items()}
        writes = {name: [codec.encode(payload) for payload in actions] for name, actions in expected.writes.items()}
        # The end of a stream has no body.
        streams = {name: [body for body in observed.ports.get(name, ()) if body] for name in ports}
        wrong = _sequences("port", ports, streams, codec)
        wrong = wrong or _sequences("writer", writes, {name: observed.writes.get(name, ()) for name in writes}, codec)
        if not wrong and expected.aside != observed.aside:
            wrong = f"quarantined are {sorted(observed.aside)} instead of {sorted(expected.aside)}"
        return wrong or ("" if expected.lineage is None else _lineage(expected.lineage, observed.lineage))
    wrong = ""
    if scenario.deterministic and reference is not None:
        wrong = _sequences("port", reference.ports, observed.ports, codec)
        wrong = wrong or _sequences("writer", reference.writes, observed.writes, codec)
        kept = frozenset(pair for pair in reference.lineage if (pair[2], pair[3]) not in observed.expired)
        wrong = wrong or _lineage(kept, observed.lineage)
        if not wrong and reference.aside != observed.aside:
            wrong = f"quarantined are {sorted(observed.aside)} instead of {sorted(reference.aside)}"
    judged = scenario.deterministic and reference is not None  # a result equal to one already judged needs no judge
    if not wrong and not judged and scenario.judge is not None:
        wrong = "; ".join(scenario.judge(observed, codec))
    return wrong


def _sequences(
    kind: str, expected: Mapping[str, Sequence[bytes]], found: Mapping[str, Sequence[bytes]], codec: Codec
) -> str:
    if expected == found:
        return ""
    for name in sorted(set(expected) | set(found)):
        wanted, got = expected.get(name, ()), found.get(name, ())
        if len(wanted) != len(got):
            return f"{kind} {name} has {len(got)} events instead of {len(wanted)}{_first(wanted, got, codec)}"
        if difference := _first(wanted, got, codec):
            return f"{kind} {name}{difference}"
    return ""


def _first(wanted: Sequence[bytes], got: Sequence[bytes], codec: Codec) -> str:
    for number, (one, other) in enumerate(zip(wanted, got, strict=False), start=1):
        if one != other and codec.comparable(one) != codec.comparable(other):
            return f"; number {number} is {_shown(other, codec)} instead of {_shown(one, codec)}"
    return ""


def _shown(body: bytes, codec: Codec) -> Any:
    text = str(codec.decode(body)) if body else "nothing"
    return text if len(text) < 100 else text[:100] + "..."


def _lineage(expected: frozenset[Pair], found: frozenset[Pair]) -> str:
    if expected == found:
        return ""
    missing, extra = sorted(expected - found), sorted(found - expected)
    parts = [f"lacks {_pair(missing[0])}"] if missing else []
    parts += [f"has {_pair(extra[0])} in excess"] if extra else []
    return f"lineage {' and '.join(parts)} ({len(missing)} missing, {len(extra)} in excess)"


def _pair(pair: Pair) -> str:
    return f"event {pair[1]} of {pair[0]} → event {pair[3]} of {pair[2]}"


# --- record by record -------------------------------------------------------------------------------------------------


Name = tuple[str, int]
"""(output port, event_id)"""
Made = tuple[str, frozenset[str], str, frozenset[str]]
"""(output port, records, output port, records): each of the first records went into each of the second."""


@dataclass(frozen=True)
class Records:
    """A run as its records: how often each record occurs, per port and per writer as their author named them."""

    ports: Mapping[str, Counter[str]]
    sent_on: Mapping[str, tuple[str, Counter[str]]]
    """Dispatcher or Merger → (the port whose records it passes on, what it has sent)."""
    in_order: Mapping[str, Sequence[Sequence[str]]]
    """Port or writer → the records of its events, one event after the other. In a replicated pipeline, only ordered Mergers
    and the writers behind them."""
    writes: Mapping[str, Counter[str]]
    lineage: frozenset[Made]
    changed: tuple[str, ...]
    """Dispatchers and Mergers that have sent records that they had not received."""
    aside: frozenset[str]
    """Operators with quarantined Input Sets."""
    is_whole: bool
    """No lineage has expired."""

    @cached_property
    def events_of(self) -> Mapping[tuple[str, str], tuple[Mapping[str, int], Mapping[str, int]]]:
        """(output port, output port) → record → the elements of `lineage` that have it, as bits of a number: of records that
        went into others, and of those that were made. So pairs of records need not be counted out."""
        found: dict[tuple[str, str], tuple[dict[str, int], dict[str, int]]] = {}
        for number, (start, inputs, end, outputs) in enumerate(self.lineage):
            for records, bits in zip((inputs, outputs), found.setdefault((start, end), ({}, {})), strict=True):
                for record in records:
                    bits[record] = bits.get(record, 0) | 1 << number
        return found

    @cached_property
    def traced(self) -> tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]]]:
        """(output port, record) of those that went into others, and of those that were made."""
        return (
            frozenset((start, one) for start, inputs, _, _ in self.lineage for one in inputs),
            frozenset((end, one) for _, _, end, outputs in self.lineage for one in outputs),
        )


class _Names:
    """The names of ports before replication. `authored` are the names of operators before replication."""

    def __init__(self, senders: Mapping[str, str], authored: Collection[str]) -> None:
        self._authored = authored
        self._sender_of: dict[str, str] = {}
        for receiver, sender in sorted(senders.items()):
            self._sender_of.setdefault(receiver.rpartition(".")[0], sender)

    def is_authored(self, operator: str) -> bool:
        return base_operator(operator) in self._authored

    def port(self, port: str) -> str:
        """The name of a port. That of a Dispatcher or Merger is the name of the port whose records it passes on."""
        operator, _, name = port.rpartition(".")
        if self.is_authored(operator):
            return f"{base_operator(operator)}.{name}"
        return self.port(self._sender_of[operator])


def records_of(
    observed: Observed,
    logged: Logged,
    senders: Mapping[str, str],
    authored: Collection[str],
    ordered: Collection[str],
    codec: Codec,
) -> Records:
    """`logged` is what the log still has. `senders` maps the actual input ports to output ports. `authored` are operators as
    their author named them; `ordered` are those whose events must keep their order.
    """
    names = _Names(senders, authored)
    ports: dict[str, Counter[str]] = {}
    sent_on: dict[str, tuple[str, Counter[str]]] = {}
    for port, bodies in observed.ports.items():
        operator = port.rpartition(".")[0]
        if "<" in port:
            continue  # the effects of side-effect reads: their number depends on the events
        sent = Counter(record for body in bodies if body for record in codec.records(body))
        if names.is_authored(operator):
            ports.setdefault(names.port(port), Counter()).update(sent)
        else:
            sent_on.setdefault(operator, (names.port(port), Counter()))[1].update(sent)
    behind = _behind(senders, ordered)
    in_order = {
        names.port(port): _in_order(bodies, codec)
        for port, bodies in observed.ports.items()
        if port.rpartition(".")[0] in ordered
    } | {
        writer: _in_order(bodies, codec)
        for writer, bodies in observed.writes.items()
        if writer.partition(">")[0] in behind
    }
    writes: dict[str, Counter[str]] = {}
    for writer, bodies in observed.writes.items():
        operator, _, connection = writer.partition(">")
        found = Counter(record for body in bodies if body for record in codec.records(body))
        writes.setdefault(f"{base_operator(operator)}>{connection}", Counter()).update(found)
    lineage, changed = _record_lineage(observed, logged, senders, names, codec)
    aside = frozenset(base_operator(operator) for operator, _ in observed.aside)
    return Records(ports, sent_on, in_order, writes, lineage, changed, aside, not observed.expired)


def _in_order(bodies: Iterable[bytes], codec: Codec) -> list[Sequence[str]]:
    return [records for body in bodies if body and (records := codec.records(body))]


def _behind(senders: Mapping[str, str], operators: Collection[str]) -> set[str]:
    """Operators that get all their events from these, on one port. Events of a Merger in their group are not logged."""
    ports = Counter(receiver.rpartition(".")[0] for receiver in senders)
    return {
        name
        for receiver, sender in senders.items()
        if sender.rpartition(".")[0] in operators and ports[name := receiver.rpartition(".")[0]] == 1
    }


def _record_lineage(
    observed: Observed, logged: Logged, senders: Mapping[str, str], names: _Names, codec: Codec
) -> tuple[frozenset[Made], tuple[str, ...]]:
    @cache
    def records(name: Name) -> Collection[str]:
        body = logged.get(name) or observed.expired.get(name)
        return codec.records(body) if body else ()

    @cache
    def distinct(name: Name) -> frozenset[str]:
        return frozenset(records(name))

    found, changed = set[Made](), set[str]()
    for into, event_id, port, made in observed.lineage:
        source, operator = (senders[into], event_id), port.rpartition(".")[0]
        if not names.is_authored(operator):
            if Counter(records((port, made))) - Counter(records(source)):
                changed.add(operator)
            continue
        if (inputs := distinct(source)) and (outputs := distinct((port, made))):
            found.add((names.port(source[0]), inputs, names.port(port), outputs))
    return frozenset(found), tuple(sorted(changed))


def difference(wanted: Records, found: Records) -> str:
    """What is wrong with a run of the replicated pipeline, in one sentence; empty if nothing is.

    An event of the plain pipeline is made from all records of its Input Sets; an event of a slot, only from those of its
    keys. So the lineage of a slot's event is part of the plain one, and every record that had lineage must still have some.
    """
    for kind, mine, others in (("port", found.ports, wanted.ports), ("writer", found.writes, wanted.writes)):
        for name in sorted(set(others) if kind == "writer" else set(mine) & set(others)):
            if wrong := _counts(mine.get(name, Counter()), others[name]):
                return f"{kind} {name} {wrong}"
    for operator, (port, sent) in sorted(found.sent_on.items()):
        if port in wanted.ports and (wrong := _counts(sent, wanted.ports[port])):
            return f"{operator}, which sends on {port}, {wrong}"
    for port, events in sorted(found.in_order.items()):
        if port in wanted.in_order and events != wanted.in_order[port]:
            return f"events of {port} have lost their order"
    if found.changed:
        return f"{', '.join(found.changed)}: events have records that those they were made of have not"
    if found.aside != wanted.aside:
        return f"Input Sets of {sorted(found.aside)} are quarantined instead of those of {sorted(wanted.aside)}"
    return _made(wanted, found)


def _made(wanted: Records, found: Records) -> str:
    if extra := sorted(_excess(wanted, found)):
        start, one, end, other = extra[0]
        return f"lineage has {one} of {start} → {other} of {end} in excess ({len(extra)} such in all)"
    if not found.is_whole:
        return ""
    for before, now in zip(wanted.traced, found.traced, strict=True):
        if lost := before - now:
            port, record = min(lost)
            return f"record {record} of {port} has no lineage ({len(lost)} in all)"
    return ""


def _excess(wanted: Records, found: Records) -> Iterator[tuple[str, str, str, str]]:
    """Pairs of records where one went into the other and should not; one pair for all that are wrong in the same way."""
    for start, inputs, end, outputs in found.lineage:
        into, made = wanted.events_of.get((start, end), ({}, {}))
        of_inputs = {into.get(one, 0): one for one in sorted(inputs, reverse=True)}
        of_outputs = {made.get(one, 0): one for one in sorted(outputs, reverse=True)}
        for bits, one in of_inputs.items():
            yield from ((start, one, end, other) for others, other in of_outputs.items() if not bits & others)


def _counts(found: Counter[str], wanted: Counter[str]) -> str:
    missing, extra = wanted - found, found - wanted
    if not missing and not extra:
        return ""
    parts = [f"lacks {next(iter(missing))}"] if missing else []
    parts += [f"has {next(iter(extra))} in excess"] if extra else []
    return f"{' and '.join(parts)} ({missing.total()} records missing, {extra.total()} in excess)"
