"""Installed distributions, as much of them as says that they are there."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, name: str, number: str) -> None:
    """What pip leaves of a distribution's name and version in a folder of sys.path."""
    info = folder / f"{name.replace('-', '_')}-{number}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    (info / "RECORD").write_text("")
