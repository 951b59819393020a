"""`logio logs`, as a person types it: which log it prints, and how it follows a group that is recovered."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_logio.cli.app import main
from airflow_logio.launch.processes import boot_id, this_host
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import DriverIdentity, GroupRef
from airflow_logio.store.records.run_records import Run
from tests.support.logs import spec
from tests.support.waiting import eventually

HERE = DriverIdentity(this_host(), boot_id(), 2**22 + 1, 1.0)
"""A process of this machine that has ended."""


@dataclass
class Flow:
    """A run whose drivers are files; a test says what they print."""

    store: LogStore
    work_dir: Path
    run: Run = field(init=False)

    def __post_init__(self) -> None:
        self.run = self.store.start_run(spec("g", "h"))

    def launch(self, said: str, *, at: DriverIdentity = HERE, expected: int = 0) -> GroupRef:
        claim = self.store.claim(self.run.run_id, "g", expected=expected, reason="test")
        path = self.path(claim.incarnation)
        path.parent.mkdir(parents=True)
        path.write_text(said)
        self.store.submitted(claim, log_path=str(path), launcher=at)
        return self.store.register(claim, at)

    def path(self, incarnation: int) -> Path:
        return self.work_dir / self.run.uid / "g" / str(incarnation) / "driver.log"


@pytest.fixture
def flow(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flow]:
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    store = open_store(sqlite_url)
    yield Flow(store, tmp_path / "drivers")
    store.dispose()


Logs = Callable[..., tuple[int, str, str]]


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Logs:
    """The command: exit code, standard output, standard error."""

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["logio", "logs", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return command


def test_the_log_of_the_latest_incarnation_is_printed(flow: Flow, logs: Logs) -> None:
    flow.store.declare_dead(flow.launch("first\n"), "dead")
    flow.launch("second [bold]ünd\n", expected=1)
    assert logs(flow.run.uid[:8], "g") == (0, "second [bold]ünd\n", "")
    assert logs(flow.run.uid[:8], "g", "--incarnation", "1") == (0, "first\n", "")


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("g", "--incarnation", "3"), "has no incarnation 3: it has 1"),
        (("h",), "has no driver with a log yet"),
        (("i",), "no group 'i'"),
        (("g",), "driver.log on elsewhere, and this is"),
    ],
)
def test_what_cannot_be_printed_is_said(flow: Flow, logs: Logs, arguments: tuple[str, ...], expected: str) -> None:
    flow.launch("", at=DriverIdentity("elsewhere", "boot", 1, 1.0))
    flow.path(1).unlink()
    code, printed, said = logs(flow.run.uid[:8], *arguments)
    assert (code, printed) == (1, "")
    assert expected in said


def test_a_log_that_was_removed_is_said(flow: Flow, logs: Logs) -> None:
    flow.launch("")
    flow.path(1).unlink()
    code, _, said = logs(flow.run.uid[:8], "g")
    assert code == 1
    assert "no longer there: files of drivers are removed by `logio gc`" in said


def test_elsewhere_what_the_driver_has_sent_is_printed(flow: Flow, logs: Logs) -> None:
    ref = flow.launch("", at=DriverIdentity("elsewhere", "boot", 1, 1.0))
    flow.path(1).unlink()
    for number, text in enumerate(("one\n", "two \N{SNOWMAN}\n"), start=1):
        flow.store.output.add(ref, number, 4 * number, text)
    code, printed, said = logs(flow.run.uid[:8], "g")
    assert (code, printed) == (0, "one\ntwo \N{SNOWMAN}\n")
    assert "on elsewhere. This is what the driver has sent of it, without secrets" in " ".join(said.split())


@pytest.fixture
def following(flow: Flow, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """What `logio logs --follow` has printed so far."""
    output = tmp_path / "output"
    with output.open("w") as file:
        command = [sys.executable, "-m", "airflow_logio.cli", "logs", flow.run.uid[:8], "g", "--follow"]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    yield lambda: output.read_text() + ("" if process.poll() is None else f"exit {process.returncode}")
    process.kill()
    process.wait()


def test_a_driver_elsewhere_is_followed(flow: Flow, following: Callable[[], str]) -> None:
    ref = flow.launch("", at=DriverIdentity("elsewhere", "boot", 1, 1.0))
    flow.path(1).unlink()
    flow.store.output.add(ref, 1, 4, "one\n")
    eventually(lambda: "one\n" in following())
    flow.store.output.add(ref, 2, 8, "two\n")
    flow.store.halted(ref)
    eventually(lambda: "exit 0" in following())
    assert "one\ntwo\n" in following()


def test_following_ends_with_the_group_and_not_with_a_driver(flow: Flow, following: Callable[[], str]) -> None:
    first = flow.launch("one\n")
    eventually(lambda: "one\n" in following())
    with flow.path(1).open("a") as file:
        file.write("two\n")
    eventually(lambda: "one\ntwo\n" in following())
    flow.store.declare_dead(first, "dead")
    second = flow.launch("three\n", expected=1)
    flow.store.halted(second)
    with flow.path(2).open("a") as file:
        file.write("last words\n")
    eventually(lambda: "exit" in following())
    assert following().splitlines() == [
        f"== g, incarnation 1: {flow.path(1)}",
        "one",
        "two",
        f"== g, incarnation 2: {flow.path(2)}",
        "three",
        "last words",
        "exit 0",
    ]


def test_following_is_interrupted(flow: Flow) -> None:
    flow.launch("one\n")
    command = [sys.executable, "-m", "airflow_logio.cli", "logs", flow.run.uid[:8], "g", "-f"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=90)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in said
