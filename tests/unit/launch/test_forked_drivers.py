"""Forked drivers: processes like those that are started by themselves, whatever happens to what they are forked from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_logio.launch import driver_folders, driver_process
from airflow_logio.launch.driver_process import PROGRAM, ForkServer
from airflow_logio.launch.processes import APPLICATION, identity_of
from airflow_logio.store.records.driver_records import DriverIdentity
from tests.support.running import has_ended
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drivers are forked on Linux only")

ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {"MALLOC_ARENA_MAX": "2"}
OUTPUT = "driver.log"
REPORTS = """
import gc, json, os, random, signal, sys, threading, time, uuid
prepared = 'numpy.random' in sys.modules
import numpy.random
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "name": __name__, "environment": dict(os.environ), "folder": os.getcwd(),
    "leads": os.getsid(0) == os.getpid(), "files": sorted(os.listdir("/proc/self/fd")), "threads": threading.active_count(),
    "signals": [str(signal.getsignal(one)) for one in sorted(signal.valid_signals())], "zone": time.tzname,
    **{name: os.readlink(f"/proc/self/fd/{number}") for number, name in enumerate(("input", "output", "error"))},
    "mask": [str(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, [])], "umask": os.umask(0),
    "collects": gc.isenabled(), "called": open("/proc/self/comm").read().removesuffix("3\\n").strip(),
    "drawn": [random.random(), float(numpy.random.random()), str(uuid.uuid4())],
}), prepared, flush=True)
os._exit(3)
"""
WAITS = "import time\nprint('waiting', flush=True)\ntime.sleep(600)"
OWNER = """
import os, signal
from pathlib import Path
from airflow_logio.launch.driver_process import ForkServer

server = ForkServer({environment!r})
while server.is_warming():
    pass
print(server.start({command!r}, {environment!r}, Path("{folder}"), "output").pid, server._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """With imports, which take longer on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver_process, "WARM_SECONDS", 120.0)
        yield


def begun(**more: str) -> ForkServer:
    server = ForkServer({**ENVIRONMENT, **more})
    eventually(lambda: not server.is_warming(), what="the server is ready, or has failed", timeout=150)
    return server


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

    def start(self, text: str, **more: str) -> tuple[DriverIdentity | None, Path]:
        command, folder = self.command(text)
        return self.server.start(command, {**ENVIRONMENT, **more}, folder, OUTPUT, own=("OWN",)), folder

    def forked(self, text: str, **more: str) -> tuple[psutil.Process, Path]:
        identity, folder = self.start(text, **more)
        assert identity is not None
        return psutil.Process(identity.pid), folder

    def reporting(self, **more: str) -> tuple[int, Path]:
        """The pid of one that reports and ends: by now, it may have ended."""
        identity, folder = self.start(REPORTS, **more)
        assert identity is not None
        return identity.pid, folder


@pytest.fixture(scope="module")
def shared_server() -> Iterator[ForkServer]:
    server = begun()
    yield server
    server.close()


@pytest.fixture
def programs(shared_server: ForkServer, tmp_path: Path) -> Iterator[Programs]:
    yield Programs(tmp_path, shared_server)
    driver_folders.end_under(tmp_path)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Programs]:
    """With a server of the test's own."""
    programs = Programs(tmp_path, begun())
    yield programs
    programs.server.close()
    driver_folders.end_under(tmp_path)


def said(folder: Path) -> tuple[dict[str, Any], bool]:
    """What a program has reported, and whether NumPy's random numbers were imported before it began."""
    output = folder / OUTPUT
    eventually(lambda: output.exists() and output.read_text().endswith("\n"), what="it has reported")
    report, _, prepared = output.read_text().rpartition(" ")
    found: dict[str, Any] = json.loads(report)
    return found, prepared == "True\n"


def server_of(programs: Programs) -> psutil.Process:
    return psutil.Process(programs.server._process.pid)


def test_a_forked_driver_is_as_one_that_was_started_by_itself(programs: Programs) -> None:
    folder = programs.reporting(OWN="mine")[1]
    forked, _ = said(folder)
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
    started, _ = said(beside)
    assert forked.pop("drawn") != started.pop("drawn")
    for one, where in ((forked, folder), (started, beside)):
        assert one.pop("folder") == str(where)
        assert one.pop("output") == one.pop("error") == str(where / OUTPUT)
    assert forked == started


def test_it_is_known_by_its_command_line_and_by_its_start(programs: Programs) -> None:
    identity, folder = programs.start(WAITS)
    assert identity is not None and identity == identity_of(identity.pid)
    process = psutil.Process(identity.pid)
    assert process.cmdline()[:3] == [sys.executable, str(programs.folder / APPLICATION.name), "--config"]
    assert [one.pid for one in driver_folders.processes_under(folder)] == [process.pid]
    assert PROGRAM.name not in " ".join(process.cmdline())
    assert process.ppid() == server_of(programs).pid


def test_no_two_draw_the_same_numbers(programs: Programs) -> None:
    (first, prepared), (second, _) = (said(programs.reporting()[1]) for _ in range(2))
    assert prepared, "the test shows nothing: each has imported them for itself"
    assert not set(first["drawn"]) & set(second["drawn"])


def test_nothing_runs_beside_its_main_thread_that_is_not_prepared_for_a_fork(programs: Programs) -> None:
    programs.forked(WAITS)
    threads = Path(f"/proc/{server_of(programs).pid}/task").glob("*/comm")
    names = sorted(one.read_text().strip() for one in threads)
    assert len([one for one in names if one != "jemalloc_bg_thd"]) == 1, names


def test_what_has_ended_is_no_zombie(programs: Programs) -> None:
    pid, folder = programs.reporting()
    said(folder)
    eventually(lambda: not psutil.pid_exists(pid), what="it is gone from the table of processes")


def test_another_python_or_environment_is_started_in_another_way(
    programs: Programs, caplog: pytest.LogCaptureFixture
) -> None:
    command, folder = programs.command(WAITS)
    assert programs.server.start(["/usr/bin/python3", *command[1:]], ENVIRONMENT, folder, OUTPUT) is None
    caplog.set_level("INFO")
    assert programs.start(WAITS, TZ="Asia/Tokyo", TOKEN="secret")[0] is None
    assert caplog.messages == ["a driver is not forked, because it has another environment: TOKEN, TZ"]
    assert programs.start(WAITS)[0] is not None


@pytest.mark.parametrize("what", ["folder", "output"])
def test_one_that_cannot_begin_says_why(own: Programs, what: str, caplog: pytest.LogCaptureFixture) -> None:
    command, folder = own.command(WAITS)
    if what == "folder":
        folder.rmdir()
    else:
        (folder / OUTPUT).mkdir()
    assert own.server.start(command, ENVIRONMENT, folder, OUTPUT) is None
    (warning,) = caplog.messages
    assert ("FileNotFoundError" if what == "folder" else "IsADirectoryError") in warning and str(folder) in warning
    assert own.start(WAITS)[0] is None and len(caplog.messages) == 1


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


FORKING = """
import os, signal, sys, time
from pathlib import Path
from airflow_logio.launch.application import fork_server

folder = Path("{folder}")

def begun():
    parent = os.getppid()
    (folder / "pid").write_text(str(os.getpid()))
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        time.sleep(0.01)

fork_server.fork([str(folder / "logio_driver.py")], {{}}, str(folder), "output", begun)
"""


def test_a_driver_whose_server_dies_while_it_begins_does_not_run(tmp_path: Path) -> None:
    """Its owner has had no answer, looks for what was left, and starts another one: two would run."""
    (tmp_path / "logio_driver.py").write_text(f"open({str(tmp_path / 'has run')!r}, 'w').close()")
    server = subprocess.run([sys.executable, "-c", FORKING.format(folder=tmp_path)], check=False, timeout=60)
    assert server.returncode == -signal.SIGKILL
    pid = int((tmp_path / "pid").read_text())
    eventually(
        lambda: not psutil.pid_exists(pid) or has_ended(psutil.Process(pid)), what="the driver has ended", timeout=60
    )
    assert not (tmp_path / "has run").exists()
    assert "the process that forked it has ended" in (tmp_path / "output").read_text()


def test_one_that_was_killed_is_told_of_once(own: Programs, caplog: pytest.LogCaptureFixture) -> None:
    own.forked(WAITS)
    server_of(own).kill()
    for _ in range(2):
        identity, folder = own.start(WAITS)
        assert identity is None and not driver_folders.processes_under(folder)
    (warning,) = caplog.messages
    assert warning.startswith("drivers are started one by one from now on")


def test_a_driver_is_not_left_whose_start_was_not_answered(own: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works already: a launcher that is told that it was not started starts another one."""
    here = threading.Event()

    def unheard(server: ForkServer) -> None:
        eventually(lambda: driver_folders.processes_under(own.folder), what="it was forked")
        here.set()
        server._fail("a test")

    monkeypatch.setattr(ForkServer, "_hear", unheard)
    identity, folder = own.start(WAITS)
    assert identity is None and here.is_set() and not driver_folders.processes_under(folder)


def test_a_server_that_is_stopped_is_given_up(own: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    own.server._socket.settimeout(0.5)
    server = server_of(own)
    server.suspend()
    identity, folder = own.start(WAITS)
    assert identity is None and has_ended(server) and not driver_folders.processes_under(folder)


@pytest.mark.parametrize(
    "statement", ["raise ImportError('it is broken')", "import os; os.abort()", "while True: pass"]
)
def test_imports_that_fail_are_tried_once(
    tmp_path: Path, statement: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits for those that do not end."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "msgspec.py").write_text(statement)
    monkeypatch.setattr(driver_process, "WARM_SECONDS", 5.0)
    programs = Programs(tmp_path, begun(PYTHONPATH=str(tmp_path / "modules")))
    assert programs.start(WAITS, PYTHONPATH=str(tmp_path / "modules"))[0] is None
    (warning,) = caplog.messages
    assert programs.server._process.poll() is not None
    assert {"r": "it is broken", "i": "it has ended", "w": "more than 5 s"}[statement[0]] in warning


def test_a_name_that_is_cut_within_a_letter(tmp_path: Path) -> None:
    """The system calls a process by 15 bytes of whatever it likes."""
    named = "import setproctitle, sys; setproctitle.setthreadtitle('0123456789' + 'ж' * 5)"
    call = f"{named}; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", call], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert identity_of(process.pid) is not None
        process.kill()
