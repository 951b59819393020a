"""A launcher of a driver on a cluster dies at each step, or loses the answer: who finds what it has left, and what is ended.

The managers here are a file with one line for each request, so that a launcher that dies can be another process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from msgspec import structs

from airflow_logio.crash import CrashPoint
from airflow_logio.errors import ConfigurationError, Fenced, ManagerUnavailable, NeverFits, SubmissionUnknown
from airflow_logio.launch import cluster_launch
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.managers.cluster_manager import ClusterManager, DriverSight, Sighting, claim_name
from airflow_logio.launch.managers.known_managers import Managers
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.states import GroupState
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, GroupRef, Submission
from airflow_logio.supervision.clusters.left_drivers import GRACE_SECONDS, LeftDrivers
from tests.support.crash_sites import IN_SUBMISSIONS
from tests.support.logs import SOMEBODY, spec

NO_LAUNCH = cast(Launch, None)
"""This manager starts nothing."""


@dataclass(frozen=True)
class Paper(ClusterManager):
    """A cluster on paper: name of a driver → what has become of it."""

    path: Path
    loses: str = ""
    """``answer``: the driver is accepted and nothing is heard of it; ``request``: it is not even accepted."""

    name = "paper"

    def read(self) -> dict[str, str]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def put(self, name: str, state: str) -> None:
        self.path.write_text(json.dumps(self.read() | {name: state}))

    def check(self, settings: SparkSettings, conf: Mapping[str, str]) -> None:
        pass

    def check_answers(self) -> None:
        pass

    def prepare(self, claim: Claim, launch: Launch) -> Submission:
        return Submission(self.name, str(self.path), claim_name(claim))

    def submit(self, submission: Submission, claim: Claim, launch: Launch) -> Submission:
        if self.loses == "refused":
            raise ConfigurationError("the queue does not exist")
        if self.loses != "request":
            self.put(submission.name, "running")
        if self.loses:
            raise SubmissionUnknown("the answer was lost")
        return self._with_id(submission)

    def find(self, submission: Submission) -> Sequence[Submission]:
        return [self._with_id(submission)] if submission.name in self.read() else []

    def look(self, submissions: Sequence[Submission]) -> Mapping[Submission, Sighting]:
        known = self.read()
        return {one: Sighting(DriverSight(known.get(one.name, "gone"))) for one in submissions}

    def end(self, submission: Submission) -> bool:
        if self.loses == "ends":
            raise ManagerUnavailable("it is restarted")
        if submission.name in self.read():
            self.put(submission.name, "exited")
        return True

    def sweep(self, log_uid: str, is_known: Callable[[str], bool]) -> int:
        return 0

    def output_command(self, submission: Submission) -> str:
        return f"cat {self.path}"

    @staticmethod
    def _with_id(submission: Submission) -> Submission:
        return structs.replace(submission, id=f"id of {submission.name}")


class OnPaper(Managers):
    def at(self, submission: Submission) -> ClusterManager:
        return Paper(Path(submission.address))


def claimed(store: LogStore, expected: int = 0) -> Claim:
    run = store.start_run(spec("g"))
    return store.claim(run.run_id, "g", expected=expected, reason="test")


def ref_of(claim: Claim) -> GroupRef:
    return GroupRef(claim.run_id, claim.group, claim.incarnation)


PROGRAM = """
import sys, pathlib
from airflow_logio.launch import cluster_launch
from airflow_logio.store import open_store
from tests.unit.launch.test_cluster_launch import NO_LAUNCH, Paper, claimed
store = open_store(sys.argv[1])
cluster_launch.submit(store, Paper(pathlib.Path(sys.argv[2])), claimed(store), NO_LAUNCH)
"""


@pytest.mark.parametrize("point", IN_SUBMISSIONS)
def test_a_launcher_that_dies_leaves_nothing_that_is_not_found(point: CrashPoint, log_url: str, tmp_path: Path) -> None:
    paper = Paper(tmp_path / "paper")
    launcher = subprocess.run(
        [sys.executable, "-c", PROGRAM, log_url, str(paper.path)],
        env={**os.environ, "LOGIO_CRASH_AT": f"{point}:1"},
        timeout=120,
        check=False,
    )
    assert launcher.returncode == -9
    store = open_store(log_url)
    (run,) = store.list_runs()
    status = store.group(run.run_id, "g")
    assert status.state is GroupState.CLAIMED
    is_noted = point is not CrashPoint.BEFORE_SUBMISSION_NOTE
    assert (status.submission is not None) == is_noted
    assert bool(paper.read()) == (point is CrashPoint.AFTER_SUBMISSION)

    # It has not registered in time, so the group is claimed anew; what was submitted is ended, or never came.
    store.declare_dead(GroupRef(run.run_id, "g", 1), "did not register", unregistered=True)
    claimed(store, expected=1)
    left = LeftDrivers(store, OnPaper())
    expected = is_noted and point is not CrashPoint.AFTER_SUBMISSION
    assert bool(left.look_after()) == expected, "what is only noted may still be on its way"
    assert set(paper.read().values()) <= {"exited"}
    if point is CrashPoint.AFTER_SUBMISSION:
        assert list(store.left_on_clusters()) == []
    store.dispose()


def test_a_driver_whose_answer_was_lost_is_the_driver_if_it_comes(log_store: LogStore, tmp_path: Path) -> None:
    claim = claimed(log_store)
    paper = Paper(tmp_path / "paper", loses="answer")
    cluster_launch.submit(log_store, paper, claim, NO_LAUNCH)
    status = log_store.group(claim.run_id, "g")
    assert status.state is GroupState.SUBMITTED and status.submission is not None and not status.submission.id
    log_store.register(claim, SOMEBODY, reported=paper.find(status.submission)[0])
    assert log_store.group(claim.run_id, "g").state is GroupState.RUNNING


def test_a_refused_submission_is_a_death_with_its_reason(log_store: LogStore, tmp_path: Path) -> None:
    claim = claimed(log_store)
    with pytest.raises(ConfigurationError, match="queue"):
        cluster_launch.submit(log_store, Paper(tmp_path / "paper", loses="refused"), claim, NO_LAUNCH)
    status = log_store.group(claim.run_id, "g")
    assert (status.state, status.error) == (GroupState.DEAD, "launch failed: the queue does not exist")


@pytest.mark.parametrize("is_late", [False, True])
def test_a_driver_that_never_fits_parks_its_group_at_once(log_store: LogStore, tmp_path: Path, is_late: bool) -> None:
    """Unless another process has claimed it meanwhile: its launch is not touched."""

    class Small(Paper):
        def submit(self, submission: Submission, claim: Claim, launch: Launch) -> Submission:
            if is_late:
                log_store.declare_dead(ref_of(claim), "did not register")
                log_store.claim(claim.run_id, "g", expected=1, reason="by another process")
            raise NeverFits("8Gi of memory, and the quota is 4Gi")

    claim = claimed(log_store)
    with pytest.raises(ConfigurationError, match="4Gi"):
        cluster_launch.submit(log_store, Small(tmp_path / "paper"), claim, NO_LAUNCH)
    status = log_store.group(claim.run_id, "g")
    if is_late:
        assert (status.state, status.incarnation) == (GroupState.CLAIMED, 2)
    else:
        assert status.state is GroupState.PARKED
        assert status.error == "launch failed: 8Gi of memory, and the quota is 4Gi"


def test_nothing_is_submitted_for_a_claim_that_is_void(log_store: LogStore, tmp_path: Path) -> None:
    claim, paper = claimed(log_store), Paper(tmp_path / "paper")
    log_store.declare_dead(ref_of(claim), "its launcher slept")
    claimed(log_store, expected=1)
    with pytest.raises(Fenced):
        cluster_launch.submit(log_store, paper, claim, NO_LAUNCH)
    assert paper.read() == {}


def test_the_end_of_a_replaced_driver_is_asked_for_until_it_is_confirmed(log_store: LogStore, tmp_path: Path) -> None:
    claim, paper = claimed(log_store), Paper(tmp_path / "paper")
    cluster_launch.submit(log_store, paper, claim, NO_LAUNCH)
    log_store.declare_dead(ref_of(claim), "cut off")
    assert LeftDrivers(log_store, OnPaper()).look_after() == [], "a dead one is ended by its successor's launch"
    claimed(log_store, expected=1)
    unreached = LeftDrivers(log_store, cast(Managers, _Always(Paper(paper.path, loses="ends"))))
    assert unreached.look_after() and unreached.look_after()
    assert set(paper.read().values()) == {"running"}
    assert LeftDrivers(log_store, OnPaper()).look_after() == []
    assert set(paper.read().values()) == {"exited"}
    assert list(log_store.left_on_clusters()) == []


@dataclass
class _Always:
    manager: ClusterManager

    def at(self, _: Submission) -> ClusterManager:
        return self.manager


def test_a_driver_whose_group_has_ended_may_end_by_itself(
    log_store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, paper = claimed(log_store), Paper(tmp_path / "paper")
    cluster_launch.submit(log_store, paper, claim, NO_LAUNCH)
    log_store.halted(ref_of(claim))
    left = LeftDrivers(log_store, OnPaper())
    assert left.look_after() and set(paper.read().values()) == {"running"}, f"for {GRACE_SECONDS:g} s"
    monkeypatch.setattr("airflow_logio.supervision.clusters.left_drivers.GRACE_SECONDS", 0.0)
    assert left.look_after() == [] and set(paper.read().values()) == {"exited"}


def test_that_a_manager_took_its_room_may_be_learned_late(log_store: LogStore, tmp_path: Path) -> None:
    claim, paper = claimed(log_store), Paper(tmp_path / "paper")
    cluster_launch.submit(log_store, paper, claim, NO_LAUNCH)
    log_store.declare_dead(ref_of(claim), "no heartbeat")
    claimed(log_store, expected=1)

    class Evicting(Paper):
        def look(self, submissions: Sequence[Submission]) -> Mapping[Submission, Sighting]:
            return {one: Sighting(DriverSight.LOST, "evicted", was_taken=True) for one in submissions}

    LeftDrivers(log_store, cast(Managers, _Always(Evicting(paper.path)))).look_after()
    assert [one.was_taken for one in log_store.drivers(claim.run_id)] == [True, False]


def test_two_names_of_claims_never_agree(log_store: LogStore) -> None:
    """However alike their groups are: a name is cut, and of a log that was restored the same incarnation is claimed twice."""
    first = claimed(log_store)
    groups = ["Über" + "x" * 80 + end for end in "abab"]
    names = {claim_name(replace(first, group=group, nonce=uuid.uuid4().hex)) for group in groups}
    assert len(names) == 4 and all(len(one) <= 63 and one.isascii() and one == one.lower() for one in names)


class Odd(Managers):
    """One manager whose client raises what nothing foresees, one that does not answer; all others are paper."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def at(self, submission: Submission) -> ClusterManager:
        self.asked.append(submission.address)
        if submission.address == "odd":
            raise KeyError("app")
        if submission.address == "silent":
            raise ManagerUnavailable("it is restarted")
        return Paper(Path(submission.address))


def test_one_manager_that_fails_keeps_no_driver_of_another_from_its_end(log_store: LogStore, tmp_path: Path) -> None:
    paper, run = Paper(tmp_path / "paper"), log_store.start_run(spec("a", "b", "c", "d", "e"))
    for group, address in (("a", ""), ("b", "odd"), ("c", "silent"), ("d", "silent"), ("e", "")):
        claim = log_store.claim(run.run_id, group, expected=0, reason="test")
        submission = paper.prepare(claim, NO_LAUNCH)
        submission = structs.replace(submission, address=address or submission.address)
        log_store.submitting(claim, submission)
        log_store.note_id(ref_of(claim), paper.submit(submission, claim, NO_LAUNCH))
        log_store.declare_dead(ref_of(claim), "test")
        log_store.claim(run.run_id, group, expected=1, reason="test")
    odd = Odd()
    assert {one.ref.group for one in LeftDrivers(log_store, odd).look_after()} == {"b", "c", "d"}
    assert odd.asked.count("silent") == 1, "it is not asked for each of its drivers"
    assert not cluster_launch.end(odd, [Submission("paper", "odd", "x", id="x")]), (
        "nor is a launch kept from what follows"
    )


def test_a_submission_that_is_refused_for_now_spends_no_budget(log_store: LogStore, tmp_path: Path) -> None:
    class Full(Paper):
        def submit(self, submission: Submission, claim: Claim, launch: Launch) -> Submission:
            raise ManagerUnavailable("exceeded quota")

    run = log_store.start_run(spec("g"))
    for incarnation in range(25):
        claim = log_store.claim(run.run_id, "g", expected=incarnation, reason="test")
        with pytest.raises(ManagerUnavailable):
            cluster_launch.submit(log_store, Full(tmp_path / "paper"), claim, NO_LAUNCH)
    assert log_store.group(run.run_id, "g").state is GroupState.DEAD, "it is not parked: no driver was taken either"
