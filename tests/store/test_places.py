"""Places for drivers: how many all runs of a pipeline may have at once, asked at the first claim of each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from airflow_logio.errors import BudgetSpent, Fenced, NoPlace, ProtocolViolation
from airflow_logio.protocol.states import ALIVE, GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, GroupRef
from airflow_logio.store.records.run_records import ConcurrentRuns, Run
from airflow_logio.store.sql.engines import LockTimeout
from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import QUICK
from tests.store.conftest import OpenStore
from tests.support.faults import Pause, before_statement
from tests.support.logs import SOMEBODY, contents, finish, spec
from tests.support.racing import race

STANDS_SECONDS = 0.1


def begin(store: LogStore, name: str, *groups: str, bound: int | None = 3) -> Run:
    return store.start_run(replace(spec(*(groups or ("a", "b")), dag_run=name), drivers_at_once=bound))


def claim(store: LogStore, run: Run, group: str = "a", expected: int = 0, *, by_user: bool = False) -> Claim:
    return store.claim(run.run_id, group, expected=expected, reason="test", by_user=by_user)


def launch(store: LogStore, run: Run, group: str = "a") -> GroupRef:
    return store.register(claim(store, run, group), SOMEBODY)


def ahead(store: LogStore, *runs: Run) -> list[int | None]:
    found = store.runs_ahead([run.run_id for run in runs])
    return [found[run.run_id] for run in runs]


def test_a_run_begins_when_all_its_groups_fit(log_store: LogStore) -> None:
    first, second = (begin(log_store, name) for name in ("monday", "tuesday"))
    assert ahead(log_store, first, second) == [0, 1], "no run has one yet"
    finish(log_store, launch(log_store, first))
    launch(log_store, first, "b")
    assert claim(log_store, second).incarnation == 1, "one driver is left of the first, and two come"
    third = begin(log_store, "wednesday")
    before = contents(log_store)
    for group in ("a", "b"):
        with pytest.raises(NoPlace, match=r"run wednesday of sales, .* needs 2 drivers, 2 other .* have 3, .* is 3"):
            claim(log_store, third, group)
    assert contents(log_store) == before and ahead(log_store, third) == [None]
    assert claim(log_store, second, "b").incarnation == 1, "the run has begun, and its groups wait for each other"
    other = log_store.start_run(replace(third.spec, key=replace(third.spec.key, pipeline="other")))
    assert claim(log_store, other).incarnation == 1, "another pipeline has places of its own"
    unbounded = begin(log_store, "thursday", bound=None)
    assert claim(log_store, unbounded).incarnation == 1


def test_a_run_that_needs_more_places_than_there_are_begins_alone(log_store: LogStore) -> None:
    large, other = begin(log_store, "large", "a", "b", "c", bound=2), begin(log_store, "other", "a", bound=2)
    ref = launch(log_store, large)
    with pytest.raises(NoPlace, match="have 3, and drivers_at_once is 2"):
        claim(log_store, other)
    for group in ("b", "c"):
        finish(log_store, launch(log_store, large, group))
    assert claim(log_store, other).incarnation == 1, "its driver of a, and this one"
    assert log_store.group(large.run_id, ref.group).state is GroupState.RUNNING


@pytest.mark.parametrize("end", ["parked", "halted", "dead", "finished", "given up"])
def test_a_run_gives_its_place_to_others(log_store: LogStore, end: str) -> None:
    """Also one that lost its DAG run after its first claim: nothing launches its other group any more."""
    first, second = (begin(log_store, name) for name in ("monday", "tuesday"))
    ref = launch(log_store, first)
    assert ahead(log_store, second) == [None]
    if end == "finished":
        finish(log_store, ref)
    elif end == "parked":
        assert log_store.park(ref, "KeyError")
    elif end == "dead":
        assert log_store.declare_dead(ref, "killed")
    else:
        assert log_store.halted(ref)
    if end == "given up":
        assert log_store.supersede(first.run_id)
    assert ahead(log_store, second) == [0]
    assert claim(log_store, second).incarnation == 1
    if end in ("parked", "halted"):
        assert claim(log_store, first, "a", 1, by_user=True).incarnation == 2, "a person's retry is not held up"
    if end == "dead":
        assert claim(log_store, first, "a", 1).incarnation == 2, "nor is a recovery"
    if end != "given up":
        assert claim(log_store, first, "b").incarnation == 1, "nor the other group of a run that has begun"


def test_a_person_is_not_held_up_and_who_is_to_halt_halts(log_store: LogStore) -> None:
    first, second, third = (begin(log_store, name) for name in ("monday", "tuesday", "wednesday"))
    claim(log_store, first)
    assert claim(log_store, second, by_user=True).incarnation == 1
    assert log_store.request(third.run_id, "a", GroupState.HALTED)
    with pytest.raises(ProtocolViolation, match="was asked to halt"):
        claim(log_store, third)
    assert log_store.group(third.run_id, "a").state is GroupState.HALTED


def test_of_many_that_ask_at_once_as_many_begin_as_fit(log_store: LogStore) -> None:
    runs = [begin(log_store, f"day {number}", bound=5) for number in range(6)]
    asked = race(*[lambda run=run, group=group: claim(log_store, run, group) for run in runs for group in ("a", "b")])
    assert all(isinstance(one, Claim | NoPlace) for one in asked), asked
    assert len({one.run_id for one in asked if isinstance(one, Claim)}) == 2


def test_who_waits_knows_how_many_wait_before(log_store: LogStore) -> None:
    first, *waiting = (begin(log_store, f"day {number}") for number in range(4))
    ref = launch(log_store, first)
    assert ahead(log_store, *waiting) == [None] * 3
    assert log_store.park(ref, "it is red")
    assert ahead(log_store, *waiting) == [0, 1, 2]
    assert log_store.supersede(waiting[0].run_id)
    assert ahead(log_store, *waiting) == [None, 0, 1], "one that was given up does not wait"
    assert claim(log_store, waiting[2]).incarnation == 1, "the line blocks no run"
    assert ahead(log_store, waiting[1]) == [None]
    assert ahead(log_store, waiting[2]) == [0], "its other groups follow at once"


def test_as_many_as_fit_have_none_before_them(log_store: LogStore) -> None:
    first, *waiting = (begin(log_store, f"day {number}", "a", bound=3) for number in range(6))
    launch(log_store, first)
    assert ahead(log_store, *waiting) == [0, 0, 1, 2, 3], "two places are free"
    large, *small = (
        begin(log_store, name, *groups, bound=3) for name, groups in (("large", "abc"), ("s", "a"), ("t", "a"))
    )
    for run in waiting:
        assert log_store.supersede(run.run_id)
    assert ahead(log_store, large, *small) == [None, 0, 0], "the large one begins alone, and does not bar the others"
    assert claim(log_store, small[0]).incarnation == claim(log_store, small[1]).incarnation == 1
    assert ahead(log_store, large) == [None]


def test_all_that_have_none_before_them_begin_together(log_store: LogStore) -> None:
    """Whatever they need, and in their order; and of those that wait one has none before it, if one can begin."""
    for seed in range(10):
        dice = random.Random(seed)
        bound = dice.randint(1, 5)
        needed = [dice.randint(1, 6) for _ in range(8)]
        runs = [
            begin(log_store, f"{seed}, {day}", *"abcdef"[:groups], bound=bound) for day, groups in enumerate(needed)
        ]
        state = {run.run_id: GroupState.NEW for run in runs}
        while set(state.values()) != {GroupState.PARKED}:
            waiting = [run for run in runs if state[run.run_id] is GroupState.NEW]
            found = log_store.runs_ahead([run.run_id for run in waiting])
            woken = [run for run in waiting if found[run.run_id] == 0]
            assert bool(woken) is any(one is not None for one in found.values())
            for run in woken:
                claim(log_store, run)
                state[run.run_id] = GroupState.CLAIMED
            begun = [run for run in runs if state[run.run_id] is GroupState.CLAIMED]
            assert begun, "no run waits for ever"
            ended = dice.choice(begun)
            assert log_store.park(GroupRef(ended.run_id, "a", 1), "it is red")
            state[ended.run_id] = GroupState.PARKED


def test_of_many_pipelines_each_run_is_told_of_its_own(log_store: LogStore) -> None:
    ours, other = (begin(log_store, f"day {number}", "a", bound=1) for number in range(2))
    others = [
        log_store.start_run(
            replace(ours.spec, key=replace(ours.spec.key, pipeline="other", dag_run_id=f"other {number}"))
        )
        for number in range(2)
    ]
    launch(log_store, others[0])
    assert ahead(log_store, ours, other, *others) == [0, 1, 0, None]
    assert log_store.runs_ahead([10_000, ours.run_id]) == {ours.run_id: 0}, "one that was removed holds up no other"


RIVALS: dict[str, Callable[[SqlLogStore, Run, Run], Any]] = {
    "first claim": lambda store, run, other: claim(store, other),
    "the other group": lambda store, run, other: claim(store, run, "b"),
    "start": lambda store, run, other: begin(store, f"{run.spec.key.dag_run_id}, and more"),
    "supersede": lambda store, run, other: store.supersede(run.run_id),
    "retry": lambda store, run, other: claim(store, other, by_user=True),
}


@pytest.mark.parametrize("name", RIVALS)
def test_wherever_a_first_claim_stands_a_rival_comes_before_it_or_after(open_another: OpenStore, name: str) -> None:
    """The claim stands still before each of its statements. No order of both is a deadlock, or gives a place twice."""
    store, rival = open_another(), open_another(application="logio rival")
    number, reached = 0, True
    while reached:
        number += 1
        run, other = (begin(store, f"{which} {number}") for which in ("run", "other"))
        pause = Pause()
        with ThreadPoolExecutor(2) as pool, before_statement(store, number, pause):
            claiming = pool.submit(claim, store, run)
            reached = pause.is_reached_before(claiming)
            coming = pool.submit(QUICK.call, "the rival", lambda run=run, other=other: RIVALS[name](rival, run, other))
            wait([coming], STANDS_SECONDS)
            pause.release()
            mine, theirs = claiming.exception(90), coming.exception(90)
        if name == "first claim":
            assert {type(mine), type(theirs)} == {type(None), NoPlace}, (mine, theirs)
        elif name == "supersede":
            assert isinstance(mine or theirs, ProtocolViolation) and (mine is None) != (theirs is None), (mine, theirs)
        elif name == "retry":
            assert theirs is None and isinstance(mine, NoPlace | None), (mine, theirs)
        else:
            assert mine is theirs is None, (mine, theirs)
        for one in (run, other):
            for group in store.groups(one.run_id):
                if group.state in ALIVE:
                    store.park(GroupRef(one.run_id, group.group, group.incarnation), "the next round")
    assert number > 5


class Rounds:
    """What happens to the runs of a pipeline, at random: begun, claimed, ended, given up."""

    def __init__(self, store: SqlLogStore, seed: int, names: Iterator[int]) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.names = names

    def __call__(self) -> int:
        done = 0
        for _ in range(25):
            try:
                self._act()
                done += 1
            except (NoPlace, Fenced, ProtocolViolation, BudgetSpent, LockTimeout):  # a circle is no timeout
                continue
        return done

    def _act(self) -> None:
        runs = [run for run, _ in self.store.unfinished(pipeline="sales")]
        if len(runs) < 3:
            begin(self.store, f"run {next(self.names)}")
            return
        run = self.random.choice(runs)
        group = self.random.choice(self.store.groups(run.run_id))
        ref = GroupRef(run.run_id, group.group, group.incarnation)
        by_user = self.random.random() < 0.2
        act: Callable[[], object] = self.random.choice(
            (
                lambda: claim(self.store, run, group.group, group.incarnation, by_user=by_user),
                lambda: claim(self.store, run, group.group, group.incarnation),
                lambda: self.store.declare_dead(ref, "killed"),
                lambda: self.store.park(ref, "an error"),
                lambda: self.store.supersede(run.run_id),
                lambda: self.store.start_run(run.spec, concurrent=ConcurrentRuns.ISOLATED),
            )
        )
        act()


def test_starts_claims_and_ends_do_not_wait_for_each_other_in_a_circle(open_another: OpenStore) -> None:
    """PostgreSQL ends one of those in a circle with an error, which nothing here repeats."""
    names = count()
    done = race(*[Rounds(open_another(application=f"logio {seed}"), seed, names) for seed in range(6)])
    assert all(isinstance(one, int) and one > 5 for one in done), done
