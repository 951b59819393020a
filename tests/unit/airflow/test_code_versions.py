"""Which version of a pipeline the tasks of a run launch, when the folder of DAGs gets another one in the middle of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from tests.support.deployments import Deployments
from tests.unit.airflow.support import FakeLauncher, context, register

REF = "flows_of_a_bundle.doubling:numbers"
SOURCE = """
import pyarrow as pa

from airflow_logio import EveryEvents, ParquetSource, Pipeline, TableWriter, generate


@generate
def changed(numbers: pa.Table) -> pa.Table:
    return numbers  # VERSION


numbers = Pipeline("numbers", params={"numbers": str}, connections=["warehouse"])
read = numbers.source("read", ParquetSource("{numbers}", records_per_event=10))
change = numbers.operator("change", changed, read, window=EveryEvents(1))
table = TableWriter("warehouse", "numbers", {"n": "bigint"}, on_new_run="replace")
numbers.group("all", read, change, numbers.writer("save", table, change))
"""
OTHER_GRAPH = "numbers.lineage(start='read.out', target='change.out')\n"


def doubling(version: str, more: str = "") -> dict[str, str]:
    return {
        "flows_of_a_bundle/__init__.py": "",
        "flows_of_a_bundle/doubling.py": SOURCE.replace("VERSION", version) + more,
    }


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployments]:
    """A folder of DAGs. Each deployment is seen as by a task's process, which has imported nothing before."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "bundle"), *sys.path])
    found = Deployments(tmp_path / "bundle", "flows_of_a_bundle")
    yield found
    found.forget()


@pytest.fixture
def run(
    bundle: Deployments, log: LogStore, launcher: FakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Begun with version 1, and its driver is running."""
    for operator in (LogioSparkOperator, LogioRecoverGroupOperator):
        monkeypatch.setattr(operator, "make_launcher", lambda self: launcher)
    bundle.deploy(doubling("version 1"))
    pq.write_table(pa.table({"n": [1]}), tmp_path / "numbers.parquet")
    params = {"numbers": str(tmp_path / "numbers.parquet")}
    start = LogioStartRunOperator(task_id="start_run", pipeline=REF, connections={"warehouse": "warehouse_db"})
    run = log.find_run(start.execute(context(params=params)))
    work()
    register(log, launcher)
    return run


def work(attempt: int = 1, max_tries: int = 3) -> None:
    """An attempt of the group's task, until it defers."""
    with pytest.raises(TaskDeferred):
        LogioSparkOperator(task_id="all", pipeline=REF, retries=3).execute(
            context(attempt=attempt, max_tries=max_tries)
        )


def recover(log: LogStore, run: Run, launcher: FakeLauncher) -> str:
    """The driver dies, and the recovery DAG's task recovers its group; the version that the new driver gets."""
    recovery = recovery_of(log, run, launcher)
    assert recovery["outcome"] == "launched", recovery
    register(log, launcher)
    return version(launcher)


def recovery_of(log: LogStore, run: Run, launcher: FakeLauncher) -> dict[str, Any]:
    dead = log.group(run.run_id, "all")
    launcher.kill()
    log.declare_dead(GroupRef(run.run_id, "all", dead.incarnation), "killed")
    finding: dict[str, Any] = {
        "run_uid": run.uid,
        "pipeline": "numbers",
        "dag_run_id": run.spec.key.dag_run_id,
        "group": "all",
        "incarnation": dead.incarnation,
        "cause": "killed",
        "detected_at": 0.0,
    }
    recovery: dict[str, Any] = LogioRecoverGroupOperator(task_id="recover", finding=finding).execute(context())
    return recovery


def version(launcher: FakeLauncher) -> str:
    """What the latest driver was given."""
    code = launcher.codes[-1]
    assert code is not None and code.is_shipped
    (line,) = [
        line for line in code.files["flows_of_a_bundle/doubling.py"].decode().splitlines() if "return numbers" in line
    ]
    return line.rpartition("# ")[2]


@pytest.mark.parametrize("more", ["", OTHER_GRAPH, "raise ImportError('it is broken')", "numbers.group('all')"])
def test_a_recovery_uses_the_version_of_the_run(
    bundle: Deployments, log: LogStore, launcher: FakeLauncher, run: Run, more: str
) -> None:
    assert version(launcher) == "version 1"
    bundle.deploy(doubling("version 2", more))
    assert recover(log, run, launcher) == "version 1"


def test_a_recovery_needs_no_folder(bundle: Deployments, log: LogStore, launcher: FakeLauncher, run: Run) -> None:
    """A version of a bundle that was cleaned up, or another worker."""
    bundle.remove()
    assert recover(log, run, launcher) == "version 1"


def test_code_that_is_damaged_in_the_log_parks_the_group_with_the_way_out(
    bundle: Deployments, log: LogStore, launcher: FakeLauncher, run: Run
) -> None:
    """While the same version is there, it does not matter."""
    assert isinstance(log, SqlLogStore)
    with log.engine.begin() as connection:
        (archive,) = connection.execute(sa.select(schema.code.c.archive)).scalars()
        connection.execute(sa.update(schema.code).values(archive=archive[: len(archive) // 2]))
    bundle.forget()
    assert recover(log, run, launcher) == "version 1"
    bundle.deploy(doubling("version 2"))
    with pytest.raises(AirflowFailException) as parked:
        recovery_of(log, run, launcher)
    assert "is parked" in str(parked.value) and "is damaged" in str(parked.value)
    assert f"`logio retry {run.uid[:8]} --code new`" in str(parked.value)
    work(attempt=2, max_tries=4)
    assert version(launcher) == "version 2"


def test_another_attempt_of_the_task_keeps_the_version(
    bundle: Deployments, log: LogStore, launcher: FakeLauncher, run: Run
) -> None:
    bundle.deploy(doubling("version 2"))
    log.declare_dead(log.register(launcher.claims[-1], launcher.identity()), "dead")
    work(attempt=2)
    assert (len(launcher.claims), version(launcher)) == (2, "version 1")


def test_a_person_who_clears_the_task_takes_the_version_of_the_worker(
    bundle: Deployments, log: LogStore, launcher: FakeLauncher, run: Run
) -> None:
    log.session(log.register(launcher.claims[-1], launcher.identity())).park("it is wrong")
    bundle.deploy(doubling("version 2"))
    work(attempt=2, max_tries=4)
    assert version(launcher) == "version 2"
    register(log, launcher)
    (change,) = log.code_changes(run.run_id)
    assert (change.number, change.group) == (1, "all") and "cleared by a person" in change.taken_by
    bundle.deploy(doubling("version 3"))
    assert recover(log, run, launcher) == "version 2"


def test_a_clear_that_launches_nothing_takes_nothing(
    bundle: Deployments, log: LogStore, launcher: FakeLauncher, run: Run
) -> None:
    """A recovery in the following night would execute what was not asked for."""
    bundle.deploy(doubling("version 2"))
    work(attempt=2, max_tries=4)
    assert (len(launcher.claims), log.code_changes(run.run_id)) == (1, [])
    assert recover(log, run, launcher) == "version 1"


def test_a_version_with_another_graph_is_not_taken(
    bundle: Deployments, log: LogStore, launcher: FakeLauncher, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    log.session(log.register(launcher.claims[-1], launcher.identity())).park("it is wrong")
    bundle.deploy(doubling("version 2", OTHER_GRAPH))
    work(attempt=2, max_tries=4)
    assert version(launcher) == "version 1"
    assert log.code_changes(run.run_id) == []
