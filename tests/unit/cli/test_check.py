"""`logio check`: what is wrong is said in seconds, and nothing is changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_logio.cli.app import main
from airflow_logio.launch import spark_submit
from tests.support.warehouse import change, rows_of

PIPELINE = """
import pyarrow as pa
import pyarrow.parquet as pq
from airflow_logio import EveryEvents, ParquetSource, Pipeline, TableWriter, generate

@generate
def summed(rows: pa.Table) -> pa.Table:
    return total(rows)

def total(rows):
    return pa.table({"total": [sum(rows.column(COLUMN).to_pylist())]})

COLUMN = "value"
def made(writer):
    p = Pipeline("mine", params={"path": str}, connections=["wh"])
    read = p.source("read", ParquetSource("{path}", records_per_event=10))
    sums = p.operator("sums", summed, read, window=EveryEvents(2))
    p.group("all", read, sums, p.writer("save", writer, sums))
    return p

mine = made(TableWriter("wh", "sums", {"total": "bigint"}, on_new_run="replace"))
more = made(TableWriter("wh", "fresh", {"total": "bigint", "count": "bigint"}))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"value": list(range(100))}), tmp_path / "in.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGIO_CONN_WH", f"sqlite:///{tmp_path}/wh.db")
    change(f"sqlite:///{tmp_path}/wh.db", "CREATE TABLE sums (total BIGINT)")
    return tmp_path


def check(monkeypatch: pytest.MonkeyPatch, module: str, content: str, *arguments: str) -> int:
    Path(f"{module}.py").write_text(content)
    name = arguments[0]
    monkeypatch.setattr(
        "sys.argv", ["logio", "check", f"{module}.py:{name}", "--param", "path=in.parquet", *arguments[1:]]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_good_pipeline(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(monkeypatch, "good", PIPELINE, "mine", "--try", "3") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "ok       source 'read'",
        "ok       connection 'wh'",
        "ok       writer 'save', table 'sums' of 'wh'",
        "tried    read.out: 3 events, 30 records",
        "tried    save.out: 2 events, 2 records",
        "tried    sums.out: 2 events, 2 records",
        "tried    writer 'save': 2 records would be written",
        "pipeline 'mine' can be run",
    ]
    assert rows_of(f"sqlite:///{folder}/wh.db", "SELECT * FROM sums") == []


def test_an_error_of_the_author(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(monkeypatch, "wrong", PIPELINE.replace('"value"', '"values"', 1), "mine", "--try", "2") == 1
    printed = capsys.readouterr().out
    assert "operator 'sums', Input Set '1'" in printed and "KeyError" in printed
    assert 'wrong.py", line 11, in total' in printed, "the author's frames"
    assert "/airflow_logio/" not in printed
    assert "1 problem found" in printed


PAGES = """
import pyarrow as pa
from airflow_logio import Pipeline, SourceBatch, SourceOperator, TableWriter, stateless

class Pages(SourceOperator):
    replayable = False

    def action(self, params):
        return {"page": 0, "plan": {"pages": 9}}

    def next_action(self, params, previous):
        page = previous["page"] + 1
        return {"page": page} if page < previous["plan"]["pages"] else None

    def read(self, params, action, offset):
        assert "plan" not in action
        yield SourceBatch(pa.table({"value": [action["page"] * 10]}), 1)

def scaled(rows: pa.Table, params) -> pa.Table:
    [value] = rows.column("value").to_pylist()
    return pa.table({"total": [int(params["path"][0] == "i") * 100 // (value - BAD)]})

BAD = -1
def made(quarantine):
    p = Pipeline("pages", params={"path": str}, connections=["wh"])
    read = p.source("read", Pages())
    mapped = p.operator("mapped", stateless(scaled, on_error="quarantine" if quarantine else "fail"), read)
    p.group("all", read, mapped, p.writer("save", TableWriter("wh", "sums", {"total": "bigint"}), mapped))
    return p

plain, kept = made(False), made(True)
"""


def test_sources_of_many_actions_and_functions_that_take_parameters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(monkeypatch, "pages", PAGES, "plain", "--try", "4") == 0
    printed = capsys.readouterr().out
    assert "tried    read.out: 4 events, 4 records" in printed
    assert "tried    writer 'save': 4 records would be written" in printed


FRAMES = """
import pyarrow as pa
from airflow_logio import DatasetWriter, FolderSource, Pipeline, TableWriter, stateless

@stateless
def counted(rows: pa.Table) -> pa.Table:
    return pa.table({"total": [rows.num_rows]})

lake = Pipeline("lake", params={"path": str}, connections=["wh", "lake"])
read = lake.source("read", FolderSource("orders"))
lake.writer("keep", DatasetWriter("lake", "orders"), read)
lake.writer("save", TableWriter("wh", "sums", {"total": "bigint"}), lake.operator("counted", counted, read))
"""


def test_what_needs_spark_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOGIO_CONN_LAKE", str(folder))
    monkeypatch.setenv("LOGIO_PAYLOADS", str(folder / "payloads"))
    (folder / "orders").mkdir()
    assert check(monkeypatch, "frames", FRAMES, "lake", "--try", "2") == 0
    printed = capsys.readouterr().out
    assert "not tried  operator 'read': it needs Spark" in printed
    assert "not tried  operator 'counted'" in printed


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("replace", "has part-0.parquet, which no run of this folder has published"),
        ("error", "is not empty (part-0.parquet), and its writer says on_new_run='error'"),
        ("append", None),
    ],
)
def test_a_folder_that_a_new_run_would_be_refused_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: str, says: str | None
) -> None:
    monkeypatch.setenv("LOGIO_CONN_LAKE", str(folder))
    monkeypatch.setenv("LOGIO_PAYLOADS", str(folder / "payloads"))
    (folder / "orders").mkdir()
    (folder / "out").mkdir()
    (folder / "out" / "part-0.parquet").touch()
    before = sorted(folder.rglob("*"))
    written = FRAMES.replace('DatasetWriter("lake", "orders")', f'DatasetWriter("lake", "out", on_new_run={mode!r})')
    assert check(monkeypatch, f"folders_{mode}", written, "lake") == (0 if says is None else 1)
    printed = capsys.readouterr().out.replace("\n", " ")
    assert ("ok       " if says is None else "problem  ") + "writer 'keep', folder 'out' of 'lake'" in printed
    assert says is None or says in printed
    assert {path for path in before if "out" in path.parts} <= set(folder.rglob("*"))
    monkeypatch.setenv("LOGIO_CONN_LAKE", str(folder / "nowhere"))
    assert check(monkeypatch, f"folders_{mode}", written, "lake") == 1
    assert "make or mount it" in capsys.readouterr().out.replace("\n", " ")


def test_what_a_run_would_quarantine_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(monkeypatch, "spoilt", PAGES.replace("BAD = -1", "BAD = 20"), "kept", "--try", "4") == 1
    printed = capsys.readouterr().out
    assert "problem  the first 4 events, set aside by quarantine: " in printed
    assert "operator 'mapped'" in printed and "ZeroDivisionError" in printed
    assert "tried    writer 'save': 3 records would be written" in printed, "the others go through"
    assert "1 problem found" in printed


def test_records_that_do_not_fit_their_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(monkeypatch, "kinds", PIPELINE, "more", "--try", "2") == 1
    assert "table 'fresh' has columns ['total', 'count'], but the records have ['total']" in capsys.readouterr().out


def test_what_cannot_be_imported_is_said_with_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(monkeypatch, "broken_module", PIPELINE + "\nmine.nothing\n", "mine") == 1
    said = capsys.readouterr().err
    assert "cannot be imported: AttributeError" in said
    assert 'broken_module.py", line ' in said and "mine.nothing" in said


LAKE = """
from airflow_logio import DatasetWriter, FolderSource, Pipeline

lake = Pipeline("lake", params={"path": str}, connections=["wh"])
lake.writer("save", DatasetWriter("wh", "x"), lake.source("read", FolderSource("FOLDER/days")))
"""


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", b'{"value": 1}', "a.json is no Parquet file"),
        ("b.parquet", b"PAR1 cut", "b.parquet is no Parquet file"),
        ("dt=1", None, "folder of partitions is for a SparkSource"),
    ],
)
def test_a_folder_that_spark_would_misread_is_a_problem(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes | None,
    says: str,
) -> None:
    monkeypatch.setenv("LOGIO_CONN_WH", str(folder))
    (folder / "days").mkdir()
    (folder / "days" / "a.parquet").write_bytes((folder / "in.parquet").read_bytes())
    module = f"lake_{name.replace('.', '_').replace('=', '_')}"
    assert check(monkeypatch, module, LAKE.replace("FOLDER", str(folder)), "lake") == 0
    place = folder / "days" / name
    place.mkdir() if content is None else place.write_bytes(content)
    assert check(monkeypatch, module, LAKE.replace("FOLDER", str(folder)), "lake") == 1
    said = " ".join("".join(capsys.readouterr()).split())
    assert "source 'read': " in said and says in said


DAILY = """
from airflow_logio import Count, Days, ParquetSource, Pipeline

p = Pipeline("daily", partition=Days("day", zone="Europe/Berlin"))
p.sink("count", Count(), p.source("read", ParquetSource("dt={day}.parquet")))
plain = Pipeline("plain")
plain.sink("count", Count(), plain.source("read", ParquetSource("in.parquet")))
"""


def test_a_pipeline_of_days_is_checked_for_a_day(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("daily.py").write_text(DAILY)
    Path("in.parquet").rename("dt=2026-03-01.parquet")

    def said(name: str, *arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["logio", "check", f"daily.py:{name}", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), " ".join((told.out + told.err).split())

    assert said("p", "--partition", "2026-03-01")[0] == 0
    code, told = said("p")
    assert code and "one run for each day of Europe/Berlin, and this run has none" in told, told
    code, told = said("p", "--partition", "20260301")
    assert code and "write it as 2026-03-01" in told, told
    code, told = said("p", "--partition", "2126-03-01")
    assert code and "which is still to come" in told, told
    code, told = said("p", "--partition", "2026-03-02")
    assert code and "dt=2026-03-02.parquet" in told, told
    code, told = said("plain", "--partition", "2026-03-01")
    assert code and "pipeline 'plain' has no partitions" in told, told


CLOSING = f"""{PIPELINE}
class Closing(TableWriter):
    closes = True
    outputs = ()

closing = made(Closing("wh", "sums", {{"total": "bigint"}}))
"""


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_writer_that_closes_is_refused_the_file_of_the_log(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before there is a run."""
    Path("closes.py").write_text(CLOSING)
    monkeypatch.setattr(spark_submit, "check", lambda _: None)
    monkeypatch.setenv("LOGIO_CONN_LOG", "sqlite:///" + os.path.abspath("log.db"))
    monkeypatch.setenv("LOGIO_CONN_WH", "sqlite:///" + os.path.abspath("log.db"))
    arguments = [command, "closes.py:closing", "--param", "path=in.parquet", "--log", "log"]
    monkeypatch.setattr("sys.argv", ["logio", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code not in (0, None)
    said = " ".join("".join(capsys.readouterr()).split())
    assert "writer 'save', connection 'wh': " in said and "is the file of the log, too" in said
    if command == "run":
        assert rows_of("sqlite:///log.db", "SELECT * FROM logio_run") == []
