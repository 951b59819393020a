"""How many replicas a group is to have: pure policies, from figures to a number and a sentence that explains it.

They need neither Airflow nor the log; `airflow_logio.supervision.controller` reads the figures and makes the request.
`DS2` finds the number from true processing rates (Kalavri et al., OSDI 2018), `Threshold` from lag and load, `Schedule` from
the time of day.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta

from croniter import croniter

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
    """One look at a replicated group.

    :param group: name of the group.
    :param at: when it was looked at, in seconds since the epoch, by the same clock as `last`.
    :param replicas: replicas in use: they own slots, or will get some.
    :param least: the smallest number that the author allows.
    :param most: the largest one.
    :param loads: load of each replica in use; None for one whose driver has not reported yet.
    :param arrivals: records per second that were sent to the slots of the group; None if that is not known.
    :param backlog: records that were sent to the slots and that no replica has taken.
    :param events: the events that hold them; some have no records, and are work nevertheless.
    :param ended: the senders of the group have finished. If the group has not, it takes what is left, and the end of its
        streams.
    :param last: the last change of the number of replicas.
    """

    group: str
    at: float
    replicas: int
    least: int
    most: int
    loads: Mapping[str, Load | None] = field(default_factory=dict)
    arrivals: float | None = None
    backlog: int = 0
    events: int = 0
    ended: bool = False
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
    """How many replicas there are to be, and why.

    :param replicas: the number, at least 0.
    :param sentence: why, with the figures that decided it.
    """

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
        """The number of replicas that the group is to have now, which may be the one that it has.

        :param figures: what was seen of the group.
        """
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
        """The decision before the bounds are applied.

        :param figures: what was seen of the group.
        """

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


_WORD = re.compile(r"[A-Za-z]+")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")


@dataclass(frozen=True, slots=True)
class Schedule(Policy):
    """Holds the number of the entry whose time was the latest: ``Schedule({"0 8 * * 1-5": 4, "0 20 * * *": 0})``.

    Cron expressions of five fields, in UTC; of entries with the same time the last one counts. 0 is kept to once nothing is
    left to do: a group with work keeps one replica.

    :param entries: cron expression → replicas.
    :param minimum: never fewer replicas; by default as few as the author allows.
    :param maximum: never more; by default as many as the author allows.
    """

    entries: Mapping[str, int]
    _: KW_ONLY
    minimum: int | None = None
    maximum: int | None = None

    def check(self) -> None:
        Policy.check(self)
        if not isinstance(self.entries, Mapping) or not self.entries:
            self.refuse(f'entries are {self.entries!r}; give cron expressions and replicas, {{"0 8 * * 1-5": 4}}')
        for expression, replicas in self.entries.items():
            if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
                self.refuse(f"{expression!r} asks for {replicas!r}; give a number of replicas, from 0 on")
            self._check_expression(expression)

    def wanted(self, figures: Figures) -> Decision:
        now = datetime.fromtimestamp(figures.at, UTC)
        times = [(latest(expression, now), place, expression) for place, expression in enumerate(self.entries)]
        at, _, expression = max(times)
        replicas = self.entries[expression]
        return Decision(replicas, f"entry {expression!r} of {at:%Y-%m-%d %H:%M} UTC holds, which says {replicas}")

    def _check_expression(self, expression: str) -> None:
        fields = expression.split() if isinstance(expression, str) else []
        # Other words are extensions, such as `R` for another random time whenever it is asked for.
        words = {word.upper() for field in fields for word in _WORD.findall(field)}
        if len(fields) != 5 or words.difference(_DAYS, _MONTHS):
            self.refuse(f"{expression!r} is no cron expression of five fields, such as '0 8 * * 1-5'")
        try:
            latest(expression, datetime(2026, 1, 1, tzinfo=UTC))
        except ValueError as error:
            self.refuse(f"{expression!r} is no cron expression with a time to come: {error}")


def latest(expression: str, now: datetime) -> datetime:
    """The latest time of an expression that is not after `now`. Raises `ValueError`."""
    # The library looks strictly before the time that it is given, by the second.
    after = now.replace(microsecond=0) + timedelta(seconds=1)
    found: datetime = croniter(expression, after).get_prev(datetime)
    return found


SPARE = 0.95
"""A smaller group is chosen only if it would be less busy than this part of the upper limit. At the limit itself the next
measurement, or rounding alone, would make it larger again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold(Policy):
    """Goes up by `step` while the group lags or is busy, and down by at most `step` while it is neither.

    Between the upper and the lower limits nothing changes. A smaller group is not chosen either if the same work would keep
    it about as busy as `up_busy` (95 % of it), or busier: so a constant load makes it go neither up and down, nor down and
    up, for ever.

    :param minimum: never fewer replicas; by default as few as the author allows.
    :param maximum: never more; by default as many as the author allows.
    :param up_lag_seconds: more replicas when the backlog takes longer than this at the rate of the last seconds.
    :param down_lag_seconds: fewer only if it takes less than this.
    :param up_busy: more replicas when they are busy for a larger share of their time, on average.
    :param down_busy: fewer only if they are busy for less.
    :param step: by how many replicas at a time.
    :param cool_down_seconds: nothing is changed so soon after a change.
    """

    up_lag_seconds: float = 30.0
    down_lag_seconds: float = 5.0
    up_busy: float = 0.8
    down_busy: float = 0.4
    step: int = 1
    cool_down_seconds: float = 60.0

    def check(self) -> None:
        Policy.check(self)
        at_least_zero(self, "down_lag_seconds", "down_busy", "cool_down_seconds")
        above_zero(self, "up_lag_seconds", "up_busy")
        if self.down_lag_seconds >= self.up_lag_seconds:
            self.refuse(
                f"down_lag_seconds is {self.down_lag_seconds:g}, not below up_lag_seconds {self.up_lag_seconds:g}"
            )
        if not self.down_busy < self.up_busy < 1:
            self.refuse(f"up_busy is {self.up_busy:g}; it must be above down_busy ({self.down_busy:g}) and below 1")
        if not isinstance(self.step, int) or isinstance(self.step, bool) or self.step < 1:
            self.refuse(f"step is {self.step!r}; give a number of replicas, at least 1")

    def wanted(self, figures: Figures) -> Decision:
        now = figures.replicas
        if now == 0:
            return Decision(0, "no replica is in use")
        if (early := self._too_early(figures)) is not None:
            return Decision(now, early)
        busy = sum(load.busy for load in figures.known.values()) / now
        lag = _lag_seconds(figures)
        said = f"lag {lag:.1f} s ({figures.backlog:,} records), busy {busy:.0%}"
        if busy > self.up_busy:
            return Decision(now + self.step, f"{said}: busy above {self.up_busy:.0%}")
        if lag > self.up_lag_seconds:
            return self._larger(now, busy, said)
        if lag < self.down_lag_seconds and busy < self.down_busy:
            return self._smaller(figures, busy, said)
        return Decision(now, f"{said}: within the limits")

    def _too_early(self, figures: Figures) -> str | None:
        """Why nothing can be said yet; None if it can."""
        since = figures.since_change()
        if since < self.cool_down_seconds:
            return f"changed {since:.0f} s ago, which cools down for {self.cool_down_seconds:g} s"
        missing = sorted(set(figures.loads) - set(figures.known))
        return f"nothing is known yet of the load of {', '.join(missing)}" if missing else None

    def _larger(self, now: int, busy: float, said: str) -> Decision:
        """More replicas for a lag, unless those in use do not work on it: then a receiver holds them up, or one is dead."""
        if busy < self.down_busy:
            return Decision(now, f"{said}: they wait for something else, which more replicas would not help")
        return Decision(now + self.step, f"{said}: lag above {self.up_lag_seconds:g} s")

    def _smaller(self, figures: Figures, busy: float, said: str) -> Decision:
        now = figures.replicas
        calm = f"{said}: lag below {self.down_lag_seconds:g} s, busy below {self.down_busy:.0%}"
        for fewer in range(max(0, now - self.step), now):
            if fewer == 0:
                if figures.arrivals == 0 and not figures.has_work:
                    return Decision(0, f"{calm}, nothing arrives and nothing waits")
            elif busy * now / fewer < self.up_busy * SPARE:
                return Decision(fewer, calm)
        return Decision(now, f"{said}: low, but fewer replicas would be too busy, or leave work without one")


def _lag_seconds(figures: Figures) -> float:
    """How long the backlog takes at the rate of the last seconds."""
    if figures.backlog == 0:
        return 0.0
    rate = sum(load.records_in / load.seconds for load in figures.known.values())
    return figures.backlog / rate if rate > 0 else float("inf")


HARDLY_BUSY = 0.5
"""A share of one replica's time: a group without a backlog that is busy for less needs no second replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DS2(Policy):
    """As many replicas as the target rate needs, in one step.

    The true processing rate of a replica is what it has processed, divided by the time for which it was busy; the time in
    which it waited for input or was held up does not count. The target rate is what arrives, and what works off the backlog
    in time. The group is to have target rate / mean true rate replicas, rounded up.

    A sender that is held up by back-pressure sends less than it could: then the backlog, which is at its bound, drives the
    target up.

    :param minimum: never fewer replicas; by default as few as the author allows.
    :param maximum: never more; by default as many as the author allows.
    :param work_off_seconds: in how many seconds a backlog is to be worked off.
    :param cool_down_seconds: nothing is changed so soon after a change; in any case not before a whole window of figures lies
        behind it.
    :param minimum_busy_seconds: the window of a replica that was busy for less tells nothing of its rate.
    :param minimum_records: neither does one with fewer records.
    :param tolerance: share by which the target may grow before a smaller group would be too small again; it keeps a target
        close to a whole number of replicas from changing the group again and again.
    """

    work_off_seconds: float = 60.0
    cool_down_seconds: float = 30.0
    minimum_busy_seconds: float = 0.2
    minimum_records: int = 1
    tolerance: float = 0.05

    def check(self) -> None:
        Policy.check(self)
        above_zero(self, "work_off_seconds", "minimum_busy_seconds", "minimum_records")
        at_least_zero(self, "cool_down_seconds", "tolerance")

    def wanted(self, figures: Figures) -> Decision:
        now = figures.replicas
        if now == 0:
            return Decision(0, "no replica is in use")
        if (early := self._too_early(figures)) is not None:
            return Decision(now, early)
        arrivals = figures.arrivals or 0.0
        target = arrivals + figures.backlog / self.work_off_seconds
        said = f"{arrivals:,.1f} records/s arrive and {figures.backlog:,} wait, target {target:,.1f} records/s"
        if not figures.has_work:
            return Decision(0, f"{said}: nothing to do")
        rates = self.true_rates(figures)
        if not rates:
            return self._without_rates(figures, said)
        rate = sum(rates.values()) / len(rates)
        exact = target / rate
        said = f"{said}; a busy replica processes {rate:,.1f} records/s, so {exact:.2f} replica(s)"
        wanted = max(1, math.ceil(exact))
        careful = max(1, math.ceil(exact * (1 + self.tolerance)))
        if wanted < min(careful, now):
            return Decision(min(careful, now), f"{said}, and {self.tolerance:.0%} to spare")
        return Decision(wanted, said)

    def true_rates(self, figures: Figures) -> dict[str, float]:
        """Replica → records per busy second, of those windows that tell enough."""
        return {
            name: load.records_in / (load.busy * load.seconds)
            for name, load in figures.known.items()
            if load.busy * load.seconds >= self.minimum_busy_seconds and load.records_in >= self.minimum_records
        }

    def _too_early(self, figures: Figures) -> str | None:
        """Why nothing can be said yet; None if it can."""
        settle = max([self.cool_down_seconds, *(load.seconds for load in figures.known.values())])
        if figures.since_change() < settle:
            return f"changed {figures.since_change():.0f} s ago, which settles for {settle:.0f} s"
        return "it is not known yet how many records arrive" if figures.arrivals is None else None

    def _without_rates(self, figures: Figures, said: str) -> Decision:
        """Replicas that are hardly busy tell nothing of their rates, and all the same that one of them is enough."""
        known, busy = figures.known, sum(load.busy for load in figures.known.values())
        if len(known) == figures.replicas and not figures.events and busy < HARDLY_BUSY:
            return Decision(1, f"{said}: together they are busy for {busy:.1%} of the time of one")
        return Decision(figures.replicas, f"{said}: no replica was busy for long enough to know its rate")
