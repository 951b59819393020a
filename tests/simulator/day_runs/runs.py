"""Runs of days, the logs that begin and order them, and their drivers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar

from airflow_logio.errors import ConfigurationError, ExternalUnavailable, Fenced, WriteRefused
from airflow_logio.testing.simulator.stepwise import Paused, Questions

T = TypeVar("T")
PIPELINE = "clicks"
Rows = tuple[Any, ...]
Actions = tuple[tuple[Rows, ...], ...]
"""Write actions of a run, each with files, each with rows."""


@dataclass(frozen=True)
class Run:
    """A run of one day. `log` and PIPELINE are its line, within which `ordinal` says what is younger."""

    uid: str
    log: str
    ordinal: int
    day: str
    actions: Actions
    takes_over: bool = False
    may_be_empty: bool = False
    """A person has said that the day may become empty."""
    given_up: tuple[str, ...] = ()
    """The runs of the day that it is in the place of."""
    fills: bool = False
    """Its write actions are applied as they come, and none closes its day."""
    slot: int = 0
    """Which one of the writers of a replicated group this is. Each has write actions of its own."""
    on_new_run: str = "overwrite"
    started: float = 0.0
    """When it was started, by the clock of its log."""

    @property
    def writer(self) -> str:
        """By which its marker is found."""
        return f"{self.uid}[{self.slot}]" if self.slot else self.uid

    @property
    def rows(self) -> Rows:
        """All of the day."""
        return tuple(sorted(row for action in self.actions for file in action for row in file))

    @property
    def scope(self) -> str:
        return f"day={self.day}"

    @property
    def last(self) -> int:
        """The number of its last write action."""
        return len(self.actions) + (1 if self.fills else 2)


@dataclass
class DayLog:
    """The log of one line. What it says of a run it says in one transaction, which knows the newest driver of that run."""

    name: str
    ordinal: int = 0
    """The last one that was given out."""
    runs: list[Run] = field(default_factory=list)
    superseded: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    written: dict[str, int] = field(default_factory=dict)
    """Writer → the last of its write actions that have succeeded, where they are applied as they come."""
    copies: int = 0
    """How often it was restored: runs of it are told apart."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Writer → the incarnation of its newest driver."""

    def begin(
        self,
        day: str,
        actions: Actions,
        *,
        above: int = 0,
        takes_over: bool = False,
        word: bool = False,
        fills: bool = False,
        also: Sequence[str] = (),
    ) -> Run:
        """A run of a day, in the place of those that it had: clear means again. A person gives up others `also`."""
        self.ordinal = max(self.ordinal, above) + 1
        again = tuple(run.uid for run in self.runs if run.day == day and run.uid not in self.superseded)
        again += tuple(uid for uid in also if uid not in again)
        self.superseded.update(again)
        uid = f"{self.name}{len(self.runs) + 1}{chr(39) * self.copies}"
        run = Run(uid, self.name, self.ordinal, day, actions, takes_over, word, again, fills)
        self.runs.append(run)
        return run

    def claim(self, run: Run) -> int:
        """A driver takes the run over; its token."""
        self.tokens[run.writer] = self.tokens.get(run.writer, 0) + 1
        return self.tokens[run.writer]

    def pass_fence(self, run: Run, token: int) -> None:
        """Raises `Fenced` for a driver that was replaced, or of a run that was."""
        if token != self.tokens[run.writer] or run.uid in self.superseded:
            raise Fenced(f"run {run.uid}, token {token}")

    def page(self, run: Run, token: int, index: int) -> tuple[Rows, ...]:
        """A held write action."""
        self.pass_fence(run, token)
        return run.actions[index]

    def note(self, run: Run, token: int, done: set[str]) -> None:
        """That an opening or a closing is done."""
        self.pass_fence(run, token)
        done.add(run.writer)

    def note_written(self, run: Run, token: int, last: int) -> None:
        """That write actions up to `last` are done."""
        self.pass_fence(run, token)
        self.written[run.writer] = last

    def is_over(self, run: Run) -> bool:
        return run.writer in self.closed or run.uid in self.superseded


class End(StrEnum):
    """Why a driver does nothing more."""

    DONE = "done"
    REFUSED = "refused"
    """Its run is parked, until a person retries it."""
    FENCED = "fenced"
    KILLED = "killed"


class Place(Protocol):
    """Where days are kept."""

    now: int
    """How many calls there were."""

    def open(self, driver: Driver) -> None:
        """The opening write action. Asks by `driver.ask`."""

    def close(self, driver: Driver) -> None:
        """All others with the closing one."""

    def fill(self, driver: Driver, first: int, last: int) -> None:
        """Write actions of a run that none closes, as one group."""

    def end(self, driver: Driver) -> None:
        """The driver is dead."""


class Driver:
    """What a driver does at a place. `advance` takes it a few calls further."""

    def __init__(self, place: Place, log: DayLog, run: Run, many: int = 1) -> None:
        """`many` write actions are a group, if none closes the run."""
        self.place = place
        self.log = log
        self.run = run
        self.token = log.claim(run)
        self.end: End | None = None
        self.is_stopped = False
        self.kept: Any = None
        """What its place keeps for it."""
        self.said = ""
        """Why it was refused."""
        self.since: int | None = None
        """When its present stage has asked for the first time."""
        self._questions = Questions()
        held = [*([] if run.writer in log.opened else self._opening()), *self._closing()]
        self._stages = [*self._filling(many)] if run.fills else held

    def _opening(self) -> Iterator[Callable[[], None]]:
        yield lambda: self.place.open(self)
        yield lambda: self.ask(lambda: self.log.note(self.run, self.token, self.log.opened))

    def _closing(self) -> Iterator[Callable[[], None]]:
        yield lambda: self.place.close(self)
        yield lambda: self.ask(lambda: self.log.note(self.run, self.token, self.log.closed))

    def _filling(self, many: int) -> Iterator[Callable[[], None]]:
        done = self.log.written.get(self.run.writer, 0)
        for first in range(done + 1, self.run.last + 1, many):
            last = min(first + many - 1, self.run.last)
            yield partial(self.place.fill, self, first, last)
            yield partial(self.ask, partial(self.log.note_written, self.run, self.token, last))
        yield lambda: self.ask(lambda: self.log.note(self.run, self.token, self.log.closed))

    @property
    def is_alive(self) -> bool:
        return self.end is None

    def ask(self, question: Callable[[], T]) -> T:
        """One call of it: what it asks or changes happens at one instant."""

        def at_an_instant() -> T:
            self.place.now += 1
            if self.since is None:
                self.since = self.place.now
            return question()

        return self._questions.ask(at_an_instant)

    def pages(self) -> Iterator[tuple[int, tuple[Rows, ...]]]:
        """The held write actions, by number, as the log gives them to the newest driver."""
        for index in range(len(self.run.actions)):
            yield index + 2, self.ask(partial(self.log.page, self.run, self.token, index))

    def advance(self, calls: int) -> None:
        """Take at most so many calls. Raises `Violation`, and what no driver should raise."""
        self._questions.begin(calls)
        while self.end is None:
            try:
                self._stages[0]()
            except Paused:
                return
            except Fenced:
                self._ends(End.FENCED)
            except (WriteRefused, ConfigurationError) as error:
                self.said = str(error)
                self._ends(End.REFUSED)
            except ExternalUnavailable:
                self._begin_stage()
                return
            else:
                self._stages.pop(0)
                self._begin_stage()
                if not self._stages:
                    self._ends(End.DONE)

    def kill(self) -> None:
        self._ends(End.KILLED)

    def _begin_stage(self) -> None:
        self._questions.clear()
        self._questions.begin(0)
        self.since = None

    def _ends(self, how: End) -> None:
        self.end = how
        self.place.end(self)
        self._questions.clear()
