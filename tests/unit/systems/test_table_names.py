"""Which table a writer's name means, and that two names of one table have one owner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.dataflow import QuerySource
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ConfigurationError, WriteRefused
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.warehouse import Warehouse
from tests.support.warehouse import change, rows_of

OLD, NEW = ("old", 1.0), ("new", 2.0)
Run = tuple[str, float]


def write(warehouse: Warehouse, table: str, run: Run, *numbers: int, columns: bool = True) -> None:
    """Number 1 begins the run; each other one inserts itself."""
    writer = TableWriter("wh", table, {"a": "bigint"} if columns else None, on_new_run="replace")
    actions = [
        WriteAction(
            run[0], "save", "wh", number, 1,
            pa.table({}) if number == 1 else pa.table({"a": [number]}),
            {"action": "begin" if number == 1 else "insert"},
        )
        for number in numbers
    ]  # fmt: skip
    warehouse.apply(Marker(run[0], "save", "wh", 0, 1, run[1]), writer, actions)


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Warehouse]:
    change(postgres_url, "CREATE SCHEMA s")
    with closing(Warehouse("wh", postgres_url)) as warehouse:
        yield warehouse


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Warehouse]:
    with closing(Warehouse("wh", f"sqlite:///{tmp_path}/wh.db")) as warehouse:
        yield warehouse


def tables(url: str) -> list[Any]:
    query = "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname IN ('s', 'public') ORDER BY 1"
    return [name for (name,) in rows_of(url, query) if "logio_" not in name]


@pytest.mark.postgres
@pytest.mark.parametrize("columns", [True, False], ids=["declared", "as the database has it"])
def test_a_table_of_a_schema_gets_its_rows(postgres: Warehouse, postgres_url: str, columns: bool) -> None:
    change(postgres_url, "CREATE TABLE s.t (a bigint)")
    before = tables(postgres_url)
    write(postgres, "s.t", NEW, 1, 2, 3, columns=columns)
    assert rows_of(postgres_url, "SELECT a FROM s.t ORDER BY a") == [(2,), (3,)]
    assert tables(postgres_url) == before
    assert postgres.read(TableRead("wh", "s.t")).to_pydict() == {"a": [2, 3]}
    source = QuerySource("wh", table="s.t")
    connection = Connections("p", {"wh": postgres_url}, WriterIdentity("run", 1, 0.0), 1.0).source("wh")
    (batch,) = source.read_from(connection, {}, source.action({}), 0)
    assert batch.table.to_pydict() == {"a": [2, 3]}


@pytest.mark.postgres
def test_a_missing_table_is_made_in_its_schema(postgres: Warehouse, postgres_url: str) -> None:
    before = tables(postgres_url)
    write(postgres, "s.made", NEW, 1, 2)
    assert set(tables(postgres_url)) - set(before) == {"s.made"}
    with pytest.raises(WriteRefused, match='schema "nowhere" does not exist'):
        write(postgres, "nowhere.t", NEW, 1)


@pytest.mark.postgres
@pytest.mark.parametrize(("first", "second"), [("t", "public.t"), ("public.t", "t")])
def test_two_names_of_one_table_have_one_owner(postgres: Warehouse, first: str, second: str) -> None:
    write(postgres, first, OLD, 1, 2)
    write(postgres, second, NEW, 1, 2)
    with pytest.raises(WriteRefused, match="belongs to run new"):
        write(postgres, first, OLD, 3)
    assert postgres.read(TableRead("wh", "t")).to_pydict() == {"a": [2]}


@pytest.mark.postgres
def test_connections_of_different_default_schemas_find_one_owner(postgres: Warehouse, postgres_url: str) -> None:
    write(postgres, "s.t", OLD, 1, 2)
    with closing(Warehouse("wh", f"{postgres_url}?options=-csearch_path%3Ds,public")) as inside:
        write(inside, "t", NEW, 1, 2)
    with pytest.raises(WriteRefused, match="belongs to run new"):
        write(postgres, "s.t", OLD, 3)
    assert rows_of(postgres_url, "SELECT a FROM s.t") == [(2,)]


@pytest.mark.postgres
def test_postgresql_distinguishes_upper_case_from_lower_case(postgres: Warehouse) -> None:
    write(postgres, "T", OLD, 1, 2)
    write(postgres, "t", NEW, 1, 2)
    write(postgres, "T", OLD, 3)
    assert postgres.read(TableRead("wh", "T")).to_pydict() == {"a": [2, 3]}


def test_sqlite_does_not_distinguish_upper_case_from_lower_case(sqlite: Warehouse) -> None:
    write(sqlite, "Sales", OLD, 1, 2)
    write(sqlite, "sales", NEW, 1, 2)
    with pytest.raises(WriteRefused, match="belongs to run new"):
        write(sqlite, "main.SALES", OLD, 3)
    assert sqlite.read(TableRead("wh", "sales")).to_pydict() == {"a": [2]}


def test_owners_that_an_earlier_version_has_stored_in_sqlite_count_by_the_newest(sqlite: Warehouse) -> None:
    write(sqlite, "warm", ("warm", 1.0), 1)
    with sqlite.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE Sales (a BIGINT)"))
        connection.execute(sa.text("INSERT INTO logio_owner VALUES ('Sales', 'new', 2.0), ('sales', 'old', 1.0)"))
    with pytest.raises(WriteRefused, match="belongs to run new"):
        write(sqlite, "sales", OLD, 1)
    write(sqlite, "sales", ("newest", 3.0), 1, 2)
    with sqlite.engine.connect() as connection:
        owners = connection.execute(
            sa.text("SELECT DISTINCT run_uid FROM logio_owner WHERE lower(table_name) = 'sales'")
        )
        assert owners.scalars().all() == ["newest"]


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
@pytest.mark.parametrize("table", ["t", '"it\'s 5%"', '"a.b"', '"Größe"'])
def test_a_claim_is_taken_back_by_the_statement_of_the_message(
    database: str, table: str, request: pytest.FixtureRequest
) -> None:
    """Its names are as the database has them."""
    warehouse: Warehouse = request.getfixturevalue(database)
    where = table
    if database == "postgres":
        with warehouse.engine.begin() as connection:
            connection.exec_driver_sql('CREATE SCHEMA "My.Schema"')
        where = f'"My.Schema".{table}'
    write(warehouse, where, NEW, 1, 2)
    writer = TableWriter("wh", where, {"a": "bigint"}, on_new_run="append")
    begin = WriteAction("old", "save", "wh", 1, 1, pa.table({}), {"action": "begin"})
    with pytest.raises(WriteRefused, match="belongs to run new") as refused:
        warehouse.apply(Marker("old", "save", "wh", 0, 1, 1.0), writer, [begin])
    advised = str(refused.value).partition("retry this run: ")[2]
    with warehouse.engine.begin() as connection:
        connection.connection.cursor().execute(advised)  # as it is: no sign means anything to SQLAlchemy
    warehouse.apply(Marker("old", "save", "wh", 0, 1, 1.0), writer, [begin])


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_run_resumes_with_the_rows_that_an_earlier_version_has_stored(
    database: str, request: pytest.FixtureRequest
) -> None:
    """In the default schema, and under the name that the author wrote."""
    warehouse: Warehouse = request.getfixturevalue(database)
    with warehouse.engine.begin() as connection:
        for statement in (
            "CREATE TABLE logio_marker (run_uid VARCHAR(32), operator VARCHAR(250), connection VARCHAR(250), "
            "slot INTEGER, last_write BIGINT NOT NULL, token BIGINT NOT NULL, "
            "PRIMARY KEY (run_uid, operator, connection, slot))",
            "CREATE TABLE logio_owner (table_name VARCHAR(250) PRIMARY KEY, run_uid VARCHAR(32) NOT NULL, "
            "started_at DOUBLE PRECISION NOT NULL)",
            'CREATE TABLE "Sales" (a BIGINT)',
            "INSERT INTO logio_marker VALUES ('old', 'save', 'wh', 0, 2, 1)",
            "INSERT INTO logio_owner VALUES ('Sales', 'old', 1.0)",
        ):
            connection.execute(sa.text(statement))
    write(warehouse, "Sales", OLD, 2, 3)
    assert warehouse.read(TableRead("wh", "Sales")).to_pydict() == {"a": [3]}
    write(warehouse, "Sales", NEW, 1)
    with pytest.raises(WriteRefused, match="belongs to run new"):
        write(warehouse, "Sales", OLD, 4)


@pytest.mark.postgres
def test_a_role_that_may_make_no_tables_is_told_which_ones_it_needs(postgres: Warehouse, postgres_url: str) -> None:
    role = f"clerk_of_{postgres_url.rpartition('/')[2]}"
    change(postgres_url, "CREATE TABLE s.t (a bigint)")
    change(postgres_url, f"CREATE ROLE {role} LOGIN")
    change(postgres_url, f"GRANT USAGE ON SCHEMA s TO {role}")
    change(postgres_url, f"GRANT SELECT, INSERT, DELETE ON s.t TO {role}")
    with closing(Warehouse("wh", postgres_url.replace("//postgres@", f"//{role}@"))) as limited:
        with pytest.raises(WriteRefused, match=r"keeps logio_owner in its schema .*: permission denied for schema"):
            write(limited, "s.t", NEW, 1)
        write(postgres, "s.t", OLD, 1)
        for table in ("s.logio_owner", "public.logio_marker"):
            change(postgres_url, f"GRANT SELECT, INSERT, UPDATE ON {table} TO {role}")
        write(limited, "s.t", NEW, 1, 2)
    assert rows_of(postgres_url, "SELECT a FROM s.t") == [(2,)]
    change(postgres_url, f"DROP OWNED BY {role}")
    change(postgres_url, f"DROP ROLE {role}")


def test_sqlite_has_no_schemas(sqlite: Warehouse) -> None:
    with pytest.raises(ConfigurationError, match="SQLite has no schemas; write 't'"):
        write(sqlite, "s.t", NEW, 1)


# --- sessions ---------------------------------------------------------------------------------------------------------


def at_once(*acts: Callable[[], object]) -> list[Exception]:
    """Run them together; returns their errors."""
    errors: list[Exception] = []
    barrier = threading.Barrier(len(acts))

    def run(act: Callable[[], object]) -> None:
        barrier.wait()
        try:
            act()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    return errors


@pytest.mark.postgres
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_runs_begin_at_once_whatever_the_default_isolation_of_the_server_is(postgres_url: str, level: str) -> None:
    """A snapshot that is older than the lock it waits for does not see the table that another driver has just made."""
    name = postgres_url.rpartition("/")[2]
    change(postgres_url, f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
    opened = [Warehouse("wh", postgres_url) for _ in range(4)]
    acts = [
        lambda warehouse=warehouse, number=number: write(warehouse, f"t{number}", (f"run{number}", 1.0), 1, 2)
        for number, warehouse in enumerate(opened)
    ]
    assert at_once(*acts) == []
    with opened[0].engine.begin() as connection:
        assert connection.execute(sa.text("SHOW transaction_isolation")).scalar_one() == "read committed"
    for warehouse in opened:
        warehouse.close()
