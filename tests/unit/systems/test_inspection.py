"""What `logio check` finds out about external systems, and that it leaves them as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.databases import parse_url
from airflow_logio.dataflow import (
    Count,
    Days,
    EveryEvents,
    IdempotentWriter,
    Pipeline,
    QuerySource,
    TableRead,
    TableSource,
    TableWriter,
    WriteAction,
    generate,
)
from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.inspection import check_sql_urls, inspect_systems
from airflow_logio.systems.warehouse import Warehouse
from airflow_logio.systems.warehouse_rows import make_tables
from tests.support.warehouse import change, rows_of


class Mail(IdempotentWriter[None]):
    def connect(self, url: str) -> AbstractContextManager[None]:
        raise ConnectionRefusedError(f"nobody listens at {url}")

    def write(self, client: None, action: WriteAction) -> None: ...


@generate(reads={"names": TableRead("wh", "names", columns=("id", "name"))})
def named(rows: pa.Table, names: pa.Table) -> pa.Table:
    return rows


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/wh.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def filled(url: str) -> Iterator[str]:
    change(url, "CREATE TABLE orders (id BIGINT, total BIGINT)")
    change(url, "CREATE TABLE names (id BIGINT, name TEXT)")
    change(url, "CREATE TABLE out (id BIGINT)")
    change(url, "INSERT INTO out VALUES (7)")
    yield url


def pipeline(*, query: str = "SELECT id, total FROM orders", table: str = "out", **columns: str) -> Pipeline:
    made = Pipeline("p", connections=["wh", "mail"])
    read = made.source("read", QuerySource("wh", query, columns={"id": "bigint", "total": "bigint"}))
    found = made.operator("named", named, read, window=EveryEvents(2))
    made.writer("save", TableWriter("wh", table, columns or {"id": "bigint"}, on_new_run="replace"), found)
    made.writer("send", Mail("mail"), found)
    return made.freeze()


def problems(made: Pipeline, url: str) -> dict[str, str | None]:
    systems = Connections("p", {"wh": url, "mail": "smtp://mail"}, WriterIdentity("check", 1, 0.0), 1.0)
    found = {finding.what: finding.problem for finding in inspect_systems(made, {}, systems)}
    systems.warehouse("wh").close()
    return found


def tables(url: str) -> list[str]:
    engine = sa.create_engine(parse_url(url))
    names = sa.inspect(engine).get_table_names()
    engine.dispose()
    return sorted(names)


def test_what_is_there_is_found_and_left_as_it_is(filled: str) -> None:
    found = problems(pipeline(), filled)
    mail = found.pop("writer 'send', connection 'mail'")
    assert found == {
        "connection 'wh'": None,
        "source 'read', query of 'wh'": None,
        "operator 'named', table 'names' of 'wh'": None,
        "writer 'save', table 'out' of 'wh'": None,
    }
    assert mail is not None and mail.startswith("ConnectionRefusedError: nobody listens at smtp://mail\n  File ")
    assert rows_of(filled, "SELECT id FROM out") == [(7,)], "the table that a run would empty"


def test_a_table_that_a_run_would_make_is_not_made(filled: str) -> None:
    before = tables(filled)
    assert problems(pipeline(table="fresh"), filled)["writer 'save', table 'fresh' of 'wh'"] is None
    assert tables(filled) == before


@pytest.mark.parametrize(
    ("made", "what", "word"),
    [
        (pipeline(query="SELECT id, totals FROM orders"), "source 'read', query of 'wh'", "totals"),
        (pipeline(query="SELECT id, total FROM order_lines"), "source 'read', query of 'wh'", "order_lines"),
        (pipeline(id="bigint", price="double"), "writer 'save', table 'out' of 'wh'", "price"),
    ],
)
def test_what_is_missing_is_named(made: Pipeline, what: str, word: str, filled: str) -> None:
    assert word in (problems(made, filled)[what] or "")


def test_a_read_without_its_column(url: str) -> None:
    change(url, "CREATE TABLE names (id BIGINT)")
    assert "name" in (problems(pipeline(), url)["operator 'named', table 'names' of 'wh'"] or "")


def test_a_database_that_cannot_be_reached_is_one_problem() -> None:
    found = problems(pipeline(), "postgresql://nobody@127.0.0.1:1/x")
    assert found["connection 'wh'"] is not None
    assert set(found) == {"connection 'wh'", "writer 'send', connection 'mail'"}


@pytest.mark.postgres
def test_a_permission_that_is_missing_is_said(postgres_url: str) -> None:
    change(postgres_url, "CREATE TABLE orders (id BIGINT, total BIGINT)")
    change(postgres_url, "CREATE TABLE names (id BIGINT, name TEXT)")
    change(postgres_url, "CREATE TABLE out (id BIGINT)")
    change(postgres_url, "CREATE ROLE reader LOGIN")
    change(postgres_url, "GRANT SELECT, INSERT ON orders, names, out TO reader")
    change(postgres_url, "GRANT CREATE ON SCHEMA public TO reader")
    try:
        url = sa.engine.make_url(postgres_url).set(username="reader").render_as_string(hide_password=False)
        found = problems(pipeline(), url)
        assert "permission denied for table out" in (found["writer 'save', table 'out' of 'wh'"] or ""), "no DELETE"
        assert found["operator 'named', table 'names' of 'wh'"] is None
    finally:
        change(postgres_url, "DROP OWNED BY reader")
        change(postgres_url, "DROP ROLE reader")


@pytest.mark.postgres
def test_rights_on_what_writers_keep_are_tried_where_somebody_else_has_made_it(postgres_url: str) -> None:
    for table in ("orders (id BIGINT, total BIGINT)", "names (id BIGINT, name TEXT)", "out (id BIGINT)"):
        change(postgres_url, f"CREATE TABLE {table}")
    with closing(Warehouse("wh", postgres_url)) as warehouse, warehouse.engine.begin() as connection:
        make_tables(connection, "public")
    change(postgres_url, "CREATE ROLE loader LOGIN")
    change(postgres_url, "GRANT SELECT, INSERT, UPDATE, DELETE ON orders, names, out TO loader")
    url = sa.engine.make_url(postgres_url).set(username="loader").render_as_string(hide_password=False)

    def said() -> str | None:
        return problems(pipeline(), url)["writer 'save', table 'out' of 'wh'"]

    try:
        for kept in ("logio_marker", "logio_owner"):
            for rights in ("SELECT", "INSERT", "UPDATE"):
                found = said() or ""
                assert f"permission denied for table {kept}" in found, f"without {rights}"
                assert "lets it select, insert and update there" in found
                change(postgres_url, f"GRANT {rights} ON {kept} TO loader")
        assert said() is None
        for kept in ("logio_marker", "logio_owner"):
            assert rows_of(postgres_url, f"SELECT count(*) FROM {kept}") == [(0,)], "all was rolled back"
    finally:
        change(postgres_url, "DROP OWNED BY loader")
        change(postgres_url, "DROP ROLE loader")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://example.org/x", "connection 'wh', of operator '.*': 'https' is no kind of SQL database"),
        ("warehouse", "connection 'wh', of operator '.*': the database URL cannot be parsed"),
        ("oracle://me:secret@host/x", "the driver for 'oracle' is not installed"),
    ],
)
def test_a_url_of_no_database_is_refused_before_anything_starts(url: str, words: str) -> None:
    urls: Any = {"wh": url, "mail": "anything"}
    with pytest.raises(ConfigurationError, match=words) as refused:
        check_sql_urls(pipeline(), urls)
    assert "secret" not in str(refused.value)


def test_a_table_that_is_followed_is_looked_at(url: str) -> None:
    """Its column and its numbers, and what makes it slow: no index."""
    is_sqlite = url.startswith("sqlite")
    numbered = "INTEGER PRIMARY KEY" if is_sqlite else "bigint GENERATED ALWAYS AS IDENTITY"
    change(url, f"CREATE TABLE good (id {numbered}, n INT)")
    change(url, "CREATE TABLE bad (id BIGINT NOT NULL)")
    made = Pipeline("p", connections=["wh"])
    for name, table, columns in (
        ("good", "good", ("n",)),
        ("bad", "bad", ()),
        ("gone", "gone", ()),
        ("lacks", "good", ("price",)),
    ):
        source = made.source(name, TableSource("wh", table, columns=columns, append_only=True))
        made.sink(f"{name}_end", Count(), source)
    systems = Connections("p", {"wh": url}, WriterIdentity("check", 1, 0.0), 1.0)
    found = {finding.what.partition(",")[0]: finding for finding in inspect_systems(made, {}, systems)}
    systems.warehouse("wh").close()
    assert found["source 'good'"].problem is None
    assert (found["source 'good'"].warning is None) == is_sqlite
    bad = found["source 'bad'"].problem or ""
    assert ("which is not its INTEGER PRIMARY KEY" if is_sqlite else "has no sequence as its default") in bad
    assert "table 'gone' is not in connection 'wh'" in (found["source 'gone'"].problem or "")
    assert "has no column 'price'" in (found["source 'lacks'"].problem or "")


def test_a_day_that_no_index_finds_is_said(url: str) -> None:
    """And an audit is tried with the day of the run, if one is given."""
    change(url, "CREATE TABLE good (day DATE, n BIGINT, PRIMARY KEY (day, n))")
    change(url, "CREATE TABLE slow (day DATE, n BIGINT)")
    made = Pipeline("p", partition=Days("day", zone="UTC"), connections=["wh"])
    read = made.source("read", QuerySource("wh", "SELECT day, n FROM slow", columns={"day": "date", "n": "bigint"}))
    for name, query in (("good", "SELECT n FROM good WHERE day = :day"), ("slow", "SELECT lacks FROM slow")):
        made.writer(
            name, TableWriter("wh", name, on_new_run="overwrite", by=("day",), audit={f"of {name}": query}), read
        )
    systems = Connections("p", {"wh": url}, WriterIdentity("check", 1, 0.0), 1.0)
    params = made.check_params({}, Days("day", zone="UTC").key_of("2026-03-01"))
    without_day, of_day = (
        {finding.what.partition(",")[0]: finding for finding in inspect_systems(made, given, systems)}
        for given in ({}, params)
    )
    systems.warehouse("wh").close()
    assert without_day["writer 'good'"].problem is None and of_day["writer 'good'"].problem is None
    assert without_day["writer 'good'"].warning is None
    assert "CREATE INDEX" in (without_day["writer 'slow'"].warning or "")
    assert "refused audit 'of slow'" in (of_day["writer 'slow'"].problem or "")
