"""Retrying quarantined Input Sets: what changes in the stored states of the operators (pure).

When an Input Set of an operator that has ended is retried, the operator logs new events behind its end of stream. So that
end is taken back first, and with it the ends that followed downstream. An operator that has received the end forgets that
the port has ended; one that has not will receive a `Kind.RESUMED` in its place. Event ids continue; nothing that was sent
changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_logio.protocol.context import StoredState, decode_state, encode_state
from airflow_logio.protocol.values import Port


@dataclass(slots=True)
class Reopening:
    """New states, and the end-of-stream events that are taken back."""

    states: dict[str, bytes] = field(default_factory=dict)
    ends: list[tuple[Port, int]] = field(default_factory=list)
    concerned: set[str] = field(default_factory=set)
    """Operators whose drivers must not continue with what they have in memory: those above, and every receiver of an end
    that is taken back. A receiver may hold the end in memory without having logged its receipt."""


def reopen(
    states: Mapping[str, bytes], senders: Mapping[Port, Port], retried: Mapping[str, Iterable[str]]
) -> Reopening:
    """`states` are those of all operators, in topological order; `senders` maps input ports to output ports.

    `retried` maps operators to their quarantined Input Sets, which become triggered again, in order. Raises
    `LogInconsistent` for a state that cannot be read.
    """
    result = Reopening()
    taken_back: set[Port] = set()
    for operator, data in states.items():
        stored = decode_state(operator, data)
        changed = _retry(stored, retried.get(operator, ()))
        for receiver, sender in senders.items():
            if receiver.operator == operator and sender in taken_back and receiver.name in stored.context.ended:
                stored.context.ended.remove(receiver.name)
                changed = True
        if not changed:
            continue
        result.concerned.add(operator)
        if stored.context.finished:
            stored.context.finished = False
            stored.context.taken_back += 1
            for name, following in stored.context.next_event.items():
                taken_back.add(Port(operator, name))
                result.ends.append((Port(operator, name), following - 1))
        result.states[operator] = encode_state(stored.context, stored.state)
    result.concerned |= {receiver.operator for receiver, sender in senders.items() if sender in taken_back}
    return result


def _retry(stored: StoredState, insets: Iterable[str]) -> bool:
    wanted = set(insets)
    again = [inset_id for inset_id in stored.context.aside if inset_id in wanted]
    stored.context.aside = [inset_id for inset_id in stored.context.aside if inset_id not in wanted]
    stored.context.triggered += again
    return bool(again)
