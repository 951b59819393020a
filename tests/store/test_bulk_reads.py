"""Rows with bodies are what a query gives, whichever way they come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_logio.databases import COPY, COPY_TO, SETTINGS
from airflow_logio.errors import LogInconsistent, LogUnavailable
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.bulk import FIELDS, HEADER, LENGTH, _decoded, insert_rows, rows_of
from airflow_logio.store.sql.engines import log_engine, reading, writing

DATA = schema.event_data
TEXTS = ["", "plain", "tab\tnewline\n\\N '\"", "naïve 北京 🚲", "100 %s %(run)s %%", "\\."]
BODIES = [b"", b"\0\xff\\'", bytes(range(256)) * 3_000, None]


@pytest.fixture
def engine(log_url: str) -> Iterator[Engine]:
    engine = log_engine(log_url)
    with writing(engine) as connection:
        insert_rows(connection, DATA, [_row(number) for number in range(1, 25)])
    yield engine
    engine.dispose()


def _row(number: int) -> dict[str, Any]:
    text = TEXTS[number % len(TEXTS)]
    body = BODIES[number % len(BODIES)]
    key = {"run_id": 1, "send_op": text, "channel": "out", "event_id": 2**62 + number}
    return {**key, "send_port": text or None, "header": b"h", "body": body, "ref": None if body else text}


def _query() -> sa.Select[Any]:
    columns = (DATA.c.send_op, DATA.c.event_id, DATA.c.send_port, DATA.c.header, DATA.c.body, DATA.c.ref)
    return sa.select(*columns).where(DATA.c.run_id == sa.bindparam("run")).order_by(DATA.c.event_id)


def test_they_are_what_the_query_gives(engine: Engine) -> None:
    with reading(engine) as connection:
        plain = connection.execute(_query(), {"run": 1}).all()
        found = rows_of(connection, _query(), {"run": 1})
    assert len(found) == 24
    assert [tuple(row) for row in found] == [tuple(row) for row in plain]
    assert {type(row.body) for row in found} == {bytes, type(None)}
    assert found[0].send_op == TEXTS[1]


@pytest.mark.parametrize("text", TEXTS)
def test_values_are_parameters(engine: Engine, text: str) -> None:
    query = _query().where(DATA.c.send_op == text)
    with reading(engine) as connection:
        assert [row.send_op for row in rows_of(connection, query, {"run": 1})] == [text] * 4


def test_none_is_an_empty_list(engine: Engine) -> None:
    with reading(engine) as connection:
        assert rows_of(connection, _query(), {"run": 2}) == []


@pytest.mark.postgres
def test_the_settings_of_a_transaction_hold_from_its_first_statement(postgres_url: str) -> None:
    engine = log_engine(postgres_url)
    setting = sa.func.current_setting("logio.test", type_=sa.Text).label("name")
    with reading(engine.execution_options(**{SETTINGS: {"logio.test": "seen"}})) as connection:
        assert [row.name for row in rows_of(connection, sa.select(setting))] == ["seen"]
    engine.dispose()


@pytest.mark.postgres
def test_what_fails_fails_as_any_statement_does(postgres_url: str) -> None:
    engine = log_engine(postgres_url)
    zero = sa.cast(sa.literal(1) / sa.literal(0), sa.BigInteger).label("nothing")
    with pytest.raises(LogInconsistent), reading(engine) as connection:
        rows_of(connection, sa.select(zero))
    end = sa.cast(sa.func.pg_terminate_backend(sa.func.pg_backend_pid()), sa.Text).label("ended")
    with pytest.raises(LogUnavailable), reading(engine) as connection:
        rows_of(connection, sa.select(end))
    with reading(engine) as connection:
        assert rows_of(connection, sa.select(sa.literal(7, sa.BigInteger).label("seven")))[0].seven == 7, "a new one"
    engine.dispose()


@pytest.mark.postgres
def test_settings_before_copy_fail_as_any_statement_does(postgres_url: str) -> None:
    """They are a round trip of their own, and the first thing that fails."""
    engine, another = log_engine(postgres_url), log_engine(postgres_url)
    seven = sa.select(sa.literal(7, sa.BigInteger).label("seven"))
    refused = engine.execution_options(**{SETTINGS: {"synchronous_commit": "nonsense"}})
    with pytest.raises(LogInconsistent, match="nonsense"), reading(refused) as connection:
        rows_of(connection, seven)
    with reading(engine) as connection:
        pid = connection.execute(sa.select(sa.func.pg_backend_pid())).scalar_one()
    with reading(another) as connection:
        assert connection.execute(sa.select(sa.func.pg_terminate_backend(pid, 5_000))).scalar_one()
    with pytest.raises(LogUnavailable), reading(engine) as connection:
        rows_of(connection, seven)
    with reading(engine) as connection:
        assert rows_of(connection, seven)[0].seven == 7, "a new session"
    engine.dispose()
    another.dispose()


def test_rows_with_another_number_of_fields_are_refused() -> None:
    row = FIELDS.pack(2) + 2 * (LENGTH.pack(8) + bytes(8))
    with pytest.raises(TypeError, match="2 fields, and the query 1 columns"):
        list(_decoded(memoryview(HEADER + row + FIELDS.pack(-1)), [bytes]))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (
            sa.func.sum(DATA.c.event_id).label("it"),
            "are no integer of PostgreSQL: cast what the query computes to bigint",
        ),
        (sa.literal(1.5, sa.Float).label("it"), "has a type that is not read so: Float"),
    ],
    ids=["sum", "float"],
)
def test_another_format_is_never_taken_for_a_number_or_a_text(postgres_url: str, column: Any, said: str) -> None:
    engine = log_engine(postgres_url)
    with writing(engine) as connection:
        insert_rows(connection, DATA, [_row(1)])
    with reading(engine) as connection, pytest.raises(TypeError, match=said):
        rows_of(connection, sa.select(column))
    engine.dispose()


@pytest.mark.parametrize("option", [COPY, COPY_TO])
def test_a_statement_that_is_not_to_be_copied_is_executed(postgres_url: str, option: str) -> None:
    engine = log_engine(postgres_url)
    with reading(engine) as connection:
        assert connection.execute(sa.select(sa.literal(7)), execution_options={option: None}).scalar_one() == 7
    engine.dispose()
