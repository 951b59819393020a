"""Texts of a PostgreSQL whose encoding is not UTF-8: passed on as they are, or refused by column and row.

A database of encoding SQL_ASCII keeps bytes, and does not say how texts are written in them. Unless the URL of the
connection says it (``client_encoding``), texts of ASCII are taken, and others refused: a guess would make other texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.databases.conversions import Check
from airflow_logio.systems.databases.read_values import Place, Reader

_UNKNOWN = "logio_encoding_is_unknown"
_SAY_IT = (
    "the encoding of the database is SQL_ASCII, which does not say how its texts are written; say it in the URL of the "
    "connection: ?client_encoding=UTF8, or LATIN1"
)


def read_unknown_texts(engine: Engine) -> None:
    """Where the encoding is unknown, texts come byte by byte, so that readers can say which one is not of ASCII."""

    @sa.event.listens_for(engine, "connect")
    def _on_connect(dbapi: Any, record: Any) -> None:
        if dbapi.encoding.replace("_", "") == "SQLASCII":
            dbapi.set_client_encoding("LATIN1")
            record.info[_UNKNOWN] = True


def _is_unknown(connection: Connection) -> bool:
    return bool(connection.info.get(_UNKNOWN))


def told(connection: Connection, readers: list[Reader]) -> list[Reader]:
    """Readers that refuse texts whose encoding is unknown."""
    return [_of_ascii(reader) for reader in readers] if _is_unknown(connection) else readers


def _of_ascii(reader: Reader) -> Reader:
    def read(values: Sequence[Any]) -> pa.Array:
        if any(isinstance(value, str) and not value.isascii() for value in values):
            raise ValueError(_SAY_IT)
        return reader(values)

    return read


def checked(connection: Connection, check: Check) -> Check:
    """The check of a column, and that the database can write its texts."""
    codec = _codec(connection)
    if codec is None:
        return check

    def both(values: pa.ChunkedArray) -> None:
        check(values)
        if _is_text(values.type) and not pc.all(pc.string_is_ascii(values)).as_py():
            for value in values.to_pylist():
                _encode(value, codec)

    return both


def _encode(value: str | None, codec: str) -> None:
    try:
        (value or "").encode(codec)
    except UnicodeEncodeError as error:
        if codec == "ascii":
            raise ValueError(f"{value[:40]!r}: {_SAY_IT}") from None  # type: ignore[index]
        raise ValueError(
            f"{value[:40]!r}: the encoding of the database, {codec}, does not have {error.object[error.start]!r}"  # type: ignore[index]
        ) from None


def findable(connection: Connection, place: Place, key: str, keys: pa.Array) -> pa.Array:
    """The keys that the database may have: none of its rows has a text that its encoding cannot write.

    Raises `ConfigurationError` where it is unknown how a text is written.
    """
    codec = _codec(connection)
    if codec is None or not _is_text(keys.type) or pc.all(pc.string_is_ascii(keys)).as_py():
        return keys
    kept = []
    for value in keys.to_pylist():
        try:
            _encode(value, codec)
        except ValueError as error:
            if _is_unknown(connection):
                raise ConfigurationError(f"{place.where}, key column {key!r}: {error}") from None
            continue
        kept.append(value)
    return pa.array(kept, keys.type)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _codec(connection: Connection) -> str | None:
    """Python's name of the encoding in which texts are sent; None where it has all of them."""
    if connection.dialect.name != "postgresql":
        return None
    if _is_unknown(connection):
        return "ascii"
    import psycopg2.extensions

    driver: Any = connection.connection.driver_connection
    codec = psycopg2.extensions.encodings.get(driver.encoding, "utf_8")
    return None if codec.replace("-", "_") in ("utf_8", "utf8") else codec
