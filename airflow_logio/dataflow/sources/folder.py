"""`FolderSource`: a growing folder of Parquet files as a `RangeSource`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.names import check_count
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.dataflow.placeholders import placeholders_of, resolved
from airflow_logio.dataflow.sources.files import opened, parquet
from airflow_logio.dataflow.sources.parquet_types import spark_columns
from airflow_logio.dataflow.sources.ranges import RangeSource
from airflow_logio.dataflow.writers.published_folder import day_as_left, published_files
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    OperatorFailed,
    PipelineDefinitionError,
    SourceChanged,
)
from airflow_logio.protocol.scope_rules import DAYS_READ, DayAsRead

FOLDER, AFTER, FILES, BYTES = "folder", "after", "files", "bytes"
_SKIPPED, _COPIED = ("_", "."), "._COPYING_"
"""Spark passes over files whose names begin or end so, without a word; Hadoop names files so that it copies."""
_MISREAD = frozenset("*?[]{}:=\\")
"""Spark takes these for patterns, schemes and partitions."""
_PATTERNS = _MISREAD - {":", "="}
"""In the name of a folder."""
_MOST_LOOKED_AT = 256
"""So many files are looked into when a run is started, and each when it is read."""
_ON_DISK = "file://"
"""Spark takes a path without it for one of its default file system, which may be another one."""


class FolderSource(RangeSource):
    """The Parquet files of a folder that grows, in the order of their names. Spark reads them.

    :param path: a folder that driver and executors share; it may contain ``{param}`` placeholders. A URL is refused.
    :param files_per_event: how many files make an event, 1 by default.
    :param unbounded: wait for more files until the run is drained. By default False: a run reads the files that are
        there when it is started.
    :param published: the folder is one that a `DatasetWriter` publishes into, or a partition of it, and the files are
        those that count (`published_files`): not those of a run that is about to replace them, nor replaced ones. By
        default False.

    Files must arrive in the order of their names (a date, a sequence number) and as a whole (written under a name
    beginning with ``.`` or ``_``, then renamed), and stay as they are: a file that is added, removed or resized behind
    what was read parks the group, and so does one that is written while Spark reads it. All files have the columns of
    the first one, as Spark reads them: those of pandas, polars and Arrow may stand side by side. What cannot be read is
    refused when the run is started. Raises PipelineDefinitionError; in a run SourceChanged, ConfigurationError.
    """

    def __init__(
        self, path: str, *, files_per_event: int = 1, unbounded: bool = False, published: bool = False
    ) -> None:
        if isinstance(path, str) and "://" in path:
            raise PipelineDefinitionError(
                f"path {path!r} is a URL; a FolderSource reads a folder of a shared file system"
            )
        self.path = path
        self.files_per_event = check_count("files_per_event", files_per_event)
        self.unbounded = bool(unbounded)
        self.published = bool(published)
        if self.published and self.unbounded:
            raise PipelineDefinitionError(
                f"path {path!r}: published=True is for what counts when a run is started, and new runs publish under names "
                "in no order; leave unbounded out, or read the folder with published=False"
            )
        self._placeholders = placeholders_of(path)
        self._known: tuple[Any, Any] | None = None
        """A file as it was written, and its schema."""

    def placeholders(self) -> frozenset[str]:
        return self._placeholders

    def settings(self) -> dict[str, Any]:
        """As a run of an earlier version has them, where all files of the folder are read."""
        return {name: value for name, value in super().settings().items() if (name, value) != ("published", False)}

    def first(self, params: Mapping[str, Any]) -> dict[str, Any]:
        folder = resolved(self.path, self._placeholders, params)
        _check_files(folder, self._files(folder))  # what cannot be read is refused when the run is started
        return _offset(folder, [])

    def last(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        folder = resolved(self.path, self._placeholders, params)
        return None if self.unbounded else _offset(folder, self._files(folder))

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Of a day that runs own, with the run that had left it so: it is kept with the run that reads it, which reads these
        files or none (`SourceChanged`)."""
        if not self.published:
            return super().action(params)
        folder = resolved(self.path, self._placeholders, params)
        while True:  # again, if it was replaced while it was listed
            day = _day_as_left(folder)
            try:
                described = super().action(params)
            except SourceChanged:
                if _day_as_left(folder) == day:
                    raise
                continue
            if _day_as_left(folder) == day:
                break
        if day is not None:
            described["plan"] = {**described["plan"], DAYS_READ: [list(day)]}
        return described

    def latest(self, params: Mapping[str, Any], start: Any, limit: Any | None) -> dict[str, Any]:
        files = self._files(start[FOLDER])
        self._check(files, start)
        if limit is not None:
            self._check(files, limit)  # before a range is logged that could not be read again
        wanted = [one for one in files if limit is None or one[0] <= limit[AFTER]]
        return _offset(start[FOLDER], wanted[: start[FILES] + self.files_per_event])

    def frame(self, spark: Any, params: Mapping[str, Any], start: Any, end: Any) -> SparkFrame:
        folder, files = start[FOLDER], self._files(start[FOLDER])
        self._check(files, start)
        self._check(files, end)
        first, *_ = paths = [os.path.join(folder, name) for name, _ in files]
        wanted = paths[start[FILES] : end[FILES]]
        _check_columns(first, wanted)
        reader = spark.read.schema(self._schema(spark, first))
        for name in ("ignoreMissingFiles", "ignoreCorruptFiles", "recursiveFileLookup"):
            reader = reader.option(name, False)
        return reader.parquet(*(f"{_ON_DISK}{path}" for path in wanted))

    def _schema(self, spark: Any, path: str) -> Any:
        """Columns and types of a file as Spark has them, which takes a job of it: for each file once."""
        written, known = (path, _written(path)), self._known  # other threads ask as well
        if known is None or known[0] != written:
            known = self._known = written, spark.read.parquet(f"{_ON_DISK}{path}").schema
        return known[1]

    def observed(self, params: Mapping[str, Any], start: Any, end: Any) -> dict[str, tuple[int, int, int]]:
        """Name of each file of the range → when it was last written (ns), bytes, and number of its inode."""
        folder = start[FOLDER]
        return {
            name: _written(os.path.join(folder, name)) for name, _ in self._files(folder)[start[FILES] : end[FILES]]
        }

    def _files(self, folder: str) -> list[tuple[str, int]]:
        """Name and bytes of each file, by name. Raises ConfigurationError, ExternalUnavailable."""
        return counted_files(folder) if self.published else listed_files(folder)

    def _check(self, files: list[tuple[str, int]], offset: Mapping[str, Any]) -> None:
        _check(files, offset, _REPLACED if self.published else _GROWS)


def _written(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise SourceChanged(
            f"{path} cannot be found while the range that has it is read: {error}; put it back"
        ) from error
    return found.st_mtime_ns, found.st_size, found.st_ino


def listed_files(folder: str) -> list[tuple[str, int]]:
    """Those that are there."""
    _check_path(folder)
    with _reading(folder), os.scandir(folder) as entries:
        there = [one for one in entries if not one.name.startswith(_SKIPPED) and not one.name.endswith(_COPIED)]
        files = [(entry.name, entry.stat().st_size) for entry in there if entry.is_file()]
        inner = [entry.name for entry in there if entry.is_dir()]
    return _checked(folder, files, inner)


def counted_files(folder: str) -> list[tuple[str, int]]:
    """Those that count, of what runs have published."""
    _check_path(folder)
    with _reading(folder):
        try:
            found = [(os.path.relpath(one.path, folder), one.bytes) for one in published_files(folder)]
        except ValueError as error:  # a receipt that is damaged
            raise ConfigurationError(str(error)) from error
    inner = [name.partition(os.sep)[0] for name, _ in found if os.sep in name]
    return _checked(folder, found, inner)


def _day_as_left(folder: str) -> DayAsRead | None:
    with _reading(folder):
        try:
            return day_as_left(folder)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error


@contextmanager
def _reading(folder: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise ConfigurationError(f"the folder {folder} cannot be read: {error}; make or mount it") from error
    except OSError as error:
        raise ExternalUnavailable(f"the folder {folder} cannot be read: {error}") from error


def _check_path(folder: str) -> None:
    if found := sorted(_PATTERNS & set(folder)):
        raise ConfigurationError(f"Spark would take {found[0]} in the path {folder} for a pattern: rename the folder")


def _checked(folder: str, files: list[tuple[str, int]], inner: Sequence[str]) -> list[tuple[str, int]]:
    if inner:
        raise ConfigurationError(
            f"{folder} has the folder {min(inner)!r}, whose files a FolderSource does not read: "
            + (
                "a folder of partitions is for a SparkSource, which reads spark.read.parquet(...); or name one partition"
                if "=" in min(inner)
                else "name that one, or move them"
            )
        )
    for name, _ in files:
        if _MISREAD & set(name):
            raise ConfigurationError(
                f"Spark would misread the name of file {name!r} in {folder}: rename it to letters, digits, '-', '_' and '.'"
            )
    return sorted(files)


def _offset(folder: str, files: list[tuple[str, int]]) -> dict[str, Any]:
    """The place behind the last of `files`, which are all up to there."""
    return {
        FOLDER: folder,
        AFTER: files[-1][0] if files else "",
        FILES: len(files),
        BYTES: sum(size for _, size in files),
    }


_GROWS = (
    "Files must arrive in the order of their names, as texts are sorted ('part-10' comes before 'part-9': pad numbers with "
    "zeros, or begin with a date), and stay as they are: put the folder back as it was, or start a fresh run"
)
_REPLACED = "Another run has published there since: start a fresh run, which reads what counts now"


def _check(files: list[tuple[str, int]], offset: Mapping[str, Any], advice: str) -> None:
    behind = _offset(offset[FOLDER], [one for one in files if one[0] <= offset[AFTER]])
    if behind != {**offset}:
        raise SourceChanged(
            f"{offset[FOLDER]} has {behind[FILES]:,} files of {behind[BYTES]:,} bytes up to {offset[AFTER]!r}; it had "
            f"{offset[FILES]:,} of {offset[BYTES]:,} when they were read. {advice}"
        )


def _check_columns(first: str, paths: list[str]) -> None:
    """Spark fills a column that a file does not have with nulls. Raises OperatorFailed."""
    wanted = _columns_of(first)
    for path in paths:
        if (found := _columns_of(path)) != wanted:
            raise OperatorFailed(
                f"{path} has the columns {_columns(found)}; the first file of the folder, {os.path.basename(first)}, has "
                f"{_columns(wanted)}. All files of a FolderSource have the same columns. If one was added since that was "
                "written, read the files of each partition by themselves (a path with {day}), or all with a SparkSource: "
                "spark.read.option('mergeSchema', True).parquet(...) has null where files lack it"
            )


def _columns_of(path: str) -> dict[str, str]:
    """Name → type, equal where Spark reads the same. Raises OperatorFailed."""
    try:
        with opened(path) as file:
            return spark_columns(path, parquet(file.handle))
    except ConfigurationError as error:
        raise OperatorFailed(str(error)) from error
    except (pa.ArrowException, OSError) as error:
        raise OperatorFailed(
            f"{path} is no Parquet file that can be read: {str(error).rstrip('.')}{_advice(path)}"
        ) from error


def _advice(path: str) -> str:
    """What to do about a file that is none of Parquet."""
    if not os.access(path, os.R_OK):
        return ". Let the user of the drivers read it"
    ending = os.path.splitext(path)[1].lower()
    if ending and ending != ".parquet":
        return (
            f". A FolderSource reads files of Parquet only: read those of {ending!r} with a SparkSource (spark.read.json, "
            ".csv, ...), or move them out of the folder"
        )
    return (
        ". It may be cut, or still be written: write files under a name that begins with '.' or '_', and rename them when "
        "they are whole"
    )


def _check_files(folder: str, files: list[tuple[str, int]]) -> None:
    """What is there when a run is started. Raises ConfigurationError."""
    paths = [os.path.join(folder, name) for name, _ in files]
    if not paths:
        return
    step = max(1, len(paths) // _MOST_LOOKED_AT)
    try:
        _check_columns(paths[0], [*paths[:-1:step], paths[-1]])
    except OperatorFailed as error:
        raise ConfigurationError(str(error)) from error


def _columns(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
