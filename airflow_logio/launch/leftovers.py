"""Driver processes that no log knows of: their launcher was ended between starting them and recording them.

Every local driver works in the private folder of its incarnation, ``work_dir/<run>/<group>/<incarnation>``, and so do
its children: that tells whose they are. A person's shell in that folder is not one of them: a driver names its
application.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from airflow_logio.launch.driver_folders import incarnation_of, is_of_standby
from airflow_logio.launch.processes import APPLICATION, have_ended

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalDriver:
    """A driver process of this machine, and what the folder that it works in says of it."""

    process: psutil.Process
    run_uid: str
    group: str
    incarnation: int
    """Of a standby, the one that it would be."""
    is_of_standby: bool = False
    """It began as a standby: it is the driver of that incarnation only if the log says so."""


def local_drivers() -> list[LocalDriver]:
    """All driver processes of this user on this machine, whoever launched them into whatever work folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.uids().real == os.getuid() and APPLICATION.name in " ".join(process.cmdline()):
                folder = Path(process.cwd())
                run_uid, group, _ = folder.parts[-3:]
                if (incarnation := incarnation_of(folder)) is not None:
                    found.append(LocalDriver(process, run_uid, group, incarnation, is_of_standby(folder)))
        except (psutil.Error, OSError, ValueError):  # it has ended, or works elsewhere
            continue
    return found


def processes_under(*folders: Path) -> list[psutil.Process]:
    """Driver processes of this user whose working directory is one of these folders, or below."""
    roots = [folder.resolve() for folder in folders]
    found = []
    for process in psutil.process_iter() if roots else ():
        try:
            if process.pid != os.getpid() and process.uids().real == os.getuid():
                where = Path(process.cwd())
                if APPLICATION.name in " ".join(process.cmdline()) and any(
                    where.is_relative_to(root) for root in roots
                ):
                    found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def end_under(*folders: Path, timeout: float = 10.0) -> int:
    """SIGKILL them and wait for their end; returns how many there were."""
    left = processes_under(*folders)
    for process in left:
        try:
            log.warning("ending driver process %d, which the log does not know", process.pid)
            process.kill()
        except psutil.NoSuchProcess:
            continue
    have_ended(left, timeout)
    return len(left)


def end_standbys(log_path: str | None) -> None:
    """SIGKILL what stands by on this machine for the driver with this log: it would take its place when that ends."""
    if log_path is None:
        return
    group_folder = Path(log_path).parents[1]
    try:
        folders = [one for one in group_folder.iterdir() if is_of_standby(one) and one != Path(log_path).parent]
    except OSError:  # another machine's
        return
    end_under(*folders)
