"""`logio run` of days whose files come late, with real drivers: each begins when its own is there, and is exact."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from airflow_logio.launch.driver_folders import processes_under
from tests.acceptance.test_ranges_of_days import DAYS, PIPELINE, rows, started, table, wanted, write
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    said = PIPELINE.replace("records_per_event=7)", 'records_per_event=7), wait="6h", ready="{data}/{day}.done"')
    assert said != PIPELINE
    (tmp_path / "clicks.py").write_text(said)
    (tmp_path / "data").mkdir()
    return tmp_path


def arrives(folder: Path, day: str) -> None:
    write(folder, day)
    (folder / "data" / f"{day}.done").touch()


def test_days_begin_as_their_files_come_and_the_terminal_says_what_is_waited_for(folder: Path) -> None:
    arrives(folder, DAYS[1])
    write(folder, DAYS[0])
    begun = {day: folder / "data" / f"{day}.begun" for day in DAYS[:3]}
    options = ("--param", f"data={folder}/data", "--partition", f"{DAYS[0]}..{DAYS[2]}")
    with (folder / "printed").open("w+") as printed:
        run = started(folder, "run", "clicks.py:clicks", *options, output=printed)
        eventually(begun[DAYS[1]].exists, what="the day whose file is there", timeout=120)
        eventually(
            lambda: all(
                f"{day} waits for its input since" in (folder / "printed").read_text() for day in (DAYS[0], DAYS[2])
            ),
            what="it says what the others wait for",
            timeout=120,
        )
        assert not begun[DAYS[0]].exists() and not begun[DAYS[2]].exists(), "a file without its marker is not there"
        arrives(folder, DAYS[2])
        eventually(begun[DAYS[2]].exists, what="the next one", timeout=120)
        assert not begun[DAYS[0]].exists(), "the first one is still waited for, by no other"
        arrives(folder, DAYS[0])
        assert run.wait(timeout=240) == 0, (folder / "printed").read_text()
    said = (folder / "printed").read_text()
    assert f"source 'web': {folder}/data/{DAYS[0]}.done is not there" in " ".join(said.split())
    assert [table(said)[day] for day in DAYS[:3]] == [("finished", number) for number in (28, 29, 30)], said
    assert rows(folder) == wanted(*DAYS[:3])
    assert processes_under(folder) == []


def test_ctrl_c_ends_a_wait_and_the_same_command_takes_it_up(folder: Path) -> None:
    options = ("--param", f"data={folder}/data", "--partition", DAYS[0])
    with (folder / "printed").open("w+") as printed:
        run = started(folder, "run", "clicks.py:clicks", *options, output=printed)
        eventually(lambda: "waits for its input" in (folder / "printed").read_text(), what="it waits", timeout=120)
        assert processes_under(folder) == [], "no driver waits with it"
        run.send_signal(signal.SIGINT)
        assert run.wait(timeout=60) != 0
    assert "Traceback" not in (folder / "printed").read_text()
    arrives(folder, DAYS[0])
    with (folder / "again").open("w+") as printed:
        assert started(folder, "run", "clicks.py:clicks", *options, output=printed).wait(timeout=240) == 0
    assert rows(folder) == wanted(DAYS[0])
