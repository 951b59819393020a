"""The scheduler chooses one action after the other, by seed or undisturbed, and records every choice.

In a schedule by seed, it chooses groups by weight, drivers by age, and steps evenly among the possible ones. At planned
moments, groups crash or are considered dead. Nothing depends on the clock, on hashes or on the order of sets.
"""

from __future__ import annotations

import random

from airflow_logio.testing.simulator.actions import Action, Verb
from airflow_logio.testing.simulator.drains import wishes
from airflow_logio.testing.simulator.movers import Movers
from airflow_logio.testing.simulator.violation import Violation
from airflow_logio.testing.simulator.world import World

MIN_CRASHES, MAX_CRASHES = 3, 5
EVALUATES = (Verb.EVALUATE, Verb.ADVANCE, Verb.RUN_JOB, Verb.REMOVE)
"""Work on datasets: a step of each is that of a file."""
COUNTS = {
    Verb.FETCH: 24,
    Verb.DELIVER: 5,
    Verb.READ: 16,
    Verb.EMIT: 5,
    Verb.TAKE: 3,
    Verb.TAKE_WRITES: 8,
    Verb.START_JOB: 6,
    **dict.fromkeys(EVALUATES, 8),
}
"""Most events, batches, steps of a transaction, write actions, Input Sets and steps with files in one step."""
STEPS_OF_A_WRITE = 6
"""Most steps of an external system's transaction at once; three are enough."""
PACED = (Verb.TAKE, Verb.DELIVER, Verb.EMIT)
PACE, AHEAD = 52, 4
"""Commits of a schedule until all events are logged. If it falls behind, it takes smaller steps; if it is AHEAD commits
ahead, bigger ones."""
FOLLOWS = {
    Verb.REGISTER: Verb.OPEN,
    Verb.OPEN: Verb.RECOVER,
    Verb.ASK: Verb.RECOVER,
    Verb.RECOVER: Verb.REBUILD,
    Verb.REBUILD: Verb.TAKE,
    Verb.FETCH: Verb.DELIVER,
    Verb.DELIVER: Verb.CLOSE,
    Verb.READ: Verb.EMIT,
    Verb.EMIT: Verb.CLOSE,
    Verb.BEAT: Verb.DRAIN,
    Verb.DRAIN: Verb.CLOSE,
    Verb.START_JOB: Verb.RUN_JOB,
    Verb.RUN_JOB: Verb.NOTE_JOB,
    Verb.NOTE_JOB: Verb.CLOSE,
    Verb.CLOSE: Verb.TAKE,
    Verb.TAKE: Verb.COMMIT,
    Verb.COMMIT: Verb.HAND_OVER,
    Verb.HAND_OVER: Verb.TAKE,
    Verb.TAKE_WRITES: Verb.APPLY,
    Verb.APPLY: Verb.NOTE_WRITES,
    Verb.NOTE_WRITES: Verb.CLOSE,
}
"""The next step of the same thread, or of the thread that waits for it."""
OF_THE_SAME = (Verb.DELIVER, Verb.EMIT, Verb.RUN_JOB, Verb.NOTE_JOB, Verb.APPLY, Verb.NOTE_WRITES)
"""Follow-ups for the same port, source, operator or writer."""
GOES_ON = 0.6
"""How often the next step is the follow-up of the last one, whatever else is possible."""
HURRIED = (Verb.CLOSE, Verb.TAKE)
"""Steps that lead to a commit, and could wait until there is more to commit."""
PATIENCE = 0.7
"""How often they wait, if the schedule is ahead with its commits and the driver has something else to do."""
LAKE_SWEEP_SHARE = 0.5
"""How often a sweep of the payload store takes the place of a collection, in a scenario with datasets."""
MOST_OF_A_SWEEP = 40
"""Most questions of a sweep to log and store in one step."""
SERVER_CRASH_SHARE, LATE_LOAD_SHARE = 0.01, 0.05
"""Share of choices in which a server of staging tables crashes, or commits a load of an attempt that has lost."""
GC_SHARE, GC_DIES = 0.3, 0.1
"""How often a `logio gc` takes some steps after a run, between those of zombies, and dies then."""
BURST = 5
"""Most steps of one driver before the next choice."""
MAX_STEPS = 50_000
"""A schedule takes less than a thousand."""
ZOMBIE_SHARE = 0.12
ODDITY_SHARE = 0.04
"""Share of a driver's steps that are repeats, heartbeats, lost cursors, garbage collection or a rebuild in place."""
RETRY_SHARE = 0.03
"""Share of choices that retry, while something is quarantined in a scenario that retries."""
SWEEP_SHARE = 0.05
"""Share of choices that sweep, in a scenario whose lineage expires."""
HALT_SHARE = 0.004
"""Share of choices in which a person asks a group to halt, to launch it again later."""
INTRUDER_SHARE = 0.08
"""Share of choices in which a driver of an earlier run keeps writing to one of the run's tables."""
WISH_KILLS, WISH_IS_FATAL, SHORTLY = 0.25, 0.25, 60
"""How often a group dies when it is asked to drain, or a few steps later; and within how many steps other crashes follow."""
ODDITIES = (Verb.BEAT, None, Verb.COLLECT, Verb.VOID)
"""None: an event comes again, or the cursor of its port is lost."""


class Seeded:
    """Takes actions on a world until everything has finished.

    `events` is the number of events of a failure-free run; it measures the progress of a schedule.
    """

    def __init__(self, world: World, seed: int, events: int) -> None:
        self._world = world
        self._random = random.Random(seed)
        self._roll = self._random.random
        self.trace: list[Action] = []
        self._wheel = self._whole_wheel()
        self._last = last_group(world)
        self._databases = world.databases()
        self._events = max(events, 1)  # a single group that writes nothing logs none
        self._due = self._plan(events)
        self._wishes = wishes(seed, world.with_sources, events) if world.scenario.drains else []
        self._movers = Movers(world, seed, events, self._do) if world.scaling.shapes else None
        self._late: list[int] = []
        """For a schedule that ends early: numbers of steps after which groups crash, the last one first."""
        self._soon: dict[str, int] = {}
        """Group → number of its steps until it dies again."""
        self.taken = 0

    def _whole_wheel(self) -> list[str]:
        plans = self._world.plans
        return [name for name in plans for _ in range(max(1, round(8 * plans[name].weight)))]

    def _plan(self, events: int) -> list[int]:
        """Numbers of logged events at which groups crash, the last one first."""
        crashes = self._pick(MAX_CRASHES - MIN_CRASHES + 1) + MIN_CRASHES
        early = [int(self._roll() * events * 0.8) for _ in range(MIN_CRASHES)]
        # The others may come when everything is logged, but not done: ends of streams are worth a crash.
        late = [min(events, int(self._roll() * events * 1.2)) for _ in range(crashes - MIN_CRASHES)]
        return sorted(early + late, reverse=True)

    def _pick(self, count: int) -> int:
        return int(self._roll() * count)

    def run(self) -> None:
        """Raises `Violation`."""
        world = self._world
        while not world.is_over():
            if self._due and world.watch.events >= self._due[-1]:
                self._due.pop()
                self._disturb()
            if self._wishes and world.watch.events >= self._wishes[-1].events:
                self._ask_to_drain()
            if self._late and self.taken >= self._late[-1]:
                self._late.pop()
                self._disturb()
            if world.may_retry() and (not self._wheel or self._roll() < RETRY_SHARE):
                self._do(Action("", 0, Verb.RETRY))
                self._wheel = self._whole_wheel()
            if world.sweeps and self._roll() < SWEEP_SHARE:
                self._do(Action(self._last, 0, Verb.EXPIRE, self._pick(len(world.sweeps)), 1 + self._pick(40)))
            self._others()
            group = self._wheel[int(self._roll() * len(self._wheel))]
            for _ in range(1 + self._size()):
                self.taken += self._turn(group)
            if self.taken > MAX_STEPS:
                raise Violation("every_schedule_ends", f"{self.taken} steps, and the pipeline has not finished")
        self._let_zombies_try()

    def close(self) -> None:
        """Drop references at the end: cycles would wait for the garbage collector."""
        self._movers = None

    def _do(self, action: Action) -> bool:
        self.trace.append(action)
        return self._world.perform(action)

    def _turn(self, group: str) -> int:
        """Take a few steps of one driver. Returns at least 1 even if there was nothing to do, so that time passes."""
        world = self._world
        if world.is_locked(group) and self._roll() < 0.3:
            self._do(Action(group, 0, Verb.DECIDE, None, 1, "commit" if self._roll() < 0.5 else "abort"))
        elif world.to_claim[group] and self._roll() < 0.5:
            self._do(Action(group, 0, Verb.CLAIM))
            if world.datasets is not None:  # the first thing that an incarnation does
                self._do(Action(group, 0, Verb.SWEEP, None, 1 + self._pick(MOST_OF_A_SWEEP)))
        elif len(world.drivers[group]) > 1 and self._roll() < ZOMBIE_SHARE:
            age = 1 + self._pick(min(2, len(world.drivers[group]) - 1))
            if world.drivers[group][-1 - age].is_alive:
                self._drive(group, age)
        elif (driver := world.newest(group)) is not None and driver.is_alive:
            steps = self._drive(group, 0)
            self._perhaps_again(group, steps)
            return steps
        elif group in world.finished:
            self._wheel = [name for name in self._wheel if name != group or world.zombies(name)]
        return 1

    def _perhaps_again(self, group: str, steps: int) -> None:
        """A group that died a few steps ago may die again while it recovers."""
        if group in self._soon:
            self._soon[group] -= steps
            if self._soon[group] <= 0:
                del self._soon[group]
                self._do(Action(group, 0, Verb.CRASH))

    def _drive(self, group: str, age: int) -> int:
        """One step, or a few different ones that were possible before the first. They may no longer be possible."""
        driver = self._world.drivers[group][-1 - age]
        roll = self._roll
        if roll() < ODDITY_SHARE:
            self._oddity(group, age)
            return 1
        options = self._world.options(driver)
        size = self._size()
        if size > 1 and roll() < PATIENCE:
            options = [option for option in options if option[0] not in HURRIED] or options
        steps = 0
        for _ in range(min(len(options), 1 + int(roll() * BURST))):
            verb, about = options.pop(int(roll() * len(options)))
            self._take(group, age, verb, about, size)
            steps += 1
            while driver.is_alive and verb in FOLLOWS and roll() < GOES_ON:
                verb = FOLLOWS[verb]
                if size > 1 and verb in HURRIED and roll() < PATIENCE:
                    break
                if not self._take(group, age, verb, about if verb in OF_THE_SAME else None, size):
                    break
                steps += 1
            if not driver.is_alive:
                break
        return max(steps, 1)

    def _size(self) -> int:
        """Size of steps now: 0 means one event each. It grows with commits beyond what the events require."""
        ahead = self._world.commits - PACE * self._world.watch.events / self._events
        return 0 if ahead < 0 else 1 + min(2, int(ahead / AHEAD))

    def _take(self, group: str, age: int, verb: Verb, about: object, size: int) -> bool:
        """Take one step of a driver; chance decides its size and outcome."""
        many, outcome = 1, ""
        if verb is Verb.COMMIT:
            outcome = self._outcome()
        elif verb is Verb.APPLY:
            many = 1 + int(self._roll() * STEPS_OF_A_WRITE)
            draw = self._roll()
            outcome = "" if draw < 0.75 else "lost" if draw < 0.9 else "fails"
        elif verb in COUNTS:
            count = COUNTS[verb] * size if verb in PACED else COUNTS[verb]
            many = 1 + int(self._roll() * count)
        return self._do(Action(group, age, verb, about, many, outcome))

    def _outcome(self) -> str:
        roll = self._roll()
        if roll < 0.85:
            return ""
        return "lost" if roll < 0.91 else "fails" if roll < 0.95 else "doubt"

    def _oddity(self, group: str, age: int) -> None:
        driver = self._world.drivers[group][-1 - age]
        what = ODDITIES[self._pick(len(ODDITIES))]
        if what is None:
            ports = list(driver.inbox)
            if ports:
                port = ports[self._pick(len(ports))]
                verb = Verb.DELIVER if driver.inbox[port] else Verb.FETCH
                self._do(Action(group, age, verb, port, 1 + self._pick(4), "again"))
        elif what is Verb.COLLECT and self._world.datasets is not None and self._roll() < LAKE_SWEEP_SHARE:
            self._do(Action(group, 0, Verb.SWEEP, None, 1 + self._pick(MOST_OF_A_SWEEP)))
        elif what is Verb.COLLECT and self._world.effects and self._roll() < 0.3:
            self._do(Action(group, 0, Verb.SWEEP))
        elif what is not Verb.VOID or self._roll() < 0.4:
            self._do(Action(group, age, what, None, 1 + self._pick(20)))

    def _ask_to_halt(self) -> None:
        names = list(self._world.plans)
        self._do(Action(names[self._pick(len(names))], 0, Verb.STOP))

    def _disturb(self) -> None:
        """A planned crash of one group, sometimes of several at once, sometimes of the same again while it recovers."""
        world = self._world
        alive = [
            name for name in world.plans if name not in world.finished and (d := world.newest(name)) and d.is_alive
        ]
        before = world.crashes
        many = 1 if self._roll() < 0.8 else 1 + self._pick(len(alive) or 1)
        for _ in range(min(many, len(alive))):
            group = alive.pop(self._pick(len(alive)))
            self._do(Action(group, 0, Verb.CRASH if self._roll() < 0.65 else Verb.SUSPECT))
            if self._roll() < 0.3:
                self._soon[group] = 1 + self._pick(8)
        if world.crashes == before:
            (self._late if world.wished else self._due).append(0)  # as soon as a driver is there

    def _ask_to_drain(self) -> None:
        """Ask for a drain. The driver may die before it hears of it, so that only the next one does; or a little later."""
        group = self._wishes[-1].group
        if self._world.is_locked(group):
            return
        self._wishes.pop()
        if not self._do(Action(group, 0, Verb.WISH)):
            return
        roll = self._roll()
        if roll < WISH_KILLS:
            self._do(Action(group, 0, Verb.CRASH if self._roll() < 0.65 else Verb.SUSPECT))
        elif roll < WISH_KILLS + WISH_IS_FATAL:
            self._soon[group] = 1 + self._pick(8)
        # Little follows now, so the crashes of this schedule must come within it.
        crashes, self._due = max(len(self._due), MIN_CRASHES - self._world.crashes), []
        self._late += [self.taken + int(self._roll() * SHORTLY) for _ in range(crashes)]
        self._late.sort(reverse=True)

    def _others(self) -> None:
        """Steps of earlier runs, of persons who halt a group, and of scaling."""
        if self._roll() < HALT_SHARE:
            self._ask_to_halt()
        if self._roll() < INTRUDER_SHARE:
            self._intrude()
        if self._databases:
            self._disturb_database()
        if self._movers is not None:
            self._movers.turn()

    def _disturb_database(self) -> None:
        roll = self._roll()
        if roll < SERVER_CRASH_SHARE + LATE_LOAD_SHARE:
            name = self._databases[self._pick(len(self._databases))]
            self._do(Action("", 0, Verb.SERVER, name, 1, "crash" if roll < SERVER_CRASH_SHARE else "load"))

    def _intrude(self) -> None:
        if runs := self._world.earlier_runs():
            which = runs[self._pick(len(runs))]
            self._do(Action("", 0, Verb.INTRUDE, which, 1 + self._pick(STEPS_OF_A_WRITE)))

    def _let_zombies_try(self) -> None:
        """The run is over: replaced drivers that have not noticed it do what they can."""
        for group, drivers in self._world.drivers.items():
            for age in range(1, len(drivers)):
                for _ in range(12):
                    if drivers[-1 - age].is_alive:
                        self._drive(group, age)
                    self._perhaps_collect()
        for which in self._world.earlier_runs():
            self._do(Action("", 0, Verb.INTRUDE, which, STEPS_OF_A_WRITE))
        if self._movers is not None:
            self._movers.finish()
        if self._world.effects:
            self._do(Action("", 0, Verb.SWEEP))

    def _perhaps_collect(self) -> None:
        """The run has ended, so that its garbage may be collected, by several processes at once."""
        if self._world.datasets is not None and self._roll() < GC_SHARE:
            dies = "dies" if self._roll() < GC_DIES else ""
            self._do(Action("", 0, Verb.GC, self._pick(2), 1 + self._pick(MOST_OF_A_SWEEP), dies))


class Undisturbed:
    """Every driver in turn takes its first possible step: a failure-free run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.taken = 0
        self.trace: list[Action] = []

    def run(self) -> None:
        """Raises `Violation`."""
        world = self._world
        while not world.is_over():
            before = self.taken
            for group in world.plans:
                self._turn(group)
            if self.taken == before and not self._see_to_replicas() and not self._do(Action("", 0, Verb.RETRY)):
                raise Violation("every_schedule_ends", "no group can take a step, and the pipeline has not finished")
        if world.effects:
            self._do(Action("", 0, Verb.SWEEP))

    def _see_to_replicas(self) -> bool:
        """The work of a supervisor when nothing else happens."""
        if not self._world.scaling.shapes:
            return False
        return any(self._do(Action(name, 0, Verb.OVERDUE)) for name in self._world.plans) or self._do(
            Action("", 0, Verb.SUPERVISE)
        )

    def _turn(self, group: str) -> None:
        world = self._world
        if world.is_locked(group):
            self._do(Action(group, 0, Verb.DECIDE, outcome="commit"))
        elif world.to_claim[group] and group not in world.finished:
            self._do(Action(group, 0, Verb.CLAIM))
        elif (driver := world.newest(group)) is not None and driver.is_alive:
            for verb, about in world.options(driver):
                if self._do(Action(group, 0, verb, about, 1)):
                    return

    def _do(self, action: Action) -> bool:
        done = self._world.perform(action)
        if done:
            self.taken += 1
            self.trace.append(action)
        return done


def last_group(world: World) -> str:
    """The group that finishes last. It is never a replica, since events of its slots go to a Merger downstream."""
    return next(name for name in reversed(world.plans) if not world.plans[name].replica_of)
