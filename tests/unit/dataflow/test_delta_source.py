"""`DeltaSource`: ranges of versions; what cannot be read exactly is refused before a run, or is a source that changed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from airflow_logio import DeltaSource
from airflow_logio.dataflow.sources.delta_log import LOG, DeltaLog, log_of
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError, SourceChanged

FEED = {"delta.enableChangeDataFeed": "true"}
NIGHT = datetime(2024, 1, 31, 23, 30, tzinfo=UTC)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A table of three versions, of two days."""
    for version in range(3):
        append(tmp_path / "orders", version)
    return tmp_path / "orders"


def append(table: Path, version: int, **more: Any) -> None:
    days = ["x y", "50%"]
    rows = pa.table({"id": pa.array([2 * version, 2 * version + 1], pa.int64()), "day": days, **more})
    write_deltalake(table, rows, mode="append", partition_by=["day"], configuration=FEED, schema_mode="merge")


def commit(table: Path, *actions: Mapping[str, Any]) -> None:
    """The next version, as another program writes it."""
    number = len(list((table / LOG).glob("*.json")))
    text = "\n".join(json.dumps(action) for action in actions)
    (table / LOG / f"{number:020}.json").write_text(text)


def ranges(source: DeltaSource, params: Mapping[str, Any] | None = None) -> list[tuple[Any, Any]]:
    """All of a run that ends, as the log gives them back."""
    asked, found = params or {}, []
    action: Any = json.loads(json.dumps(source.action(asked)))
    plan = action["plan"]
    while action is not None:
        if action["start"] != action["end"]:
            found.append((action["start"], action["end"]))
        action = source.next_action(asked, {**action, "plan": plan})
    return found


def versions(source: DeltaSource, params: Mapping[str, Any] | None = None) -> list[tuple[int | None, int]]:
    return [(start["version"], end["version"]) for start, end in ranges(source, params)]


def read(source: DeltaSource, number: int = 0) -> Callable[[], None]:
    """Asks for a range of a run again, as a recovery does."""
    start, end = ranges(source)[number]
    return lambda: DeltaSource(**source.settings()).observed({}, start, end)


# --- ranges -----------------------------------------------------------------------------------------------------------


def test_each_version_that_brings_rows_counts_and_no_other(orders: Path) -> None:
    DeltaTable(orders).optimize.compact()
    append(orders, 3)
    DeltaTable(orders).optimize.compact()
    commit(orders, {"txn": {"appId": "other", "version": 1}})
    assert versions(DeltaSource(str(orders))) == [(-1, 0), (0, 1), (1, 2), (2, 4)]
    assert versions(DeltaSource(str(orders), versions_per_event=3)) == [(-1, 2), (2, 4)]
    assert versions(DeltaSource("{at}", from_version="{since}"), {"at": str(orders), "since": 2}) == [(1, 2), (2, 4)]
    assert versions(DeltaSource(str(orders), from_version=7)) == []
    for number in range(4):
        read(DeltaSource(str(orders)), number)()


def test_a_snapshot_is_one_range_of_one_version(orders: Path) -> None:
    assert versions(DeltaSource(str(orders), snapshot=True)) == [(None, 2)]
    assert versions(DeltaSource(str(orders), snapshot=True, from_version=1)) == [(None, 1)]
    read(DeltaSource(str(orders), snapshot=True, from_version=1))()
    DeltaTable(orders).delete()
    assert versions(DeltaSource(str(orders), snapshot=True)) == [(None, 3)]


def test_a_run_without_end_waits_and_goes_on_behind_its_snapshot(orders: Path) -> None:
    source = DeltaSource(str(orders), snapshot=True, unbounded=True)
    action = source.action({})
    assert (action["start"]["version"], action["end"]["version"]) == (None, 2)
    waiting = source.next_action({}, action)
    assert waiting == {"start": action["end"], "end": action["end"]}
    append(orders, 3)
    following = source.next_action({}, waiting)
    assert following is not None
    assert (following["start"]["version"], following["end"]["version"]) == (2, 3)
    DeltaTable(orders).delete("id = 1")
    with pytest.raises(SourceChanged, match=r"version 4 of .*orders \(DELETE\) removes or rewrites rows"):
        source.next_action({}, following)


def test_the_files_of_a_range_are_those_of_the_log_under_their_own_names(orders: Path) -> None:
    log = log_of(str(orders))
    first = log.commit(0)
    assert first is not None
    assert {(file.values or {})["day"] for file in first.added} == {"x y", "50%"}
    assert {file.path.partition("/")[0] for file in first.added} == {"day=x%20y", "day=50%25"}
    assert None not in log.sizes([file.path for file in first.added])


# --- what a run would not read is refused before it is started --------------------------------------------------------


def test_rows_that_are_removed_are_read_by_the_change_feed_only(orders: Path) -> None:
    DeltaTable(orders).delete("id = 1")
    with pytest.raises(ConfigurationError, match=r"version 3 .*\(DELETE\) removes.*changes=True.*from_version=4"):
        DeltaSource(str(orders)).action({})
    assert versions(DeltaSource(str(orders), from_version=4)) == []
    assert versions(DeltaSource(str(orders), changes=True, versions_per_event=4)) == [(-1, 3)]


def test_a_feed_that_is_not_on_from_the_beginning_is_refused_with_the_version(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
    DeltaTable(tmp_path / "t").alter.set_table_properties(FEED)
    with pytest.raises(ConfigurationError, match=r"version 0 .* has no change feed"):
        DeltaSource(str(tmp_path / "t"), changes=True).action({})
    assert versions(DeltaSource(str(tmp_path / "t"), changes=True, snapshot=True)) == [(None, 1)]
    assert versions(DeltaSource(str(tmp_path / "t"), changes=True, from_version=1)) == []


def protocol(*features: str) -> dict[str, Any]:
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": list(features),
            "writerFeatures": [*features, "changeDataFeed"],
        }
    }


def added(table: Path, **more: Any) -> dict[str, Any]:
    """An action that names a file of the table."""
    file = next(table.glob("day=*/*.parquet"))
    size = file.stat().st_size
    return {
        "add": {
            "path": str(file.relative_to(table)).replace("%", "%25"),
            "partitionValues": {"day": "x y"},
            "size": size,
            "modificationTime": 0,
            "dataChange": True,
            **more,
        }
    }


VECTOR = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 1,
    "sizeInBytes": 36,
    "cardinality": 1,
}


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("feature", ["typeWidening", "variantType"])
def test_a_feature_that_changes_what_files_say_is_refused_by_name(orders: Path, feature: str, snapshot: bool) -> None:
    commit(orders, protocol(feature))
    with pytest.raises(
        ConfigurationError, match=rf"at version 3: it has the reader feature '{feature}'.*reader='delta'"
    ):
        DeltaSource(str(orders), snapshot=snapshot).action({})


def test_names_that_are_mapped_are_refused_and_the_feature_alone_is_not(orders: Path) -> None:
    commit(orders, protocol("columnMapping", "deletionVectors"))
    append(orders, 3)
    assert versions(DeltaSource(str(orders), versions_per_event=9)) == [(-1, 4)]
    changed = metadata(orders)
    changed["configuration"]["delta.columnMapping.mode"] = "name"
    commit(orders, {"metaData": changed})
    for source in (DeltaSource(str(orders)), DeltaSource(str(orders), changes=True)):
        with pytest.raises(ConfigurationError, match=r"maps the names of its columns|cannot be read"):
            source.action({})


def test_deletion_vectors_are_refused_where_a_file_has_one(orders: Path) -> None:
    commit(orders, protocol("deletionVectors"))
    commit(orders, added(orders, deletionVector=VECTOR))
    with pytest.raises(ConfigurationError, match=r"version 4 .* has a deletion vector.*PURGE"):
        DeltaSource(str(orders)).action({})
    assert versions(DeltaSource(str(orders), from_version=5)) == []


@pytest.mark.parametrize("path", ["file:///elsewhere/x.parquet", "/elsewhere/x.parquet"])
def test_a_shallow_clone_is_refused(orders: Path, path: str) -> None:
    commit(orders, added(orders, path=path))
    with pytest.raises(ConfigurationError, match=r"version 3 .*outside of its folder"):
        DeltaSource(str(orders)).action({})


def test_commits_that_another_program_keeps_are_refused(orders: Path) -> None:
    changed = metadata(orders)
    changed["configuration"]["delta.coordinatedCommits.commitCoordinator-preview"] = "dynamodb"
    commit(orders, {"metaData": changed})
    with pytest.raises(ConfigurationError, match=r"another program keeps its commits"):
        DeltaSource(str(orders)).action({})


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"from_version": 9}, "from_version is 9, and .* has versions up to 2"),
        ({"from_version": 3, "snapshot": True}, "from_version is 3, and .* has versions up to 2"),
        ({"from_version": "{since}"}, r"from_version '\{since\}' is '-1' in this run"),
    ],
)
def test_versions_that_are_not_there_are_refused(orders: Path, more: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        DeltaSource(str(orders), **more).action({"since": "-1"})


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/nowhere/at/all", "there is no Delta table in /nowhere/at/all"),
        ("s3a://bucket/x", "write s3://bucket/path"),
        ("gs://bucket/x", "a DeltaSource reads folders, and buckets"),
        ("s3://bucket/x?secret_key=1", "has a password or a key in it"),
        ("/lake/{x}*", r"has '\*', which its readers would take for a pattern"),
    ],
)
def test_places_that_are_no_table_are_refused(path: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        DeltaSource(path).action({"x": "a"})


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"reader": "delt"}, "Did you mean 'delta'"),
        ({"reader": "delta"}, "Delta's reader does not tell what a version has added"),
        ({"reader": "delta", "snapshot": True, "unbounded": True}, "does not tell what a version has added"),
        ({"from_version": -1}, "give a version of the table, 0 or more"),
        ({"versions_per_event": 0}, "versions_per_event"),
    ],
)
def test_settings_that_mean_nothing_are_refused_when_they_are_written(more: dict[str, Any], what: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=what):
        DeltaSource("/lake/orders", **more)


# --- a range that is not what it was ----------------------------------------------------------------------------------


def test_vacuumed_files_are_named_with_their_versions(orders: Path) -> None:
    again, whole = read(DeltaSource(str(orders), versions_per_event=2)), read(DeltaSource(str(orders), snapshot=True))
    DeltaTable(orders).optimize.compact()
    assert DeltaTable(orders).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(
        SourceChanged, match=r"versions 0 to 1 of .* cannot be read.*4 of 4 files are gone.*: day=.*\.parquet"
    ):
        again()
    with pytest.raises(SourceChanged, match=r"version 2 of .*6 of 6 files are gone"):
        whole()
    with pytest.raises(ConfigurationError, match=r"6 of 6 files are gone"):
        DeltaSource(str(orders)).action({})
    read(DeltaSource(str(orders), snapshot=True))()


def test_a_file_that_was_cut_is_one_that_is_lost(orders: Path) -> None:
    again = read(DeltaSource(str(orders)), 1)
    (file, *_) = [one.path for one in (log_of(str(orders)).commit(1) or pytest.fail()).added]
    (orders / file).write_bytes(b"PAR1")
    with pytest.raises(SourceChanged, match=r"version 1 of .*1 of 2 files are gone, or not what the log says"):
        again()


def test_a_log_that_was_cleaned_up_is_a_source_that_has_changed(orders: Path) -> None:
    source = DeltaSource(str(orders))
    again, plan = read(source, 1), source.action({})
    DeltaTable(orders).create_checkpoint()
    for version in range(2):
        (orders / LOG / f"{version:020}.json").unlink()
    with pytest.raises(SourceChanged, match=r"the commit of version 1 .* is not in its log\. Commits are cleaned up"):
        again()
    with pytest.raises(SourceChanged, match=r"the commit of version 1 .* is not in its log"):
        DeltaSource(str(orders)).next_action({}, plan)
    with pytest.raises(ConfigurationError, match=r"the commit of version 0 .*from_version"):
        DeltaSource(str(orders)).action({})
    assert versions(DeltaSource(str(orders), from_version=2)) == [(1, 2)], "its state is that of the checkpoint"
    read(DeltaSource(str(orders), snapshot=True))()


@pytest.mark.parametrize("newer", [1, 5], ids=["fewer versions", "more versions"])
def test_another_table_in_the_place_is_not_read_as_the_one_that_was(orders: Path, newer: int) -> None:
    source = DeltaSource(str(orders), unbounded=True)
    first = source.action({})
    second = source.next_action({}, first)
    assert second is not None
    shutil.rmtree(orders)
    for version in range(newer):
        append(orders, version)
    for which in (source, DeltaSource(str(orders), unbounded=True)):
        with pytest.raises(
            SourceChanged, match=r"made anew|an older copy was put in its place|another one than was read"
        ):
            which.next_action({}, second)
    for one in (first, second):
        with pytest.raises(SourceChanged, match=r"made anew|is not in its log|another one than was read"):
            DeltaSource(str(orders)).observed({}, one["start"], one["end"])


def test_an_older_copy_that_went_another_way_is_not_read_as_the_table_that_was(orders: Path, tmp_path: Path) -> None:
    shutil.copytree(orders, tmp_path / "kept")
    append(orders, 3)
    again = read(DeltaSource(str(orders)), 3)
    shutil.rmtree(orders)
    shutil.move(tmp_path / "kept", orders)
    with pytest.raises(SourceChanged, match=r"the commit of version 3 .* is not in its log"):
        again()
    append(orders, 7)
    with pytest.raises(SourceChanged, match=r"version 3 .* is another one than was read"):
        again()


def test_a_run_without_end_whose_next_commit_was_cleaned_up_does_not_wait_for_it(orders: Path) -> None:
    source = DeltaSource(str(orders), unbounded=True)
    first = source.action({})
    for version in range(3, 6):
        append(orders, version)
    DeltaTable(orders).create_checkpoint()
    for version in range(4):
        (orders / LOG / f"{version:020}.json").unlink()
    for one in (source, DeltaSource(str(orders), unbounded=True)):
        with pytest.raises(
            SourceChanged, match=r"the commit of version 1 .* is not in its log\. Commits are cleaned up"
        ):
            one.next_action({}, first)


@pytest.mark.parametrize("kept", ["nothing", "a part of a checkpoint"])
def test_a_snapshot_of_a_log_that_does_not_reach_down_to_its_beginning_is_not_half_a_table(
    orders: Path, kept: str
) -> None:
    """delta-rs takes what is left for the table, if one of the commits that are left has its metadata and protocol."""
    commit(orders, {"metaData": metadata(orders)}, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}})
    append(orders, 4)
    source = DeltaSource(str(orders), snapshot=True)
    again = read(source)
    append(orders, 5)
    DeltaTable(orders).create_checkpoint()
    for version in range(3):
        (orders / LOG / f"{version:020}.json").unlink()
    if kept != "nothing":
        (orders / LOG / f"{3:020}.checkpoint.{1:010}.{2:010}.parquet").write_bytes(b"")
    assert pa.table(DeltaTable(orders, version=4).get_add_actions()).num_rows == 2, "of 8"
    with pytest.raises(
        SourceChanged, match=r"version 4 of .* commits before it are not in its log, nor is a checkpoint"
    ):
        again()
    with pytest.raises(ConfigurationError, match=r"version 4 of .* commits before it are not in its log"):
        DeltaSource(str(orders), snapshot=True, from_version=4, unbounded=True).action({})
    read(DeltaSource(str(orders), snapshot=True))()


def test_commits_that_bring_nothing_are_not_asked_for_again_each_second(
    orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, asked = DeltaSource(str(orders), unbounded=True, from_version=2), list[int]()
    action: Any = source.action({})
    for number in range(5):
        commit(orders, {"txn": {"appId": "other", "version": number}})
    real = DeltaLog.commit
    monkeypatch.setattr(DeltaLog, "commit", lambda log, version: asked.append(version) or real(log, version))  # type: ignore[func-returns-value]
    for _ in range(2):
        action = source.next_action({}, action)
        assert action["start"] == action["end"]
        asked.clear()
    source.next_action({}, action)
    assert asked == [7, 8]
    append(orders, 8)
    assert versions_of(source.next_action({}, action)) == (2, 8)
    commits = sorted((orders / LOG).glob("*7.json"))
    commits[-1].write_text(commits[-1].read_text() + "\n")
    with pytest.raises(SourceChanged, match=r"version 7 of .* is another one than was read"):
        source.next_action({}, action)


# --- tables that were made over ---------------------------------------------------------------------------------------


def metadata(table: Path) -> Any:
    """That of the first version."""
    lines = (table / LOG / f"{0:020}.json").read_text().splitlines()
    (found,) = [json.loads(line)["metaData"] for line in lines if line.startswith('{"metaData"')]
    return found


def versions_of(action: Any) -> tuple[int | None, int]:
    return action["start"]["version"], action["end"]["version"]


def test_deleted_rows_that_do_not_fit_into_the_table_that_is_are_refused_by_column(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_deltalake(table, pa.table({"id": pa.array([1], pa.int32()), "x": ["a"]}), configuration=FEED)
    write_deltalake(table, pa.table({"id": pa.array([2]), "x": ["b"]}), mode="overwrite", schema_mode="overwrite")
    assert versions(DeltaSource(str(table), changes=True, versions_per_event=9)) == [(-1, 1)], "whole numbers widen"
    for name, other in (("x", pa.table({"id": [2], "x": [1.5]})), ("id", pa.table({"x": [1.5]}))):
        write_deltalake(table, other, mode="overwrite", schema_mode="overwrite")
        newest = DeltaTable(table).version()
        with pytest.raises(
            ConfigurationError, match=rf"version {newest} .*drops the column '{name}' .*from_version={newest + 1}"
        ):
            DeltaSource(str(table), changes=True, from_version=newest).action({})


def test_an_event_ends_before_a_column_gets_another_type(tmp_path: Path) -> None:
    table, names = tmp_path / "t", pa.table({"id": ["one"]})
    for numbers in (pa.array([1]), pa.array([], pa.int64())):
        write_deltalake(table, pa.table({"id": numbers}), mode="overwrite", configuration=FEED)
    write_deltalake(table, names, mode="overwrite", schema_mode="overwrite")
    write_deltalake(table, names, mode="append")
    assert versions(DeltaSource(str(table), changes=True, versions_per_event=9)) == [(-1, 1), (1, 3)]


def test_a_removed_file_of_which_no_partition_is_told_is_refused(orders: Path) -> None:
    DeltaTable(orders).delete("day = '50%'")
    last = orders / LOG / f"{3:020}.json"
    actions = [json.loads(line) for line in last.read_text().splitlines()]
    for action in actions:
        if "remove" in action:
            del action["remove"]["partitionValues"]
    last.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(
        ConfigurationError, match=r"version 3 .* does not say of which partition it was: begin behind it"
    ):
        DeltaSource(str(orders), changes=True).action({})


@pytest.mark.parametrize(
    ("kind", "value", "snapshot", "what"),
    [
        (
            pa.timestamp("us", "UTC"),
            NIGHT,
            False,
            r"the instant 'p', and its log has '2024-01-31 23:30:00[.0]*' without a zone",
        ),
        (pa.timestamp("us", "UTC"), NIGHT, True, r"partitioned by 'p' of type timestamp_ltz"),
        (pa.binary(), b"\xff", False, r"partitioned by 'p' of type binary"),
        (pa.binary(), b"\xff", True, r"partitioned by 'p' of type binary"),
    ],
)
def test_partitions_whose_values_the_log_does_not_say_are_refused(
    tmp_path: Path, kind: Any, value: Any, snapshot: bool, what: str
) -> None:
    write_deltalake(tmp_path / "t", pa.table({"id": [1], "p": pa.array([value], kind)}), partition_by=["p"])
    with pytest.raises(ConfigurationError, match=what):
        DeltaSource(str(tmp_path / "t"), snapshot=snapshot).action({})


def test_an_instant_with_its_zone_is_read(tmp_path: Path) -> None:
    """As Spark's Delta writes it."""
    rows = pa.table({"id": [1], "p": pa.array([NIGHT], pa.timestamp("us", "UTC"))})
    write_deltalake(tmp_path / "t", rows, partition_by=["p"])
    first = tmp_path / "t" / LOG / f"{0:020}.json"
    first.write_text(re.sub('"p":"2024[^"]*"', '"p":"2024-01-31T23:30:00.000000Z"', first.read_text()))
    assert versions(DeltaSource(str(tmp_path / "t"))) == [(-1, 0)]


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_type_that_is_not_read_is_refused_before_a_run_is_started(orders: Path, snapshot: bool) -> None:
    changed = metadata(orders)
    changed["schemaString"] = changed["schemaString"].replace('"long"', '"interval day"')
    commit(orders, {"metaData": changed})
    with pytest.raises(ConfigurationError, match=r"has the type interval day|cannot be read"):
        DeltaSource(str(orders), snapshot=snapshot).action({})


def test_a_deletion_vector_is_a_file_that_a_change_feed_of_delta_needs(orders: Path) -> None:
    """Z85 of the UUID, and the letters before it as a folder: the example of the format."""
    where = "a/b/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    commit(orders, protocol("deletionVectors"))
    vector = {**VECTOR, "pathOrInlineDv": "a/b" + str(VECTOR["pathOrInlineDv"])[2:]}
    commit(orders, added(orders, deletionVector=vector))
    source = DeltaSource(str(orders), changes=True, reader="delta", from_version=4)
    with pytest.raises(SourceChanged, match=f"version 4 of .*1 of 2 files are gone.*{where}"):
        read(source)()
    (orders / where).parent.mkdir(parents=True)
    (orders / where).write_bytes(b"")
    read(source)()


def test_columns_that_come_later_do_not_change_what_earlier_ranges_have(orders: Path) -> None:
    source = DeltaSource(str(orders))
    append(orders, 3, cents=pa.array([1, 2], pa.int64()))
    assert versions(source) == [(-1, 0), (0, 1), (1, 2), (2, 3)]
    states = [
        json.loads(source._plan_of(log_of(str(orders)), start, end).state.schema)["fields"]
        for start, end in ranges(source)
    ]
    assert [[field["name"] for field in fields] for fields in states] == [["id", "day"]] * 3 + [["id", "day", "cents"]]


def test_the_time_of_a_version_is_that_of_its_commit(orders: Path) -> None:
    commit(orders, added(orders), {"commitInfo": {"timestamp": 5, "inCommitTimestamp": 7, "operation": "WRITE"}})
    found = [log_of(str(orders)).commit(version) for version in (2, 3)]
    told = [json.loads(line) for line in (orders / LOG / f"{2:020}.json").read_text().splitlines()]
    (about,) = (one["commitInfo"] for one in told if "commitInfo" in one)
    assert [one.time for one in found if one] == [about["timestamp"], 7]


def test_features_that_delta_rs_enables_are_those_that_are_read(orders: Path) -> None:
    """A table that had a reader feature added by delta-rs itself."""
    DeltaTable(orders).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    append(orders, 3)
    assert versions(DeltaSource(str(orders), versions_per_event=9)) == [(-1, 4)]
    read(DeltaSource(str(orders), snapshot=True))()
