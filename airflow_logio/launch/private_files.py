"""Files with secrets in a driver's folder: readable by their owner only, and there for as long as they are needed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CONFIG_NAME = "driver.json"
"""The configuration of a driver, which removes it in its first second."""
KEYTAB_NAME = "driver.keytab"
"""The keytab of a connection: Spark logs in with it again and again, for as long as the driver has a session."""


def create(path: Path, content: bytes) -> None:
    """Create a file of mode 0600; it must not exist."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def discard_keytab(folder: Path) -> None:
    """Remove that of the driver whose folder it is. It raises nothing: the driver ends, whatever has become of the folder."""
    with suppress(OSError):
        (folder / KEYTAB_NAME).unlink(missing_ok=True)


def discard_under(folder: Path) -> None:
    """Remove those of drivers below `folder` that have ended, or never read their configuration."""
    for inside, _, files in os.walk(folder):  # which passes over what a JVM that ends removes meanwhile
        for name in (CONFIG_NAME, KEYTAB_NAME):
            if name in files:
                (Path(inside) / name).unlink(missing_ok=True)
