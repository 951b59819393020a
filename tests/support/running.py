"""A run of the sales pipeline under the eyes of a test: launched, supervised step by step, killed and stopped."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import psutil

from airflow_logio.crash import VARIABLE, CrashPoint
from airflow_logio.launch import bundle, driver_folders, processes, spark_submit
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.launcher import LaunchContext, Launched, Launcher, LocalProcessLauncher, launch_group
from airflow_logio.launch.processes import APPLICATION
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.launch.start_run import run_spec
from airflow_logio.protocol.liveness import Lease, RecoveryBudget
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import Claim
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.look import Watcher
from airflow_logio.supervision.scaling import Stage, Step, carry_out
from airflow_logio.supervision.tend import tend
from tests.support.forked import ForkedProcess
from tests.support.logs import open_sql_store
from tests.support.waiting import eventually

PLAIN = bundle.parse_ref(f"{Path(__file__).parent / 'bundle' / 'plain_sales.py'}:sales")
PLAIN_RECORDS_PER_BATCH = 250 * 10
SALES = bundle.parse_ref(f"{Path(__file__).parents[2] / 'dags' / 'pipelines' / 'sales.py'}:sales")
SALES_RECORDS_PER_BATCH = 1_000 * 100

LOOK_SECONDS = 0.05
"""Between two looks at all groups: each costs what a driver would do with the processor meanwhile."""

Armed = Mapping[tuple[str, int], str]
"""(group, incarnation) → where that driver is to die or stop, as `LOGIO_CRASH_AT` says it."""


@dataclass
class PlainLauncher(Launcher):
    """The same driver program without spark-submit, for groups that need no Spark; arms crash points.

    Its processes are forked from one that has imported what they need: real ones, that start in milliseconds.
    """

    work_dir: Path
    armed: Armed = field(default_factory=dict)
    variables: Mapping[tuple[str, int], Mapping[str, str]] = field(default_factory=dict)
    """(group, incarnation) → more of that driver's environment."""
    everywhere: Mapping[str, str] = field(default_factory=dict)
    """More of every driver's environment."""
    children: list[ForkedProcess] = field(default_factory=list)
    drivers: dict[tuple[str, int], ForkedProcess] = field(default_factory=dict)
    """(group, incarnation) → its process."""

    def launch(self, claim: Claim, launch: Launch) -> Launched:
        folder = self.work_dir / claim.group / str(claim.incarnation)
        folder.mkdir(parents=True)
        config = launch.config(claim)
        if launch.code.is_shipped:
            launch.code.write(folder / "code")
            config = replace(config, bundle_root=str(folder / "code"))
        config.write(folder / "driver.json")
        log = folder / "driver.log"
        driver, seed = (claim.group, claim.incarnation), crc32(claim.group.encode()) + claim.incarnation
        more = {**self.everywhere, **self.variables.get(driver, {})}
        child = self.start(folder / "driver.json", log, self.armed.get(driver), more, seed=seed)
        self.drivers[driver] = child
        return Launched(processes.identity_of(child.pid), str(log))

    def start(
        self, config: Path, log: Path, point: str | None, variables: Mapping[str, str] | None = None, *, seed: int = 0
    ) -> ForkedProcess:
        """Start a driver process with this configuration file."""
        environment = spark_submit.environment(SparkSettings()) | {"PYTHONPATH": str(Path(__file__).parents[2])}
        environment |= variables or {}
        if point:
            environment[VARIABLE] = point
        child = ForkedProcess([str(APPLICATION), "--config", str(config)], environment, log, seed=seed)
        self.children.append(child)
        return child


@dataclass
class ArmedSparkLauncher(Launcher):
    """Real spark-submit, with crash points armed through the driver's environment."""

    work_dir: Path
    armed: Armed = field(default_factory=dict)
    variable: str = VARIABLE

    def launch(self, claim: Claim, launch: Launch) -> Launched:
        variables = dict(launch.settings.env_vars) | {"PYTHONPATH": str(Path(__file__).parents[2])}
        if point := self.armed.get((claim.group, claim.incarnation)):
            variables[self.variable] = point
        settings = replace(launch.settings, env_vars=variables)
        standby = launch.standby and replace(launch.standby, settings=settings)
        armed = replace(launch, settings=settings, standby=standby)
        return LocalProcessLauncher(self.work_dir).launch(claim, armed)


class Running:
    """Supervises a run; every look at it is a look at the log."""

    def __init__(
        self,
        log_url: str,
        warehouse_url: str,
        transactions: Path,
        launcher: Launcher,
        *,
        ref: bundle.PipelineRef = PLAIN,
        name: str = "run",
        end_old_drivers: bool = True,
        lease: Lease | None = None,
        recoveries: int = 50,
        backlog: BacklogBound | None = None,
        connections: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        spark: SparkSettings | None = None,
        **settings: Any,
    ) -> None:
        """`connections` (name → URL) instead of the warehouse, `params` of the transactions; `settings` go to `run_spec`."""
        urls = {"warehouse": warehouse_url} if connections is None else dict(connections)
        self.pipeline = bundle.load(ref)
        spec = run_spec(
            self.pipeline,
            ref,
            dag_id="tests",
            dag_run_id=name,
            params={"transactions": str(transactions)} if params is None else params,
            connections={connection: connection for connection in urls},
            budget=RecoveryBudget(recoveries, 600),
            lease=lease or Lease(15, 60),
            backlog=backlog,
            **settings,
        )
        self.store = open_sql_store(log_url)
        try:
            code = settings.get("code")
            self.run = self.store.start_run(spec, code=code and code.kept())
        except BaseException:
            self.store.dispose()
            raise
        self.context = LaunchContext(
            self.store,
            log_url,
            self.run,
            self.pipeline,
            ref,
            urls,
            launcher,
            settings=spark or SparkSettings(),
            payloads=settings.get("payloads"),
            end_old_drivers=end_old_drivers,
        )
        self.groups = self.pipeline.applications
        self._watchers = {
            group: Watcher(self.store, self.run, [group], end_old_drivers=end_old_drivers) for group in self.groups
        }

    # --- supervising --------------------------------------------------------------------------------------------------

    def tend(self, *groups: str) -> dict[str, GroupStatus | None]:
        """One look at each group, launching what needs it."""
        statuses: dict[str, GroupStatus | None] = {}
        for group in groups or self.groups:
            observation = self._watchers[group].look().observations[group]
            tend(self.context, group, observation)
            statuses[group] = observation.status
        return statuses

    def until(self, condition: Callable[[], Any], what: str, *groups: str, timeout: float = 120) -> None:
        """Supervise until a condition holds."""

        def look() -> bool:
            self.tend(*groups)
            return bool(condition())

        eventually(look, what=what, timeout=timeout, every=LOOK_SECONDS)

    def finish(self, timeout: float = 180) -> None:
        """Supervise until every group has ended; fails with the causes if one is parked."""

        def ended() -> bool:
            statuses = self.tend()
            for group, status in statuses.items():
                if status is not None and status.state is GroupState.PARKED:
                    raise AssertionError(f"{group} is parked: {status.error}\n{self.log_of(group)}")
            states = {status and status.state for status in statuses.values()}
            return states <= {GroupState.FINISHED, GroupState.RETIRED}

        eventually(ended, what="the run finishes", timeout=timeout, every=LOOK_SECONDS)

    def scale(self, group: str, replicas: int, timeout: float = 120) -> Step:
        """Ask for so many replicas, and supervise until they work, or the request is refused; returns the last step."""
        request = self.store.request_scaling(self.run.run_id, group, replicas, by="the test")
        steps: list[Step] = []

        def settled() -> bool:
            steps.append(carry_out(self.context, request))
            return steps[-1].stage in (Stage.DONE, Stage.REFUSED)

        self.until(settled, f"{group} has {replicas} replicas", timeout=timeout)
        return steps[-1]

    def relaunch(self, group: str) -> None:
        """What a person does with a group that has halted or is parked."""
        launch_group(self.context, group, expected=self.status(group).incarnation, reason="by the test", by_user=True)

    def status(self, group: str) -> GroupStatus:
        return self.store.group(self.run.run_id, group)

    def count(self, port: str, direction: str) -> int:
        """Events counted at ``operator.port``."""
        return sum(
            row.events
            for row in self.store.progress(self.run.run_id)
            if str(row.port) == port and row.direction == direction
        )

    def last_words(self, lines: int = 25) -> str:
        """The ends of the logs of all drivers of the run, replaced ones too: what a failed test is explained by."""
        work_dir: Path = self.context.launcher.work_dir  # type: ignore[attr-defined]
        logs = sorted(work_dir.rglob("driver.log"))
        return "\n".join(f"--- {log.relative_to(work_dir)}\n{_tail(log, lines)}" for log in logs)

    def log_of(self, group: str, lines: int = 25) -> str:
        path = self.status(group).log_path
        if path is None or not Path(path).exists():
            return "(no log)"
        return _tail(Path(path), lines)

    # --- hurting ------------------------------------------------------------------------------------------------------

    def is_running(self, group: str, incarnation: int = 1) -> bool:
        status = self.status(group)
        return status.state is GroupState.RUNNING and status.incarnation >= incarnation

    def process(self, group: str) -> psutil.Process:
        """The driver on record."""
        identity = self.status(group).identity
        assert identity is not None and identity.pid, f"{group} has no driver on record"
        return psutil.Process(identity.pid)

    def signal(self, group: str, number: signal.Signals, *, jvm: bool = False) -> psutil.Process:
        """Send a signal to the driver on record."""
        identity = self.status(group).identity
        assert identity is not None and identity.pid, f"{group} has no driver on record"
        process = psutil.Process(identity.parent_pid if jvm else identity.pid)
        process.send_signal(number)
        return process

    def close(self) -> None:
        """End every driver of the run, whatever state it is in, and what stands by to take its place."""
        if (work_dir := getattr(self.context.launcher, "work_dir", None)) is not None:
            driver_folders.end_under(work_dir)
        for status in self.store.groups(self.run.run_id):  # none, where a test has removed the run
            if status.identity is not None:
                processes.end(status.identity)
        self.store.dispose()


def assert_died(run: Running, launcher: PlainLauncher, point: CrashPoint, groups: Collection[str]) -> None:
    """Each of these groups of a finished run, armed to die at the point twice, has died there twice.

    Behind its last commit once: no supervisor recovers it any more, so that only its process tells.
    """
    died = {group: run.status(group).incarnation - 1 for group in groups}
    if point is CrashPoint.AFTER_FINISH:
        assert died == dict.fromkeys(groups, 0)
        codes = {group: launcher.drivers[group, 1].wait(timeout=60) for group in groups}
        assert codes == dict.fromkeys(groups, -signal.SIGKILL), f"{point} was not passed: {codes}"
    else:
        assert died == dict.fromkeys(groups, 2), f"armed to die at {point} twice, and died: {died}"


def _tail(log: Path, lines: int) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def has_ended(process: psutil.Process) -> bool:
    """The process is gone, or waits for its parent to notice."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def running(*arguments: Any, **settings: Any) -> Iterator[Running]:
    """A `Running` whose processes are gone at the end."""
    run = Running(*arguments, **settings)
    try:
        yield run
    except Exception as error:
        error.add_note(run.last_words())
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            run.close()
        launcher = run.context.launcher
        for child in getattr(launcher, "children", []):
            child.kill()
            child.wait()
