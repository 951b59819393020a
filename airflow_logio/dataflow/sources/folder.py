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
from airflow_logio.dataflow.sources.files import parquet
from airflow_logio.dataflow.sources.parquet_types import spark_columns
from airflow_logio.dataflow.sources.ranges import RangeSource
from airflow_logio.dataflow.sources.source_folders import FoundFile, SourceFolder, chained, source_folder
from airflow_logio.dataflow.writers.arrow_files import is_lasting, next_step
from airflow_logio.dataflow.writers.bucket_urls import SCHEME
from airflow_logio.dataflow.writers.published_folder import day_as_left
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    OperatorFailed,
    PipelineDefinitionError,
    SourceChanged,
)
from airflow_logio.protocol.scope_rules import DAYS_READ, DayAsRead

FOLDER, AFTER, FILES, BYTES, CONTENT = "folder", "after", "files", "bytes", "content"
_SKIPPED, _COPIED = ("_", "."), "._COPYING_"
"""Spark passes over files whose names begin or end so, without a word; Hadoop names files so that it copies."""
_MISREAD = frozenset("*?[]{}:=\\")
"""Spark takes these for patterns, schemes and partitions."""
_PATTERNS = _MISREAD - {":", "="}
"""In the name of a folder."""
_MOST_LOOKED_AT = 256
"""So many files are looked into when a run is started, and each when it is read."""


class FolderSource(RangeSource):
    """The Parquet files of a folder that grows, in the order of their names. Spark reads them.

    :param path: a folder that driver and executors share, or ``s3://bucket/path``, as `published_files` takes it; it may
        contain ``{param}`` placeholders. Other URLs are refused.
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
        if isinstance(path, str) and "://" in path and not path.startswith(SCHEME):
            raise PipelineDefinitionError(
                f"path {path!r} is a URL; a FolderSource reads a folder of a shared file system, or s3://bucket/path"
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
        self._folder: SourceFolder | None = None
        self._known: tuple[Any, Any] | None = None
        """A file as it was written, and its schema."""

    def placeholders(self) -> frozenset[str]:
        return self._placeholders

    def settings(self) -> dict[str, Any]:
        """As a run of an earlier version has them, where all files of the folder are read."""
        return {name: value for name, value in super().settings().items() if (name, value) != ("published", False)}

    def first(self, params: Mapping[str, Any]) -> dict[str, Any]:
        folder = self._at(resolved(self.path, self._placeholders, params))
        files = self._files(folder)
        if not files and folder.has_tags and not self.unbounded and not self.published:
            raise ConfigurationError(
                f"nothing is below {folder.where}: correct the path; or say unbounded=True, or wait=, if its files are still "
                "to come"
            ) from FileNotFoundError(folder.where)
        _check_files(folder, files)  # what cannot be read is refused when the run is started
        return _offset(folder, [])

    def last(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        folder = self._at(resolved(self.path, self._placeholders, params))
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
        folder = self._at(start[FOLDER])
        files = self._files(folder)
        self._check(folder, files, start)
        if limit is not None:
            self._check(folder, files, limit)  # before a range is logged that could not be read again
        wanted = [one for one in files if limit is None or one.name <= limit[AFTER]]
        return _offset(folder, wanted[: start[FILES] + self.files_per_event])

    def frame(self, spark: Any, params: Mapping[str, Any], start: Any, end: Any) -> SparkFrame:
        folder = self._at(start[FOLDER])
        first, wanted = self._range_of(folder, start, end)
        _check_columns(folder, first, wanted)
        reader = spark.read.schema(self._schema(spark, folder, first))
        for name in ("ignoreMissingFiles", "ignoreCorruptFiles", "recursiveFileLookup"):
            reader = reader.option(name, False)
        return reader.options(**folder.spark_options()).parquet(*(folder.spark_path(one.name, spark) for one in wanted))

    def _range_of(self, folder: SourceFolder, start: Any, end: Any) -> tuple[FoundFile, list[FoundFile]]:
        """The first file of the folder, and those of a range. Raises SourceChanged."""
        if not self._is_listed_in_parts(folder):
            files = self._files(folder)
            self._check(folder, files, start)
            self._check(folder, files, end)
            return files[0], files[start[FILES] : end[FILES]]
        wanted = self._part(folder, start, end)
        found = {**end, FILES: start[FILES] + len(wanted), BYTES: start[BYTES] + sum(one.bytes for one in wanted)}
        _compare({**found, CONTENT: chained(start[CONTENT], wanted)}, end, _GROWS)
        with _reading(folder.where):
            first = wanted[0] if not start[FILES] else next(filter(_is_shown, folder.part("", None)))
        return first, wanted

    def _is_listed_in_parts(self, folder: SourceFolder) -> bool:
        return folder.has_tags and not self.published

    def _part(self, folder: SourceFolder, start: Any, end: Any) -> list[FoundFile]:
        with _reading(folder.where):
            return list(filter(_is_shown, folder.part(start[AFTER], end[AFTER])))

    def _schema(self, spark: Any, folder: SourceFolder, file: FoundFile) -> Any:
        """Columns and types of a file as Spark has them, which takes a job of it: for each file once."""
        written, known = (folder.path(file.name), _written(folder, file)), self._known  # other threads ask as well
        if known is None or known[0] != written:
            reader = spark.read.options(**folder.spark_options())
            known = self._known = written, reader.parquet(folder.spark_path(file.name, spark)).schema
        return known[1]

    def observed(self, params: Mapping[str, Any], start: Any, end: Any) -> dict[str, Sequence[Any]]:
        """Name of each file of the range → when it was last written (ns), bytes, and number of its inode; in a bucket bytes
        and ETag."""
        folder = self._at(start[FOLDER])
        if self._is_listed_in_parts(folder):
            wanted = self._part(folder, start, end)
        else:
            wanted = self._files(folder)[start[FILES] : end[FILES]]
        return {one.name: _written(folder, one) for one in wanted}

    def _at(self, where: str) -> SourceFolder:
        """Other threads ask as well."""
        folder = self._folder
        if folder is None or folder.where != where:
            folder = self._folder = source_folder(where)
        return folder

    def _files(self, folder: SourceFolder) -> list[FoundFile]:
        """By name. Raises ConfigurationError, ExternalUnavailable, SourceChanged."""
        return counted_files(folder) if self.published else listed_files(folder)

    def _check(self, folder: SourceFolder, files: list[FoundFile], offset: Mapping[str, Any]) -> None:
        _check(folder, files, offset, _REPLACED if self.published else _GROWS)


def _written(folder: SourceFolder, file: FoundFile) -> Sequence[Any]:
    if folder.has_tags:
        return file.bytes, file.tag
    path = folder.path(file.name)
    try:
        found = os.stat(path)
    except OSError as error:
        raise SourceChanged(
            f"{path} cannot be found while the range that has it is read: {error}; put it back"
        ) from error
    return found.st_mtime_ns, found.st_size, found.st_ino


def listed_files(folder: SourceFolder) -> list[FoundFile]:
    """Those that are there."""
    _check_path(folder.where)
    with _reading(folder.where):
        files, inner = folder.listed()
    return _checked(
        folder.where, list(filter(_is_shown, files)), [name for name in inner if _is_shown(FoundFile(name, 0))]
    )


def _is_shown(file: FoundFile) -> bool:
    return not file.name.startswith(_SKIPPED) and not file.name.endswith(_COPIED)


def counted_files(folder: SourceFolder) -> list[FoundFile]:
    """Those that count, of what runs have published."""
    _check_path(folder.where)
    with _reading(folder.where):
        try:
            found = [FoundFile(*one) for one in folder.counted()]
        except ValueError as error:  # a receipt that is damaged
            raise ConfigurationError(str(error)) from error
    inner = [one.name.partition(os.sep)[0] for one in found if os.sep in one.name]
    return _checked(folder.where, found, inner)


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
        if folder.startswith(SCHEME) and is_lasting(error):
            raise ConfigurationError(f"the folder {folder} cannot be read: {error}{next_step(error)}") from error
        raise ExternalUnavailable(f"the folder {folder} cannot be read: {error}") from error


def _check_path(folder: str) -> None:
    if found := sorted(_PATTERNS & set(folder.partition("?")[0] if folder.startswith(SCHEME) else folder)):
        raise ConfigurationError(f"Spark would take {found[0]} in the path {folder} for a pattern: rename the folder")


def _checked(folder: str, files: list[FoundFile], inner: Sequence[str]) -> list[FoundFile]:
    if inner:
        raise ConfigurationError(
            f"{folder} has the folder {min(inner)!r}, whose files a FolderSource does not read: "
            + (
                "a folder of partitions is for a SparkSource, which reads spark.read.parquet(...); or name one partition"
                if "=" in min(inner)
                else "name that one, or move them"
            )
        )
    for name in (one.name for one in files):
        if _MISREAD & set(name):
            raise ConfigurationError(
                f"Spark would misread the name of file {name!r} in {folder}: rename it to letters, digits, '-', '_' and '.'"
            )
    return sorted(files)


def _offset(folder: SourceFolder, files: list[FoundFile]) -> dict[str, Any]:
    """The place behind the last of `files`, which are all up to there."""
    place = {
        FOLDER: folder.where,
        AFTER: files[-1].name if files else "",
        FILES: len(files),
        BYTES: sum(one.bytes for one in files),
    }
    return {**place, CONTENT: chained("", files)} if folder.has_tags else place


_GROWS = (
    "Files must arrive in the order of their names, as texts are sorted ('part-10' comes before 'part-9': pad numbers with "
    "zeros, or begin with a date), and stay as they are: put the folder back as it was, or start a fresh run"
)
_REPLACED = "Another run has published there since: start a fresh run, which reads what counts now"


def _check(folder: SourceFolder, files: list[FoundFile], offset: Mapping[str, Any], advice: str) -> None:
    _compare(_offset(folder, [one for one in files if one.name <= offset[AFTER]]), offset, advice)


def _compare(behind: Mapping[str, Any], offset: Mapping[str, Any], advice: str) -> None:
    """What lies up to an offset with what lay there when it was logged. Raises SourceChanged."""
    if behind != {**offset}:
        other = ", and others of them" if {**behind, CONTENT: ""} == {**offset, CONTENT: ""} else ""
        raise SourceChanged(
            f"{offset[FOLDER]} has {behind[FILES]:,} files of {behind[BYTES]:,} bytes up to {offset[AFTER]!r}{other}; it had "
            f"{offset[FILES]:,} of {offset[BYTES]:,} when they were read. {advice}"
        )


def _check_columns(folder: SourceFolder, first: FoundFile, files: Sequence[FoundFile]) -> None:
    """Spark fills a column that a file does not have with nulls. Raises OperatorFailed."""
    wanted = _columns_of(folder, first)
    for file in files:
        if (found := _columns_of(folder, file)) != wanted:
            raise OperatorFailed(
                f"{folder.path(file.name)} has the columns {_columns(found)}; the first file of the folder, {first.name}, "
                f"has {_columns(wanted)}. All files of a FolderSource have the same columns. If one was added since that was "
                "written, read the files of each partition by themselves (a path with {day}), or all with a SparkSource: "
                "spark.read.option('mergeSchema', True).parquet(...) has null where files lack it"
            )


def _columns_of(folder: SourceFolder, file: FoundFile) -> dict[str, str]:
    """Name → type, equal where Spark reads the same. Raises OperatorFailed; `ExternalUnavailable`, `SourceChanged` of a
    bucket."""
    path = folder.path(file.name)
    try:
        with folder.open(file.name) as handle:
            return spark_columns(path, parquet(handle))
    except ConfigurationError as error:
        raise OperatorFailed(str(error)) from error
    except (pa.ArrowException, OSError) as error:
        if folder.has_tags and "AWS Error" in str(error):
            kind = ConfigurationError if isinstance(error, OSError) and is_lasting(error) else ExternalUnavailable
            raise kind(f"{path} cannot be read: {error}{next_step(error)}") from error
        if folder.has_tags and isinstance(error, FileNotFoundError):
            raise SourceChanged(f"{path} is not there any more: {error}") from error
        raise OperatorFailed(
            f"{path} is no Parquet file that can be read: {str(error).rstrip('.')}{_advice(path)}"
        ) from error


def _advice(path: str) -> str:
    """What to do about a file that is none of Parquet."""
    if "://" not in path and not os.access(path, os.R_OK):
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


def _check_files(folder: SourceFolder, files: list[FoundFile]) -> None:
    """What is there when a run is started. Raises ConfigurationError."""
    if not files:
        return
    step = max(1, len(files) // _MOST_LOOKED_AT)
    try:
        _check_columns(folder, files[0], [*files[:-1:step], files[-1]])
    except OperatorFailed as error:
        raise ConfigurationError(str(error)) from error


def _columns(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
