"""Scaling in a schedule: some actors make requests, others carry them out, with a few questions to the log at a time.

Controllers make a request and leave. A task and a person make a request and carry it out; a supervisor carries out what it
finds. Each may be delayed anywhere while the others continue, and may die anywhere: a task is tried again, a supervisor is
replaced. Besides, slots are placed by hand, in ways that no request would.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from airflow_logio.protocol.life import LifeStep
from airflow_logio.protocol.states import OPEN_SCALING, GroupState
from airflow_logio.testing.simulator.actions import Action, Verb
from airflow_logio.testing.simulator.scaling import Move, Work
from airflow_logio.testing.simulator.world import World

MIN_REQUESTS, MAX_REQUESTS = 3, 7
MOST_BY_HAND = 5
"""Most times that slots are placed without a request: anywhere, or nowhere."""
AT_ONCE = 3
"""Most tasks and persons at a time."""
WAITS_NOT = 0.02
"""Slots are placed when a replica begins, or, with this probability, before."""
BY_CONTROLLERS = 0.35
"""Share of the moments for requests at which controllers make them, one or several at once."""
CONTROLLERS = 3
"""Most controllers at once. Each makes its own request, or repeats that of the previous one."""
SAME_KEY = 0.4
TO_ZERO = 0.15
TURN = 0.25
"""Share of the choices of a schedule for tasks and persons, while one is at work."""
LOOKS = 0.09
"""Share of all choices in which a supervisor takes a step."""
QUESTIONS = 9
"""Most questions before the next choice. A look that finds nothing to do asks two."""
DIES = 0.04
"""How often an executor dies before one of its turns."""
TRIED_AGAIN = 0.7
"""How often a task that died is tried again."""
FATAL = 0.3
"""How often a replica dies, or is considered dead, when slots have moved."""
OVERDUE = 0.2
"""Share of choices in which a claimed replica without a driver is found overdue."""
REVIVED = 0.02
ENDED = 0.01
PATIENCE = 40
"""How many turns a person or a task waits."""

Do = Callable[[Action], bool]


@dataclass
class Employed:
    """An executor as the schedule sees it, with its number."""

    number: int
    group: str
    work: Work
    turns: int = 0


BEGINNING = (LifeStep.OPEN, LifeStep.ASK_SLOTS, LifeStep.READ)
"""A driver is about to read its fence, its slots or the log."""


class Movers:
    """The scaling of one schedule. It has its own random generator: nothing else in the schedule depends on it."""

    def __init__(self, world: World, seed: int, events: int, do: Do) -> None:
        self._world = world
        self._do = do
        self._random = random.Random(f"moves of {seed}")
        self._roll = self._random.random
        self._number = 0
        self._keys = 0
        self._at_work: list[Employed] = []
        self._supervisor = self._employ("", Work("supervisor"))
        self._due = self._plan(events, MIN_REQUESTS + self._pick(MAX_REQUESTS - MIN_REQUESTS + 1))
        self._due_by_hand = self._plan(events, self._pick(MOST_BY_HAND + 1))

    def _plan(self, events: int, count: int) -> list[tuple[int, str]]:
        """(number of logged events, group), the last moment first. Some moments come when everything has ended."""
        groups = list(self._world.scaling.shapes)
        due = [(int(self._roll() * 1.15 * events), self._random.choice(groups)) for _ in range(count)]
        return sorted(due, reverse=True)

    def _pick(self, count: int) -> int:
        return int(self._roll() * count)

    def turn(self) -> None:
        """Perhaps take a step that has to do with replicas."""
        world = self._world
        while self._due and self._due[-1][0] <= world.watch.events and len(self._at_work) < AT_ONCE:
            self._begin(self._due.pop()[1])
        if self._at_work and self._roll() < TURN:
            self._turn_of(self._at_work[self._pick(len(self._at_work))])
        due = self._due_by_hand
        if due and due[-1][0] <= world.watch.events and (self._begins(due[-1][1]) or self._roll() < WAITS_NOT):
            self._place(due.pop()[1])
        roll = self._roll()
        if roll < LOOKS:
            self._look()
        elif roll < LOOKS + REVIVED and world.scaling.retired:
            self._do(Action(self._random.choice(sorted(world.scaling.retired)), 0, Verb.REVIVE))
        elif roll < LOOKS + REVIVED + ENDED:
            self._do(Action("", 0, Verb.END))
        if world.scaling.unlaunched and self._roll() < OVERDUE:
            self._do(Action(self._random.choice(sorted(world.scaling.unlaunched)), 0, Verb.OVERDUE))

    def finish(self) -> None:
        """The run is over: every delayed executor resumes, whether it sees that or not."""
        for one in [*self._at_work, self._supervisor]:
            for _ in range(4):
                self._execute(one)

    # --- making requests ----------------------------------------------------------------------------------------------

    def _begin(self, group: str) -> None:
        if self._roll() < BY_CONTROLLERS:
            key = None
            for _ in range(1 + self._pick(CONTROLLERS)):
                key = key if key and self._roll() < SAME_KEY else self._key() if self._roll() < 0.6 else None
                self._do(Action(group, 0, Verb.REQUEST, Work("controller", self._replicas(group), key)))
        else:
            task = self._roll() < 0.5
            work = Work("task" if task else "person", self._replicas(group), self._key() if task else None)
            self._at_work.append(self._employ(group, work))

    def _replicas(self, group: str) -> int:
        return 0 if self._roll() < TO_ZERO else 1 + self._pick(len(self._world.scaling.shapes[group].replicas))

    def _key(self) -> str:
        self._keys += 1
        return f"try of task {self._keys}"

    # --- carrying them out --------------------------------------------------------------------------------------------

    def _employ(self, group: str, work: Work) -> Employed:
        self._number += 1
        self._do(Action(group, 0, Verb.EMPLOY, work, self._number))
        return Employed(self._number, group, work)

    def _look(self) -> None:
        if self._roll() < DIES:
            self._do(Action("", 0, Verb.DISMISS, self._supervisor.number))
            self._supervisor = self._employ("", Work("supervisor"))
        self._execute(self._supervisor)

    def _turn_of(self, one: Employed) -> None:
        one.turns += 1
        dies = self._roll() < DIES
        if dies or one.turns > PATIENCE:
            self._do(Action(one.group, 0, Verb.DISMISS, one.number))
            self._at_work.remove(one)
            if dies and one.work.key and self._roll() < TRIED_AGAIN:
                self._at_work.append(self._employ(one.group, one.work))
            return
        self._execute(one)
        if one.number not in self._world.scaling.executors:
            self._at_work.remove(one)

    def _execute(self, one: Employed) -> None:
        moved = self._world.scaling.moved
        self._do(Action(one.group, 0, Verb.EXECUTE, one.number, 1 + self._pick(QUESTIONS)))
        if self._world.scaling.moved > moved:
            self._after_move()

    def _after_move(self) -> None:
        if self._roll() < FATAL:
            replicas = [name for shape in self._world.scaling.shapes.values() for name in shape.replicas]
            self._do(Action(self._random.choice(replicas), 0, Verb.CRASH if self._roll() < 0.65 else Verb.SUSPECT))
        if self._roll() < 0.3:
            self._do(Action("", 0, Verb.END))

    # --- without a request --------------------------------------------------------------------------------------------

    def _begins(self, group: str) -> bool:
        """Whether a replica may be asking for its slots."""
        newest = (self._world.newest(name) for name in self._world.scaling.shapes[group].replicas)
        return any(one is not None and one.is_alive and one.life.wants in BEGINNING for one in newest)

    def _place(self, group: str) -> None:
        """Place all open slots anywhere, or some of them. Replicas left without slots retire, or wait."""
        world = self._world
        states = {name: world.scaling.state(name) for name in world.scaling.shapes[group].replicas}
        running = [name for name, state in states.items() if state is GroupState.RUNNING]
        slots = [slot for slot in world.store.slots(world.run.run_id, group) if not slot.done]
        owners, keeps = {slot.number: slot.owner for slot in slots}, 0.5
        asked = any(one.state in OPEN_SCALING for one in world.store.scalings(world.run.run_id, group))
        if self._roll() < TO_ZERO and not asked:
            # All slots or none: a replica that keeps one might finish, and be of no use to the others. All retire, and no
            # replica is starting, since none is woken while there is one.
            owners, keeps = dict.fromkeys(owners), 0.0
        elif running:
            chosen = self._random.choice
            owners = {n: chosen(running) if one is None or self._roll() < 0.6 else one for n, one in owners.items()}
        left = [
            name
            for name, state in states.items()
            if name not in owners.values() and state not in (GroupState.RETIRED, GroupState.FINISHED)
        ]
        retire = tuple(name for name in left if self._roll() >= keeps)
        if self._do(Action(group, 0, Verb.PLACE, Move(tuple(owners.items()), retire))):
            self._after_move()
