"""`DeltaSource`: a Delta table by its versions, as a `RangeSource`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from airflow_logio.dataflow.names import check_count, did_you_mean, quoted
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.dataflow.placeholders import filled, placeholders_of, resolved
from airflow_logio.dataflow.sources.delta_frames import DeltaFrames, frame_of_delta
from airflow_logio.dataflow.sources.delta_log import (
    MANY,
    NO_STATE,
    DeltaCommit,
    DeltaFile,
    DeltaLog,
    DeltaState,
    check_kept,
    coordinated,
    log_of,
    snapshot_of,
    state_of,
)
from airflow_logio.dataflow.sources.delta_schema import columns_of, misfit
from airflow_logio.dataflow.sources.ranges import RangeSource
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError, SourceChanged

TABLE, AT, COMMIT = "table", "version", "commit"
"""An offset: the id of the table; the version up to which it was read, -1 before the first one, null before a snapshot; and a
digest of the commit's file, empty if that is not known."""
PARQUET, DELTA = "parquet", "delta"
_READERS = (PARQUET, DELTA)
_REMEMBERED = 64
"""So many versions back a driver knows what the table was: events are read behind those that are logged."""
_MOST_LOOKED_AT = 256
"""So many files are looked for when a run is started, and each when it is read."""
_INSTANT = "timestamp_ltz"
_ZONED = re.compile(r"(Z|[+-]\d\d:?\d\d)$")
"""How the text of an instant ends that means the same in each session."""


class DeltaSource(RangeSource):
    """The rows of a Delta table: what each version has added, what is in it at a version, or its change feed. Spark reads
    them; Delta's jar is not needed.

    :param path: the table: a folder that driver and executors share, or ``s3://bucket/path`` without credentials; it may
        contain ``{param}`` placeholders.
    :param snapshot: the run begins with what is in the table at one version, as one event: at the newest one when the run is
        started, or at `from_version`. A run that is not `unbounded` ends there.
    :param changes: give rows of the change feed, which the table must have on
        (``delta.enableChangeDataFeed``): as they are inserted, updated (before and after) and deleted, with the columns
        ``_change_type``, ``_commit_version`` and ``_commit_timestamp``. Of a `snapshot`, all rows are inserted.
    :param from_version: the first version whose rows are read: a number, or text with a ``{param}``. By default the table's
        first one.
    :param versions_per_event: how many versions that bring rows make an event, 1 by default.
    :param unbounded: wait for more versions until the run is drained. By default a run ends at the version that the table has
        when it is started.
    :param reader: ``"parquet"`` (the default): by Spark's own reader of Parquet. ``"delta"``: by that of Delta, whose jar the
        session has; for a `snapshot` or `changes` of tables with deletion vectors, mapped columns and the like.

    Without `changes`, tables that only grow are read: a version that removes or rewrites rows is refused, with the version.
    OPTIMIZE, which moves rows into other files, brings none. The same range gives the same records, or parks the group with
    SourceChanged: if files were vacuumed, commits were cleaned up, or another table is in the place. What cannot be read
    exactly is refused by name when the run is started. Raises PipelineDefinitionError; in a run SourceChanged,
    ConfigurationError.
    """

    def __init__(
        self,
        path: str,
        *,
        snapshot: bool = False,
        changes: bool = False,
        from_version: int | str | None = None,
        versions_per_event: int = 1,
        unbounded: bool = False,
        reader: str = PARQUET,
    ) -> None:
        self.path = path
        self.snapshot = bool(snapshot)
        self.changes = bool(changes)
        self.from_version = from_version
        self.versions_per_event = check_count("versions_per_event", versions_per_event)
        self.unbounded = bool(unbounded)
        self.reader = reader
        self._placeholders = placeholders_of(path)
        if isinstance(from_version, str):
            self._placeholders |= placeholders_of(from_version, "from_version")
        elif from_version is not None and (
            not isinstance(from_version, int) or isinstance(from_version, bool) or from_version < 0
        ):
            raise PipelineDefinitionError(
                f"from_version is {from_version!r}; give a version of the table, 0 or more, or the text '{{param}}'"
            )
        if reader not in _READERS:
            raise PipelineDefinitionError(
                f"reader is {reader!r}, which is none of {quoted(_READERS)}.{did_you_mean(str(reader), _READERS)}"
            )
        if reader == DELTA and not self.changes and (self.unbounded or not self.snapshot):
            raise PipelineDefinitionError(
                "reader='delta' reads a snapshot, or a change feed: Delta's reader does not tell what a version has added. "
                "Say snapshot=True or changes=True, or leave reader out"
            )
        self._states: Mapping[tuple[str, int], DeltaState] = {}
        self._planned: tuple[Any, _Plan] | None = None
        self._passed: tuple[Any, Any] | None = None

    def placeholders(self) -> frozenset[str]:
        return self._placeholders

    # --- where a run begins and ends ----------------------------------------------------------------------------------

    def first(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """What cannot be read is refused here: as far as it is there, and before a run is started."""
        log, newest, state = self._newest(params)
        asked = self._asked(params, newest)
        if self.snapshot:
            begin = {TABLE: state.table, AT: None, COMMIT: ""}
            if self.unbounded:
                with _refused():
                    end = self._offset(log, state.table, newest if asked is None else asked)
                    _check_some(log, self._plan_of(log, begin, end).files)
            return begin
        with _refused():
            begin = self._offset(log, state.table, (asked or 0) - 1)
            if self.unbounded:
                self._looked_over(log, begin, newest)
        return begin

    def last(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        if self.unbounded:
            return None
        log, newest, state = self._newest(params)
        asked = self._asked(params, newest)
        with _refused():
            if self.snapshot:
                end = self._offset(log, state.table, newest if asked is None else asked)
                _check_some(log, self._plan_of(log, {**end, AT: None, COMMIT: ""}, end).files)
                return end
            begin = self._offset(log, state.table, (asked or 0) - 1)
            found = self._looked_over(log, begin, newest)
        return begin if found is None else found

    def latest(self, params: Mapping[str, Any], start: Any, limit: Any | None) -> dict[str, Any]:
        log = self._log(params)
        if start[AT] is None:
            if limit is not None:
                return {**limit}
            asked = self._asked(params, None)
            version = self._loaded(log, None).version() if asked is None else asked
            return self._offset(log, start[TABLE], version)
        if start == limit:
            self._check_start(log, start)
            return {**start}
        begin = self._passed[1] if self._passed is not None and self._passed[0] == start else start
        newest = self._check_start(log, begin)
        following = self._following(
            log, begin, None if limit is None else limit[AT], min(MANY, self.versions_per_event)
        )
        found = {**start}
        looked = begin
        for looked, is_end in self._ends(following, start):
            if is_end:
                found = looked
        if looked is begin and limit is None and (newest is None or newest > begin[AT]):
            _needed(log, begin[AT] + 1, None)
        if limit is not None and (found == start or (found[AT] == limit[AT] and found != {**limit})):
            raise _other_commits(log, limit[AT])
        return found

    def _ends(
        self, following: Iterator[tuple[DeltaCommit, DeltaState]], start: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], bool]]:
        """The place behind each commit up to where an event ends, and whether it brings rows."""
        brought, schema = 0, ""
        for commit, then in following:
            here = {TABLE: start[TABLE], AT: commit.version, COMMIT: commit.digest}
            brings = self._brings(commit)
            if brought and brings and misfit(schema, then.schema):
                return  # an event has the columns of its last version
            if not brought and not brings:  # it is not asked for again each second
                self._passed = {**start}, here
            yield here, brings
            if brings:
                brought, schema = brought + 1, then.schema
            if brought == self.versions_per_event:
                return

    # --- what a range has ---------------------------------------------------------------------------------------------

    def frame(self, spark: Any, params: Mapping[str, Any], start: Any, end: Any) -> SparkFrame:
        log = self._log(params)
        plan = self._plan_of(log, start, end)
        if self.reader == DELTA:
            return self._by_delta(spark, log, start, end, plan)
        return DeltaFrames(spark, log, plan.state, with_changes=self.changes).of(plan.files)

    def observed(self, params: Mapping[str, Any], start: Any, end: Any) -> None:
        """Asked before Spark reads, when it has read, and when it could not: files are there whole, or SourceChanged."""
        log = self._log(params)
        if self.reader == DELTA and start[AT] is None:
            self._planned = None  # the names of its deletion vectors are not known: delta-rs looks for them once more
        check_kept(log, self._plan_of(log, start, end).files)

    def _by_delta(self, spark: Any, log: DeltaLog, start: Any, end: Any, plan: _Plan) -> SparkFrame:
        if start[AT] is not None:
            options = {"readChangeFeed": True, "startingVersion": start[AT] + 1, "endingVersion": end[AT]}
            return frame_of_delta(spark, log, plan.state, options, plan.times)
        frame = frame_of_delta(spark, log, plan.state, {"versionAsOf": end[AT]}, None)
        if not self.changes:
            return frame
        time = plan.times[end[AT]]
        return frame.selectExpr(
            "*",
            "'insert' as _change_type",
            f"cast({end[AT]} as bigint) as _commit_version",
            f"timestamp_millis({'null' if time is None else time}) as _commit_timestamp",
        )

    def _plan_of(self, log: DeltaLog, start: Any, end: Any) -> _Plan:
        """Raises SourceChanged if the log does not have the range as it was."""
        key, known = (log.uri, start[AT], dict(end)), self._planned  # other threads ask as well
        if known is None or known[0] != key:
            made = self._snapshot_at(log, end) if start[AT] is None else self._between(log, start, end)
            known = self._planned = key, made
        return known[1]

    def _snapshot_at(self, log: DeltaLog, end: Any) -> _Plan:
        commit = _needed(log, end[AT], log.commit(end[AT]))
        if commit.digest != end[COMMIT]:
            raise _other_commits(log, end[AT])
        if not log.reaches(end[AT]):
            raise SourceChanged(
                f"version {end[AT]} of Delta table {log.uri} cannot be read any more: commits before it are not in its log, "
                f"nor is a checkpoint. {_CLEANED}"
            )
        table = self._loaded(log, end[AT])
        state = state_of(table)
        self._check_state(log, state, end[TABLE], end[AT])
        if self.reader == PARQUET:
            for name, kind in columns_of(log.uri, state.schema).items():
                if name in state.partitioned and kind == _INSTANT:
                    raise SourceChanged(
                        f"Delta table {log.uri} is partitioned by {name!r} of type {kind}, whose values a snapshot does not "
                        "give as they are written: say reader='delta', or read versions"
                    )
        files = snapshot_of(table, state)
        change = "insert" if self.changes else ""
        files = [replace(one, change=change, version=end[AT], time=commit.time) for one in files]
        self._check_files(log, state, commit, files)
        return _Plan(state, files, {end[AT]: commit.time})

    def _between(self, log: DeltaLog, start: Any, end: Any) -> _Plan:
        self._check_start(log, start)
        files, times, digest = list[DeltaFile](), dict[int, int | None](), start[COMMIT]
        state = NO_STATE if start[AT] < end[AT] else self._state_behind(log, end)
        for commit, then in self._following(log, start, end[AT]):
            files += commit.changes() if self.changes else commit.added
            if self.reader == DELTA:
                files += commit.vectors()
            times[commit.version], digest, state = commit.time, commit.digest, then
        if digest != end[COMMIT]:
            raise _other_commits(log, end[AT])
        return _Plan(state, files, times)

    # --- the log ------------------------------------------------------------------------------------------------------

    def _log(self, params: Mapping[str, Any]) -> DeltaLog:
        return log_of(resolved(self.path, placeholders_of(self.path), params))

    def _asked(self, params: Mapping[str, Any], newest: int | None) -> int | None:
        """The version that the author has named. Raises ConfigurationError if the table does not have it."""
        asked = self.from_version
        if isinstance(asked, str):
            text = filled(asked, placeholders_of(asked, "from_version"), params, "from_version")
            if not (text.isascii() and text.isdecimal()):
                raise ConfigurationError(f"from_version {asked!r} is {text!r} in this run: give a version, 0 or more")
            asked = int(text)
        most = newest if self.snapshot or newest is None else newest + 1
        if asked is not None and most is not None and asked > most:
            raise ConfigurationError(
                f"from_version is {asked}, and Delta table {self._log(params).uri} has versions up to {newest}"
            )
        return asked

    def _newest(self, params: Mapping[str, Any]) -> tuple[DeltaLog, int, DeltaState]:
        log = self._log(params)
        try:
            table = log.loaded()
        except FileNotFoundError as error:
            raise ConfigurationError(f"{error}. Make the table before a run reads it, or correct the path") from error
        state = state_of(table)
        with _refused():
            self._check_state(log, state, state.table, table.version())
        return log, int(table.version()), state

    def _loaded(self, log: DeltaLog, version: int | None) -> Any:
        try:
            return log.loaded(version)
        except FileNotFoundError as error:
            raise SourceChanged(f"{error}. {_CLEANED}") from error

    def _offset(self, log: DeltaLog, table: str, version: int) -> dict[str, Any]:
        """The place behind a version. Where a run begins, its commit may be gone."""
        commit = None if version < 0 else log.commit(version)
        return {TABLE: table, AT: version, COMMIT: "" if commit is None else commit.digest}

    def _looked_over(self, log: DeltaLog, begin: Mapping[str, Any], newest: int) -> dict[str, Any] | None:
        """The last version up to the newest that brings rows; None if none does. Raises SourceChanged for one that cannot be
        read."""
        found, files = None, list[DeltaFile]()
        for commit, _ in self._following(log, begin, newest):
            if self._brings(commit):
                found = {TABLE: begin[TABLE], AT: commit.version, COMMIT: commit.digest}
                files += commit.changes() if self.changes else commit.added
        _check_some(log, files)
        return found

    def _following(
        self, log: DeltaLog, start: Mapping[str, Any], end: int | None, at_once: int = MANY
    ) -> Iterator[tuple[DeltaCommit, DeltaState]]:
        """The commits behind an offset up to a version, or to the newest, with what the table is then. Each is checked."""
        begin = start[AT] + 1
        if end is not None and end < begin:
            return
        state = None
        commits = _until_none(log, begin) if end is None else log.commits(begin, end, at_once)
        for version, commit in enumerate(commits, begin):
            found = _needed(log, version, commit)
            before = self._state_behind(log, start) if state is None else state
            state = before.after(found)
            self._check_state(log, state, start[TABLE], version)
            self._check_commit(log, before, state, found)
            self._states = {**dict(list(self._states.items())[-_REMEMBERED:]), (log.uri + start[TABLE], version): state}
            yield found, state

    def _state_behind(self, log: DeltaLog, place: Mapping[str, Any]) -> DeltaState:
        if (version := place[AT]) < 0:
            return NO_STATE
        if known := self._states.get((log.uri + place[TABLE], version)):
            return known
        try:
            return state_of(log.loaded(version))
        except FileNotFoundError:  # its commit was the first to be cleaned up
            return state_of(self._loaded(log, version + 1))

    def _brings(self, commit: DeltaCommit) -> bool:
        return bool(commit.changes() if self.changes else commit.added)

    # --- what is refused ----------------------------------------------------------------------------------------------

    def _check_start(self, log: DeltaLog, start: Mapping[str, Any]) -> int | None:
        """Raises SourceChanged if what was read up to there is not what the log has. The newest version; it is not looked
        for while the commit of `start` is there: commits are cleaned up from the first one on."""
        if start[AT] < 0:
            return None
        commit = log.commit(start[AT])
        if commit is not None and start[COMMIT]:
            if commit.digest != start[COMMIT]:
                raise _other_commits(log, start[AT])
            return int(start[AT])
        table = self._loaded(log, None)
        _check_same(log, state_of(table), start[TABLE])
        if (newest := table.version()) < start[AT]:
            raise SourceChanged(
                f"Delta table {log.uri} has versions up to {newest}, and was read up to {start[AT]}: an older copy was put "
                "in its place. Put the table back, or start a fresh run"
            )
        return int(newest)

    def _check_state(self, log: DeltaLog, state: DeltaState, table: str, version: int) -> None:
        _check_same(log, state, table)
        why = coordinated(state) or ("" if self.reader == DELTA else state.unreadable())
        if why:
            step = (
                "read it with a SparkSource"
                if coordinated(state)
                else "say reader='delta' for a snapshot or its changes, where drivers have Delta's jar; or read it with a "
                "SparkSource"
            )
            raise SourceChanged(f"Delta table {log.uri} is not read from its files at version {version}: {why}. {step}")
        if self.reader == PARQUET:
            kinds = columns_of(log.uri, state.schema)
            if binary := [name for name in state.partitioned if kinds.get(name) == "binary"]:
                raise SourceChanged(
                    f"Delta table {log.uri} is partitioned by {binary[0]!r} of type binary, whose values no log has as they "
                    "were written: read it with a SparkSource"
                )

    def _check_commit(self, log: DeltaLog, before: DeltaState, state: DeltaState, commit: DeltaCommit) -> None:
        """Raises SourceChanged for one that the source does not read exactly; `before` is what the table was."""
        where = f"version {commit.version} of Delta table {log.uri}"
        if self.changes and not state.has_changes:
            raise SourceChanged(
                f"{where} has no change feed: it is kept from the version on that sets delta.enableChangeDataFeed=true. Name "
                "a later from_version, or add snapshot=True"
            )
        if not self.changes and commit.removed:
            raise SourceChanged(
                f"{where} ({commit.operation or 'of an unknown operation'}) removes or rewrites rows, and this source reads "
                "what versions add. Read the change feed (changes=True, where the table has it on), or what is in the table "
                f"(snapshot=True), or begin behind it (from_version={commit.version + 1})"
            )
        behind = f"begin behind it (from_version={commit.version + 1}), or read a snapshot"
        if (commit.removed or commit.changed) and before != NO_STATE and (name := misfit(before.schema, state.schema)):
            raise SourceChanged(
                f"{where} ({commit.operation or 'of an unknown operation'}) changes rows, and drops the column {name!r} or "
                f"changes its type: the rows that were do not fit into the table that is. Then {behind}"
            )
        files = commit.changes() if self.changes else commit.added
        if (before.partitioned or state.partitioned) and (silent := [one for one in files if one.values is None]):
            raise SourceChanged(
                f"{where} removes {silent[0].path} and does not say of which partition it was: {behind}"
            )
        self._check_files(log, state, commit, files)

    def _check_files(self, log: DeltaLog, state: DeltaState, commit: DeltaCommit, files: Sequence[DeltaFile]) -> None:
        if self.reader == DELTA:
            return
        where = f"version {commit.version} of Delta table {log.uri}"
        instants = [name for name, kind in columns_of(log.uri, state.schema).items() if kind == _INSTANT]
        for one in files:
            for name, text in (one.values or {}).items():
                if text is not None and name in instants and not _ZONED.search(text):
                    raise SourceChanged(
                        f"{where} is partitioned by the instant {name!r}, and its log has {text!r} without a zone: each "
                        "session would take it for another one. Partition the table by a date, or read it with a SparkSource"
                    )
            if one.has_vector:
                raise SourceChanged(
                    f"{where} has a deletion vector, by which rows of {one.path} count as deleted: say reader='delta' for a "
                    "snapshot or its changes, where drivers have Delta's jar; or rewrite the table without them (REORG TABLE "
                    "... APPLY (PURGE)) and begin behind that"
                )
            if "://" in one.path or one.path.startswith(("/", "file:")):
                raise SourceChanged(
                    f"{where} has the file {one.path}, which is outside of its folder (a shallow clone): say reader='delta' "
                    "for a snapshot, or read it with a SparkSource"
                )


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a range has."""

    state: DeltaState
    """At its end."""
    files: Sequence[DeltaFile]
    times: Mapping[int, int | None]
    """Version → when it was committed, in milliseconds since 1970."""


_CLEANED = (
    "Commits are cleaned up when they are older than delta.logRetentionDuration: start a fresh run that reads what is there "
    "(snapshot=True, or a later from_version)"
)


@contextmanager
def _refused() -> Iterator[None]:
    """What a run would not read, before it is started."""
    try:
        yield
    except SourceChanged as error:
        raise ConfigurationError(str(error)) from error


def _check_some(log: DeltaLog, files: Sequence[DeltaFile]) -> None:
    if files:
        step = max(1, len(files) // _MOST_LOOKED_AT)
        check_kept(log, [*files[:-1:step], files[-1]])


def _check_same(log: DeltaLog, state: DeltaState, table: str) -> None:
    if state.table != table:
        raise SourceChanged(
            f"the Delta table in {log.uri} has the id {state.table}, and the run reads the one with id {table}: it was made "
            "anew in the same place. Put the table back, or start a fresh run"
        )


def _needed(log: DeltaLog, version: int, commit: DeltaCommit | None) -> DeltaCommit:
    if commit is None:
        raise SourceChanged(f"the commit of version {version} of Delta table {log.uri} is not in its log. {_CLEANED}")
    return commit


def _other_commits(log: DeltaLog, version: int) -> SourceChanged:
    return SourceChanged(
        f"version {version} of Delta table {log.uri} is another one than was read: its commit has other bytes. An older copy "
        "was put in its place and went another way. Put the table back, or start a fresh run"
    )


def _until_none(log: DeltaLog, version: int) -> Iterator[DeltaCommit]:
    while (commit := log.commit(version)) is not None:
        yield commit
        version += 1
