"""What a driver gets from the process that launches it: its machine, its limits of memory, its user, Python and environment.

A launcher notes them in the driver's folder. Another process that has the same, and that folder, launches the next driver
just as the first one would: it takes memory where the last driver had it, and finds the same Spark.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from airflow_logio.launch.processes import boot_id, this_host
from airflow_logio.launch.spark_submit import INHERITED

NAME = "surroundings.json"
_MOUNTS = Path("/proc/self/ns/mnt")
"""A service may have mounts of its own, a private /tmp for example."""
_NAMESPACE, _GROUPS = Path("/proc/self/ns/cgroup"), Path("/proc/self/cgroup")


def machine_of_this_process() -> list[str]:
    """Host, boot with pid namespace, mounts, and user: two processes that have the same see the same files."""
    try:
        mounts = str(_MOUNTS.readlink())
    except OSError:  # another system
        mounts = ""
    return [this_host(), boot_id(), mounts, str(os.getuid())]


class Surroundings(msgspec.Struct, frozen=True):
    """Those of one process. Nothing in it is secret."""

    host: str
    boot: str
    """Boot and pid namespace: another container of the machine has another one."""
    limits: str
    """The control groups, in which memory and CPU are counted. Empty where the system has none."""
    user: int
    python: str
    environment: Mapping[str, str]


def of_this_process() -> Surroundings:
    """Raises nothing."""
    try:
        limits = f"{_NAMESPACE.readlink()}\n{_GROUPS.read_text()}"
    except OSError:  # another system
        limits = ""
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return Surroundings(this_host(), boot_id(), limits, os.getuid(), sys.executable, environment)


def note(folder: Path) -> None:
    """Note those of this process in the folder of a driver that it launches. Raises OSError."""
    (folder / NAME).write_bytes(msgspec.json.encode(of_this_process()))


def hand_on(folder: Path, standby: Path) -> None:
    """Note in the folder of a standby what its driver has noted: it takes the place. The environment of a driver is not that
    of its launcher. Raises OSError."""
    if (folder / NAME).is_file():
        shutil.copy(folder / NAME, standby / NAME)


def difference(folder: Path) -> str | None:
    """What a driver that this process launches would not have as the one had that worked in `folder`, in words; None if it
    would have all."""
    try:
        noted = msgspec.json.decode((folder / NAME).read_bytes(), type=Surroundings)
    except (OSError, msgspec.MsgspecError):
        return "a note of what its last driver got"
    own = of_this_process()
    for name, said in (("host", "host"), ("boot", "boot or container"), ("user", "user"), ("limits", "control group")):
        if getattr(own, name) != getattr(noted, name):
            return f"the {said}"
    if own.python != noted.python:
        return f"the Python {noted.python}"
    differ = sorted({name for name, _ in own.environment.items() ^ noted.environment.items()})
    return f"the same {', '.join(differ)}" if differ else None
