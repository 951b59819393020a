"""`logio run --partition A..B` from a terminal's point of view: real drivers, all rows of each day compared with its file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.launch.driver_folders import processes_under
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

pytestmark = pytest.mark.acceptance

PIPELINE = """
import pathlib, time
import pyarrow as pa
from airflow_logio import Days, ParquetSource, Pipeline, TableWriter, stateless

@stateless
def marked(rows: pa.Table, params) -> pa.Table:
    here = pathlib.Path(params["data"])
    here.joinpath(f"{params['day']}.begun").touch()
    while here.joinpath("wait").exists():
        time.sleep(0.05)
    if here.joinpath(f"{params['day']}.bad").exists():
        raise ValueError(f"{params['day']} is bad")
    return rows.append_column("day", pa.array([params["day"]] * rows.num_rows, pa.string()))

clicks = Pipeline("clicks", partition=Days("day", zone="Europe/Berlin"), params={"data": str}, connections=["wh"])
web = clicks.source("web", ParquetSource("{data}/{day}.parquet", records_per_event=7))
own = clicks.operator("marked", marked, web)
columns = {"id": "bigint", "day": "text"}
save = clicks.writer("save", TableWriter("wh", "clicks", columns, primary_key=("day", "id"), on_new_run="append"), own)
clicks.group("all", web, own, save)
"""
DAYS = [f"2026-03-{day}" for day in (28, 29, 30, 31)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clicks.py").write_text(PIPELINE)
    (tmp_path / "data").mkdir()
    for day in DAYS:
        write(tmp_path, day)
    return tmp_path


def ids_of(day: str) -> list[int]:
    return list(range(int(day[-2:])))


def write(folder: Path, day: str) -> None:
    pq.write_table(pa.table({"id": ids_of(day)}), folder / "data" / f"{day}.parquet")


def wanted(*days: str) -> list[tuple[str, int]]:
    return [(day, number) for day in days for number in ids_of(day)]


def rows(folder: Path) -> list[tuple[str, int]]:
    found = rows_of(f"sqlite:///{folder}/wh.db", "SELECT day, id FROM clicks ORDER BY day, id")
    return [(row[0], row[1]) for row in found]


def started(folder: Path, *arguments: str, output: int | IO[str] = subprocess.PIPE) -> subprocess.Popen[str]:
    names = {"LOGIO_CONN_WH": f"sqlite:///{folder}/wh.db", "PYTHONPATH": str(Path(__file__).parents[2])}
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_URL")} | names
    command = [sys.executable, "-m", "airflow_logio.cli", *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True)


def of_range(folder: Path, days: str, *options: str) -> subprocess.Popen[str]:
    return started(folder, "run", "clicks.py:clicks", "--param", f"data={folder}/data", "--partition", days, *options)


def table(printed: str) -> dict[str, tuple[str, int | None]]:
    """Day → state, and the records that it has read."""
    lines = printed[printed.index("day         state") :].splitlines()[1:]
    found = (re.match(r"(2026-\d\d-\d\d)  ([a-z ]+?)(?:  +([\d,]+) +[\d.]+  \w{8})?\s*$", line) for line in lines)
    return {one[1]: (one[2].strip(), None if one[3] is None else int(one[3])) for one in found if one is not None}


def test_a_red_day_stops_no_other_and_the_same_command_runs_the_rest(folder: Path) -> None:
    (folder / "data" / "2026-03-29.bad").touch()
    (folder / "data" / "2026-03-30.parquet").unlink()
    first = of_range(folder, f"{DAYS[0]}..{DAYS[-1]}", "--at-once", "3", "--json", "summary.json")
    printed, _ = first.communicate(timeout=240)
    assert first.returncode == 1, printed
    told = {day: state for day, (state, _) in table(printed).items()}
    assert told == dict(zip(DAYS, ("finished", "parked", "refused", "finished"), strict=True)), printed
    assert [table(printed)[day][1] for day in (DAYS[0], DAYS[3])] == [28, 31]
    assert "ValueError: 2026-03-29 is bad" in printed and "2026-03-30 refused: source 'web': cannot read" in printed
    assert "2 of 4 days finished; the same command begins or resumes the others" in printed
    assert rows(folder) == wanted(DAYS[0], DAYS[3])
    summary = json.loads((folder / "summary.json").read_text())["partitions"]
    assert [one["state"] for one in summary] == ["finished", "parked", "refused", "finished"]
    assert [one["summary"] and one["summary"]["run_id"] for one in summary] == [
        "clicks__2026-03-28",
        "clicks__2026-03-29",
        None,
        "clicks__2026-03-31",
    ]
    assert processes_under(folder) == []

    write(folder, "2026-03-30")
    (folder / "data" / "2026-03-29.bad").unlink()
    days = f"{DAYS[0]}..{DAYS[-1]}"
    again = of_range(folder, days)
    printed, _ = again.communicate(timeout=240)
    assert again.returncode == 1, "a parked group waits for a person"
    told = {day: state for day, (state, _) in table(printed).items()}
    assert told == dict(zip(DAYS, ("finished before", "parked", "finished", "finished before"), strict=True)), printed
    assert f"3 of 4 days finished\n1 wait for you: fix the cause, then `logio retry --partition {days}`" in printed
    retried = started(folder, "retry", "--partition", days, "--code", "new")
    printed, _ = retried.communicate(timeout=240)
    assert retried.returncode == 0, printed
    assert "3 runs of 2026-03-28..2026-03-31 finished before" in printed and "1 of 1 partition finished" in printed
    assert "group all of 2026-03-29: " in printed and "2026-03-29: finished" in printed
    last = of_range(folder, f"{DAYS[0]}..{DAYS[-1]}")
    printed, _ = last.communicate(timeout=240)
    assert last.returncode == 0, printed
    assert rows(folder) == wanted(*DAYS)
    assert processes_under(folder) == []


def test_ctrl_c_halts_all_days_and_the_same_command_resumes_them(folder: Path) -> None:
    (folder / "data" / "wait").touch()
    run = of_range(folder, f"{DAYS[0]}..{DAYS[-1]}", "--at-once", "2")
    begun = [folder / "data" / f"{day}.begun" for day in DAYS]
    eventually(lambda: begun[0].exists() and begun[1].exists(), what="two days", timeout=120)
    run.send_signal(signal.SIGINT)
    printed, _ = run.communicate(timeout=120)
    assert run.returncode == 130, printed
    told = {day: state for day, (state, _) in table(printed).items()}
    assert told == dict(zip(DAYS, ("halted", "halted", "not begun", "not begun"), strict=True)), printed
    assert not begun[2].exists() and not begun[3].exists()
    assert processes_under(folder) == []
    (folder / "data" / "wait").unlink()
    again = of_range(folder, f"{DAYS[0]}..{DAYS[-1]}", "--at-once", "4")
    printed, _ = again.communicate(timeout=240)
    assert again.returncode == 0, printed
    assert [table(printed)[day] for day in DAYS] == [("finished", number) for number in (28, 29, 30, 31)], printed
    assert "4 of 4 days finished" in printed
    assert rows(folder) == wanted(*DAYS)
    assert processes_under(folder) == []
