"""CeleryExecutor, a worker and a triggerer on each of two hosts: groups stay in their places whatever is lost (ADR-104).

Redis is the broker; Airflow's database, the log and the warehouse are in PostgreSQL; drivers are real spark-submit.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import psutil
import pytest

from airflow_logio.protocol.states import ALIVE, GroupState, RunState
from airflow_logio.status.recoveries import recoveries
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from tests.support.airflow_installation import LONG, ROOT, SHORT, AirflowInstallation
from tests.support.grocery import assert_exact, load_products, write_slice
from tests.support.hosts import Host, Network, network, why_not
from tests.support.postgres import PostgresServer
from tests.support.redis import redis
from tests.support.waiting import eventually
from tests.support.witness import Witness

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

log = logging.getLogger(__name__)

DAG_ID, RUN_ID = "two_hosts", "two_hosts"
GROUPS = ("ingest", "totals", "hourly", "publish")
RECORDS = 400_000
"""Forty minutes for a source that waits before each 250 (`lost_pipelines`): longer than all that is lost takes on a busy
machine, where 100,000 were read before the last host was cut off."""
RECORDS_PER_BATCH = 250 * 10
PLACES = {"hourly": "east", "totals": "west"}
"""Group → the host that takes its queue."""


class Installation(AirflowInstallation):
    """API server, scheduler and DAG processor are on the machine itself; each host has a Celery worker and a triggerer."""

    def __init__(self, folder: Path, server: PostgresServer, net: Network, broker: str) -> None:
        metadata = server.new_database(migrated=False).replace("postgresql:", "postgresql+psycopg2:")
        super().__init__(
            folder,
            server,
            {
                "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": metadata,
                "AIRFLOW__CELERY__BROKER_URL": broker,
                "AIRFLOW__CELERY__RESULT_BACKEND": broker,
                "AIRFLOW__CELERY__WORKER_CONCURRENCY": "4",
                "AIRFLOW__API__HOST": net.address,
            },
            address=net.address,
        )
        shutil.copy(ROOT / "tests" / "soak" / "dags" / "two_hosts.py", self.places.dags)
        self.hosts = net.hosts
        self.slow = folder / "slow"
        self.slow.touch()
        self.transactions = write_slice(folder / "transactions.parquet", RECORDS)
        load_products(self.warehouse)

    def start_on(self, host: Host, *names: str) -> None:
        """Start components there."""
        airflow = str(Path(sys.executable).with_name("airflow"))
        commands = {
            "triggerer": [airflow, "triggerer"],
            "worker": [airflow, "celery", "worker", "--queues", f"default,{host.name}"],
        }
        for name in names or commands:
            log_file = self.places.folder / f"{name}-{host.name}.log"
            host.run(commands[name], self.airflow.environment, self.places.folder, log_file)

    # --- what the log says -------------------------------------------------------------------------------------------

    @property
    def the_run(self) -> Run:
        return self.run(DAG_ID)

    def status(self, name: str) -> GroupStatus:
        return self.group_of(self.the_run, name)

    def runs_at(self, name: str, incarnation: int) -> str:
        """The host of a group's driver, once it works as that incarnation or a later one."""

        def host() -> str | None:
            one = self.status(name)
            assert one.state is not GroupState.PARKED, f"{name} is parked: {one.error}"
            works = one.state is GroupState.RUNNING and one.incarnation >= incarnation and one.identity is not None
            return one.identity.host if works and one.identity is not None else None

        found = eventually(host, what=f"{name} works as incarnation {incarnation}", timeout=LONG, every=0.1)
        assert found is not None
        return found

    def kill(self, name: str) -> int:
        """SIGKILL of all processes of a group's driver; returns the incarnation that follows."""
        number = self.status(name).incarnation
        folder = str(self.places.drivers / self.the_run.uid / name / str(number))
        for process in self.drivers(self.the_run):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(folder in part for part in process.cmdline()):
                    process.kill()
        return number + 1


@pytest.fixture
def net() -> Iterator[Network]:
    with network("east", "west") as made:
        yield made


@pytest.fixture
def installation(tmp_path: Path, net: Network) -> Iterator[Installation]:
    server = PostgresServer(host=net.address)
    server.create()
    server.start()
    try:
        with redis(tmp_path, net.address, 6379) as broker:
            here = Installation(tmp_path, server, net, broker)
            try:
                here.airflow.migrate()
                here.airflow.start("api-server", "scheduler", "dag-processor")
                for host in net.hosts.values():
                    here.start_on(host)
                here.wait_until_healthy(DAG_ID)
                yield here
            finally:
                for host in net.hosts.values():
                    host.power_off()
                here.close()
    finally:
        server.destroy()


def test_groups_stay_in_their_places_whatever_is_lost(installation: Installation) -> None:
    here = installation
    began = time.monotonic()
    try:
        here.person.begin(DAG_ID, RUN_ID, {"transactions": str(here.transactions), "slow": str(here.slow)})
        eventually(
            lambda: here.person.states(DAG_ID, RUN_ID).get("sales.start_run") == "success", what="start", timeout=LONG
        )
        with Witness(here.log, here.the_run, here.places.drivers) as witness:
            assert {name: here.runs_at(name, 1) for name in PLACES} == PLACES
            for step in (a_driver, a_triggerer, a_host_without_power, a_host_that_is_cut_off):
                step(here)
                log.warning("%6.1f s  %s", time.monotonic() - began, step.__name__)
            finish(here, witness)
    except BaseException as error:
        error.add_note(here.last_words())
        raise


def a_driver(here: Installation) -> None:
    """Its own task launches it again, where it was; what has no place of its own is launched where the supervisor is."""
    for _ in range(3):
        for name, host in PLACES.items():
            assert here.runs_at(name, here.kill(name)) == host
        here.runs_at("publish", here.kill("publish"))
    found = recoveries(here.log.drivers(here.the_run.run_id))
    waits = {
        name: [one.fenced_at - one.detected_at for one in found if one.group == name] for name in (*PLACES, "publish")
    }
    for name, seconds in waits.items():
        assert len(seconds) == 3
        log.warning("%s: seconds from death to claim, median %.2f of %s", name, median(seconds), seconds)


def a_triggerer(here: Installation) -> None:
    """One of two; the other one takes its triggers over."""
    for process in processes_of(here, "east", "triggerer"):
        process.kill()
    following = here.kill("totals")
    assert here.runs_at("totals", following) == "west"
    assert here.runs_at("hourly", here.kill("hourly")) == "east"
    here.start_on(here.hosts["east"], "triggerer")


def a_host_without_power(here: Installation) -> None:
    """What has its place there stays dead until it is back; what has none goes to the other host."""
    following = here.status("hourly").incarnation + 1
    others = {name: here.status(name) for name in ("ingest", "publish")}
    there = [name for name, one in others.items() if one.identity is not None and one.identity.host == "east"]
    here.hosts["east"].power_off()
    eventually(lambda: here.status("hourly").state is GroupState.DEAD, what="hourly is found dead", timeout=SHORT)
    for name in there:
        assert here.runs_at(name, others[name].incarnation + 1) == "west"
    time.sleep(10)
    assert (here.status("hourly").state, here.status("hourly").incarnation) == (GroupState.DEAD, following - 1)
    here.hosts["east"].power_on()
    here.start_on(here.hosts["east"])
    assert here.runs_at("hourly", following) == "east"


def a_host_that_is_cut_off(here: Installation) -> None:
    """Its driver is given up, and ends by itself when the host is back; the next one is in the same place."""
    here.runs_at("totals", 1)
    following = here.status("totals").incarnation + 1
    here.hosts["west"].cut_off()
    eventually(lambda: here.status("totals").state not in ALIVE, what="totals is given up", timeout=SHORT)
    here.hosts["west"].reconnect()
    assert here.runs_at("totals", following) == "west"
    old = str(here.places.drivers / here.the_run.uid / "totals" / str(following - 1))

    def is_gone() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return not any(old in " ".join(one.cmdline()) for one in here.drivers(here.the_run))
        return False

    eventually(is_gone, what="the driver that was cut off ends", timeout=LONG, every=0.5)


def finish(here: Installation, witness: Witness) -> None:
    here.slow.unlink()
    eventually(lambda: here.person.run_state(DAG_ID, RUN_ID) == "success", what="the run ends", timeout=LONG, every=0.5)
    assert witness.complaints == [] and witness.looks > 0
    assert here.the_run.state is RunState.FINISHED
    assert_exact(here.warehouse, here.transactions, RECORDS_PER_BATCH)
    eventually(lambda: not here.drivers(), what="drivers end", timeout=LONG)


def processes_of(here: Installation, host: str, component: str) -> list[psutil.Process]:
    """Of one component on one host, without those of tasks and drivers."""
    first = here.hosts[host].first
    assert first is not None
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error, OSError):
            same = Path(f"/proc/{process.pid}/ns/pid").readlink() == Path(f"/proc/{first.pid}/ns/pid").readlink()
            if same and component in " ".join(process.info["cmdline"] or []):
                found.append(process)
    assert found, f"no {component} on {host}"
    return found
