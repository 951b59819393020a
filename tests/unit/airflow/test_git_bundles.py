"""Airflow's own Git bundle, updated or cleaned up in the middle of a run: the recovery executes the version of the run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.dag_processing.bundles import base
from airflow.dag_processing.bundles.base import BundleUsageTrackingManager, BundleVersionLock
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.providers.git.bundles.git import GitDagBundle

from airflow_logio.crash import CrashPoint
from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.findings import FailureFinder
from tests.support.airflow_connections import connection
from tests.support.deployments import Deployments
from tests.support.running import PlainLauncher
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of
from tests.unit.airflow.support import context

pytestmark = pytest.mark.acceptance

NAME = "shop"
REF = "shop_flows.prices:prices"
SOURCE = """
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio import EveryEvents, ParquetSource, Pipeline, TableWriter, generate


@generate
def priced(numbers: pa.Table, inset_id: str) -> pa.Table:
    factor = int((Path(__file__).parent / "factor.txt").read_text())
    return pa.table({"batch": pa.array([int(inset_id)], pa.int64()), "price": [factor * pc.sum(numbers["n"]).as_py()]})


prices = Pipeline("prices", params={"numbers": str}, connections=["warehouse"])
read = prices.source("read", ParquetSource("{numbers}", records_per_event=10))
price = prices.operator("price", priced, read, window=EveryEvents(1))
table = TableWriter("warehouse", "prices", {"batch": "bigint", "price": "bigint"}, on_new_run="replace")
prices.group("all", read, price, prices.writer("save", table, price))
"""
OTHER_GRAPH = "prices.lineage(start='read.out', target='price.out')\n"
EXPECTED = [(batch + 1, sum(range(10 * batch, 10 * batch + 10))) for batch in range(3)]


class GitRepository:
    """What authors push to, and what Airflow makes of it on a worker."""

    def __init__(self, folder: Path) -> None:
        self._work = Deployments(folder, "shop_flows")
        folder.mkdir()
        self._git("init", "--quiet", "--initial-branch", "main")

    def push(self, factor: int, more: str = "") -> str:
        for name, text in _version(factor, more).items():
            (self._work.folder / name).parent.mkdir(exist_ok=True)
            (self._work.folder / name).write_text(text)
        self._git("add", "--all")
        self._git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", str(factor))
        return self._git("rev-parse", "HEAD").strip()

    def bundle(self, version: str | None = None) -> GitDagBundle:
        """As a task's process gets it: of one version, or where versions are disabled, of the branch."""
        found = GitDagBundle(name=NAME, version=version, tracking_ref="main", repo_url=str(self._work.folder))
        found.initialize()
        return found

    def worker(self, bundle: GitDagBundle, monkeypatch: pytest.MonkeyPatch) -> None:
        """From here on, this is a process that finds DAGs and pipelines in that bundle, and has imported none."""
        self._work.forget()
        others = [path for path in sys.path if f"/{NAME}/" not in path]
        monkeypatch.setattr(sys, "path", [str(bundle.path), *others])

    def forget(self) -> None:
        self._work.forget()

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self._work.folder, check=True, text=True, stdout=subprocess.PIPE)
        return done.stdout


def _version(factor: int, more: str) -> Mapping[str, str]:
    return {
        "shop_flows/__init__.py": "",
        "shop_flows/prices.py": SOURCE + more,
        "shop_flows/factor.txt": str(factor),
    }


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitRepository]:
    found = GitRepository(tmp_path / "repository")
    bundles = [
        {
            "name": NAME,
            "classpath": f"{GitDagBundle.__module__}.{GitDagBundle.__name__}",
            "kwargs": {"tracking_ref": "main", "repo_url": str(tmp_path / "repository")},
        }
    ]
    for name, value in {
        "DAG_BUNDLE_STORAGE_PATH": str(tmp_path / "bundles"),
        "DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
        "STALE_BUNDLE_CLEANUP_MIN_VERSIONS": "0",
        "STALE_BUNDLE_CLEANUP_AGE_THRESHOLD": "0",
    }.items():
        monkeypatch.setenv(f"AIRFLOW__DAG_PROCESSOR__{name}", value)
    monkeypatch.setenv("AIRFLOW_CONN_GIT_DEFAULT", connection("git", host=str(tmp_path / "repository")))
    monkeypatch.setattr(base, "STALE_BUNDLE_TRACKING_FOLDER", tmp_path / "bundles" / "_tracking")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield found
    found.forget()


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlainLauncher]:
    """The first driver dies after its second commit."""
    launcher = PlainLauncher(tmp_path / "drivers", {("all", 1): f"{CrashPoint.AFTER_COMMIT}:2"})
    for operator in (LogioSparkOperator, LogioRecoverGroupOperator):
        monkeypatch.setattr(operator, "make_launcher", lambda self: launcher)
    yield launcher
    for child in launcher.children:
        child.kill()
        child.wait()


def begin(log: LogStore, drivers: PlainLauncher, tmp_path: Path) -> Run:
    """The tasks of the pipeline's DAG, until the driver is dead."""
    pq.write_table(pa.table({"n": range(30)}), tmp_path / "numbers.parquet")
    params = {"numbers": str(tmp_path / "numbers.parquet")}
    start = LogioStartRunOperator(task_id="start_run", pipeline=REF, connections={"warehouse": "warehouse_db"})
    run = log.find_run(start.execute(context(params=params)))
    with pytest.raises(TaskDeferred):
        LogioSparkOperator(task_id="all", pipeline=REF, retries=3).execute(context())
    drivers.drivers["all", 1].wait()
    return run


def recover(log: LogStore, run: Run, drivers: PlainLauncher) -> None:
    """The recovery DAG's sensor and task; then the new driver finishes its group."""
    finder = FailureFinder(log, run_uid=run.uid)
    found = eventually(lambda: finder.look().failed or (), what="the failure is found")
    recovery = LogioRecoverGroupOperator(task_id="recover", finding=found[0].as_dict()).execute(context())
    assert (recovery["outcome"], recovery["launched_incarnation"]) == ("launched", 2), recovery
    eventually(lambda: log.group(run.run_id, "all").state is GroupState.FINISHED, what="the group finishes")


def test_a_version_that_is_cleaned_up_on_the_worker(
    repository: GitRepository,
    log: LogStore,
    drivers: PlainLauncher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sqlite_url: str,
) -> None:
    """The next version has another graph, and Airflow has removed the one of the run, as it does with what no task uses."""
    first = repository.push(1)
    versioned = repository.bundle(first)
    with BundleVersionLock(NAME, first):
        repository.worker(versioned, monkeypatch)
        run = begin(log, drivers, tmp_path)
    second = repository.push(2, OTHER_GRAPH)
    repository.worker(repository.bundle(second), monkeypatch)
    BundleUsageTrackingManager().remove_stale_bundle_versions()
    assert not versioned.path.exists()
    recover(log, run, drivers)
    assert sorted(rows_of(f"{sqlite_url}.warehouse", "SELECT batch, price FROM prices")) == EXPECTED
    assert log.code_changes(run.run_id) == []


def test_a_branch_that_is_updated_in_place(
    repository: GitRepository,
    log: LogStore,
    drivers: PlainLauncher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sqlite_url: str,
) -> None:
    """Versions of bundles are disabled: all tasks use one folder, and the next version has the same graph."""
    repository.push(1)
    tracking = repository.bundle()
    repository.worker(tracking, monkeypatch)
    run = begin(log, drivers, tmp_path)
    repository.push(2)
    tracking.refresh()
    assert (tracking.path / "shop_flows" / "factor.txt").read_text() == "2"
    repository.worker(tracking, monkeypatch)
    recover(log, run, drivers)
    assert sorted(rows_of(f"{sqlite_url}.warehouse", "SELECT batch, price FROM prices")) == EXPECTED
    assert log.code_changes(run.run_id) == []
