"""`logio run --lookback`: a finished run has the day before computed again, once; what stands in the way is left as it is."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from airflow_logio.cli.app import main
from airflow_logio.cli.common import opened
from airflow_logio.cli.lookback import look_back
from airflow_logio.dataflow.pipeline.days import Days, Hours
from airflow_logio.protocol.states import RunState
from airflow_logio.supervision.lookback import Left

D0, D1, D2 = "2026-03-28", "2026-03-29", "2026-03-30"
ZONE = Days("day", zone="Europe/Berlin")
PIPELINE = """
from airflow_logio import Days, ParquetSource, Pipeline, TableWriter

def made(**options):
    p = Pipeline("clicks", partition=Days("day", zone="Europe/Berlin"), params={"data": str}, connections=["wh"])
    read = p.source("read", ParquetSource("{data}/{day}/*.parquet"))
    columns = {"day": "text", "id": "bigint"}
    p.group("all", read, p.writer("save", TableWriter("wh", "clicks", columns, **options), read))
    return p

owned = made(on_new_run="overwrite", by=("day",))
added = made(on_new_run="append")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for number, day in enumerate((D0, D1, D2)):
        write(tmp_path, day, "first", number)
    (tmp_path / "clicks.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGIO_CONN_LOG", f"sqlite:///{tmp_path}/log.db")
    monkeypatch.setenv("LOGIO_CONN_WH", f"sqlite:///{tmp_path}/wh.db")
    return tmp_path


def write(folder: Path, day: str, name: str, number: int) -> None:
    where = folder / "in" / day
    where.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"day": [day], "id": pa.array([number], pa.int64())}), where / f"{name}.parquet")


def logio(monkeypatch: pytest.MonkeyPatch, folder: Path, day: str, *options: str, name: str = "owned") -> int:
    command = ["logio", "run", f"clicks.py:{name}", "--param", f"data={folder / 'in'}", "--partition", day, *options]
    command += ["--log", "log"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as found:
        main()
    return int(found.value.code or 0)


def found(folder: Path) -> list[tuple[str, int]]:
    engine = sa.create_engine(f"sqlite:///{folder}/wh.db")
    with engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT day, id FROM clicks ORDER BY day, id")).all()
    engine.dispose()
    return [(row[0], row[1]) for row in rows]


def wanted(folder: Path, *days: str) -> list[tuple[str, int]]:
    with duckdb.connect() as connection:
        files = [f"{folder}/in/{day}/*.parquet" for day in days]
        return connection.execute(f"SELECT day, id FROM read_parquet({files}) ORDER BY day, id").fetchall()


def runs_of(folder: Path, day: str) -> list[tuple[RunState, str | None]]:
    with opened(f"sqlite:///{folder}/log.db") as store:
        return [(one.state, one.because) for one in store.list_runs(partition=day)]


def test_a_run_has_the_day_before_computed_again_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, folder, D1) == 0
    write(folder, D1, "late", 100)
    assert logio(monkeypatch, folder, D2, "--lookback") == 0
    assert found(folder) == wanted(folder, D1, D2)
    (newest, _), (before, because) = runs_of(folder, D1)
    assert (newest, before) == (RunState.FINISHED, RunState.SUPERSEDED)
    assert str(because).startswith(f"lookback of {D2}, run ")
    write(folder, D1, "later", 101)
    capsys.readouterr()
    assert logio(monkeypatch, folder, D2, "--lookback") == 0
    assert f"lookback: {D1} was computed again before" in capsys.readouterr().err.replace("\n", " ")
    assert len(runs_of(folder, D1)) == 2 and (D1, 101) not in found(folder)
    assert not runs_of(folder, D0), "the day before does not look back itself"


def test_what_a_command_that_died_has_left_is_begun_by_the_next_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dead behind the transaction that gives the run before up; and its input has gone meanwhile."""
    assert logio(monkeypatch, folder, D1) == 0
    assert logio(monkeypatch, folder, D2) == 0
    with opened(f"sqlite:///{folder}/log.db") as store:
        (run,) = store.list_runs(partition=D2)
        first = look_back(store, run, ZONE.key_of(D1))
        assert not isinstance(first, Left) and first.partition == D1
        second = look_back(store, run, ZONE.key_of(D1))
        assert not isinstance(second, Left) and (second.uid, second.state) == (first.uid, RunState.SUPERSEDED)
    (folder / "in" / D1).rename(folder / "away")
    assert logio(monkeypatch, folder, D2, "--lookback") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"{D2} is finished. {D1}, which it has computed again, is not begun:" in said
    assert found(folder) == [(D1, 1), (D2, 2)], "what was there stays"
    (folder / "away").rename(folder / "in" / D1)
    write(folder, D1, "late", 100)
    assert logio(monkeypatch, folder, D2, "--lookback") == 0
    assert found(folder) == wanted(folder, D1, D2)
    assert [state for state, _ in runs_of(folder, D1)] == [RunState.FINISHED, RunState.SUPERSEDED]


def test_a_day_that_is_not_there_or_not_done_or_only_added_to_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, folder, D2, "--lookback") == 0
    assert f"lookback: no run of {D1} is there" in capsys.readouterr().err
    with opened(f"sqlite:///{folder}/log.db") as store:
        (run,) = store.list_runs(partition=D2)
        assert logio(monkeypatch, folder, D1) == 0
        (before,) = store.list_runs(partition=D1)
        assert store.supersede(before.run_id, because="a person")
        left = look_back(store, run, ZONE.key_of(D1))
        assert isinstance(left, Left) and "was given up, and the next one reads" in left.why


def test_the_day_before_has_its_own_parameters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are elsewhere than those of the day after."""
    assert logio(monkeypatch, folder, D1) == 0
    (folder / "new" / "in").mkdir(parents=True)
    (folder / "in" / D2).rename(folder / "new" / "in" / D2)
    write(folder, D1, "late", 100)
    assert logio(monkeypatch, folder / "new", D2, "--lookback") == 0
    assert found(folder) == [*wanted(folder, D1), (D2, 2)]


def test_rows_are_not_added_a_second_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, folder, D1, name="added") == 0
    assert logio(monkeypatch, folder, D2, "--lookback", name="added") == 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"{D1} is not computed again: rows of save (TableWriter of table 'clicks', on_new_run='append'" in said
    assert found(folder) == [(D1, 1), (D2, 2)]


def test_it_is_of_one_partition(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, folder, f"{D1}..{D2}", "--lookback") == 2
    assert "for the run of one partition" in " ".join(capsys.readouterr().err.split())


def test_the_partition_before_ends_where_one_begins() -> None:
    """Also where days have 23 and 25 hours, and at an hour that the clock shows twice."""
    for day, before in (("2026-03-30", "2026-03-29"), ("2026-10-26", "2026-10-25"), ("2026-01-01", "2025-12-31")):
        key = ZONE.preceding(ZONE.key_of(day))
        assert (key.text, key.end) == (before, ZONE.key_of(day).start)
    hours = Hours("hour", zone="Europe/Berlin")
    assert hours.preceding(hours.key_of("2026-10-25T01Z")).text == "2026-10-25T00Z"
