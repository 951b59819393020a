"""Paths among the Spark arguments of a task: relative to where the task runs, as with SparkSubmitOperator.

But a driver starts in a folder of its own, and another process may recover its group.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SEPARATORS: Mapping[str, str | None] = {
    "jars": ",",
    "files": ",",
    "archives": ",",
    "py_files": ",",
    "driver_class_path": os.pathsep,
    "properties_file": None,
    "keytab": None,
}
"""Arguments that are paths, and what separates several in one."""

PROPERTIES: Mapping[str, str | None] = {
    "spark.jars": ",",
    "spark.files": ",",
    "spark.archives": ",",
    "spark.submit.pyFiles": ",",
    "spark.driver.extraClassPath": os.pathsep,
    "spark.kerberos.keytab": None,
}
"""The properties of the same meaning."""

_ADDRESS = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]+:")
"""Such as hdfs://host/a.jar, or local:/opt/a.jar."""


def absolute(values: Mapping[str, Any], separators: Mapping[str, str | None], folder: Path) -> dict[str, Any]:
    """The values, in which each relative path that `separators` knows is one below `folder`."""
    return {name: _absolute(value, separators.get(name, ""), folder) for name, value in values.items()}


def _absolute(value: Any, separator: str | None, folder: Path) -> Any:
    if separator == "" or not isinstance(value, str) or not value:
        return value
    if separator is None:
        return below(folder, value)
    return separator.join(below(folder, one) for one in value.split(separator))


def below(folder: Path, path: str) -> str:
    """Addresses and absolute paths stay as they are."""
    return path if not path.strip() or _ADDRESS.match(path) else os.path.normpath(folder / path.strip())
