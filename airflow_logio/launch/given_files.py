"""Files of this machine that are given to Spark: jars, files, archives and Python files must be there before anything starts.

Spark only logs that a jar is missing, and runs without it, so that the first event fails that needs it. Drivers, and the
servers that they share, are started on the machine that launches them (deploy mode client), which reads these paths. Others
are left to Spark: addresses of other systems, ``local:`` (of each node), and relative paths of a group, whose driver has a
folder of its own.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from airflow_logio.errors import ConfigurationError

PROPERTY_OF: Mapping[str, str] = {
    "jars": "spark.jars",
    "files": "spark.files",
    "archives": "spark.archives",
    "py_files": "spark.submit.pyFiles",
}
"""Argument → the property that it decides against."""
JARS = PROPERTY_OF["jars"]
_PATTERN = re.compile(r"[*?\[]")
_NAMED = ("", "file")


def check_given_files(name: str, value: str | None) -> None:
    """Raises `ConfigurationError` for the first path of a list that is not there; `name` is of an argument or a property."""
    for one in filter(None, map(str.strip, (value or "").split(","))):
        path = _local_path(one)
        if path is None or _is_there(path, may_be_folder=PROPERTY_OF.get(name, name) != JARS):
            continue
        what = (
            "matches no file" if _PATTERN.search(path) else "is not a file" if os.path.isdir(path) else "is not there"
        )
        raise ConfigurationError(
            f"{name} has {one}, which {what} on this machine: Spark would start without it, and fail where it is used. "
            f"Correct the path, copy the file here, or leave it out of {name}"
        )


def _local_path(one: str) -> str | None:
    """The absolute path on this machine; None for what is elsewhere or relative, and for braces, which Hadoop reads."""
    scheme = urlsplit(one).scheme if ":" in one.partition("/")[0] else ""
    if scheme not in _NAMED:
        return None
    path = unquote(urlsplit(one).path) if scheme else one
    return path if os.path.isabs(path) and "{" not in path else None


def _is_there(path: str, *, may_be_folder: bool) -> bool:
    """``path#name`` is the file under another name, unless there is a file of that whole name."""
    exists = os.path.exists if may_be_folder else os.path.isfile
    named = {path, path.partition("#")[0]}
    if any(map(exists, named)):
        return True
    return any(exists(found) for one in named if _PATTERN.search(one) for found in _matching(one))


def _matching(pattern: str) -> list[str]:
    """Hadoop writes ``[^a]`` for any letter but that one."""
    return glob.glob(pattern.replace("[^", "[!"), include_hidden=True)
