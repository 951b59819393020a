"""The folders that drivers work in on this machine, ``work_dir/<run>/<group>/<incarnation>``, and what is found in them.

A standby works in ``<incarnation>-standby``, of the incarnation that it would be, or in ``<incarnation>-standby-2``.

A driver process works in its folder, and so do its children: that tells whose they are, also where the launcher was ended
between starting a driver and recording it. A person's shell in that folder is not one of them: a driver names its
application. A folder in which a driver works stays, whatever the log says (ADR-62). A driver that was killed could not
remove its `SCRATCH` files, so the next launch of its group does.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from airflow_logio.launch.driver_log import LOG_NAME
from airflow_logio.launch.processes import APPLICATION, have_ended, this_host
from airflow_logio.store.records.driver_records import DriverRecord

log = logging.getLogger(__name__)
CONFIG_NAME = "driver.json"
"""The configuration of a driver, which removes it in its first second."""
KEYTAB_NAME = "driver.keytab"
"""The keytab of a connection: Spark logs in with it again and again, for as long as the driver has a session."""
SCRATCH = "scratch"
"""Folder of what Spark spills, shuffles and unpacks, in the folder of a driver."""
READY = "ready"
"""A file in the folder of a standby: its process would take over now."""
KEPT_INCARNATIONS = 3
"""How many earlier incarnations of a group keep their files when it is launched again."""
KEPT_SECONDS = 7 * 24 * 3600.0
"""For so long after its end a run keeps the files of its drivers, unless `logio gc` removes them."""
FORGOTTEN_SECONDS = 30 * 24 * 3600.0
"""Files of a run that this log does not have, maybe another one, are removed when they are so old."""
_RUN = re.compile("[0-9a-f]{32}")
_STANDBY = "-standby"
_NAME = re.compile(rf"(\d+)(?:{_STANDBY}(?:-\d+)?)?")


def incarnation_of(folder: Path) -> int | None:
    """The incarnation that works in a folder, or would, for a standby; None if it is not a driver's."""
    found = _NAME.fullmatch(folder.name)
    return None if found is None else int(found[1])


def work_folder(log_path: str) -> Path:
    """The work folder of the driver with this log, as it is on this machine."""
    return Path(log_path).resolve().parents[3]


def is_of_standby(folder: Path) -> bool:
    """Whether a standby began its work there. It may have become a driver since."""
    return incarnation_of(folder) is not None and _STANDBY in folder.name


def standby_folders(group_folder: Path, incarnation: int) -> list[Path]:
    """The folders of all standbys that would be, or are, this incarnation."""
    return [one for one in group_folder.iterdir() if is_of_standby(one) and incarnation_of(one) == incarnation]


def make_standby_folder(group_folder: Path, incarnation: int) -> Path:
    """A new private folder for a standby that would be this incarnation. Raises OSError."""
    number = 1
    while True:
        folder = group_folder / f"{incarnation}{_STANDBY}{'' if number == 1 else f'-{number}'}"
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        else:
            return folder


def create_private(path: Path, content: bytes) -> None:
    """Create a file of mode 0600; it must not exist."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def discard_keytab(folder: Path) -> None:
    """Remove that of the driver whose folder it is. It raises nothing: the driver ends, whatever has become of the folder."""
    with suppress(OSError):
        (folder / KEYTAB_NAME).unlink(missing_ok=True)


def discard_secrets(folder: Path) -> None:
    """Remove those of drivers below `folder` that have ended, or never read their configuration."""
    for inside, _, files in os.walk(folder):  # which passes over what a JVM that ends removes meanwhile
        for name in (CONFIG_NAME, KEYTAB_NAME):
            if name in files:
                (Path(inside) / name).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class LocalDriver:
    """A driver process of this machine, and what the folder that it works in says of it."""

    process: psutil.Process
    run_uid: str
    group: str
    incarnation: int
    """For a standby, the one that it would be."""
    is_of_standby: bool = False
    """It began as a standby: it is the driver of that incarnation only if the log says so."""


def local_drivers() -> list[LocalDriver]:
    """All driver processes of this user on this machine, in whatever work folder."""
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


def discard_earlier(folder: Path, incarnation: int) -> None:
    """Remove the files of a group's incarnations long before `incarnation`, and the scratch files of all before it; `folder`
    is the group's."""
    for one in _folders(folder):
        earlier = incarnation_of(one)
        if earlier is None or earlier >= incarnation:
            continue
        if earlier < incarnation - KEPT_INCARNATIONS:
            discard(one)
        elif (one / SCRATCH).is_dir():
            discard(one / SCRATCH, of=one)


def discard_runs(
    work_dir: Path, ended: Callable[[Collection[str]], Collection[str]], is_known: Callable[[str], bool]
) -> int:
    """Remove files of runs that are `ended`, or not known and forgotten; returns of how many.

    Runs are named by uid. `ended` is asked about those that have files here, only if there are several.
    """
    folders = [folder for folder in _folders(work_dir) if _RUN.fullmatch(folder.name)]
    if len(folders) <= 1:  # that of the run which is being launched
        return 0
    removable = set(ended([folder.name for folder in folders]))
    return sum(discard(folder) for folder in folders if folder.name in removable or _is_forgotten(folder, is_known))


def folders_of(run_uid: str, drivers: Iterable[DriverRecord]) -> list[Path]:
    """The folders of this machine that hold files of these drivers of a run, one per work folder."""
    paths = {Path(one.log_path) for one in drivers if one.log_path is not None and one.host in (None, this_host())}
    found = {path.parents[2] for path in paths if path.name == LOG_NAME and path.parts[-4:-3] == (run_uid,)}
    return sorted(folder for folder in found if folder.is_dir())


def discard(folder: Path, *, of: Path | None = None) -> bool:
    """Remove files of drivers; False if a driver still works there (in `of`, if given), or something cannot be removed."""
    if processes_under(folder if of is None else of):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _is_forgotten(folder: Path, is_known: Callable[[str], bool]) -> bool:
    return _age(folder) > FORGOTTEN_SECONDS and not is_known(folder.name)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.is_dir() and not one.is_symlink())
    except OSError:
        return []


def _age(folder: Path) -> float:
    """Seconds since anything in it was written."""
    times = []
    for inside, folders, files in os.walk(folder):
        for one in (inside, *(f"{inside}/{name}" for name in (*folders, *files))):
            with suppress(OSError):
                times.append(os.lstat(one).st_mtime)
    return time.time() - max(times, default=time.time())
