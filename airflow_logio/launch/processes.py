"""Processes by identity, never by pid alone: host, boot and pid namespace, pid and start time (design D8)."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from getpass import getuser
from pathlib import Path

import psutil

from airflow_logio.store.records.driver_records import DriverIdentity

log = logging.getLogger(__name__)
APPLICATION = Path(__file__).parent / "application" / "logio_driver.py"
"""What spark-submit runs; drivers are recognized by its name in their command line."""
START_TIME_TOLERANCE_SECONDS = 0.05
GLANCE_SECONDS = 0.1
"""Between two looks where the system does not tell of the end."""
_POLL_SECONDS = 0.02
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def boot_id() -> str:
    """``boot/namespace``: within which pids mean the same (ADR-61).

    It changes with every boot, so that a pid of an earlier one is never taken for alive. Containers of one machine share
    the boot and may share a host name, and each counts pids from 1 in a namespace of its own.
    """
    path, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if not path.exists():
        return f"boot-{int(psutil.boot_time())}"
    try:
        return f"{path.read_text().strip()}/{namespace.readlink().name.strip('pid:[]')}"
    except OSError:  # a kernel without them
        return path.read_text().strip()


def start_time_of(pid: int) -> float:
    """When a process started. On Linux in seconds since boot, which no adjustment of the clock moves; else since the epoch.

    Raises `psutil.NoSuchProcess`.
    """
    try:
        # Bytes: what the process is called is cut within a letter, if need be.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return float(int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            raise psutil.NoSuchProcess(pid) from None
        return float(psutil.Process(pid).create_time())


def this_host() -> str:
    return socket.gethostname()


def this_person() -> str:
    """The name of the user whose process this is; a container's user may have none."""
    try:
        return getuser()
    except (OSError, KeyError, ImportError):  # which of them depends on version and system
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "a user without a name"


def identity_of(pid: int) -> DriverIdentity | None:
    """The identity of a process of this machine; None if there is none of that pid."""
    try:
        return DriverIdentity(this_host(), boot_id(), pid, start_time_of(pid))
    except psutil.NoSuchProcess:
        return None


def own_identity() -> DriverIdentity:
    """This process, and its parent if that is the JVM of spark-submit: the two live and die together."""
    own = psutil.Process()
    parent = own.parent()
    if parent is None or "java" not in parent.name():
        return DriverIdentity(this_host(), boot_id(), own.pid, start_time_of(own.pid))
    return DriverIdentity(
        this_host(), boot_id(), own.pid, start_time_of(own.pid), parent.pid, start_time_of(parent.pid)
    )


def leave_behind(command: Sequence[str], output: str, environment: Mapping[str, str], folder: Path) -> int:
    """Start a program in `folder`, in a session of its own and as a child of no process of ours; returns its pid. It adds
    what it prints to the file `output`.

    What ends a driver ends the driver's children, too: this one is to outlive it. Raises OSError and `SubprocessError`.
    """
    shell = subprocess.run(  # which ends at once
        ["/bin/sh", "-c", f'"$@" >> {output} 2>&1 & echo $!', "sh", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=folder,
        start_new_session=True,
        check=True,
    )
    return int(shell.stdout)


def is_local(identity: DriverIdentity) -> bool:
    """Recorded on this machine, in this boot and pid namespace."""
    return identity.host == this_host() and identity.boot_id == boot_id()


def driver_processes(identity: DriverIdentity) -> list[psutil.Process]:
    """What still runs of a driver on this machine: its Python and the JVM that started it."""
    if not is_local(identity):
        return []
    pairs = ((identity.pid, identity.start_time), (identity.parent_pid, identity.parent_start_time))
    return [process for pid, started in pairs if (process := _find(pid, started)) is not None]


def is_gone(identity: DriverIdentity) -> bool | None:
    """True if the driver's process has ended, False if it runs, None if this machine cannot tell."""
    if identity.host != this_host():
        return None
    own = boot_id()
    if _boot(identity.boot_id) != _boot(own):
        return True
    if identity.boot_id != own:
        return None
    if identity.pid:
        return _find(identity.pid, identity.start_time) is None
    return _find(identity.parent_pid, identity.parent_start_time) is None


def is_stopped(identity: DriverIdentity) -> bool:
    """Whether a driver on this machine is stopped (SIGSTOP, a debugger): it does not answer until it is continued."""
    try:
        return any(process.status() in _STOPPED for process in driver_processes(identity))
    except psutil.NoSuchProcess:
        return False


def end(identity: DriverIdentity, timeout: float = 10.0) -> bool:
    """SIGKILL what is left of a driver on this machine and wait for its end; False if something survived.

    A stopped process dies of SIGKILL too. Nothing is done to processes of other machines, or of other users: those are
    fenced only.
    """
    left = driver_processes(identity)
    denied = 0
    for process in left:
        for one in (process, *_children(process)):
            try:
                one.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
            except psutil.AccessDenied:
                denied += 1
    if denied:
        log.warning("%d process(es) of driver %d belong to another user, and are only fenced", denied, identity.pid)
        return False
    return have_ended(left, timeout)


def have_ended(killed: Sequence[psutil.Process], timeout: float) -> bool:
    """Wait for the ends of processes; False if one has survived until then."""
    deadline = time.monotonic() + timeout
    while left := psutil.wait_procs(killed, timeout=_POLL_SECONDS)[1]:
        # What its parent has not waited for is dead, and stays in the table of processes: only a child of ours goes here.
        if not any(map(_is_alive, left)):
            return True
        if time.monotonic() > deadline:
            return False
    return True


def wait_for_end(identity: DriverIdentity, seconds: float) -> None:
    """Return when the driver's process on this machine has ended, at the latest after so many seconds.

    On Linux at once, also while its parent has not collected it, which a wait for a process that is no child does not see.
    """
    deadline = time.monotonic() + seconds
    handle = _handle(identity.pid or identity.parent_pid)
    if handle is None:
        while not is_gone(identity) and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(GLANCE_SECONDS, left))
        return
    try:
        if not is_gone(identity):  # the handle is of this process, not of a later one with its number
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    finally:
        os.close(handle)


def _boot(boot_id: str) -> str:
    return boot_id.partition("/")[0]


def _find(pid: int, start_time: float) -> psutil.Process | None:
    if pid <= 0:
        return None
    try:
        process = psutil.Process(pid)
        same = abs(start_time_of(pid) - start_time) <= START_TIME_TOLERANCE_SECONDS
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _handle(pid: int) -> int | None:
    """What becomes readable when the process ends; None if it has ended, or the system has no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # macOS; no process; forbidden in a container
        return None
