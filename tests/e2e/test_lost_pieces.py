"""Every piece of an installation is lost once while a run continues: afterwards the result is exact and nothing is left over.

Airflow's components are processes of their own, the log and the warehouse are in PostgreSQL, the drivers are real
spark-submit. Each step takes something away and waits for what must follow from it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from airflow_logio.protocol.states import ALIVE, GroupState, RunState
from airflow_logio.store.records.status_records import GroupStatus, UnderWay
from airflow_logio.supervision.presence import last_look
from demo.standalone import warehouse_connection
from tests.support.airflow_installation import LONG, ROOT, SHORT, AirflowInstallation
from tests.support.grocery import assert_exact, expected, load_products, write_slice
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually
from tests.support.warehouse import warehouse_engine
from tests.support.witness import Witness

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(2400)]

log = logging.getLogger(__name__)

SUPERVISED, RELYING, RECOVERY = "supervised", "relying", "logio_recovery"
RUN_ID = "lost_pieces"
IN_TRIGGERER = "AIRFLOW__LOGIO__RECOVER_IN_TRIGGERER"
GROUPS = ("ingest", "totals", "hourly", "publish")
RECORDS, RELYING_RECORDS = 150_000, 50_000
RECORDS_PER_BATCH = 250 * 10


class Installation(AirflowInstallation):
    """The one DAG run that all this is about, and one that relies on the recovery DAG."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self.sums = f"sqlite:///{folder}/sums.db"
        settings = {"AIRFLOW_CONN_SUMS_DB": warehouse_connection(self.sums), IN_TRIGGERER: "never"}
        super().__init__(folder, server, settings)
        self.slow = folder / "slow"
        self.slow.touch()
        self.transactions = write_slice(folder / "transactions.parquet", RECORDS)
        self.few_transactions = write_slice(folder / "few_transactions.parquet", RELYING_RECORDS)
        load_products(self.warehouse)

    def begin(self, dag_id: str, transactions: Path) -> None:
        self.person.begin(dag_id, RUN_ID, {"transactions": str(transactions), "slow": str(self.slow)})

    # --- what the log says -------------------------------------------------------------------------------------------

    def run_id(self, dag_id: str) -> int:
        return self.run(dag_id).run_id

    def group(self, name: str, dag_id: str = SUPERVISED) -> GroupStatus:
        return self.group_of(self.run(dag_id), name)

    def running(self, name: str, dag_id: str = SUPERVISED) -> psutil.Process:
        return self.driver_of(self.run(dag_id), name)

    def kill(self, name: str, dag_id: str = SUPERVISED) -> int:
        """SIGKILL of a group's driver; returns the incarnation that follows."""
        process = self.running(name, dag_id)
        following = self.group(name, dag_id).incarnation + 1
        process.kill()
        return following

    def wait_for(self, name: str, incarnation: int, dag_id: str = SUPERVISED) -> None:
        """A process has claimed that incarnation."""

        def claimed() -> bool:
            status = self.group(name, dag_id)
            assert status.state is not GroupState.PARKED, f"{name} is parked: {status.error}"
            return status.incarnation >= incarnation

        eventually(claimed, what=f"{name} is recovered as {incarnation}", timeout=LONG, every=0.1)

    def events(self, port: str) -> int:
        run_id = self.run_id(SUPERVISED)
        rows = self.log.patience.call("reading the counters", lambda: self.log.progress(run_id))
        return sum(row.events for row in rows if str(row.port) == port)

    def is_supervised(self) -> bool:
        """Whether a supervisor looks after the run now."""
        seen = last_look(self.log.supervisors(), self.run(SUPERVISED))
        return seen is not None and seen.age_seconds < 3

    def wait_for_supervisor(self) -> None:
        """As a person would: who finds the task stuck in Airflow clears it. Groups have recovered by themselves till then."""
        try:
            eventually(self.is_supervised, what="a supervisor looks after the run", timeout=LONG, every=0.2)
        except AssertionError:
            log.warning("Airflow has lost the supervising task: %s", self.person.states(SUPERVISED, RUN_ID))
            self.person.clear(SUPERVISED, RUN_ID, "sales.supervise")
            eventually(self.is_supervised, what="a supervisor looks after the run again", timeout=LONG, every=0.2)


@pytest.fixture
def installation(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Installation]:
    here = Installation(tmp_path, postgres_server)
    try:
        here.airflow.migrate()
        here.airflow.start()
        here.wait_until_healthy(SUPERVISED, RELYING, RECOVERY)
        yield here
    finally:
        here.close()


def test_every_piece_is_lost_once(installation: Installation) -> None:
    here = installation
    began = time.monotonic()

    def tell(what: str) -> None:
        log.info("%6.1f s  %s", time.monotonic() - began, what)

    try:
        here.begin(RELYING, here.few_transactions)
        here.person.unpause(RECOVERY)
        recovered_by_dag(here)
        tell("recovered by the recovery DAG")
        dead_while_the_recovery_dag_is_paused(here)
        tell("the recovery DAG is paused, a group is dead")
        eventually(
            lambda: here.person.states(SUPERVISED, RUN_ID).get("sales.start_run") == "success",
            what="start",
            timeout=LONG,
        )
        with Witness(here.log, here.run(SUPERVISED), here.places.drivers) as witness:
            for name in GROUPS:
                here.running(name)
            tell("all groups run")
            for step in STEPS:
                here.wait_for_supervisor()
                step(here)
                tell(step.__name__)
            left_alone(here)
            tell("left_alone")
            finish(here, witness)
            tell("finish")
    except BaseException as error:
        error.add_note(here.last_words())
        raise


# --- what is lost -----------------------------------------------------------------------------------------------------


def a_driver(here: Installation) -> None:
    here.wait_for("totals", here.kill("totals"))


def the_task_that_recovers_and_its_supervisor(here: Installation) -> None:
    following = here.kill("hourly")
    while not recovering_task_is_killed(here, following):
        following = here.kill("hourly")
    here.wait_for("hourly", following)


def recovering_task_is_killed(here: Installation, following: int) -> bool:
    """SIGKILL of the task that recovers, at whatever step it is; False if it had ended before we saw it."""

    def killed() -> str:
        if here.person.states(SUPERVISED, RUN_ID).get("sales.supervise") == "running":
            # Held first: a worker that is killed while it waits for its next task takes their queue's lock with it.
            runners = [runner for runner in here.airflow.task_processes() if is_held(runner)]
            for one in [*[runner.parent() for runner in runners], *runners]:
                with contextlib.suppress(psutil.NoSuchProcess, AttributeError):
                    one.kill()
            if runners:
                return "killed"
        launched = here.group("hourly").state is GroupState.RUNNING and here.group("hourly").incarnation == following
        return "too late" if launched else ""

    return eventually(killed, what="the supervising task recovers", timeout=LONG, every=0.02) == "killed"


def is_held(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def the_triggerer(here: Installation) -> None:
    here.airflow.kill("triggerer")
    following = here.kill("publish")
    here.airflow.environment[IN_TRIGGERER] = "auto"
    here.airflow.start("triggerer")
    here.wait_for("publish", following)


def the_scheduler(here: Installation) -> None:
    """No task can run, and the triggerer recovers what ran beside it."""
    here.airflow.kill("scheduler")
    here.wait_for("totals", here.kill("totals"))
    here.airflow.start("scheduler")


def the_dag_processor(here: Installation) -> None:
    here.airflow.kill("dag-processor")
    here.wait_for("ingest", here.kill("ingest"))
    here.airflow.start("dag-processor")


def the_api_server(here: Installation) -> None:
    here.airflow.kill("api-server")
    following = here.kill("hourly")
    eventually(lambda: here.group("hourly").state is GroupState.DEAD, what="hourly is found dead", timeout=SHORT)
    here.airflow.start("api-server")
    here.wait_for("hourly", following)


def the_database(here: Installation) -> None:
    """The log and the warehouse are unavailable for a moment: no one takes anyone for dead."""
    for name in GROUPS:
        here.running(name)
    before = {name: here.group(name).incarnation for name in GROUPS}
    seen, waited = here.events("ingest.out"), waits(here)
    for url in (here.places.log_url, here.warehouse):
        here.server.close_database(url)
    eventually(lambda: waits(here) > waited, what="a driver waits for the log", timeout=SHORT, every=0.1)
    for url in (here.places.log_url, here.warehouse):
        here.server.open_database(url)
    eventually(lambda: here.events("ingest.out") > seen, what="ingest commits again", timeout=SHORT, every=0.2)
    here.wait_for_supervisor()
    assert {name: here.group(name).incarnation for name in GROUPS} == before


def waits(here: Installation) -> int:
    """How often drivers have said that they wait for the log."""
    logs = here.places.drivers.rglob("driver.log")
    return sum(log.read_text(errors="replace").count(": waiting for the log") for log in logs)


def a_stopped_driver_is_replaced_and_goes_on(here: Installation) -> None:
    process = here.running("totals")
    following = here.group("totals").incarnation + 1
    process.send_signal(signal.SIGSTOP)
    dead = lambda: here.group("totals").state not in ALIVE or here.group("totals").incarnation == following  # noqa: E731
    eventually(dead, what="the lease of totals runs out", timeout=SHORT, every=0.05)
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)
    here.wait_for("totals", following)


def all_drivers(here: Installation) -> None:
    for name in GROUPS:
        here.running(name)
    for name, following in [(name, here.kill(name)) for name in GROUPS]:
        here.wait_for(name, following)


def everything(here: Installation) -> None:
    """As if the machine had lost power."""
    for name in GROUPS:
        here.running(name)
    following = {name: here.group(name).incarnation + 1 for name in GROUPS}
    here.airflow.kill_all()
    for process in here.drivers():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    here.server.stop(mode="immediate")
    here.server.start()
    here.airflow.start()
    here.wait_until_healthy(SUPERVISED, RELYING, RECOVERY)
    for name in GROUPS:
        here.wait_for(name, following[name])


STEPS = (
    a_driver,
    the_task_that_recovers_and_its_supervisor,
    the_triggerer,
    the_scheduler,
    the_dag_processor,
    the_api_server,
    the_database,
    a_stopped_driver_is_replaced_and_goes_on,
    all_drivers,
    everything,
)


# --- a recovery DAG ---------------------------------------------------------------------------------------------------


def recovered_by_dag(here: Installation) -> None:
    """A run that relies on the recovery DAG: what died, and how it was mended, stands in a run of that DAG."""
    eventually(
        lambda: here.person.states(RELYING, RUN_ID).get("sums.start_run") == "success", what="it starts", timeout=LONG
    )
    assert here.kill("all", RELYING) == 2
    here.begin(SUPERVISED, here.transactions)
    here.wait_for("all", 2, RELYING)

    def mended() -> str | None:
        for run in here.person.runs(RECOVERY):
            if here.person.states(RECOVERY, run).get("recover") == "success":
                return run
        return None

    run = eventually(mended, what="the recovery task ends", timeout=SHORT, every=0.2)
    assert run is not None
    uid = here.run(RELYING).uid
    [found] = here.person.result(RECOVERY, run, "failed_groups")
    assert (found["run_uid"], found["group"], found["incarnation"]) == (uid, "all", 1)
    assert "has ended without saying so" in found["cause"]
    recovery = here.person.result(RECOVERY, run, "recover", 0)
    assert (recovery["outcome"], recovery["launched_incarnation"]) == ("launched", 2)
    assert recovery["detected_at"] <= recovery["fenced_at"] <= recovery["launched_at"]


def dead_while_the_recovery_dag_is_paused(here: Installation) -> None:
    """What dies now stays dead until a person unpauses the DAG."""

    def next_run_waits() -> bool:
        return here.person.states(RECOVERY, here.person.runs(RECOVERY)[0]).get("failed_groups") == "deferred"

    eventually(next_run_waits, what="the recovery DAG waits again", timeout=SHORT, every=0.2)
    here.person.pause(RECOVERY)
    here.kill("all", RELYING)
    eventually(lambda: here.group("all", RELYING).state is GroupState.DEAD, what="it is found dead", timeout=SHORT)


def left_alone(here: Installation) -> None:
    """Long after, the task log and the status say that no supervisor looks; unpaused, the group continues."""
    assert here.group("all", RELYING).state is GroupState.DEAD

    def said() -> bool:
        texts = [log.read_text(errors="replace") for log in here.task_logs("sums.all")]
        return any(
            "no supervisor looks for failed groups" in text and "recovery DAG is paused" in text for text in texts
        )

    eventually(said, what="the task log says that no supervisor recovers", timeout=LONG, every=0.5)
    assert "recovery DAG is paused" in str(status(here, here.run(RELYING).uid))
    here.person.unpause(RECOVERY)
    here.wait_for("all", 3, RELYING)
    eventually(
        lambda: any("[all #3]" in log.read_text(errors="replace") for log in here.task_logs("sums.all")),
        what="the task log has what the new driver prints",
        timeout=SHORT,
    )


def status(here: Installation, uid: str) -> Any:
    """What a person at a terminal sees."""
    command = [str(Path(sys.executable).with_name("logio")), "status", uid[:8], "--json"]
    environment = {"LOGIO_URL": here.places.log_url, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=here.places.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


# --- the end ----------------------------------------------------------------------------------------------------------


def finish(here: Installation, witness: Witness) -> None:
    here.slow.unlink()
    for dag_id in (SUPERVISED, RELYING):

        def finished(dag_id: str = dag_id) -> bool:
            run = here.run(dag_id)
            statuses = here.log.groups(run.run_id)
            assert all(one.state is not GroupState.PARKED for one in statuses), statuses
            return run.state is RunState.FINISHED

        eventually(finished, what=f"the run of {dag_id} finishes", timeout=2 * LONG, every=0.5)
        done = lambda dag_id=dag_id: here.person.run_state(dag_id, RUN_ID) == "success"  # noqa: E731
        eventually(done, what=f"the DAG run of {dag_id} is green", timeout=LONG, every=0.5)
        states = here.person.states(dag_id, RUN_ID)
        assert set(states.values()) == {"success"}, states
    for dag_id in (SUPERVISED, RELYING):
        assert here.log.under_way(here.run_id(dag_id)) == UnderWay({}, {}), (
            "counters of what is undone have come to nothing"
        )
    assert_exact(here.warehouse, here.transactions, RECORDS_PER_BATCH)
    assert sums_written(here.sums) == expected(here.few_transactions, RECORDS_PER_BATCH).totals
    eventually(lambda: not here.drivers(), what="no driver and no JVM is left", timeout=SHORT, every=0.2)
    assert witness.complaints == []
    assert witness.looks > 0

    drivers = here.log.drivers(here.run_id(SUPERVISED))
    for name in GROUPS:
        incarnations = [driver.incarnation for driver in drivers if driver.group == name]
        assert incarnations == list(range(1, len(incarnations) + 1)), "each was claimed once, in order"
        assert len(incarnations) >= 4, "lost at least three times"
    recoveries = here.person.result(SUPERVISED, RUN_ID, "sales.supervise")["recoveries"]
    assert recoveries == {name: here.group(name).incarnation - 1 for name in GROUPS}


def sums_written(url: str) -> set[tuple[Any, ...]]:
    engine = warehouse_engine(url)
    with engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT batch, product_id, quantity, sales_cents FROM item_totals")).all()
    engine.dispose()
    assert len(set(rows)) == len(rows), "a row stands twice"
    return {tuple(row) for row in rows}
