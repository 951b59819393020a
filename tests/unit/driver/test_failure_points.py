"""Where an author's code has failed: what the error names, and that a recovery which runs into it again names the same."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
import requests

from airflow_logio.dataflow.operators import External, InputEvent, InputSet, PortTable, StatefulOperator
from airflow_logio.driver.logics.adapters import StatefulLogic, StatelessLogic
from airflow_logio.driver.spark_jobs.job_gate import Turn
from airflow_logio.driver.spark_jobs.jobs import TableJobs
from airflow_logio.driver.spark_jobs.together import Contract
from airflow_logio.errors import FailurePoint, OperatorFailed
from airflow_logio.protocol.effects import SetAside
from airflow_logio.protocol.logic import OperatorSpec
from airflow_logio.protocol.recovery import LoggedEvent, Recovered
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.systems.connections import Connections, WriterIdentity
from tests.support.logics import FEED, Group, end, fed, of
from tests.support.waiting import eventually

CONNECTIONS = Connections("p", {}, WriterIdentity("run", 1, 0.0), 1.0)
PLACE = "pipeline 'p', operator 'op', "


class Pairs(StatefulOperator):
    """Two events of a port, and whatever else has come, are an Input Set; one of its phases raises for event 3."""

    inputs = ("in", "other")

    def __init__(self, phase: str = "") -> None:
        self._phase = phase

    def _do(self, phase: str, when: bool) -> None:
        if phase == self._phase and when:
            raise KeyError("basket")

    def initial_state(self) -> dict[str, Any]:
        return {"seen": 0}

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        self._do("assign", event.event_id == 3)
        state["seen"] += event.port == "in"
        if self._phase == "state" and event.event_id == 3:
            state["baskets"] = (1, 2)
        return {str(max(state["seen"] - 1, 0) // 2): event.event_id}

    def part(self, event: InputEvent, inset_id: str) -> Any:
        self._do("part", event.event_id == 3)
        return event.event_id

    def accumulate(self, held: Any | None, part: Any) -> Any:
        self._do("accumulate", part == 3)
        return super().accumulate(held, part)

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:  # type: ignore[misc]
        """Raises when it is gone through, not when it is called."""
        self._do("triggered", state["seen"] >= 3)
        yield from (inset for inset in open_insets if (int(inset) + 1) * 2 <= state["seen"])

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        self._do("flush", True)
        return open_insets

    def order(self, inset_id: str) -> int:
        self._do("order", inset_id == "1")
        return int(inset_id)

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        self._do("generate", input_set.inset_id == "1")
        return [("out", None)] if self._phase == "output" and input_set.inset_id == "1" else []


def driver(phase: str, *, asynchronous: bool = False, quarantines: bool = False) -> Group:
    logic = StatefulLogic("p", "op", Pairs(phase), CONNECTIONS)
    ports = (("in", "other"), ("out",))
    return Group([OperatorSpec("op", *ports, logic, asynchronous=asynchronous, quarantines=quarantines)])


def failure(group: Group, *events: Event) -> OperatorFailed:
    with pytest.raises(OperatorFailed) as caught:
        group.step(*events)
    return caught.value


@pytest.mark.parametrize(
    ("phase", "place", "at"),
    [
        ("assign", "port 'in', event 3 of feed.out", FailurePoint("op", "in", 3)),
        (
            "accumulate",
            "accumulating an event, port 'in', event 3 of feed.out, Input Set '1'",
            FailurePoint("op", "in", 3, "1"),
        ),
        (
            "triggered",
            "evaluating the trigger after port 'in', event 3, open Input Sets '1'",
            FailurePoint("op", action="the trigger"),
        ),
        ("order", "Input Set '1', port 'in', event 3 of feed.out", FailurePoint("op", "in", 3, "1")),
        ("generate", "Input Set '1', port 'in', events 3 to 4", FailurePoint("op", inset_id="1")),
    ],
)
def test_a_failure_names_event_and_input_set_as_far_as_they_are_known(phase: str, place: str, at: FailurePoint) -> None:
    events = [fed(number) for number in range(1, 6)]
    error = failure(driver(phase), *events)
    said, *frames = str(error).splitlines()
    assert (said, error.at) == (f"{PLACE}{place}: KeyError: 'basket'", at)
    assert __file__ in frames[0] and not [line for line in frames if "/airflow_logio/" in line], (
        "the author's frames only"
    )
    group = driver(phase)
    group.step(events[0])
    group.step(events[1])
    assert failure(group, *events[2:]).at == at, "in other steps, as the next driver takes them"


class Asking(Pairs):
    """Asks a service by itself, which is unavailable."""

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        raise requests.ConnectionError("refused")


def test_code_that_asks_a_service_by_itself_is_told_what_is_asked_again() -> None:
    logic = StatefulLogic("p", "op", Asking(), CONNECTIONS)
    group = Group([OperatorSpec("op", ("in", "other"), ("out",), logic)])
    said, *frames = str(failure(group, fed(1), fed(2))).splitlines()
    assert "ConnectionError: refused. An operator's own code is not called again" in said
    assert "FunctionRead in `reads`" in said and "test_failure_points.py" in frames[0]


class Three(Pairs):
    """The third event of whatever port is too much."""

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        state["seen"] += 1
        return {"9": event.event_id}


def test_a_trigger_fails_at_the_same_place_in_whatever_order_the_ports_were_used() -> None:
    """Without a declared order they take turns as their events come, and the next driver gets them otherwise."""
    errors = []
    for ports in (("in", "in", "other"), ("other", "in", "in")):
        logic = StatefulLogic("p", "op", Three("triggered"), CONNECTIONS)
        group = Group([OperatorSpec("op", ("in", "other"), ("out",), logic)])
        with pytest.raises(OperatorFailed) as caught:
            for number, port in enumerate(ports):
                group.step(fed(ports[:number].count(port) + 1), receiver=Port("op", port))
        errors.append(caught.value)
    assert [str(error).split(", ")[2] for error in errors] == [
        "evaluating the trigger after port 'other'",
        "evaluating the trigger after port 'in'",
    ]
    assert {error.at for error in errors} == {FailurePoint("op", action="the trigger")}


@pytest.mark.parametrize(("inputs", "order"), [(("in",), ()), (("in", "other"), ("in", "in", "in", "other"))])
def test_events_that_come_in_one_order_are_places_of_a_trigger(inputs: tuple[str, ...], order: tuple[str, ...]) -> None:
    operator = Pairs("triggered")
    vars(operator).update(inputs=inputs, port_order=order)
    logic = StatefulLogic("p", "op", operator, CONNECTIONS)
    group = Group([OperatorSpec("op", inputs, ("out",), logic, port_order=order)])
    assert failure(group, fed(1), fed(2), fed(3)).at == FailurePoint("op", "in", 3)


def test_an_input_set_of_several_ports_names_the_events_of_each() -> None:
    group = driver("generate")
    group.step(fed(1), fed(2), fed(3))
    group.step(fed(1), fed(2), receiver=Port("op", "other"))
    where = "Input Set '1', port 'in', events 3 to 4, port 'other', events 1 to 2"
    assert str(failure(group, fed(4))).splitlines()[0] == f"{PLACE}{where}: KeyError: 'basket'"


def test_what_is_no_output_is_an_error_of_the_input_set_too() -> None:
    error = failure(driver("output"), *(fed(number) for number in range(1, 5)))
    assert str(error).startswith(
        f"{PLACE}Input Set '1', port 'in', events 3 to 4: the operator, for output port 'out', returned NoneType;"
    )


def test_a_flush_names_the_open_input_sets() -> None:
    group = driver("flush")
    group.step(fed(1))
    group.step(end(1), receiver=Port("op", "other"))
    error = failure(group, end(2))
    assert (
        str(error).splitlines()[0]
        == f"{PLACE}flushing at the end of the stream, open Input Sets '0': KeyError: 'basket'"
    )
    assert str(error.at) == "the flush at the end of the stream of operator 'op'"


@pytest.mark.parametrize(
    ("phase", "place", "at"),
    [
        (
            "part",
            "port 'in', event 3 of feed.out, Input Set '1'",
            "event 3 on port op.in, Input Set '1' of operator 'op'",
        ),
        (
            "accumulate",
            "accumulating an event, port 'in', event 3 of feed.out, Input Set '1'",
            "event 3 on port op.in, Input Set '1' of operator 'op'",
        ),
        (
            "triggered",
            "evaluating the trigger after a recovery, open Input Sets '1'",
            "the trigger of operator 'op'",
        ),
    ],
)
def test_so_does_one_that_only_a_recovery_finds(phase: str, place: str, at: str) -> None:
    before = driver("")
    before.step(fed(1), fed(2), fed(3))
    logged = LoggedEvent(Port("op", "in"), fed(3), "1")
    again = driver(phase)
    with pytest.raises(OperatorFailed) as caught:
        again.protocol.rebuild(Recovered({"op": before.protocol.operators["op"].serialized()}, (), (logged,), ()))
        again.resume()
    assert (str(caught.value).splitlines()[0], str(caught.value.at)) == (f"{PLACE}{place}: KeyError: 'basket'", at)


def test_a_state_that_cannot_be_stored_is_a_place_too() -> None:
    """Whichever event made it so: it stays so, and the next driver cannot store it either."""
    error = failure(driver("state"), fed(1), fed(2), fed(3), fed(4))
    assert "Last used: event 4 on port 'in'" in str(error)
    assert str(error.at) == "a state that cannot be stored of operator 'op'"


@pytest.mark.parametrize("phase", ["assign", "accumulate", "triggered"])
def test_only_a_generation_is_quarantined(phase: str) -> None:
    events = [fed(number) for number in range(1, 6)]
    error = failure(driver(phase, quarantines=True), *events)
    assert (error.at, str(error)) == (failure(driver(phase), *events).at, str(failure(driver(phase), *events)))
    (aside,) = of(SetAside, driver("generate", quarantines=True).step(*events))
    assert (aside.inset_id, aside.error) == ("1", str(failure(driver("generate"), *events)))


def test_many_open_input_sets_are_not_all_named() -> None:
    logic = StatefulLogic("p", "op", Pairs("flush"), CONNECTIONS)
    with pytest.raises(OperatorFailed, match=r"open Input Sets '0', '1', '2', '3', '4' and 1,995 more: KeyError"):
        logic.flush({}, [str(number) for number in range(2_000)])


def test_a_job_names_the_events_of_the_input_set_to_blame() -> None:
    """Found by halving; the protocol is asked for that one alone."""

    class Job:
        reads: Mapping[str, Any] = {}

        def tagged(self, sets: Sequence[InputSet]) -> Any:
            if any(one.inset_id == "1" for one in sets):
                raise KeyError("basket")
            raise AssertionError("the one to blame comes first")

    class Sessions:
        def is_lost(self, error: Exception) -> bool:
            return False

    group = driver("", asynchronous=True)
    group.step(*(fed(number) for number in range(1, 5)))
    operator = group.protocol.operators["op"]
    errors: list[BaseException] = []
    runner = TableJobs(
        "p",
        "op",
        Job(),  # type: ignore[arg-type]
        Sessions(),  # type: ignore[arg-type]
        CONNECTIONS,
        lambda inset_id: operator.triggered[inset_id].origin(),
        lambda _: None,
        errors.append,
        "jobs",
        threading.Event(),
        Turn(CONNECTIONS.calls, lambda: None),
        Contract.MANY,
    )
    runner.start(group.protocol.start_job("op", ["1", "0"]))
    eventually(lambda: errors, what="the job fails")
    assert runner.thread is not None
    runner.thread.join()
    (error,) = errors
    assert isinstance(error, OperatorFailed) and error.at == FailurePoint("op", inset_id="1")
    assert str(error).splitlines()[0] == f"{PLACE}Input Set '1', port 'in', events 3 to 4: KeyError: 'basket'"


def test_a_job_that_is_cancelled_with_its_epoch_blames_no_input_set() -> None:
    """It is not halved either: each half would be a job of an epoch that has ended."""
    stopping, told, tries = threading.Event(), list[Any](), list[int]()

    class Job:
        on_error = "quarantine"
        reads: Mapping[str, Any] = {}

        def tagged(self, sets: Sequence[InputSet]) -> Any:
            tries.append(len(sets))
            stopping.set()
            raise RuntimeError("Job 7 cancelled part of cancelled job group")

    class Sessions:
        def is_lost(self, error: Exception) -> bool:
            return False

    runner = TableJobs(
        "p",
        "op",
        Job(),  # type: ignore[arg-type]
        Sessions(),  # type: ignore[arg-type]
        CONNECTIONS,
        str,
        told.append,
        told.append,
        "jobs",
        stopping,
        Turn(CONNECTIONS.calls, lambda: None),
        Contract.MANY,
    )
    runner.start([("0", None), ("1", None)])
    assert runner.thread is not None
    runner.thread.join()
    assert (told, tries) == ([], [2])


def test_a_stateless_operator_names_its_event_once() -> None:
    class Broken:
        inputs, outputs = ("in",), ("out",)

        def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
            return [("out", None)]

        def connections(self) -> tuple[str, ...]:
            return ()

    logic = StatelessLogic("p", "op", Broken(), CONNECTIONS)  # type: ignore[arg-type]
    group = Group([OperatorSpec("op", ("in",), ("out",), logic, stateless=True)])
    error = failure(group, Event(FEED, 1, Kind.DATA, 1, pa.table({"basket": [1]})))
    assert str(error).startswith(
        f"{PLACE}port 'in', event 1 of feed.out, Input Set '1': the operator, for output port 'out', returned NoneType;"
    )
    assert error.at == FailurePoint("op", "in", 1, "1")
