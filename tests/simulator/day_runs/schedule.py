"""Schedules of runs that meet at one place: which driver takes its next call is decided by a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from airflow_logio.testing.simulator.violation import Violation
from tests.simulator.day_runs.filling import FillingJudge, FillingTable
from tests.simulator.day_runs.folder import FolderPlace
from tests.simulator.day_runs.judges import GETS, FolderJudge, Judge, SlowReader, TableJudge
from tests.simulator.day_runs.runs import Actions, DayLog, Driver, End, Place, Run
from tests.simulator.day_runs.table import TablePlace
from tests.simulator.day_runs.updating import KEYS, Keyed, UpdatingJudge, UpdatingTable

Made = Callable[[Random], tuple[Place, Judge]]
DAYS = ("2026-03-01", "2026-03-02", "2026-03-03")
LONGEST = 6_000
"""Choices. A schedule has some hundred."""
RETRIES = 2
"""How often a person retries a run that is refused."""
AT_THE_END = 2_000
"""Calls of a driver that nothing disturbs."""


@dataclass(frozen=True)
class FailedDays:
    """What is wrong, and the choices that led to it."""

    kind: str
    seed: int
    invariant: str
    what: str
    trace: tuple[str, ...] = field(repr=False, default=())


class DaySchedule:
    """One schedule. `figures` counts what has happened in it."""

    def __init__(self, kind: str, seed: int, made: Made | None = None) -> None:
        """`made` is for another place than the simulated one of that kind."""
        self.kind = kind
        self.chance = Random(f"{kind} {seed}")
        self.place, self.judge = (made or PLACES[kind])(self.chance)
        self.lines = self.chance.choice((1, 1, 2))
        self.logs = [DayLog("a"), DayLog("b")][: self.lines]
        self.figures = Counter[str]()
        self.trace: list[str] = []
        self._drivers: list[Driver] = []
        self._runs: list[tuple[DayLog, Run]] = []
        self._tries = Counter[str]()
        self._readers: list[SlowReader] = []
        self._to_begin = [*DAYS, *(self.chance.choice(DAYS) for _ in range(self.chance.randint(2, 5)))]
        self._restores = self.chance.random() < 0.15

    def run(self) -> None:
        """Raises `Violation`."""
        while not self._is_over():
            self._choose()
        self._let_zombies_finish()
        self._settle()

    # --- what happens -------------------------------------------------------------------------------------------------

    def _choose(self) -> None:
        if len(self.trace) > LONGEST:
            raise Violation("every_schedule_ends", f"{len(self.trace)} choices, and runs are not done")
        roll = self.chance.random()
        if self._to_begin and (roll < 0.03 or not self._idle_or_alive()):
            self._begin()
        elif roll < 0.06:
            self._disturb()
        elif roll < 0.09:
            self._see_to_drivers()
        elif roll < 0.13 and isinstance(self.place, FolderPlace):
            self.place.tree.show(0.5)
        elif roll < 0.17 and isinstance(self.judge, FolderJudge):
            self._read()
        else:
            self._step()

    def _idle_or_alive(self) -> bool:
        return any(driver.is_alive and not driver.is_stopped for driver in self._drivers)

    def _begin(self) -> None:
        """A person, or Airflow, begins a run of a day; in the place of the one that it had."""
        day = self._to_begin.pop(0)
        log = self.chance.choice(self.logs) if self.chance.random() < 0.4 else self.logs[0]
        if self._restores and log.ordinal > 2 and self.chance.random() < 0.5:
            self._restore(log)
        takes_over = self.lines > 1 and self.chance.random() < 0.4
        above = self._most(log) if self.chance.random() < 0.3 else 0
        runs = self._made(log, day, above, takes_over)
        self.figures["begun again"] += bool(runs[0].given_up)
        self.figures["takes over"] += takes_over
        self.figures["no rows"] += not any(run.rows for run in runs)
        for run in runs:
            self._launch(log, run)

    def _made(self, log: DayLog, day: str, above: int, takes_over: bool) -> Sequence[Run]:
        """A run, with a part for each of its writers."""
        return [log.begin(day, self._actions(), above=above, takes_over=takes_over, word=self._may_be_empty())]

    def _may_be_empty(self) -> bool:
        return self.chance.random() < 0.3

    def _restore(self, log: DayLog) -> None:
        """An older copy of the log: it has forgotten its last runs, and gives their numbers again."""
        self._restores = False
        self.figures["restored"] += 1
        forgotten, log.runs = log.runs[-2:], log.runs[:-2]
        log.ordinal = min(run.ordinal for run in forgotten) - 1
        log.superseded.update(run.uid for run in forgotten)
        log.copies += 1

    def _actions(self) -> Actions:
        number = (1 + sum(len(log.tokens) for log in self.logs)) * 1_000
        files = [self.chance.randint(1, 2) for _ in range(self.chance.choice((0, 1, 2, 2, 3)))]
        rows = iter(range(number, number + 100))
        return tuple(
            tuple(tuple(next(rows) for _ in range(self.chance.randint(1, 2))) for _ in range(many)) for many in files
        )

    def _launch(self, log: DayLog, run: Run) -> None:
        if all(one is not run for _, one in self._runs):
            self._runs.append((log, run))
            self.judge.begun(run)
        self._drivers.append(Driver(self.place, log, run, self._many()))
        self._tell(f"driver {self._drivers[-1].token} of {run.writer} ({run.ordinal}) begins {run.day}")

    def _many(self) -> int:
        """How many write actions are a group of a new driver."""
        return 1

    def _disturb(self) -> None:
        """A driver dies, stands still, or is taken for dead."""
        if not (alive := [driver for driver in self._drivers if driver.is_alive]):
            return
        driver, roll = self.chance.choice(alive), self.chance.random()
        if roll < 0.4:
            self._tell(f"driver {driver.token} of {driver.run.writer} dies")
            driver.kill()
            self.figures["killed"] += 1
        elif roll < 0.7:
            driver.is_stopped = not driver.is_stopped
            self.figures["stopped"] += driver.is_stopped
        elif driver.token == driver.log.tokens[driver.run.writer] and not driver.log.is_over(driver.run):
            self.figures["zombies"] += 1
            self._launch(driver.log, driver.run)

    def _see_to_drivers(self) -> None:
        """What a supervisor does, and a person with what is parked."""
        for log, run in self._runs:
            newest = self._newest(run)
            if log.is_over(run) or newest.is_alive:
                if newest.is_stopped and self.chance.random() < 0.3:
                    self._launch(log, run)
                continue
            if newest.end is End.REFUSED:
                if self._tries[run.writer] >= RETRIES:
                    continue
                self._tries[run.writer] += 1
            self._launch(log, run)

    def _read(self) -> None:
        assert isinstance(self.judge, FolderJudge) and isinstance(self.place, FolderPlace)
        if len(self._readers) < 2:
            self._readers.append(SlowReader(self.judge, self.place.tree, self.chance.choice(DAYS)))
        self.chance.choice(self._readers).advance(self.chance.randint(1, 4))
        gone = [reader for reader in self._readers if reader.is_done]
        self.figures["read"] += len(gone)
        self._readers = [reader for reader in self._readers if not reader.is_done]

    def _step(self) -> None:
        if not (able := [driver for driver in self._drivers if driver.is_alive and not driver.is_stopped]):
            self._see_to_drivers()
            return
        self._advance(self.chance.choice(able), self.chance.randint(1, 3))

    def _advance(self, driver: Driver, calls: int) -> None:
        driver.advance(calls)
        self.judge.look()
        if driver.end is not None:
            self.figures[driver.end] += 1
            self.judge.ended(driver)
        self._tell(f"driver {driver.token} of {driver.run.writer}: {calls} calls {driver.end or ''} {driver.said}")

    # --- how it ends --------------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self._to_begin:
            return False
        return all(log.is_over(run) or self._is_parked(run) for log, run in self._runs)

    def _is_parked(self, run: Run) -> bool:
        return self._newest(run).end is End.REFUSED and self._tries[run.writer] >= RETRIES

    def _let_zombies_finish(self) -> None:
        """Those that were replaced, or stood still, do what they can."""
        for driver in self._drivers:
            driver.is_stopped = False
        while alive := [driver for driver in self._drivers if driver.is_alive]:
            if len(self.trace) > LONGEST:
                raise Violation("every_schedule_ends", "a driver never ends")
            self._advance(self.chance.choice(alive), self.chance.randint(1, 3))

    def _settle(self) -> None:
        """Everything is shown, and nothing is at work: each day gets one more run, which must get it."""
        if isinstance(self.place, FolderPlace):
            self.place.tree.show(1.0)
        for reader in self._readers:
            reader.advance(AT_THE_END)
        for day in self._days():
            heir = self.judge.heir(day)
            log = next(log for log in self.logs if heir is None or log.name == heir)
            run = self._made_last(log, day, takes_over=heir is None)
            self.figures["in doubt"] += heir is None
            self._launch(log, run)
            driver = self._drivers[-1]
            while driver.is_alive:
                self._advance(driver, AT_THE_END)
            if driver.end is not End.DONE:
                raise Violation(GETS, f"run {run.uid} of {day} is {driver.end}: {driver.said}")
            self.judge.conclude(run)

    def _days(self) -> Sequence[str]:
        return DAYS

    def _made_last(self, log: DayLog, day: str, *, takes_over: bool) -> Run:
        return log.begin(day, (((day_number(day),),),), above=self._most(log), takes_over=takes_over)

    def _most(self, log: DayLog) -> int:
        return max((run.ordinal for one, run in self._runs if one is log), default=0)

    def _newest(self, run: Run) -> Driver:
        return next(driver for driver in reversed(self._drivers) if driver.run is run)

    def _tell(self, what: str) -> None:
        self.trace.append(what)


def day_number(day: str) -> int:
    return 1_000_000 + int(day[8:10])


class FillingSchedule(DaySchedule):
    """Most runs fill their days at once, some of them with two writers. The others close them."""

    def _made(self, log: DayLog, day: str, above: int, takes_over: bool) -> Sequence[Run]:
        fills = self.chance.random() < 0.8
        slots = 2 if fills and isinstance(self.judge, FillingJudge) and self.chance.random() < 0.5 else 1
        actions = self._actions()
        said: dict[str, Any] = {"takes_over": takes_over, "word": self._may_be_empty(), "fills": fills}
        run = log.begin(day, actions[::slots], above=above, **said)
        self.figures["fills"] += fills
        self.figures["two writers"] += slots == 2
        return [run, *(replace(run, slot=slot, actions=actions[slot::slots]) for slot in range(1, slots))]

    def _made_last(self, log: DayLog, day: str, *, takes_over: bool) -> Run:
        return replace(super()._made_last(log, day, takes_over=takes_over), fills=True)

    def _many(self) -> int:
        return self.chance.randint(1, 3)


class UpdatingSchedule(DaySchedule):
    """Runs update rows by their keys, each once or with two writers. Without versions, one run at a time: a person gives up
    what has not finished."""

    def __init__(self, kind: str, seed: int, made: Made | None = None) -> None:
        super().__init__(kind, seed, made)
        self._by_version = kind == "versions"
        self._is_careless = self.chance.random() < 0.2
        """Some rows have the version of others that they are unlike, or the key of one in the same event."""
        if not self._by_version:
            self.logs = self.logs[:1]

    def _made(self, log: DayLog, day: str, above: int, takes_over: bool) -> Sequence[Run]:
        slots = 1 + (self.chance.random() < 0.3)
        replaces = self._by_version and self.chance.random() < 0.1
        self.figures["two writers"] += slots == 2
        self.figures["replaces"] += replaces
        first = self._begun(log, day, self._events(0, slots), on_new_run="replace" if replaces else "update")
        return [first, *(replace(first, slot=slot, actions=self._events(slot, slots)) for slot in range(1, slots))]

    def _made_last(self, log: DayLog, day: str, *, takes_over: bool) -> Run:
        version = 1_000 + len(self._runs)
        return self._begun(log, day, ((tuple(Keyed(key, version, f"last {version}") for key in KEYS),),))

    def _begun(self, log: DayLog, day: str, actions: Actions, on_new_run: str = "update") -> Run:
        unfinished = [run.uid for one, run in self._runs if not one.is_over(run)]
        run = log.begin(day, actions, fills=True, also=() if self._by_version else unfinished)
        return replace(run, started=1.0 + len(self._runs), on_new_run=on_new_run)

    def _events(self, slot: int, slots: int) -> Actions:
        return tuple((self._event(slot, slots),) for _ in range(self.chance.choice((0, 1, 2, 2, 3))))

    def _event(self, slot: int, slots: int) -> tuple[Keyed, ...]:
        """Slots have keys of their own where the last event wins."""
        keys = list(KEYS if self._by_version else KEYS[slot::slots])
        many = self.chance.randint(0, 3)
        if self._by_version or self._is_careless:
            found = [self.chance.choice(keys) for _ in range(many)]
        else:
            found = self.chance.sample(keys, min(many, len(keys)))
        return tuple(self._row(key) for key in found)

    def _row(self, key: int) -> Keyed:
        if not self._by_version:
            return Keyed(key, 0, str(self.chance.random()))
        version = self.chance.randint(1, 8)
        other = " in another way" * (self._is_careless and self.chance.random() < 0.1)
        return Keyed(key, version, f"as of {version}{other}")

    def _many(self) -> int:
        return self.chance.randint(1, 3)


class DaySimulator:
    """Schedules of one kind of place."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def run(self, seed: int) -> tuple[Counter[str], FailedDays | None]:
        """The same seed gives the same schedule."""
        return run_through(SCHEDULES.get(self.kind, DaySchedule)(self.kind, seed), seed)


def run_through(schedule: DaySchedule, seed: int) -> tuple[Counter[str], FailedDays | None]:
    """Its figures, and what is wrong."""
    try:
        schedule.run()
    except Violation as error:
        failed = FailedDays(schedule.kind, seed, error.invariant, error.what, tuple(schedule.trace))
        return schedule.figures, failed
    return schedule.figures, None


def _folder(chance: Random, *, late: float) -> tuple[Place, Judge]:
    place = FolderPlace(chance, DAYS, late=late, page=chance.choice((2, 3, 1_000)))
    return place, FolderJudge(place, DAYS, late=bool(late))


def _table(chance: Random) -> tuple[Place, Judge]:
    place = TablePlace(chance, DAYS)
    return place, TableJudge(place, DAYS)


def _filling_table(chance: Random) -> tuple[Place, Judge]:
    place = FillingTable(chance, DAYS)
    return place, FillingJudge(place, DAYS)


def _updating_table(chance: Random, *, by_version: bool) -> tuple[Place, Judge]:
    place = UpdatingTable(chance, by_version)
    return place, UpdatingJudge(place)


PLACES: Mapping[str, Made] = {
    "days_in_a_table": _table,
    "days_at_once": _filling_table,
    "versions": partial(_updating_table, by_version=True),
    "last_events": partial(_updating_table, by_version=False),
    "days_in_a_bucket": partial(_folder, late=0.0),
    "days_in_a_folder": partial(_folder, late=0.3),
    "days_at_once_in_a_bucket": partial(_folder, late=0.0),
    "days_at_once_in_a_folder": partial(_folder, late=0.3),
}
"""A listing of a bucket shows what was put before it; one of a folder that several hosts mount may show it late."""
SCHEDULES: Mapping[str, type[DaySchedule]] = {
    "days_at_once": FillingSchedule,
    "days_at_once_in_a_bucket": FillingSchedule,
    "days_at_once_in_a_folder": FillingSchedule,
    "versions": UpdatingSchedule,
    "last_events": UpdatingSchedule,
}
"""Where not all runs close days."""
