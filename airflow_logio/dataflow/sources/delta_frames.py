"""DataFrames of the files of a Delta table: Spark's Parquet reader, and values of partitions from the table's log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.dataflow.sources.delta_log import DeltaFile, DeltaLog, DeltaState
from airflow_logio.dataflow.sources.delta_schema import columns_of, ddl, names_of, quoted_name
from airflow_logio.errors import ConfigurationError, OperatorFailed

TYPE, VERSION, TIME = "_change_type", "_commit_version", "_commit_timestamp"
"""Columns of a change feed."""
_CHANGES = {TYPE: "string", VERSION: "bigint", TIME: "timestamp_ltz"}
_FILE, _VALUE, _KNOWN = "_logio_file", "_logio_value", "_logio_known"
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


class DeltaFrames:
    """What files of a table have, in the columns that the table has at a version."""

    def __init__(self, spark: Any, log: DeltaLog, state: DeltaState, *, with_changes: bool) -> None:
        self._spark = spark
        self._log = log
        self._fields = dict(columns_of(log.uri, state.schema))
        self._with_changes = with_changes

    def of(self, files: Sequence[DeltaFile]) -> SparkFrame:
        """The records of the files, as a lazy DataFrame. Raises OperatorFailed."""
        frames = [self._read(alike) for alike in self._sorted(files)]
        if not frames:
            return self._spark.createDataFrame([], ddl(self._all()))
        whole = frames[0]
        for more in frames[1:]:
            whole = whole.unionAll(more)
        return whole

    def _sorted(self, files: Iterable[DeltaFile]) -> list[list[DeltaFile]]:
        """Together what Spark reads alike: files that lack the same columns. A table that was partitioned anew has some of
        either kind; and files of the change feed say of each row what it is."""
        found: dict[tuple[bool, frozenset[str]], list[DeltaFile]] = {}
        for one in files:
            found.setdefault((self._says_changes(one), self._partitioned(one)), []).append(one)
        return [found[key] for key in sorted(found, key=lambda key: (not key[0], sorted(key[1])))]

    def _says_changes(self, file: DeltaFile) -> bool:
        return self._with_changes and not file.change

    def _partitioned(self, file: DeltaFile) -> frozenset[str]:
        """Columns that are not in the file."""
        return frozenset(self._fields).intersection(file.values or ())

    def _all(self) -> dict[str, str]:
        return self._fields | (_CHANGES if self._with_changes else {})

    def _read(self, files: Sequence[DeltaFile]) -> SparkFrame:
        """Files that are alike (`_sorted`)."""
        says_changes, away = self._says_changes(files[0]), self._partitioned(files[0])
        partitioned = [name for name in self._fields if name in away]
        data = {name: kind for name, kind in self._fields.items() if name not in away}
        if says_changes:
            data[TYPE] = "string"
        reader = self._spark.read.schema(ddl(data))
        for name in ("ignoreMissingFiles", "ignoreCorruptFiles", "recursiveFileLookup", "__globPaths__"):
            reader = reader.option(name, "false")
        for name in ("datetimeRebaseMode", "int96RebaseMode"):  # whatever the session says: what a file says of itself
            reader = reader.option(name, "CORRECTED")
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
        rows = [(opened[f"{self._log.root}/{one.path}"], *self._values(one, partitioned)) for one in files]
        return self._completed(frame, rows, partitioned, says_changes=says_changes)

    def _values(self, file: DeltaFile, partitioned: Sequence[str]) -> tuple[str | None, ...]:
        values: tuple[str | None, ...] = tuple((file.values or {}).get(name) for name in partitioned)
        if not self._with_changes:
            return values
        time = None if file.time is None else str(file.time)
        return (*values, file.change or None, str(file.version), time)

    def _completed(
        self,
        frame: SparkFrame,
        rows: Sequence[tuple[str | None, ...]],
        partitioned: Sequence[str],
        *,
        says_changes: bool,
    ) -> SparkFrame:
        """With the values that are those of a file. A file may come twice, if it was added and removed."""
        alike = {row[1:] for row in rows}
        if len(alike) == 1 and len({row[0] for row in rows}) == len(rows):
            (values,) = alike
            return frame.selectExpr(*self._selected(partitioned, [_literal(value) for value in values], says_changes))
        names = [f"{_VALUE}{number}" for number in range(len(rows[0]) - 1)]
        keys = [(_as_read(str(row[0])), *row[1:], True) for row in rows]
        columns = ddl({_FILE: "string"} | dict.fromkeys(names, "string") | {_KNOWN: "boolean"})
        known = self._spark.createDataFrame(keys, columns).hint("broadcast")
        path = frame.metadataColumn("_metadata").getField("file_path").alias(_FILE)
        joined = frame.select("*", path).join(known, _FILE, "left")
        strange = f"raise_error(concat('a DeltaSource does not know the file ', {_FILE}))"
        return joined.filter(f"{_KNOWN} or {strange} is null").selectExpr(
            *self._selected(partitioned, names, says_changes)
        )

    def _selected(self, partitioned: Sequence[str], values: Sequence[str], says_changes: bool) -> list[str]:
        """Expressions of all columns; `values` are those of the partition columns, and of what is known of a change."""
        known = dict(zip((*partitioned, *(_CHANGES if self._with_changes else ())), values, strict=True))
        found = [
            f"cast({known[name]} as {kind}) as {quoted_name(name)}" if name in known else quoted_name(name)
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
    spark: Any,
    log: DeltaLog,
    state: DeltaState,
    options: Mapping[str, int | bool],
    times: Mapping[int, int | None] | None,
) -> SparkFrame:
    """What Delta's own reader gives, in the columns of a version: it takes those of the newest one for a change feed.

    `times`, of a change feed: version → milliseconds since 1970. Raises ConfigurationError for a session without Delta.
    """
    if EXTENSION not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise _no_delta(log, "the session has no extension of Delta")
    reader = spark.read.format("delta")
    for name, value in {**log.settings, **options}.items():
        reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    try:
        frame = reader.load(log.root)
    except Exception as error:  # of Spark, or of the JVM: an extension that is not there is only a warning for Spark
        if missing := next((one for one in _NO_JAR if one in str(error)), None):
            raise _no_delta(log, f"the session has not its jar ({missing})") from error
        raise
    columns = [quoted_name(name) for name in names_of(state.schema)]
    if times is None:
        return frame.select(*columns)
    known = spark.createDataFrame(
        [(version, time) for version, time in times.items()], f"{VERSION} bigint, {_VALUE} bigint"
    )
    return frame.join(known.hint("broadcast"), VERSION, "left").selectExpr(*columns, TYPE, VERSION, _time(_VALUE))


_NO_JAR = ("DATA_SOURCE_NOT_FOUND", "CATALOG_PLUGIN_CLASS_NOT_FOUND", "Cannot find catalog plugin class")


def _no_delta(log: DeltaLog, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"Delta table {log.uri} is to be read by reader='delta', and {why}: start drivers with the package "
        f"io.delta:delta-spark_<Spark>_2.13 of their Spark (spark.jars.packages), spark.sql.extensions={EXTENSION} and "
        "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
    )


def _literal(text: str | None) -> str:
    """Whatever Spark takes a backslash for."""
    return "cast(null as string)" if text is None else f"decode(unhex('{text.encode().hex()}'), 'UTF-8')"
