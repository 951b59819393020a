"""Links of a group's task: what its trigger stores, and what a segment of the task says at its end."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import SetXCom, XComResult
from airflow.serialization.serialized_objects import DagSerialization

from airflow_logio import _compat
from airflow_logio.operators._task.segment import WorkerSegment
from airflow_logio.operators.links import DriverLogLink, ManagerLink, SparkUiLink
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.triggers import stored_link
from airflow_logio.triggers.stored_link import MANAGER_KEY, RETRY_SECONDS, SPARK_UI_KEY, StoredLink, StoredLinks

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
    link = StoredLink(TASK, SPARK_UI_KEY)
    for address in ("", "", "http://one", "http://one", "", "http://two"):
        link.lead_to(address)
    assert airflow.stored == ["http://one", "", "http://two"], "at first, the segment before has stored what it saw"


def test_a_refused_one_is_stored_later(airflow: Airflow) -> None:
    now = 0.0
    link = StoredLink(TASK, SPARK_UI_KEY, clock=lambda: now)
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
    StoredLink(None, SPARK_UI_KEY).lead_to("http://one")
    assert airflow.stored == []


def test_each_link_is_stored_under_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[tuple[str, str]] = []

    def store_link(_: Any, key: str, link: str) -> Future[None]:
        stored.append((key, link))
        answer: Future[None] = Future()
        answer.set_result(None)
        return answer

    monkeypatch.setattr(stored_link, "store_link", store_link)
    links = StoredLinks(TASK)
    for ui, page in (("", "http://rm"), ("http://ui", "http://rm"), ("", "http://rm"), ("", "http://other")):
        links.lead_to(ui, page)
    assert stored == [
        (MANAGER_KEY, "http://rm"),
        (SPARK_UI_KEY, "http://ui"),
        (SPARK_UI_KEY, ""),
        (MANAGER_KEY, "http://other"),
    ]


def test_the_server_knows_the_links_of_a_serialized_task() -> None:
    with DAG("d", schedule=None) as dag:
        LogioSparkOperator(task_id="sums", pipeline="pipelines.sales:sales", group="totals")
    task = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("sums")
    found = {link.name: link.xcom_key for link in task.operator_extra_links}
    assert found == {"Spark UI": SPARK_UI_KEY, "Cluster manager": MANAGER_KEY, "Driver log": DriverLogLink().xcom_key}


class Backend(BaseXCom):
    """A deployment keeps XComs elsewhere; the web server does not ask it for links."""

    @classmethod
    def serialize_value(cls, value: Any, **_: Any) -> Any:
        raise AssertionError(value)

    @classmethod
    def deserialize_value(cls, result: Any) -> Any:
        raise AssertionError(result)


class Supervisor:
    """What answers a task's process. It can be away."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.is_away = False

    def send(self, message: Any) -> XComResult | None:
        if self.is_away:
            raise RuntimeError("the API server is unavailable")
        assert (message.key, message.dag_id, message.task_id, message.run_id) == (SPARK_UI_KEY, "d", "t", "r")
        if isinstance(message, SetXCom):
            self.values.append(message.value)
            return None
        return XComResult(key=message.key, value=self.values[-1] if self.values else None)


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    found = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", found, raising=False)
    monkeypatch.setattr(_compat, "XCom", Backend)
    return found


def test_a_link_passes_a_backend_of_xcoms_by(supervisor: Supervisor) -> None:
    assert _compat.stored_link(TASK, SPARK_UI_KEY) == ""
    _compat.store_link(TASK, SPARK_UI_KEY, "http://one").result(60)
    assert supervisor.values == ["http://one"]
    assert _compat.stored_link(TASK, SPARK_UI_KEY) == "http://one"


def test_a_link_waits_for_no_question_and_no_question_for_a_link(supervisor: Supervisor) -> None:
    answered = threading.Event()
    asked = _compat._asking.submit(answered.wait, 10)
    _compat.store_link(TASK, SPARK_UI_KEY, "http://one").result(60)
    assert not asked.done()
    answered.set()
    assert asked.result(60)


def test_a_task_that_stays_on_its_worker_stores_what_changes_and_fails_of_no_refusal(supervisor: Supervisor) -> None:
    operator = LogioSparkOperator(task_id="sums", pipeline="pipelines.sales:sales", group="totals", deferrable=False)
    now = 0.0
    links = StoredLinks(TASK, clock=lambda: now)

    def sees(address: str) -> None:
        WorkerSegment(operator, {})._link(links, address, "")
        _compat._linking.submit(lambda: None).result(60)

    supervisor.is_away = True
    sees("http://one")
    sees("http://one")
    supervisor.is_away = False
    now = RETRY_SECONDS
    sees("http://one")
    sees("")
    assert supervisor.values == ["http://one", ""]
    assert (operator.spark_ui, operator.manager_page) == ("", "")


def test_a_segment_says_what_it_has_seen_or_leaves_what_the_trigger_has_stored(supervisor: Supervisor) -> None:
    operator = LogioSparkOperator(task_id="sums", pipeline="pipelines.sales:sales", group="totals")
    supervisor.values.append("http://stored")
    assert SparkUiLink().get_link(operator, ti_key=TASK) == "http://stored"
    operator.spark_ui = ""
    assert SparkUiLink().get_link(operator, ti_key=TASK) == "", "a driver that has ended has no UI"
    operator.spark_ui = "http://seen"
    assert SparkUiLink().get_link(operator, ti_key=TASK) == "http://seen"
    assert ManagerLink().get_link(SimpleNamespace(manager_page="http://rm"), ti_key=TASK) == "http://rm"
    assert DriverLogLink().get_link(operator, ti_key=TASK) == TASK.log_url
