"""Which files of the package a process enters while something happens: the length of a way, counted.

A file counts if a function in it is called. Functions are seen in every thread that begins after `install`, and in the one
that calls it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import airflow_logio
from tests.support.waiting import eventually

PACKAGE = Path(airflow_logio.__file__).parent
LISTEN, LISTENS, STOP = "listen", "listens", "stop"
"""Files by which the test and the processes that it traces talk: see `TracedProcesses`."""


class FilesEntered:
    """While `is_listening`: file, relative to the package → the names of the threads that have entered it."""

    def __init__(self) -> None:
        self.is_listening = False
        self.threads: dict[str, set[str]] = {}
        self._names: dict[str, str | None] = {}

    def install(self) -> None:
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self.is_listening or event != "call" or frame.f_code.co_name == "<module>":
            return
        path = frame.f_code.co_filename
        if path not in self._names:
            inside = Path(path).is_relative_to(PACKAGE)
            self._names[path] = str(Path(path).relative_to(PACKAGE)) if inside else None
        if (name := self._names[path]) is not None:
            self.threads.setdefault(name, set()).add(threading.current_thread().name)


@contextmanager
def threads_traced() -> Iterator[FilesEntered]:
    """Sees the threads of this process that begin within the block, and not this one."""
    entered = FilesEntered()
    threading.setprofile(entered._note)
    try:
        yield entered
    finally:
        threading.setprofile(None)


def trace_when_asked(folder: Path, name: str) -> None:
    """Called in a process before its threads begin: it listens from `TracedProcesses.begin` to `end`."""
    entered = FilesEntered()
    entered.install()
    threading.Thread(target=_obey, args=(entered, folder, name), name="trace", daemon=True).start()


def _obey(entered: FilesEntered, folder: Path, name: str) -> None:
    sys.setprofile(None)
    eventually((folder / LISTEN).exists, timeout=600)
    entered.is_listening = True
    (folder / f"{name}.{LISTENS}").touch()
    eventually((folder / STOP).exists, timeout=600)
    entered.is_listening = False
    found = {file: sorted(threads) for file, threads in sorted(entered.threads.items())}
    (folder / f"{name}.part").write_text(json.dumps(found))
    (folder / f"{name}.part").rename(folder / f"{name}.json")


class TracedProcesses:
    """Those that have called `trace_when_asked` with this folder, each under a name of its own."""

    def __init__(self, folder: Path, *names: str) -> None:
        self._folder = folder
        self._names = names

    def begin(self) -> None:
        """Let them listen; returns when all of them do."""
        (self._folder / LISTEN).touch()
        for name in self._names:
            eventually((self._folder / f"{name}.{LISTENS}").exists, what=f"{name} listens", timeout=60)

    def end(self) -> Mapping[str, Mapping[str, list[str]]]:
        """Name of a process → file of the package → the threads that have entered it since `begin`."""
        (self._folder / STOP).touch()
        files = {name: self._folder / f"{name}.json" for name in self._names}
        for name, file in files.items():
            eventually(file.exists, what=f"{name} says what it has entered", timeout=60)
        return {name: json.loads(file.read_text()) for name, file in files.items()}
