"""Answers of cluster managers, asked beside the looks: newest first, old ones forgotten, and one manager that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from airflow_logio.launch.managers.cluster_manager import ClusterManager, DriverSight, Sighting
from airflow_logio.launch.managers.known_managers import Managers
from airflow_logio.store.records.driver_records import Submission
from airflow_logio.supervision.clusters.manager_answers import NO_ANSWER, OLD_SECONDS, PACE_SECONDS, ManagerAnswers

ONE, OTHER = Submission("yarn", "one", "a", id="1"), Submission("yarn", "other", "b", id="2")


@dataclass
class Said:
    """What is asked by `ManagerAnswers`: nothing but looks."""

    look_like: Callable[[], Sighting]
    name: str = "said"

    def look(self, submissions: Sequence[Submission]) -> Mapping[Submission, Sighting]:
        return {one: self.look_like() for one in submissions}

    __hash__ = object.__hash__


@dataclass
class Several(Managers):
    of_address: dict[str, Said]
    now: float = 100.0

    def at(self, submission: Submission) -> ClusterManager:
        return cast(ClusterManager, self.of_address[submission.address])


def running() -> Sighting:
    return Sighting(DriverSight.RUNNING)


def asked(managers: Several, *submissions: Submission) -> dict[Submission, DriverSight]:
    answers = ManagerAnswers(managers, clock=lambda: managers.now)
    answers.of(submissions)
    answers.wait(20)
    return {one: answer.sighting.state for one, answer in answers.of(submissions).items()}


def test_a_look_waits_for_nothing_and_the_next_one_has_the_answer() -> None:
    may_answer = threading.Event()

    def slow() -> Sighting:
        may_answer.wait(20)
        return running()

    managers = Several({"one": Said(slow)})
    answers = ManagerAnswers(managers, clock=lambda: managers.now)
    assert answers.of([ONE]) == {ONE: NO_ANSWER}
    assert answers.of([ONE]) == {ONE: NO_ANSWER}
    may_answer.set()
    answers.wait(20)
    assert answers.of([ONE])[ONE].sighting.state is DriverSight.RUNNING


def test_a_client_that_raises_keeps_no_other_manager_from_being_asked() -> None:
    def odd() -> Sighting:
        raise KeyError("app")

    found = asked(Several({"one": Said(odd), "other": Said(running)}), ONE, OTHER)
    assert found == {ONE: DriverSight.UNKNOWN, OTHER: DriverSight.RUNNING}


def test_an_answer_does_not_hold_for_ever_when_a_manager_hangs() -> None:
    """Or a driver that once was queued would hold its deadline as long as the manager hangs."""
    hangs, may_end = threading.Event(), threading.Event()

    def later() -> Sighting:
        if hangs.is_set():
            may_end.wait(20)
        return Sighting(DriverSight.QUEUED)

    managers = Several({"one": Said(later)})
    answers = ManagerAnswers(managers, clock=lambda: managers.now)
    answers.of([ONE])
    answers.wait(20)
    hangs.set()
    managers.now += PACE_SECONDS
    assert answers.of([ONE])[ONE].sighting.state is DriverSight.QUEUED
    managers.now += OLD_SECONDS
    assert answers.of([ONE])[ONE].sighting.state is DriverSight.UNKNOWN
    may_end.set()
    answers.wait(20)
