"""The threads of a driver as state machines: each step that a thread of the runtime takes is a step of its own here.

Compare `committer.py`, `writer_threads.py`, `source_reader.py` and `jobs.py` in `runtime/driver/`: what is one call there,
and could be cut off or overtaken in between, is two steps here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.logic import Output
from airflow_logio.protocol.values import Event, Kind
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.testing.simulator.codec import Codec
from airflow_logio.testing.simulator.external_systems import WriterKey
from airflow_logio.testing.simulator.plan import Batch
from airflow_logio.testing.simulator.write_attempts import WriteAttempt


class At(Enum):
    """Where a thread stands."""

    IDLE = auto()
    TAKEN = auto()
    """It holds what it will do next."""
    UNKNOWN = auto()
    """It has tried, and knows no outcome."""
    DONE = auto()
    """It has done it, and told nobody."""


@dataclass(slots=True)
class Committer:
    """Steps in the order in which they were closed; those of one transaction; and how far it is."""

    queue: deque[fx.Effects] = field(default_factory=deque)
    at: At = At.IDLE
    taken: fx.Effects = field(default_factory=list)

    def is_idle(self) -> bool:
        return self.at is At.IDLE and not self.queue

    def take(self, steps: int, codec: Codec) -> None:
        """Group commit: the effects of some steps, in order, with bodies as bytes."""
        self.taken = []
        for _ in range(min(steps, len(self.queue))):
            expires = any(type(effect) is fx.ExpireLineage for effect in self.queue[0])
            if self.taken and expires:
                break  # the clock has a tick for every row: what this transaction logs would be old in it
            self.taken += serialized(self.queue.popleft(), codec)
            if expires:
                break
        self.at = At.TAKEN


@dataclass(slots=True, weakref_slot=True)
class Writer:
    """Write actions whose commit is done, in order, for one connection of one operator."""

    key: WriterKey
    pending: deque[PendingWrite] = field(default_factory=deque)
    at: At = At.IDLE
    taken: list[PendingWrite] = field(default_factory=list)
    todo: Sequence[PendingWrite] = ()
    """Of a checkable system: what its answer said is still to be applied."""
    attempt: WriteAttempt | None = None
    """Of a conditional system: the transaction under way."""
    outstanding: int = 0
    """Handed over, and their success not noted by the group."""

    def add(self, write: PendingWrite) -> None:
        self.pending.append(write)
        self.outstanding += 1

    def take(self, actions: int) -> None:
        self.taken = [self.pending.popleft() for _ in range(min(actions, len(self.pending)))]
        self.todo, self.attempt = (), None
        self.at = At.TAKEN

    def give_up(self) -> None:
        """The connection breaks: a transaction under way is rolled back."""
        if self.attempt is not None:
            self.attempt.end()
            self.attempt = None


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
