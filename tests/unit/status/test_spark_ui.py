"""Where a group's Spark application can be seen, by the state of its drivers."""

from __future__ import annotations

import pytest
from msgspec import structs

from airflow_logio.protocol.states import GroupState
from airflow_logio.spark.engine import ui_for_people
from airflow_logio.status.cluster_news import manager_page
from airflow_logio.status.spark_ui import SparkUi
from airflow_logio.store.records.driver_records import Load, SparkApplication, Submission
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


YARN = "spark.org.apache.spark.deploy.yarn.AmIpFilter.param.PROXY_URI_BASES"
REVERSE = {"spark.ui.reverseProxy": "true", "spark.ui.reverseProxyUrl": "https://gate/"}


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({}, UI),
        ({"spark.ui.reverseProxy": "true"}, UI),
        (REVERSE, "https://gate/proxy/app-1/"),
        ({YARN: "http://rm:8088/proxy/app-1,http://rm2:8088/proxy/app-1"}, "http://rm:8088/proxy/app-1/"),
        ({"spark.kubernetes.submitInDriver": "true"}, None),
        ({"spark.kubernetes.submitInDriver": "true", **REVERSE}, "https://gate/proxy/app-1/"),
    ],
)
def test_a_ui_is_where_a_browser_reaches_it(conf: dict[str, str], expected: str | None) -> None:
    assert ui_for_people("app-1", UI, conf) == expected
    assert ui_for_people("app-1", None, conf) is None


def test_the_managers_page_of_a_driver_on_a_cluster() -> None:
    noted = Submission("yarn", "http://rm:8088", "logio-1")
    master = Submission("standalone", "http://m:6066#http://m:8080", "logio-2", id="driver-1")
    pod = Submission("kubernetes", "https://k8s:443", "logio-3", id="uid", namespace="etl", cluster="c")
    page = "http://rm:8088/cluster/app/application_1_0001"

    def of(state: GroupState, submission: Submission | None, reported: Submission | None = None) -> GroupStatus:
        return structs.replace(status(state), submission=submission, reported=reported)

    running, ended = GroupState.RUNNING, GroupState.FINISHED
    assert (
        manager_page([of(running, None)])
        == manager_page([of(running, noted)])
        == manager_page([of(running, pod)])
        == ""
    )
    assert manager_page([of(running, noted, structs.replace(noted, id="application_1_0001", attempt=2))]) == page
    assert manager_page([of(running, structs.replace(noted, manager="another", id="1"))]) == ""
    assert manager_page([of(running, master)]) == "http://m:8080/"
    both = [of(ended, master), of(running, structs.replace(noted, id="application_1_0001"))]
    assert manager_page(both) == page, "the living one"
    assert manager_page(both[:1]) == "http://m:8080/"
