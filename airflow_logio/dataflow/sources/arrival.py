"""Whether the input of a source is there, before there is a run: what `wait` and `on_empty` of `Pipeline.source` look at.

What lies in a file system is described as plain data (`Awaited`): a process without the author's code can look for it, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.names import did_you_mean
from airflow_logio.dataflow.operators import SourceOperator
from airflow_logio.dataflow.placeholders import placeholders_of, resolved
from airflow_logio.dataflow.quantities import DAY, period_seconds
from airflow_logio.dataflow.query_text import check_select, query_parameters
from airflow_logio.dataflow.sources.files import footer, is_pattern, matching, parquet
from airflow_logio.dataflow.sources.folder import FolderSource, listed_files
from airflow_logio.dataflow.sources.parquet import ParquetSource
from airflow_logio.dataflow.sources.query import QuerySource
from airflow_logio.dataflow.sources.source_folders import SourceFolder, source_folder
from airflow_logio.dataflow.sources.table import TableSource
from airflow_logio.dataflow.unavailability import is_missing_input
from airflow_logio.dataflow.writers.published_folder import is_published, published_files
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, PipelineDefinitionError

_T = TypeVar("_T")
FINISH, FAIL = "finish", "fail"
MOST_SECONDS = 366 * DAY
_QUERIES = (["select"], ["with"])
"""How a query begins, which no path does."""
_LATER = (FileNotFoundError, NotADirectoryError)
_NEVER = (PermissionError, IsADirectoryError)
"""Time does not mend them."""


# --- what an author says ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InputArrival:
    """How a source gets its input, as `Pipeline.source` was told. No part of the graph: another wait is no other pipeline.

    :param wait: for how long a run waits for it before there is a run, ``"6h"``; None: not at all.
    :param ready: what is there when all of it is: a path, or a SELECT on the connection of the source that returns a row
        then; None: what the source finds by itself.
    :param on_empty: ``"finish"`` or ``"fail"``: what becomes of a run whose input is there, and has no rows at all.
    """

    wait: str | None = None
    ready: str | None = None
    on_empty: str = FINISH

    @property
    def seconds(self) -> float:
        """Of `wait`."""
        return 0.0 if self.wait is None else _seconds(self.wait)

    @property
    def query(self) -> str | None:
        """`ready`, if it is a query."""
        return self.ready if self.ready is not None and _is_query(self.ready) else None

    @property
    def path(self) -> str | None:
        """`ready`, if it is a path."""
        return None if self.ready is None or self.query is not None else self.ready

    def placeholders(self) -> frozenset[str]:
        """The parameters that `ready` refers to."""
        if self.query is not None:
            return query_parameters(self.query)
        return frozenset() if self.ready is None else placeholders_of(self.ready, "ready")


def arrival_of(source: SourceOperator, wait: object, ready: object, on_empty: object) -> InputArrival | None:
    """What an author has said of a source; None if it is what holds for all. Raises PipelineDefinitionError."""
    if (wait, ready, on_empty) == (None, None, FINISH):
        return None
    _check_on_empty(source, on_empty)
    if wait is None:
        if ready is not None:
            raise PipelineDefinitionError("ready=... is what wait= waits for: say for how long, wait='6h'")
        return InputArrival(on_empty=str(on_empty))
    _seconds(wait)
    found = InputArrival(str(wait), _checked_ready(ready), str(on_empty))
    if found.query is not None and len(source.sql_connections()) != 1:
        raise PipelineDefinitionError(
            f"ready is the query {found.query[:60]!r}, and a {type(source).__name__} has no SQL connection to ask, or "
            "several: name a path"
        )
    if found.ready is None and not _finds_by_itself(source):
        raise PipelineDefinitionError(
            f"a {type(source).__name__} cannot tell before a run whether its input is there: say what is there then, "
            f"wait={wait!r}, ready='{{data}}/_SUCCESS'; or define missing() in its class"
        )
    return found


def _seconds(wait: object) -> float:
    seconds = period_seconds("wait", wait, "'30m', '6h' or '1d'")
    if seconds > MOST_SECONDS:
        raise PipelineDefinitionError(f"wait {wait!r} is more than a year: write how late the input may be")
    return seconds


def _is_query(text: str) -> bool:
    return text.lower().split(None, 1)[:1] in _QUERIES


def _checked_ready(ready: object) -> str | None:
    if ready is None:
        return None
    if isinstance(ready, str) and _is_query(ready):
        check_select(ready, "ready")
    else:
        placeholders_of(ready, "ready")
    return str(ready)


def _check_on_empty(source: SourceOperator, on_empty: object) -> None:
    if on_empty not in (FINISH, FAIL):
        raise PipelineDefinitionError(
            f"on_empty {on_empty!r} is neither 'finish' nor 'fail'.{did_you_mean(str(on_empty), (FINISH, FAIL))}"
        )
    if on_empty == FINISH:
        return
    if getattr(source, "unbounded", False):
        raise PipelineDefinitionError("on_empty='fail' of a source that is unbounded: it waits for rows without end")
    if not isinstance(source, ParquetSource | FolderSource | QuerySource | TableSource):
        raise PipelineDefinitionError(
            f"on_empty='fail': whether a {type(source).__name__} has rows is not known before a run, and one that has begun "
            "is not undone. Raise an error in its own code"
        )


def _finds_by_itself(source: SourceOperator) -> bool:
    known = isinstance(source, ParquetSource | FolderSource | QuerySource | TableSource)
    return known or type(source).missing is not SourceOperator.missing


# --- what lies in a file system ---------------------------------------------------------------------------------------


class InputGone(ConfigurationError):
    """What is to be read is not there."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """Something in a file system that is to be there."""

    kind: str
    path: str
    """Absolute, or a URI."""

    @property
    def is_local(self) -> bool:
        return "://" not in self.path

    def missing(self) -> str | None:
        """What is not there yet, in words; None if all of it is.

        Raises ConfigurationError for what time does not mend, ExternalUnavailable for what cannot be looked at now.
        """
        try:
            return _looked(self.path, _MISSING[self.kind])
        except InputGone:
            return f"{self.path} is not there"

    def has_rows(self) -> bool:
        """Whether there is a row in it. Raises as `missing`, and InputGone for what is not there."""
        return _looked(self.path, _ROWS[self.kind])


def awaited_by(source: SourceOperator, arrival: InputArrival, params: Mapping[str, Any]) -> list[Awaited]:
    """What a source waits for in a file system, if nothing else decides. Raises ConfigurationError."""
    if arrival.path is not None:
        return [Awaited("path", resolved(arrival.path, arrival.placeholders(), params))]
    return [] if arrival.query is not None else read_by(source, params)


def read_by(source: SourceOperator, params: Mapping[str, Any]) -> list[Awaited]:
    """What a ready-made source reads in a file system. Raises ConfigurationError."""
    if isinstance(source, ParquetSource):
        return [Awaited("parquet", resolved(path, placeholders_of(path), params)) for path in source.paths]
    if isinstance(source, FolderSource):
        kind = "path" if source.unbounded else "published" if source.published else "folder"
        return [Awaited(kind, resolved(source.path, source.placeholders(), params))]
    return []


def _looked(path: str, look: Callable[[str], _T]) -> _T:
    try:
        return look(path)
    except _LATER as error:
        raise InputGone(f"{path} is not there: {error}") from error
    except pa.ArrowException as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    except _NEVER as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    except OSError as error:
        raise ExternalUnavailable(f"{path} cannot be looked for: {error}") from error
    except ValueError as error:  # a NUL, half a surrogate pair
        raise ConfigurationError(f"no file can have the name {path!a}: {error}") from error


def _missing_path(path: str) -> str | None:
    if is_pattern(path):
        _, said = _matched(path)
        return said
    if "://" in path:
        from pyarrow import fs

        system, inner = fs.FileSystem.from_uri(path)
        is_there = system.get_file_info(inner).type != fs.FileType.NotFound
    else:
        try:
            os.stat(path)
            is_there = True
        except _LATER:
            is_there = False
    return None if is_there else f"{path} is not there"


def _missing_parquet(path: str) -> str | None:
    files, said = _matched(path)
    return said or next(filter(None, map(_torn, files)), None)


def _missing_folder(path: str) -> str | None:
    try:
        folder = source_folder(path)
        files = listed_files(folder)
    except ConfigurationError as error:
        if is_missing_input(error):
            return f"the folder {path} is not there"
        raise
    if not files:
        return f"the folder {path} has no file yet"
    return next(filter(None, (_torn_in(folder, one.name) for one in files)), None)


def _missing_published(path: str) -> str | None:
    try:
        return None if is_published(path) else f"no run has published into {path} yet"
    except _LATER:
        return f"no run has published into {path} yet"


def _matched(path: str) -> tuple[Sequence[str], str | None]:
    try:
        return matching(path), None
    except ConfigurationError as error:
        if isinstance(error.__cause__, _LATER) or error.__cause__ is None:
            return (), f"no file matches {path}"
        raise error.__cause__ from None


def _torn_in(folder: SourceFolder, name: str) -> str | None:
    return _torn(folder.path(name), lambda: _rows_in(folder, name))


def _torn(path: str, look: Callable[[], object] | None = None) -> str | None:
    """Why a file is not there as a whole: the end of a Parquet file is written last. `look` reads that."""
    try:
        look() if look else footer(path)
    except _LATER:
        return f"{path} is not there"
    except pa.ArrowException as error:
        return f"{path} is not there as a whole, or is no Parquet file: {str(error).rstrip('.')}"
    return None


def _rows_of_parquet(path: str) -> bool:
    return any(footer(file)[0] for file in matching(path))


def _rows_of_folder(path: str) -> bool:
    folder = source_folder(path)
    return any(_rows_in(folder, one.name) for one in listed_files(folder))


def _rows_in(folder: SourceFolder, name: str) -> int:
    with folder.open(name) as handle:
        return int(parquet(handle).metadata.num_rows)


def _rows_of_published(path: str) -> bool:
    return any(file.records for file in published_files(path))


_MISSING: Mapping[str, Callable[[str], str | None]] = {
    "path": _missing_path,
    "parquet": _missing_parquet,
    "folder": _missing_folder,
    "published": _missing_published,
}
_ROWS: Mapping[str, Callable[[str], bool]] = {
    "parquet": _rows_of_parquet,
    "folder": _rows_of_folder,
    "published": _rows_of_published,
}
