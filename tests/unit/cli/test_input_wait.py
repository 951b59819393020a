"""`logio run` and `logio check` where the input of a run is not there: what is said, and that nothing is started."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.cli import input_wait, partitions
from airflow_logio.cli.app import main
from airflow_logio.store import open_store

PIPELINE = """
from airflow_logio import Count, Days, ParquetSource, Pipeline

def made(wait, on_empty="finish"):
    p = Pipeline("clicks", partition=Days("day"))
    p.sink("done", Count(), p.source("web", ParquetSource("in/{day}.parquet"), wait=wait, on_empty=on_empty))
    return p

short, long, needs_rows = made("1s"), made("6h"), made("1s", "fail")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "clicks.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(input_wait, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(partitions, "INPUT_SECONDS", 0.02)
    monkeypatch.setattr(partitions, "LOOK_SECONDS", 0.02)
    return tmp_path


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["logio", *arguments])
    with pytest.raises(SystemExit) as found:
        main()
    return int(found.value.code or 0)


def runs(folder: Path) -> int:
    store = open_store(f"sqlite:///{folder}/.logio/logio.db", application="test")
    try:
        return len(store.list_runs())
    finally:
        store.dispose()


def test_a_wait_that_is_over_names_the_file_and_the_next_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, "run", "clicks.py:short", "--partition", "2026-03-01") != 0
    said = " ".join(capsys.readouterr().err.split())
    file = f"{folder}/in/2026-03-01.parquet"
    assert "The run waits for its input since 20" in said and f"at most: source 'web': {file} is not there" in said
    assert f"the input of source 'web' of pipeline 'clicks' is not there: {file} is not there" in said
    assert (
        "wait='1s' of the source is over. Nothing was started. When it is there, the same command begins the run"
        in said
    )
    assert runs(folder) == 0


def test_days_of_a_range_wait_side_by_side(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, "run", "clicks.py:short", "--partition", "2026-03-01..2026-03-03") == 1
    printed = capsys.readouterr()
    said = " ".join((printed.out + printed.err).split())
    for day in ("2026-03-01", "2026-03-02", "2026-03-03"):
        assert f"{day} waits for its input since" in said and f"{day} refused" in said
    assert said.index("2026-03-03 waits for its input") < said.index("2026-03-01: refused"), "none waits for another"
    assert runs(folder) == 0


def test_a_file_without_rows_fails_where_the_author_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in").mkdir()
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), folder / "in" / "2026-03-01.parquet")
    assert ended(monkeypatch, "run", "clicks.py:needs_rows", "--partition", "2026-03-01") != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "is there, and has no row" in said and "on_empty='fail'" in said
    assert runs(folder) == 0


def test_check_says_what_a_run_would_wait_for_and_waits_for_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, "check", "clicks.py:long", "--partition", "2026-03-01") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"waits for 6 h 0 min at most, a run does: source 'web': {folder}/in/2026-03-01.parquet is not there" in said
    assert ended(monkeypatch, "check", "clicks.py:long", "--partition", "2026-03-01..2026-03-02") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("is not there") == 2
