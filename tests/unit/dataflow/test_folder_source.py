"""`FolderSource`: offsets in a growing folder, and what is not append-only is noticed before anything is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio import FolderSource, ParquetSource
from airflow_logio.dataflow.sources import folder
from airflow_logio.dataflow.sources.source_folders import FoundFile, source_folder
from airflow_logio.errors import ConfigurationError, OperatorFailed, PipelineDefinitionError, SourceChanged
from airflow_logio.protocol.scope_rules import DayAsRead
from airflow_logio.store.records.day_records import days_read_by
from tests.support.logs import spec


def put(where: Path, *names: str, columns: tuple[str, ...] = ("id",)) -> None:
    where.mkdir(parents=True, exist_ok=True)
    for name in names:
        pq.write_table(pa.table({column: [1, 2] for column in columns}), where / name)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    put(tmp_path / "orders", "b.parquet", "a.parquet", "c.parquet", "_SUCCESS", ".d.parquet", "b.parquet._COPYING_")
    return tmp_path / "orders"


def source(orders: Path, **settings: Any) -> FolderSource:
    return FolderSource(str(orders), **settings)


def all_ranges(of: FolderSource) -> list[tuple[int, int, str]]:
    action: dict[str, Any] | None = of.action({})
    plan = {"plan": action["plan"]} if action is not None and "plan" in action else {}
    found = []
    while action is not None and action["start"] != action["end"]:
        found.append((action["start"]["files"], action["end"]["files"], action["end"]["after"]))
        action = of.next_action({}, {**action, **plan})
    return found


def test_files_are_read_by_name_and_hidden_ones_are_not(orders: Path) -> None:
    assert all_ranges(source(orders)) == [(0, 1, "a.parquet"), (1, 2, "b.parquet"), (2, 3, "c.parquet")]
    assert all_ranges(source(orders, files_per_event=2)) == [(0, 2, "b.parquet"), (2, 3, "c.parquet")]


def test_a_bounded_run_ends_with_the_files_that_were_there(orders: Path) -> None:
    one = source(orders, files_per_event=2)
    first = one.action({})
    put(orders, "z.parquet")
    last = one.next_action({}, first)
    assert last is not None
    assert last["end"]["after"] == "c.parquet"
    assert one.next_action({}, {**last, "plan": first["plan"]}) is None


@pytest.mark.parametrize("name", ["a*", "a?", "[a]"])
def test_a_folder_whose_path_is_a_pattern_to_spark_is_refused(tmp_path: Path, name: str) -> None:
    """It would read other folders as well."""
    put(tmp_path / name, "a.parquet")
    with pytest.raises(ConfigurationError, match=r"Spark would take . in the path .* for a pattern: rename the folder"):
        source(tmp_path / name).action({})


def test_an_unbounded_run_waits_and_finds_what_comes(orders: Path) -> None:
    one = source(orders, files_per_event=3, unbounded=True)
    first = one.action({})
    assert "plan" not in first
    waiting = one.next_action({}, first)
    assert waiting is not None
    assert waiting["start"] == waiting["end"]
    put(orders, "d.parquet")
    following = one.next_action({}, waiting)
    assert following is not None
    assert following["end"]["after"] == "d.parquet"


def _late(orders: Path) -> None:
    put(orders, "a2.parquet")


def _removed(orders: Path) -> None:
    (orders / "a.parquet").unlink()


def _resized(orders: Path) -> None:
    put(orders, "a.parquet", columns=("id", "more"))


def _renamed(orders: Path) -> None:
    (orders / "a.parquet").rename(orders / "a1.parquet")


@pytest.mark.parametrize("change", [_late, _removed, _resized])
def test_a_change_behind_what_was_read_is_refused(orders: Path, change: Any) -> None:
    one = source(orders, files_per_event=2)
    action = one.action({})
    change(orders)
    with pytest.raises(SourceChanged, match=r"Files must arrive in the order of their names"):
        one.next_action({}, action)
    with pytest.raises(SourceChanged, match=r"up to 'b.parquet'; it had 2 of"):
        one.frame(None, {}, action["start"], action["end"])


@pytest.mark.parametrize("change", [_late, _removed, _resized])
def test_a_change_ahead_of_what_was_read_is_refused_before_it_is_logged(orders: Path, change: Any) -> None:
    """Below the end of a bounded run, which knows what it will read."""
    (orders / "0.parquet").write_bytes((orders / "a.parquet").read_bytes())
    one = source(orders)
    action = one.action({})
    assert action["end"]["after"] == "0.parquet"
    change(orders)
    with pytest.raises(SourceChanged, match=r"up to 'c.parquet'; it had 4 of"):
        one.next_action({}, action)


def test_days_with_and_without_a_new_column_are_refused_together_and_the_way_out_has_null(orders: Path) -> None:
    put(orders, "b.parquet", columns=("id", "device"))
    with pytest.raises(ConfigurationError, match=r"the files of each partition by themselves .*mergeSchema"):
        source(orders).action({})
    with duckdb.connect() as connection:
        query = f"SELECT count(*), count(device) FROM read_parquet('{orders}/[ab].parquet', union_by_name=true)"
        assert connection.execute(query).fetchone() == (4, 2)


def test_folders_within_are_refused_by_name(orders: Path) -> None:
    """Else a folder that Spark has partitioned would be an empty source."""
    put(orders / "day=1", "a.parquet")
    with pytest.raises(ConfigurationError, match=r"has the folder 'day=1', whose files a FolderSource does not read"):
        source(orders).action({})


def test_files_with_other_columns_are_refused_by_name(orders: Path) -> None:
    one = source(orders, files_per_event=3)
    put(orders, "b.parquet", columns=("id", "price"))
    sentence = r"b\.parquet has the columns id int64, price int64; the first .* a\.parquet, has id"
    with pytest.raises(ConfigurationError, match=sentence):
        one.action({})
    with pytest.raises(OperatorFailed, match=sentence):
        folder._check_columns(source_folder(str(orders)), FoundFile("a.parquet", 0), [FoundFile("b.parquet", 0)])


CUT = b"PAR1 and then nothing"


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("b.json", b'{"id": 1}', r"reads files of Parquet only: read those of '\.json' with a SparkSource"),
        ("b.parquet", b'{"id": 1}', "It may be cut, or still be written"),
        ("b.parquet", CUT, "It may be cut, or still be written"),
        ("b.parquet", b"", "It may be cut, or still be written"),
        ("zz.csv", b"id\n1\n", r"read those of '\.csv' with a SparkSource"),
    ],
)
def test_what_is_no_parquet_file_is_refused_by_name_before_a_run(
    orders: Path, name: str, content: bytes, advice: str
) -> None:
    (orders / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"{name} is no Parquet file that can be read: .*{advice}"):
        source(orders).action({})


def test_nanoseconds_are_refused_before_a_run_with_what_to_do(orders: Path) -> None:
    for name, at in (("a.parquet", pa.timestamp("ns")), ("b.parquet", pa.struct([("t", pa.timestamp("ns", "UTC"))]))):
        (orders / "c.parquet").unlink(missing_ok=True)
        pq.write_table(pa.table({"at": pa.nulls(2, at)}), orders / name)
        with pytest.raises(ConfigurationError, match=rf"{name}, column 'at.*has nanoseconds.*coerce_timestamps='us'"):
            source(orders).action({})
        put(orders, name)


def test_what_spark_reads_as_one_schema_is_one(orders: Path) -> None:
    """As pandas, polars and Arrow write the same columns."""
    for name, texts, zone in (
        ("a.parquet", pa.large_string(), "UTC"),
        ("b.parquet", pa.string_view(), "+00:00"),
        ("c.parquet", pa.dictionary(pa.int8(), pa.string()), "Europe/Berlin"),
        ("d.parquet", pa.string(), "UTC"),
    ):
        words = pa.array(["x", "y"]).cast(texts) if pa.types.is_dictionary(texts) else pa.array(["x", "y"], texts)
        columns = {"text": words, "at": pa.array([1, 2], pa.timestamp("us", zone)), "many": [[1], [2]]}
        pq.write_table(pa.table(columns), orders / name, use_deprecated_int96_timestamps=name == "d.parquet")
    assert len(all_ranges(source(orders))) == 4
    pq.write_table(pa.table({**columns, "at": pa.array([1, 2], pa.timestamp("us"))}), orders / "e.parquet")
    with pytest.raises(ConfigurationError, match=r"e\.parquet has the columns text string, at timestamp\[us\], many"):
        source(orders).action({})


@pytest.mark.parametrize("name", ["a*.parquet", "x=1.parquet", "a:b.parquet"])
def test_names_that_spark_would_misread_are_refused_when_the_run_is_started(orders: Path, name: str) -> None:
    put(orders, name)
    with pytest.raises(ConfigurationError, match=r"Spark would misread the name of file '"):
        source(orders).action({})


def test_no_folder_and_no_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="make or mount it"):
        source(tmp_path / "none").action({})
    (tmp_path / "empty").mkdir()
    assert all_ranges(source(tmp_path / "empty")) == []
    with pytest.raises(PipelineDefinitionError, match="is a URL"):
        FolderSource("gs://bucket/x")


def test_an_offset_says_how_much_lies_before_it(orders: Path) -> None:
    listed = folder.listed_files(source_folder(str(orders)))
    assert [one.name for one in listed] == ["a.parquet", "b.parquet", "c.parquet"]
    assert source(orders).action({})["plan"]["limit"]["bytes"] == sum(one.bytes for one in listed)


# --- what runs have published -----------------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """One run has appended to a day, and another one is about to: its file is there, its receipt is not."""
    files = ["one.keep.000000000002.00000.parquet", "one.keep.000000000003.00000.parquet"]
    put(tmp_path / "lake" / "day=1", *files, "two.keep.000000000002.00000.parquet")
    named = [named_in(tmp_path / "lake", "day=1", name) for name in files]
    receipt(tmp_path / "lake" / "_logio" / "one.keep.000000000003.json", run="one", files=named)
    (tmp_path / "lake" / "_logio" / "runs").mkdir()
    (tmp_path / "lake" / "_logio" / "runs" / "00000000001000000.one.joins").touch()
    return tmp_path / "lake"


def named_in(lake: Path, day: str, name: str) -> dict[str, Any]:
    return {"path": f"{day}/{name}", "bytes": (lake / day / name).stat().st_size, "records": 2}


def receipt(path: Path, **said: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"operator": "keep", "number": 3, **said}))


def replaced(lake: Path, day: str, *files: str) -> None:
    """A run that owns the day has closed it with these files."""
    said = {"ordinal": 4, "line": "0123456789ab", "scope": day, "hides": []}
    where = lake / "_logio" / "days" / day / "000000000004.0123456789ab.four.keep.json"
    receipt(where, run="four", **said, files=[named_in(lake, day, name) for name in files])


def read(of: FolderSource) -> list[str]:
    return [after for _, _, after in all_ranges(of)]


def test_of_a_published_folder_only_what_counts_is_read(lake: Path) -> None:
    one = source(lake / "day=1", published=True)
    assert read(one) == ["one.keep.000000000002.00000.parquet", "one.keep.000000000003.00000.parquet"]
    assert len(read(source(lake / "day=1"))) == 3
    put(lake / "day=1", "four.keep.000000000002.00000.parquet")
    replaced(lake, "day=1", "four.keep.000000000002.00000.parquet")
    assert read(one) == ["four.keep.000000000002.00000.parquet"]
    replaced(lake, "day=1")
    assert read(one) == [], "a day that was closed without a file is empty"


def test_a_day_that_is_replaced_while_it_is_read_parks_the_group(lake: Path) -> None:
    one = source(lake / "day=1", published=True)
    action = one.action({})
    assert action is not None
    put(lake / "day=1", "four.keep.000000000002.00000.parquet")
    replaced(lake, "day=1", "four.keep.000000000002.00000.parquet")
    with pytest.raises(SourceChanged, match="Another run has published there since: start a fresh run"):
        one.next_action({}, action)


def test_a_run_notes_which_run_had_left_the_closed_day_that_it_reads(lake: Path) -> None:
    one = source(lake / "day=1", published=True)
    assert noted(one) == [], "no run owns the day by its value"
    put(lake / "day=1", "four.keep.000000000002.00000.parquet")
    replaced(lake, "day=1", "four.keep.000000000002.00000.parquet")
    assert noted(one) == [("web", (str(lake), "day=1", "four"))]
    replaced(lake, "day=1")
    assert noted(one) == [("web", (str(lake), "day=1", "four"))], "a day without rows is read, too"
    assert noted(source(lake / "day=1")) == [], "who lists the folder reads whatever is there"


def test_a_day_that_is_being_filled_is_not_noted_as_whole(lake: Path) -> None:
    """By a run that has claimed it and closed nothing yet, or that fills it at once: whether it has ended, the log knows."""
    one, days = source(lake / "day=1", published=True), lake / "_logio" / "days" / "day=1"
    days.mkdir(parents=True)
    for ordinal, run in ((5, "five"), (4, "four")):
        (days / f"{ordinal:012d}.0123456789ab.{run}.claim").touch()
    first = replace(spec("g"), actions={"web": one.action({})})
    assert days_read_by(first) == [("web", DayAsRead(str(lake), "day=1", "four", is_whole=False))]
    put(lake / "day=1", "four.keep.000000000002.00000.parquet")
    said = {"ordinal": 4, "line": "0123456789ab", "scope": "day=1", "hides": [], "fills": True}
    files = [named_in(lake, "day=1", "four.keep.000000000002.00000.parquet")]
    receipt(days / "000000000004.0123456789ab.four.keep-000000000002.json", run="four", files=files, **said)
    filled = replace(spec("g"), actions={"web": one.action({})})
    assert days_read_by(filled) == [("web", DayAsRead(str(lake), "day=1", "four", is_whole=False))]


def test_a_day_that_is_replaced_while_a_run_begins_is_noted_as_it_is_read(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, listings = source(lake / "day=1", published=True), list[str]()
    put(lake / "day=1", "four.keep.000000000002.00000.parquet")
    last = FolderSource.last

    def replaced_then(self: FolderSource, params: Mapping[str, Any]) -> dict[str, Any] | None:
        found = last(self, params)
        listings.append("")
        if len(listings) == 1:
            replaced(lake, "day=1", "four.keep.000000000002.00000.parquet")
        return found

    monkeypatch.setattr(FolderSource, "last", replaced_then)
    assert noted(one) == [("web", (str(lake), "day=1", "four"))]
    assert len(listings) == 2


def test_sources_whose_plan_is_of_another_form_read_no_days(tmp_path: Path) -> None:
    """That of several files of Parquet is a list; that of an author's own source may be anything."""
    for name in ("a", "b"):
        pq.write_table(pa.table({"n": [1]}), tmp_path / f"{name}.parquet")
    action = ParquetSource(str(tmp_path / "*.parquet")).action({}) or {}
    assert isinstance(action["plan"], list | tuple)
    for plan in (action["plan"], None, "all", 7):
        assert days_read_by(replace(spec("g"), actions={"read": {**action, "plan": plan}})) == []
    assert days_read_by(replace(spec("g"), actions={"read": {}})) == []


def noted(one: FolderSource) -> list[tuple[str, tuple[str, ...]]]:
    """As the log keeps it with the run, of days that are whole."""
    run = replace(spec("g"), actions={"web": one.action({})})
    assert all(day.is_whole for _, day in days_read_by(run))
    return [(name, day[:3]) for name, day in days_read_by(run)]


def test_a_partition_that_no_run_has_published_is_missing_input(lake: Path) -> None:
    for missing in (lake / "day=2", lake.parent / "none"):
        with pytest.raises(ConfigurationError, match=f"{missing} cannot be read: "):
            source(missing, published=True).first({})
    with pytest.raises(ConfigurationError, match=r"has the folder 'day=1'.*name one partition"):
        source(lake, published=True).first({})


def test_a_receipt_that_is_damaged_is_named(lake: Path) -> None:
    (lake / "_logio" / "one.keep.000000000003.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"one\.keep\.000000000003\.json is no receipt"):
        source(lake / "day=1", published=True).first({})


def test_what_is_published_has_no_order_in_which_to_wait_for_more(orders: Path) -> None:
    with pytest.raises(PipelineDefinitionError, match="leave unbounded out"):
        source(orders, published=True, unbounded=True)


def test_a_source_of_an_earlier_version_is_the_same(orders: Path) -> None:
    assert "published" not in source(orders).settings()
    assert source(orders, published=True).settings()["published"] is True
