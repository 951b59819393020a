"""What a simulated driver's threads hold: each step that a thread of the runtime takes is a step of its own here.

In what order a committer, a writer, a job or an epoch takes its steps is said by the protocol's state machines, which the
threads of `runtime/driver/` run as well. What is one call there, and could be cut off or overtaken in between, is two here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.logic import Output
from airflow_logio.protocol.values import Event, Kind
from airflow_logio.protocol.write_queue import WriteQueue, WriterKey
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.testing.simulator.codec import Codec
from airflow_logio.testing.simulator.plan import Batch


class SimulatedWriter(WriteQueue):
    """A writer, and what it knows of its last attempt."""

    tried = False
    """It has tried to apply what it has taken, and knows no outcome."""
    todo: Sequence[PendingWrite] = ()
    """Of a checkable system: what its answer said is still to be applied."""


class SimulatedWriters(dict[WriterKey, SimulatedWriter]):
    """A plan does not say which connections its operators write to: a writer is there when it is asked for."""

    def __missing__(self, key: WriterKey) -> SimulatedWriter:
        self[key] = SimulatedWriter(*key)
        return self[key]


@dataclass(slots=True)
class Source:
    """A reading thread: how far it has read, and what the group has not used yet."""

    action: int
    offset: int
    inbox: deque[Batch] = field(default_factory=deque)
    stored: str | None = None
    """Reference of the stored effect of a non-replayable read action; from the log, or just obtained."""
    obtained: tuple[str, int] | None = None
    """The effect is stored, and the group has not noted it: (reference, records)."""
    exhausted: bool = False
    handed_over: bool = False
    """The group knows that the stored effect is used whole; what follows is not asked yet."""


@dataclass(slots=True)
class Job:
    """A job of mode ``executors`` under way: its Input Sets, and their outputs once it has run."""

    insets: Sequence[str]
    results: list[tuple[str, Sequence[Output]]] | None = None


def serialized(effects: fx.Effects, codec: Codec) -> fx.Effects:
    """Bodies for payloads, before the transaction (as `runtime/driver/committer.py` does it with Arrow)."""
    done: fx.Effects = []
    for effect in effects:
        kind = type(effect)
        if kind is fx.LogEvent:
            assert isinstance(effect, fx.LogEvent)
            event = effect.event
            if event.body is None and event.kind is Kind.DATA:
                body = codec.encode(event.payload)
                sent = Event(event.sender, event.event_id, event.kind, event.records, None, body, event.about)
                effect = fx.LogEvent(sent, effect.deliveries, effect.kept, effect.held)  # noqa: PLW2901
        elif kind is fx.LogWrite:
            assert isinstance(effect, fx.LogWrite)
            if effect.body is None:
                body = codec.encode(effect.payload)
                effect = fx.LogWrite(  # noqa: PLW2901
                    effect.operator, effect.connection, effect.number, effect.header, effect.records, None, body
                )
        elif kind is fx.LogRead:
            effect = _read(effect, codec)  # noqa: PLW2901
        done.append(effect)
    return done


def _read(effect: Any, codec: Codec) -> fx.LogRead:
    return fx.LogRead(
        effect.operator,
        effect.connection,
        effect.action_id,
        effect.description,
        effect.inset_ids,
        effect.records,
        None,
        codec.encode(effect.payload),
    )
