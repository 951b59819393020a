"""Frames of other libraries that an author's function returns, recognized without importing a library: as Arrow tables, or
as they are where Spark evaluates them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.event_stream import uniform
from airflow_logio.errors import OperatorFailed

_HINTS = {
    "LazyFrame": "call .collect() on it",
    "Series": "make a frame of it: .to_frame()",
    "DataFrameGroupBy": "aggregate it",
    "GroupBy": "aggregate it",
}


def as_table(value: Any) -> pa.Table | None:
    """An Arrow table, or what can be one: a record batch, a frame of pandas or polars. None for anything else.

    Types become those that sources give: timestamps in microseconds without zone, plain strings and lists, no dictionaries. A
    named index of pandas becomes a column, any other is dropped; NaN of pandas is null. Raises OperatorFailed for a frame
    that Arrow has no types for.
    """
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    library = library_of(value)
    if type(value).__name__ != "DataFrame" or library not in ("pandas", "polars"):
        return None
    if library == "polars":
        _refuse_objects(value)
    try:
        table = _of_pandas(value) if library == "pandas" else value.to_arrow()
        return uniform(_plain(table))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise OperatorFailed(
            f"a {library} DataFrame cannot be made an Arrow table: {type(error).__name__}: {error}"
        ) from error


def needed_table(value: Any, what: str) -> pa.Table:
    """As `as_table`; `what` returned it, and begins the sentence of the error. Raises OperatorFailed."""
    table = as_table(value)
    if table is None:
        raise OperatorFailed(
            f"{what} returned {type_name(value)}; return an Arrow table, or a DataFrame of pandas or polars"
        )
    return table


def is_spark_frame(value: object) -> bool:
    """A DataFrame of Spark, classic or Connect, without importing Spark: a pipeline's module may do without it."""
    return any(
        base.__module__.startswith("pyspark.sql") and base.__name__ == "DataFrame" for base in type(value).__mro__
    )


def needed_spark_frame(value: Any, what: str) -> Any:
    """`value`, which `what` returned; that begins the sentence of the error. Raises OperatorFailed if it is no DataFrame."""
    if not is_spark_frame(value):
        raise OperatorFailed(f"{what} returned {type_name(value)}; return a DataFrame of Spark")
    return value


def type_name(value: Any) -> str:
    """The type of a value for messages, with its library, and what to do with it if that is known."""
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{library_of(value)}.{kind.__name__}"
    hint = _HINTS.get(kind.__name__) if library_of(value) in ("pandas", "polars") else None
    return name if hint is None else f"{name} ({hint})"


def library_of(value: Any) -> str:
    """The top-level package of a value's type."""
    return type(value).__module__.partition(".")[0]


def _of_pandas(frame: Any) -> pa.Table:
    named = [name for name in frame.index.names if name is not None]
    if named:
        unnamed = [level for level, name in enumerate(frame.index.names) if name is None]
        frame = frame.reset_index(level=unnamed, drop=True) if unnamed else frame
        frame = frame.reset_index()
    return pa.Table.from_pandas(frame, preserve_index=False)


def _refuse_objects(frame: Any) -> None:
    """polars gives Python objects to Arrow as the bytes of their addresses."""
    for name, kind in frame.schema.items():
        if str(kind) == "Object":
            raise OperatorFailed(
                f"a polars DataFrame has column {name!r} of Python objects, for which Arrow has no type; make it text, "
                "a number, or a struct"
            )


def _plain(table: pa.Table) -> pa.Table:
    """Large strings and lists, and views, are what polars and pandas have in memory; records of one port must be alike."""
    return table.cast(pa.schema([pa.field(field.name, _plain_type(field.type)) for field in table.schema]))


def _plain_type(kind: Any) -> Any:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain_type(field.type)) for field in kind])
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    return kind
