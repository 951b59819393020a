"""What a test leaves in its worker: programs that run, and threads.

pytest reports a thread that raises, and a `subprocess.Popen` that is collected as garbage while its program runs, in the test
that happens to run then. So a test ends what it starts, and one that does not fails by its own name, each time.
"""

from __future__ import annotations

import subprocess
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pytest import FixtureDef

Left = TypeVar("Left", bound="subprocess.Popen[Any] | threading.Thread")
TESTS = Path(__file__).parents[1]
HOLD = ("unit/driver", "unit/launch", "unit/supervision")
"""Folders whose tests hold it. The others have not been looked through."""
SECONDS = 60.0
"""For what has been told to end."""
LIBRARIES = ("airflow.", "py4j.", "pyspark.", "grpc.")
"""Threads of their functions are theirs to end, and no test can."""
NAMES = (
    *("InProcessExecutionAPI-loop", "fsspecIO"),
    *("logio asks Airflow_", "logio looks for input_", "logio OpenLineage_", "logio stores links_"),
)
"""How those are named that a module has for as long as the process lives. They wait for work, and keep its errors for it."""
_programs: weakref.WeakValueDictionary[int, subprocess.Popen[Any]] = weakref.WeakValueDictionary()
_of_fixtures: dict[FixtureDef[Any], set[Any]] = {}
_known: weakref.WeakSet[Any] = weakref.WeakSet()
"""Programs and threads that may outlive a test, and those that a test has failed for."""


def pytest_configure() -> None:
    """Note each program that is started from now on."""
    begin = subprocess.Popen.__init__

    def noted(self: subprocess.Popen[Any], *arguments: Any, **settings: Any) -> None:
        begin(self, *arguments, **settings)
        _programs[id(self)] = self

    subprocess.Popen.__init__ = noted  # type: ignore[method-assign]


def shared(one: Left) -> Left:
    """A program or a thread that several tests use, though one of them has begun it: something else ends it."""
    _known.add(one)
    return one


def pytest_collection_finish() -> None:
    _known.update(_running())


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: FixtureDef[Any]) -> Generator[None, Any, Any]:
    if fixturedef.scope == "function":
        return (yield)
    before = _running()
    try:
        return (yield)
    finally:
        _of_fixtures[fixturedef] = begun = _running() - before
        _known.update(begun)


def pytest_fixture_post_finalizer(fixturedef: FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    begun = _of_fixtures.pop(fixturedef, set())
    if _holds(request.config.rootpath / fixturedef.baseid) and (left := _outlasting(_running() & begun)):
        pytest.fail(f"fixture {fixturedef.argname} leaves behind:\n{left}")


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """The first fixture of each test: the last to end."""
    yield
    if not _holds(request.path):
        _known.update(_running())
    if left := _outlasting({one for one in _running() if one not in _known}):
        pytest.fail(f"the test leaves behind:\n{left}")


def _holds(place: Path) -> bool:
    return not place.is_relative_to(TESTS) or any(place.is_relative_to(TESTS / folder) for folder in HOLD)


def _running() -> set[Any]:
    threads = {one for one in threading.enumerate() if one is not threading.main_thread() and not _is_foreign(one)}
    programs = [program() for program in _programs.valuerefs()]  # a copy: other threads start programs, too
    return threads | {one for one in programs if one is not None and one.returncode is None}


def _is_foreign(thread: threading.Thread) -> bool:
    if isinstance(thread, threading._DummyThread) or thread.name.startswith(NAMES):
        return True
    function = getattr(thread, "_target", None)  # gone when it has returned
    function = getattr(function, "func", function)
    module = getattr(function, "__module__", None) if function is not None else type(thread).__module__
    return f"{module}.".startswith(LIBRARIES)


def _outlasting(begun: set[Any]) -> str:
    """What of this does not end, a line for each. Programs are ended, and all is known from now on."""
    until = time.monotonic() + SECONDS
    lines = sorted(line for one in begun if (line := _outlasts(one, until)))
    _known.update(begun)
    return "\n".join(lines)


def _outlasts(one: Any, until: float) -> str:
    seconds = max(0.0, until - time.monotonic())
    if isinstance(one, threading.Thread):
        one.join(seconds)
        return f"thread {one.name}: {getattr(one, '_target', one)}" if one.is_alive() else ""
    try:
        one.wait(seconds)
    except subprocess.TimeoutExpired:
        one.kill()
        one.wait()
        return f"program {one.pid}: {one.args}"
    return ""
