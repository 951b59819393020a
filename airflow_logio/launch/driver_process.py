"""Starting a driver's process on this machine: its folder filled, then spark-submit in a session of its own, or Python alone.

A driver is Python alone where its group needs no Spark, or is a client of a Spark Connect server (ADR-119). Such drivers
can be forked from a process that has imported what they need (ADR-126): their start is one second of imports otherwise, and
two on a busy machine.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import driver_folders, processes, shared_server, spark_settings, spark_submit, surroundings
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.code_bundle import CodeBundle
from airflow_logio.launch.driver_config import DriverConfig, DriverKind, Launch, needs_spark
from airflow_logio.launch.driver_folders import CONFIG_NAME, KEYTAB_NAME
from airflow_logio.launch.driver_log import LOG_NAME
from airflow_logio.launch.processes import APPLICATION, boot_id, this_host
from airflow_logio.launch.shared_server import ServerRecipe
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.spark.connect_engine import ConnectTarget
from airflow_logio.store.records.driver_records import Claim, DriverIdentity

log = logging.getLogger(__name__)
SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
"""With these pyspark starts a JVM for a program that was not started by one."""
DRIVER_PYTHON = "PYSPARK_DRIVER_PYTHON"
OF_EACH = (spark_submit.JAVA_OPTIONS, SUBMIT_ARGUMENTS)
"""Variables that name a driver's own folder. Nothing reads them before a JVM is started."""
MODULES = "py_files"
"""Folder of modules that came as single files."""
STANDBY = "--standby"
"""Option of the application: it is to wait for the death of the driver whose claim it is given."""
PROGRAM = APPLICATION.with_name("fork_server.py")
WARM_SECONDS = 20.0
"""For its imports. Drivers are started by themselves if it takes longer."""
ANSWER_SECONDS = 20.0
_children: list[subprocess.Popen[bytes]] = []
"""Started here, and not yet seen to have ended."""
_collecting = threading.Lock()


def start_driver(
    folder: Path, claim: Claim, launch: Launch, name: str, forks: ForkServer | None = None
) -> DriverIdentity | None:
    """Start a driver in an empty `folder`, which gets code, configuration and log; returns its identity, or that of the
    spark-submit that becomes its JVM, or None if it has ended already. `forks` starts it, if it can.

    Raises `ConfigurationError`, and OSError if the files cannot be written.
    """
    reap()
    ref, bundle = with_code(folder, launch.code, launch.ref)
    launch = replace(launch, ref=ref)
    with _started(folder):
        surroundings.note(folder)
        process = _process(folder, claim, launch, bundle, name)
        process.write_config()
        if forks is not None:
            forked = forks.start(process.command, process.environment, folder, LOG_NAME, own=OF_EACH)
            if forked is not None:
                return forked
            if not process.config_path.exists():  # a driver took it, and was ended
                process.write_config()
        with (folder / LOG_NAME).open("ab") as output:  # at its end, wherever that is after a rotation
            started = subprocess.Popen(
                process.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=process.environment,
                cwd=folder,
                start_new_session=True,
            )
    with _collecting:
        _children.append(started)
    return processes.identity_of(started.pid)


def start_standby(folder: Path, claim: Claim, launch: Launch, name: str) -> int:
    """As `start_driver`, for a process that waits, and is no child of this one; returns its pid."""
    ref, bundle = with_code(folder, launch.code, launch.ref)
    launch = replace(launch, ref=ref)
    with _started(folder):
        surroundings.hand_on(Path.cwd(), folder)
        process = _process(folder, claim, launch, bundle, name)
        process.write_config()
        return processes.leave_behind([*process.command, STANDBY], LOG_NAME, process.environment, folder)


def reap() -> None:
    """A launcher that keeps running collects its ended processes; nothing waits for the others."""
    with _collecting:
        _children[:] = [child for child in _children if child.poll() is None]


def server_recipe(run_folder: Path, settings: SparkSettings, key: str) -> ServerRecipe:
    """The server that drivers of a run with these settings have on this machine. `key` as in `folder_of`."""
    command = spark_submit.server_command(settings)
    folder = shared_server.folder_of(run_folder, command, spark_submit.server_environment(settings), key)
    return ServerRecipe(
        str(folder), command, spark_submit.server_environment(settings, folder / driver_folders.SCRATCH)
    )


def with_keytab(settings: SparkSettings, path: Path) -> SparkSettings:
    """A keytab that came with the connection goes to where spark-submit can read it, and nothing else."""
    if settings.keytab_content is None:
        return settings
    driver_folders.create_private(path, settings.keytab_content)
    return replace(settings, keytab=str(path), keytab_content=None)


def fork_server(settings: SparkSettings, pipeline: Pipeline, groups: Iterable[str]) -> ForkServer | None:
    """One for the first drivers of these groups and all later ones, if some of them can be forked on this machine."""
    environment = spark_submit.environment(settings)
    is_possible = sys.platform == "linux" and environment[DRIVER_PYTHON] == sys.executable
    if not (is_possible and any(is_forked(settings, pipeline, group) for group in groups)):
        return None
    try:
        return ForkServer(environment)
    except OSError as error:
        log.warning("drivers are started one by one, because they cannot be forked: %s", error)
        return None


def is_forked(settings: SparkSettings, pipeline: Pipeline, group: str) -> bool:
    """Whether drivers of the group are Python alone, where nothing but its operators decides."""
    if spark_settings.is_on_cluster(settings):
        return False
    return spark_settings.is_client(settings) or not needs_spark(pipeline, group)


class ForkServer:
    """Starts drivers of one environment. After its first failure it starts none any more: its owner does it in another way.

    For one thread.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Begin; it is ready after a second or two. `environment` is what the variables of all drivers have in common."""
        self._environment = dict(environment)
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(ANSWER_SECONDS)
        self._lines = self._socket.makefile("rw")
        self._until = time.monotonic() + WARM_SECONDS
        self._is_ready = self._has_ended = False
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=self._environment,
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C in the terminal is not for it
            )

    def is_warming(self) -> bool:
        """Whether it is about to be ready. Returns at once."""
        if self._is_ready or self._has_ended:
            return False
        if select.select([self._socket], [], [], 0)[0]:
            said = self._hear()
            self._is_ready = said is not None
        elif time.monotonic() > self._until:
            self._fail(f"its imports take more than {WARM_SECONDS:g} s")
        return not (self._is_ready or self._has_ended)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        output: str,
        *,
        own: Sequence[str] = (),
    ) -> DriverIdentity | None:
        """Start a driver that works in `folder`.

        `own` names the variables of `environment` that each driver has for itself. None: it is to be started in another way;
        then no process is left here that works in `folder`. Raises nothing but what interrupts it.
        """
        shared = {name: value for name, value in environment.items() if name not in own}
        if self.is_warming() or self._has_ended or command[0] != sys.executable:
            return None
        if shared != self._environment:
            differ = sorted({name for name, _ in shared.items() ^ self._environment.items()})
            log.info("a driver is not forked, because it has another environment: %s", ", ".join(differ))
            return None
        request = {"argv": list(command[1:]), "environment": dict(environment)}
        try:
            answer = self._ask(request | {"folder": str(folder), "output": str(folder / output)})
        except BaseException:
            self.close()  # an answer that is still to come would be taken for that to the next request
            raise
        if answer is None:
            driver_folders.end_under(folder)  # it may have been forked, and the answer not have come
            return None
        return DriverIdentity(this_host(), boot_id(), answer["pid"], answer["start_time"])

    def close(self) -> None:
        """End the server; drivers that it has forked continue."""
        if self._has_ended:
            return
        self._has_ended = True
        for one in (self._lines, self._socket):
            try:
                one.close()
            except OSError:  # what could not be sent
                continue
        self._process.kill()  # it may be stopped, or in the middle of its imports
        self._process.wait()
        self._errors.close()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            self._lines.write(json.dumps(request) + "\n")
            self._lines.flush()
        except OSError as error:
            self._fail(str(error))
            return None
        return self._hear()

    def _hear(self) -> dict[str, Any] | None:
        """The answer, or None if there is none, or an error: then the server is ended."""
        try:
            answer: dict[str, Any] = json.loads(self._lines.readline() or '{"error": "it has ended"}')
        except (OSError, ValueError) as error:
            answer = {"error": str(error)}
        if answer["error"] is None:
            return answer
        self._fail(answer["error"])
        return None

    def _fail(self, why: str) -> None:
        self._errors.seek(0)
        said = "".join(self._errors.read().splitlines(keepends=True)[-1:]).strip()
        log.warning(
            "drivers are started one by one from now on, because they cannot be forked: %s", f"{why} {said}".strip()
        )
        self.close()


@dataclass(frozen=True, slots=True)
class _Process:
    """How the process of a driver is started. Nothing secret is in the command."""

    command: Sequence[str]
    environment: Mapping[str, str]
    config_path: Path
    config: DriverConfig

    def write_config(self) -> None:
        self.config.write(self.config_path)


def _process(folder: Path, claim: Claim, launch: Launch, bundle: Path | None, name: str) -> _Process:
    """What spark-submit does for its own driver is done here for one of Python alone: it imports `py_files`, and a session
    that a function makes for itself has the settings of the launch."""
    settings, config, path = launch.settings, launch.config(claim), folder / CONFIG_NAME
    settings = with_keytab(settings, folder / KEYTAB_NAME)
    environment = spark_submit.environment(settings, folder / driver_folders.SCRATCH)
    if launch.kind is DriverKind.SPARK_SUBMIT:
        command = spark_submit.command(settings, launch.conf, name, bundle, APPLICATION, path)
        return _Process(command, environment, path, config)
    if settings.py_files:
        modules = spark_submit.importable(folder / MODULES, settings.py_files)
        environment["PYTHONPATH"] = os.pathsep.join([*modules, *filter(None, [environment.get("PYTHONPATH")])])
    if launch.kind is DriverKind.CLIENT:
        recipe = server_recipe(folder.parents[1], settings, key=launch.log_url) if settings.connect else None
        config = replace(config, connect=_target(launch, bundle), server=recipe)
    else:
        environment[SUBMIT_ARGUMENTS] = spark_submit.shell_arguments(settings, launch.conf, name, bundle)
    command = [environment[DRIVER_PYTHON], str(APPLICATION), "--config", str(path)]
    return _Process(command, environment, path, config)


def _target(launch: Launch, bundle: Path | None) -> ConnectTarget:
    settings = launch.settings
    files = (*spark_submit.files_of(settings.py_files), *([str(bundle)] if bundle else []))
    ours = tuple(sorted({*spark_settings.BATCH_CONF, *spark_settings.FRAMES_CONF} - settings.conf.keys()))
    user = f"logio-{launch.ref.module.rpartition('.')[2]}-{launch.ref.attr}"
    return ConnectTarget(None if settings.connect else settings.master, user, launch.conf, ours, files, settings.token)


def with_code(folder: Path, code: CodeBundle, ref: PipelineRef) -> tuple[PipelineRef, Path | None]:
    """Fill the folder of a driver with its code: from where it imports that, and the zip file for executors. Raises
    OSError."""
    (folder / driver_folders.SCRATCH).mkdir()
    if not code.is_shipped:
        return ref, None
    code.write(folder / "code")
    bundle = folder / "bundle.zip"
    bundle.write_bytes(code.archive())
    return replace(ref, bundle_root=folder / "code"), bundle


@contextmanager
def _started(folder: Path) -> Iterator[None]:
    """No file with secrets is left behind by a process that was not started."""
    try:
        yield
    except BaseException as error:
        driver_folders.discard_secrets(folder)
        if isinstance(error, OSError | subprocess.SubprocessError):
            raise ConfigurationError(f"the driver could not be started: {error}") from error
        raise
