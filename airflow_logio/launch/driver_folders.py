"""Names of the folders that drivers work in: ``work_dir/<run>/<group>/<incarnation>``.

A standby works in ``<incarnation>-standby``, of the incarnation that it would be, or in ``<incarnation>-standby-2``.
"""

from __future__ import annotations

import re
from pathlib import Path

READY = "ready"
"""A file in the folder of a standby: its process would take over now."""
_STANDBY = "-standby"
_NAME = re.compile(rf"(\d+)(?:{_STANDBY}(?:-\d+)?)?")


def incarnation_of(folder: Path) -> int | None:
    """Of which incarnation a folder is, or would be; None if it is not a driver's."""
    found = _NAME.fullmatch(folder.name)
    return None if found is None else int(found[1])


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
