"""kill -9 of one driver: seconds until its group commits its first new Output Set, and where they go.

*loaded*: killed in the middle of the run, all other groups at work. *idle*: the driver is stopped (SIGSTOP), the others
finish what they can, then it is killed; so nothing competes with the recovery, and the killed group has work waiting.
"""

from __future__ import annotations

import re
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from airflow_logio.launch.processes import wait_for_end
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.status.run_summary import Outcome
from airflow_logio.store.records.driver_records import DriverIdentity, DriverRecord
from tests.bench.databases import Databases
from tests.bench.sales import SalesRun, sales_run
from tests.bench.throughput import WrongResult
from tests.support.standbys import sales_with_standbys, standby_of
from tests.support.waiting import eventually

LOOK_SECONDS = 0.02
PATIENT = Lease(seconds=600)
"""A stopped driver must not be taken for dead before it is killed."""
_SESSION = re.compile(r"Spark session after ([\d.]+) s, warm after ([\d.]+) s")


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds after the kill, each step after the one before."""

    database: str
    group: str
    condition: str
    detected: float
    """New incarnation claimed: the watcher's poll, its look at the processes, the claim."""
    submitted: float
    """spark-submit started: bundle, check of Java."""
    registered: float
    """JVM and Python up, the log opened."""
    first_commit: float
    """State rebuilt, first transaction (of whatever kind)."""
    first_output_set: float
    """Spark session and first job included, where the group needs them."""
    session: float | None
    warm: float | None
    """Seconds from the driver's own start of its Spark session, from its log; it runs beside the steps above."""

    @property
    def total(self) -> float:
        return self.detected + self.submitted + self.registered + self.first_commit + self.first_output_set

    def as_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        rounded = {name: round(value, 2) if isinstance(value, float) else value for name, value in values.items()}
        return {**rounded, "total": round(self.total, 2)}

    def line(self) -> str:
        spark = f"; Spark session {self.session:.1f} s, warm {self.warm:.1f} s" if self.session and self.warm else ""
        return (
            f"{self.database:9} {self.group:7} {self.condition:24} {self.total:5.1f} s to the first new Output Set: "
            f"detected {self.detected:.2f}, submitted {self.submitted:.2f}, registered {self.registered:.2f}, "
            f"first commit {self.first_commit:.2f}, Output Set {self.first_output_set:.2f}{spark}"
        )


def measure(databases: Databases, group: str, *, idle: bool, standby: bool = False, connect: bool = False) -> Recovery:
    """`standby`: a process stands by for the group (ADR-108). `connect`: drivers share a Spark (ADR-116).

    Raises `WrongResult` if the run is not exact afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder = Path(name)
        go_on = folder / "go_on"
        ref = sales_with_standbys(folder, [group], go_on, after=0) if standby else None
        with sales_run(
            databases.fresh(folder), folder, lease=PATIENT if idle else None, ref=ref, connect=connect
        ) as sales:
            outcome: list[Outcome] = []
            thread = threading.Thread(target=lambda: outcome.append(sales.local.run().outcome), name="supervisor")
            thread.start()
            try:
                if standby:
                    eventually(lambda: _is_standing_by(sales, group), what="the standby is ready", timeout=180)
                    go_on.touch()
                condition = ("idle" if idle else "loaded", *(["connect"] * connect), *(["standby"] * standby))
                found = _kill_and_watch(sales, databases.name, group, ", ".join(condition), idle=idle)
            except BaseException:
                sales.local.halt()
                raise
            finally:
                thread.join()
            if outcome != [Outcome.FINISHED] or not sales.is_exact():
                raise WrongResult(f"after the recovery of {group} the run is {outcome}, or its result is not exact")
            return found


def _is_standing_by(sales: SalesRun, group: str) -> bool:
    found = standby_of(sales.context.store, sales.context.run.run_id, group)
    return found is not None and found.is_ready


def _kill_and_watch(sales: SalesRun, database: str, group: str, condition: str, *, idle: bool) -> Recovery:
    store, run_id = sales.context.store, sales.context.run.run_id
    eventually(lambda: _amount(sales, group) >= _threshold(group), what=f"{group} works", timeout=180)
    identity = store.group(run_id, group).identity
    assert identity is not None
    if idle:
        _stop_until_idle(sales, group, identity)
    if idle and "standby" in condition:
        _continue_until_heard(sales, group, identity)
    killed_at = time.time()
    psutil.Process(identity.pid).send_signal(signal.SIGKILL)
    wait_for_end(identity, 60)
    before = _output_sets(sales, group)  # what it has committed to the last
    eventually(lambda: _output_sets(sales, group) > before, what="an Output Set", timeout=180, every=LOOK_SECONDS)
    output_at = time.time()
    driver = max((one for one in store.drivers(run_id) if one.group == group), key=lambda one: one.incarnation)
    if driver.incarnation != 2 or None in (driver.submitted_at, driver.registered_at, driver.first_commit_at):
        raise WrongResult(f"{group} was to be recovered once, and is at incarnation {driver.incarnation}")
    return _of(database, group, driver, killed_at, output_at, condition)


def _of(
    database: str, group: str, driver: DriverRecord, killed_at: float, output_at: float, condition: str
) -> Recovery:
    assert driver.submitted_at is not None and driver.registered_at is not None and driver.first_commit_at is not None
    found = _SESSION.search(Path(driver.log_path or "").read_text(errors="replace")) if driver.log_path else None
    return Recovery(
        database=database,
        group=group,
        condition=condition,
        detected=driver.claimed_at - killed_at,
        submitted=driver.submitted_at - driver.claimed_at,
        registered=driver.registered_at - driver.submitted_at,
        first_commit=driver.first_commit_at - driver.registered_at,
        first_output_set=max(0.0, output_at - driver.first_commit_at),
        session=float(found.group(1)) if found else None,
        warm=float(found.group(2)) if found else None,
    )


def _threshold(group: str) -> int:
    """Far enough to be at work, early enough to have work left."""
    return {"totals": 250, "hourly": 500}[group]


def _amount(sales: SalesRun, group: str) -> int:
    """`totals`: input events; `hourly`: Output Sets, which come with whole jobs."""
    return _events(sales, "totals", "in") if group == "totals" else _output_sets(sales, group)


def _output_sets(sales: SalesRun, group: str) -> int:
    return _events(sales, group, "out")


def _events(sales: SalesRun, operator: str, direction: str) -> int:
    rows = sales.context.store.progress(sales.context.run.run_id)
    return sum(row.events for row in rows if row.port.operator == operator and row.direction == direction)


def _stop_until_idle(sales: SalesRun, group: str, identity: DriverIdentity) -> None:
    """Stop the driver until the groups that do not depend on it have finished and the others have caught up.

    A driver stopped inside a transaction would stop everybody on SQLite: then it is let go, and stopped again later.
    """
    process = psutil.Process(identity.pid)
    for _ in range(20):
        process.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: _is_idle(sales, group), what="the others are idle", timeout=30, every=0.5)
            return
        except AssertionError:
            process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
    raise WrongResult(f"the run never became idle around a stopped {group}")


def _continue_until_heard(sales: SalesRun, group: str, identity: DriverIdentity) -> None:
    """Until its next heartbeat: of a driver whose last one is old, others do not leave the recovery to the standby."""
    store, run_id = sales.context.store, sales.context.run.run_id
    beat = store.group(run_id, group).beat
    psutil.Process(identity.pid).send_signal(signal.SIGCONT)
    eventually(lambda: store.group(run_id, group).beat > beat, what=f"{group} beats again", timeout=30, every=0.005)


def _is_idle(sales: SalesRun, group: str) -> bool:
    """All groups have finished, but this one and those behind it; those have nothing left to take in."""
    store, run_id = sales.context.store, sales.context.run.run_id
    waiting = {"totals": {"totals"}, "hourly": {"hourly", "publish"}}[group]
    states = {status.group: status.state for status in store.groups(run_id)}
    if any(state is not GroupState.FINISHED for name, state in states.items() if name not in waiting):
        return False
    return group == "totals" or _events(sales, "publish", "write") == _output_sets(sales, "hourly") + 1
