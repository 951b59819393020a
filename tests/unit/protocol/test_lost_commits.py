"""A log that loses commits while a conditional system keeps what it has applied (ADR-88).

Random histories over the loop, the writer's queue and the marker's rules that ship: drivers log write actions and apply
them, die anywhere, and the log is put back to any earlier commit between two of them. What has been applied is compared
with what the log says, number by number.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_logio.errors import Fenced, LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import pending_write
from airflow_logio.protocol.context import Context
from airflow_logio.protocol.external_rules import MarkerRow, compare, to_apply
from airflow_logio.protocol.logic import OperatorSpec, Output, Write
from airflow_logio.protocol.recovery import Recovered
from airflow_logio.protocol.values import Event, Port
from airflow_logio.protocol.writes import PendingWrite, WriteStep
from tests.support.logics import EachEvent
from tests.support.loops import Epoch

KEY = ("op", "wh")
HISTORIES = 400
IN = Port("op", "in")


class OneWrite(EachEvent):
    """Every event is one write action."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        yield Write("wh", {}, held, len(held))


@dataclass
class Log:
    """What commits have left. `number` counts the events that anybody has ever sent: no two histories send the same."""

    states: Mapping[str, bytes] = field(default_factory=dict)
    events: int = 0
    writes: tuple[PendingWrite, ...] = ()
    done: int = 0
    incarnation: int = 0

    def after(self, effects: fx.Effects) -> Log:
        found = Log(dict(self.states), self.events, self.writes, self.done, self.incarnation)
        for effect in effects:
            match effect:
                case fx.StoreState(operator, data):
                    found.states = {**found.states, operator: data}
                case fx.LogWrite():
                    found.writes = (*found.writes, pending_write(effect))
                case fx.WritesDone(last=last):
                    found.done = last
                case fx.Acknowledge():
                    found.events += 1
        return found


@dataclass
class World:
    """One history: the log with its past, the external system, and the driver that lives now."""

    seed: int
    past: list[Log] = field(default_factory=lambda: [Log()])
    rows: list[bytes] = field(default_factory=list)
    marker: MarkerRow = field(default_factory=MarkerRow)
    sent: int = 0
    lost: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.begin()

    @property
    def log(self) -> Log:
        return self.past[-1]

    def begin(self) -> None:
        """The next driver: its claim is in the log before it reads."""
        self.past.append(self.log.after([]))
        self.log.incarnation += 1
        self.token = self.log.incarnation
        log = self.log
        writes = tuple(write for write in log.writes if write.number > log.done)
        spec = OperatorSpec("op", ("in",), (), OneWrite(), stateless=True)
        self.epoch = Epoch(spec, compares=True).begun(recovered=Recovered(log.states, (), (), writes))
        self.writer = self.epoch.writers[KEY]

    def die(self) -> None:
        """And sometimes the log is another one when the next driver comes."""
        if self.lost < 2 and self.random.random() < 0.3:
            self.lost += 1
            del self.past[self.random.randrange(1, len(self.past)) + 1 :]
        self.begin()

    def step(self) -> None:
        getattr(self, self.random.choice(["observe", "observe", "commit", "write", "write", "write", "die"]))()

    def observe(self) -> None:
        self.sent += 1
        mark = self.epoch.loop.protocol.operators["op"].context.mark("in")
        self.epoch.loop.deliver(IN, Event(Port("src", "out"), mark + 1, records=1, payload=[self.sent]), 0.0)
        self.epoch.loop.close()

    def commit(self) -> None:
        self.epoch.loop.close()
        if not self.epoch.commits.is_idle():
            self.past.append(self.log.after(self.epoch.commit()))

    def write(self) -> None:
        """One step of the writer."""
        writer, loop = self.writer, self.epoch.loop
        if writer.wants is None and writer.pending:
            writer.take(self.random.randint(1, 3))
        elif writer.wants is WriteStep.COMPARE:
            assert writer.log_end is not None
            compare(*KEY, self.token, self.marker, writer.log_end)
            loop.compared(writer.compared(), 0.0)
        elif writer.wants is WriteStep.APPLY:
            self.apply(writer.taken)
            writer.applied()
        elif writer.wants is WriteStep.REPORT:
            loop.applied(writer.report(), 0.0)

    def apply(self, taken: list[PendingWrite]) -> None:
        todo = to_apply(*KEY, self.token, taken, self.marker)
        if todo:
            self.rows += [write.body for write in todo]
            self.marker = MarkerRow(todo[-1].number, self.token)

    def settle(self) -> None:
        """What the log lacks comes again, in other words; nothing fails any more, and everything is done."""
        self.observe()
        while not (self.epoch.commits.is_idle() and self.writer.is_idle() and not self.epoch.loop.has_step):
            self.commit()
            self.write()


def told(seed: int) -> str:
    """How a history ends: ``exact``, ``parked``, or ``wrong``, which was not noticed."""
    world = World(seed)
    try:
        for _ in range(world.random.randint(10, 80)):
            world.step()
        world.settle()
    except (LogInconsistent, Fenced):
        assert world.lost, f"history {seed}: a log that has lost nothing is refused"
        return "parked"
    return "exact" if world.rows == [write.body for write in world.log.writes] else "wrong"


def test_lost_commits_are_noticed_before_anything_is_written_whatever_dies_first() -> None:
    endings = [told(seed) for seed in range(HISTORIES)]
    assert "wrong" not in endings, f"history {endings.index('wrong')}"
    assert min(endings.count("exact"), endings.count("parked")) > HISTORIES // 20


def test_a_comparison_with_what_is_pending_when_a_driver_begins_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more driver between the loss and the first attempt, and its own numbers hide the loss."""

    def forgetful(self: Context) -> None:
        self.uncompared = {connection: number - 1 for connection, number in self.next_write.items()}

    monkeypatch.setattr(Context, "reopen", forgetful)
    assert "wrong" in map(told, range(HISTORIES))
