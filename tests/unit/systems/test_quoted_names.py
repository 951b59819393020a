"""Names of an author's reach SQL as names: keywords, letters of any kind, quotes and signs, on each kind of database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.dataflow import Count, EveryEvents, Pipeline, QuerySource, TableSource, generate
from airflow_logio.dataflow.names import schema_and_table
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.databases.table_inserts import prepared
from airflow_logio.systems.databases.table_names import folded, table_name
from airflow_logio.systems.inspection import inspect_systems
from airflow_logio.systems.rising_columns import rising_column
from airflow_logio.systems.staging_tables import StagingTables, _make, noted
from airflow_logio.systems.stored_records import StagedFiles, check_whole, move
from airflow_logio.systems.warehouse import Warehouse
from tests.support.mariadb import mariadb
from tests.support.postgres import PostgresServer
from tests.support.warehouse import rows_of, warehouse_engine

SQLITE_KEYWORDS = tuple(
    """
    abort action add after all alter always analyze and as asc attach autoincrement before begin between by cascade case
    cast check collate column commit conflict constraint create cross current current_date current_time current_timestamp
    database default deferrable deferred delete desc detach distinct do drop each else end escape except exclude exclusive
    exists explain fail filter first following for foreign from full generated glob group groups having if ignore immediate
    in index indexed initially inner insert instead intersect into is isnull join key last left like limit match
    materialized natural no not nothing notnull null nulls of offset on or order others outer over partition plan pragma
    preceding primary query raise range recursive references regexp reindex release rename replace restrict returning right
    rollback row rows savepoint select set table temp temporary then ties to transaction trigger unbounded union unique
    update using vacuum values view virtual when where window with without true false rowid oid _rowid_
    """.split()  # noqa: SIM905
)
HOSTILE = (
    *(
        'a"b',
        "a.b",
        "a b",
        " a",
        "a%b",
        "a%sb",
        "a%(x)s",
        "a:b",
        ":x",
        "größe",
        "名前",
        "a'b",
        "a`b",
        "a[b]",
        "a\\b",
        "a;b",
    ),
    *("--a", "/*a", "Total", "1st", "x" * 63, "a{b}", "$1", "?"),
)


def as_sql(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def as_table(*parts: str) -> str:
    """As an author writes it."""
    return ".".join(as_sql(part) if {".", '"', "{"} & set(part) else part for part in parts)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shop.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    made = server.new_database(migrated=False)
    yield made
    server.drop_database(made)


def keywords(url: str) -> Sequence[str]:
    if url.startswith("sqlite"):
        return SQLITE_KEYWORDS
    return [word for (word,) in rows_of(url, "SELECT word FROM pg_get_keywords() ORDER BY 1")]


def execute(url: str, *statements: str) -> None:
    """As they are: no sign means anything to SQLAlchemy."""
    with warehouse_engine(url).begin() as connection:
        cursor = connection.connection.cursor()
        for statement in statements:
            cursor.execute(statement)


def read(url: str, source: QuerySource) -> dict[str, list[Any]]:
    with closing(Connections("p", {"wh": url}, WriterIdentity("run", 1, 0.0), 1.0)) as connections:
        batches = list(source.read_from(connections.source("wh"), {}, source.action({}), 0))
    found: dict[str, list[Any]] = pa.concat_tables([batch.table for batch in batches]).to_pydict()
    return found


def test_every_keyword_is_a_column(url: str) -> None:
    words = keywords(url)
    execute(
        url,
        f"CREATE TABLE t ({', '.join(f'{as_sql(word)} bigint' for word in words)})",
        *(
            f"INSERT INTO t VALUES ({', '.join(str(row * 1000 + place) for place in range(len(words)))})"
            for row in (2, 1)
        ),
    )
    expected = {word: [1000 + place, 2000 + place] for place, word in enumerate(words)}
    typed = dict.fromkeys(words, "bigint")
    for source in (
        QuerySource("wh", table="t", columns=typed, order_by=words),
        QuerySource("wh", table="t", columns=words, order_by=words[-1]),
        QuerySource("wh", table="t", order_by="user" if "user" in words else "order"),
        QuerySource("wh", table="t", columns=words, order_by="all"),
    ):
        assert read(url, source) == expected
    nameless = (
        {"true", "false"} if url.startswith("sqlite") else set()
    )  # SQLite gives the rows of a query no such columns
    named = {word: kind for word, kind in typed.items() if word not in nameless}
    query = QuerySource("wh", "SELECT * FROM t", columns=named, order_by=words[0])
    assert read(url, query) == {word: expected[word] for word in named}
    with closing(Warehouse("wh", url)) as warehouse:
        assert warehouse.read(TableRead("wh", "t")).num_rows == 2
        found = warehouse.read(TableRead("wh", "t", columns=tuple(words)))
        assert {name: sorted(values) for name, values in found.to_pydict().items()} == expected


def test_every_keyword_is_a_table_a_key_and_an_order(url: str) -> None:
    words = [word for word in keywords(url) if word != "total"]
    statements = [f"CREATE TABLE {as_sql(word)} ({as_sql(word)} bigint, total bigint)" for word in words] + [
        f"INSERT INTO {as_sql(word)} VALUES (3, 30), (1, 10), (2, 20)" for word in words
    ]
    execute(url, *statements)
    with closing(Connections("p", {"wh": url}, WriterIdentity("run", 1, 0.0), 1.0)) as connections:
        for word in words:
            source = QuerySource("wh", table=word, columns={word: "bigint"}, order_by=word)
            (batch,) = source.read_from(connections.source("wh"), {}, source.action({}), 0)
            assert batch.table.to_pydict() == {word: [1, 2, 3]}, word
        for word in words[::7]:
            by_key = connections.warehouse("wh").read(TableRead("wh", word, key=word), pa.array([2, 9]))
            assert by_key.to_pydict() == {word: [2], "total": [20]}, word


def test_names_that_our_own_statements_have_are_an_authors_names_too(url: str) -> None:
    own = (
        "logio_place",
        "logio_place_",
        "logio_asked",
        "place",
        "value",
        "column1",
        "k0",
        "logio_keys",
        "rows_of_query",
    )
    execute(
        url,
        f"CREATE TABLE t ({', '.join(f'{name} bigint' for name in own)})",
        *(f"INSERT INTO t VALUES ({', '.join(str(10 * n + at) for at in range(len(own)))})" for n in (1, 2)),
    )
    with closing(Warehouse("wh", url)) as warehouse:
        for at, name in enumerate(own):
            found = warehouse.read(TableRead("wh", "t", key=name), pa.array([20 + at, 5]))
            assert found.to_pydict() == {other: [20 + place] for place, other in enumerate(own)}
    assert read(url, QuerySource("wh", table="t", columns=own, order_by=own[0]))["logio_place"] == [10, 20]


def test_the_order_is_that_of_the_column(url: str) -> None:
    """`ORDER BY user` is the order of a constant: one that the result may have in any way."""
    execute(url, 'CREATE TABLE t (n bigint, "user" text, "current_date" text)')
    execute(url, *(f"INSERT INTO t VALUES ({n}, 'u{9 - n}', 'd{n}')" for n in (5, 1, 7, 3)))
    columns = {"user": "text", "current_date": "text"}
    source = QuerySource("wh", table="t", columns=columns, order_by="user", append_only=True, replayable=True)
    assert read(url, source) == {"user": ["u2", "u4", "u6", "u8"], "current_date": ["d7", "d5", "d3", "d1"]}


@pytest.mark.postgres
def test_upper_case_is_not_lower_case(postgres_url: str) -> None:
    execute(postgres_url, 'CREATE TABLE t (total bigint, "Total" bigint)', "INSERT INTO t VALUES (1, 2)")
    for names in (("Total",), ("total",), ("total", "Total")):
        assert read(postgres_url, QuerySource("wh", table="t", columns=names)) == {
            name: [{"total": 1, "Total": 2}[name]] for name in names
        }
    query = QuerySource("wh", "SELECT total FROM t", columns={"Total": "bigint"})
    with pytest.raises(ConfigurationError, match=r'Perhaps you meant .* column "rows_of_query\.total"'):
        read(postgres_url, query)


def test_a_name_that_is_no_column_is_no_text(url: str) -> None:
    """SQLite takes a name in double quotes that it does not find for a text."""
    execute(url, "CREATE TABLE t (a bigint)", "INSERT INTO t VALUES (1)")
    for source in (
        QuerySource("wh", table="t", columns={"No such": "text"}),
        QuerySource("wh", "SELECT a FROM t", columns={"no": "text"}),
        QuerySource("wh", table="t", order_by="No"),
    ):
        with pytest.raises(ConfigurationError):
            read(url, source)


@pytest.mark.postgres
@pytest.mark.parametrize("name", ["count", "row_to_json", "json_agg", "num_nulls", "total", "to_jsonb"])
def test_a_name_that_is_no_column_is_no_function(name: str, postgres_url: str) -> None:
    """PostgreSQL takes `t.count` for `count(t)` where there is no such column: one row, and a number of rows in it."""
    execute(
        postgres_url,
        "CREATE TABLE t (a bigint)",
        "INSERT INTO t VALUES (1), (2)",
        "CREATE FUNCTION total(t) RETURNS bigint LANGUAGE sql AS 'SELECT 7::bigint'",
    )
    kind = "bigint" if name in ("count", "num_nulls", "total") else "json"
    for source in (
        QuerySource("wh", table="t", columns={name: kind}),
        QuerySource("wh", "SELECT * FROM t", columns={name: kind}),
        QuerySource("wh", table="t", order_by=name),
    ):
        with pytest.raises(ConfigurationError, match=f'column "{name}" does not exist'):
            read(postgres_url, source)
    execute(postgres_url, f'ALTER TABLE t ADD COLUMN "{name}" text DEFAULT 5')
    assert read(postgres_url, QuerySource("wh", table="t", columns=("a", name), order_by="a")) == {
        "a": [1, 2],
        name: ["5", "5"],
    }


def write(
    warehouse: Warehouse, table: str, columns: Mapping[str, str] | None, key: Sequence[str], rows: pa.Table
) -> None:
    writer = TableWriter("wh", table, columns, key, on_new_run="replace", lineage_column=None)
    marker = Marker("run", table, "wh", 0, 1, 1.0)
    begin = WriteAction("run", table, "wh", 1, 1, pa.table({}), {"action": "begin"})
    warehouse.apply(marker, writer, [begin, WriteAction("run", table, "wh", 2, 1, rows, {"action": "insert"})])


def test_hostile_names_are_written_and_read_as_they_are(url: str) -> None:
    columns = {name: "bigint" for name in HOSTILE}
    rows = pa.table({name: [place, place + 100] for place, name in enumerate(HOSTILE)})
    with closing(Warehouse("wh", url)) as warehouse:
        for name in HOSTILE:
            write(warehouse, as_table(name), columns, HOSTILE[:3], rows)
        for name in HOSTILE:
            table = as_table(name)
            assert warehouse.read(TableRead("wh", table)).to_pydict() == rows.to_pydict(), name
            (only,) = warehouse.read(TableRead("wh", table, key=name), pa.array([rows[name][1].as_py()])).to_pylist()
            assert only == rows.to_pylist()[1], name
            for source in (
                QuerySource("wh", table=table, columns=columns, order_by=name),
                QuerySource("wh", table=table, order_by=HOSTILE),
                QuerySource("wh", f"SELECT * FROM {as_sql(name)}", columns=columns, order_by=name),
            ):
                assert read(url, source) == rows.to_pydict(), name
        write(warehouse, as_table(HOSTILE[0]), None, (), rows)
        assert warehouse.read(TableRead("wh", as_table(HOSTILE[0]))).num_rows == 2, "replaced, as the database has it"


@pytest.mark.postgres
def test_hostile_schemas(postgres_url: str) -> None:
    for name in ('a"b', "a.b", "a%sb", "a:b", "größe", "Total"):
        execute(postgres_url, f"CREATE SCHEMA {as_sql(name)}")
        table, rows = as_table(name, name), pa.table({name: [1]})
        with closing(Warehouse("wh", postgres_url)) as warehouse:
            write(warehouse, table, {name: "bigint"}, (name,), rows)
            write(warehouse, table, {name: "bigint"}, (name,), rows)
            assert warehouse.read(TableRead("wh", table)).to_pydict() == {name: [1]}
        assert read(postgres_url, QuerySource("wh", table=table)) == {name: [1]}


@pytest.mark.postgres
def test_hostile_names_are_staged(postgres_url: str) -> None:
    """What executors do with a table: made in a schema of any name, loaded, counted, moved, dropped."""
    execute(postgres_url, "CREATE SCHEMA " + as_sql('st%"a:ge'))
    path = "-csearch_path%3D%22st%25%22%22a:ge%22"
    with pytest.raises(ConfigurationError, match="without ', % and"):
        Warehouse("wh", f"{postgres_url}?options={path}")
    execute(
        postgres_url,
        f"""ALTER ROLE postgres IN DATABASE {postgres_url.rpartition("/")[2]} SET search_path = 'st%"a:ge'""",
    )
    columns, table = dict.fromkeys(HOSTILE, "bigint"), as_table('st%"a:ge', "a%s.b")
    rows = pa.table({name: [place] for place, name in enumerate(HOSTILE)})
    marker = Marker("run", "save", "wh", 0, 1, 1.0)
    writer = TableWriter("wh", table, columns, on_new_run="replace")
    with closing(Warehouse("wh", postgres_url)) as warehouse:
        write(warehouse, table, columns, (), rows)
        with warehouse.for_writes() as connection, connection.begin():
            noted.create(connection)
            target = table_name(connection, table)
            staging = _make(connection, target, list(HOSTILE), marker, 3)
            staged = StagedFiles(staging, {0: "attempt"})
            into = prepared(connection, writer, target, [WriteAction("run", "save", "wh", 3, 1, rows, {})])
            into.insert(connection, rows)
            names = ", ".join(as_sql(name) for name in HOSTILE).replace("%", "%%")
            one = f"SELECT {names}, 0, 'attempt' FROM {target.quoted(connection)} LIMIT 1"
            connection.exec_driver_sql(f"INSERT INTO {staging.quoted(connection)} {one}")
            check_whole(connection, target, HOSTILE, staged, [1])
            move(connection, target, HOSTILE, staged)
        assert StagingTables(warehouse).drop([staging]) == []
        assert warehouse.read(TableRead("wh", table)).num_rows == 3


def test_a_table_is_followed_by_a_column_of_any_name(url: str) -> None:
    kind = "INTEGER PRIMARY KEY AUTOINCREMENT" if url.startswith("sqlite") else "bigint GENERATED ALWAYS AS IDENTITY"
    with closing(Warehouse("wh", url)) as warehouse:
        for name in HOSTILE:
            execute(url, f"CREATE TABLE {as_sql(name)} ({as_sql(name)} {kind}, n bigint)")
            execute(url, f"INSERT INTO {as_sql(name)} (n) VALUES (1), (2)")
            column = rising_column(warehouse, as_table(name), name, append_only=False)
            column.check()
            settled = column.settled(None)
            assert settled is not None and settled.number == 2, name
            assert column.behind(1, 2, 10) == (2, 1), name


def test_systems_are_inspected_by_the_same_names(url: str) -> None:
    execute(url, 'CREATE TABLE "user" ("order" bigint, "a b" text)')

    def findings(columns: tuple[str, ...], key: str | None) -> list[str | None]:
        @generate(reads={"found": TableRead("wh", "user", columns, key)})
        def same(rows: pa.Table, found: pa.Table) -> pa.Table:
            return rows

        p = Pipeline("p", connections=["wh"])
        p.source("orders", QuerySource("wh", table="user", columns={"order": "bigint"}, order_by="order"))
        p.operator("looked", same, "orders", window=EveryEvents(1))
        p.writer("save", TableWriter("wh", "select", {"order": "bigint"}), "looked")
        with closing(Connections("p", {"wh": url}, WriterIdentity("run", 1, 0.0), 1.0)) as connections:
            return [found.problem for found in inspect_systems(p, {}, connections)]

    assert not any(findings(("order", "a b"), "order")), findings(("order", "a b"), "order")
    assert any("no column 'No such'" in str(problem) for problem in findings(("order", "No such"), None))


def test_sqlite_takes_letters_beyond_a_to_z_for_what_they_are(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/wh.db"
    with closing(Warehouse("wh", url)) as warehouse:
        write(warehouse, "Ä", {"Ö": "bigint", "ö": "bigint"}, (), pa.table({"Ö": [1], "ö": [2]}))
        write(warehouse, "ä", {"a": "bigint"}, (), pa.table({"a": [3]}))
        assert warehouse.read(TableRead("wh", "Ä")).to_pydict() == {"Ö": [1], "ö": [2]}
        with warehouse.engine.connect() as connection:
            owners = connection.exec_driver_sql("SELECT table_name FROM logio_owner ORDER BY 1").scalars().all()
            assert owners == sorted([table_name(connection, "Ä").key, table_name(connection, "ä").key])
    assert folded("SÄLES") == "sÄles"


@pytest.mark.parametrize(
    ("table", "schema", "name"),
    [
        ("t", None, "t"),
        ("s.t", "s", "t"),
        ('"a.b"', None, "a.b"),
        ('"a.b"."c""d"', "a.b", 'c"d'),
        ('s."t"', "s", "t"),
        ("my table", None, "my table"),
    ],
)
def test_a_dot_separates_schema_and_table(table: str, schema: str | None, name: str) -> None:
    assert TableRead("wh", table).table == table
    assert schema_and_table(table) == (schema, name)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("a.b.c", "write 'table' or 'schema.table'"),
        ("a.", "write 'table'"),
        (".a", "write 'table'"),
        ("", "write 'table'"),
        ('a"b', "as in SQL"),
        ('"a', "as in SQL"),
        ("x" * 64, "64 bytes, and PostgreSQL cuts names at 63"),
        ("s." + "ö" * 32, "64 bytes"),
        ("a\nb", "cannot be printed"),
        ("a\0b", "cannot be printed"),
        ("sales_{day}", "run parameters"),
    ],
)
def test_a_table_that_no_database_could_mean_is_refused(table: str, said: str) -> None:
    for make in (
        lambda: TableRead("wh", table),
        lambda: QuerySource("wh", table=table),
        lambda: TableSource("wh", table, append_only=True),
        lambda: TableWriter("wh", table),
    ):
        with pytest.raises(PipelineDefinitionError, match=said):
            make()


@pytest.mark.parametrize("name", ["", "x" * 64, "ö" * 32, "a\nb", "a\0b", "\ud800"])
def test_a_column_that_no_database_could_mean_is_refused(name: str) -> None:
    for make in (
        lambda: TableRead("wh", "t", (name,)),
        lambda: TableRead("wh", "t", key=name),
        lambda: QuerySource("wh", table="t", columns=(name,)),
        lambda: QuerySource("wh", table="t", order_by=(name,)),
        lambda: TableSource("wh", "t", name, append_only=True),
        lambda: TableWriter("wh", "t", {name: "bigint"}),
        lambda: TableWriter("wh", "t", lineage_column=name),
    ):
        with pytest.raises(PipelineDefinitionError, match="is not allowed"):
            make()


def test_a_statement_that_an_earlier_version_has_logged_is_asked_as_it_was(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/wh.db"
    execute(url, "CREATE TABLE t (a bigint)", "INSERT INTO t VALUES (1)")
    source = QuerySource("wh", table="t", columns={"a": "bigint"})
    logged = {"connection": "wh", "statement": "SELECT 7 AS a FROM t", "values": {}}
    with closing(Connections("p", {"wh": url}, WriterIdentity("run", 1, 0.0), 1.0)) as connections:
        (batch,) = source.read_from(connections.source("wh"), {}, logged, 0)
    assert batch.table.to_pydict() == {"a": [7]}


@pytest.mark.postgres  # it starts a server
def test_a_database_with_other_quotes() -> None:
    names = [name for name in HOSTILE if name not in ("a\\b", " a")]
    with mariadb() as url:
        engine = sa.create_engine(url)
        columns = ", ".join(f"`{name.replace('`', '``')}` bigint" for name in ["user", "order", *names])
        with engine.begin() as connection:
            cursor = connection.connection.cursor()
            cursor.execute(f"CREATE TABLE `select` ({columns})")
            for row in (2, 1):
                cursor.execute(f"INSERT INTO `select` VALUES ({', '.join(str(row) for _ in range(len(names) + 2))})")
        everything = {name: [1, 2] for name in ["user", "order", *names]}
        for name in everything:
            source = QuerySource("wh", table="select", columns=dict.fromkeys(everything, "bigint"), order_by=name)
            assert read(url, source) == everything, name
        checked = Pipeline("p", connections=["wh"])
        columns_of = dict.fromkeys(everything, "bigint")
        checked.source("rows", QuerySource("wh", table="select", columns=columns_of))
        checked.sink("done", Count(), "rows.out")
        with closing(Connections("p", {"wh": url}, WriterIdentity("run", 1, 0.0), 1.0)) as connections:
            assert [found.problem for found in inspect_systems(checked, {}, connections)] == [None, None]
        with engine.begin() as connection:  # SQLAlchemy cannot describe that one
            connection.connection.cursor().execute("ALTER TABLE `select` DROP COLUMN `a``b`")
        engine.dispose()
        del everything["a`b"]
        with closing(Warehouse("wh", url)) as warehouse:
            for name in everything:
                found = warehouse.read(TableRead("wh", "select", key=name), pa.array([2]))
                assert found.to_pydict() == {name: [2] for name in everything}, name
