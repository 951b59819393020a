"""A cluster of Flink that ends with its job: a JobManager, and TaskManagers as many as are wanted."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.paper import flink_settings, flink_setup
from tests.bench.throughput import WrongResult

JOB_MANAGER = "org.apache.flink.container.entrypoint.StandaloneApplicationClusterEntryPoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
LOOKS_EVERY = 0.05
WITH_US = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""Processes end with the bench, also if it is killed. Without this they end when the job has ended."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a cluster runs, and how its processes are started. The default is the paper's job."""

    job: str = "paper.PaperJob"
    sources: Path = flink_setup.SOURCES
    heap_mb: int = flink_settings.HEAP_MB
    jvm: Sequence[str] = flink_settings.JVM


class FlinkCluster:
    """All processes are children of this one, and are ended by `close`."""

    def __init__(self, folder: Path, task_managers: int, program: Program | None = None) -> None:
        """`folder` has config.yaml, log4j.properties and job.properties."""
        program = program or Program()
        self._folder = folder
        (folder / "tmp").mkdir()
        self._started = 0
        memory = [f"-Xmx{program.heap_mb}m", "-XX:MaxMetaspaceSize=128m"]
        options = [f"-Dlog4j.configurationFile={folder / 'log4j.properties'}", f"-Djava.io.tmpdir={folder / 'tmp'}"]
        self._java = [
            flink_setup.java(),
            *memory,
            *program.jvm,
            *options,
            "-cp",
            flink_setup.class_path(program.sources),
        ]
        arguments = ["--job-classname", program.job, str(folder / "job.properties")]
        self._job_manager = self._start(JOB_MANAGER, *arguments)
        self._task_managers: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(task_managers):
                self._start_task_manager()
        except BaseException:
            self.close()
            raise

    def watch(self, limit: float, look: Callable[[], None]) -> None:
        """Until the job has ended, or `limit` seconds. Who was killed is replaced, as a resource manager does it."""
        deadline = time.monotonic() + limit
        while (code := self._job_manager.poll()) is None:
            look()
            self._replace()
            if time.monotonic() > deadline:
                raise WrongResult(f"the job of Flink has not ended within {limit:.0f} s: {self._last_lines()}")
            time.sleep(LOOKS_EVERY)
        if code:
            raise WrongResult(f"the job of Flink has ended with {code}: {self._last_lines()}")

    def close(self) -> None:
        for process in (self._job_manager, *self._task_managers):
            process.kill()
        for process in (self._job_manager, *self._task_managers):
            process.wait()

    def _replace(self) -> None:
        for process in list(self._task_managers):
            if (code := process.poll()) is None:
                continue
            if code != -signal.SIGKILL:
                raise WrongResult(f"a TaskManager has ended with {code}: {self._last_lines()}")
            self._task_managers.remove(process)
            self._start_task_manager()

    def _start_task_manager(self) -> None:
        self._task_managers.append(self._start(TASK_MANAGER))

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        self._started += 1
        log = self._folder / f"process-{self._started}.log"
        command = [*WITH_US, *self._java, program, "--configDir", str(self._folder), *arguments]
        with log.open("wb") as output:
            return subprocess.Popen(command, cwd=self._folder, stdout=output, stderr=subprocess.STDOUT)

    def _last_lines(self) -> str:
        """What the JobManager has said at last of errors."""
        lines = (self._folder / "process-1.log").read_text(errors="replace").splitlines()
        return " | ".join([line for line in lines if "Exception" in line or "ERROR" in line][-5:])
