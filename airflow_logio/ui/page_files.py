"""The built files of the page (`ui/`), under names with a hash of their content: a new version is never the old one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "built"
PLUGIN = "plugin.js"
"""For Airflow, which has React."""
ALONE = "alone.js"
"""For `logio ui`, with React in it."""


@cache
def served() -> Mapping[str, Path]:
    """Name in an address → file."""
    return {address(name): FOLDER / name for name in (PLUGIN, ALONE)}


@cache
def address(name: str) -> str:
    """The name under which a built file is served. Raises `OSError` if it is not installed."""
    digest = hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()[:16]
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{digest}.{suffix}"
