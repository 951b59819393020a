"""Drivers that share a Spark Connect server: they die, stop and wake up, and so does the server; the result is exact."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.cli.connection_file import DEFAULT_LOG
from airflow_logio.crash import CrashPoint
from airflow_logio.driver.spark_session import MOST_LOSSES
from airflow_logio.launch import processes, shared_server, spark_submit
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.launch.driver_folders import processes_under
from airflow_logio.launch.shared_server import Server
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.sql import migrate
from tests.acceptance.test_logio_run import SALES as SALES_FILE
from tests.acceptance.test_logio_run import folder, is_exact, started
from tests.acceptance.test_lost_terminals import all_run, condition
from tests.support.crash_sites import IN_SPARK
from tests.support.grocery import assert_exact, write_slice
from tests.support.lake_runs import LAKE_SITES, LakeFolders
from tests.support.running import SALES, SALES_RECORDS_PER_BATCH, ArmedSparkLauncher, Running, has_ended, running
from tests.support.standbys import sales_with_standbys, standby_of
from tests.support.waiting import eventually

__all__ = ["folder"]  # a fixture

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

SHARED = SparkSettings(connect=True, master="local[2]")
ROWS = 250_000


@pytest.fixture(scope="module")
def transactions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_slice(tmp_path_factory.mktemp("connect") / "transactions.parquet", ROWS)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `support/connect_sessions.py` has found out."""
    command = [sys.executable, "-m", "tests.support.connect_sessions", str(tmp_path_factory.mktemp("sessions"))]
    child = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600, check=False
    )
    assert child.returncode == 0, child.stderr
    made: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return made


def test_a_session_has_settings_code_and_slots(found: dict[str, Any]) -> None:
    assert found["plain"] == {"zone": "Asia/Tokyo", "doubled": [0, 2, 4], "slots": 3, "application": True}


@pytest.mark.parametrize(
    ("called", "refusal"),
    [
        ("count", r"has run a job of Spark, an action \(such as count"),
        ("collect", r"has run a job of Spark, an action \(such as count"),
        ("large", r"has run a job of Spark, an action \(such as count"),
        ("write", "has run a job of Spark, a write.*materialize_input=True"),
        ("lazy", None),
        ("columns", None),
        ("view", None),
        ("files", None),
    ],
)
def test_actions_in_lazy_functions_are_refused(found: dict[str, Any], called: str, refusal: str | None) -> None:
    said = found["actions"][called]
    assert said == "" if refusal is None else re.search(refusal, said), said


def test_outputs_that_would_differ_are_refused(found: dict[str, Any]) -> None:
    refused = {name for name, said in found["repeatable"].items() if "one of 2, depends on" in said}
    by_order = {"collected", "once", "some", "sampled", "numbered", "rows"}
    assert refused == {"random", "now", "sql", "unsteady", "joined", "wide", *by_order}
    assert {name for name in refused if "the order of records" in found["repeatable"][name]} == by_order
    assert {name for name, said in found["repeatable"].items() if not said} == {
        "plain",
        "steady",
        "summed",
        "none",
        "Sample",
        "ranks",
    }


def test_jobs_are_cancelled_by_their_group(found: dict[str, Any]) -> None:
    assert found["cancelled"] == {"one": "cancelled", "other": "done"}


def test_a_successor_closes_the_session_of_a_zombie(found: dict[str, Any]) -> None:
    closed = found["closed"]
    assert (closed["refused"], closed["successor"]) == (True, 3)
    assert closed["again"].startswith("SparkLost: the next driver of the group has closed")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("token", "ConfigurationError: .*refuses this client: .*SPARK_CONNECT_AUTHENTICATE_TOKEN"),
        ("address", "ExternalUnavailable: .*sc://localhost:1 has not answered for 1 s: .*`logio retry`"),
        (
            "static",
            "ConfigurationError: .*does not take spark.sql.warehouse.dir=/x.*Set it where the server is started",
        ),
    ],
)
def test_what_a_server_refuses_is_said(found: dict[str, Any], wrong: str, said: str) -> None:
    assert re.search(said, found["wrong"][wrong])
    assert "_InactiveRpcError" not in found["wrong"][wrong]


def test_a_program_on_the_port_of_a_dead_server_gets_no_token_and_no_record(found: dict[str, Any]) -> None:
    """An open session finds its server lost, without asking that program."""
    assert found["ended"] == {"lost": True, "got": False}


TINY = """
from airflow_logio import Count, EveryEvents, ParquetSource, Pipeline, generate

@generate(mode="executors")
def passed(rows):
    return rows

tiny = Pipeline("tiny")
numbers = tiny.source("numbers", ParquetSource({path!r}, records_per_event=1))
made = tiny.operator("made", passed, numbers, window=EveryEvents(1))
done = tiny.sink("done", Count(), made)
tiny.group("all", numbers, made, done)
"""


def tiny(tmp_path: Path, server: str, recoveries: int) -> Any:
    """A run of one group, whose server is started by this program of sh; it may call `real`, Spark's own."""
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "numbers.parquet")
    (tmp_path / "tiny.py").write_text(TINY.format(path=str(tmp_path / "numbers.parquet")))
    program = tmp_path / "submit"
    real = spark_submit.find_spark_submit(None, {})
    program.write_text(f'#!/bin/sh\necho $$ >> {tmp_path}/starts\nreal() {{ exec {real} "$@"; }}\n{server}\n')
    program.chmod(0o755)
    spark = SparkSettings(connect=True, master="local[1]", spark_binary=str(program))
    launcher = ArmedSparkLauncher(tmp_path / "drivers")
    ref = parse_ref(f"{tmp_path / 'tiny.py'}:tiny")
    sqlite = f"sqlite:///{tmp_path / 'log.db'}"
    migrate.upgrade(sqlite)
    settings: dict[str, Any] = {"connections": {}, "params": {}, "recoveries": recoveries, "spark": spark}
    return running(sqlite, "", tmp_path, launcher, ref=ref, **settings)


def starts(tmp_path: Path) -> int:
    return len((tmp_path / "starts").read_text().splitlines())


def test_a_server_that_is_killed_as_it_starts_costs_recoveries_until_the_budget_is_spent(tmp_path: Path) -> None:
    """And none before its driver has tried four times."""
    with tiny(tmp_path, "kill -9 $$", recoveries=1) as run:
        run.until(lambda: run.status("all").state is GroupState.PARKED, "the group is parked", timeout=240)
        status = run.status("all")
        assert status.incarnation == 2, "its supervisor has launched it again"
        assert status.error is not None and "killed while it started (SIGKILL" in status.error
        assert status.error.startswith("BudgetSpent") or "recover" in status.error
        assert starts(tmp_path) == 2 * (1 + MOST_LOSSES)


def test_a_server_that_refuses_its_settings_parks_the_group_with_its_first_error(tmp_path: Path) -> None:
    with tiny(tmp_path, "echo 'Error: Unrecognized option: --fooo' >&2; exit 1", recoveries=1) as run:
        run.until(lambda: run.status("all").state is GroupState.PARKED, "the group is parked", timeout=240)
        status = run.status("all")
        assert status.incarnation == 1 and starts(tmp_path) == 1
        said = r"ConfigurationError: .* exit code 1; the first error in .*:\nError: Unrecognized option: --fooo"
        assert re.search(said, status.error or ""), status.error


def test_a_server_that_is_killed_five_times_as_it_starts_is_started_by_the_next_driver(tmp_path: Path) -> None:
    server = f'if [ $(wc -l < {tmp_path}/starts) -gt {2 + MOST_LOSSES} ]; then real "$@"; fi; kill -9 $$'
    with tiny(tmp_path, server, recoveries=1) as run:
        run.finish()
        assert run.status("all").incarnation == 2 and starts(tmp_path) == 3 + MOST_LOSSES
        assert run.count("done.in", "in") == 3


def server_of(tmp_path: Path, run: Running) -> Server:
    """The server that the drivers of a run have now."""
    (folder,) = (tmp_path / "drivers" / run.run.uid / shared_server.FOLDER).iterdir()
    server = shared_server.known(folder)
    assert server is not None
    return server


@pytest.mark.postgres
def test_sales_with_dead_drivers_a_zombie_and_a_dead_server(
    postgres_url: str, postgres_warehouse_url: str, transactions: Path, tmp_path: Path
) -> None:
    """`hourly` dies around its first job, then stops in a transaction; when its successor works, the server is killed."""
    points = [f"{point}:1" for point in IN_SPARK] + [f"{CrashPoint.IN_LOG_TRANSACTION}:3:stop"]
    armed = {("hourly", number): point for number, point in enumerate(points, start=1)}
    last = len(points) + 1
    launcher = ArmedSparkLauncher(tmp_path / "drivers", armed)
    arguments = (postgres_url, postgres_warehouse_url, transactions, launcher)
    with running(*arguments, ref=SALES, spark=SHARED, end_old_drivers=False, lease=Lease(8, 90)) as run:
        run.until(lambda: run.is_running("hourly", last - 1), "hourly has died around its first job")
        first = server_of(tmp_path, run)
        zombie = run.process("hourly")
        assert not zombie.children(), "a driver has no JVM of its own"
        run.until(lambda: zombie.status() == psutil.STATUS_STOPPED, "hourly has stopped inside a transaction")
        run.until(partial(run.is_running, "hourly", last), "hourly is replaced")
        processes.end(first.jvm)
        zombie.send_signal(signal.SIGCONT)
        eventually(lambda: has_ended(zombie), what="the zombie exits", timeout=60)
        run.finish()
        second = server_of(tmp_path, run)
        assert second.jvm != first.jvm, "a driver has started another server"
        assert run.status("hourly").incarnation == last, "who has lost the server lives on"
    assert_exact(postgres_warehouse_url, transactions, SALES_RECORDS_PER_BATCH)
    eventually(lambda: processes.is_gone(second.jvm), what="the server ends behind its last driver", timeout=60)


@pytest.mark.postgres
def test_a_standby_that_shares_the_server(
    postgres_url: str, postgres_warehouse_url: str, transactions: Path, tmp_path: Path
) -> None:
    """It is no child of a JVM, and holds a session of its own from the start."""
    go_on = tmp_path / "go_on"
    ref = sales_with_standbys(tmp_path, ["hourly"], go_on, after=60)
    launcher = ArmedSparkLauncher(tmp_path / "drivers")
    arguments = (postgres_url, postgres_warehouse_url, transactions, launcher)
    with running(*arguments, ref=ref, spark=SHARED, lease=Lease(10, 60)) as run:
        run.until(lambda: _stands_by(run, 1), "hourly has a standby")
        first = standby_of(run.store, run.run.run_id, "hourly")
        assert first is not None and first.rss_bytes > 2**20
        server = server_of(tmp_path, run)
        run.signal("hourly", signal.SIGKILL)
        run.until(lambda: run.is_running("hourly", 2), "hourly runs again")
        identity = run.status("hourly").identity
        assert identity is not None and identity.pid == first.pid
        run.until(lambda: _stands_by(run, 2), "it has a standby again")
        # It hangs: its standby or the supervisor takes its place. The other one ends, and leaves the new session alone.
        run.signal("hourly", signal.SIGSTOP)
        run.until(lambda: run.is_running("hourly", 3), "another driver has taken its place")
        go_on.touch()
        run.finish()
        assert server_of(tmp_path, run) == server
        eventually(lambda: not processes_under(tmp_path / "drivers"), what="nothing is left", timeout=60)
    assert_exact(postgres_warehouse_url, transactions, SALES_RECORDS_PER_BATCH)


def _stands_by(run: Running, incarnation: int) -> bool:
    found = standby_of(run.store, run.run.run_id, "hourly")
    return run.is_running("hourly", incarnation) and found is not None and found.is_ready


def test_a_terminal_that_is_killed_takes_no_driver_along(folder: Path) -> None:
    """Drivers are its children, where a classic driver is its JVM's."""
    arguments = ("run", SALES_FILE, "--connect", "--param", "transactions=transactions.parquet", "--run-id", "mine")
    terminal = started(folder, *arguments)
    eventually(lambda: all_run(folder / DEFAULT_LOG), what="its drivers run", timeout=240, every=0.1)
    terminal.kill()
    terminal.communicate()
    eventually(lambda: condition(folder)[2] == {"finished"}, what="its drivers work on by themselves", timeout=200)
    printed, _ = started(folder, *arguments).communicate(timeout=240)
    assert "4 drivers launched, 0 of them recoveries" in printed
    assert is_exact(folder)


@pytest.mark.parametrize("log_url", ["postgres", pytest.param("sqlite", marks=pytest.mark.soak)], indirect=True)
def test_a_lake_whose_drivers_die_around_jobs_manifests_and_publication(
    log_url: str, warehouse_url: str, tmp_path: Path
) -> None:
    one = LakeFolders(tmp_path, warehouse_url)
    armed = {
        (group, number): point for group, points in LAKE_SITES.items() for number, point in enumerate(points, start=1)
    }
    launcher = ArmedSparkLauncher(tmp_path / "drivers", armed)
    with running(log_url, warehouse_url, one.orders, launcher, spark=SHARED, **one.settings()) as run:
        run.finish(timeout=800)
        died = {group: run.status(group).incarnation - 1 for group in LAKE_SITES}
        assert died == {group: len(points) for group, points in LAKE_SITES.items()}, "every one of them was passed"
        one.assert_exact()
        one.assert_nothing_left(run.store, run)
