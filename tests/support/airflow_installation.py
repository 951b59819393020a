"""Airflow, the databases and the drivers of one test: what is there, what the log says of it, and its end."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil

from airflow_logio.protocol.states import GroupState
from airflow_logio.store import open_store
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from demo.places import Places
from demo.rest import AirflowRefused, AirflowUnavailable
from tests.support.airflow_processes import AirflowProcesses
from tests.support.person import Person
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
LONG, SHORT = 600.0, 60.0
"""Seconds that something may take on a machine with much else to do."""


class AirflowInstallation:
    """The log, the warehouse and Airflow's own database are in PostgreSQL; the DAGs are the repository's and the tests'."""

    def __init__(
        self, folder: Path, server: PostgresServer, settings: Mapping[str, str], *, address: str = "localhost"
    ) -> None:
        """`address` is where the API server listens, for this machine and for others."""
        dags = folder / "dags"
        shutil.copytree(ROOT / "dags", dags, ignore=shutil.ignore_patterns("__pycache__"))
        for file in (ROOT / "tests" / "e2e" / "dags").glob("*.py"):
            shutil.copy(file, dags)
        self.server = server
        self.warehouse = server.new_database(migrated=False)
        self.places = Places(folder, dags, server.new_database(), self.warehouse)
        self.places.airflow_home.mkdir()
        # A scheduler ends when a file of SQLite stays locked for longer than it waits, which a busy machine makes happen.
        self._airflow_database = server.new_database(migrated=False)
        url = self._airflow_database.replace("postgresql:", "postgresql+psycopg2:")
        own = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url}
        self.airflow = AirflowProcesses(self.places, own | dict(settings), address)
        self.person = Person(self.airflow.url, self._login)
        self.log = open_store(self.places.log_url, application="logio test")

    def _login(self) -> tuple[str, str] | None:
        path = self.places.airflow_home / "simple_auth_manager_passwords.json.generated"
        with contextlib.suppress(OSError, ValueError):
            return next(iter(json.loads(path.read_text()).items()), None)
        return None

    def wait_until_healthy(self, *dag_ids: str) -> None:
        def healthy() -> bool:
            self.airflow.check_alive()
            with contextlib.suppress(AirflowUnavailable, AirflowRefused):
                return self.person.is_healthy() and all(map(self.person.has_dag, dag_ids))
            return False

        eventually(healthy, what="Airflow is healthy and has parsed the DAGs", timeout=LONG, every=0.5)

    # --- what the log says -------------------------------------------------------------------------------------------

    def runs(self, dag_id: str) -> list[Run]:
        """The latest first. Without a component of Airflow, a person who waits for a run waits in vain, and is told so."""
        self.airflow.check_alive()
        runs = self.log.patience.call("listing the runs", self.log.list_runs)
        return [run for run in runs if run.spec.key.dag_id == dag_id]

    def run(self, dag_id: str) -> Run:
        """The latest one."""
        return self.runs(dag_id)[0]

    def group_of(self, run: Run, name: str) -> GroupStatus:
        return self.log.patience.call("reading the group", lambda: self.log.group(run.run_id, name))

    def driver_of(self, run: Run, name: str) -> psutil.Process:
        """The registered driver of a group, waited for."""

        def driver() -> psutil.Process | None:
            status = self.group_of(run, name)
            assert status.state is not GroupState.PARKED, f"{name} is parked: {status.error}"
            if status.state is not GroupState.RUNNING or status.identity is None:
                return None
            with contextlib.suppress(psutil.NoSuchProcess):
                return psutil.Process(status.identity.pid)
            return None

        return eventually(driver, what=f"{name} runs", timeout=LONG, every=0.1)

    # --- the end -----------------------------------------------------------------------------------------------------

    def drivers(self, run: Run | None = None) -> list[psutil.Process]:
        """All that runs of all drivers, or of those of one run, JVMs and Python alike."""
        folder = str(self.places.drivers if run is None else self.places.drivers / run.uid)
        return [p for p in psutil.process_iter(["cmdline"]) if any(folder in part for part in p.info["cmdline"] or [])]

    def last_words(self) -> str:
        """What a failed test is explained by."""
        logs = sorted(self.places.drivers.rglob("driver.log"))
        ends = [f"--- {log.relative_to(self.places.drivers)}\n{_end(log)}" for log in logs]
        tasks = [f"--- {log.name} of {log.parent.name}\n{_end(log)}" for log in self.task_logs("supervise")]
        return "\n".join([self.airflow.deaths(), self._states(), self.airflow.last_words(), *tasks, *ends])

    def _states(self) -> str:
        """The tasks of each DAG run that has begun, as Airflow sees them."""
        told = []
        for dag_id in sorted({run.spec.key.dag_id for run in self.log.list_runs()}):
            with contextlib.suppress(AirflowUnavailable, AirflowRefused):
                told += [f"{dag_id}, {run}: {self.person.states(dag_id, run)}" for run in self.person.runs(dag_id)]
        return "\n".join(told)

    def task_logs(self, task: str) -> list[Path]:
        found = (self.places.airflow_home / "logs").rglob("*.log*")
        return sorted(
            log for log in found if log.is_file() and f"task_id={task}/" in f"{log.parent}/".replace("sales.", "")
        )

    def close(self) -> None:
        self.airflow.kill_all()
        for process in self.drivers():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.log.dispose()
        for url in (self.places.log_url, self.warehouse, self._airflow_database):
            self.server.drop_database(url)


def _end(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    telling = [line for line in lines if "JDK_JAVA_OPTIONS" not in line and "WARN NativeCodeLoader" not in line]
    return "\n".join(telling[-8:])
