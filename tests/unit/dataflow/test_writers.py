"""Writers as authors declare them, and the Parquet files of the ready-made one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import date
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyarrow._fs import _MockFileSystem

from airflow_logio.dataflow import (
    CheckableWriter,
    ConditionalWriter,
    Count,
    DatasetWriter,
    Days,
    FunctionRead,
    Hours,
    IdempotentWriter,
    InputEvent,
    ManualOperator,
    Marker,
    Operator,
    ParquetSource,
    ParquetWriter,
    Pipeline,
    PortTable,
    StatelessOperator,
    TableWriter,
    WriteAction,
)
from airflow_logio.dataflow.writers.owned_days import OwnedDay
from airflow_logio.dataflow.writers.parquet_writer import _Place
from airflow_logio.dataflow.writers.run_shapes import writer_shapes
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, OperatorFailed, PipelineDefinitionError
from tests.unit.dataflow.conftest import FakeExternal

ROWS = pa.table({"a": [1, 2], "b": ["x", None]})


def action(number: int = 1, *, token: int = 1, table: pa.Table = ROWS, run: str = "run1") -> WriteAction:
    return WriteAction(run, "save", "lake", number, token, table, {"action": "insert"})


# --- declarations -------------------------------------------------------------------------------------------------------


class Sender(IdempotentWriter[None]):
    def connect(self, url: str) -> AbstractContextManager[None]:
        return nullcontext()

    def write(self, client: None, action: WriteAction) -> None:
        pass


class Even(Sender):
    """Writes the even numbers only."""

    def records(self, event: InputEvent) -> pa.Table | None:
        table = event.table.filter([number % 2 == 0 for number in event.table.column("a").to_pylist()])
        return table if table.num_rows else None


class Forgetful(Sender):
    def __init__(self) -> None:
        pass


class Boastful(Sender):
    write_guarantee = "conditional"


class Several(Sender):
    def writes(self) -> dict[str, str | None]:
        return {"lake": "idempotent", "crm": "idempotent"}


class Bare(StatelessOperator):
    def writes(self) -> dict[str, str | None]:
        return {"lake": "idempotent"}

    def process(self, event: InputEvent, external: Any) -> Sequence[PortTable]:
        return ()


def with_attribute(name: str, value: Any) -> Sender:
    sender = Sender("lake")
    setattr(sender, name, value)
    return sender


def pipeline() -> Pipeline:
    built = Pipeline("p", connections=["lake", "crm"])
    built.source("read", ParquetSource("/x.parquet"))
    return built


@pytest.mark.parametrize(
    ("add", "words"),
    [
        (
            lambda p: p.writer("w", Forgetful(), "read"),
            "writer 'w' has no connection; call super().__init__(connection)",
        ),
        (lambda p: p.writer("w", Boastful("lake"), "read"), "are conditional, but Boastful is no ConditionalWriter"),
        (
            lambda p: p.writer("w", Several("lake"), "read"),
            "writer 'w' overrides writes(); a writer has one connection",
        ),
        (
            lambda p: p.operator("w", Bare(), "read"),
            "Bare is no ConditionalWriter, CheckableWriter or IdempotentWriter",
        ),
        (lambda p: p.writer("w", with_attribute("actions_at_once", 0), "read"), "actions_at_once of writer 'w' is 0"),
        (lambda p: p.writer("w", with_attribute("replay_seconds", -1), "read"), "replay_seconds of writer 'w' is -1"),
    ],
)
def test_writers_refused_at_definition(add: Callable[[Pipeline], Any], words: str) -> None:
    with pytest.raises(PipelineDefinitionError) as caught:
        add(pipeline())
    assert words in str(caught.value)


@pytest.mark.parametrize("base", [ConditionalWriter, CheckableWriter, IdempotentWriter])
def test_a_writer_that_cannot_do_what_its_guarantee_needs_cannot_be_made(base: Any) -> None:
    class Half(base):
        def connect(self, url: str) -> AbstractContextManager[None]:
            return nullcontext()

    with pytest.raises(TypeError, match="abstract method"):
        Half("lake")


def test_an_event_whose_records_are_none_of_the_writers_business_is_passed_on() -> None:
    written: list[pa.Table] = []

    class External:
        params: Mapping[str, Any] = MappingProxyType({})

        def read(self, read: Any, keys: Any = None) -> pa.Table:
            raise AssertionError

        def write(self, connection: str, table: pa.Table) -> None:
            written.append(table)

    for values in ([1, 3], [1, 2]):
        event = InputEvent("in", 1, pa.table({"a": values}))
        assert list(Even("lake").process(event, External())) == [("out", event.table)]
    assert [table.column("a").to_pylist() for table in written] == [[2]]


def test_a_lineage_column_has_the_event_id_with_each_row() -> None:
    rows = pa.table({"b": ["x", "y"], "a": [1, 2]})
    external = FakeExternal()
    writer = TableWriter("wh", "t", {"a": "bigint", "b": "text"}, lineage_column="logio_event")
    assert list(writer.process(InputEvent("in", 4711, rows), external)) == [("out", rows)], "sent on unchanged"
    written = pa.table({"a": [1, 2], "b": ["x", "y"], "logio_event": [4711, 4711]})
    assert external.writes == [("wh", written)]
    existing = TableWriter("wh", "t", lineage_column="logio_event")
    assert existing.records(InputEvent("in", 1, rows)).column_names == ["b", "a", "logio_event"]
    with pytest.raises(OperatorFailed, match="have a column 'logio_event' themselves"):
        writer.process(InputEvent("in", 1, written), external).__iter__().__next__()
    with pytest.raises(PipelineDefinitionError, match="'a' is declared as a column, too"):
        TableWriter("wh", "t", {"a": "bigint"}, lineage_column="a")


def test_settings_without_a_lineage_column_are_what_they_were() -> None:
    """Else a run that an earlier version began could not be continued."""
    plain = TableWriter("wh", "t", {"a": "bigint"}).settings()
    assert sorted(plain) == ["columns", "connection", "on_new_run", "primary_key", "sends_after_writes", "table"]
    assert TableWriter("wh", "t", {"a": "bigint"}, lineage_column="e").settings()["lineage_column"] == "e"


def test_keys_name_actions_and_markers() -> None:
    assert action(7).key == "run1/save/lake/0/7"
    assert not action(7).is_opening
    assert WriteAction("run1", "save", "lake", 1, 1, pa.table({}), {"action": "begin"}).is_opening
    assert Marker("run1", "save", "lake", 0, 3, 1.0).key == "run1/save/lake/0"
    assert action(7, token=1) == action(7, token=1, table=pa.table({}))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: FunctionRead("Crm", print), "connection name 'Crm' is not allowed"),
        (lambda: FunctionRead("crm", "print"), "fetch is 'print'; give a function of URL and keys"),  # type: ignore[arg-type]
        (lambda: FunctionRead("crm", print, {"when": {1, 2}}), "give a mapping of texts to JSON values"),
        (lambda: FunctionRead("crm", print, key="a;b"), "column name 'a;b' is not allowed"),
        (lambda: ParquetWriter("lake", "/etc"), "folder '/etc' is not allowed"),
        (lambda: ParquetWriter("lake", "a/../../b"), "folder 'a/../../b' is not allowed"),
        (lambda: ParquetWriter("lake", "s3://bucket"), "folder 's3://bucket' is not allowed"),
        (lambda: ParquetWriter("lake", compression="zst"), "compression 'zst' is none of"),
        (lambda: ParquetWriter("lake", compression="zst"), "Did you mean 'zstd'?"),
        (lambda: ParquetWriter("lake", schema={"a": "int64"}), "give an Arrow schema"),
        (lambda: ParquetWriter("lake", schema=pa.schema([])), "name at least one, and none twice"),
    ],
)
def test_reads_and_files_refused_at_definition(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(PipelineDefinitionError) as caught:
        build()
    assert words in str(caught.value)


def test_a_read_by_a_function_is_part_of_the_fingerprint() -> None:
    def rates(url: str, keys: Any) -> pa.Table:
        return ROWS

    described = FunctionRead("crm", rates, {"path": "/rates"}, key="a").describe()
    assert described == {
        "connection": "crm",
        "function": "test_a_read_by_a_function_is_part_of_the_fingerprint.<locals>.rates",
        "key": "a",
        "description": {"path": "/rates"},
    }


# --- what other runs see of them ----------------------------------------------------------------------------------------


class Side(Sender):
    """Its runs do not disturb each other."""

    runs_together = True


class ByHand(ManualOperator):
    inputs = ("in",)
    outputs = ()

    def writes(self) -> dict[str, str | None]:
        return {"lake": "idempotent", "crm": "checkable"}

    def run(self, logio: Any) -> None:
        raise NotImplementedError


ALWAYS, BY_PARTITION, NEVER = "always", "by partition", "never"
REPLACED, ADDED = "replaced", "added"
BY_DAY = {"day": "2026-03-01", "day_start": "2026-03-01T00:00:00+00:00", "region": "north"}
LAKE = "lake_id"


@pytest.mark.parametrize(
    ("writer", "place", "together", "repeats"),
    [
        (TableWriter("lake", "sales"), (LAKE, "sales"), NEVER, ADDED),
        (TableWriter("lake", "A.Sales", on_new_run="replace"), (LAKE, "sales", "a"), NEVER, ADDED),
        (TableWriter("lake", "sales", on_new_run="append"), (LAKE, "sales"), ALWAYS, ADDED),
        (TableWriter("lake", "sales", None, ("id",), mode="upsert", version="at"), (LAKE, "sales"), ALWAYS, ADDED),
        (
            TableWriter("lake", "sales", None, ("id",), "replace", mode="upsert", version="at"),
            (LAKE, "sales"),
            NEVER,
            ADDED,
        ),
        (TableWriter("lake", "sales", None, ("id",), mode="upsert"), (LAKE, "sales"), NEVER, ADDED),
        (TableWriter("lake", "sales", on_new_run="overwrite", by=("day",)), (LAKE, "sales"), BY_PARTITION, REPLACED),
        (
            TableWriter("lake", "sales", on_new_run="supersede").in_pipeline_by("day"),
            (LAKE, "sales"),
            BY_PARTITION,
            REPLACED,
        ),
        (DatasetWriter("lake"), (LAKE,), ALWAYS, ADDED),
        (DatasetWriter("lake", "a/{region}"), (LAKE, "a", "north"), ALWAYS, ADDED),
        (DatasetWriter("lake", "a/dt={day}"), (LAKE, "a", "dt=2026-03-01"), ALWAYS, ADDED),
        (DatasetWriter("lake", "a", on_new_run="error"), (LAKE, "a"), NEVER, ADDED),
        (DatasetWriter("lake", "a", on_new_run="replace"), (LAKE, "a"), NEVER, ADDED),
        (DatasetWriter("lake", "{region}", on_new_run="replace"), (LAKE, "north"), NEVER, ADDED),
        (DatasetWriter("lake", "dt={day}", on_new_run="replace"), (LAKE, "dt=2026-03-01"), NEVER, REPLACED),
        (DatasetWriter("lake", "dt={day}", on_new_run="error"), (LAKE, "dt=2026-03-01"), NEVER, ADDED),
        (DatasetWriter("lake", "a", partition_by=["x"], on_new_run="overwrite"), (LAKE, "a"), NEVER, ADDED),
        (
            DatasetWriter("lake", "{day}", partition_by=["x"], on_new_run="overwrite"),
            (LAKE, "2026-03-01"),
            NEVER,
            ADDED,
        ),
        (ParquetWriter("lake"), (LAKE,), ALWAYS, ADDED),
        (ParquetWriter("lake", "dt={day}"), (LAKE, "dt=2026-03-01"), ALWAYS, ADDED),
        (Sender("lake"), (LAKE,), NEVER, ADDED),
        (Side("lake"), (LAKE,), ALWAYS, ADDED),
    ],
)
def test_what_other_runs_see_of_a_writer(writer: Operator, place: tuple[str, ...], together: str, repeats: str) -> None:
    own = {"save": writer.for_run(BY_DAY)}
    (shape,) = writer_shapes(own, {"lake": LAKE}, ("day", "day_start", "day_end"))
    assert (shape.writer, shape.place, shape.together, shape.repeats) == ("save", place, together, repeats)
    assert shape.is_of_author is isinstance(writer, Sender)
    assert type(writer).__name__ in shape.what and "'lake_id'" in shape.what
    assert "runs_together" not in writer.settings(), "runs of earlier versions resume"
    assert together == BY_PARTITION or "by" not in writer.settings(), "runs of earlier versions resume"


def test_what_writes_by_hand_is_seen_at_each_of_its_connections() -> None:
    shapes = writer_shapes({"count": Count(), "hand": ByHand()}, {"lake": "a", "crm": "b"})
    assert [(one.writer, one.place, str(one.together)) for one in shapes] == [
        ("hand", ("a",), NEVER),
        ("hand", ("b",), NEVER),
    ]


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        (type("Unsure", (Sender,), {"runs_together": "yes"})("lake"), "runs_together of operator 'save' is 'yes'"),
        (type("Nothing", (Count,), {"runs_together": True})(), "'save' declares runs_together=True, and has no write"),
        (type("Ours", (TableWriter,), {"runs_together": True})("lake", "t"), "Ours says by on_new_run"),
    ],
)
def test_a_word_on_other_runs_is_checked(operator: Operator, words: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=words):
        pipeline().operator("save", operator, "read")


# --- Parquet files ------------------------------------------------------------------------------------------------------


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_file_per_action_below_the_folder_of_its_run(prefix: str, tmp_path: Path) -> None:
    writer = ParquetWriter("lake", "sales/hourly")
    with writer.connect(f"{prefix}{tmp_path}") as place:
        writer.write_group(place, [action(1), action(2, table=ROWS.slice(0, 0))])
        writer.write(place, action(1, run="run2"))
    found = ["run1/save/000000000001.parquet", "run1/save/000000000002.parquet", "run2/save/000000000001.parquet"]
    assert files(tmp_path / "sales" / "hourly") == found
    assert pq.read_table(tmp_path / "sales/hourly" / found[0]) == ROWS
    assert pq.read_table(tmp_path / "sales/hourly" / found[1]) == ROWS.slice(0, 0)


def test_writing_an_action_again_leaves_the_same_files(tmp_path: Path) -> None:
    writer = ParquetWriter("lake")
    for token in (1, 2, 1):
        with writer.connect(str(tmp_path)) as place:
            writer.write_group(place, [action(number, token=token) for number in (1, 2)])
    assert files(tmp_path) == ["run1/save/000000000001.parquet", "run1/save/000000000002.parquet"]
    assert pq.read_table(tmp_path / "run1" / "save") == pa.concat_tables([ROWS, ROWS])


def test_what_earlier_drivers_left_half_written_is_removed_and_what_later_ones_write_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "run1" / "save"
    folder.mkdir(parents=True)
    for name in (".000000000009.parquet.1.tmp", ".000000000009.parquet.3.tmp", "notes.tmp"):
        (folder / name).write_bytes(b"half")
    writer = ParquetWriter("lake")
    with writer.connect(str(tmp_path)) as place:
        writer.write(place, action(1, token=2))
    assert files(folder) == [".000000000009.parquet.3.tmp", "000000000001.parquet", "notes.tmp"]


def test_a_driver_that_still_writes_a_file_does_not_touch_its_successors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor writes and names the whole file while the one it replaced stands in the middle of its own, whose bytes
    are others: of another version of Arrow, for example."""
    whole = pq.write_table
    before, writer = ParquetWriter("lake", compression="none"), ParquetWriter("lake")
    target = tmp_path / "run1" / "save" / "000000000001.parquet"
    seen: list[bytes] = []

    def halfway(table: pa.Table, stream: Any, **settings: Any) -> None:
        if settings["compression"] != "none":
            whole(table, stream, **settings)
            return
        content = BytesIO()
        whole(table, content, **settings)
        stream.write(content.getvalue()[:7])
        with writer.connect(str(tmp_path)) as place:
            writer.write(place, action(1, token=2))
        seen.append(target.read_bytes())
        stream.write(content.getvalue()[7:])
        stream.flush()
        assert target.read_bytes() == seen[0]

    monkeypatch.setattr(pq, "write_table", halfway)
    with before.connect(str(tmp_path)) as place:
        swept = r"\.000000000001\.parquet\.1\.tmp was removed before it had its name: by a later driver of this group"
        with pytest.raises(ExternalUnavailable, match=swept):
            before.write(place, action(1, token=1))
        assert pq.read_table(target) == ROWS and len(seen) == 1
        monkeypatch.setattr(pq, "write_table", whole)
        before.write(place, action(1, token=1))  # as after a program that cleans folders up
    assert pq.read_table(target) == ROWS and files(tmp_path) == ["run1/save/000000000001.parquet"]


def test_a_folder_that_is_removed_while_a_file_is_written_is_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, writer = pq.write_table, ParquetWriter("lake")

    def removed(table: pa.Table, stream: Any, **settings: Any) -> None:
        whole(table, stream, **settings)
        shutil.rmtree(tmp_path / "run1")

    monkeypatch.setattr(pq, "write_table", removed)
    with writer.connect(str(tmp_path)) as place, pytest.raises(ConfigurationError, match="Make the folder"):
        writer.write(place, action(1))


SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])


def opening(writer: ParquetWriter, token: int = 1) -> WriteAction:
    description = {**(writer.opening() or {}), "action": "begin"}
    return WriteAction("run1", "save", "lake", 1, token, pa.table({}), json.loads(json.dumps(description)))


def test_a_run_begins_with_a_file_of_the_declared_schema_which_zombies_write_alike(tmp_path: Path) -> None:
    writer = ParquetWriter("lake", schema=SCHEMA)
    for token in (1, 2, 1):
        with writer.connect(str(tmp_path)) as place:
            writer.write_group(place, [opening(writer, token), action(2, token=token)])
    assert files(tmp_path) == ["run1/save/000000000001.parquet", "run1/save/000000000002.parquet"]
    assert pq.read_table(tmp_path / "run1/save/000000000001.parquet") == SCHEMA.empty_table()
    assert pq.read_table(tmp_path / "run1/save") == ROWS


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pa.table({"a": [1], "c": ["x"]}), r"has columns \['a', 'b'\], but the records have \['a', 'c'\]"),
        (pa.table({"a": [1], "b": [2]}), "column 'b' of the records is int64, but string in the schema"),
    ],
)
def test_records_of_another_schema_than_declared_are_refused(table: pa.Table, words: str) -> None:
    with pytest.raises(OperatorFailed, match=words):
        ParquetWriter("lake", schema=SCHEMA).records(InputEvent("in", 1, table))


def test_records_get_the_declared_order_of_columns() -> None:
    records = ParquetWriter("lake", schema=SCHEMA).records(InputEvent("in", 1, ROWS.select(["b", "a"])))
    assert records == ROWS


def test_a_declared_schema_is_part_of_the_fingerprint_and_none_is_as_before() -> None:
    assert ParquetWriter("lake", schema=SCHEMA).settings()["schema"] == [["a", "int64"], ["b", "string"]]
    assert "schema" not in ParquetWriter("lake").settings()


def test_a_file_that_cannot_be_written_is_never_seen_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any, **_settings: Any) -> None:
        raise OSError(28, "No space left on device")

    writer = ParquetWriter("lake")
    with writer.connect(str(tmp_path)) as place:
        monkeypatch.setattr(pq, "write_table", full)
        with pytest.raises(ExternalUnavailable, match=r"connection 'lake': .*No space left on device"):
            writer.write(place, action())
        assert not list(tmp_path.rglob("*.parquet"))
        monkeypatch.undo()
        writer.write(place, action())
    assert files(tmp_path) == ["run1/save/000000000001.parquet"]


@pytest.mark.parametrize("system", ["object store", "hdfs"])
def test_other_file_systems_get_whole_files_too(system: str) -> None:
    """Arrow's own file system in memory, in the two ways in which remote ones put a file."""
    memory = _MockFileSystem()
    place = _Place(memory, "root", "root", is_local=False, renames=system == "hdfs")
    if system == "object store":
        memory.create_dir("root/run1/save", recursive=True)  # an object store has no folders; this one does
    writer = ParquetWriter("lake")
    for _ in range(2):
        writer.write_group(place, [action(1), action(2)])
    found = memory.get_file_info(fs.FileSelector("root", recursive=True))
    names = sorted(file.path for file in found if file.is_file)
    assert names == ["root/run1/save/000000000001.parquet", "root/run1/save/000000000002.parquet"]
    assert pq.read_table(names[0], filesystem=memory) == ROWS


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("{folder}/missing", "connection 'lake': there is no folder"),
        ("nothing://u:s3cret@host/x", "connection 'lake' is no folder that Arrow can open"),
        ("file:///a b", "connection 'lake' is no folder that Arrow can open"),
    ],
)
def test_a_folder_that_is_not_there_is_not_made(url: str, words: str, tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError) as caught,
        ParquetWriter("lake").connect(url.format(folder=tmp_path)),
    ):
        raise AssertionError("it was opened")
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_file_where_a_folder_should_be_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "run1").touch()
    writer = ParquetWriter("lake")
    with writer.connect(str(tmp_path)) as place, pytest.raises(ConfigurationError, match="'save' cannot be written"):
        writer.write(place, action())


# --- tables whose days are owned by value -----------------------------------------------------------------------------

OWNED: dict[str, Any] = {"on_new_run": "overwrite", "by": ("day",)}
SUPERSEDING: dict[str, Any] = {"on_new_run": "supersede"}
DAY_COLUMNS = {"day": "date", "rank": "bigint"}
A_DAY = {"day": "2026-03-01", "day_start": "2026-02-28T23:00:00+00:00", "day_end": "2026-03-01T23:00:00+00:00"}
AN_HOUR = {"hour": "2026-10-25T00Z", "hour_start": "2026-10-25T00:00:00+00:00"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_new_run": "overwrite"}, "write on_new_run='overwrite', by=('day',)"),
        ({"by": ("day",)}, "on_new_run='error' with by=('day',)"),
        ({"by": ("day",), "on_new_run": "replace"}, "on_new_run='replace' with by=('day',)"),
        (OWNED | {"by": "day"}, "write by=('day',)"),
        (OWNED | {"by": ("day", "rank")}, "names 2 columns"),
        (OWNED | {"by": ("dag",)}, "names no column of it. Did you mean 'day'?"),
        (OWNED | {"columns": {"day": "timestamp"}}, "is declared timestamp; days are date or text"),
        (OWNED | {"primary_key": ("rank",)}, "the second day would have the same keys"),
        (OWNED | {"sends_after_writes": True}, "would read the old ones"),
        (OWNED | {"empty": "replaced"}, "Did you mean 'replace'?"),
        ({"empty": "replace"}, "is for writers with by, or with on_new_run='supersede'"),
        ({"on_new_run": "supersede", "by": ("day",)}, "say 'supersede' without by"),
        ({"on_new_run": "superseed"}, "Did you mean 'supersede'?"),
        ({"run_column": "of"}, "run_column is for on_new_run='supersede'"),
        (SUPERSEDING | {"run_column": "rank"}, "run_column 'rank' is another one of its columns"),
        (SUPERSEDING | {"run_column": "DAY"}, "run_column 'DAY' is another one of its columns"),
        (SUPERSEDING | {"run_column": "of", "lineage_column": "of"}, "run_column 'of' is another one of its columns"),
        (SUPERSEDING | {"run_column": "x" * 28}, "has 28 bytes, and may have 27"),
        (SUPERSEDING | {"sends_after_writes": True}, "would read the old ones"),
        (SUPERSEDING | {"primary_key": ("runk",)}, "primary key column 'runk' is not among its columns"),
    ],
)
def test_a_writer_that_owns_no_day_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PipelineDefinitionError) as caught:
        TableWriter("wh", "t", **{"columns": DAY_COLUMNS, **options})
    assert words in str(caught.value)


def test_settings_of_other_tables_are_what_they_were() -> None:
    """Else a run that an earlier version began could not be continued. A writer that owns days says by what."""
    plain = TableWriter("wh", "t", {"a": "bigint"})
    assert set(plain.settings()) == {
        "columns",
        "connection",
        "on_new_run",
        "primary_key",
        "sends_after_writes",
        "table",
    }
    assert plain.for_run(A_DAY) is plain and plain.outputs == ("out",)
    superseding = TableWriter("wh", "t", DAY_COLUMNS, **SUPERSEDING).in_pipeline_by("day")
    assert superseding.settings() == superseding.for_run(A_DAY).settings()
    assert superseding.settings()["run_column"] == "logio_run" and superseding.outputs == ()
    owning = TableWriter("wh", "t", DAY_COLUMNS, **OWNED)
    assert "run_column" not in owning.settings()
    assert owning.settings() == owning.for_run(A_DAY).settings()
    assert owning.settings()["by"] == ["day"] and owning.outputs == ()


def test_its_actions_say_what_the_run_owns() -> None:
    own = TableWriter("wh", "t", DAY_COLUMNS, **OWNED).for_run(A_DAY)
    assert own.opening() == {"table": "t", "mode": "overwrite", "scope": "day=2026-03-01"}
    assert own.closing() == {"table": "t", "scope": "day=2026-03-01"}
    late = TableWriter("wh", "t", DAY_COLUMNS, **SUPERSEDING).in_pipeline_by("day").for_run(A_DAY)
    assert late.opening() == {"table": "t", "mode": "supersede", "scope": "day=2026-03-01"}
    assert late.closing() == own.closing() and late.owned is None, "its records may have any day"
    assert own.takes_files(), "its records may stay in files: the closing transaction counts those of other days"


@pytest.mark.parametrize(
    ("params", "mine", "others"),
    [
        (A_DAY, pa.array([date(2026, 3, 1)]), pa.array([date(2026, 3, 2)])),
        (A_DAY, pa.array([date(2026, 3, 1)], pa.date64()), pa.array([date(2026, 3, 2)], pa.date64())),
        (A_DAY, pa.array(["2026-03-01"]), pa.array(["2026-3-1", None])),
        (A_DAY, pa.array(["2026-03-01"]).dictionary_encode(), pa.array(["2026-03-02"]).dictionary_encode()),
        (AN_HOUR, pa.array([1792886400], pa.timestamp("s", "UTC")), pa.array([1792886401], pa.timestamp("s", "UTC"))),
        (
            AN_HOUR,
            pa.array([1792886400 * 10**9], pa.timestamp("ns")),
            pa.array([1792886400 * 10**9 + 1], pa.timestamp("ns")),
        ),
        (AN_HOUR, pa.array(["2026-10-25T00Z"]), pa.array(["2026-10-25T01Z"])),
    ],
)
def test_records_of_another_day_are_refused_with_count_and_values(
    params: dict[str, str], mine: pa.Array, others: pa.Array
) -> None:
    name = next(iter(params))
    owned = OwnedDay.of_run(name, params)
    owned.check_records("table 't'", pa.table({name: mine}))
    owned.check_records("table 't'", pa.table({name: mine.slice(0, 0)}))
    both = pa.chunked_array([mine, others, others])
    with pytest.raises(OperatorFailed) as caught:
        owned.check_records("table 't'", pa.table({name: both}))
    assert f"{2 * len(others)} of {len(both)} records are not of {owned.scope}" in str(caught.value)
    assert all(("null" if one is None else str(one)) in str(caught.value) for one in others.to_pylist())


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ({"rank": [1]}, "is needed, once"),
        ({"day": [1]}, "is int64, and must be a date or a text such as 2026-03-01"),
        ({"day": pa.array([0], pa.timestamp("us"))}, "and must be a date or a text"),
        ({"day": pa.nulls(1)}, "is null, and must be a date or a text"),
    ],
)
def test_records_that_have_no_day_are_refused(records: dict[str, Any], words: str) -> None:
    with pytest.raises(OperatorFailed, match=words):
        OwnedDay.of_run("day", A_DAY).check_records("table 't'", pa.table(records))


@pytest.mark.parametrize(
    ("partition", "options", "words"),
    [
        (None, {}, "have no partition: define it with partition=Days('day', zone=...)"),
        (Days("date"), {}, "write by=('date',)"),
        (Hours("day"), {}, "is declared date, which holds no hours"),
    ],
)
def test_a_pipeline_whose_runs_own_no_such_day_is_refused(partition: Any, options: dict[str, Any], words: str) -> None:
    built = Pipeline("p", partition=partition, connections=["wh"])
    built.source("read", ParquetSource("/x.parquet"))
    with pytest.raises(PipelineDefinitionError) as caught:
        built.writer("w", TableWriter("wh", "t", DAY_COLUMNS, **OWNED, **options), "read")
    assert words in str(caught.value)


def test_what_supersedes_needs_a_partition_and_records_without_its_column() -> None:
    def built(partition: Any) -> Pipeline:
        made = Pipeline("p", partition=partition, connections=["wh"])
        made.source("read", ParquetSource("/x.parquet"))
        made.writer("w", TableWriter("wh", "t", **SUPERSEDING), "read")
        return made

    with pytest.raises(PipelineDefinitionError, match=r"on_new_run='supersede', and runs .* partition=Days\('day'"):
        built(None)
    writer = built(Days("date")).operators["w"]
    assert isinstance(writer, TableWriter) and writer.partition == "date"
    with pytest.raises(OperatorFailed, match="have a column 'logio_run' themselves"):
        writer.records(InputEvent("in", 1, pa.table({"logio_run": [1]})))


@pytest.mark.parametrize("other", [{"on_new_run": "supersede"}, {"on_new_run": "append"}])
def test_two_writers_of_one_pipeline_do_not_supersede_each_other(other: dict[str, Any]) -> None:
    made = Pipeline("p", partition=Days("day"), connections=["wh"])
    read = made.source("read", ParquetSource("/x.parquet"))
    made.writer("a", TableWriter("wh", "t", **SUPERSEDING), read)
    made.writer("b", TableWriter("wh", "public.t", **other), read)
    made.group("all", "read", "a", "b")
    with pytest.raises(PipelineDefinitionError, match="may take both names for one table"):
        made.describe()
