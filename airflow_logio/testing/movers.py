"""Who scales in a schedule: movers that look, launch, move slots and die in between, with what they have seen long before."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from airflow_logio.protocol.replicas import balanced
from airflow_logio.protocol.states import GroupState
from airflow_logio.runtime.scaling import Plan, plan
from airflow_logio.testing.scaling import Move
from airflow_logio.testing.world import Action, World

MIN_REQUESTS, MAX_REQUESTS = 2, 6
AT_ONCE = 2
"""Movers at a time, each with a request of its own."""
TURN = 0.25
"""Of the choices of a schedule, while there is a mover."""
DIES = 0.08
"""A mover, before any step: the others, and `Scaling.needs`, go on from what the log says."""
LOOKS_AGAIN = 0.5
"""Before it moves: else it goes by what it saw before it launched anybody."""
AT_RANDOM = 0.35
"""Requests that put every slot anywhere, or nowhere."""
TO_ZERO = 0.15
FATAL = 0.3
"""How often a replica dies, or is taken for dead, with a move or a few steps later."""
NEEDED = 0.06
REVIVED = 0.02
ENDED = 0.01
PATIENCE = 60
"""So often a mover looks whether the replicas it has launched are running."""

Do = Callable[[Action], bool]


@dataclass
class Mover:
    """One request under way: so many replicas, or slots anywhere."""

    group: str
    replicas: int | None
    launched: bool = False
    seen: Move | None = None
    tries: int = 0


class Movers:
    """Those of one schedule. A generator of its own: nothing else in a schedule depends on its draws."""

    def __init__(self, world: World, seed: int, events: int, do: Do) -> None:
        self._world = world
        self._do = do
        self._random = random.Random(f"moves of {seed}")
        self._roll = self._random.random
        self._at_work: list[Mover] = []
        groups = list(world.scaling.shapes)
        count = MIN_REQUESTS + self._pick(MAX_REQUESTS - MIN_REQUESTS + 1)
        due = [(int(self._roll() * 1.15 * events), self._random.choice(groups)) for _ in range(count)]
        self._due = sorted(due, reverse=True)

    def _pick(self, count: int) -> int:
        return int(self._roll() * count)

    def turn(self) -> None:
        """Perhaps a step of a mover, or of somebody else who has to do with replicas."""
        world = self._world
        while self._due and self._due[-1][0] <= world.watch.events and len(self._at_work) < AT_ONCE:
            self._at_work.append(self._mover(self._due.pop()[1]))
        if self._at_work and self._roll() < TURN:
            mover = self._at_work[self._pick(len(self._at_work))]
            if self._roll() < DIES or not self._step(mover):
                self._at_work.remove(mover)
        roll = self._roll()
        if roll < NEEDED:
            self.need()
        elif roll < NEEDED + REVIVED and world.scaling.retired:
            self._do(Action(self._random.choice(sorted(world.scaling.retired)), 0, "revive"))
        elif roll < NEEDED + REVIVED + ENDED:
            self._do(Action("", 0, "end"))

    def need(self) -> None:
        """What the log asks for, whoever was to do it."""
        for group in self._world.scaling.shapes:
            if (action := needed(self._world, group)) is not None:
                self._do(action)

    def _mover(self, group: str) -> Mover:
        if self._roll() < AT_RANDOM:
            return Mover(group, None)
        most = len(self._world.scaling.shapes[group].replicas)
        return Mover(group, 0 if self._roll() < TO_ZERO else 1 + self._pick(most))

    def _step(self, mover: Mover) -> bool:
        """False if there is nothing more to do for it."""
        mover.tries += 1
        if mover.tries > PATIENCE:
            return False
        return self._shuffle(mover) if mover.replicas is None else self._carry_out(mover, mover.replicas)

    def _carry_out(self, mover: Mover, replicas: int) -> bool:
        found = self._plan(mover.group, replicas)
        if not mover.launched:
            mover.seen, mover.launched = self._balanced(mover.group, found), True
            for name in found.to_launch:
                self._do(Action(name, 0, "launch"))
            return True
        if any(self._world.scaling.state(name) is not GroupState.RUNNING for name in found.wanted):
            mover.launched = not found.to_launch  # somebody else has retired one meanwhile
            return True
        if mover.seen is None or self._roll() < LOOKS_AGAIN:
            mover.seen = self._balanced(mover.group, found)
        done = self._move(mover.group, mover.seen)
        mover.seen = None
        return not done

    def _plan(self, group: str, replicas: int) -> Plan:
        world = self._world
        names = world.scaling.shapes[group].replicas
        return plan([world.store.group(world.run.run_id, name) for name in names], replicas)

    def _balanced(self, group: str, found: Plan) -> Move:
        placement = balanced(self._world.store.slots(self._world.run.run_id, group), found.wanted)
        return Move(tuple(placement.items()), found.to_retire)

    def _shuffle(self, mover: Mover) -> bool:
        """Every slot that is not done anywhere, or some of them; replicas that are left without retire, or wait."""
        world, group = self._world, mover.group
        if not mover.launched:
            mover.launched = True
            retired = [name for name in world.scaling.shapes[group].replicas if name in world.scaling.retired]
            if retired:
                self._do(Action(self._random.choice(retired), 0, "launch"))
            return True
        states = {name: world.scaling.state(name) for name in world.scaling.shapes[group].replicas}
        running = [name for name, state in states.items() if state is GroupState.RUNNING]
        slots = [slot for slot in world.store.slots(world.run.run_id, group) if not slot.done]
        owners = {slot.number: slot.owner for slot in slots}
        if self._roll() < TO_ZERO:
            owners = dict.fromkeys(
                owners
            )  # of all or of none: who keeps one might finish, and be of no use to the others
        elif running:
            owners |= {number: self._random.choice(running) for number in owners if self._roll() < 0.6}
        left = [
            name
            for name, state in states.items()
            if name not in owners.values() and state not in (GroupState.RETIRED, GroupState.FINISHED)
        ]
        retire = tuple(name for name in left if self._roll() < 0.5)
        return not self._move(group, Move(tuple(owners.items()), retire))

    def _move(self, group: str, move: Move) -> bool:
        if not self._do(Action(group, 0, "move", move)):
            return False
        if self._roll() < FATAL:
            name = self._random.choice(self._world.scaling.shapes[group].replicas)
            self._do(Action(name, 0, "crash" if self._roll() < 0.65 else "suspect"))
        if self._roll() < 0.3:
            self._do(Action("", 0, "end"))
        return True


def needed(world: World, group: str) -> Action | None:
    """The action without which the run would not come to its end."""
    found = world.scaling.needs(group)
    return None if found is None else Action(found[0], 0, found[1], found[2])
