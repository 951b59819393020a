"""What the tests of the Airflow layer share: connections, contexts, and drivers that are only `sleep`."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow import settings
from airflow.models.dagbag import DBDagBag
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import timezone
from airflow.triggers.base import TriggerEvent
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType

from airflow_logio.launch import processes
from airflow_logio.launch.code_bundle import CodeBundle
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.launcher import Launched, Launcher
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, DriverIdentity, GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.triggers import group

HOUR = 3_600_000_000
DAG_ID, RUN_ID = "logio_sales", "manual__2026-11-21"


def context(*, params: Mapping[str, Any] | None = None, attempt: int = 1, max_tries: int = 3) -> dict[str, Any]:
    return {
        "dag_run": SimpleNamespace(dag_id=DAG_ID, run_id=RUN_ID),
        "ti": SimpleNamespace(try_number=attempt, max_tries=max_tries),
        "params": dict(params or {}),
    }


def write_transactions(path: Path) -> Path:
    """Three sales, in order."""
    table = pa.table(
        {
            "store_id": pa.array([1, 1, 2], pa.int64()),
            "product_id": pa.array([10, 11, 10], pa.int64()),
            "quantity": pa.array([1, 2, 3], pa.int64()),
            "sales_value": pa.array([0.5, 1.25, 3.0], pa.float64()),
            "transaction_timestamp": pa.array([0, 1, HOUR], pa.timestamp("us")),
        }
    )
    pq.write_table(table, path)
    return path


def run_started(log: LogStore, pipeline: str, tmp_path: Path) -> Run:
    """The run that task `start_run` of `context` begins, of a pipeline of sales. Its drivers, for which a test speaks, may
    be silent for as long as a slow machine takes."""
    params = {"transactions": str(write_transactions(tmp_path / "transactions.parquet"))}
    start = LogioStartRunOperator(
        task_id="start_run", pipeline=pipeline, connections={"warehouse": "warehouse_db"}, lease_seconds=600
    )
    return log.find_run(start.execute(context(params=params)))


@dataclass
class FakeLauncher(Launcher):
    """Each driver is a process that does nothing; the test speaks to the log for it."""

    launched: list[tuple[Claim, Launch]] = field(default_factory=list)
    """What was asked for, but for what the test has launched by itself."""
    claims: list[Claim] = field(default_factory=list)
    codes: list[CodeBundle | None] = field(default_factory=list)
    log_text: str = "first line\nlast words"
    folder: Path | None = None
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def launch(self, claim: Claim, launch: Launch | None = None) -> Launched:
        child = subprocess.Popen(["sleep", "300"])
        self.children.append(child)
        self.codes.append(None if launch is None else launch.code)
        log_path = None
        if self.folder is not None:
            path = self.folder / f"driver-{claim.incarnation}.log"
            path.write_text(self.log_text)
            log_path = str(path)
        if launch is not None:
            self.launched.append((claim, launch))
        self.claims.append(claim)  # last: other threads wait for it
        return Launched(processes.identity_of(child.pid), log_path)

    def identity(self, number: int = -1) -> DriverIdentity:
        found = processes.identity_of(self.children[number].pid)
        assert found is not None
        return found

    def kill(self, number: int = -1) -> None:
        self.children[number].kill()
        self.children[number].wait()

    def end_all(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()


def register(log: LogStore, launcher: FakeLauncher) -> GroupRef:
    """What a driver does first."""
    return log.register(launcher.claims[-1], launcher.identity())


def deferred(action: Callable[[], object]) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        action()
    return caught.value


def fired(trigger: Any, meanwhile: Callable[[], object] | None = None) -> Any:
    """Run the trigger to its event; `meanwhile` happens while it looks."""

    async def first() -> TriggerEvent:
        async def event() -> TriggerEvent:
            async for one in trigger.run():
                return one
            raise AssertionError("the trigger ended without an event")

        task = asyncio.create_task(event())
        try:
            if meanwhile is not None:
                await asyncio.sleep(0.1)
                assert not task.done(), f"the trigger fired too early: {task.result()}"
                await asyncio.to_thread(meanwhile)
            return await asyncio.wait_for(task, 120)
        finally:
            await trigger.cleanup()

    payload = asyncio.run(first()).payload
    assert json.loads(json.dumps(payload)) == payload, "events are plain data"
    return payload


def watched(trigger: Any, meanwhile: Callable[[], object]) -> None:
    """`meanwhile` happens while the trigger looks, which wakes its task at no time."""

    async def look() -> None:
        looking = asyncio.ensure_future(anext(aiter(trigger.run())))
        try:
            await asyncio.to_thread(meanwhile)
            assert not looking.done(), f"the task is woken: {looking.result()}"
        finally:
            looking.cancel()
            await trigger.cleanup()

    asyncio.run(look())


async def cancelled(trigger: group.LogioGroupTrigger) -> None:
    """As Airflow's triggerer cancels a trigger, of any version; until it is being found out why."""

    async def watching() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await trigger.cleanup()

    task = asyncio.create_task(watching())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    while not group._following:
        await asyncio.sleep(0)


def make_dag_run(dag_id: str, run_id: str, partition_key: str | None) -> None:
    """What a trigger or the scheduler does, in Airflow's database: a DAG run that is running."""
    with settings.Session() as session:
        dag = DBDagBag().get_latest_version_of_dag(dag_id, session=session)
        assert dag is not None
        dag.create_dagrun(
            run_id=run_id,
            run_after=timezone.utcnow(),
            start_date=timezone.utcnow(),
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state=DagRunState.RUNNING,
            partition_key=partition_key,
            session=session,
        )
        session.commit()
