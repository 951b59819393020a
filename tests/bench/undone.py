"""How long a recovery takes with many undone events: all are in a window that was open when its driver was killed.

From the claim of the next incarnation to its first commit, by the clock of the log's database: the start of a Python process,
the rebuild of the group from the log, the last event of the window, and the generation from all of them.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from airflow_logio.launch import bundle
from airflow_logio.launch.launcher import LaunchContext, LocalProcessLauncher, launch_group
from airflow_logio.launch.start_run import run_spec
from airflow_logio.protocol.liveness import Lease, RecoveryBudget
from airflow_logio.protocol.states import GroupState
from airflow_logio.store import open_store
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import BacklogBound
from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.bench.pipelines.undone import SIZES
from tests.bench.throughput import WrongResult
from tests.support.waiting import eventually

PIPELINES = Path(__file__).parent / "pipelines" / "undone.py"
GROUPS = ("held", "counted", "done")
LONG = 600.0
BACKLOG = BacklogBound(events=2 * max(SIZES), bytes=2**33)
"""A source that is held up would never send the last event."""


def measure(databases: Databases, runs: int) -> Iterator[Figure]:
    """Raises `WrongResult` if the window has other events than the source has sent."""
    for size in SIZES:
        seconds = sorted(_recovered(databases, size) for _ in range(runs))
        details = f"from claim to first commit; least {seconds[0]:.2f}, most {seconds[-1]:.2f} of {runs}"
        yield Figure(databases.name, f"recovery with {size:,} undone events", median(seconds), "s", "none", details)


def _recovered(databases: Databases, size: int) -> float:
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder = Path(name)
        log_url, _ = databases.fresh(folder)
        run = _Undone(log_url, folder, size)
        try:
            return run.recovered()
        finally:
            run.close()


class _Undone:
    def __init__(self, log_url: str, folder: Path, size: int) -> None:
        self._size = size
        self._last_with = folder / "last"
        ref = bundle.parse_ref(f"{PIPELINES}:undone_{size}")
        pipeline = bundle.load(ref)
        self._store = open_store(log_url, application="logio bench")
        spec = run_spec(
            pipeline,
            ref,
            dag_id="bench",
            dag_run_id="undone",
            params={"events": size, "last_with": str(self._last_with)},
            connections={},
            budget=RecoveryBudget(9, 600),
            lease=Lease(60, 600),
            backlog=BACKLOG,
        )
        self._run = self._store.start_run(spec)
        launcher = LocalProcessLauncher(folder / "drivers")
        self._context = LaunchContext(self._store, log_url, self._run, pipeline, ref, {}, launcher)

    def recovered(self) -> float:
        for group in GROUPS:
            launch_group(self._context, group, expected=0, reason="bench")
        eventually(lambda: self._received() >= self._size, what="the window is filled", timeout=LONG, every=0.1)
        status = self._store.group(self._run.run_id, "counted")
        assert status.identity is not None
        os.kill(status.identity.pid, signal.SIGKILL)
        self._last_with.touch()
        ref = GroupRef(self._run.run_id, "counted", status.incarnation)
        if not self._store.declare_dead(ref, "killed"):
            raise WrongResult("its driver had ended before it was killed")
        launch_group(self._context, "counted", expected=status.incarnation, reason="killed")
        eventually(self._has_ended, what="the run ends", timeout=LONG, every=0.1)
        drivers = [one for one in self._store.drivers(self._run.run_id) if one.group == "counted"]
        if len(drivers) != 2 or drivers[1].first_commit_at is None or self._made() != (1, 1):
            raise WrongResult(f"{len(drivers)} drivers have made {self._made()} events and records of one window")
        return drivers[1].first_commit_at - drivers[1].claimed_at

    def _received(self) -> int:
        return self._counted("counted.in", "in")[0]

    def _made(self) -> tuple[int, int]:
        return self._counted("counted.out", "out")

    def _counted(self, port: str, direction: str) -> tuple[int, int]:
        """Events and records."""
        rows = self._store.progress(self._run.run_id)
        found = [row for row in rows if str(row.port) == port and row.direction == direction]
        return sum(row.events for row in found), sum(row.records for row in found)

    def _has_ended(self) -> bool:
        states = {status.group: status.state for status in self._store.groups(self._run.run_id)}
        if any(state in (GroupState.PARKED, GroupState.DEAD) for state in states.values()):
            raise WrongResult(f"the groups are {states}")
        return all(state is GroupState.FINISHED for state in states.values())

    def close(self) -> None:
        self._store.dispose()
