"""QuerySource on real databases: one snapshot, typed columns, and what makes a query replayable."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio import databases
from airflow_logio.dataflow import Count, Days, Pipeline, QuerySource, SourceBatch
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    PipelineDefinitionError,
    SourceChanged,
    SourceNotOrdered,
)
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.databases.table_reads import ROWS_PER_PIECE
from tests.support.postgres import PostgresServer

COLUMNS = {"id": "bigint", "name": "text", "price": "double", "at": "timestamp", "day": "date", "ok": "boolean"}
NOON = dt.datetime.fromisoformat("2024-05-17T12:00:00.123456")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shop.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    made = server.new_database()
    yield made
    server.drop_database(made)


class Shop:
    """Table `sale` of an external database."""

    def __init__(self, url: str, rows: int) -> None:
        parsed = sa.make_url(url)
        if parsed.get_backend_name() == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg2")
        self.engine = sa.create_engine(parsed)
        kinds: dict[str, Any] = {
            "bigint": sa.BigInteger,
            "text": sa.Text,
            "double": sa.Numeric(12, 2, asdecimal=False),
            "timestamp": sa.DateTime,
            "date": sa.Date,
            "boolean": sa.Boolean,
        }
        self.table = sa.Table("sale", sa.MetaData(), *(sa.Column(name, kinds[kind]) for name, kind in COLUMNS.items()))
        self.table.metadata.create_all(self.engine)
        self.add(*range(rows))
        self.connections = Connections("p", {"shop": url}, WriterIdentity("run", 1, 0.0), 5)

    def add(self, *keys: int) -> None:
        rows = [
            {
                "id": key,
                "name": f"n{key}" if key % 3 else None,
                "price": key / 4,
                "at": NOON,
                "day": NOON.date(),
                "ok": True,
            }
            for key in keys
        ]
        with self.engine.begin() as connection:
            if rows:
                connection.execute(sa.insert(self.table), rows)

    def run(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text(statement))

    def read(self, source: QuerySource, offset: int = 0, **params: Any) -> list[SourceBatch]:
        return list(self.begin(source, offset, **params))

    def begin(self, source: QuerySource, offset: int = 0, **params: Any) -> Iterator[SourceBatch]:
        return source.read_from(self.connections.source("shop"), params, source.action(params), offset)

    def close(self) -> None:
        self.engine.dispose()
        self.connections.close()


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    made = Shop(url, 25)
    yield made
    made.close()


def ids(batches: list[SourceBatch]) -> list[list[int]]:
    return [batch.table.column("id").to_pylist() for batch in batches]


def test_a_table_with_the_types_of_its_columns(shop: Shop) -> None:
    batches = shop.read(QuerySource("shop", table="sale", records_per_event=10))
    assert [(batch.table.num_rows, batch.next_offset) for batch in batches] == [(10, 10), (10, 20), (5, 25)]
    assert batches[1].about == {"first": 10, "last": 19}
    types = [pa.int64(), pa.string(), pa.decimal128(12, 2), pa.timestamp("us"), pa.date32(), pa.bool_()]
    assert batches[0].table.schema == pa.schema(list(zip(COLUMNS, types, strict=True)))
    row = batches[0].table.slice(1, 1).to_pylist()[0]
    assert row == {"id": 1, "name": "n1", "price": Decimal("0.25"), "at": NOON, "day": NOON.date(), "ok": True}


def test_some_columns_of_a_table(shop: Shop) -> None:
    (batch,) = shop.read(QuerySource("shop", table="sale", columns=("price", "id")))
    assert batch.table.column_names == ["price", "id"]


def test_a_query_with_parameters_of_the_run(shop: Shop) -> None:
    query = "SELECT id, name, 'a:b :c' AS said FROM sale WHERE id >= :low AND name IS NOT NULL;"
    source = QuerySource("shop", query, columns={"id": "bigint", "said": "text"})
    assert source.placeholders() == {"low"}
    (batch,) = shop.read(source, low=20)
    assert batch.table.to_pydict() == {"id": [20, 22, 23], "said": ["a:b :c"] * 3}
    hostile = QuerySource("shop", "SELECT id FROM sale WHERE name = :name", columns={"id": "bigint"})
    assert shop.read(hostile, name="'; DROP TABLE sale; --") == []
    assert len(shop.read(QuerySource("shop", table="sale"))) == 1


@pytest.mark.parametrize("column", ["at timestamptz", "at timestamp"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_the_instants_of_a_day_are_compared_as_instants(url: str, column: str, zone: str) -> None:
    """Rows at both bounds and beside them. Of a PostgreSQL column without a zone, the query says which one it is in."""
    shop = Shop(url, 0)
    is_sqlite = url.startswith("sqlite")
    shop.run(f"CREATE TABLE sold (id bigint, {column})")
    times = [
        "2026-02-28 22:59:59.999999",
        "2026-02-28 23:00:00.000000",
        "2026-03-01 22:59:59.999999",
        "2026-03-01 23:00:00",
    ]
    offset = "+00" if column.endswith("tz") and not is_sqlite else ""
    for number, at in enumerate(times):
        shop.run(f"INSERT INTO sold VALUES ({number}, '{at}{offset}')".replace(":", r"\:"))
    if not is_sqlite:
        shop.run(f"ALTER DATABASE {sa.make_url(url).database} SET timezone TO '{zone}'")
    in_utc = "" if is_sqlite or column.endswith("tz") else " AT TIME ZONE 'UTC'"
    query = f"SELECT id FROM sold WHERE at >= :day_start{in_utc} AND at < :day_end{in_utc}"
    pipeline = Pipeline("p", connections=["shop"], partition=Days("day", zone="Europe/Berlin"))
    pipeline.sink("done", Count(), pipeline.source("read", QuerySource("shop", query, columns={"id": "bigint"})))
    source: Any = pipeline.operators["read"]
    params = pipeline.check_params({}, Days("day", zone="Europe/Berlin").key_of("2026-03-01"))
    assert ids(shop.read(source, **params)) == [[1, 2]]
    shop.close()


def test_an_instant_finds_what_a_function_of_sqlite_makes(tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'shop.db'}", 0)
    shop.run("CREATE TABLE sold (id bigint, at text)")
    for number, at in enumerate(("2026-02-28T22:59:59Z", "2026-02-28T23:00:00Z", "2026-03-02T00:30:00+02:00")):
        shop.run(f"INSERT INTO sold VALUES ({number}, '{at}')".replace(":", r"\:"))
    query = "SELECT id FROM sold WHERE datetime(at) >= :day_start AND datetime(at) < :day_end"
    source = QuerySource("shop", query, columns={"id": "bigint"}).with_instants(("day_start", "day_end"))
    day = Days("day", zone="Europe/Berlin")
    params: dict[str, Any] = dict(day.parameters(day.key_of("2026-03-01")))
    assert ids(shop.read(source, **params)) == [[1, 2]]
    shop.close()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM sale WHERE id < 2 -- the first ones",
        "SELECT id FROM sale WHERE id < 2; -- the first ones; all of them\n",
        "SELECT id FROM sale /* at :noon */ WHERE id < 2 ;; /* the :rest\n; */\n-- later: :x",
        "-- what is asked: :nothing\nSELECT id FROM sale WHERE '-- :a ;' <> 'b' AND id < 2",
        'SELECT "i:d" AS id FROM (SELECT id AS "i:d" FROM sale WHERE id < 2) AS quoted',
    ],
)
def test_comments_and_semicolons_are_no_part_of_a_query(shop: Shop, query: str) -> None:
    source = QuerySource("shop", query, columns={"id": "bigint"}, order_by="id")

    assert source.placeholders() == frozenset()
    assert ids(shop.read(source)) == [[0, 1]]


ANYWHERE = [
    "SELECT 'it''s :x' AS said",
    "SELECT 'a' /* :x */ || :mark AS said -- :x",
    """SELECT "k:x" AS said FROM (SELECT ':x' AS "k:x") AS quoted""",
    "SELECT CAST(:mark AS varchar(20)) || ':x::y:' AS said",
    "SELECT CASE WHEN :mark = 'm' THEN :mark ELSE ':x' END AS said",
]
OF_POSTGRES = [
    r"SELECT E'it\'s :x' AS said",
    r"SELECT e'a\\' || :mark || E'\'' || ':x' AS said",
    "SELECT E'a'\n '\\':x' || :mark AS said",
    r"SELECT 'back\' || :mark || ' :x' AS said",
    "SELECT $$it's :x$$ || $a_1$ :x $$ $a_1$ || :mark AS said",
    "SELECT /* a /* :x */ ' :x */ :mark AS said",
    "SELECT :mark::text||1::text||'::x'::text AS said",
    "SELECT CAST(:mark::varchar AS text) AS said",
    "SELECT (ARRAY['a', :mark, 'c'])[1:2]::text AS said",
    "SELECT (them[lo:hi])::text || them[lo : hi]::text || them[lo :hi]::text || them[(lo):hi]::text AS said "
    "FROM (SELECT ARRAY['a', 'b', :mark] AS them, 2 AS lo, 3 AS hi) AS it",
    "SELECT (ARRAY[[1, 2], [3, 4]])[1:2][length(:mark):2]::text AS said",
    "SELECT a$b AS said FROM (SELECT :mark AS a$b) AS dollars",
]
OF_SQLITE = [
    "SELECT [k :x] AS said FROM (SELECT ':x' AS [k :x]) AS quoted",
    "SELECT `k:x` || :mark AS said FROM (SELECT ':x' AS `k:x`) AS quoted",
    "SELECT 'a' /* a /* :x */ || :mark AS said",
    r"SELECT 'back\' || :mark || ' :x' AS said",
]


def test_only_a_parameter_is_one_and_the_rest_of_the_query_is_as_it_is_written(url: str) -> None:
    """Compared with what the database's own client says, which knows no parameters."""
    shop = Shop(url, 0)
    for query in ANYWHERE + (OF_SQLITE if url.startswith("sqlite") else OF_POSTGRES):
        source = QuerySource("shop", query, columns={"said": "text"})
        assert source.placeholders() == ({"mark"} if ":mark" in query else set()), query
        raw = shop.engine.raw_connection()
        cursor = raw.cursor()
        cursor.execute(query.replace(":mark", "'m'"))
        expected = cursor.fetchall()
        raw.close()
        (batch,) = shop.read(source, mark="m")
        assert batch.table["said"].to_pylist() == [row[0] for row in expected], query
    shop.close()


def test_one_snapshot_however_long_it_takes(url: str) -> None:
    shop = Shop(url, 0)
    shop.add(*range(ROWS_PER_PIECE + 500))
    reading = shop.begin(QuerySource("shop", table="sale", columns=("id",), records_per_event=1000))
    first = next(reading)
    shop.run("DELETE FROM sale WHERE id > 10")
    shop.add(-1)
    rest = list(reading)
    assert first.table.num_rows + sum(batch.table.num_rows for batch in rest) == ROWS_PER_PIECE + 500
    assert not any(-1 in batch for batch in ids(rest))
    shop.close()


@pytest.mark.postgres
def test_a_query_outlasts_a_group_that_is_held_up(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends those that stand still in a transaction, but not soon those that read."""
    monkeypatch.setattr(databases, "IDLE_IN_TRANSACTION_SECONDS", 1)
    shop = Shop(postgres_url, 0)
    shop.add(*range(ROWS_PER_PIECE + 500))
    reading = shop.begin(QuerySource("shop", table="sale", columns=("id",), records_per_event=1000))
    first = next(reading)
    time.sleep(1.5)
    assert first.table.num_rows + sum(batch.table.num_rows for batch in reading) == ROWS_PER_PIECE + 500
    shop.close()


def replayable(order_by: Any = "id", **settings: Any) -> QuerySource:
    return QuerySource(
        "shop", table="sale", order_by=order_by, replayable=True, append_only=True, records_per_event=10, **settings
    )


@pytest.mark.parametrize("offset", [0, 1, 7, 10, 24, 25])
def test_a_replay_goes_on_behind_any_offset(shop: Shop, offset: int) -> None:
    found = [key for batch in ids(shop.read(replayable(), offset)) for key in batch]
    assert found == list(range(offset, 25))


def test_an_earlier_result_is_a_prefix_of_a_later_one(shop: Shop) -> None:
    source = replayable(("id",))
    before = shop.read(source)[:2]
    shop.add(25, 26)
    assert ids(before) + ids(shop.read(source, 20)) == [list(range(10)), list(range(10, 20)), list(range(20, 27))]


@pytest.mark.parametrize("offset", [0, 10])
def test_ties_are_refused(shop: Shop, offset: int) -> None:
    shop.add(9)
    with pytest.raises(SourceNotOrdered, match=r"rows 9 and 10 .* are equal in 'id'"):
        shop.read(replayable(), offset)


def test_ties_across_pieces_and_columns(url: str) -> None:
    shop = Shop(url, 0)
    shop.add(*range(ROWS_PER_PIECE), ROWS_PER_PIECE - 1)
    with pytest.raises(SourceNotOrdered, match=f"{ROWS_PER_PIECE - 1:,} and {ROWS_PER_PIECE:,}"):
        shop.read(replayable(("price", "id"), columns=("price", "id")))
    shop.close()


def test_null_in_the_order_is_refused(shop: Shop) -> None:
    with pytest.raises(SourceNotOrdered, match="has no 'name'"):
        shop.read(replayable(("ok", "name")))


def test_rows_that_are_gone_are_noticed(shop: Shop) -> None:
    shop.run("DELETE FROM sale WHERE id > 5")
    with pytest.raises(SourceChanged, match="returned 20 rows before"):
        shop.read(replayable(), 20)


def test_what_the_database_refuses_is_a_configuration_error(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="refused the query"):
        shop.read(QuerySource("shop", "SELECT nothing FROM nowhere", columns={"nothing": "text"}))
    with pytest.raises(ConfigurationError, match="'nowhere' that a source reads does not exist"):
        shop.read(QuerySource("shop", table="nowhere"))
    with pytest.raises(ConfigurationError, match="no column 'nothing'"):
        shop.read(QuerySource("shop", table="sale", columns=("nothing",)))


def test_a_database_that_is_away_is_waited_for() -> None:
    connections = Connections("p", {"shop": "postgresql://u@127.0.0.1:1/x"}, WriterIdentity("run", 1, 0.0), 5)
    source = QuerySource("shop", table="sale")
    with pytest.raises(ExternalUnavailable, match="'shop'"):
        list(source.read_from(connections.source("shop"), {}, source.action({}), 0))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "either a query or a table"),
        ({"query": "SELECT 1 AS x", "table": "t"}, "either a query or a table"),
        ({"query": "SELECT 1 AS x"}, "need types"),
        ({"query": "SELECT 1 AS x", "columns": ("x",)}, "need types"),
        ({"table": "t", "columns": {"x": "varchar"}}, "not one of 'bigint'"),
        ({"table": "t.u; DROP TABLE t.u"}, "not allowed"),
        ({"table": "t", "order_by": "y", "columns": ("x",)}, "'y', which is not among"),
        ({"table": "t", "replayable": True}, "needs order_by"),
        ({"table": "t", "replayable": True, "order_by": "id"}, "append_only=True"),
        ({"table": "t", "records_per_event": 0}, "records_per_event"),
    ],
)
def test_what_is_refused_when_it_is_defined(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=says):
        QuerySource("shop", **settings)


def test_the_pipeline_must_name_the_connection() -> None:
    pipeline = Pipeline("p", connections=["warehouse"])
    with pytest.raises(PipelineDefinitionError, match="uses connection 'shop'"):
        pipeline.source("s", QuerySource("shop", table="sale"))


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM orders",
        " -- tidy up, don't ask\n delete from orders returning id",
        "UPDATE orders SET total = 0",
        "WITH gone AS (DELETE FROM orders RETURNING id) SELECT id FROM gone",
        "WITH done AS (UPDATE shop.orders SET total = 0 RETURNING id) SELECT id FROM done",
        'WITH done AS (UPDATE "my shop"."orders" SET total = 0 RETURNING id) SELECT id FROM done',
        "WITH done AS (UPDATE ONLY orders SET total = 0 RETURNING id) SELECT id FROM done",
        "WITH done AS (UPDATE orders AS o SET total = 0 RETURNING o.id) SELECT id FROM done",
        "WITH done AS (UPDATE ONLY shop.orders * o SET total = 0 RETURNING o.id) SELECT id FROM done",
        "WITH new AS (INSERT INTO orders VALUES (1) RETURNING id) SELECT id FROM new",
        "SELECT id INTO copied FROM orders",
        "SELECT id\nINTO TEMPORARY TABLE copied FROM orders",
        "SELECT id FROM orders; DROP TABLE orders",
        "",
    ],
)
def test_what_is_not_one_select_is_refused_when_it_is_defined(query: str) -> None:
    with pytest.raises(PipelineDefinitionError, match="one SELECT"):
        QuerySource("shop", query, columns={"id": "bigint"})


@pytest.mark.parametrize(
    "query",
    [
        "(SELECT id FROM orders) UNION (SELECT id FROM gone);",
        "WITH few AS (SELECT id FROM orders) SELECT id FROM few",
        "/* it's; all */ SELECT 'delete from x; ' AS a, \"update y set\" FROM orders -- drop table z;",
        "SELECT id FROM orders FOR UPDATE",
        "SELECT o.update, o.into, o.set AS into, 1 AS set FROM orders o WHERE o.day > :into FOR UPDATE OF o",
        "VALUES (1)",
    ],
)
def test_every_kind_of_select_is_taken(query: str) -> None:
    assert QuerySource("shop", query, columns={"id": "bigint"}).query == query
