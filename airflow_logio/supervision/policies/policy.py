"""What a policy is given, what it answers, and the rules that hold for all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_logio.errors import ConfigurationError
from airflow_logio.store.records.driver_records import Load

AT_REST = 0.95
"""Share of its time for which a replica waits that has nothing to do."""


@dataclass(frozen=True, slots=True)
class Change:
    """The last change of the number of replicas, by any requester."""

    replicas: int
    at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One look at a replicated group."""

    group: str
    at: float
    """When it was looked at, in seconds since the epoch, by the same clock as `last`."""
    replicas: int
    """Replicas in use: they own slots, or will get some."""
    least: int
    most: int
    """The author's bounds."""
    loads: Mapping[str, Load | None] = field(default_factory=dict)
    """Load of each replica in use; None for one whose driver has not reported yet."""
    arrivals: float | None = None
    """Records per second that were sent to the slots of the group; None if that is not known."""
    backlog: int = 0
    """Records that were sent to the slots and that no replica has taken."""
    events: int = 0
    """The events that hold them; some have no records, and are work nevertheless."""
    ended: bool = False
    """The senders of the group have finished. If the group has not, it takes what is left, and the end of its streams."""
    last: Change | None = None

    @property
    def has_work(self) -> bool:
        """Whether anything arrives, waits, or is being worked on. True if that is unknown for a replica in use."""
        return bool(self.backlog or self.events or self.arrivals or self.ended) or not self.at_rest

    @property
    def at_rest(self) -> bool:
        """Whether the replicas in use, if any, have all done nothing in their last windows, and have nothing to do."""
        known = self.known
        return all(name in known and _rests(known[name]) for name in self.loads)

    @property
    def known(self) -> dict[str, Load]:
        """Windows of those replicas that have told of one."""
        return {name: load for name, load in self.loads.items() if load is not None and load.seconds > 0}

    def since_change(self) -> float:
        """Seconds since the last change; infinite if there was none."""
        return float("inf") if self.last is None else self.at - self.last.at


@dataclass(frozen=True, slots=True)
class Decision:
    """How many replicas there are to be, and why, with the figures that decided it."""

    replicas: int
    sentence: str

    def __post_init__(self) -> None:
        if self.replicas < 0:
            raise ValueError(f"a policy decided for {self.replicas} replicas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(ABC):
    """Decides how many replicas a group is to have, from figures alone: the same figures, the same decision.

    The bounds of the group's author hold for every policy, and none of them leaves a group that has work without a replica.

    :param minimum: never fewer replicas; by default as few as the author allows.
    :param maximum: never more; by default as many as the author allows.
    """

    minimum: int | None = None
    maximum: int | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigurationError`."""
        self.check()

    def check(self) -> None:
        """Whether the parameters make sense. Raises `ConfigurationError`."""
        for name in ("minimum", "maximum"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                self.refuse(f"{name} is {value!r}; give a number of replicas, from 0 on")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            self.refuse(f"minimum is {self.minimum}, more than maximum {self.maximum}")

    def decide(self, figures: Figures) -> Decision:
        """The number of replicas that the group is to have now, which may be the one that it has."""
        wanted = self.wanted(figures)
        low, high = self._bounds(figures)
        replicas = min(max(wanted.replicas, low), high)
        if replicas == wanted.replicas:
            return wanted
        if wanted.replicas == 0 and replicas == 1 and figures.has_work:
            return Decision(1, f"{wanted.sentence}; one replica because {self._work(figures)}")
        return Decision(replicas, f"{wanted.sentence}; {replicas} because the bounds are {low} to {high}")

    @abstractmethod
    def wanted(self, figures: Figures) -> Decision:
        """The decision before the bounds are applied."""

    def refuse(self, sentence: str) -> None:
        """Raises `ConfigurationError`."""
        raise ConfigurationError(f"{type(self).__name__}: {sentence}")

    def _bounds(self, figures: Figures) -> tuple[int, int]:
        high = min(figures.most, figures.most if self.maximum is None else self.maximum)
        low = max(figures.least, self.minimum or 0, 1 if figures.has_work else 0)
        # The author's bounds are those that a request must keep to.
        high = max(high, figures.least)
        return min(low, high), high

    @staticmethod
    def _work(figures: Figures) -> str:
        if figures.events or figures.backlog:
            return f"{figures.events:,} event(s) wait"
        if figures.arrivals:
            return f"{figures.arrivals:,.1f} record(s)/s arrive"
        return "the stream has ended, and the group has to" if figures.ended else "it was not idle in the last seconds"


def _rests(load: Load) -> bool:
    return load.idle >= AT_REST and not load.events_in


def above_zero(policy: Policy, *names: str) -> None:
    """Check parameters that must be numbers above 0. Raises `ConfigurationError`."""
    for name in names:
        value = getattr(policy, name)
        if not _is_number(value) or not 0 < value < float("inf"):
            policy.refuse(f"{name} is {value!r}; give a number above 0")


def at_least_zero(policy: Policy, *names: str) -> None:
    """Check parameters that must be numbers from 0 on. Raises `ConfigurationError`."""
    for name in names:
        value = getattr(policy, name)
        if not _is_number(value) or not 0 <= value < float("inf"):
            policy.refuse(f"{name} is {value!r}; give a number from 0 on")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
