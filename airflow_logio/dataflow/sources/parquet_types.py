"""Types of columns of several Parquet files that one source reads: when they are one schema, and which one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.arrow_tables import plain_type, uniform_type
from airflow_logio.errors import ConfigurationError

_MOST_DIGITS = 38


def common_types(files: Iterable[tuple[str, pa.Schema]], columns: Collection[str] | None) -> pa.Schema:
    """The columns that differ from file to file, with the type that holds the values of all.

    Integers are widened, columns of nulls alone have the type of the others, and what is the same to a reader (pandas and
    polars name texts in ways of their own) is one type. Raises ConfigurationError, naming two files, if there is none.
    """
    found: dict[str, dict[pa.DataType, str]] = {}
    for path, schema in files:
        for field in schema:
            if columns is None or field.name in columns:
                found.setdefault(field.name, {}).setdefault(uniform_type(field.type), path)
    wanted = []
    for name, kinds in found.items():
        if len(kinds) > 1:
            kind, *others = kinds
            for other in others:
                if (wider := _common(kind, other)) is None:
                    raise ConfigurationError(_differ(name, kinds))
                kind = wider
            wanted.append(pa.field(name, kind))
    return pa.schema(wanted)


def _differ(name: str, kinds: dict[pa.DataType, str]) -> str:
    pairs = [(one, other) for one in kinds for other in kinds if _common(one, other) is None]
    one, other = pairs[0] if pairs else (*kinds,)[:2]
    return (
        f"column {name!r} is {one} in {kinds[one]} and {other} in {kinds[other]}, and no type holds the values of both "
        "exactly: the files of a source have one schema. Write one of them again, leave the column out (columns=...), make "
        "them alike in a `transform`, or read them with two sources"
    )


def changed_types(schema: pa.Schema, wanted: pa.Schema, columns: Collection[str]) -> pa.Schema:
    """The columns of a file that get another type than they have."""
    has = {field.name: uniform_type(field.type) for field in schema}
    return pa.schema([field for field in wanted if field.name in columns and has[field.name] != field.type])


def _common(one: Any, other: Any) -> Any:
    """The type that holds the values of both exactly; None if there is none."""
    one, other = plain_type(one), plain_type(other)
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    rules = (
        (pa.types.is_integer, _common_integer),
        (pa.types.is_floating, _wider),
        (pa.types.is_decimal, _common_decimal),
        (pa.types.is_time, _common_time),
        (pa.types.is_timestamp, _common_timestamp),
        (lambda kind: pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind), _common_list),
        (pa.types.is_map, _common_map),
        (pa.types.is_date, lambda *_: pa.date32()),
        (pa.types.is_struct, _common_struct),
    )
    return next((rule(one, other) for is_one, rule in rules if is_one(one) and is_one(other)), None)


def _wider(one: Any, other: Any) -> Any:
    return max(one, other, key=lambda kind: kind.bit_width)


def _common_time(one: Any, other: Any) -> Any:
    units = [kind.unit for kind in (one, other)]
    return next(kind for kind in (pa.time64("ns"), pa.time64("us"), pa.time32("ms")) if kind.unit in units)


def _common_timestamp(one: Any, other: Any) -> Any:
    """Inside of lists and structs: elsewhere, all are of one type."""
    unit = min(one.unit, other.unit, key=("ns", "us", "ms", "s").index)
    return pa.timestamp(unit, one.tz) if (one.tz is None) == (other.tz is None) else None


def _common_list(one: Any, other: Any) -> Any:
    values = _common(one.value_type, other.value_type)
    return None if values is None else pa.list_(values)


def _common_map(one: Any, other: Any) -> Any:
    key, item = _common(one.key_type, other.key_type), _common(one.item_type, other.item_type)
    return None if key is None or item is None else pa.map_(key, item)


def _common_integer(one: Any, other: Any) -> Any:
    signed = [pa.types.is_signed_integer(kind) for kind in (one, other)]
    if signed[0] == signed[1]:
        return _wider(one, other)
    unsigned, widest = (one, other) if signed[1] else (other, one)
    bits = max(2 * unsigned.bit_width, widest.bit_width)
    return next((kind for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64()) if kind.bit_width == bits), None)


def _common_decimal(one: Any, other: Any) -> Any:
    scale = max(one.scale, other.scale)
    digits = max(one.precision - one.scale, other.precision - other.scale) + scale
    return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else None


def _common_struct(one: Any, other: Any) -> Any:
    fields, others = ([kind.field(number) for number in range(kind.num_fields)] for kind in (one, other))
    if [field.name for field in fields] != [field.name for field in others]:
        return None
    types = [_common(mine.type, its.type) for mine, its in zip(fields, others, strict=True)]
    if any(kind is None for kind in types):
        return None
    return pa.struct([pa.field(field.name, kind) for field, kind in zip(fields, types, strict=True)])


def with_types(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The table with some columns cast to types that hold their values."""
    for field in wanted:
        if (place := table.schema.get_field_index(field.name)) >= 0:
            table = table.set_column(place, field.name, table.column(place).cast(field.type))
    return table


# --- as Spark reads them ----------------------------------------------------------------------------------------------


def spark_columns(path: str, content: Any) -> dict[str, str]:
    """Name → type of the columns of an open file, equal where Spark reads the same; `content` is its `ParquetFile`.

    Raises ConfigurationError for nanoseconds, which Spark does not read.
    """
    leaves = [content.schema.column(number) for number in range(len(content.schema))]
    int96 = {leaf.path.split(".")[0] for leaf in leaves if leaf.physical_type == "INT96"}
    for leaf in leaves:
        if leaf.physical_type == "INT64" and "nanoseconds" in leaf.logical_type.to_json():
            raise ConfigurationError(
                f"{path}, column {leaf.path!r}, has nanoseconds, which Spark does not read: write it with microseconds "
                "(pandas: frame.to_parquet(path, coerce_timestamps='us'); polars: "
                "pl.col(name).dt.cast_time_unit('us')), or read the file with a ParquetSource"
            )
    return {
        field.name: str(pa.timestamp("us", "UTC") if field.name in int96 else _as_spark(field.type))
        for field in content.schema_arrow
    }


def _as_spark(kind: Any) -> Any:
    kind = plain_type(kind)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_list(kind):
        return pa.list_(_as_spark(kind.value_type))
    if pa.types.is_struct(kind):
        fields = (kind.field(number) for number in range(kind.num_fields))
        return pa.struct([pa.field(field.name, _as_spark(field.type)) for field in fields])
    if pa.types.is_map(kind):
        return pa.map_(_as_spark(kind.key_type), _as_spark(kind.item_type))
    return kind
