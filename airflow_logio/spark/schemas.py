"""The columns of DataFrames: which can be written, their types as Spark and Arrow name them, and that they stay the same."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.arrow_tables import schema_text
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.errors import LogInconsistent, OperatorFailed, SourceChanged

log = logging.getLogger(__name__)


PARTITION_TYPES = ("string", "integer", "long", "short", "byte", "date", "boolean")
"""Types of columns, as Spark names them, whose values can be names of folders."""
_USUAL = {"nullable": True, "containsNull": True, "valueContainsNull": True}
_METADATA, COLLATIONS = "metadata", "__COLLATIONS"
"""What Spark keeps in the metadata of a field: without it, texts would be compared in another way where they are read."""
_LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"
"""The setting of the session that Arrow's types depend on."""
_MOST_SCHEMAS = 256
_arrow_schemas: dict[tuple[str | None, ...], str] = {}
"""Schema of Spark, and this setting → that of Arrow."""
_asking = threading.Lock()
_NO_PARQUET = re.compile(
    r'"(?:type|elementType|keyType|valueType)":"(void|[^"]*interval[^"]*|time(?:\(\d\))?|geo(?:metry|graphy)[^"]*)"'
)
"""Types whose values would not come back."""


def check_columns(frame: SparkFrame, partition_by: Sequence[str] = ()) -> None:
    """Raises `OperatorFailed` for columns that cannot be written, without a job."""
    names = frame.columns
    if not names:
        raise OperatorFailed("the DataFrame has no columns, so its records cannot be written: select some")
    lowered = [name.lower() for name in names]
    twice = [name for name in names if lowered.count(name.lower()) > 1]
    if dotted := [name for name in names if set(name) & set(".`")]:
        raise OperatorFailed(
            f"the DataFrame has a column {dotted[0]!r}, whose name Spark takes for a path: rename it, without dots and `"
        )
    if twice:
        raise OperatorFailed(
            f"the DataFrame has several columns {twice[0]!r}, so they cannot be written: rename or drop one (upper and lower "
            "case are the same to Spark)"
        )
    if unknown := _NO_PARQUET.search(schema_of(frame)):
        raise OperatorFailed(
            f"the DataFrame has values of type {unknown[1]}, which files of Parquet do not keep: cast or drop them"
        )
    types = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    for name in partition_by:
        if name not in types:
            raise OperatorFailed(
                f"partition_by names {name!r}; the records have the columns {', '.join(names)}. Give them that column, as "
                "with withColumn('day', F.lit(params['day']).cast('date')) for the day of a run"
            )
        if types[name] not in PARTITION_TYPES:
            raise OperatorFailed(
                f"partition_by names {name!r}, which is {types[name]}: make it text, a whole number, a date or a boolean"
            )
    if partition_by and set(names) <= set(partition_by):
        raise OperatorFailed("partition_by names all columns, so the files would have none")


def schema_of(frame: SparkFrame) -> str:
    """The schema of a DataFrame as JSON.

    Nulls are allowed everywhere: whether they are differs from plan to plan. The metadata of columns is dropped, except
    for how texts compare.
    """
    return json.dumps(_all_nullable(frame.schema.jsonValue()), sort_keys=True, separators=(",", ":"))


def _all_nullable(value: Any) -> Any:
    if isinstance(value, dict):
        changed = {key: item if key == _METADATA else _all_nullable(item) for key, item in value.items()}
        if _METADATA in changed:
            changed[_METADATA] = {name: said for name, said in value[_METADATA].items() if name == COLLATIONS}
        return changed | {flag: usual for flag, usual in _USUAL.items() if flag in changed}
    return [_all_nullable(item) for item in value] if isinstance(value, list) else value


def arrow_schema_of(frame: SparkFrame) -> str:
    """The schema of a DataFrame as Arrow has it, as `schema_text`, with nulls allowed everywhere as in `schema_of`.

    Only Spark knows it, and takes a job to say so: once.
    """
    from pyspark.sql.types import StructType

    session, schema = frame.sparkSession, schema_of(frame)
    known = schema, session.conf.get(_LARGE_TYPES)
    with _asking:
        if known not in _arrow_schemas:
            if len(_arrow_schemas) >= _MOST_SCHEMAS:
                _arrow_schemas.clear()
            empty = session.createDataFrame([], StructType.fromJson(parsed(schema)))
            _arrow_schemas[known] = schema_text(empty.toArrow().schema)
        return _arrow_schemas[known]


def parsed(text: str) -> Any:
    """A schema from its JSON text. Raises `LogInconsistent`."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise LogInconsistent(f"a manifest has a schema that is none: {error}") from error


def in_utc(schema: pa.Schema) -> pa.Schema:
    """What Spark gets for Arrow's times without a zone: instants."""
    return pa.schema([pa.field(field.name, _in_utc(field.type)) for field in schema])


def _in_utc(kind: Any) -> Any:
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind):
        return pa.list_(_in_utc(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _in_utc(field.type)) for field in kind])
    return kind


def bad_text(frame: SparkFrame) -> Any | None:
    """A column that is true for records with text that is not UTF-8, in nested columns as well; None for a DataFrame without
    text.

    Spark makes such text of bytes (``cast("string")``) and reads it from files, without a word.
    """
    from pyspark.sql import functions as F

    found = [_bad(F.col(f"`{field.name.replace('`', '``')}`"), field.dataType) for field in frame.schema.fields]
    told = [one for one in found if one is not None]
    return reduce(or_, told) if told else None


def _bad(column: Any, kind: Any) -> Any | None:
    from pyspark.sql import functions as F

    match kind.typeName():
        case "string" | "varchar" | "char":
            return ~F.is_valid_utf8(column)
        case "struct":
            inner = [_bad(column.getField(field.name), field.dataType) for field in kind.fields]
            told = [one for one in inner if one is not None]
            return reduce(or_, told) if told else None
        case "array":
            return _bad_item(column, kind.elementType)
        case "map":
            parts = (
                _bad_item(F.map_keys(column), kind.keyType),
                _bad_item(F.map_values(column), kind.valueType),
            )
            told = [one for one in parts if one is not None]
            return reduce(or_, told) if told else None
        case _:
            return None


def _bad_item(items: Any, kind: Any) -> Any | None:
    from pyspark.sql import functions as F

    if _bad(items, kind) is None:
        return None
    return F.exists(items, lambda item: _bad(item, kind))


# --- what is sent has the same columns for a whole run ----------------------------------------------------------------


class SentColumns:
    """The columns that a source sends. `where` says where it is, for errors."""

    def __init__(self, source: str, where: Callable[[], str]) -> None:
        self._source = source
        self._where = where
        self._left_out: list[str] = []
        self.schema: str | None = None
        """The schema of what was sent so far, by this driver or the ones before; None before the first event."""

    def fitted(self, frame: SparkFrame, schema: str) -> SparkFrame:
        """The columns that were sent, in their order, of a DataFrame with this schema, without those that have come since.

        Raises `SourceChanged` if one is missing, or has another type.
        """
        if self.schema is None or self.schema == schema:
            return frame
        sent, found = _by_name(self.schema), _by_name(schema)
        if any(found.get(name) != field for name, field in sent.items()):
            raise SourceChanged(
                f"{self._where()}: the source {said_of_columns(self.schema, schema)}. Make it return the columns it had, "
                "and `logio retry` (`--code new` after a change of the code); or start a fresh run"
            )
        self._note([name for name in found if name not in sent])
        return frame.select(*(f"`{name}`" for name in sent))

    def _note(self, left_out: list[str]) -> None:
        if left_out and left_out != self._left_out:
            names = ", ".join(left_out)
            log.warning("source %s: columns that have come since its first event are left out: %s", self._source, names)
            self._left_out = left_out


def said_of_columns(known: str, schema: str) -> str:
    """What differs between two schemas."""
    return (
        f"has had records with the columns {_columns(known)}, and now gets {_columns(schema)}: they have one schema for the "
        "whole run"
    )


def _by_name(schema: str) -> dict[str, Any]:
    return {field["name"]: field for field in json.loads(schema)["fields"]}


def _columns(schema: str) -> str:
    return _fields(json.loads(schema)["fields"]) or "none"


def _fields(fields: Sequence[Any]) -> str:
    return ", ".join(f"{field['name']} {_type_name(field['type'])}{_collated(field)}" for field in fields)


def _type_name(kind: Any) -> str:
    match kind:
        case {"type": "array", "elementType": values}:
            return f"array<{_type_name(values)}>"
        case {"type": "map", "keyType": keys, "valueType": values}:
            return f"map<{_type_name(keys)}, {_type_name(values)}>"
        case {"type": "struct", "fields": fields}:
            return f"struct<{_fields(fields)}>"
        case {"type": name}:
            return str(name)
    return str(kind)


def _collated(field: Any) -> str:
    """How texts of a column, or within it, compare; empty for the usual way."""
    said = field.get("metadata", {}).get(COLLATIONS, {})
    return f" ({', '.join(f'{where}: {name}' for where, name in sorted(said.items()))})" if said else ""
