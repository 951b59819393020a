"""Where a group's Spark application can be seen, by the state of its drivers."""

from __future__ import annotations

from airflow_logio.protocol.states import GroupState
from airflow_logio.status.spark_ui import SparkUi
from airflow_logio.store.records.driver_records import Load, SparkApplication
from airflow_logio.store.records.status_records import GroupStatus

HISTORY = "http://history:18080/"
UI = "http://driver:4040"


def status(
    state: GroupState,
    *,
    name: str = "sums",
    incarnation: int = 1,
    ui: str | None = UI,
    keeps_events: bool = True,
    reported: bool = True,
) -> GroupStatus:
    application = SparkApplication(f"local-{incarnation}", ui, keeps_events) if reported else None
    load = Load(10.0, 0.5, 0.5, 0.0, 0, 0, 0, 0, application=application)
    return GroupStatus(
        name, state, GroupState.RUNNING, incarnation, 1, 0.0, ready=True, recoveries=0, error=None, since=0.0, load=load
    )


def test_a_living_driver_has_its_own_ui() -> None:
    assert SparkUi(HISTORY).address([status(GroupState.RUNNING)]) == UI
    assert SparkUi("").address([status(GroupState.DRAINING)]) == UI


def test_an_ended_driver_is_in_the_history_if_it_wrote_one() -> None:
    for state in (GroupState.DEAD, GroupState.PARKED, GroupState.FINISHED):
        assert SparkUi(HISTORY).address([status(state)]) == "http://history:18080/history/local-1/"
        assert SparkUi(HISTORY).address([status(state, keeps_events=False)]) == ""
        assert SparkUi("").address([status(state)]) == "", "its own UI has ended with it"


def test_a_driver_without_a_ui_or_without_spark_has_no_address() -> None:
    assert SparkUi("").address([status(GroupState.RUNNING, ui=None)]) == ""
    assert SparkUi(HISTORY).address([status(GroupState.SUBMITTED, reported=False)]) == ""
    assert SparkUi(HISTORY).address([]) == ""


def test_of_replicas_the_first_living_one_is_shown() -> None:
    replicas = [
        status(GroupState.DEAD, name="sums.1", ui="http://one:4040"),
        status(GroupState.RUNNING, name="sums.2", ui="http://two:4040"),
        status(GroupState.RUNNING, name="sums.3", ui="http://three:4040"),
    ]
    assert SparkUi(HISTORY).address(replicas) == "http://two:4040"


def test_each_application_is_named_once() -> None:
    spark_ui = SparkUi("")
    assert spark_ui.news([status(GroupState.SUBMITTED, reported=False)]) == []
    first = status(GroupState.RUNNING)
    assert spark_ui.news([first]) == [f"Group sums, incarnation 1: Spark application local-1, UI {UI}"]
    assert spark_ui.news([first]) == []
    second = status(GroupState.RUNNING, incarnation=2, ui=None)
    assert spark_ui.news([second]) == ["Group sums, incarnation 2: Spark application local-2"]
