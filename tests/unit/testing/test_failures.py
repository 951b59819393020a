"""A schedule that fails: its seed makes it again, it gets short, and it is told."""

from __future__ import annotations

import pytest

from airflow_logio.testing import FailedSchedule, Simulator, shrink, tell
from tests.simulator import SCENARIOS
from tests.unit.testing.mutants import MUTANTS

NAMES = ["trigger_not_committed", "marker_not_checked", "fence_by_plain_select", "stored_effect_cut_short"]


def first_failure(simulator: Simulator) -> FailedSchedule:
    for seed in range(2_000):
        _, failure = simulator.run(seed)
        if failure is not None:
            return failure
    raise AssertionError("nothing fails")


def broken(name: str, patch: pytest.MonkeyPatch) -> Simulator:
    mutant = MUTANTS[name]
    simulator = Simulator(SCENARIOS[mutant.scenario](), world_class=mutant.world)
    simulator.reference()
    mutant.install(patch)
    return simulator


@pytest.mark.parametrize(
    "name", ["trigger_not_committed", "marker_not_checked", "fence_by_plain_select", "stored_effect_cut_short"]
)
def test_its_seed_makes_it_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = broken(name, monkeypatch)
    failure = first_failure(simulator)
    assert simulator.run(failure.seed)[1] == failure
    again = simulator.replay(failure.seed, failure.trace)
    assert again is not None
    assert (again.invariant, again.what) == (failure.invariant, failure.what)


@pytest.mark.parametrize(
    "name", ["trigger_not_committed", "marker_not_checked", "fence_by_plain_select", "stored_effect_cut_short"]
)
def test_what_does_not_matter_is_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = broken(name, monkeypatch)
    failure = first_failure(simulator)
    short = shrink(simulator, failure)
    assert short.invariant == failure.invariant
    assert len(short.trace) <= 40
    assert simulator.replay(short.seed, short.trace) == short
    leaving_out = [[*short.trace[:index], *short.trace[index + 1 :]] for index in range(len(short.trace))]
    still = [
        actions
        for actions in leaving_out
        if (found := simulator.replay(0, actions)) and found.invariant == short.invariant
    ]
    assert still == [], "every choice that is left matters"


def test_a_story_says_who_did_what_and_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = broken("trigger_not_committed", monkeypatch)
    story = tell(simulator, shrink(simulator, first_failure(simulator)))
    assert story[0] in {f"group {name}: incarnation 1 is claimed" for name in ("ingest", "window", "store")}
    losses = ("CRASHES", "considered dead", "declares its memory void", "to halt")
    assert any(loss in sentence for sentence in story for loss in losses)
    assert any("at window.in assigned to Input Sets" in sentence for sentence in story)
    assert story[-1].startswith("Then: destinations are those of a run without failures — violated: port window.out")


def test_a_story_tells_of_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = broken("stored_effect_cut_short", monkeypatch)
    story = tell(simulator, shrink(simulator, first_failure(simulator)))
    assert "a person asks group ingest to drain" in story
    assert "records were used" in story[-1]


def test_without_a_mutant_the_choices_of_a_failure_are_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        failure = first_failure(broken("marker_not_checked", patch))
    assert Simulator(SCENARIOS["linear"]()).replay(failure.seed, failure.trace) is None
