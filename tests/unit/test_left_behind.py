"""The check that each test ends what it starts (tests/support/left_behind.py): it names the test that does not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.support import left_behind

def pytest_configure(config):
    config.pluginmanager.register(left_behind)
"""
TESTS = """
import subprocess, sys, threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support import left_behind
from tests.support.left_behind import shared

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
kept = []


@pytest.fixture(autouse=True)
def patience(request):
    left_behind.SECONDS = 0.1 if request.node.name.endswith("_left") else 60.0


@pytest.fixture(scope="module")
def server():
    with subprocess.Popen(SLEEP) as started:
        yield
        started.kill()


@pytest.fixture
def ended():
    with subprocess.Popen(SLEEP) as started:
        yield
        started.kill()


@pytest.fixture(scope="class")
def forgotten():
    kept.append(subprocess.Popen(SLEEP))


def test_program_left():
    kept.append(subprocess.Popen(SLEEP))

def test_daemon_left():
    threading.Thread(target=threading.Event().wait, daemon=True).start()

def test_pool_left():
    kept.append(ThreadPoolExecutor(1))
    kept[-1].submit(int)

def test_late_error():
    def late():
        go_on.wait()
        raise ValueError("behind the test")
    go_on = threading.Event()
    threading.Thread(target=late).start()
    threading.Timer(0.1, go_on.set).start()

class TestClass:
    def test_first(self, forgotten):
        pass

    def test_fixture_left(self):
        pass

def test_quiet(server, ended):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int)
    threading.Timer(0.1, int).start()
    kept.append(subprocess.Popen([sys.executable, "-c", ""]))

def test_shared(server):
    kept.append(shared(subprocess.Popen(SLEEP)))

def test_after_them(server):
    for one in kept:
        if isinstance(one, ThreadPoolExecutor):
            one.shutdown()
        else:
            one.kill()
            one.wait()
"""


def test_each_test_that_leaves_something_behind_fails_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        "-W",
        "error",
        "-rE",
        "test_some.py",
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    guilty = ["program_left", "daemon_left", "pool_left", "late_error", "fixture_left"]
    assert re.findall(r"^ERROR test_some.py::(?:TestClass::)?test_(\w+)", done.stdout, re.MULTILINE) == guilty, (
        done.stdout
    )
    assert f"9 passed, {len(guilty)} errors" in done.stdout
    assert re.search(r"fixture forgotten leaves behind:\nE +program", done.stdout)
    assert "ValueError: behind the test" in done.stdout
