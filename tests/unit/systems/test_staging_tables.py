"""Datasets into tables: through the driver, or by way of a staging table; what is moved is what was named, whole."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.dataflow.writers.action_writers import EVENT, Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ExternalUnavailable, Fenced, LogInconsistent, WriteRefused
from airflow_logio.supervision.tidying import drop_staging_of, staging_of
from airflow_logio.systems.databases.table_names import TableName
from airflow_logio.systems.payloads import EpochPayloads, Payloads, dataset
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.staging_tables import StagingTables
from airflow_logio.systems.stored_records import RecordsInFiles, StagedFiles
from airflow_logio.systems.warehouse import Warehouse
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.datasets import dataset_of
from tests.support.logs import spec
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually
from tests.support.warehouse import change, rows_of

WRITER = TableWriter("wh", "t", {"id": "bigint", "note": "text"}, primary_key=("id",))
STAGING = "SELECT count(*) FROM pg_class WHERE relname LIKE 'logio_staging_%' AND relkind = 'r'"


@pytest.fixture
def epoch(tmp_path: Path) -> EpochPayloads:
    return Payloads(str(tmp_path / "payloads")).epoch("run", "g", 1, 0)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small dataset has many batches."""
    monkeypatch.setattr(dataset, "BATCH_RECORDS", 7)


def rows(first: int, last: int) -> pa.Table:
    ids = list(range(first, last))
    return pa.table({"id": pa.array(ids, pa.int64()), "note": [f"note {one}" for one in ids]})


class Driver:
    """A driver of one incarnation, and what its executors do."""

    def __init__(self, url: str, writer: TableWriter = WRITER, token: int = 1, run: str = "run") -> None:
        self.writer = writer
        self.warehouse = Warehouse("wh", url)
        self.tables = StagingTables(self.warehouse)
        self.marker = Marker(run, "save", "wh", 0, token, 1.0)

    def action(self, number: int, made: Dataset | None = None) -> WriteAction:
        ref, kind = (None, "begin") if made is None else (str(made.reference), "insert")
        description = {"action": kind, EVENT: 40 + number}
        return WriteAction("run", "save", "wh", number, 1, pa.table({}), description, dataset=ref)

    def begin(self) -> None:
        self.warehouse.apply(self.marker, self.writer, [self.action(1)])

    def insert(self, made: Dataset, number: int = 2) -> None:
        """Through the driver."""
        stored = {number: RecordsInFiles(made)}
        self.warehouse.apply(self.marker, self.writer, [self.action(number, made)], stored=stored)

    def make(self, made: Dataset, number: int = 2) -> TableName:
        table = self.tables.make(self.marker, self.writer, self.action(number, made), made)
        assert table is not None
        return table

    def load(self, table: TableName, made: Dataset, file: int, number: int = 2) -> str:
        attempt, records = self.tables.load(table, self.writer, self.action(number, made), made, file)
        assert records == made.counts()[file]
        return attempt

    def staged(self, made: Dataset, number: int = 2) -> StagedFiles:
        table = self.make(made, number)
        return StagedFiles(table, {file: self.load(table, made, file, number) for file in range(len(made.counts()))})

    def move(self, made: Dataset, staged: StagedFiles, number: int = 2) -> None:
        stored = {number: RecordsInFiles(made, staged)}
        self.warehouse.apply(self.marker, self.writer, [self.action(number, made)], stored=stored)


@pytest.fixture
def drivers(postgres_url: str) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def driver(*arguments: Any, **named: Any) -> Driver:
        made.append(Driver(postgres_url, *arguments, **named))
        return made[-1]

    yield driver
    for one in made:
        one.warehouse.close()


# --- every way, the same rows -----------------------------------------------------------------------------------------

TYPES = {
    "id": "bigint",
    "small": "int",
    "price": "decimal(12,4)",
    "real": "double",
    "note": "text",
    "at": "timestamp",
    "zoned": "timestamptz",
    "day": "date",
    "even": "boolean",
    "raw": "binary",
    "about": "json",
    "key": "uuid",
}
IN_POSTGRES = {"double": "double precision", "binary": "bytea"}


def of_every_type(count: int) -> pa.Table:
    noon = dt.datetime.fromisoformat("2024-03-31T02:30:00.123456")
    columns: dict[str, list[Any]] = {
        "even": [one % 2 == 0 for one in range(count)],
        "id": list(range(count)),
        "small": [None if one % 5 == 0 else one for one in range(count)],
        "price": [Decimal(one) / 10000 for one in range(count)],
        "real": [one / 7 for one in range(count)],
        "note": [["", None, 'a "b", {c}\\', "Köln, NULL"][one % 4] for one in range(count)],
        "at": [noon + dt.timedelta(microseconds=one) for one in range(count)],
        "zoned": [noon - dt.timedelta(days=one) for one in range(count)],
        "day": [dt.date(1969, 12, 1) + dt.timedelta(days=one) for one in range(count)],
        "raw": [bytes([one % 256, 0]) for one in range(count)],
        "about": ['{"a": [1, null]}'] * count,
        "key": [f"7f3c1a50-0d5e-4b0a-9c57-{one:012x}" for one in range(count)],
    }
    return pa.table(columns).set_column(3, "price", pa.array(columns["price"], pa.decimal128(12, 4)))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "found"])
def test_values_are_the_same_by_way_of_a_staging_table_and_through_the_driver(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads, declared: bool
) -> None:
    """Compared with what was put in, and with rows that come as a table."""
    records = of_every_type(50)
    made = dataset_of(epoch, records.slice(0, 20), records.slice(20, 1), records.slice(21))
    results = {}
    for way in ("inline", "driver", "staged"):
        columns = TYPES if declared else None
        if not declared:
            types = ", ".join(f"{name} {IN_POSTGRES.get(kind, kind)}" for name, kind in TYPES.items())
            change(postgres_url, f"CREATE TABLE {way} ({types}, came_with bigint)")
        writer = TableWriter("wh", way, columns, lineage_column="came_with")
        driver = drivers(writer, run=way)
        driver.begin()
        if way == "driver":
            driver.insert(made)
        elif way == "staged":
            driver.move(made, driver.staged(made))
        else:
            with_event = records.append_column("came_with", pa.array([42] * records.num_rows))
            one = replace(driver.action(2, made), records=with_event, dataset=None)
            driver.warehouse.apply(driver.marker, writer, [one])
        names = ", ".join(f"CAST({name} AS text)" for name in (*TYPES, "came_with"))
        results[way] = rows_of(postgres_url, f"SELECT {names} FROM {way} ORDER BY id")
    assert results["driver"] == results["inline"]
    assert results["staged"] == results["inline"]
    expected = [(row["id"], row["note"], row["price"], row["at"], row["raw"]) for row in records.to_pylist()]
    found = rows_of(postgres_url, "SELECT id, note, price, at, raw FROM staged ORDER BY id")
    assert [(*row[:4], bytes(row[4])) for row in found] == expected
    assert {row[-1] for row in results["staged"]} == {"42"}


UPSERTS = TableWriter("wh", "t", {"id": "bigint", "note": "text", "at": "double"}, ("id",), mode="upsert", version="at")


def versions(*found: tuple[int, str, float]) -> pa.Table:
    ids, notes, at = zip(*found, strict=True)
    return pa.table({"id": pa.array(ids, pa.int64()), "note": list(notes), "at": list(at)})


@pytest.mark.parametrize("way", ["driver", "staged"])
def test_rows_of_a_dataset_are_updated_by_their_keys(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads, way: str
) -> None:
    """In any order within the dataset; refused are the same things as of rows that come as a table."""
    driver = drivers(UPSERTS)
    driver.begin()
    change(postgres_url, "INSERT INTO t VALUES (1, 'there', 5), (2, 'there', 5), (9, 'there', 1)")

    def write(number: int, *tables: pa.Table, by: TableWriter = UPSERTS) -> None:
        made = dataset_of(epoch, *tables)
        driver.writer = by
        if way == "driver":
            driver.insert(made, number)
        else:
            driver.move(made, driver.staged(made, number), number)

    write(2, versions((1, "a", 4), (2, "b", 7), (3, "c", 1)), versions((2, "d", 6), (3, "e", 2), (9, "there", 1)))
    expected = [(1, "there", 5), (2, "b", 7), (3, "e", 2), (9, "there", 1)]
    assert rows_of(postgres_url, "SELECT * FROM t ORDER BY id") == expected
    for wrong, why in (
        (
            [versions((4, "x", 1)), versions((9, "other", 1))],
            r"id = 9: two rows have version 'at' = 1, .* differ in note",
        ),
        ([versions((4, "x", 1)), versions((4, "y", 1))], r"id = 4: two rows have version 'at' = 1"),
        ([versions((4, "x", float("nan")))], "id = 4: its version 'at' is null or NaN"),
    ):
        with pytest.raises(WriteRefused, match=why):
            write(3, *wrong)
    change(postgres_url, "ALTER TABLE t ADD CHECK (note <> 'bad')")
    with pytest.raises(WriteRefused, match=r"table 't', write action 3, row [02] \(counted from 0\)"):
        write(3, versions((4, "x", 1), (1, "y", 9)), versions((5, "bad", 1), (6, "z", 1)))
    last = TableWriter("wh", "u", UPSERTS.columns, ("id",), mode="upsert")
    driver.marker, driver.writer = replace(driver.marker, operator="last"), last
    driver.begin()
    write(2, versions((4, "x", 2)), versions((5, "y", 2)), by=last)
    write(3, versions((4, "z", 1)), by=last)
    assert rows_of(postgres_url, "SELECT * FROM u ORDER BY id") == [(4, "z", 1), (5, "y", 2)]
    with pytest.raises(WriteRefused, match="one event has 2 rows with id = 4"):
        write(4, versions((4, "x", 1)), versions((4, "y", 2)), by=last)
    assert rows_of(postgres_url, "SELECT * FROM t ORDER BY id") == expected


@pytest.mark.usefixtures("few")
def test_a_dataset_is_inserted_in_sqlite_bit_by_bit_and_once(tmp_path: Path, epoch: EpochPayloads) -> None:
    url = f"sqlite:///{tmp_path}/wh.db"
    driver = Driver(url)
    made = dataset_of(epoch, rows(0, 20), rows(20, 50))
    driver.begin()
    sizes: list[int] = []

    @sa.event.listens_for(driver.warehouse.engine, "before_cursor_execute")
    def _(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith('INSERT INTO "t" '):
            sizes.append(len(parameters))

    driver.insert(made)
    driver.insert(made)
    driver.warehouse.close()
    assert rows_of(url, "SELECT id, note FROM t ORDER BY id") == [(one, f"note {one}") for one in range(50)]
    assert max(sizes) == 7


@pytest.mark.usefixtures("few")
def test_a_file_that_was_cut_leaves_neither_rows_nor_marker(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads
) -> None:
    made = dataset_of(epoch, rows(0, 20), rows(20, 50))
    driver = drivers()
    driver.begin()
    Path(made.paths()[1]).write_bytes(b"PAR1")
    with pytest.raises(LogInconsistent, match="is damaged"):
        driver.insert(made)
    assert rows_of(postgres_url, "SELECT count(*) FROM t") == [(0,)]
    assert rows_of(postgres_url, "SELECT last_write FROM logio_marker") == [(1,)]


# --- what is moved ----------------------------------------------------------------------------------------------------


def test_only_the_attempts_that_the_job_has_named_are_moved(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads
) -> None:
    """One attempt has committed and lost, one commits when all is over."""
    made = dataset_of(epoch, rows(0, 20), rows(20, 50))
    driver = drivers()
    driver.begin()
    table = driver.make(made)
    driver.load(table, made, 0)
    staged = StagedFiles(table, {1: driver.load(table, made, 1), 0: driver.load(table, made, 0)})
    driver.move(made, staged)
    driver.load(table, made, 1)
    driver.move(made, staged)
    assert rows_of(postgres_url, "SELECT id, note FROM t ORDER BY id") == [(one, f"note {one}") for one in range(50)]
    assert driver.tables.drop([table]) == []
    assert rows_of(postgres_url, STAGING) == [(0,)]
    assert driver.tables.make(driver.marker, WRITER, driver.action(2, made), made) is None, "it was applied"
    assert not driver.tables.of_run("run")


def test_a_server_that_crashes_empties_the_staging_table_and_nothing_is_moved(
    drivers: Callable[..., Driver], postgres_server: PostgresServer, postgres_url: str, epoch: EpochPayloads
) -> None:
    made = dataset_of(epoch, rows(0, 20), rows(20, 50))
    driver = drivers()
    driver.begin()
    staged = driver.staged(made)
    postgres_server.stop(mode="immediate")
    postgres_server.start()
    with pytest.raises(ExternalUnavailable, match=r"has 0 records of file 0, [23]0 were loaded .* it is loaded again"):
        driver.move(made, staged)
    assert rows_of(postgres_url, "SELECT count(*) FROM t") == [(0,)]
    assert rows_of(postgres_url, "SELECT last_write FROM logio_marker") == [(1,)], "it is not taken for applied"
    driver.move(made, driver.staged(made))
    assert rows_of(postgres_url, "SELECT count(*), sum(id) FROM t") == [(50, sum(range(50)))]


def test_a_staging_table_that_is_gone_or_of_other_types_is_loaded_again(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads
) -> None:
    made = dataset_of(epoch, rows(0, 20))
    driver = drivers()
    driver.begin()
    staged = driver.staged(made)
    change(postgres_url, "ALTER TABLE t ALTER COLUMN note TYPE varchar(3)")
    with pytest.raises(ExternalUnavailable, match=r"column 'note' was text when .* and is character varying"):
        driver.move(made, staged)
    driver.tables.drop([staged.table])
    with pytest.raises(ExternalUnavailable, match="is gone"):
        driver.move(made, staged)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("way", ["insert", "stage"])
def test_the_row_that_is_refused_is_named_by_its_number_in_the_write_action(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads, way: str
) -> None:
    driver = drivers()
    driver.begin()
    change(postgres_url, "INSERT INTO t VALUES (1000, 'there before')")

    def refusal(made: Dataset) -> str:
        with pytest.raises(WriteRefused) as refused:
            driver.insert(made) if way == "insert" else driver.move(made, driver.staged(made))
        return str(refused.value)

    twice = dataset_of(epoch, rows(0, 20), pa.concat_tables([rows(20, 45), rows(7, 8), rows(46, 50)]), purpose="a")
    row = 45 if twice.counts()[0] == 20 else 37
    said = refusal(twice)
    assert f"connection 'wh' refused a statement: table 't', write action 2, row {row} (counted from 0): " in said
    assert "already exists" in said
    there = dataset_of(epoch, rows(100, 130), rows(1000, 1001), purpose="b")
    row = 30 if there.counts()[0] == 30 else 0
    assert f"write action 2, row {row} (counted from 0)" in refusal(there)
    bad = pa.table({"id": pa.array([str(one) for one in range(15)] + ["x"]), "note": ["n"] * 16})
    said = refusal(dataset_of(epoch, bad, purpose="c"))
    assert "write action 2, row 15 (counted from 0): Failed to parse string: 'x'" in said
    change(postgres_url, "ALTER TABLE t ADD CONSTRAINT c CHECK (note <> 'note 1011')")
    late = dataset_of(epoch, rows(1001, 1020), purpose="d")
    assert "write action 2, row 10 (counted from 0)" in refusal(late)
    change(postgres_url, "CREATE RULE r AS ON INSERT TO t WHERE NEW.id = 2011 DO INSTEAD NOTHING")
    dropped = dataset_of(epoch, rows(2000, 2008), rows(2008, 2020), purpose="e")
    row, said = 11 if dropped.counts()[0] == 8 else 3, refusal(dropped)
    assert f"connection 'wh': table 't', write action 2, row {row} (counted from 0): " in said
    sent, arrived = (20, 19) if way == "stage" else (7, 6)  # through the driver, a piece of a file is a statement
    assert f"{sent} rows were sent to table 't', and {arrived} have arrived" in said
    assert rows_of(postgres_url, "SELECT id FROM t") == [(1000,)]
    assert rows_of(postgres_url, "SELECT last_write FROM logio_marker") == [(1,)]


def test_records_of_other_columns_are_refused_before_anything_is_made(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads
) -> None:
    driver = drivers(TableWriter("wh", "t"))
    change(postgres_url, "CREATE TABLE t (id bigint)")
    driver.begin()
    with pytest.raises(WriteRefused, match="table 't' has no column 'note'"):
        driver.make(dataset_of(epoch, rows(0, 20)))
    assert rows_of(postgres_url, STAGING) == [(0,)]


def test_who_may_make_no_tables_stages_nothing(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads
) -> None:
    drivers().begin()
    change(postgres_url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    change(postgres_url, "CREATE ROLE loader LOGIN")
    change(postgres_url, "GRANT SELECT, INSERT, UPDATE ON t, logio_marker, logio_owner TO loader")
    loader = Driver(postgres_url.replace("postgres@", "loader@"), token=2)
    made = dataset_of(epoch, rows(0, 20))
    try:
        loader.tables.sweep(loader.marker)
        assert loader.tables.make(loader.marker, WRITER, loader.action(2, made), made) is None
        change(postgres_url, "GRANT CREATE ON SCHEMA public TO loader")
        other = drivers(TableWriter("wh", "o", {"id": "bigint", "note": "text"}), run="other")
        other.begin()
        other.make(made)
        loader.tables.sweep(loader.marker)
        assert loader.tables.make(loader.marker, WRITER, loader.action(2, made), made) is None, (
            "nor who may not note it"
        )
        loader.insert(made)
    finally:
        loader.warehouse.close()
        change(postgres_url, "DROP OWNED BY loader")
        change(postgres_url, "DROP ROLE loader")
    assert rows_of(postgres_url, "SELECT count(*) FROM t") == [(20,)]


def test_a_target_with_such_columns_is_not_staged(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads
) -> None:
    change(postgres_url, "CREATE TABLE t (logio_file bigint, note text)")
    driver = drivers(TableWriter("wh", "t"))
    driver.begin()
    made = dataset_of(epoch, rows(0, 20).rename_columns(["logio_file", "note"]))
    assert driver.tables.make(driver.marker, driver.writer, driver.action(2, made), made) is None
    driver.insert(made)
    assert rows_of(postgres_url, "SELECT count(*), sum(logio_file) FROM t") == [(20, sum(range(20)))]


def test_names_of_columns_are_those_of_the_target_whatever_is_in_them(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads
) -> None:
    change(postgres_url, 'CREATE TABLE t ("Id %" bigint, "a ""quoted"" one" text)')
    driver = drivers(TableWriter("wh", "t"))
    driver.begin()
    made = dataset_of(epoch, rows(0, 20).rename_columns(["Id %", 'a "quoted" one']))
    driver.move(made, driver.staged(made))
    assert rows_of(postgres_url, 'SELECT count(*), sum("Id %") FROM t') == [(20, sum(range(20)))]


# --- drivers that were replaced ---------------------------------------------------------------------------------------


def _holding(driver: Driver, statement: str) -> sa.Connection:
    """A session that stands still in a transaction."""
    connection = driver.warehouse.engine.connect()
    connection.begin()
    connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
    connection.exec_driver_sql(statement)
    return connection


def test_a_successor_ends_whoever_loads_for_a_zombie_and_moves_its_own(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads
) -> None:
    """The zombie's executor stands in a transaction with rows. The zombie may neither move nor stage again."""
    made = dataset_of(epoch, rows(0, 20), rows(20, 50))
    zombie, successor = drivers(), drivers(token=2)
    zombie.begin()
    staged = zombie.staged(made)
    name = f'"{staged.table.schema}"."{staged.table.table}"'
    loads = _holding(zombie, f"INSERT INTO {name} VALUES (1, 'x', 0, 'late')")
    successor.tables.sweep(successor.marker)
    with pytest.raises(sa.exc.OperationalError, match=r"terminat|closed"):
        loads.exec_driver_sql(f"INSERT INTO {name} VALUES (2, 'x', 0, 'late')")
    loads.invalidate()
    assert rows_of(postgres_url, STAGING) == [(0,)]
    with pytest.raises(Fenced, match="token 2 has written, but this driver holds 1"):
        zombie.make(made)
    with pytest.raises(Fenced):
        zombie.move(made, staged)
    with pytest.raises(ExternalUnavailable, match="is gone; another one is loaded"):
        zombie.load(staged.table, made, 0)
    with pytest.raises(Fenced):
        zombie.tables.sweep(zombie.marker)
    successor.move(made, successor.staged(made))
    assert rows_of(postgres_url, "SELECT id, note FROM t ORDER BY id") == [(one, f"note {one}") for one in range(50)]


def test_a_zombie_that_stands_in_its_move_is_ended_before_its_marker_is_waited_for(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads
) -> None:
    made = dataset_of(epoch, rows(0, 20))
    zombie, successor = drivers(), drivers(token=2)
    zombie.begin()
    staged = zombie.staged(made)
    moves = _holding(zombie, "SELECT * FROM logio_marker FOR UPDATE")
    moves.exec_driver_sql(f'INSERT INTO t SELECT id, note FROM "{staged.table.table}"')
    successor.tables.sweep(successor.marker)
    with pytest.raises(sa.exc.OperationalError, match=r"terminat|closed"):
        moves.commit()
    moves.invalidate()
    assert rows_of(postgres_url, "SELECT count(*) FROM t") == [(0,)]
    successor.move(made, successor.staged(made))
    assert rows_of(postgres_url, "SELECT count(*) FROM t") == [(20,)]


def test_a_sweep_leaves_other_writers_and_higher_tokens_alone(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads
) -> None:
    made = dataset_of(epoch, rows(0, 20))
    first, other = drivers(), drivers(TableWriter("wh", "other", {"id": "bigint", "note": "text"}))
    other.marker = replace(other.marker, operator="other")
    first.begin()
    other.begin()
    first.make(made)
    kept = other.staged(made)
    successor = drivers(token=2)
    successor.tables.sweep(successor.marker)
    assert rows_of(postgres_url, STAGING) == [(1,)]
    other.move(made, kept)
    assert rows_of(postgres_url, "SELECT count(*) FROM other") == [(20,)]
    mine = successor.staged(made)
    with pytest.raises(Fenced):
        first.tables.sweep(first.marker)
    successor.move(made, mine)


def test_what_a_run_has_left_is_found_and_dropped_by_whoever_collects(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads
) -> None:
    store = MemoryLogStore()
    run = store.start_run(spec("all"))
    assert drop_staging_of({"wh": postgres_url}, run) == 0, "nothing was staged here"
    made = dataset_of(epoch, rows(0, 20))
    driver = drivers(run=run.uid)
    driver.begin()
    driver.make(made)
    other = drivers(TableWriter("wh", "o", {"id": "bigint", "note": "text"}), run="other")
    other.begin()
    other.make(made)
    assert len(staging_of({"wh": postgres_url}, run)) == 1
    assert drop_staging_of({"wh": postgres_url}, run) == 1
    assert rows_of(postgres_url, STAGING) == [(1,)]
    assert rows_of(postgres_url, "SELECT run_uid FROM logio_staging") == [("other",)]


def test_a_table_that_is_held_by_another_user_stays_noted_until_later(
    drivers: Callable[..., Driver], postgres_url: str, epoch: EpochPayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whom a driver may not end, it does not wait for long."""
    monkeypatch.setattr("airflow_logio.systems.staging_tables._DROP_LOCK_TIMEOUT", "100ms")
    made = dataset_of(epoch, rows(0, 20))
    driver = drivers()
    driver.begin()
    table = driver.make(made)
    change(postgres_url, "CREATE ROLE reader LOGIN")
    change(postgres_url, f'GRANT SELECT ON "{table.table}" TO reader')
    url = sa.make_url(postgres_url).set(drivername="postgresql+psycopg2", username="reader")
    reader = sa.create_engine(url, poolclass=sa.NullPool)
    try:
        with reader.connect() as reads:
            reads.exec_driver_sql(f'SELECT * FROM "{table.table}"')
            assert driver.tables.drop([table]) == [table]
        assert driver.tables.of_run("run") == [table]
        eventually(lambda: driver.tables.drop([table]) == [], what="it is dropped")
    finally:
        change(postgres_url, "DROP OWNED BY reader")
        change(postgres_url, "DROP ROLE reader")
    assert rows_of(postgres_url, STAGING) == [(0,)]
