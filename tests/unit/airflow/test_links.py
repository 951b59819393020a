"""Links of a group's task: what its trigger stores, and what a segment of the task says at its end."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_logio.operators.links import DriverLogLink, SparkUiLink
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.triggers import stored_link
from airflow_logio.triggers.stored_link import RETRY_SECONDS, SPARK_UI_KEY, StoredLink

TASK = SimpleNamespace(
    dag_id="d", task_id="t", run_id="r", map_index=-1, log_url="http://airflow/dags/d/runs/r/tasks/t"
)


class Airflow:
    """What Airflow would store; it can refuse."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.error: Exception | None = None

    def store_link(self, task_instance: Any, key: str, link: str) -> Future[None]:
        assert (task_instance, key) == (TASK, SPARK_UI_KEY)
        answer: Future[None] = Future()
        if self.error is not None:
            answer.set_exception(self.error)
        else:
            self.stored.append(link)
            answer.set_result(None)
        return answer


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    found = Airflow()
    monkeypatch.setattr(stored_link, "store_link", found.store_link)
    return found


def test_an_address_is_stored_when_it_changes(airflow: Airflow) -> None:
    link = StoredLink(TASK)
    for address in ("", "", "http://one", "http://one", "", "http://two"):
        link.lead_to(address)
    assert airflow.stored == ["", "http://one", "", "http://two"]


def test_a_refused_one_is_stored_later(airflow: Airflow) -> None:
    now = 0.0
    link = StoredLink(TASK, clock=lambda: now)
    airflow.error = RuntimeError("database is locked")
    for _ in range(5):
        link.lead_to("http://one")
    airflow.error = None
    link.lead_to("http://one")
    assert airflow.stored == []
    now = RETRY_SECONDS
    link.lead_to("http://one")
    assert airflow.stored == ["http://one"]


def test_a_trigger_without_a_task_stores_nothing(airflow: Airflow) -> None:
    StoredLink(None).lead_to("http://one")
    assert airflow.stored == []


def test_the_server_knows_the_links_of_a_serialized_task() -> None:
    with DAG("d", schedule=None) as dag:
        LogioSparkOperator(task_id="sums", pipeline="pipelines.sales:sales", group="totals")
    task = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("sums")
    found = {link.name: link.xcom_key for link in task.operator_extra_links}
    assert found == {"Spark UI": SPARK_UI_KEY, "Driver log": DriverLogLink().xcom_key}


def test_a_segment_says_what_it_has_seen_or_leaves_what_the_trigger_has_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = LogioSparkOperator(task_id="sums", pipeline="pipelines.sales:sales", group="totals")
    monkeypatch.setattr("airflow_logio._compat.XCom.get_value", lambda **_: "http://stored")
    assert SparkUiLink().get_link(operator, ti_key=TASK) == "http://stored"
    operator.spark_ui = ""
    assert SparkUiLink().get_link(operator, ti_key=TASK) == "", "a driver that has ended has no UI"
    operator.spark_ui = "http://seen"
    assert SparkUiLink().get_link(operator, ti_key=TASK) == "http://seen"
    assert DriverLogLink().get_link(operator, ti_key=TASK) == TASK.log_url
