"""Rows of a SQL table as a lazy DataFrame, all of one snapshot: for declared reads and for sources (ADR-93, ADR-94).

Executors read a PostgreSQL, each task a part of the table. Rows of any other database pass through the driver into files
of the payload store: an SQLite file may not be where the executors are, and no other database lends its snapshot. So do those
of a PostgreSQL whose URL executors cannot be handed (`database_tasks`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.databases import idle_for, kept_open
from airflow_logio.dataflow.arrow_tables import uniform
from airflow_logio.dataflow.column_types import MOST_DIGITS, ColumnType
from airflow_logio.dataflow.functions.function_operators import keys_of, no_key
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.dataflow.reads import DeclaredRead
from airflow_logio.errors import ConfigurationError, LogioError, OperatorFailed, SourceChanged
from airflow_logio.spark.database_tasks import MOST_SESSIONS, handed_url, may_hand, told, warehouse_of
from airflow_logio.spark.dataset_jobs import frame_of, frame_of_table, written_by_driver
from airflow_logio.spark.schemas import in_utc
from airflow_logio.systems.connections import Connections, DeclaredConnection
from airflow_logio.systems.databases.key_lookups import Lookup
from airflow_logio.systems.databases.read_values import Place
from airflow_logio.systems.databases.table_names import table_name
from airflow_logio.systems.databases.table_reads import (
    KEYS_PER_QUERY,
    Selection,
    column_kind,
    found_by_keys,
    pieces,
    selection,
)
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.shared_snapshots import (
    StoredAs,
    check_stored_as,
    exported_snapshot,
    imported_snapshot,
    stored_as,
)
from airflow_logio.systems.warehouse import PAUSE_SECONDS, Warehouse

BLOCKS_PER_TASK = 1_024
"""A task reads at least so many blocks, 8 MiB of a table; more, where there would be more tasks than `MOST_SESSIONS`."""
NUMBERS_PER_TASK = 10_000
"""A task reads at least so wide a range of a column of whole numbers."""

Restricted = Callable[[sa.Table], sa.ColumnElement[bool]]
"""Which rows, given the table as the database describes it. Its values are part of the job: no secrets."""


@dataclass(frozen=True)
class TableRows:
    """Which rows are read."""

    table: str
    """``table`` or ``schema.table``; also a view."""
    columns: Sequence[str] = ()
    """All of them, where none is named."""
    where: Restricted | None = None
    by: str | None = None
    """A column of whole numbers: tasks read ranges of it, which an index finds. None: they read places of the table, which
    is better for most of its rows. Rows that are null there are read as well."""
    said: str = ""
    """What `where` means, in words, for errors."""
    begins: str = ""
    """What reads them, in words, before the table."""
    key: tuple[str, ...] = ()
    """The columns that tell one row from another, where the table does not say so."""
    expected: int | None = None
    """How many there must be, if that is known."""


@contextmanager
def rows_frame(
    session: Any, payloads: EpochPayloads, warehouse: Warehouse, url: str, rows: TableRows
) -> Iterator[SparkFrame]:
    """The rows as a lazy DataFrame, whose jobs must end within the block. It may be evaluated several times: they are the
    same rows, in any order.

    `url` is that of the connection `warehouse`. Columns and types are those of `table_reads.fetch`; a time without a zone is
    an instant, in UTC. In the driver: some statements, and for a PostgreSQL a transaction that stays open. Nothing is left
    behind, except by a driver that dies: then, until the sweep of its incarnation, files in its folder.

    Raises `ConfigurationError`, `ExternalUnavailable`, `LogUnavailable`, and `SourceChanged` if there are not as many rows
    as expected. An error of a task comes out of the block as the
    task has raised it: `ConfigurationError` for a value that Arrow cannot hold, naming table, column and row, and
    `ExternalUnavailable` if the whole is to be read again in a new block: also when the snapshot is gone. Any other
    error of a job comes out as it is.
    """
    by_executors = warehouse.engine.dialect.name == "postgresql" and may_hand(payloads)
    way = _by_executors if by_executors else _through_the_driver
    with way(session, payloads, warehouse, url, rows) as frame, _told():
        yield frame


@contextmanager
def looked_up_frame(
    session: Any, payloads: EpochPayloads, warehouse: Warehouse, url: str, rows: TableRows, key: str, keys: Dataset
) -> Iterator[SparkFrame]:
    """As `rows_frame`, of a PostgreSQL: the rows whose `key` is one of `keys`, a dataset of one column of distinct values.

    Each task looks a share of them up, so that the database compares, and uses its index. Raises also `ConfigurationError` if
    it cannot compare the types.
    """
    kind = keys.empty().column(0).type
    with _lent(session, payloads, warehouse, url, rows, (key, kind)) as (reading, schema):
        tasks = min(MOST_SESSIONS, -(-keys.num_rows // reading.keys_per_query))
        shares = frame_of(session, keys).repartition(max(1, tasks), f"`{key}`")  # a task that runs again gets the same
        with _told():
            yield shares.mapInArrow(partial(looked_up, reading), schema)


@contextmanager
def _told() -> Iterator[None]:
    """What a task has found comes out of the block as it has raised it."""
    try:
        yield
    except Exception as error:
        if found := unread(error):
            raise found from error
        raise


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


@contextmanager
def _by_executors(
    session: Any, payloads: EpochPayloads, warehouse: Warehouse, url: str, rows: TableRows
) -> Iterator[SparkFrame]:
    with _lent(session, payloads, warehouse, url, rows, None) as (reading, schema):
        numbers = session.range(0, len(reading.parts), 1, len(reading.parts))
        yield numbers.mapInArrow(partial(read_rows, reading), schema)


@contextmanager
def _lent(
    session: Any,
    payloads: EpochPayloads,
    warehouse: Warehouse,
    url: str,
    rows: TableRows,
    by_keys: tuple[str, pa.DataType] | None,
) -> Iterator[tuple[RowsReading, Any]]:
    """What tasks read, under a snapshot that is lent to them within the block, and the schema as Spark has it.

    `by_keys` names a column and the type of its keys, for the only part; without it there are parts by places, or ranges.
    """
    with (
        exported_snapshot(warehouse) as (connection, snapshot),
        handed_url(payloads, f"rows/{warehouse.name}", url) as ref,
    ):
        with warehouse.translated(refused=ConfigurationError):
            chosen = _selection(connection, warehouse.name, rows)
            stored = stored_as(connection, chosen.place.where, table_name(connection, rows.table), chosen.statement)
            lookup = None
            if by_keys is not None:
                parts = [RowsPart(chosen.place, chosen.statement)]
                lookup = chosen.lookup(*by_keys, connection.dialect.name)
            elif rows.by is not None:
                parts = list(_ranges(connection, chosen, rows.by))
            else:
                parts = list(_places(chosen, stored.blocks))
            if rows.expected is not None:
                counted = sa.select(sa.func.count()).select_from(chosen.statement.subquery())
                _check_count(chosen, rows.expected, connection.execute(counted).scalar_one())
        schema = in_utc(chosen.schema)
        reading = RowsReading(
            payloads.root, ref, warehouse.name, snapshot, stored, parts, chosen.kinds, schema, lookup, KEYS_PER_QUERY
        )
        with kept_open(connection):
            yield reading, _spark_schema(session, schema)


def _places(chosen: Selection, blocks: int | None) -> Iterator[RowsPart]:
    """Parts by ranges of blocks; blocks that are added later have no row of the snapshot."""
    count = min(MOST_SESSIONS, -(-(blocks or 0) // BLOCKS_PER_TASK))
    if blocks is None or count <= 1:
        yield RowsPart(chosen.place, chosen.statement)
        return
    ctid: sa.ColumnElement[Any] = sa.literal_column("ctid")
    bounds: list[Any] = [sa.literal_column(f"'({blocks * number // count},0)'::tid") for number in range(1, count)]
    for first, end in pairwise([None, *bounds, None]):
        conditions = [*([] if first is None else [ctid >= first]), *([] if end is None else [ctid < end])]
        said = f"{chosen.place.where}, rows {' and '.join(map(str, conditions))}"
        yield RowsPart(replace(chosen.place, where=said), chosen.statement.where(*conditions))


def _ranges(connection: Connection, chosen: Selection, by: str) -> Iterator[RowsPart]:
    """Parts by ranges of a column that are equally wide, the first one with the nulls."""
    column = _whole_numbers(chosen, by)
    bounded = chosen.statement.with_only_columns(sa.func.min(column), sa.func.max(column), maintain_column_froms=True)
    least, most = connection.execute(bounded).one()
    width = 0 if least is None else most - least + 1
    count = max(1, min(MOST_SESSIONS, -(-width // NUMBERS_PER_TASK)))
    bounds = [least + width * number // count for number in range(1, count)]
    if not bounds:
        yield RowsPart(chosen.place, chosen.statement)
        return
    for first, end in pairwise([None, *bounds, None]):
        if first is None:
            said, condition = f"{by} < {end}, or null", sa.or_(column < end, column.is_(None))
        elif end is None:
            said, condition = f"{by} >= {first}", column >= first
        else:
            said, condition = f"{first} <= {by} < {end}", sa.and_(column >= first, column < end)
        place = replace(chosen.place, where=f"{chosen.place.where}, rows with {said}")
        yield RowsPart(place, chosen.statement.where(condition))


# --- any other database, and any payload store that keeps no secrets ----------------------------------------------------


@contextmanager
def _through_the_driver(
    session: Any, payloads: EpochPayloads, warehouse: Warehouse, url: str, rows: TableRows
) -> Iterator[SparkFrame]:
    """Bounded pieces into files of the payload store, which are removed when the block ends."""
    with warehouse.snapshot(**idle_for(PAUSE_SECONDS)) as connection:
        chosen = _selection(connection, warehouse.name, rows)
        if rows.by is not None:
            _whole_numbers(chosen, rows.by)
        tables = pieces(connection, chosen.place, chosen.statement, chosen.kinds)
        found = chain([chosen.schema.empty_table()], tables)
        dataset = written_by_driver(session, payloads, chosen.place.where, f"rows/{warehouse.name}", found)
    try:
        if rows.expected is not None:
            _check_count(chosen, rows.expected, dataset.num_rows)
        yield frame_of(session, dataset)
    finally:
        payloads.remove([str(dataset.reference)])


# --- whichever database it is -----------------------------------------------------------------------------------------


def _check_count(chosen: Selection, expected: int, found: int) -> None:
    if found != expected:
        raise SourceChanged(
            f"{chosen.place.where} had {expected:,} rows there when the range was logged, and has {found:,} now: rows were "
            "deleted or inserted behind what was read. Put it back as it was, or start a fresh run"
        )


def _whole_numbers(chosen: Selection, by: str) -> sa.Column[Any]:
    """The column by which rows are read. Raises `ConfigurationError` if there is none of that kind."""
    column = chosen.table.columns.get(by)
    if column is None:
        raise ConfigurationError(f"{chosen.place.where} has no column {by!r}, by which it is read")
    kind = column_kind(column)
    if kind.name != "bigint":
        raise ConfigurationError(f"{chosen.place.where} is read by column {by!r}, which is {kind}, and no whole number")
    return column


def _selection(connection: Connection, name: str, rows: TableRows) -> Selection:
    """Raises `ConfigurationError` also for a type that Spark does not have."""
    chosen = selection(connection, name, rows.table, rows.columns, rows.where)
    said = f", rows with {rows.said}" if rows.said else ""
    place = Place(f"{rows.begins}{chosen.place.where}{said}", rows.key or chosen.place.key)
    chosen = replace(chosen, place=place)
    for column, kind in chosen.kinds.items():
        if kind.precision > MOST_DIGITS:
            raise ConfigurationError(
                f"{place.where} has column {column!r} of type {kind}, and a decimal of Spark has at most {MOST_DIGITS} "
                "digits: name the columns that are to be read, or read a view that casts it"
            )
    return chosen


def _spark_schema(session: Any, schema: pa.Schema) -> Any:
    return frame_of_table(session, schema.empty_table()).schema


# --- what tasks do, on executors: they need this package, and reach the database --------------------------------------

_UNREAD = re.compile(r'\bUnread: (\["\w+", ".*"\])')


class Unread(Exception):
    """What a task has found. Spark hands on its text only: a list in JSON, of the name of an error and of what it says."""


@dataclass(frozen=True)
class RowsPart:
    """What one task reads."""

    place: Place
    """The table, and which part of it."""
    statement: sa.Select[Any]


@dataclass(frozen=True)
class RowsReading:
    """What is read, and where from: part of the job, so there is no secret in it."""

    root: str
    """The folder of the payload store."""
    url: str
    """Reference of the file that has the URL of the connection."""
    connection: str
    snapshot: str
    """The id under which the driver has exported it."""
    stored: StoredAs
    parts: Sequence[RowsPart]
    kinds: dict[str, ColumnType]
    schema: pa.Schema
    """What the records are, as Spark has them."""
    lookup: Lookup | None = None
    """Where keys are looked up."""
    keys_per_query: int = 0


def read_rows(reading: RowsReading, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the parts whose numbers come, each part by a cursor of the server. Raises `Unread`."""
    try:
        with closing(warehouse_of(reading.root, reading.connection, reading.url)) as warehouse:
            for number in (number for batch in batches for number in batch.column(0).to_pylist()):
                for table in _tables(reading, warehouse, reading.parts[number]):
                    yield from table.cast(reading.schema).to_batches()
    except LogioError as error:
        raise Unread(json.dumps([type(error).__name__, str(error)])) from None


def looked_up(reading: RowsReading, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the only part whose keys come, in one transaction, by statements of some keys each. Raises `Unread`."""
    (part,) = reading.parts
    taken = list(batches)
    if not any(batch.num_rows for batch in taken):
        return
    keys = uniform(pa.Table.from_batches(taken)).column(0).combine_chunks()
    try:
        with closing(warehouse_of(reading.root, reading.connection, reading.url)) as warehouse:
            for table in _tables(reading, warehouse, part, keys):
                yield from table.cast(reading.schema).to_batches()
    except LogioError as error:
        raise Unread(json.dumps([type(error).__name__, str(error)])) from None


def _tables(
    reading: RowsReading, warehouse: Warehouse, part: RowsPart, keys: pa.Array | None = None
) -> Iterator[pa.Table]:
    """The rows of a part, or those of some keys."""
    with imported_snapshot(warehouse, reading.snapshot, part.place.where) as connection:
        if keys is None or reading.lookup is None:
            found = pieces(connection, part.place, part.statement, reading.kinds)
        else:
            found = found_by_keys(connection, reading.lookup, reading.kinds, keys, reading.keys_per_query)
        first = next(found, None)
        check_stored_as(connection, part.place.where, reading.stored)
        yield from found if first is None else chain([first], found)


def unread(error: BaseException) -> LogioError | None:
    """What a task has found, of what Spark says of its job; None if the job failed for another reason."""
    found = _UNREAD.search(str(error))
    return None if found is None else told(*json.loads(found[1]))


# --- keys of declared reads of mode dataframe (ADR-94) ----------------------------------------------------------------

MOST_ASKED = 50_000
"""Keys with which the driver asks, before it knows whether the answer is small."""
MOST_IN_DRIVER = 1_000_000
"""Keys that a driver takes, where only the driver can ask."""


def distinct_keys(frames: Mapping[str, SparkFrame], read: DeclaredRead) -> SparkFrame:
    """The distinct keys of Input Sets as a lazy DataFrame of one column, without nulls; `frames` has those of each port.

    Raises `OperatorFailed` if no port has the column, or if ports have it in different types.
    """
    key = str(read.key)
    having = {port: frame for port, frame in frames.items() if key in frame.columns}
    if not having:
        raise no_key(read)
    kinds = {port: frame.schema[key].dataType.simpleString() for port, frame in having.items()}
    if len(set(kinds.values())) > 1:
        found = ", ".join(f"{kind} on port {port!r}" for port, kind in kinds.items())
        raise OperatorFailed(
            f"the read of {read} is restricted by {key!r}, which is {found}: cast it to one type before"
        )
    columns = [frame.select(frame[f"`{key}`"].alias(key)) for frame in having.values()]
    column = reduce(lambda some, more: some.unionByName(more), columns)
    return column.where(column[f"`{key}`"].isNotNull()).distinct()


def asked_keys(keys: SparkFrame, read: DeclaredRead, most: int) -> pa.Array | None:
    """The keys, sorted; None if there are more than `most`. One job, which returns no more than that.

    They are of the types that records have in the other modes.
    """
    few = uniform(keys.limit(most + 1).toArrow())
    return None if few.num_rows > most else keys_of([few], read)


def too_many(read: DeclaredRead, most: int) -> OperatorFailed:
    """The error for more than `most` keys. A job that is halved has fewer."""
    return OperatorFailed(
        f"the read of {read} is restricted by {read.key!r}, which has more than {most:,} distinct values in one "
        "Input Set: the driver would have to ask for each of them. Make smaller Input Sets, read without a key, or keep the "
        "table in PostgreSQL, where executors ask"
    )


# --- the connections of a RangeSource, while a range of it is read ----------------------------------------------------


@dataclass(frozen=True)
class ReadConnection(DeclaredConnection):
    """A connection of the pipeline, as `frame` of a source sees it."""

    session: Any = None
    payloads: EpochPayloads | None = None
    lasting: ExitStack = field(default_factory=ExitStack)

    def rows(
        self,
        table: str,
        columns: Iterable[str] = (),
        *,
        by: str,
        after: int | None,
        until: int,
        expected: int | None = None,
    ) -> SparkFrame:
        """As `RangeConnection.rows`."""
        assert self.payloads is not None

        def between(described: sa.Table) -> sa.ColumnElement[bool]:
            column = described.columns[by]
            return column <= until if after is None else sa.and_(column > after, column <= until)

        said = f"{by} <= {until}" if after is None else f"{after} < {by} <= {until}"
        begins = f"{self.reader}, "
        wanted = TableRows(table, tuple(columns), between, by, said, begins, (by,), expected)
        return self.lasting.enter_context(rows_frame(self.session, self.payloads, self.warehouse(), self.url, wanted))


@contextmanager
def range_connections(
    session: Any, payloads: EpochPayloads, connections: Connections, reader: str
) -> Iterator[Callable[[str], ReadConnection]]:
    """Connections by name, for `frame` of the source `reader`. The jobs of what it returns must end within the block.

    Errors of tasks come out as from `rows_frame`.
    """
    with ExitStack() as lasting:

        def named(name: str) -> ReadConnection:
            asked = connections.source(name, reader)
            return ReadConnection(asked.url, asked.warehouse, asked.reader, session, payloads, lasting)

        yield named
