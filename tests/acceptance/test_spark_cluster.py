"""Client mode with a Spark standalone master: jobs run on its executors, and a killed driver leaves none behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_logio.demo.standalone import free_port
from airflow_logio.runtime.launch.code_bundle import CodeBundle
from airflow_logio.runtime.launch.driver_config import DriverConfig
from airflow_logio.runtime.launch.launcher import Launched, LocalProcessLauncher
from airflow_logio.runtime.launch.spark_submit import SparkSettings, environment, find_spark_submit
from airflow_logio.store.records import Claim
from tests.support.grocery import assert_exact
from tests.support.running import SALES, SALES_RECORDS_PER_BATCH, PlainLauncher, running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(600)]

HERE = "127.0.0.1"


@dataclass(frozen=True)
class Cluster:
    """A master and a worker, each a process of its own."""

    port: int
    ui_port: int
    worker: psutil.Process

    @property
    def url(self) -> str:
        return f"spark://{HERE}:{self.port}"

    def state(self) -> dict[str, Any]:
        """What the page of the master shows; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{HERE}:{self.ui_port}/json/", timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, HTTPException, ValueError):  # it begins, or is cut short
            return {}

    def running(self) -> list[str]:
        silent = [{"id": "the master does not answer"}]
        return [application["id"] for application in self.state().get("activeapps", silent)]

    def executors(self) -> list[psutil.Process]:
        found = []
        for process in self.worker.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                if "CoarseGrainedExecutor" in " ".join(process.cmdline()):
                    found.append(process)
        return found


class HourlyOnTheCluster(PlainLauncher):
    """The one group with Spark jobs; the others need no JVM."""

    def launch(
        self, claim: Claim, config: DriverConfig, settings: SparkSettings, conf: Mapping[str, str], code: CodeBundle
    ) -> Launched:
        if claim.group == "hourly":
            return LocalProcessLauncher(self.work_dir).launch(claim, config, settings, conf, code)
        return super().launch(claim, config, settings, conf, code)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    port, ui_port = free_port(), free_port()
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(Path(find_spark_submit(None)).with_name("spark-class")), f"org.apache.spark.deploy.{name}"]
        ours = {
            "SPARK_LOCAL_IP": HERE,
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "SPARK_WORKER_DIR": str(tmp_path / "worker"),
        }
        with (tmp_path / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *arguments, "--host", HERE],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(SparkSettings()) | ours,
                start_new_session=True,
            )
        processes.append(process)
        return process

    try:
        start("master.Master", "--port", str(port), "--webui-port", str(ui_port))
        worker = start(
            "worker.Worker", f"spark://{HERE}:{port}", "--cores", "1", "--memory", "600m", "--webui-port", "0"
        )
        found = Cluster(port, ui_port, psutil.Process(worker.pid))
        try:
            registers = "the worker registers"
            eventually(lambda: found.state().get("aliveworkers") == 1, what=registers, timeout=240, every=0.2)
        except Exception as error:
            for log in sorted(tmp_path.glob("*.log")):
                error.add_note(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
            raise
        yield found
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # it could not begin
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()


def test_a_killed_driver_is_recovered_and_leaves_no_application(
    sqlite_url: str, warehouse_url: str, small_transactions: Path, cluster: Cluster, tmp_path: Path
) -> None:
    launcher = HourlyOnTheCluster(tmp_path / "drivers")
    settings = SparkSettings(
        cluster.url,
        total_executor_cores=1,
        executor_memory="512m",
        conf={"spark.driver.host": HERE, "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"},
        env_vars={"PYTHONPATH": str(Path(__file__).parents[2]), "SPARK_LOCAL_IP": HERE},
    )
    with running(sqlite_url, warehouse_url, small_transactions, launcher, ref=SALES) as run:
        run.context = replace(run.context, settings=settings)
        has_executor = lambda: run.is_running("hourly") and cluster.executors()  # noqa: E731
        run.until(has_executor, "hourly has an executor of the cluster", timeout=240)
        [first] = cluster.running()
        run.signal("hourly", signal.SIGKILL, jvm=True)
        run.until(lambda: run.is_running("hourly", 2), "hourly is recovered")
        run.finish(timeout=300)
        assert run.status("hourly").incarnation == 2
    eventually(lambda: cluster.running() == [], what="the master shows no application that runs", timeout=60, every=0.2)
    eventually(lambda: cluster.executors() == [], what="no executor is left", timeout=60, every=0.2)
    ended = cluster.state()["completedapps"]
    assert first in [application["id"] for application in ended]
    assert len(ended) == 2, "one per driver of hourly; the other groups have no jobs"
    assert_exact(warehouse_url, small_transactions, SALES_RECORDS_PER_BATCH)
