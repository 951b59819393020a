"""The oracle compares what a schedule left behind with what it must have left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_logio.protocol.values import Port
from airflow_logio.testing.memory_log.tables import Tables
from airflow_logio.testing.simulator.codec import Codec
from airflow_logio.testing.simulator.plan import Logged, Observed, Pair, Scenario


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
