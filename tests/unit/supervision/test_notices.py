"""What a run has to tell, from what the log says: each occurrence once, whatever looks, and however late."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from airflow_logio.errors import BudgetSpent, ConfigurationError, FailurePoint
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.states import GroupState, ScalingState
from airflow_logio.protocol.values import Status
from airflow_logio.status.whole_group import AlertFigures, alert_figures
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef, ManagerSaid, Submission
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.notices import (
    QUARANTINE_SECONDS,
    Notice,
    NoticeKind,
    notices,
    recovery_notice,
    remembered,
)
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import SOMEBODY, sent, spec
from tests.support.replicated import GROUP, replicated_run
from tests.support.two_groups import INTO, READ, TwoGroups

K = NoticeKind


@dataclass
class Teller:
    """Looks, tells, and keeps what it has told as a task does: as JSON."""

    store: LogStore
    run: Run
    seen: Any = field(default_factory=dict)

    def found(self, *, now: float = 0.0, figures: bool = True, is_last: bool = False) -> list[Notice]:
        [sight] = self.store.sight([self.run.uid])
        run_id = self.run.run_id
        return notices(
            sight,
            self.store.figures([run_id])[run_id] if figures else None,
            self.seen,
            kinds=[str(kind) for kind in NoticeKind],
            now=now,
            all_requests=partial(self.store.scalings, run_id),
            is_last=is_last,
        )

    def tell(self, **look: Any) -> list[tuple[str, str]]:
        told = [Notice.of(json.loads(json.dumps(one.as_dict()))) for one in self.found(**look)]
        for one in told:
            self.seen = json.loads(json.dumps(remembered(self.seen, one)))
        return [(str(one.kind), one.group) for one in told]


@pytest.fixture
def flow() -> TwoGroups:
    return TwoGroups(MemoryLogStore())


@pytest.fixture
def teller(flow: TwoGroups) -> Teller:
    return Teller(flow.store, flow.run)


def test_nothing_is_told_of_a_run_that_works(flow: TwoGroups, teller: Teller) -> None:
    flow.send(3, 30)
    assert teller.tell() == []
    flow.finish()
    assert teller.tell(is_last=True) == []


def test_a_group_that_is_parked_is_told_once_per_incarnation(flow: TwoGroups, teller: Teller) -> None:
    flow.drivers["totals"].session.park("KeyError: 'department'")
    [notice] = teller.found(figures=False)
    assert (notice.kind, notice.group, notice.incarnation, notice.why) == (
        K.PARKED,
        "totals",
        1,
        "KeyError: 'department'",
    )
    assert (notice.run_uid, notice.pipeline, notice.dag_run_id) == (flow.run.uid, "sales", "run-1")
    assert notice.at == flow.store.group(flow.run.run_id, "totals").since
    assert teller.tell() == [("parked", "totals")]
    assert teller.tell() == []
    claim = flow.store.claim(flow.run.run_id, "totals", expected=1, reason="a person", by_user=True)
    ref = flow.store.register(claim, SOMEBODY)
    assert teller.tell() == [], "a person's retry is no recovery"
    flow.store.park(ref, "again")
    [again] = teller.found()
    assert (again.incarnation, again.why) == (2, "again") and again.key != notice.key


def test_what_was_not_remembered_is_told_again_under_the_same_key(flow: TwoGroups, teller: Teller) -> None:
    """As after the death of a task between a callback and its note."""
    flow.drivers["totals"].session.park("no")
    [first], [second] = teller.found(), Teller(flow.store, flow.run).found()
    assert first == second and first.key == second.key == f"{flow.run.uid}/totals/parked/1"


def test_a_group_that_is_halted(flow: TwoGroups, teller: Teller) -> None:
    flow.store.request(flow.run.run_id, "ingest", GroupState.HALTED)
    assert teller.tell() == [], "not before it stands"
    flow.store.halted(flow.drivers["ingest"].ref)
    assert teller.tell() == [("halted", "ingest")]
    assert teller.tell() == []


def test_a_finished_group_that_has_work_again_is_not_told_to_be_halted(flow: TwoGroups, teller: Teller) -> None:
    """A retry of its quarantined Input Sets halts it for the moment before it is launched."""
    [sight] = flow.store.sight([flow.run.uid])
    reopened = structs.replace(sight.groups[0], state=GroupState.HALTED, desired=GroupState.RUNNING, error=None)
    look = partial(notices, figures=None, seen={}, kinds=["halted"], now=0.0, all_requests=list)
    assert look(replace(sight, groups=[reopened])) == []
    assert len(look(replace(sight, groups=[structs.replace(reopened, error="halted by its task")]))) == 1


def test_recoveries_and_a_budget_that_is_nearly_spent(flow: TwoGroups, teller: Teller) -> None:
    flow.recover("totals")
    recovery, budget = teller.found()
    assert (recovery.kind, recovery.incarnation, recovery.why) == (K.RECOVERY, 2, "test")
    assert (recovery.figures["incarnation"], recovery.figures["launched_incarnation"]) == (1, 2)
    assert (budget.kind, budget.figures["left"], budget.figures["used"]) == (K.BUDGET, 1, 1)
    assert budget.why == "1 of 2 recoveries within 600 s are spent; last cause: test"
    assert teller.tell(figures=False) == [], "they wait for figures"
    assert teller.tell() == [("recovery", "totals"), ("budget", "totals")]
    assert teller.tell() == []
    flow.recover("totals")
    assert [one.figures.get("left") for one in teller.found()] == [None, 0]


def test_each_recovery_is_told_that_came_after_one_that_was(flow: TwoGroups, teller: Teller) -> None:
    flow.recover("totals")
    flow.recover("totals")
    assert [one.incarnation for one in teller.found() if one.kind is K.RECOVERY] == [3], "at first, the latest"
    own = recovery_notice({**teller.found()[0].figures, "incarnation": 1, "launched_incarnation": 2})
    teller.seen = remembered({}, own)
    assert [one.incarnation for one in teller.found() if one.kind is K.RECOVERY] == [3]
    [third, *_] = teller.found()
    assert remembered(remembered({}, third), own)["recovery"] == {"totals": 3}, "in whichever order they are told"


def test_a_recovery_is_told_as_the_task_tells_it_that_makes_it(flow: TwoGroups, teller: Teller) -> None:
    """Both have the entries of `context["recovery"]`, so that callbacks need not know who has recovered a group."""
    flow.recover("totals")
    names = {
        "run_uid", "pipeline", "dag_run_id", "group", "incarnation", "cause", "detected_at", "outcome", "why",
        "launched_incarnation", "fenced_at", "launched_at",
    }  # fmt: skip
    assert set(teller.found()[0].figures) == names


def test_a_recovery_that_parks_its_group_has_a_key_of_its_own(flow: TwoGroups, teller: Teller) -> None:
    flow.recover("totals")
    launched = teller.found()[0]
    parked = recovery_notice(
        {**launched.figures, "incarnation": 2, "launched_incarnation": None, "outcome": "parked", "why": "x" * 100_000}
    )
    assert launched.incarnation == parked.incarnation == 2 and launched.key != parked.key
    assert len(json.dumps(parked.as_dict())) < 20_000
    assert remembered({}, parked) == {}, "the log does not lead back to it"


def test_the_place_where_code_fails_has_a_budget_of_its_own() -> None:
    store = MemoryLogStore()
    run = store.start_run(spec("g", budget=RecoveryBudget(recoveries=9)))
    teller, told, left = Teller(store, run), list[Any](), list[AlertFigures]()
    for incarnation in (1, 2):
        fail(store, run, incarnation)
        told.append([one for one in teller.found() if one.kind is K.BUDGET])
        teller.tell()
        left.append(alert_figures(run, "g", store.groups(run.run_id), store.figures([run.run_id])[run.run_id]))
    assert told[0] == [], "once is no pattern"
    assert [one.recoveries_left for one in left] == [8, 0], "an alert says so when the callback does"
    [[budget]] = told[1:]
    assert (budget.figures["left"], budget.figures["used"]) == (0, 2)
    assert budget.figures["failed_at"] == "event 7 on port total.in"
    assert budget.why.startswith(
        "it has failed at event 7 on port total.in again, and is parked if it does so once more"
    )
    with pytest.raises(BudgetSpent):
        fail(store, run, 3)
    assert teller.tell() == [("parked", "g")], "as it said"


def fail(store: LogStore, run: Run, incarnation: int) -> None:
    """An operator's code raises at one and the same event, and the group is recovered."""
    if incarnation == 1:
        store.claim(run.run_id, "g", expected=0, reason="first launch")
    ref = GroupRef(run.run_id, "g", incarnation)
    assert store.declare_dead(ref, "KeyError", failed_at=FailurePoint("total", "in", 7))
    store.claim(run.run_id, "g", expected=incarnation, reason="KeyError")


def test_quarantine_is_told_at_once_and_then_now_and_then_with_the_number(flow: TwoGroups, teller: Teller) -> None:
    flow.set_aside("1", "2", error="ValueError: no")
    [first] = teller.found(now=100.0)
    assert (first.kind, first.group, first.incarnation, first.figures) == (
        K.QUARANTINE,
        "totals",
        None,
        {"input_sets": 2},
    )
    assert teller.tell(now=100.0) == [("quarantine", "totals")]
    assert teller.tell(now=100.0 + QUARANTINE_SECONDS) == [], "nothing new"
    more(flow, "3")
    assert teller.tell(now=99.0 + QUARANTINE_SECONDS) == [], "too soon"
    [again] = teller.found(now=100.0 + QUARANTINE_SECONDS)
    assert again.figures == {"input_sets": 3} and again.key != first.key
    assert teller.tell(now=101.0, is_last=True) == [("quarantine", "totals")], "nothing is held back at the end"
    assert teller.tell(now=102.0, is_last=True) == []


def more(flow: TwoGroups, inset: str) -> None:
    """One more Input Set is set aside."""
    flow.drivers["ingest"].session.commit([sent(2, receiver=INTO, sender=READ)])
    flow.drivers["totals"].session.commit([fx.Acknowledge(READ, INTO, 2, ((inset, Status.UNDONE),))])
    flow.drivers["totals"].session.commit([fx.SetAside("total", inset, 1, "ValueError: no")])


def test_a_queue_that_lasts_is_told_when_a_launch_takes_no_longer_and_then_ever_more_rarely() -> None:
    clock = [1000.0]
    store = MemoryLogStore(lambda: clock[0])
    run = store.start_run(spec("g"))
    teller, limit = Teller(store, run), run.spec.lease.launch_seconds
    claim = store.claim(run.run_id, "g", expected=0, reason="test")
    assert store.submitting(claim, Submission("yarn", "http://rm:8088", "logio-g"))
    assert store.submitted(claim, log_path=None, launcher=None)
    ref, told = GroupRef(run.run_id, "g", 1), dict[float, Notice]()

    def wait(times: float, said: str = "queued") -> list[Notice]:
        clock[0] = 1000.0 + times * limit
        store.note_said(ref, ManagerSaid(said, "queue etl", 1000.0))
        found = teller.found()
        teller.tell()
        assert teller.found() == [], "once"
        return found

    for quarters in range(1, 40):
        for one in wait(quarters / 4):
            told[quarters / 4] = one
    assert list(told) == [1, 2, 4, 8]
    assert [one.mark for one in told.values()] == [[1, times] for times in range(4)]
    assert len({one.key for one in told.values()}) == 4
    assert told[2].kind is K.QUEUED and told[2].figures == {"seconds": 2 * limit, "launch_seconds": limit}
    assert "queue etl" in told[2].why and f"for {2 * limit:,.0f} s" in told[2].why
    clock[0] += 100 * limit
    assert teller.found() == [], "what its manager said then is old"
    assert wait(200, "starting") == []
    [told[1000]] = wait(1000)
    assert store.declare_dead(ref, "test")
    again = store.claim(run.run_id, "g", expected=1, reason="test")
    assert store.submitted(again, log_path=None, launcher=None)
    ref = GroupRef(run.run_id, "g", 2)
    clock[0] += 1.5 * limit
    store.note_said(ref, ManagerSaid("queued", "queue etl"))
    assert [(one.kind, one.mark) for one in teller.found() if one.kind is K.QUEUED] == [(K.QUEUED, [2, 0])]


def test_requests_to_scale_are_told_with_their_outcome() -> None:
    store = MemoryLogStore()
    run = replicated_run(store)
    teller = Teller(store, run)
    first = store.request_scaling(run.run_id, GROUP, 3, by="logio scale", reason="it is slow")
    assert teller.tell() == [], "it is under way"
    store.settle_scaling(first.request_id, ScalingState.ACCEPTED)
    store.settle_scaling(first.request_id, ScalingState.DONE)
    [notice] = teller.found()
    assert (notice.kind, notice.group, notice.incarnation) == (K.SCALING, GROUP, None)
    assert notice.why == "3 replicas, asked for by logio scale (it is slow)"
    assert (notice.figures["outcome"], notice.figures["replicas"]) == ("done", 3)
    assert teller.tell() == [("scaling", GROUP)]
    assert teller.tell() == []
    store.request_scaling(run.run_id, GROUP, 1, by="policy")
    last = store.request_scaling(run.run_id, GROUP, 2, by="policy")
    assert teller.tell() == [], "one was superseded, and its successor is open"
    store.settle_scaling(last.request_id, ScalingState.REFUSED, "no place")
    superseded, refused = teller.found()
    assert (superseded.figures["replicas"], refused.figures["replicas"]) == (1, 2)
    assert superseded.figures["outcome"] == refused.figures["outcome"] == "refused"
    assert refused.why == "2 replicas, asked for by policy: no place"


def test_only_what_is_wanted_is_found(flow: TwoGroups) -> None:
    flow.recover("totals")
    flow.drivers["totals"].session.park("no")
    [sight] = flow.store.sight([flow.run.uid])

    def unasked() -> list[Any]:
        raise AssertionError("no callback wants requests")

    figures = flow.store.figures([flow.run.run_id])[flow.run.run_id]
    found = notices(sight, figures, {}, kinds=["parked"], now=0.0, all_requests=unasked)
    assert [one.kind for one in found] == [K.PARKED]


def test_a_long_error_is_cut_and_says_where_the_rest_is(flow: TwoGroups, teller: Teller) -> None:
    flow.drivers["totals"].session.park("x" * 100_000)
    [notice] = teller.found()
    assert len(notice.why) < 5_000 and notice.why.endswith("(`logio status` shows all of it)")


@pytest.mark.parametrize("wrong", [None, {}, {"kind": "nonsense"}, "parked"])
def test_something_else_than_a_notice(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="a notice is expected"):
        Notice.of(wrong)
