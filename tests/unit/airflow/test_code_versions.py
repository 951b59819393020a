"""Which version of a pipeline the tasks of a run launch, when the folder of DAGs gets another one in the middle of it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.providers.git.bundles.git import GitDagBundle
from git import Actor, Repo

from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import GroupRef, Run
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


class Folder:
    """A folder of DAGs, overwritten in place. Each deployment is seen as by a task's process, which has imported nothing
    before."""

    def __init__(self, folder: Path, path: list[str]) -> None:
        """`path` is the interpreter's, which Airflow's tasks begin with the folder of their bundle."""
        self.folder = folder / "bundle"
        self._path = path
        self._path.insert(0, str(self.folder))

    def deploy(self, version: str, more: str = "") -> None:
        self._write(self.folder, version, more)
        self.forget()

    def _write(self, folder: Path, version: str, more: str) -> None:
        package = folder / "flows_of_a_bundle"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
        (package / "doubling.py").write_text(SOURCE.replace("VERSION", version) + more)

    def remove(self) -> None:
        shutil.rmtree(self.folder)
        self.forget()

    def forget(self) -> None:
        for name in [name for name in sys.modules if name.startswith("flows_of_a_bundle")]:
            del sys.modules[name]


class GitVersions(Folder):
    """Airflow's bundle of a Git repository: each version has a folder of its own, which Airflow removes when it is old."""

    def __init__(self, folder: Path, path: list[str]) -> None:
        super().__init__(folder, path)
        self.repository = Repo.init(folder / "repository", initial_branch="main")

    def deploy(self, version: str, more: str = "") -> None:
        self._write(Path(self.repository.working_dir), version, more)
        self.repository.git.add(all=True)
        author = Actor("somebody", "somebody@example.com")
        commit = self.repository.index.commit(version, author=author, committer=author).hexsha
        where: dict[str, Any] = {"tracking_ref": "main", "repo_url": self.repository.working_dir}
        bundle = GitDagBundle(name="flows", version=commit, **where)
        bundle.initialize()
        assert commit in bundle.path.parts
        self._path[0], self.folder = str(bundle.path), bundle.path
        self.forget()


@pytest.fixture(params=[Folder, GitVersions])
def bundle(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH", str(tmp_path / "versions"))
    found = request.param(tmp_path, sys.path)
    yield found
    found.forget()


@pytest.fixture
def run(bundle: Folder, log: LogStore, launcher: FakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Begun with version 1, and its driver is running."""
    for operator in (LogioSparkOperator, LogioRecoverGroupOperator):
        monkeypatch.setattr(operator, "make_launcher", lambda self: launcher)
    bundle.deploy("version 1")
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
    """The driver dies, and the recovery DAG's task recovers its group."""
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
    recovery = LogioRecoverGroupOperator(task_id="recover", finding=finding).execute(context())
    assert recovery["outcome"] == "launched", recovery
    register(log, launcher)
    return version(launcher)


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
    bundle: Folder, log: LogStore, launcher: FakeLauncher, run: Run, more: str
) -> None:
    assert version(launcher) == "version 1"
    bundle.deploy("version 2", more)
    assert recover(log, run, launcher) == "version 1"


def test_a_recovery_needs_no_folder(bundle: Folder, log: LogStore, launcher: FakeLauncher, run: Run) -> None:
    """A version of a bundle that was cleaned up, or another worker."""
    bundle.remove()
    assert recover(log, run, launcher) == "version 1"


def test_another_attempt_of_the_task_keeps_the_version(
    bundle: Folder, log: LogStore, launcher: FakeLauncher, run: Run
) -> None:
    bundle.deploy("version 2")
    log.declare_dead(log.register(launcher.claims[-1], launcher.identity()), "dead")
    work(attempt=2)
    assert (len(launcher.claims), version(launcher)) == (2, "version 1")


def test_a_person_who_clears_the_task_takes_the_version_of_the_worker(
    bundle: Folder, log: LogStore, launcher: FakeLauncher, run: Run
) -> None:
    log.session(log.register(launcher.claims[-1], launcher.identity())).park("it is wrong")
    bundle.deploy("version 2")
    work(attempt=2, max_tries=4)
    assert version(launcher) == "version 2"
    register(log, launcher)
    (change,) = log.code_changes(run.run_id)
    assert (change.number, change.group) == (1, "all") and "cleared by a person" in change.taken_by
    bundle.deploy("version 3")
    assert recover(log, run, launcher) == "version 2"


def test_a_version_with_another_graph_is_not_taken(
    bundle: Folder, log: LogStore, launcher: FakeLauncher, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    log.session(log.register(launcher.claims[-1], launcher.identity())).park("it is wrong")
    bundle.deploy("version 2", OTHER_GRAPH)
    work(attempt=2, max_tries=4)
    assert version(launcher) == "version 1"
    assert log.code_changes(run.run_id) == []
