"""The epochs of one incarnation: the order in which a driver starts, and starts over (Section 4).

Pure. A driver and the simulator take the step that `Life.wants` names. The fence comes first, then the log is read: by
then, what an earlier driver or epoch was about to commit is in the log, or never will be.
"""

from __future__ import annotations

from enum import Enum, auto

from airflow_logio.errors import ProtocolViolation


class LifeStep(Enum):
    """What the driver of a group does next."""

    OPEN = auto()
    """Read the fence row, and raise the epoch if its memory is void."""
    ASK_SLOTS = auto()
    """A replica asks which slots it owns. It asks after the fence, so a later move voids this epoch."""
    READ = auto()
    """Read the log (Algorithms 6 to 9)."""
    REBUILD = auto()
    """Build a new memory from what was read, with new threads."""
    RUN = auto()
    WAIT = auto()
    """A replica without slots waits until it gets one."""
    STOP = auto()
    """The epoch is void: join every thread, so that nothing from it can still reach the log or an external system."""
    HALT = auto()
    """The group was asked to halt: join every thread, then record the halt. What is in no transaction is read again later."""


START = (LifeStep.OPEN, LifeStep.ASK_SLOTS, LifeStep.READ, LifeStep.REBUILD)
"""The steps that begin every epoch."""


class Life:
    """Where a driver stands in this order. If `is_replica`, it asks for its slots."""

    def __init__(self, *, is_replica: bool = False) -> None:
        self._start = [step for step in START if is_replica or step is not LifeStep.ASK_SLOTS]
        self._left = list(self._start)
        self._then = LifeStep.RUN
        self.raises_epoch = False
        """The next `OPEN` raises the epoch."""

    @property
    def wants(self) -> LifeStep:
        """The next step."""
        return self._left[0] if self._left else self._then

    def done(self, step: LifeStep) -> None:
        """A step of the start is done. Raises `ProtocolViolation` if another step was due."""
        if self.wants is not step or not self._left:
            raise ProtocolViolation(f"a driver does {step.name}, but {self.wants.name} comes first")
        self._left.pop(0)
        if step is LifeStep.OPEN:
            self.raises_epoch = False

    def owns_nothing(self) -> None:
        """The replica has no slot: there is nothing to rebuild until its epoch is void."""
        self._left.clear()
        self._then = LifeStep.WAIT

    def void(self) -> None:
        """The memory of this epoch is void: a commit was refused, or a slot has moved."""
        self._left.clear()
        self._then = LifeStep.STOP

    def halt(self) -> None:
        """The group was asked to halt: nothing more is observed or closed."""
        self._left.clear()
        self._then = LifeStep.HALT

    def stopped(self) -> None:
        """Every thread is joined: the next epoch begins, and knows only what the log says."""
        self._left = list(self._start)
        self._then = LifeStep.RUN
        self.raises_epoch = True
