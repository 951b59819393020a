"""The order of a commit: from a closed step to what leaves the group (design D1 to D3).

This module owns that order. A driver's committer (`driver/committer.py`), the adapters of the log and the simulator run it
from here; none of them has an order of its own.

1. **Close.** The loop ends a step (`GroupLoop.close`). Its effects are values, and the states among them are serialized
   now. A state that was taken by reference would already hold events that this commit does not cover, and recovery would
   skip them.
2. **Take** (`CommitQueue.take`). What was closed while the last transaction was under way goes into one transaction, in the
   order of the steps. Transactions are strictly in sequence.
3. **Encode** (`CommitStep.ENCODE`). Bodies become bytes. Large ones are durable in the payload store before the transaction
   begins, so no row names a file that may be missing.
4. **Commit** (`CommitStep.COMMIT`). One transaction does what `TRANSACTION` lists: the fence first, by itself, because its
   row count decides. Then come the effects by part, rows before what is done to them.
5. **Learn the outcome** (`CommitAttempt`). A lost acknowledgement says neither yes nor no. The fence row, read under its
   lock on a new connection, does: it names the last commit. The same effects are sent again only if it is the one before.
6. **Hand over** (`CommitStep.HAND_OVER`, `HandOver`). Only now does anything leave the group: write actions go to their
   writers, comparisons are released, readers get their orders, and receivers are woken.

A refusal ends the order wherever it stands. `Fenced`: a newer incarnation has the group, and the driver exits. `EpochVoid`:
what is in memory is void, so the queue is dropped, all threads are joined, and the group rebuilds itself under a new epoch.
`LogInconsistent`: the log is not what this driver has written, which is a defect, and the group is parked.

Pure: the objects here say what is next, and have neither a thread nor a database.
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
from airflow_logio.protocol.writes import PendingWrite, WriterKey

MAX_BYTES_PER_COMMIT = 32 * 2**20
MAX_STEPS_WAITING = 64


class CommitStep(Enum):
    """What the committer does with the steps that it has taken."""

    ENCODE = auto()
    """Make bodies bytes, and large ones durable outside the log."""
    COMMIT = auto()
    """Apply the effects in one transaction, and learn its outcome."""
    HAND_OVER = auto()
    """Release what is durable now."""


ORDER = (CommitStep.ENCODE, CommitStep.COMMIT, CommitStep.HAND_OVER)


# --- inside the transaction -------------------------------------------------------------------------------------------


class LogPart(Enum):
    """What a transaction does to the log. `TRANSACTION` has the parts in order."""

    FENCE = auto()
    """Raise the commit number of the incarnation from n - 1 to n, in a round trip of its own. If no row is found, nothing
    else is written. It is fence, order, and key of the read-back at once (design D8)."""
    ROWS = auto()
    """Add rows: events, write and read actions, states at a trigger, lineage."""
    ASSIGN = auto()
    """Give events that were received their Input Sets (Algorithm 2 Step 2)."""
    DONE = auto()
    """Mark the events of Input Sets done (Algorithm 3 Step 4)."""
    ASIDE = auto()
    """Set Input Sets aside whose generation raised (quarantine)."""
    CONCLUDE = auto()
    """Change rows of earlier steps: actions done, events released, garbage collected, the state of the group."""
    STATES = auto()
    """Replace context and global state of each operator that changed; the last one of several counts."""
    COUNT = auto()
    """Raise the counters of ports."""


TRANSACTION = tuple(LogPart)
"""Safe for any concatenation of steps: a step finds the rows that earlier ones have added, and nothing more is assigned to an
Input Set that is done or set aside. States are last because they must agree with all of it: they hold the marks of everything
that was assigned."""

BEHIND_FENCE = TRANSACTION[1:]

_PARTS: Mapping[type, tuple[LogPart, ...]] = {
    fx.LogEvent: (LogPart.ROWS,),
    fx.LogWrite: (LogPart.ROWS,),
    fx.LogRead: (LogPart.ROWS,),
    fx.LogStateEvent: (LogPart.ROWS,),
    fx.RecordLineage: (LogPart.ROWS,),
    fx.StartReadAction: (LogPart.ROWS,),
    fx.Acknowledge: (
        LogPart.ROWS,
        LogPart.ASSIGN,
    ),  # the row that waits takes one Input Set, each further one gets its own
    fx.MarkDone: (LogPart.DONE,),
    fx.SetAside: (LogPart.ASIDE,),
    fx.CompleteReadAction: (LogPart.ROWS, LogPart.CONCLUDE),  # event r of Algorithm 1 Step 2.b
    fx.ReadDone: (LogPart.CONCLUDE,),
    fx.DropRead: (LogPart.CONCLUDE,),
    fx.WritesDone: (LogPart.CONCLUDE,),
    fx.Release: (LogPart.CONCLUDE,),
    fx.Collect: (LogPart.CONCLUDE,),
    fx.SweepShared: (LogPart.CONCLUDE,),
    fx.ExpireLineage: (LogPart.CONCLUDE,),
    fx.DrainGroup: (LogPart.CONCLUDE,),
    fx.FinishGroup: (LogPart.CONCLUDE,),
    fx.StoreState: (LogPart.STATES,),
    fx.CountEvents: (LogPart.COUNT,),
    fx.MarkCompared: (),  # the state that comes with it says so
    fx.MayForget: (),  # it is only handed over
}


def parts_of(effect: fx.Effect) -> tuple[LogPart, ...]:
    """The parts of a transaction in which an effect changes the log, in order."""
    return _PARTS[type(effect)]


# --- its outcome ------------------------------------------------------------------------------------------------------


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


# --- what it releases --------------------------------------------------------------------------------------------------


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
    """What may leave a group when a transaction is durable, in this order."""

    writes: list[PendingWrite] = field(default_factory=list)
    """Write actions for the writers (Algorithm 5 Step 2), in order."""
    compared: list[WriterKey] = field(default_factory=list)
    """Writers whose markers were compared with the log: they may apply what they have taken."""
    sources: list[SourceOrder] = field(default_factory=list)
    """Orders for the readers of sources, in sequence."""
    sent: list[Port] = field(default_factory=list)
    """Receivers of events, which may be asleep."""
    released: list[Port] = field(default_factory=list)
    """Output ports whose held events were released: their receivers may be asleep."""
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


# --- the committer ----------------------------------------------------------------------------------------------------


class CommitQueue:
    """Steps in the order in which they were closed, and the transaction under way. One at a time, strictly in sequence."""

    def __init__(self) -> None:
        self._steps: deque[fx.Effects] = deque()
        self._left: list[CommitStep] = []
        """The remaining steps of the transaction under way, in order."""
        self.taken: fx.Effects = []
        """The effects of the transaction under way."""

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

    def encoded(self, effects: fx.Effects) -> None:
        """The effects with bodies as bytes; large ones are durable outside the log."""
        self._done(CommitStep.ENCODE)
        self.taken = effects

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
