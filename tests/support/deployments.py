"""A folder that gets one version of a package after the other, in place, and processes that have imported none of them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path


class Deployments:
    """Of one package, into one folder."""

    def __init__(self, folder: Path, package: str) -> None:
        self.folder = folder
        self._package = package

    def deploy(self, files: Mapping[str, str]) -> None:
        """Relative path → text; nothing of an earlier version is left."""
        self.remove()
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.forget()

    def forget(self) -> None:
        """This process has imported nothing of the package, as a new one."""
        for name in [name for name in sys.modules if name.partition(".")[0] == self._package]:
            del sys.modules[name]
