"""ParquetSource: the same events however the file is cut and wherever reading resumes; what it refuses."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_logio.dataflow import ParquetSource, SourceBatch
from airflow_logio.dataflow.arrow_tables import regroup, schema_of
from airflow_logio.dataflow.sources import files
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    OperatorFailed,
    PipelineDefinitionError,
    SourceChanged,
    SourceNotOrdered,
)


def read(source: ParquetSource, offset: int = 0, action: dict[str, Any] | None = None) -> list[SourceBatch]:
    return list(source.read({}, action or source.action({}), offset))


def write(path: Path, groups: int = 10, **columns: Sequence[Any] | pa.Array) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=groups)
    return path


def test_whole_real_file(transactions: Path) -> None:
    source = ParquetSource(str(transactions), ordered_by="transaction_timestamp")
    action = source.action({})
    batches = read(source, action=action)
    assert action["rows"] == 1_469_307
    assert len(batches) == 1_470
    assert [batch.table.num_rows for batch in batches[:-1]] == [1000] * 1469
    assert [batch.next_offset for batch in batches] == [*range(1000, 1_469_001, 1000), 1_469_307]
    whole = pq.read_table(transactions)
    schema = pa.schema(
        [(f.name, pa.timestamp("us") if pa.types.is_timestamp(f.type) else f.type) for f in whole.schema]
    )
    assert pa.concat_tables([batch.table for batch in batches]).equals(whole.cast(schema))
    assert batches[0].table.schema == schema
    for offset in (1000, 65_000, 66_000, 733_000, 1_469_000):
        assert read(source, offset, action) == batches[offset // 1000 :]
    assert read(source, 1_469_307, action) == []


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(0, 60), group=st.integers(1, 25), size=st.integers(1, 20), resume=st.integers(0, 60))
def test_events_do_not_depend_on_row_groups_or_on_where_reading_resumes(
    tmp_path_factory: pytest.TempPathFactory, rows: int, group: int, size: int, resume: int
) -> None:
    path = tmp_path_factory.mktemp("rows") / "a.parquet"
    write(path, group, n=pa.array(range(rows), pa.int64()), t=pa.array([n // 3 for n in range(rows)], pa.int64()))
    source = ParquetSource(str(path), ordered_by="t", records_per_event=size, columns=["n"])
    batches = read(source)
    assert [batch.table["n"].to_pylist() for batch in batches] == [
        list(range(begin, min(begin + size, rows))) for begin in range(0, rows, size)
    ]
    resume = min(resume, len(batches))
    offset = batches[resume - 1].next_offset if resume else 0
    assert read(source, offset) == batches[resume:]
    assert all(batch.table.column_names == ["n"] for batch in batches)


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 7))
def test_regroup_is_independent_of_the_cuts(sizes: list[int], size: int) -> None:
    whole = pa.table({"n": pa.array(range(sum(sizes)), pa.int64())})
    cut = [whole.slice(sum(sizes[:i]), rows) for i, rows in enumerate(sizes)]
    events = list(regroup(cut, size))
    assert [table["n"].to_pylist() for table in events] == [
        list(range(begin, min(begin + size, sum(sizes)))) for begin in range(0, sum(sizes), size)
    ]
    assert all(table["n"].num_chunks == 1 for table in events)


def test_columns_are_in_the_order_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", a=[1], b=[2], c=[3])
    (batch,) = read(ParquetSource(str(path), columns=["c", "a"], ordered_by="b"))
    assert batch.table.to_pydict() == {"c": [3], "a": [1]}
    assert batch.table.column_names == ["c", "a"]


def test_the_action_of_files_without_rows_says_their_schema(tmp_path: Path) -> None:
    """As events would have it; of one that has rows, or whose transform was promised some, the first event says it."""
    kinds = pa.schema(
        [("a", pa.int64()), ("t", pa.timestamp("ms", "UTC")), ("d", pa.dictionary(pa.int32(), pa.string()))]
    )
    for name in ("1", "2"):
        pq.write_table(kinds.empty_table(), tmp_path / f"{name}.parquet")
    wanted = pa.schema([("d", pa.string()), ("t", pa.timestamp("us"))])
    for path in ("1.parquet", "*.parquet"):
        action = json.loads(json.dumps(ParquetSource(str(tmp_path / path), columns=("d", "t")).action({})))
        assert schema_of(action["schema"]) == wanted
    assert "schema" not in ParquetSource(str(tmp_path / "1.parquet"), transform=lambda table: table).action({})
    write(tmp_path / "3.parquet", a=[1])
    assert "schema" not in ParquetSource(str(tmp_path / "*.parquet"), columns=("a",)).action({})


def test_action_is_json_and_says_what_was_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", a=[1, 2], b=[3, 4])
    action = ParquetSource("{folder}/{name}.parquet").action({"folder": str(tmp_path), "name": "a"})
    assert json.loads(json.dumps(action)) == action
    fingerprint = action.pop("fingerprint")
    assert fingerprint.startswith("blake2b:")
    assert action == {"path": str(path), "rows": 2, "size": path.stat().st_size, "columns": ["a", "b"]}


def test_relative_paths_are_recorded_as_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", a=[1])
    monkeypatch.chdir(tmp_path)
    source = ParquetSource("a.parquet")
    action = source.action({})
    monkeypatch.chdir("/")
    assert action["path"] == str(path)
    assert len(read(source, action=action)) == 1


def test_uri(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", a=[1])
    assert read(ParquetSource(path.as_uri()))[0].table.to_pydict() == {"a": [1]}


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", a=[1, 2, 3])
    source = ParquetSource(str(path))
    before = source.action({})
    shutil.copy(path, tmp_path / "copy.parquet")
    write(path, a=[1, 2, 4])
    after = source.action({})
    with pytest.raises(SourceChanged) as caught:
        read(source, action=before)
    for part in (str(path), before["fingerprint"], after["fingerprint"], "start a new run"):
        assert part in str(caught.value)
    shutil.copy(tmp_path / "copy.parquet", path)
    assert len(read(source, action=before)) == 1, "the same content under the same name is the same file"
    with pytest.raises(SourceChanged, match="has 3 rows, but 4 were read before"):
        read(source, 4, before)
    path.unlink()
    with pytest.raises(SourceChanged, match="no longer exists"):
        read(source, action=before)


def numbers(path: Path, first: int, count: int = 200_000) -> bytes:
    """A file of so many rows, as bytes: equal counts give files of equal size and layout."""
    table = pa.table({"n": pa.array(range(first, first + count), pa.int64())})
    pq.write_table(table, path, row_group_size=100_000, compression="none", use_dictionary=False)
    return path.read_bytes()


def overwrite(path: Path, content: bytes) -> None:
    """In place: the file keeps its inode, and a reader that has it open sees the new content."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def unchanging(path: Path) -> ParquetSource:
    return ParquetSource(str(path), records_per_event=1000)


@pytest.mark.parametrize("keeps_its_time", [False, True])
def test_a_file_overwritten_in_place_while_it_is_read_is_noticed_before_its_next_records(
    tmp_path: Path, keeps_its_time: bool
) -> None:
    path = tmp_path / "a.parquet"
    other = numbers(tmp_path / "b.parquet", 1_000_000)
    original = numbers(path, 0)
    source = unchanging(path)
    before = path.stat()
    events = source.read({}, source.action({}), 0)
    seen = [next(events)]
    overwrite(path, other)
    if keeps_its_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SourceChanged, match="is not the file this run began with"):
        seen += events
    assert len(original) == len(other)
    records = pa.concat_tables([event.table for event in seen])["n"].to_pylist()
    assert records == list(range(len(records))), "nothing of the other file was handed over"


def test_a_file_that_changes_behind_its_last_record_does_not_complete_its_read_action(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    numbers(path, 0)
    other = numbers(tmp_path / "b.parquet", 1_000_000)
    source = unchanging(path)
    action = source.action({})
    events = source.read({}, action, 0)
    offset = 0
    while offset < action["rows"]:
        offset = next(events).next_offset
    overwrite(path, other)
    with pytest.raises(SourceChanged):
        next(events)


def test_a_change_that_the_file_system_does_not_show_is_noticed_before_the_read_action_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.OpenFile, "stamp", lambda self: ())  # an object store with times of a second
    path = tmp_path / "a.parquet"
    numbers(path, 0)
    other = numbers(tmp_path / "b.parquet", 1_000_000)
    source = unchanging(path)
    events = source.read({}, source.action({}), 0)
    next(events)
    overwrite(path, other)
    with pytest.raises(SourceChanged):
        list(events)


@pytest.mark.parametrize("how", ["touched", "renamed", "replaced", "removed"])
def test_a_file_whose_content_stays_is_read_to_its_end(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.parquet"
    numbers(path, 0)
    numbers(tmp_path / "b.parquet", 1_000_000)
    source = unchanging(path)
    events = source.read({}, source.action({}), 0)
    seen = [next(events)]
    match how:
        case "touched":
            os.utime(path)
        case "renamed":
            path.rename(tmp_path / "c.parquet")
        case "replaced":
            (tmp_path / "b.parquet").rename(path)
        case "removed":
            path.unlink()
    seen += events
    assert pa.concat_tables([event.table for event in seen])["n"].to_pylist() == list(range(200_000))


def test_a_file_that_is_put_back_has_left_nothing_of_what_it_was_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    original = numbers(path, 0)
    other = numbers(tmp_path / "b.parquet", 1_000_000)
    source = unchanging(path)
    events = source.read({}, source.action({}), 0)
    seen = [next(events)]
    stamp = files.OpenFile.stamp

    def put_back_after_the_next_rows_are_decoded(file: files.OpenFile) -> Any:
        overwrite(path, original)
        monkeypatch.setattr(files.OpenFile, "stamp", stamp)
        return stamp(file)

    overwrite(path, other)
    monkeypatch.setattr(files.OpenFile, "stamp", put_back_after_the_next_rows_are_decoded)
    seen += events
    assert pa.concat_tables([event.table for event in seen])["n"].to_pylist() == list(range(200_000))


def test_a_file_that_is_written_all_the_time_is_unavailable_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    numbers(path, 0)
    source = unchanging(path)
    times = iter(range(10**9))
    monkeypatch.setattr(files.OpenFile, "stamp", lambda self: (next(times),))
    with pytest.raises(ExternalUnavailable, match="written again and again"):
        list(source.read({}, source.action({}), 0))


def test_fingerprint_of_a_large_file_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "WHOLE_UP_TO", 1000)
    monkeypatch.setattr(files, "MIB", 16)
    path = write(tmp_path / "a.parquet", a=list(range(5000)))
    source = ParquetSource(str(path))
    first = source.action({})["fingerprint"]
    assert first.startswith("blake2b-sampled:")
    assert source.action({})["fingerprint"] == first
    write(path, a=[*range(4999), 7])
    assert source.action({})["fingerprint"] != first, "statistics in the footer tell, wherever the samples lie"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, 2, 2, 1], "row 3 (counted from 0) has t = 1 after 2"),
        ([1, 0], "row 1 (counted from 0) has t = 0 after 1"),
        ([1, None, 2], "row 1 (counted from 0) has no 't' (None)"),
        ([1.0, float("nan")], "row 1 (counted from 0) has no 't' (nan)"),
        ([*range(10), 8], "row 10 (counted from 0) has t = 8 after 9"),
        ([*range(70_000), 5], "row 70,000 (counted from 0) has t = 5 after 69999"),
    ],
)
def test_order_is_checked(tmp_path: Path, values: list[Any], words: str) -> None:
    path = write(tmp_path / "a.parquet", 65_536, t=values)
    with pytest.raises(SourceNotOrdered) as caught:
        read(ParquetSource(str(path), ordered_by="t", records_per_event=2))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_order_is_checked_across_batches_and_where_reading_resumes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 3, t=[1, 2, 3, 2, 4, 4])  # row 3 is the first of its row group
    source = ParquetSource(str(path), ordered_by="t", records_per_event=3)
    for offset in (0, 2, 3):
        with pytest.raises(SourceNotOrdered, match=r"row 3 \(counted from 0\) has t = 2 after 3"):
            read(source, offset)
    assert len(read(source, 4)) == 1
    assert len(read(ParquetSource(str(path)))) == 1, "without ordered_by any order is fine"


def test_events_before_the_disorder_are_delivered(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 65_536, t=[*range(65_536), 0])
    source = ParquetSource(str(path), ordered_by="t", records_per_event=1024)
    batches = source.read({}, source.action({}), 0)
    assert [next(batches).next_offset for _ in range(64)][-1] == 65_536
    with pytest.raises(SourceNotOrdered):
        next(batches)


def test_times_are_microseconds_in_utc_without_zone(tmp_path: Path) -> None:
    zoned = pa.array([3_600_000_000_000], pa.timestamp("ns", "Europe/Berlin"))
    path = write(tmp_path / "a.parquet", ns=pa.array([1000], pa.timestamp("ns")), zoned=zoned)
    (batch,) = read(ParquetSource(str(path)))
    assert {str(f.type) for f in batch.table.schema} == {"timestamp[us]"}
    assert batch.table["ns"].cast(pa.int64()).to_pylist() == [1]
    assert batch.table["zoned"].cast(pa.int64()).to_pylist() == [3_600_000_000]


def test_nothing_is_rounded_in_silence(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", ns=pa.array([1001], pa.timestamp("ns")), n=[1])
    with pytest.raises(OperatorFailed, match=r"column\(s\) ns does not fit into microseconds"):
        read(ParquetSource(str(path)))
    assert len(read(ParquetSource(str(path), columns=["n"]))) == 1, "only columns that are read matter"


def test_transform(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 3, a=list(range(7)))
    sizes = []

    def add(table: pa.Table) -> pa.Table:
        sizes.append(table.num_rows)
        return table.append_column("b", table["a"])

    batches = read(ParquetSource(str(path), records_per_event=4, transform=add))
    assert sizes == [4, 3], "once per event, whatever the reader's batches"
    assert batches[0].table.column_names == ["a", "b"]
    with pytest.raises(OperatorFailed, match="made 2 rows of a table of 4 rows"):
        read(ParquetSource(str(path), records_per_event=4, transform=lambda table: table.slice(0, 2)))
    with pytest.raises(OperatorFailed, match="returned NoneType"):
        read(ParquetSource(str(path), transform=lambda table: None))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", price=[1])
    (tmp_path / "text").write_text("no parquet")
    cases: list[tuple[ParquetSource, dict[str, str], str]] = [
        (ParquetSource(str(tmp_path / "none")), {}, "cannot read Parquet file"),
        (ParquetSource(str(tmp_path / "text")), {}, "cannot read Parquet file"),
        (ParquetSource("{file}"), {}, "needs run parameter 'file'"),
        (
            ParquetSource(str(path), columns=["prise"]),
            {},
            "has no column 'prise', only ['price']. Did you mean 'price'?",
        ),
        (ParquetSource(str(path), ordered_by="t"), {}, "has no column 't'"),
    ]
    for source, params, words in cases:
        with pytest.raises(ConfigurationError) as caught:
            source.action(params)
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ParquetSource("a", records_per_event=0), "records_per_event is 0"),
        (lambda: ParquetSource("a", records_per_event=True), "records_per_event is True"),
        (lambda: ParquetSource("a", columns="abc"), "columns is the single string"),
        (lambda: ParquetSource(""), "path is ''"),
        (lambda: ParquetSource("{"), "path '{'"),
        (lambda: ParquetSource("{}"), "parameter name '' is not allowed"),
        (lambda: ParquetSource("{a.b}"), "parameter name 'a.b' is not allowed"),
        (lambda: ParquetSource("{a!r}"), "without format or conversion"),
        (lambda: ParquetSource("{a:>3}"), "without format or conversion"),
    ],
)
def test_refused_at_definition(build: Any, words: str) -> None:
    with pytest.raises(PipelineDefinitionError) as caught:
        build()
    assert words in str(caught.value)


def test_braces_can_be_escaped(tmp_path: Path) -> None:
    path = write(tmp_path / "{a}.parquet", a=[1])
    source = ParquetSource(str(tmp_path) + "/{{a}}.parquet")
    assert source.placeholders() == frozenset()
    assert source.action({})["path"] == str(path)


def parts(folder: Path, *sizes: int) -> list[Path]:
    """Files ``part-0.parquet``, ...; their records count on from one to the next."""
    files, start = [], 0
    for number, size in enumerate(sizes):
        files.append(write(folder / f"part-{number}.parquet", n=range(start, start + size)))
        start += size
    return files


def chain(source: ParquetSource, params: dict[str, Any]) -> list[dict[str, Any]]:
    """The read actions of a run, as the runtime asks for them: the plan stays with the run."""
    first = source.action(params)
    actions = [first]
    while (following := source.next_action(params, {**actions[-1], "plan": first.get("plan", [])})) is not None:
        actions.append(following)
    return actions


@pytest.mark.parametrize("how", ["pattern", "list", "uri"])
def test_several_files_are_one_read_action_each(tmp_path: Path, how: str) -> None:
    files = parts(tmp_path, 7, 0, 5)
    paths: dict[str, Any] = {
        "pattern": "{folder}/part-*.parquet",
        "list": ["{folder}/part-0.parquet", "{folder}/part-1.parquet", "{folder}/part-2.parquet"],
        "uri": "file://{folder}/part-?.parquet",
    }
    source = ParquetSource(paths[how], records_per_event=4)
    assert source.placeholders() == {"folder"}
    actions = chain(source, {"folder": str(tmp_path)})
    assert [action["path"].removeprefix("file://") for action in actions] == [str(file) for file in files]
    assert ([action["rows"] for action in actions], actions[0]["total_rows"]) == ([7, 0, 5], 12)
    found = [[batch.table.column("n").to_pylist() for batch in read(source, action=action)] for action in actions]
    assert found == [[[0, 1, 2, 3], [4, 5, 6]], [], [[7, 8, 9, 10], [11]]]


def test_which_files_there_are_is_fixed_when_the_run_starts(tmp_path: Path) -> None:
    parts(tmp_path, 3, 4)
    source = ParquetSource(f"{tmp_path}/*.parquet")
    first = source.action({})
    write(tmp_path / "part-01-late.parquet", n=[99])
    following = source.next_action({}, first)
    assert following is not None and following["path"].endswith("part-1.parquet")
    assert source.next_action({}, {**following, "plan": first["plan"]}) is None
    json.dumps(first)


def test_a_later_file_that_is_gone_is_said(tmp_path: Path) -> None:
    files = parts(tmp_path, 3, 4)
    source = ParquetSource(f"{tmp_path}/*.parquet")
    first = source.action({})
    files[1].unlink()
    with pytest.raises(SourceChanged, match=r"part-1\.parquet was there when the run was started"):
        source.next_action({}, first)


def test_one_file_has_the_action_it_always_had(tmp_path: Path) -> None:
    (file,) = parts(tmp_path, 3)
    for path in (str(file), f"{tmp_path}/part-?.parquet", [str(file)]):
        assert set(ParquetSource(path).action({})) == {"path", "rows", "size", "fingerprint", "columns"}


def test_a_name_with_brackets_is_a_name_if_there_is_such_a_file(tmp_path: Path) -> None:
    write(tmp_path / "sales[2024].parquet", n=[1])
    assert ParquetSource(str(tmp_path / "sales[2024].parquet")).action({})["rows"] == 1


def test_a_pattern_without_files_and_no_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no file matches .*/\*\.parquet"):
        ParquetSource(f"{tmp_path}/*.parquet").action({})
    with pytest.raises(PipelineDefinitionError, match="no files"):
        ParquetSource([])
