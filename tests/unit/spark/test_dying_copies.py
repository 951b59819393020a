"""A process that dies while it copies a file to be published, or is replaced then and copies on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from airflow_logio.systems.payloads import Payloads
from tests.support.publishers import Publisher, counted
from tests.support.waiting import eventually

BLOCK = 16 * 1024
NAME = "run7.save.000000000003.00000.parquet"
COPY = f"""
import sys
from airflow_logio.systems.payloads import task_files

task_files._BLOCK = {BLOCK}
task_files.copied_file(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
"""


@pytest.fixture
def payloads() -> Iterator[Path]:
    """On another file system than the lake, so that there are no links."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("fate", ["dies", "copies on"])
def test_a_copy_that_its_driver_does_not_live_to_see(fate: str, tmp_path: Path, payloads: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    rows = [(Random(number).getrandbits(62), 1) for number in range(5_000)]
    action = Publisher(lake, Payloads(str(payloads)), 7, token=1).action(3, rows)
    [file] = payloads.rglob("*.parquet")
    data, target = file.read_bytes(), lake / "orders" / "store=1" / NAME
    assert len(data) > 2 * BLOCK
    target.parent.mkdir(parents=True)
    pipe = tmp_path / "pipe"  # what it reads from, so that it stands still in the middle
    os.mkfifo(pipe)
    hidden = f".{NAME}.1."
    copying = subprocess.Popen([sys.executable, "-c", COPY, pipe, target, str(len(data)), hidden])
    try:
        with pipe.open("wb") as feed:
            feed.write(data[: BLOCK + 1])
            feed.flush()
            eventually(lambda: _sizes(target.parent) == {hidden: BLOCK}, what="a block is written", timeout=60)
            if fate == "dies":
                copying.kill()
                copying.wait()
            assert counted(lake) == [], "half a file is none"
            assert not target.exists()

            Publisher(lake, Payloads(str(payloads)), 7, token=2).publish(replace(action, token=2))  # its successor
            assert _sizes(target.parent) == {NAME: len(data)}, "the half of a file is gone"
            assert counted(lake) == sorted(rows)
            if fate == "copies on":
                feed.write(data[BLOCK + 1 :])
        assert copying.wait(60) != 0, "it cannot rename what is gone"
        assert target.read_bytes() == data
        assert _sizes(target.parent) == {NAME: len(data)}
    finally:
        copying.kill()
        copying.wait()


def _sizes(folder: Path) -> dict[str, int]:
    """By name, without the random end of one that is hidden."""
    found = {}
    for path in folder.iterdir():
        name = path.name if not path.name.startswith(".") else f"{path.name.rpartition('.')[0]}."
        found[name] = path.stat().st_size
    return found
