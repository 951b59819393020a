"""Removing what drivers leave on the machine that launched them: ``work_dir/<run>/<group>/<incarnation>`` (ADR-62).

A folder in which a process of a driver works stays, whatever the log says. A driver that was killed could not remove its
`SCRATCH` files, so the next launch of its group does.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from airflow_logio.launch.driver_folders import incarnation_of
from airflow_logio.launch.driver_log import LOG_NAME
from airflow_logio.launch.leftovers import processes_under
from airflow_logio.launch.processes import this_host
from airflow_logio.store.records.driver_records import DriverRecord

KEPT_INCARNATIONS = 3
"""How many earlier incarnations of a group keep their files when it is launched again."""
KEPT_SECONDS = 7 * 24 * 3600.0
"""For so long after its end a run keeps the files of its drivers, unless `logio gc` removes them."""
FORGOTTEN_SECONDS = 30 * 24 * 3600.0
"""Files of a run that this log does not have, maybe another one, are removed when they are so old."""

SCRATCH = "scratch"
"""Folder of what Spark spills, shuffles and unpacks, in the folder of a driver."""

_RUN = re.compile("[0-9a-f]{32}")


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


def discard_runs(work_dir: Path, ended: Callable[[], Collection[str]], is_known: Callable[[str], bool]) -> int:
    """Remove files of runs that are `ended`, or not known and forgotten; returns of how many.

    Runs are named by uid. `ended` is asked only if there are files of several runs.
    """
    folders = [folder for folder in _folders(work_dir) if _RUN.fullmatch(folder.name)]
    if len(folders) <= 1:  # that of the run which is being launched
        return 0
    removable = set(ended())
    return sum(discard(folder) for folder in folders if folder.name in removable or _is_forgotten(folder, is_known))


def _is_forgotten(folder: Path, is_known: Callable[[str], bool]) -> bool:
    return _age(folder) > FORGOTTEN_SECONDS and not is_known(folder.name)


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
