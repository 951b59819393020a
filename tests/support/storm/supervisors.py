"""Who supervises the run of a storm: `LocalRun` in the test's process, or the command `logio` in one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from airflow_logio.errors import LogUnavailable
from airflow_logio.launch import bundle
from airflow_logio.launch.code_bundle import collect
from airflow_logio.launch.launcher import LaunchContext, launch_group
from airflow_logio.launch.start_run import run_spec
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.status.run_summary import Outcome
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.supervision.local_run import LocalRun
from tests.support import impatient
from tests.support.running import PlainLauncher
from tests.support.storm import authored
from tests.support.storm.outages import BUSY_SECONDS
from tests.support.storm.places import Place

LOOK_SECONDS = 0.1
RUN_ID = "storm"
REPLAY_SECONDS = 2.0
"""How long the command's drivers wait for an external system before their group is parked."""
EXPECTED = ("is still unavailable", "recovered")
"""What parks a group in a storm that is supervised by a command, and what a retry is the remedy for."""


class Supervisor(ABC):
    """`logs` is the folder with the drivers' logs, `connections` the URLs of what the pipeline calls so."""

    def __init__(self, place: Place, store: SqlLogStore, ref: str, params: Mapping[str, str]) -> None:
        self._place = place
        self._store = store
        self._ref = ref
        self._params = params
        self.connections = {"warehouse": place.warehouse_url, "outlet": str(place.outlet)}

    @property
    @abstractmethod
    def run(self) -> Run: ...

    @property
    @abstractmethod
    def logs(self) -> Path: ...

    @abstractmethod
    def supervise(self, look: Callable[[Supervisor], None]) -> Outcome:
        """Until the run ends or is left; what was halted is resumed at first. `look` is called again and again."""

    @abstractmethod
    def halt(self) -> bool:
        """As Ctrl-C does. Whether there is anybody to tell."""

    def kill(self) -> bool:
        """Kill the supervisor; its drivers live on."""
        return False

    @abstractmethod
    def mend(self) -> None:
        """Retry what was set aside, unless `supervise` does."""

    def close(self) -> None:  # noqa: B027
        """End the supervisor, if that is a process."""

    def last_words(self) -> str:
        """What it has printed."""
        return ""

    def is_parked(self) -> bool:
        try:
            return any(one.state is GroupState.PARKED for one in self._store.groups(self.run.run_id))
        except LogUnavailable:
            return False


class Here(Supervisor):
    """Many drivers, few seconds: they are forked, and a lease is short."""

    def __init__(
        self,
        place: Place,
        store: SqlLogStore,
        ref: str,
        params: Mapping[str, str],
        armed: Callable[[tuple[str, ...]], Mapping[tuple[str, int], str]],
        settings: Mapping[str, object],
    ) -> None:
        """`armed`: groups → where their drivers die; `settings` go to `run_spec`."""
        super().__init__(place, store, ref, params)
        parsed = bundle.parse_ref(ref)
        pipeline, code = bundle.load(parsed), collect(parsed)
        self.launcher = PlainLauncher(
            place.folder / "drivers", armed(pipeline.applications), everywhere=impatient.variables(BUSY_SECONDS)
        )
        spec = run_spec(
            pipeline,
            parsed,
            dag_id="storms",
            dag_run_id=RUN_ID,
            params=params,
            connections={name: name for name in self.connections},
            budget=RecoveryBudget(1_000, 600),
            payloads=str(place.payloads),
            code=code,
            **settings,  # type: ignore[arg-type]
        )
        self._run = store.start_run(spec, code=code.kept())
        self._context = LaunchContext(
            store,
            place.log_url,
            self._run,
            pipeline,
            parsed,
            self.connections,
            self.launcher,
            payloads=str(place.payloads),
        )
        self._local: LocalRun | None = None

    @property
    def run(self) -> Run:
        return self._run

    @property
    def logs(self) -> Path:
        return self.launcher.work_dir

    def supervise(self, look: Callable[[Supervisor], None]) -> Outcome:
        self._local = LocalRun(self._context, poll=0.05, snapshot_every=LOOK_SECONDS)
        outcome = self._local.run(lambda _: look(self)).outcome
        if outcome is Outcome.PARKED:
            errors = {one.group: one.error for one in self._store.groups(self._run.run_id)}
            raise AssertionError(f"parked: {errors}")
        return outcome

    def halt(self) -> bool:
        assert self._local is not None
        self._local.halt()
        return True

    def mend(self) -> None:
        retried = self._store.patience.call("retry", lambda: self._store.retry_quarantined(self._run.run_id))
        for group in retried.to_launch:
            status = self._store.group(self._run.run_id, group)
            launch_group(self._context, group, expected=status.incarnation, reason="mended", by_user=True)


class Command(Supervisor):
    """`logio run`, and from then on `logio retry`: each is a process, which can be killed."""

    def __init__(
        self, place: Place, store: SqlLogStore, ref: str, params: Mapping[str, str], program: str, seed: int
    ) -> None:
        """`program` is a module that is `logio`."""
        super().__init__(place, store, ref, params)
        self._program = program
        self._environment = {name: value for name, value in os.environ.items() if not name.endswith("_URL")} | {
            "LOGIO_URL": place.log_url,
            "LOGIO_PAYLOADS": str(place.payloads),
            "STORM_SEED": str(seed),
            "PYTHONPATH": str(authored.ROOT),
            **{f"LOGIO_CONN_{name.upper()}": url for name, url in self.connections.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._printed = place.folder / "terminal.log"

    @property
    def run(self) -> Run:
        [run] = self._store.list_runs()
        return run

    @property
    def logs(self) -> Path:
        return self._place.folder / ".logio" / "drivers"

    def supervise(self, look: Callable[[Supervisor], None]) -> Outcome:
        self._check_parked()
        self._start(*(["retry", RUN_ID] if self._store.list_runs() else self._first()))
        assert self._process is not None
        while self._process.poll() is None:
            if self._is_known():
                look(self)
            time.sleep(LOOK_SECONDS)
        return self._outcome(self._process.returncode)

    def halt(self) -> bool:
        return self._signal(signal.SIGINT)

    def kill(self) -> bool:
        return self._signal(signal.SIGKILL)

    def mend(self) -> None:
        """`logio retry` comes next anyway."""

    def close(self) -> None:
        if self._signal(signal.SIGKILL):
            assert self._process is not None
            self._process.wait()

    def last_words(self) -> str:
        return self._printed.read_text(errors="replace")[-4_000:] if self._printed.exists() else ""

    # --- inside -------------------------------------------------------------------------------------------------------

    def _first(self) -> list[str]:
        pairs = [word for name, value in self._params.items() for word in ("--param", f"{name}={value}")]
        return ["run", self._ref, "--run-id", RUN_ID, "--replay-seconds", str(REPLAY_SECONDS), *pairs]

    def _start(self, *arguments: str) -> None:
        with self._printed.open("ab") as printed:
            printed.write(f"$ logio {' '.join(arguments)}\n".encode())
            printed.flush()
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._program, *arguments],
                cwd=self._place.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
            )

    def _is_known(self) -> bool:
        try:
            return bool(self._store.list_runs())
        except LogUnavailable:
            return False

    def _outcome(self, code: int) -> Outcome:
        """Of a command that has ended. One that was killed, or has found nothing to retry yet, has halted nothing."""
        run = self._store.patience.call("looking for the run", lambda: self.run)
        if code == 0:
            assert run.state is RunState.FINISHED, f"the command has succeeded, but the run is {run.state}"
            return Outcome.FINISHED
        if run.state is RunState.QUARANTINED:
            return Outcome.QUARANTINED
        return Outcome.PARKED if self.is_parked() else Outcome.HALTED

    def _check_parked(self) -> None:
        """A retry is no remedy for what the product has done wrong."""
        if not self._store.list_runs():
            return
        for one in self._store.groups(self.run.run_id):
            wrong = one.state is GroupState.PARKED and not any(said in (one.error or "") for said in EXPECTED)
            assert not wrong, f"{one.group} is parked: {one.error}"

    def _signal(self, number: signal.Signals) -> bool:
        if self._process is None or self._process.poll() is not None:
            return False
        self._process.send_signal(number)
        return True
