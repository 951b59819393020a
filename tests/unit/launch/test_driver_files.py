"""Which files of drivers stay, and which are removed; how their logs are rotated and read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_logio.driver.driver_output import KEPT_BYTES, LogRotation
from airflow_logio.launch import driver_folders
from airflow_logio.launch.driver_log import LogReader, older, tail
from airflow_logio.launch.processes import APPLICATION
from airflow_logio.store.records.driver_records import DriverRecord
from tests.store.small_disk import small_folder
from tests.support.own_calls import replace_call

PRINTER = """
import sys
from pathlib import Path

for number in range(200_000):
    print(number, flush=number % 100 == 0)
sys.stdout.flush()
Path(sys.argv[1]).touch()
input()
print("last words")
"""


def incarnations(folder: Path, *numbers: int) -> Path:
    for number in numbers:
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "driver.log").write_text("said")
    return folder


def left(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_a_launch_removes_the_files_of_earlier_incarnations(tmp_path: Path) -> None:
    group = incarnations(tmp_path / "group", *range(1, 8))
    (group / "notes").mkdir()
    driver_folders.discard_earlier(group, 7)
    assert left(group) == ["4", "5", "6", "7", "notes"]
    driver_folders.discard_earlier(tmp_path / "nothing", 1)


def test_what_ends_meanwhile_stops_no_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM of a killed driver removes its files while the next driver is launched."""
    group, scan = incarnations(tmp_path / "group", 1, 2), os.scandir
    spilled = group / "1" / driver_folders.SCRATCH / "blockmgr-1"
    (spilled / "0f").mkdir(parents=True)
    driver_folders.create_private(group / "1" / driver_folders.CONFIG_NAME, b"secret")
    driver_folders.create_private(group / "2" / driver_folders.KEYTAB_NAME, b"secret")

    def removing(path: Any) -> Any:
        if not isinstance(path, int) and Path(path).name == spilled.name:  # a number is that of an open folder
            shutil.rmtree(path)
        return scan(path)

    with monkeypatch.context() as patch:
        replace_call(patch, os, "scandir", removing)
        driver_folders.discard_secrets(group)
    assert not spilled.exists(), "it was in the middle of it"
    assert left(group / "1") == ["driver.log", driver_folders.SCRATCH] and left(group / "2") == ["driver.log"]


def test_a_launch_removes_what_a_killed_driver_could_not(tmp_path: Path) -> None:
    group = incarnations(tmp_path / "group", 1, 2, 3)
    for number in (1, 2, 3):
        spilled = group / str(number) / driver_folders.SCRATCH / "blockmgr-1" / "0f"
        spilled.mkdir(parents=True)
        (spilled / "shuffle_0_0_0.data").write_text("records")
    waiting = [sys.executable, "-c", "input()", str(APPLICATION)]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, cwd=group / "1") as zombie:
        driver_folders.discard_earlier(group, 3)
        assert left(group / "1") == ["driver.log", "scratch"], "it may still write there"
        assert (left(group / "2"), left(group / "3")) == (["driver.log"], ["driver.log", "scratch"])
        zombie.kill()
    driver_folders.discard_earlier(group, 3)
    assert left(group / "1") == ["driver.log"]


def test_a_folder_in_which_a_driver_works_stays(tmp_path: Path) -> None:
    group = incarnations(tmp_path / "group", 1, 2, 9)
    waiting = [sys.executable, "-c", "input()", str(APPLICATION)]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, cwd=group / "1") as zombie:
        driver_folders.discard_earlier(group, 9)
        assert left(group) == ["1", "9"]
        zombie.kill()
    driver_folders.discard_earlier(group, 9)
    assert left(group) == ["9"]


def test_a_launch_removes_files_of_runs_that_have_ended_or_are_forgotten(tmp_path: Path) -> None:
    running, ended, fresh, forgotten, old, other = (letter * 32 for letter in "abcdef")
    for uid in (running, ended, fresh, forgotten, old):
        incarnations(tmp_path / uid / "group", 1)
    (tmp_path / other[:8]).mkdir()
    long_ago = psutil.boot_time() - driver_folders.FORGOTTEN_SECONDS - 1e8
    for one in tmp_path.rglob("*"):
        if one.is_relative_to(tmp_path / running) or one.is_relative_to(tmp_path / fresh):
            continue
        os.utime(one, (long_ago, long_ago))
    driver_folders.discard_runs(tmp_path, ended=lambda _: {ended}, is_known=lambda uid: uid == old)
    assert left(tmp_path) == sorted([running, fresh, old, other[:8]])


def test_nobody_is_asked_where_there_is_only_one_run(tmp_path: Path) -> None:
    incarnations(tmp_path / ("a" * 32) / "group", 1)

    def asked(*_: Any) -> Any:
        raise AssertionError("the log was asked")

    driver_folders.discard_runs(tmp_path, ended=asked, is_known=asked)


def test_the_files_of_a_run_are_those_that_its_drivers_name(tmp_path: Path) -> None:
    uid = "a" * 32
    incarnations(tmp_path / "work" / uid / "group", 1)
    incarnations(tmp_path / "elsewhere" / ("b" * 32) / "group", 1)

    def driver(log_path: Path | None, host: str | None = None) -> DriverRecord:
        said = None if log_path is None else str(log_path)
        return DriverRecord("group", 1, "first", False, 0.0, 0.0, 0.0, 0.0, None, None, said, host, 1)

    ours = tmp_path / "work" / uid / "group" / "1" / "driver.log"
    foreign = tmp_path / "elsewhere" / ("b" * 32) / "group" / "1" / "driver.log"
    assert driver_folders.folders_of(uid, [driver(ours), driver(foreign), driver(None)]) == [tmp_path / "work" / uid]
    assert driver_folders.folders_of(uid, [driver(ours, host="another machine")]) == []


def test_a_log_is_rotated_under_the_program_that_writes_it(tmp_path: Path) -> None:
    """Nothing is printed twice, or in another order, and both parts together stay small."""
    path, done = tmp_path / "driver.log", tmp_path / "done"
    rotation, reader = LogRotation(path, most_bytes=100_000), LogReader(path)
    rotations, read = 0, b""
    with path.open("ab") as output:
        command = [sys.executable, "-c", PRINTER, str(done)]
        printer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output)
    while printer.poll() is None and not done.exists():
        rotations += rotation.look()
        read += reader.read()
    rotations += rotation.look()
    printer.communicate(b"\n")
    read += reader.read()
    assert printer.returncode == 0
    assert rotations >= 1
    assert path.stat().st_size <= 100_000
    assert b"\0" not in path.read_bytes(), "the program writes at the end of the file that was emptied"
    assert tail(str(path), 1) == ["last words"]
    assert read.endswith(b"last words\n")
    for part in (older(path), path):  # the first and the last line may be cut
        numbers = [int(line) for line in part.read_text().splitlines()[1:-1]]
        assert numbers == sorted(set(numbers))


def test_a_reader_misses_nothing_of_a_rotated_log(tmp_path: Path) -> None:
    path = tmp_path / "driver.log"
    rotation = LogRotation(path, most_bytes=5)

    def printed(text: str) -> None:
        with path.open("a") as file:
            file.write(text)

    printed("one ")
    reader = LogReader(path)
    assert reader.read() == b"one "
    printed("two ")
    assert rotation.look() and not rotation.look()
    printed("3 ")
    assert reader.read() == b"two 3 "
    assert LogReader(path).read() == b"one two 3 "
    assert tail(str(path)) == ["one two 3 "]
    assert reader.read() == b""


def test_a_log_that_has_filled_the_disk_is_emptied_but_for_its_end(tmp_path: Path) -> None:
    with small_folder(tmp_path) as small:
        path = small.path / "driver.log"
        path.write_text("".join(f"{number:09d}\n" for number in range(300_000)))
        small.fill()
        try:
            rotation = LogRotation(path, most_bytes=2 * KEPT_BYTES)
            assert rotation.look() and path.stat().st_size == 0 and not rotation.look()
            assert not path.with_name("driver.log.copy").exists()
        finally:
            small.make_room()
        if small.is_mounted:  # else nothing can be written at all
            assert older(path).stat().st_size == KEPT_BYTES
            assert tail(str(path), 1) == ["000299999"]
        with path.open("a") as file:
            file.write("last words")
        assert tail(str(path), 1) == ["last words"]


def test_a_log_that_cannot_be_rotated_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "driver.log"
    path.write_text("much to say")
    older(path).mkdir()
    (older(path) / "file").write_text("in the way")
    rotation = LogRotation(path, most_bytes=5)
    assert not rotation.look()
    assert path.read_text() == "much to say"
    assert left(tmp_path) == ["driver.log", "driver.log.1"]
    assert not LogRotation(tmp_path / "elsewhere", most_bytes=5).look()
