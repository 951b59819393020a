"""DataFrames of the files of a Delta table: Spark's Parquet reader, and values of partitions from the table's log."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.dataflow.sources.delta_log import DeltaFile, DeltaLog, DeltaState
from airflow_logio.errors import ConfigurationError, OperatorFailed

TYPE, VERSION, TIME = "_change_type", "_commit_version", "_commit_timestamp"
"""Columns of a change feed."""
_CHANGES = {TYPE: "string", VERSION: "bigint", TIME: "timestamp_ltz"}
_TYPES = {
    "string": "string",
    "long": "bigint",
    "integer": "int",
    "short": "smallint",
    "byte": "tinyint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp_ltz",
    "timestamp_ntz": "timestamp_ntz",
}
_DECIMAL = re.compile(r"decimal\(\d+,\d+\)")
_FILE, _VALUE, _KNOWN = "_logio_file", "_logio_value", "_logio_known"
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


class DeltaFrames:
    """What files of a table have, in the columns that the table has at a version."""

    def __init__(self, spark: Any, log: DeltaLog, state: DeltaState, *, with_changes: bool) -> None:
        self._spark = spark
        self._log = log
        self._fields = columns_of(log, state)
        self._partitioned = [name for name in self._fields if name in state.partitioned]
        self._with_changes = with_changes

    def of(self, files: Sequence[DeltaFile]) -> SparkFrame:
        """The records of the files, as a lazy DataFrame. Raises OperatorFailed."""
        told = [one for one in files if not one.change]
        frames = []
        if self._with_changes:  # files of the change feed say of each row what it is
            known = [one for one in files if one.change]
            frames = [self._read(some, more) for some, more in ((told, {TYPE: "string"}), (known, {})) if some]
        elif files:
            frames = [self._read(files, {})]
        if not frames:
            return self._spark.createDataFrame([], _ddl(self._all()))
        return frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])

    def _all(self) -> dict[str, str]:
        return self._fields | (_CHANGES if self._with_changes else {})

    def _read(self, files: Sequence[DeltaFile], more: Mapping[str, str]) -> SparkFrame:
        data = {name: kind for name, kind in self._fields.items() if name not in self._partitioned} | dict(more)
        reader = self._spark.read.schema(_ddl(data))
        for name in ("ignoreMissingFiles", "ignoreCorruptFiles", "recursiveFileLookup", "__globPaths__"):
            reader = reader.option(name, "false")
        for name, value in self._log.settings.items():
            reader = reader.option(name, value)
        named = {f"{self._log.root}/{one.path}": one for one in files}
        frame = reader.parquet(*named)
        opened = {unquote(path): path for path in frame.inputFiles()}
        if opened.keys() != named.keys():
            strange = sorted(named.keys() ^ opened.keys())
            raise OperatorFailed(
                f"Spark would not read the file {strange[0]} of Delta table {self._log.uri}, which the table's log names: it "
                "passes over names that begin with '_' or '.'"
            )
        rows = [(opened[f"{self._log.root}/{one.path}"], *self._values(one)) for one in files]
        return self._completed(frame, rows, says_changes=bool(more))

    def _values(self, file: DeltaFile) -> tuple[str | None, ...]:
        values: tuple[str | None, ...] = tuple(file.values.get(name) for name in self._partitioned)
        if not self._with_changes:
            return values
        time = None if file.time is None else str(file.time)
        return (*values, file.change or None, str(file.version), time)

    def _completed(
        self, frame: SparkFrame, rows: Sequence[tuple[str | None, ...]], *, says_changes: bool
    ) -> SparkFrame:
        """With the values that are those of a file. A file may come twice, if it was added and removed."""
        alike = {row[1:] for row in rows}
        if len(alike) == 1 and len({row[0] for row in rows}) == len(rows):
            (values,) = alike
            return frame.selectExpr(*self._selected([_literal(value) for value in values], says_changes))
        names = [f"{_VALUE}{number}" for number in range(len(rows[0]) - 1)]
        keys = [(_as_read(str(row[0])), *row[1:], True) for row in rows]
        columns = _ddl({_FILE: "string"} | dict.fromkeys(names, "string") | {_KNOWN: "boolean"})
        known = self._spark.createDataFrame(keys, columns).hint("broadcast")
        path = frame.metadataColumn("_metadata").getField("file_path").alias(_FILE)
        joined = frame.select("*", path).join(known, _FILE, "left")
        strange = f"raise_error(concat('a DeltaSource does not know the file ', {_FILE}))"
        return joined.filter(f"{_KNOWN} or {strange} is null").selectExpr(*self._selected(names, says_changes))

    def _selected(self, values: Sequence[str], says_changes: bool) -> list[str]:
        """Expressions of all columns; `values` are those of the partition columns, and of what is known of a change."""
        known = dict(zip((*self._partitioned, *(_CHANGES if self._with_changes else ())), values, strict=True))
        found = [
            f"cast({known[name]} as {kind}) as {_quoted(name)}" if name in known else _quoted(name)
            for name, kind in self._fields.items()
        ]
        if not self._with_changes:
            return found
        kind = TYPE if says_changes else f"{known[TYPE]} as {TYPE}"
        return [*found, kind, f"cast({known[VERSION]} as bigint) as {VERSION}", _time(known[TIME])]


def _as_read(path: str) -> str:
    """The path of a file in its rows, which has one slash less than in Spark's list of files."""
    return path.replace("file:///", "file:/", 1)


def _time(value: str) -> str:
    return f"timestamp_millis(cast({value} as bigint)) as {TIME}"


def frame_of_delta(
    spark: Any, log: DeltaLog, options: Mapping[str, int | bool], times: Mapping[int, int | None] | None
) -> SparkFrame:
    """What Delta's own reader gives; `times`, of a change feed: version → milliseconds since 1970."""
    extensions = spark.conf.get("spark.sql.extensions", "") or ""
    if EXTENSION not in extensions:
        raise ConfigurationError(
            f"Delta table {log.uri} is to be read by reader='delta', and the session has no extension of Delta: start "
            f"drivers with the package io.delta:delta-spark of their Spark, spark.sql.extensions={EXTENSION} and "
            "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
    reader = spark.read.format("delta")
    for name, value in {**log.settings, **options}.items():
        reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    frame = reader.load(log.root)
    if times is None:
        return frame
    known = spark.createDataFrame(
        [(version, time) for version, time in times.items()], f"{VERSION} bigint, {_VALUE} bigint"
    )
    columns = [_quoted(name) for name in frame.columns if name != TIME]
    return frame.join(known.hint("broadcast"), VERSION, "left").selectExpr(*columns, _time(_VALUE))


def columns_of(log: DeltaLog, state: DeltaState) -> dict[str, str]:
    """Column → type, in the order of the table. Raises ConfigurationError for a type that is not known."""
    fields = json.loads(state.schema)["fields"]
    try:
        return {field["name"]: _type(field["type"]) for field in fields}
    except ValueError as error:
        raise ConfigurationError(
            f"Delta table {log.uri} has the type {error}, which a DeltaSource does not read"
        ) from None


def _type(kind: Any) -> str:
    """Of Spark's SQL. Raises ValueError."""
    if isinstance(kind, str):
        if kind in _TYPES:
            return _TYPES[kind]
        if _DECIMAL.fullmatch(kind.replace(" ", "")):
            return kind
        raise ValueError(kind)
    match kind.get("type"):
        case "array":
            return f"array<{_type(kind['elementType'])}>"
        case "map":
            return f"map<{_type(kind['keyType'])},{_type(kind['valueType'])}>"
        case "struct":
            inner = ",".join(f"{_quoted(one['name'])}:{_type(one['type'])}" for one in kind["fields"])
            return f"struct<{inner}>"
    raise ValueError(str(kind.get("type")))


def _ddl(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{_quoted(name)} {kind}" for name, kind in columns.items())


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str | None) -> str:
    """Whatever Spark takes a backslash for."""
    return "cast(null as string)" if text is None else f"decode(unhex('{text.encode().hex()}'), 'UTF-8')"
