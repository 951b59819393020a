"""`--partition A..B` on a command line: what is refused before anything starts, and what `logio check` says of each day."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.cli.app import main
from airflow_logio.dataflow.pipeline.days import Days, Hours
from airflow_logio.store import open_store
from tests.support.logs import spec

PIPELINE = """
from airflow_logio import Days, Hours, ParquetSource, Pipeline, TableWriter, Count

def made(partition, **options):
    p = Pipeline("clicks", partition=partition, connections=["wh"])
    read = p.source("read", ParquetSource("in/{part}.parquet"))
    p.group("all", read, p.writer("save", TableWriter("wh", "clicks", {"id": "bigint"}, **options), read))
    return p

days = made(Days("part", zone="Europe/Berlin"), on_new_run="append")
hours = made(Hours("part", zone="Europe/Berlin"), on_new_run="append")
simulated = made(Days("part", zone="Europe/Berlin"))
replaced = made(Days("part", zone="Europe/Berlin"), on_new_run="replace")
plain = Pipeline("plain")
plain.sink("count", Count(), plain.source("read", ParquetSource("x.parquet")))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "in").mkdir()
    for name in ("2026-03-28", "2026-03-29", "2026-03-31"):
        pq.write_table(pa.table({"id": [1]}), tmp_path / "in" / f"{name}.parquet")
    (tmp_path / "clicks.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGIO_CONN_WH", f"sqlite:///{tmp_path}/wh.db")
    return tmp_path


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["logio", *arguments])
    with pytest.raises(SystemExit) as found:
        main()
    return int(found.value.code or 0)


def today() -> str:
    return Days("day", zone="Europe/Berlin")._text(datetime.now(UTC))


def this_hour() -> str:
    return Hours("hour")._text(datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1))


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(
    ("name", "partition", "said"),
    [
        ("days", "2026-03-28..{today}", "day {today} of Europe/Berlin ends at .*, which is still to come"),
        ("hours", "{hour}..{hour}", "hour {hour} of Europe/Berlin ends at .*still to come"),
        ("days", "2026-03-31..2026-03-28", r"ends before it begins: write 2026-03-28\.\.2026-03-31"),
        ("hours", "2020-01-01T00Z..2026-01-01T00Z", r"has 52,609 hours, and at most 10,000 are taken at once"),
        ("days", "2026-03-28..", r"partition '' is no day"),
        ("hours", "2026-10-25T00:00..2026-10-25T02:00", r"shows twice, at 2026-10-25T00:00Z and 2026-10-25T01:00Z"),
        ("plain", "2026-03-28..2026-03-31", r"pipeline 'plain' has no partitions"),
    ],
)
def test_a_range_that_cannot_be_is_refused_before_anything_starts(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    name: str,
    partition: str,
    said: str,
) -> None:
    # Not in the names of the tests: processes that collect them on both sides of an hour would have different tests.
    for placeholder, now in (("{today}", today()), ("{hour}", this_hour())):
        partition, said = partition.replace(placeholder, now), said.replace(placeholder, now)
    assert ended(monkeypatch, command, f"clicks.py:{name}", "--partition", partition) == 1
    assert re.search(said, " ".join(capsys.readouterr().err.split()))
    assert not list(folder.rglob("*.db")), "no log, so no run"


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--run-id", "mine"), "a name of its own"), (("--alone", "--at-once", "2"), "are not alone")],
)
def test_options_that_contradict_a_range_are_wrong_usage(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    said: str,
) -> None:
    assert ended(monkeypatch, "run", "clicks.py:days", "--partition", "2026-03-28..2026-03-29", *options) == 2
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not list(folder.rglob("*.db"))


def test_runs_that_must_not_live_at_once_are_not_begun_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("run", "clicks.py:replaced", "--partition", "2026-03-28..2026-03-29", "--at-once", "2")
    assert ended(monkeypatch, *arguments) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "--at-once: two runs of pipeline 'clicks' cannot live at once" in said and "writer 'save'" in said
    assert not list(folder.rglob("*.db"))


def test_check_looks_at_each_day_of_a_range(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, "check", "clicks.py:days", "--partition", "2026-03-28..2026-03-31", "--try", "1") == 1
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line.startswith("2026")] == [f"2026-03-{day}:" for day in (28, 29, 30, 31)]
    (problem,) = (line for line in printed if line.startswith("problem"))
    assert problem.startswith("problem  2026-03-30: source 'read': cannot read") and "2026-03-30.parquet" in problem
    assert printed.count("ok       source 'read'") == 3 == printed.count("tried    read.out: 1 event, 1 record")
    assert printed[-1] == "1 problem found"
    assert ended(monkeypatch, "check", "clicks.py:days", "--partition", "2026-03-28..2026-03-29") == 0


def test_the_list_of_runs_has_a_column_for_partitions_if_there_are_some(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    (folder / ".logio").mkdir()
    log = f"sqlite:///{folder}/.logio/logio.db"
    store = open_store(log, create=True)
    store.start_run(spec("a"))
    assert ended(monkeypatch, "status") == 0
    assert "partition" not in capsys.readouterr().out
    plain = spec("a")
    day = store.start_run(replace(plain, key=replace(plain.key, dag_run_id="c__2026-03-28"), partition="2026-03-28"))
    store.dispose()
    assert ended(monkeypatch, "status") == 0
    heading, newest, oldest = capsys.readouterr().out.splitlines()
    at = heading.index("partition")
    assert newest[at:].startswith("2026-03-28 ") and oldest[at:].startswith("   ")
    assert ended(monkeypatch, "status", day.uid[:8]) == 0
    assert ", for 2026-03-28, uid" in capsys.readouterr().out


def test_a_day_is_simulated(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(monkeypatch, "simulate", "clicks.py:simulated", "--partition", "2026-03-28", "-n", "8") == 0
    capsys.readouterr()
    assert ended(monkeypatch, "simulate", "clicks.py:simulated", "-n", "8") == 1
    assert "this run has none" in " ".join(capsys.readouterr().err.split())
    assert ended(monkeypatch, "simulate", "clicks.py:plain", "--partition", "2026-03-28", "-n", "8") == 1
    assert "'plain' has no partitions" in " ".join(capsys.readouterr().err.split())
