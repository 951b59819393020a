"""Waiting for processes of others: their end is heard of at once, and no other process is taken for them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from airflow_logio.launch import processes
from airflow_logio.launch.processes import wait_for_end
from airflow_logio.store.records.driver_records import DriverIdentity
from tests.support.own_calls import as_seen

PATIENCE = 60.0


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as started:
        yield started
        started.kill()


def identity_of(process: subprocess.Popen[bytes]) -> DriverIdentity:
    found = processes.identity_of(process.pid)
    assert found is not None
    return found


def waited(identity: DriverIdentity, seconds: float, first: Callable[[], None] = lambda: None) -> float:
    """How long a wait takes, after something was done `first`."""
    begun = time.monotonic()
    first()
    wait_for_end(identity, seconds)
    return time.monotonic() - begun


@pytest.fixture(params=["told by the system", "looked at"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "looked at":
        on_macos = as_seen(os)
        del on_macos.pidfd_open
        monkeypatch.setattr(processes, "os", on_macos)
    return str(request.param)


def test_the_end_is_heard_of_while_the_parent_has_not_collected_the_process(
    process: subprocess.Popen[bytes], way: str
) -> None:
    """As a supervisor that is busy leaves the driver that has just been killed."""
    identity = identity_of(process)
    later = threading.Timer(0.2, process.kill)
    assert 0.2 <= waited(identity, PATIENCE, later.start) < PATIENCE / 2, way
    assert process.returncode is None and processes.is_gone(identity)
    assert waited(identity, PATIENCE) < PATIENCE / 2, "it has ended before"


def test_a_process_that_lives_is_waited_for_as_long_as_said(process: subprocess.Popen[bytes], way: str) -> None:
    assert waited(identity_of(process), 0.3) >= 0.3, way


def test_another_process_with_its_number_is_not_waited_for(process: subprocess.Popen[bytes], way: str) -> None:
    other = identity_of(process)
    gone = DriverIdentity(other.host, other.boot_id, other.pid, other.start_time - 1000)
    assert waited(gone, PATIENCE) < PATIENCE / 2, way


def test_a_process_that_is_long_gone_is_not_waited_for(way: str) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        identity = identity_of(ended)
    assert waited(identity, PATIENCE) < PATIENCE / 2, way


def test_no_wait_leaves_a_descriptor_open(process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe stands for the descriptor of a process, which not every system has: it is never readable."""
    opened: list[int] = []
    others: list[int] = []

    def handle(_: int) -> int:
        reading, writing = os.pipe()
        opened.append(reading)
        others.append(writing)
        return reading

    monkeypatch.setattr(processes, "_handle", handle)
    identity = identity_of(process)
    waited(identity, 0.01)
    waited(DriverIdentity(identity.host, identity.boot_id, identity.pid, identity.start_time - 1000), PATIENCE)
    process.kill()
    waited(identity, 0.01)
    for descriptor in others:
        os.close(descriptor)
    assert len(opened) == 3
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
