"""Executors carry out requests to scale: a supervisor, a task, a person. Their code is `supervision/requests.py`.

The schedule may pause an executor between any two questions to the log, for any time, and may kill it there. The executor
runs the real code, which knows nothing of this: an exception pauses it, and it resumes by replaying the earlier answers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from airflow_logio.errors import LogioError, ProtocolViolation
from airflow_logio.protocol.states import OPEN_SCALING
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim
from airflow_logio.store.records.status_records import ScalingRequest
from airflow_logio.supervision.requests import Stage, is_due, look_after, next_step
from airflow_logio.testing.simulator.questions import Paused, Questions
from airflow_logio.testing.simulator.violation import Violation

if TYPE_CHECKING:
    from airflow_logio.testing.simulator.world import World

T = TypeVar("T")

WHOLE = sys.maxsize
"""Number of questions: as many as it has."""


class Work(NamedTuple):
    """The job of an executor. A supervisor handles all requests and has none of its own."""

    who: str
    replicas: int = 0
    key: str | None = None


class Executor:
    """One process. `go_on` lets it ask the log some questions, which change the log as those of a real process do."""

    def __init__(self, world: World, group: str, work: Work) -> None:
        self.world = world
        self.group = group
        self.work = work
        self._round = _ROUNDS[work.who]
        self._questions = Questions()
        self.request: ScalingRequest | None = None
        """Its own request, once it has made it."""
        self.carrying: ScalingRequest | None = None
        """The request that it is carrying out."""

    @property
    def store(self) -> LogStore:
        """The log; each question to it is one step."""
        return cast(LogStore, _Asked(self))

    def go_on(self, questions: int) -> bool:
        """Run at most until the end of its round. False if it has nothing more to do."""
        self._questions.begin(questions)
        self.carrying = None
        try:
            goes_on = self._round(self)
        except Paused:
            return True
        except LogioError as error:
            raise Violation("an_executor_never_fails", f"{self.work.who}: {type(error).__name__}: {error}") from error
        finally:
            self._questions.forget_frames()
        self._questions.clear()
        return goes_on

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
    """The log, each question of which is a step of an executor."""

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
            run_id, executor.group, work.replicas, by=work.who, key=work.key
        )
    except ProtocolViolation:
        return False
    return True


def _carries_on(executor: Executor, request: ScalingRequest) -> bool:
    executor.carrying = request
    step = next_step(executor.store, executor.world.run, request, executor.launch)
    return step.stage not in (Stage.DONE, Stage.REFUSED)


_ROUNDS: Mapping[str, Callable[[Executor], bool]] = {"supervisor": _supervise, "task": _task, "person": _person}
