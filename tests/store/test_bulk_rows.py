"""Rows that are copied in binary are the rows that an INSERT would have made, and fail as they would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_logio.databases import SETTINGS
from airflow_logio.errors import LogInconsistent
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.bulk import insert_rows
from airflow_logio.store.sql.engines import log_engine, reading, writing

VALUES: dict[type[Any], list[Any]] = {
    sa.BigInteger: [0, -1, 2**63 - 1, -(2**63)],
    sa.Boolean: [True, False],
    sa.Double: [0.0, -1.5, 1e300, 1795628081.0500011],
    sa.LargeBinary: [b"", b"\0\xff\\'", bytes(range(256)) * 300],
    sa.String: ["", "plain", "tab\tnewline\n\\N '\"", "naïve 北京 🚲"],
}

TABLES = (
    schema.event_log,
    schema.event_data,
    schema.state,
    schema.read_action,
    schema.event_lineage,
    schema.quarantine,
)


@pytest.fixture
def engine(log_url: str) -> Iterator[Engine]:
    engine = log_engine(log_url)
    yield engine
    engine.dispose()


def rows_of(table: sa.Table, names: list[str], count: int = 12) -> list[dict[str, Any]]:
    """Rows whose keys differ, with None wherever a column allows it."""

    def value(column: sa.Column[Any], number: int) -> Any:
        kind = next(kind for kind in VALUES if isinstance(column.type, kind))
        if column.name == "event_id" or (column.primary_key and kind is sa.BigInteger):
            return number
        if column.nullable and number % 3 == 0:
            return None
        found = VALUES[kind][number % len(VALUES[kind])]
        return found[: getattr(column.type, "length", None) or None] if kind is sa.String else found

    return [{name: value(table.c[name], number) for name in names} for number in range(1, count + 1)]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_they_are_what_an_insert_makes_of_them(engine: Engine, table: sa.Table) -> None:
    names = [column.name for column in table.columns if column.name != "row_id"]
    rows = rows_of(table, names)
    columns = [table.c[name] for name in names]
    found = []
    for insert in (insert_rows, lambda connection, table, rows: connection.execute(sa.insert(table), rows)):
        with writing(engine) as connection:
            insert(connection, table, rows)
            selected = connection.execute(sa.select(*columns).order_by(*table.primary_key))
            found.append([_plain(row) for row in selected])
            connection.execute(sa.delete(table))
    assert found[0] == found[1] == [tuple(row.values()) for row in rows]


def test_columns_that_no_row_names_get_their_default(engine: Engine) -> None:
    rows = rows_of(schema.event_lineage, [column.name for column in schema.event_lineage.columns])
    log = {"run_id": 1, "event_id": 1, "status": "undone", "send_op": "a", "channel": "out", "rec_op": "b"}
    with writing(engine) as connection:
        insert_rows(connection, schema.event_log, [])
        insert_rows(connection, schema.event_log, [log])
        insert_rows(connection, schema.event_lineage, rows)
    with reading(engine) as connection:
        one = connection.execute(sa.select(schema.event_log)).one()
    assert (one.kept, one.size, one.inset_id) == (False, 0, None) and one.row_id >= 1


def test_a_row_that_is_there_already_is_refused_and_nothing_stays(engine: Engine) -> None:
    rows = rows_of(schema.event_lineage, [column.name for column in schema.event_lineage.columns])
    with writing(engine) as connection:
        insert_rows(connection, schema.event_lineage, rows[:3])
    with pytest.raises(LogInconsistent, match="refused a row"), writing(engine) as connection:
        insert_rows(connection, schema.event_lineage, rows[5:])
        insert_rows(connection, schema.event_lineage, rows[:1])
    with reading(engine) as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(schema.event_lineage)).scalar_one() == 3


@pytest.mark.postgres
def test_settings_hold_if_a_transaction_begins_with_it(postgres_url: str) -> None:
    engine = log_engine(postgres_url)
    with engine.connect() as opened, opened.execution_options(**{SETTINGS: {"logio.here": "yes"}}).begin():
        insert_rows(opened, schema.event_lineage, rows_of(schema.event_lineage, list(schema.event_lineage.c.keys())))
        assert opened.execute(sa.text("SELECT current_setting('logio.here')")).scalar_one() == "yes"
    engine.dispose()


@pytest.mark.postgres
def test_the_server_does_not_compress_bodies_again(postgres_url: str) -> None:
    engine = log_engine(postgres_url)
    query = sa.text(
        "SELECT attstorage FROM pg_attribute WHERE attrelid = 'logio_event_data'::regclass AND attname = 'body'"
    )
    with reading(engine) as connection:
        assert connection.execute(query).scalar_one() in ("e", b"e")
    engine.dispose()


def _plain(row: sa.Row[Any]) -> tuple[Any, ...]:
    return tuple(bytes(value) if isinstance(value, memoryview) else value for value in row)
