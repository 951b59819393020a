"""Scaling in a schedule: which replicas are in use, what is done to them, and the executors that carry out requests.

An executor is a supervisor, a task or a person; its code is `supervision/scaling.py`. The schedule may pause an executor
between any two questions to the log, for any time, and may kill it there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from airflow_logio.errors import LogioError, ProtocolViolation, ReplicaBusy
from airflow_logio.protocol.replicas import Placement
from airflow_logio.protocol.states import OPEN_SCALING, GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, GroupRef, LaunchRecipe
from airflow_logio.store.records.run_records import ReplicatedShape, Run
from airflow_logio.store.records.status_records import ScalingRequest
from airflow_logio.supervision.scaling import Stage, is_due, look_after, next_step
from airflow_logio.testing.simulator.actions import Incarnation
from airflow_logio.testing.simulator.plan import GroupPlan, Scenario
from airflow_logio.testing.simulator.stepwise import Paused, Questions
from airflow_logio.testing.simulator.violation import Violation
from airflow_logio.testing.simulator.watch.log_watch import LogWatch

T = TypeVar("T")

WHOLE = sys.maxsize
"""Number of questions: as many as it has."""


class Work(NamedTuple):
    """The job of an executor. A supervisor handles all requests and has none of its own."""

    role: str
    """``supervisor``, ``task`` or ``person``; a ``controller`` makes a request and leaves it to them."""
    replicas: int = 0
    key: str | None = None


class Move(NamedTuple):
    """(slot, new owner) pairs, and replicas that retire with the move."""

    placement: tuple[tuple[int, str | None], ...]
    retire: tuple[str, ...] = ()


class ScaledWorld(Protocol):
    """The world of a schedule, as far as scaling asks and changes it."""

    scenario: Scenario
    run: Run
    store: LogStore
    watch: LogWatch
    to_claim: dict[str, bool]
    incarnations: dict[str, int]
    scaling: Scaling

    def is_locked(self, group: str) -> bool:
        """A transaction in doubt holds the group's fence row."""

    def begin(self, group: str, claim: Claim) -> None:
        """Start the process of a claim."""


class Executor:
    """One process. `resume` lets it ask the log some questions, which change the log as those of a real process do."""

    def __init__(self, world: ScaledWorld, group: str, work: Work) -> None:
        self.world = world
        self.group = group
        self.work = work
        self._round = _ROUNDS[work.role]
        self._questions = Questions()
        self.request: ScalingRequest | None = None
        """Its own request, once it has made it."""
        self.carrying: ScalingRequest | None = None
        """The request that it is carrying out."""

    @property
    def store(self) -> LogStore:
        """The log; each question to it is one step."""
        return cast(LogStore, _Asked(self))

    def resume(self, questions: int) -> bool:
        """Run at most until the end of its round. False if it has nothing more to do."""
        self._questions.begin(questions)
        self.carrying = None
        try:
            is_busy = self._round(self)
        except Paused:
            return True
        except LogioError as error:
            raise Violation("an_executor_never_fails", f"{self.work.role}: {type(error).__name__}: {error}") from error
        finally:
            self._questions.forget_frames()
        self._questions.clear()
        return is_busy

    def ask(self, question: Callable[[], T]) -> T:
        """Ask the log one question, or replay the answer that it gave."""
        return self._questions.ask(question)

    def launch(
        self, group: str, *, expected: int, reason: str, by_user: bool = False, request_id: int | None = None
    ) -> Claim:
        """As `launch_group`: the claim comes first, and the executor may die before it starts the driver."""
        scaling, carrying = self.world.scaling, self.carrying
        claim = self.ask(lambda: scaling.claim(carrying, group, expected, reason, by_user, request_id))
        self.ask(lambda: scaling.begin(claim))
        return claim


class _Asked:
    """The log, as an executor asks it: each question is a step."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Callable[..., Any]:
        executor = self._executor
        method: Callable[..., Any]
        if name == "rescale":
            method = partial(executor.world.scaling.rescale, executor.carrying)
        elif name == "request_scaling":
            method = executor.world.scaling.ask
        else:
            method = getattr(executor.world.store, name)
        return lambda *values, **named: executor.ask(lambda: method(*values, **named))


# --- one round of each: it is called again and again, with what it keeps in the executor ------------------------------


def _supervise(executor: Executor) -> bool:
    """As `LocalRun` does at every look."""
    store, run = executor.store, executor.world.run
    try:
        for request in (one for sight in store.sight([run.uid]) for one in look_after(store, sight)):
            executor.carrying = request
            next_step(store, run, request, executor.launch)
            executor.carrying = None
    except ProtocolViolation:
        pass  # the run has ended; the next look sees it
    return True


def _task(executor: Executor) -> bool:
    """As `LogioScaleOperator` does; its trigger waits until the next step can be taken. Its next try has the same key."""
    if executor.request is None:
        return _ask(executor)
    store, run, request = executor.store, executor.world.run, executor.request
    found = next(one for one in store.scalings(run.run_id, executor.group) if one.request_id == request.request_id)
    if found.state in OPEN_SCALING:
        replicas = run.spec.replicated[executor.group].replicas
        if not is_due(store, found, [one for one in store.groups(run.run_id) if one.group in replicas]):
            return True
    return _carries_on(executor, found)


def _person(executor: Executor) -> bool:
    """As `logio scale` does."""
    return _ask(executor) if executor.request is None else _carries_on(executor, executor.request)


def _ask(executor: Executor) -> bool:
    """One round of its own request; False if the run has ended."""
    run_id, work = executor.world.run.run_id, executor.work
    try:
        executor.request = executor.store.request_scaling(
            run_id, executor.group, work.replicas, by=work.role, key=work.key
        )
    except ProtocolViolation:
        return False
    return True


def _carries_on(executor: Executor, request: ScalingRequest) -> bool:
    executor.carrying = request
    step = next_step(executor.store, executor.world.run, request, executor.launch)
    return step.stage not in (Stage.DONE, Stage.REFUSED)


_ROUNDS: Mapping[str, Callable[[Executor], bool]] = {"supervisor": _supervise, "task": _task, "person": _person}


ROUNDS = 5
"""Most looks of a supervisor after the end."""


def applications(groups: Mapping[str, GroupPlan], shapes: Mapping[str, ReplicatedShape]) -> dict[str, GroupPlan]:
    """The units that are launched separately: groups, or their replicas, which share the plan and its weight."""
    found: dict[str, GroupPlan] = {}
    for name, plan in groups.items():
        if name not in shapes:
            found[name] = plan
            continue
        weight = plan.weight / max(shapes[name].initial, 1)
        found |= {one: replace(plan, name=one, replica_of=name, weight=weight) for one in shapes[name].replicas}
    return found


class Scaling:
    """`retired` are the replicas that are not in use according to the log."""

    def __init__(self, world: ScaledWorld) -> None:
        self._world = world
        self._store = world.store
        self._run_id = world.run.run_id
        self.shapes = world.scenario.replicated
        self.retired = set(world.run.spec.unused_replicas())
        self.moved = 0
        """Number of slots that have changed owners."""
        self.executors: dict[object, Executor] = {}
        self.unlaunched: dict[str, Claim] = {}
        """Replicas that are claimed but have no driver."""
        self._of_key: dict[tuple[str, str], int] = {}
        for shape in self.shapes.values():
            self._store.note_launch(self._run_id, shape.replicas[0], LaunchRecipe())

    def state(self, replica: str) -> GroupState:
        return self._store.group(self._run_id, replica).state

    # --- what executors change (`executors.py`) -----------------------------------------------------------------------

    def ask(
        self, run_id: int, group: str, replicas: int, *, by: str, reason: str = "", key: str | None = None
    ) -> ScalingRequest:
        """Make a request, or find the one with the same key."""
        made = self._store.request_scaling(run_id, group, replicas, by=by, reason=reason, key=key)
        if key is not None and self._of_key.setdefault((group, key), made.request_id) != made.request_id:
            raise Violation("a_key_names_one_request", f"{key!r} is that of two requests to scale {group}")
        return made

    def claim(
        self,
        request: ScalingRequest | None,
        group: str,
        expected: int,
        reason: str,
        by_user: bool,
        request_id: int | None,
    ) -> Claim:
        """The first half of a launch; it waits for the fence row. The executor may die before it starts the driver."""
        world = self._world
        if world.is_locked(group):
            raise Paused
        with world.watch.launching():
            claim = self._store.claim(
                self._run_id, group, expected=expected, reason=reason, by_user=by_user, request_id=request_id
            )
        world.watch.a_replica_is_launched_for_an_open_request(request, group)
        self.retired.discard(group)
        self.unlaunched[group] = claim
        world.to_claim[group] = False
        world.incarnations[group] = claim.incarnation
        return claim

    def begin(self, claim: Claim) -> None:
        """Start the driver of a claim. A late driver finds itself replaced or retired, and ends before it does anything."""
        if self.unlaunched.get(claim.group) is claim:
            del self.unlaunched[claim.group]
            self._world.begin(claim.group, claim)

    def rescale(
        self,
        request: ScalingRequest | None,
        run_id: int,
        group: str,
        placement: Placement,
        *,
        retire: Collection[str] = (),
        request_id: int | None = None,
    ) -> int:
        """`request` is the one that the executor is carrying out, whatever it tells the log."""
        if any(self._world.is_locked(name) for name in self.shapes[group].replicas):
            raise ReplicaBusy(f"a commit of a replica of {group!r} is under way")
        moved = self._store.rescale(run_id, group, placement, retire=retire, request_id=request_id)
        self.moved += moved
        if left := [name for name in retire if self.state(name) is not GroupState.RETIRED]:
            raise Violation("who_retires_is_retired", f"{left} were retired, and are {self.state(left[0]).value}")
        self.retired.update(retire)
        for name in retire:
            self.unlaunched.pop(name, None)
        if request is not None:
            self._world.watch.carried_out(request)
        return moved

    # --- actions ------------------------------------------------------------------------------------------------------

    def employ(self, group: str, number: object, work: object) -> bool:
        """A new process that scales."""
        assert isinstance(work, Work)
        if number in self.executors:
            return False
        self.executors[number] = Executor(self._world, group, work)
        return True

    def execute(self, number: object, questions: int) -> bool:
        """An executor resumes, and leaves when it has nothing more to do."""
        executor = self.executors.get(number)
        if executor is None:
            return False
        if not executor.resume(questions):
            del self.executors[number]
        return True

    def dismiss(self, number: object) -> bool:
        """The executor dies where it is."""
        return self.executors.pop(number, None) is not None

    def request(self, group: str, what: object) -> bool:
        """A request is made and left to others."""
        assert isinstance(what, Work)
        try:
            self.ask(self._run_id, group, what.replicas, by=what.role, key=what.key)
        except ProtocolViolation:
            return False  # the run has ended
        return True

    def supervise(self) -> bool:
        """A supervisor looks, undisturbed, and does all there is to do. False if that was nothing."""
        before = self._world.watch.tables.commits
        Executor(self._world, "", Work("supervisor")).resume(WHOLE)
        return self._world.watch.tables.commits != before

    def overdue(self, replica: str) -> bool:
        """The deadline of a launch has passed, and no driver was started."""
        claim = self.unlaunched.get(replica)
        if claim is None or self._world.is_locked(replica):
            return False
        del self.unlaunched[replica]
        self._store.declare_dead(GroupRef(self._run_id, replica, claim.incarnation), "simulated")
        self._world.to_claim[replica] = True
        return True

    def leave(self, driver: Incarnation) -> bool:
        """A replica without slots takes itself out of use when all slots are done (`driver/epochs.py`)."""
        group = driver.plan.replica_of
        if not all(slot.done for slot in self._store.slots(self._run_id, group)):
            return False
        with suppress(ProtocolViolation, ReplicaBusy):
            self.rescale(None, self._run_id, group, {}, retire=[driver.plan.name])
            return True
        return False

    def place(self, group: str, what: object) -> bool:
        """Slots are placed by hand, in any way. A refused placement changes nothing."""
        assert isinstance(what, Move)
        try:
            self.rescale(None, self._run_id, group, dict(what.placement), retire=what.retire)
        except (ProtocolViolation, ReplicaBusy):
            return False
        return True

    def revive(self, replica: str) -> bool:
        """A supervisor saw the replica alive, then dead, and tries to recover it; but it is no longer in use."""
        if replica not in self.retired or self._world.is_locked(replica):
            return False
        return self.is_not_recovered(replica)

    def is_not_recovered(self, replica: str) -> bool:
        try:
            self._store.claim(
                self._run_id, replica, expected=self._world.incarnations[replica], reason="simulated", by_user=False
            )
        except ProtocolViolation:
            return True
        raise Violation("a_retired_replica_is_launched_by_a_request_alone", f"{replica} was recovered")

    def end_run(self) -> bool:
        """Ask the log whether the run has finished; the watch checks the answer."""
        return self._store.finish_run(self._run_id)

    # --- questions ----------------------------------------------------------------------------------------------------

    def is_over(self) -> bool:
        """All slots are done, and the log knows it. If the run cannot be finished now, it never can be."""
        if not self.shapes:
            return True
        if any(not slot.done for group in self.shapes for slot in self._store.slots(self._run_id, group)):
            return False
        if not self.end_run():
            raise Violation(
                "a_run_without_open_work_finishes", "every group and slot is done, and the run has not finished"
            )
        return True

    def close(self) -> None:
        """See `World.close`."""
        self.executors.clear()
        del self._world

    def conclude(self) -> None:
        """At the end, an executor that is alive looks."""
        if not self.shapes:
            return
        for _ in range(ROUNDS):
            if not self.supervise():
                break
        self._world.watch.no_request_stays_open()
