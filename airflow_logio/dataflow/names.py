"""Names an author may give, and the suggestions of error messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence

from airflow_logio.errors import PipelineDefinitionError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_TABLE = re.compile(r'(?:(?P<schema>"(?:[^"]|"")+"|[^."]+)\.)?(?P<table>"(?:[^"]|"")+"|[^."]+)')
MOST_BYTES = 63
"""PostgreSQL cuts longer names without an error, so that they would name something else."""
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_ -]{0,62}(?<! )")


def check_name(kind: str, name: object) -> str:
    """Return `name` if it may name a pipeline, operator, group, port, connection or parameter.

    Such names become columns of log rows, parts of payload paths, Airflow task ids and Spark application names, hence
    the narrow alphabet. Raises PipelineDefinitionError.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise PipelineDefinitionError(
        f"{kind} name {name!r} is not allowed: use lower-case letters, digits and '_', "
        "starting with a letter, at most 63 characters"
    )


def check_column(name: object) -> str:
    """Return `name` if it may name a column of records or of an external table; raises PipelineDefinitionError."""
    if isinstance(name, str) and _COLUMN.fullmatch(name):
        return name
    raise PipelineDefinitionError(
        f"column name {name!r} is not allowed: use letters, digits, '_', and inside '-' and spaces, at most 63 characters"
    )


def check_sql_name(what: str, name: object) -> str:
    """Return `name` if a database may have it as the name of a column, a table or a schema, in quotes; raises
    PipelineDefinitionError, which says `what` it is."""
    if not isinstance(name, str) or not name:
        raise PipelineDefinitionError(f"{what} {name!r} is not allowed: give a text")
    if not name.isprintable():
        raise PipelineDefinitionError(f"{what} {name!r} is not allowed: it has a character that cannot be printed")
    if len(name.encode()) > MOST_BYTES:
        raise PipelineDefinitionError(
            f"{what} {name!r} is not allowed: it has {len(name.encode())} bytes, and PostgreSQL cuts names at {MOST_BYTES}. "
            "Read a query or view that names it otherwise"
        )
    return name


def check_sql_columns(names: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names of columns of a database as a tuple, each checked and none twice; raises PipelineDefinitionError."""
    return _once(names, lambda name: check_sql_name("column name", name))


def check_columns(names: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names as a tuple, each checked and none twice; raises PipelineDefinitionError."""
    return _once(names, check_column)


def _once(names: Iterable[str] | None, check: Callable[[object], str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise PipelineDefinitionError(f"columns is the single string {names!r}: write ({names!r},)")
    columns = tuple(check(name) for name in names or ())
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise PipelineDefinitionError(f"column {twice[0]!r} is named twice in {columns}")
    return columns


def check_table(name: object) -> str:
    """Return `name` if it is ``table`` or ``schema.table``; raises PipelineDefinitionError.

    One dot separates schema and table, which are taken as they are, upper case included. A part that has a dot or a double
    quote itself is written as in SQL: ``"my.schema"."my table"``, with ``""`` for ``"``.
    """
    parts = _TABLE.fullmatch(name) if isinstance(name, str) else None
    if isinstance(name, str) and "{" in re.sub('"(?:[^"]|"")*"', "", name):
        raise PipelineDefinitionError(
            f"table name {name!r} is not allowed: run parameters are for paths and queries (docs/parameters.md), and a table "
            "has one name in all runs: read a query with a condition, or write the value as a column"
        )
    if not isinstance(name, str) or parts is None:
        raise PipelineDefinitionError(
            f"table name {name!r} is not allowed: write 'table' or 'schema.table', and a part with a dot or a double quote "
            'of its own as in SQL: \'"my.schema"."my table"\''
        )
    for part in filter(None, schema_and_table(name)):
        check_sql_name("table name", part)
    return name


def schema_and_table(table: str) -> tuple[str | None, str]:
    """The schema and the name in what `check_table` allows; None for the default schema."""
    parts = _TABLE.fullmatch(table)
    if parts is None:
        raise PipelineDefinitionError(f"table name {table!r} is not allowed: write 'table' or 'schema.table'")
    schema, name = (None if part is None else _unquoted(part) for part in parts.group("schema", "table"))
    return schema, name or ""


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def may_be_one_table(one: str, other: str) -> bool:
    """Whether a database may take two names of `check_table` for one table: it knows the default schema, and the letters."""
    (schema, table), (other_schema, other_table) = (schema_and_table(name.lower()) for name in (one, other))
    return table == other_table and (schema == other_schema or None in (schema, other_schema))


def check_count(what: str, value: object) -> int:
    """Return `value` if it is a whole number of at least 1; raises PipelineDefinitionError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise PipelineDefinitionError(f"{what} is {value!r}; give a whole number, at least 1")


def did_you_mean(name: object, candidates: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` if a candidate resembles `name`, else an empty string; append it to a sentence."""
    close = difflib.get_close_matches(str(name), list(candidates), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def quoted(names: Sequence[str]) -> str:
    """Names for a sentence: ``'a'``, ``'a' and 'b'``, ``'a', 'b' and 'c'``; ``nothing`` if there are none."""
    if not names:
        return "nothing"
    *first, last = (repr(name) for name in names)
    return f"{', '.join(first)} and {last}" if first else last
