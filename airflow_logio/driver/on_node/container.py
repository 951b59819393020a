"""What a driver makes for itself in a container of a cluster manager: a folder to work in, and its output in two places.

On its own machine a launcher has done both. Here what the process prints, its children's lines too, goes into the file from
which it is sent to the log, and from there to the container's own output, which the manager keeps. A manager's output that
is not taken holds nothing up. What was printed in the last `SHOW_SECONDS` before a SIGKILL is in neither of them.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_logio.driver.last_steps import STEP_SECONDS, before_exit, flush_output
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.driver_log import LOG_NAME, LogReader

log = logging.getLogger(__name__)
SHOW_SECONDS = 0.2
PREFIX = "logio-driver-"
_OUTPUT, _ERRORS = 1, 2
"""Descriptors, by which what is no Python prints, too."""


class Container:
    """The process works in `folder`, a new private one, until it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shown = os.dup(_OUTPUT)
        self._reader = LogReader(folder / LOG_NAME)
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logio-shown", daemon=True)

    @classmethod
    def entered(cls) -> Container:
        """Make the folder where the container lets us, and work in it. Raises `ConfigurationError`."""
        container = cls(_made())
        with suppress(OSError):  # the folder that it was started in is gone
            sys.path[:] = [os.path.abspath(place) for place in sys.path]  # what lies there stays importable
        os.chdir(container.folder)
        flush_output()
        file = os.open(LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for descriptor in (_OUTPUT, _ERRORS):
            os.dup2(file, descriptor)
        os.close(file)
        stream: Any = sys.stdout
        stream.reconfigure(line_buffering=True)  # as on its own machine, where the environment says it
        before_exit(container.leave)
        container._thread.start()
        return container

    def leave(self) -> None:
        """Show what is left, and remove the folder: not all managers do."""
        flush_output()
        self._leaving.set()
        self._thread.join(STEP_SECONDS / 2)  # what does not take it may be stopped
        os.chdir("/")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self) -> None:
        is_shown = True
        while is_shown and not self._leaving.wait(SHOW_SECONDS):
            is_shown = self._show()
        if is_shown:
            self._show()

    def _show(self) -> bool:
        """Whether the container's output still takes what is printed."""
        try:
            added = memoryview(self._reader.read())
        except OSError as error:  # such as a file that cannot be read again
            log.debug("what is printed is not shown: %s", error)
            return True
        try:
            while added:
                added = added[os.write(self._shown, added) :]
        except OSError:  # what read it has ended
            return False
        return True


def _made() -> Path:
    """In the working folder of the container, which its manager removes; where that cannot be written, among temporary
    files."""
    errors = []
    for place in (Path.cwd, tempfile.gettempdir):
        try:
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=place())).resolve()
        except OSError as error:
            errors.append(str(error))
    raise ConfigurationError(
        f"the driver has no folder that it can write ({'; '.join(errors)}): mount one, and name it by the variable TMPDIR"
    )
