"""Forked drivers: processes like those that are started by themselves, whatever happens to what they are forked from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_logio.runtime.launch import fork_server, leftovers
from airflow_logio.runtime.launch.fork_server import PROGRAM, ForkServer
from airflow_logio.runtime.launch.processes import APPLICATION, start_time_of
from tests.support.running import has_ended
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drivers are forked on Linux only")

ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {"MALLOC_ARENA_MAX": "2"}
OUTPUT = "driver.log"
REPORTS = """
import gc, json, os, random, signal, sys, threading, time, uuid
import numpy.random
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "name": __name__, "environment": dict(os.environ), "folder": os.getcwd(),
    "leads": os.getsid(0) == os.getpid(), "files": sorted(os.listdir("/proc/self/fd")), "threads": threading.active_count(),
    "signals": [str(signal.getsignal(one)) for one in sorted(signal.valid_signals())], "zone": time.tzname,
    **{name: os.readlink(f"/proc/self/fd/{number}") for number, name in enumerate(("input", "output", "error"))},
    "mask": [str(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, [])], "umask": os.umask(0),
    "collects": gc.isenabled(), "drawn": [random.random(), float(numpy.random.random()), str(uuid.uuid4())],
}), flush=True)
os._exit(3)
"""
WAITS = "import time\nprint('waiting', flush=True)\ntime.sleep(600)"

OWNER = """
import os, signal
from pathlib import Path
from airflow_logio.runtime.launch.fork_server import ForkServer

server = ForkServer()
print(server.start({command!r}, {environment!r}, Path("{folder}"), "output"), server._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass
class Programs:
    """Writes programs called as a driver is, and starts them in folders of their own."""

    folder: Path
    server: ForkServer
    count: int = 0

    def command(self, text: str) -> tuple[list[str], Path]:
        self.count += 1
        folder = self.folder / "run" / "group" / str(self.count)
        folder.mkdir(parents=True)
        program = self.folder / APPLICATION.name
        program.write_text(text)
        return [sys.executable, str(program), "--config", "a b"], folder

    def start(self, text: str, **more: str) -> tuple[int | None, Path]:
        command, folder = self.command(text)
        return self.server.start(command, {**ENVIRONMENT, **more}, folder, OUTPUT, own=("OWN",)), folder

    def forked(self, text: str, **more: str) -> tuple[psutil.Process, Path]:
        pid, folder = self.start(text, **more)
        assert pid is not None
        return psutil.Process(pid), folder


@pytest.fixture(scope="module")
def shared_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def programs(shared_server: ForkServer, tmp_path: Path) -> Iterator[Programs]:
    yield Programs(tmp_path, shared_server)
    leftovers.end_under(tmp_path)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Programs]:
    """With a server of the test's own."""
    programs = Programs(tmp_path, ForkServer())
    yield programs
    programs.server.close()
    leftovers.end_under(tmp_path)


def said(folder: Path) -> dict[str, Any]:
    eventually(
        lambda: (folder / OUTPUT).exists() and (folder / OUTPUT).read_text().endswith("}\n"), what="it has reported"
    )
    found: dict[str, Any] = json.loads((folder / OUTPUT).read_text())
    return found


def server_of(programs: Programs) -> psutil.Process:
    process = programs.server._process
    assert process is not None
    return psutil.Process(process.pid)


def test_a_forked_driver_is_as_one_that_was_started_by_itself(programs: Programs) -> None:
    folder = programs.forked(REPORTS, OWN="mine")[1]
    assert programs.start(REPORTS, OWN="mine", TZ="Asia/Tokyo")[0] is None  # that is another environment
    forked = said(folder)
    command, beside = programs.command(REPORTS)
    with (beside / OUTPUT).open("ab") as output:
        subprocess.run(
            command,
            env={**ENVIRONMENT, "OWN": "mine"},
            cwd=beside,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            check=False,
        )
    started = said(beside)
    assert forked.pop("drawn") != started.pop("drawn")
    for one, where in ((forked, folder), (started, beside)):
        assert one.pop("folder") == str(where)
        assert one.pop("output") == one.pop("error") == str(where / OUTPUT)
    assert forked == started


def test_it_is_known_by_its_command_line_and_by_its_start(programs: Programs) -> None:
    before = start_time_of(server_of(programs).pid) if programs.server._process else 0.0
    process, folder = programs.forked(WAITS)
    assert process.cmdline()[:3] == [sys.executable, str(programs.folder / APPLICATION.name), "--config"]
    assert [one.pid for one in leftovers.processes_under(folder)] == [process.pid]
    assert start_time_of(process.pid) > before
    assert PROGRAM.name not in " ".join(process.cmdline())
    assert process.ppid() == server_of(programs).pid


def test_no_two_draw_the_same_numbers(programs: Programs) -> None:
    first, second = (said(programs.forked(REPORTS)[1])["drawn"] for _ in range(2))
    assert not set(first) & set(second)


def test_nothing_runs_beside_its_main_thread_that_is_not_prepared_for_a_fork(programs: Programs) -> None:
    programs.forked(WAITS)
    threads = Path(f"/proc/{server_of(programs).pid}/task").glob("*/comm")
    names = sorted(one.read_text().strip() for one in threads)
    assert len([one for one in names if one != "jemalloc_bg_thd"]) == 1, names


def test_what_has_ended_is_no_zombie(programs: Programs) -> None:
    process, folder = programs.forked(REPORTS)
    said(folder)
    eventually(lambda: not psutil.pid_exists(process.pid), what="it is gone from the table of processes")


@pytest.mark.parametrize("what", ["folder", "output"])
def test_one_that_cannot_begin_says_why(programs: Programs, what: str) -> None:
    command, folder = programs.command(WAITS)
    if what == "folder":
        folder.rmdir()
    else:
        (folder / OUTPUT).mkdir()
    with pytest.raises(OSError, match="FileNotFoundError: .*run/group/1" if what == "folder" else "IsADirectoryError"):
        programs.server.start(command, ENVIRONMENT, folder, OUTPUT)
    assert programs.start(WAITS)[0] is not None


def test_another_python_is_none_of_its_business(own: Programs) -> None:
    command, folder = own.command(WAITS)
    assert own.server.start(["/usr/bin/python3", *command[1:]], ENVIRONMENT, folder, OUTPUT) is None
    assert own.server._process is None


def test_it_ends_with_its_owner_and_the_drivers_do_not(own: Programs, tmp_path: Path) -> None:
    driver, _ = own.forked(WAITS)
    server = server_of(own)
    own.server.close()
    assert has_ended(server) and not has_ended(driver)
    owner = OWNER.format(command=own.command(WAITS)[0], environment=ENVIRONMENT, folder=tmp_path)
    ended = subprocess.run([sys.executable, "-c", owner], stdout=subprocess.PIPE, check=False)
    assert ended.returncode == -signal.SIGKILL
    second, its_server = (psutil.Process(int(one)) for one in ended.stdout.split())
    eventually(lambda: has_ended(its_server), what="the server has ended")
    assert not has_ended(second)


def test_one_that_was_killed_has_a_successor(own: Programs) -> None:
    own.forked(WAITS)
    server_of(own).kill()
    pid, folder = own.start(WAITS)
    assert pid is None and not leftovers.processes_under(folder)
    assert own.start(WAITS)[0] is not None


def test_a_driver_of_a_server_that_does_not_answer_is_not_left(own: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins when the server is continued, which nobody waits for any more: it is ended before another one begins."""
    monkeypatch.setattr(fork_server, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(fork_server, "END_SECONDS", 0.5)
    own.forked(WAITS)
    server = server_of(own)
    server.suspend()
    pid, folder = own.start(WAITS)
    assert pid is None and has_ended(server) and not leftovers.processes_under(folder)


def test_imports_that_fail_are_tried_once(own: Programs, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "modules" / "alembic").mkdir(parents=True)
    (tmp_path / "modules" / "alembic" / "__init__.py").write_text("raise ImportError('it is broken')")
    for _ in range(2):
        assert own.start(WAITS, PYTHONPATH=str(tmp_path / "modules"))[0] is None
    (warning,) = caplog.messages
    assert "it is broken" in warning and own.server._process is None
