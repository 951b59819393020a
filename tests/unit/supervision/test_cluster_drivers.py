"""What a look concludes from what a cluster manager says: each row of the design's table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from msgspec import structs

from airflow_logio.launch.managers.cluster_manager import DriverSight, Sighting
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import GroupRef, ManagerSaid, Submission, known_as
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.clusters.manager_answers import NO_ANSWER, Answer, ManagerAnswers
from airflow_logio.supervision.look import Watcher
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import SOMEBODY, spec

NOTED = Submission("yarn", "http://rm:8088", "logio-1234-g-1-abcdef")
SUBMITTED = structs.replace(NOTED, id="application_1_0001")
FIRST = structs.replace(SUBMITTED, attempt=1)
LEASE = Lease(seconds=10.0, launch_seconds=60.0)


@dataclass
class Given(ManagerAnswers):
    """Answers as a test gives them."""

    now: float = 100.0
    sighting: Sighting = field(default_factory=lambda: NO_ANSWER.sighting)
    asked: list[Submission] = field(default_factory=list)

    def of(self, submissions: Collection[Submission]) -> Mapping[Submission, Answer]:
        self.asked += submissions
        return {one: Answer(self.sighting, self.now) for one in submissions}


class Unasked(Given):
    """No manager was asked yet."""

    def of(self, submissions: Collection[Submission]) -> Mapping[Submission, Answer]:
        return dict.fromkeys(submissions, NO_ANSWER)


class Scene:
    """A group with a driver on a cluster, and one observer that looks once per second."""

    def __init__(self, submission: Submission = SUBMITTED) -> None:
        self.store = MemoryLogStore()
        self.run: Run = self.store.start_run(replace(spec("g"), lease=LEASE))
        self.claim = self.store.claim(self.run.run_id, "g", expected=0, reason="test")
        assert self.store.submitting(self.claim, structs.replace(submission, id=""))
        self.ref = GroupRef(self.run.run_id, "g", 1)
        if submission.id:
            self.store.note_id(self.ref, submission)
        self.store.submitted(self.claim, log_path=None, launcher=None)
        self.answers = Given()
        self.beat = 0
        self.watcher = self.observer(self.answers)

    def observer(self, answers: ManagerAnswers) -> Watcher:
        return Watcher(self.store, self.run, answers=answers, clock=lambda: self.answers.now)

    def register(self, reported: Submission | None = FIRST) -> None:
        self.store.register(self.claim, SOMEBODY, reported=reported)

    def look(self, seconds: float, *, beats: bool = False) -> GroupState | None:
        """Look for so long; the state after that."""
        state = None
        for _ in range(int(seconds)):
            self.answers.now += 1
            if beats:
                self.beat += 1
                self.store.heartbeat(self.ref, self.beat, ready=True, rss_bytes=1)
            state = self.watcher.look().observations["g"].state
        return state

    def says(self, state: DriverSight, why: str = "", *, was_taken: bool = False) -> None:
        self.answers.sighting = Sighting(state, why, was_taken=was_taken)

    @property
    def was_taken(self) -> bool:
        return self.store.drivers(self.run.run_id)[0].was_taken


# --- before it has registered -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [DriverSight.STARTING, DriverSight.STUCK, DriverSight.RUNNING])
def test_the_deadline_counts_while_it_has_room(state: DriverSight) -> None:
    scene = Scene()
    scene.says(state, "the image cannot be pulled")
    assert scene.look(60) is GroupState.SUBMITTED
    assert scene.look(3) is GroupState.DEAD
    error = scene.store.group(scene.run.run_id, "g").error or ""
    assert "did not register within" in error and "the image cannot be pulled" in error


def test_the_deadline_stands_still_in_a_queue_and_what_has_counted_stays_counted() -> None:
    scene = Scene()
    scene.says(DriverSight.STARTING)
    scene.look(40)
    scene.says(DriverSight.QUEUED, "queue default")
    assert scene.look(600) is GroupState.SUBMITTED
    assert scene.store.group(scene.run.run_id, "g").manager_said == ManagerSaid("queued", "queue default")
    scene.says(DriverSight.STARTING)
    assert scene.look(18) is GroupState.SUBMITTED
    assert scene.look(5) is GroupState.DEAD, "40 of 60 seconds had passed"
    assert not scene.was_taken


def test_an_exit_is_a_death() -> None:
    scene = Scene()
    scene.says(DriverSight.EXITED, "exit code 1")
    assert scene.look(1) is GroupState.DEAD
    assert scene.store.group(scene.run.run_id, "g").error == "the driver has ended before it registered: exit code 1"


def test_so_is_a_loss_which_the_next_launch_need_not_wait_for() -> None:
    """On a worker that was cut off, and that its master has written off since."""
    scene = Scene()
    scene.says(DriverSight.LOST, "its worker does not answer", was_taken=True)
    assert scene.look(1) is GroupState.DEAD and scene.was_taken


def test_an_exit_of_what_has_registered_meanwhile_is_none() -> None:
    """The look has read that it has not; another attempt of its application registers before the death is declared."""
    scene = Scene()
    scene.says(DriverSight.EXITED, "attempt 1")
    declare = scene.store.declare_dead

    def late(*arguments: Any, **more: Any) -> bool:
        scene.register(structs.replace(SUBMITTED, attempt=2))
        return declare(*arguments, **more)

    scene.store.declare_dead = late  # type: ignore[method-assign]
    assert scene.look(1) is GroupState.RUNNING


def test_what_the_manager_has_forgotten_is_dead_at_the_deadline_and_spends_no_budget() -> None:
    scene = Scene()
    scene.says(DriverSight.GONE)
    assert scene.look(60) is GroupState.SUBMITTED
    assert scene.look(3) is GroupState.DEAD and scene.was_taken
    never_arrived = Scene(NOTED)
    never_arrived.says(DriverSight.GONE)
    assert never_arrived.look(63) is GroupState.DEAD and not never_arrived.was_taken


def test_a_manager_that_does_not_answer_is_waited_for_once() -> None:
    scene = Scene()
    scene.says(DriverSight.UNKNOWN, "connection refused")
    assert scene.look(118) is GroupState.SUBMITTED
    assert scene.store.group(scene.run.run_id, "g").manager_said == ManagerSaid("unknown", "connection refused")
    assert scene.look(10) is GroupState.DEAD, "nobody would ever be told otherwise"


def test_an_observer_without_a_way_to_the_manager_uses_what_another_has_heard() -> None:
    scene = Scene()
    scene.says(DriverSight.UNKNOWN, "this process cannot ask it")
    other = Given(sighting=Sighting(DriverSight.QUEUED, "queue default"))
    second = scene.observer(other)
    for _ in range(400):
        second.look()
        assert scene.look(1) is GroupState.SUBMITTED
    assert scene.store.group(scene.run.run_id, "g").manager_said == ManagerSaid("queued", "queue default")


# --- after it has registered ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [one for one in DriverSight if one is not DriverSight.EXITED])
def test_only_the_lease_decides_of_what_gives_heartbeats(state: DriverSight) -> None:
    scene = Scene()
    scene.register()
    scene.says(state)
    assert scene.look(120, beats=True) is GroupState.RUNNING
    assert scene.look(9) is GroupState.RUNNING
    assert scene.look(5) is GroupState.DEAD


def test_a_heartbeat_outweighs_an_exit() -> None:
    scene = Scene()
    scene.register()
    scene.says(DriverSight.EXITED, "written off")
    assert scene.look(60, beats=True) is GroupState.RUNNING
    assert scene.look(1) is GroupState.RUNNING
    assert scene.look(2) is GroupState.DEAD, "sooner than its lease"


def test_heartbeats_after_an_exit_outweigh_it_until_it_is_said_again() -> None:
    """A node was written off, and is there after all; then its driver stands still for a moment."""
    scene = Scene()
    scene.register()
    scene.says(DriverSight.EXITED)
    assert scene.look(100, beats=True) is GroupState.RUNNING
    scene.says(DriverSight.RUNNING)
    assert scene.look(9) is GroupState.RUNNING, "its lease decides"


def test_before_a_manager_was_asked_nothing_is_said_of_it() -> None:
    scene = Scene()
    scene.watcher = scene.observer(Unasked())
    assert scene.look(2) is GroupState.SUBMITTED
    assert scene.store.group(scene.run.run_id, "g").manager_said is None


def test_the_exit_of_another_submission_says_nothing() -> None:
    """The answer to A was lost, B was noted, A registered, B has ended as refused."""
    scene = Scene()
    scene.register(structs.replace(NOTED, id="application_1_0007", attempt=1))
    scene.says(DriverSight.EXITED)
    scene.answers.asked.clear()
    scene.look(1, beats=True)
    assert {one.id for one in scene.answers.asked} == {"application_1_0007"}, "it is asked about what has registered"
    nameless = Scene()
    nameless.register(NOTED)
    nameless.says(DriverSight.EXITED)
    assert nameless.look(9) is GroupState.RUNNING, "which one it is, only the lease knows"


@pytest.mark.parametrize(
    ("sighting", "manager", "is_free"),
    [
        (Sighting(DriverSight.LOST, was_taken=True), "yarn", True),
        (Sighting(DriverSight.LOST), "yarn", False),
        (Sighting(DriverSight.GONE), "yarn", False),
        (Sighting(DriverSight.GONE), "kubernetes", True),
        (Sighting(DriverSight.EXITED, was_taken=True), "kubernetes", True),
    ],
)
def test_what_the_manager_took_spends_no_budget(sighting: Sighting, manager: str, is_free: bool) -> None:
    scene = Scene()
    scene.register(structs.replace(FIRST, manager=manager))
    scene.look(2, beats=True)
    scene.answers.sighting = sighting
    assert scene.look(14) is GroupState.DEAD
    assert scene.was_taken is is_free


# --- where a name is one driver's --------------------------------------------------------------------------------------


def test_a_pod_is_known_by_its_name_though_its_driver_cannot_say_its_uid() -> None:
    named = Submission("kubernetes", "https://api", "logio-1234-g-1-abcdef", "logio")
    noted = structs.replace(named, id="uid", cluster="space")
    scene = Scene(noted)
    scene.register(named)
    status = scene.store.group(scene.run.run_id, "g")
    assert status.submissions == (noted,)
    scene.says(DriverSight.EXITED, "OOMKilled, exit code 137")
    assert scene.look(30) is GroupState.DEAD
    assert set(scene.answers.asked) == {noted}
    scene.store.claim(scene.run.run_id, "g", expected=1, reason="test")
    assert [one.submissions for one in scene.store.left_on_clusters()] == [(noted,)]


def test_another_manager_may_have_two_drivers_of_one_name() -> None:
    reported = structs.replace(NOTED, id="application_1_0002", attempt=1)
    assert known_as(SUBMITTED, reported) == (SUBMITTED, reported)
    assert known_as(NOTED, None) == (NOTED,)
    assert known_as(None, None) == ()
