"""`ManualOperator` in a pipeline: alone in its group, declared like every operator, failing like every operator."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_logio.contrib.paper_api import Logio
from airflow_logio.dataflow import Count, ManualOperator, Pipeline
from airflow_logio.errors import FailurePoint, OperatorFailed, PipelineDefinitionError
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import ExecutionMode
from tests.unit.contrib.paper_api.support import Bench, Feed, Middle, received


def with_operator(operator: ManualOperator) -> Pipeline:
    made = Pipeline("p", connections=["wh", "elsewhere"])
    made.operator("feed", Feed())
    made.operator("more", Feed())
    made.operator("mid", operator, a="feed", b="more")
    made.sink("done", Count(), "mid.out")
    made.sink("rest", Count(), "mid.rest")
    return made


def test_it_is_alone_in_its_group() -> None:
    made = with_operator(Middle())
    made.group("g", "mid", "done")
    with pytest.raises(
        PipelineDefinitionError, match=r"group 'g' contains 'mid', which is written by hand .* of its own"
    ):
        made.freeze()


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("mode", ExecutionMode.EXECUTORS),
        ("reads_state", True),
        ("port_order", ("a", "b")),
        ("sends_after_writes", True),
        ("on_error", "quarantine"),
    ],
)
def test_declarations_that_only_the_loop_obeys_are_refused(declared: str, value: Any) -> None:
    operator = Middle()
    setattr(operator, declared, value)
    with pytest.raises(PipelineDefinitionError):
        with_operator(operator)


def test_write_actions_need_a_guarantee() -> None:
    class Careless(Middle):
        def writes(self) -> dict[str, Any]:
            return {"wh": None}

    with pytest.raises(PipelineDefinitionError, match="neither conditional, checkable nor idempotent"):
        with_operator(Careless())


def test_its_settings_and_ports_are_part_of_the_fingerprint() -> None:
    class Limited(Middle):
        def __init__(self, limit: int) -> None:
            self.limit = limit

    first, second = (with_operator(Limited(limit)).fingerprint() for limit in (1, 2))
    assert first["graph"] != second["graph"]


def test_an_error_of_its_code_names_pipeline_operator_and_event(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.feed([1])
    epoch = bench.epoch("mid")

    def run(logio: Logio) -> None:
        logio.initialize_context()
        received(logio, "a")
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(epoch._operator, "run", run)
    with pytest.raises(
        OperatorFailed, match=r"'api', operator 'mid', .* event 1 of port 'a': ZeroDivisionError"
    ) as caught:
        epoch.run()
    assert caught.value.at == FailurePoint("mid", "a", 1)


def test_the_group_is_finished_when_run_returns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = bench.epoch("feed")
    monkeypatch.setattr(epoch._operator, "run", Logio.initialize_context)
    assert epoch.run()
    assert bench.store.group(bench.run.run_id, "feed").state is GroupState.FINISHED


def test_a_halted_one_has_not_finished(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = bench.epoch("mid")
    bench.stop("mid")

    def run(logio: Logio) -> None:
        logio.initialize_context()
        logio.receive()

    monkeypatch.setattr(epoch._operator, "run", run)
    assert not epoch.run()
    assert bench.store.group(bench.run.run_id, "mid").state is GroupState.RUNNING
