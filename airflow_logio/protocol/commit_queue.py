"""Group commit as a state machine (design D3): what goes into a transaction, what became of it, what it releases.

Pure. The committer's thread of a driver and the simulator take the steps that `CommitQueue.wants` names. A transaction is
committed before anything of it leaves the group: its write actions, its events, the read actions that it starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from airflow_logio.errors import EpochVoid, LogInconsistent, ProtocolViolation
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Port
from airflow_logio.protocol.write_queue import WriterKey
from airflow_logio.protocol.writes import PendingWrite

MAX_BYTES_PER_COMMIT = 32 * 2**20
MAX_STEPS_WAITING = 64


class CommitStep(Enum):
    """What the committer does with the transaction that it has taken."""

    COMMIT = auto()
    HAND_OVER = auto()
    """Release what is durable now."""


ORDER = (CommitStep.COMMIT, CommitStep.HAND_OVER)


class CommitAttempt:
    """One transaction until its outcome is known: commit `number` of epoch `epoch`."""

    def __init__(self, epoch: int, number: int) -> None:
        self._epoch = epoch
        self._number = number
        self._sent = False

    @property
    def is_in_doubt(self) -> bool:
        """It was sent, and no answer came: the fence row must be read, under its lock, before it is sent again."""
        return self._sent

    def send(self) -> None:
        """It is on its way to the log; its outcome is unknown until an answer comes."""
        self._sent = True

    def was_committed(self, epoch: int, commit_no: int) -> bool:
        """What the fence row says about it. False: nothing of it is in the log, so the same effects are sent again.

        Raises `EpochVoid` if the epoch was raised meanwhile, and `LogInconsistent` if the numbers do not fit.
        """
        if epoch != self._epoch:
            raise EpochVoid(f"epoch {self._epoch} is void, the log is at {epoch}")
        if commit_no not in (self._number, self._number - 1):
            raise LogInconsistent(
                f"the outcome of commit {self._number} is unknown, and the log is at commit {commit_no}"
            )
        self._sent = False
        return commit_no == self._number


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """Execute a read action that is in the log, starting after its first `offset` records (Algorithms 1 and 6)."""

    operator: str
    action_id: int
    action: Mapping[str, Any]
    offset: int = 0
    stored: str | None = None
    """Reference of its stored effect, if there is one: then the external system is not read."""
    sent_schema: str | None = None
    """In a recovery, the columns of a `RangeSource`: of its events that are in the log. Later orders leave them out."""


@dataclass(frozen=True, slots=True)
class DiscardOrder:
    """The last event of a read action is in the log: discard its stored effect (Algorithm 1 Step 2.d)."""

    operator: str
    action_id: int
    ref: str | None = None
    """Reference of the stored effect; None if the reader that gets this order has stored it itself."""


@dataclass(frozen=True, slots=True)
class ForgetOrder:
    """The event of a read action is in the log: tell the external system that it may forget what was read up to its end."""

    operator: str
    action_id: int
    action: Mapping[str, Any]


SourceOrder = ReadOrder | DiscardOrder | ForgetOrder


@dataclass(slots=True)
class HandOver:
    """What may leave a group when a transaction is durable."""

    writes: list[PendingWrite] = field(default_factory=list)
    """Write actions for the writers (Algorithm 5 Step 2), in order."""
    sources: list[SourceOrder] = field(default_factory=list)
    """Orders for the readers of sources, in sequence."""
    sent: list[Port] = field(default_factory=list)
    """Receivers of events, which may be asleep."""
    released: list[Port] = field(default_factory=list)
    """Output ports whose held events were released: their receivers may be asleep."""
    compared: list[WriterKey] = field(default_factory=list)
    """Writers whose markers were compared with the log: they may apply what they have taken."""
    drained: bool = False
    """The log says that the group drains."""


def hand_over(effects: fx.Effects) -> HandOver:
    """What a committed transaction releases."""
    found = HandOver()
    for effect in effects:
        match effect:
            case fx.LogEvent(deliveries=deliveries, held=False):
                found.sent += [delivery.receiver for delivery in deliveries if not delivery.fused]
            case fx.LogWrite():
                found.writes.append(pending_write(effect))
            case fx.Release(sender):
                found.released.append(sender)
            case fx.StartReadAction(operator, _, action_id, action):
                found.sources.append(ReadOrder(operator, action_id, action))
            case fx.ReadDone(operator, _, action_id):
                found.sources.append(DiscardOrder(operator, action_id))
            case fx.MarkCompared(operator, connection):
                found.compared.append((operator, connection))
            case fx.MayForget(operator, action_id, action):
                found.sources.append(ForgetOrder(operator, action_id, action))
            case fx.DrainGroup():
                found.drained = True
    return found


def pending_write(effect: fx.LogWrite) -> PendingWrite:
    """A write action as its writer gets it: with its body, or with the reference of a body that is not in memory."""
    body, ref = effect.body or b"", None if effect.body else effect.ref
    return PendingWrite(effect.operator, effect.connection, effect.number, effect.header, effect.records, body, ref)


class CommitQueue:
    """Steps in the order in which they were closed, and the transaction under way. One at a time, strictly in sequence."""

    def __init__(self) -> None:
        self._steps: deque[fx.Effects] = deque()
        self._left: list[CommitStep] = []
        """The remaining steps of the transaction under way, in order."""
        self.taken: fx.Effects = []
        """The effects of the transaction under way; the committer replaces them by their serialized form."""

    @property
    def steps(self) -> deque[fx.Effects]:
        """Closed steps that are in no transaction yet."""
        return self._steps

    @property
    def wants(self) -> CommitStep | None:
        """The next step of the transaction under way; None if there is none."""
        return self._left[0] if self._left else None

    def add(self, effects: fx.Effects) -> None:
        """Queue the effects of a step."""
        if effects:
            self._steps.append(effects)

    def is_idle(self) -> bool:
        """Nothing is queued or under way: a step that is closed now is committed at once."""
        return not self._steps and not self._left

    def is_full(self) -> bool:
        """So much is queued that the loop must wait: memory stays bounded."""
        return len(self._steps) >= MAX_STEPS_WAITING

    def take(self, size: Callable[[fx.Effect], int], *, most_steps: int = MAX_STEPS_WAITING) -> fx.Effects:
        """Put the next steps into one transaction: as many as there are, within `MAX_BYTES_PER_COMMIT`, at least one."""
        if self._left or not self._steps:
            raise ProtocolViolation("a transaction is taken while another one is under way, or while no step waits")
        taken: fx.Effects = []
        total = 0
        while self._steps and most_steps > 0 and total < MAX_BYTES_PER_COMMIT:
            step = self._steps.popleft()
            total += sum(map(size, step))
            taken += step
            most_steps -= 1
        self.taken = taken
        self._left = list(ORDER)
        return taken

    def committed(self) -> None:
        """The transaction is durable."""
        self._done(CommitStep.COMMIT)

    def peek(self) -> HandOver:
        """What the transaction releases, once it is durable."""
        self._expect(CommitStep.HAND_OVER)
        return hand_over(self.taken)

    def handed_over(self) -> None:
        """What was released has left the group."""
        self._done(CommitStep.HAND_OVER)

    def _expect(self, step: CommitStep) -> None:
        if self.wants is not step:
            raise ProtocolViolation(f"{step.name} is not the committer's next step; that is {self.wants}")

    def _done(self, step: CommitStep) -> None:
        self._expect(step)
        self._left.pop(0)
        if not self._left:
            self.taken = []

    def drop(self, *, joined: bool = False) -> None:
        """The epoch is void: what is queued must never be committed. `joined`: nothing is under way any more, either."""
        self._steps.clear()
        if joined:
            self._left, self.taken = [], []
