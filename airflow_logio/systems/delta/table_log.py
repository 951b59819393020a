"""The log of a Delta table by delta-rs: one version is loaded, and the next one committed, or nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.errors import ExternalUnavailable, LogioError, WriteRefused
from airflow_logio.systems.delta.active_files import ActiveFile, active_files, named_of
from airflow_logio.systems.delta.table_columns import TableColumns, arrow_type
from airflow_logio.systems.delta.table_place import LOG, TablePlace, delta_rs, is_panic, plain
from airflow_logio.systems.delta.table_rows import ABOUT, TableRows
from airflow_logio.systems.delta.written_files import WrittenFile

log = logging.getLogger(__name__)

_CHECKPOINT_EVERY = 10
"""Commits, as Spark has it. By default delta-rs has 100, all of which each opening of the table would read (ADR-222)."""
_NAMED_COMMITS = 500
"""So many commits back the names of runs are looked for."""


@dataclass(slots=True)
class Commit:
    """What one commit does to a table."""

    rows: dict[str, int] = field(default_factory=dict)
    """What the table keeps for writers: marker, owner, who owns a day."""
    removed: list[ActiveFile] = field(default_factory=list)
    added: list[WrittenFile] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)
    """For people, in the metadata of the commit."""


@dataclass(frozen=True)
class LoadedTable:
    """A table at one version."""

    named: str
    table: Any
    number: Callable[[str], int | None]
    """What it keeps under an app id (`table_rows`)."""

    @property
    def version(self) -> int:
        return int(self.table.version())

    @property
    def uid(self) -> str:
        """That of the table itself: another one in its place has another."""
        return str(self.table.metadata().id)

    @cached_property
    def columns(self) -> TableColumns:
        return TableColumns(self.named, self.table)

    @cached_property
    def rows(self) -> TableRows:
        return TableRows(self.number, lambda: self._history)

    @cached_property
    def files(self) -> Sequence[ActiveFile]:
        return active_files(self.table)

    def named_of(self, paths: Sequence[str]) -> set[str]:
        """Those of the paths that are data files of the version. It makes no objects of the others, of which there may be
        very many."""
        return named_of(self.table, paths)

    def has(self, commit: Commit) -> bool:
        """Whether what the commit has changed of `rows` is there, and no other commit has changed it since."""
        return all(self.number(name) == number for name, number in commit.rows.items())

    @cached_property
    def _history(self) -> list[Mapping[str, Any]]:
        try:
            return list(self.table.history(_NAMED_COMMITS))
        except Exception as error:  # a commit that is collected: names are for messages only
            log.info("%s: its history is not read: %s", self.named, error)
            return []


class TableLog:
    """That of the table at a place. Methods raise `ExternalUnavailable`, `ConfigurationError`, `WriteRefused`."""

    def __init__(self, named: str, place: TablePlace) -> None:
        self.named = named
        self.place = place
        self.last_error = ""
        """What the last commit that failed has said."""
        self._table: Any = None
        self._numbers = _Numbers(place)

    def load(self, *, anew: bool = True) -> LoadedTable | None:
        """The newest version; None if there is no table. `anew`: nothing that was read before is taken for granted; else
        what came since is read, where that is less."""
        import deltalake

        with self._asked():
            table, self._table = self._table, None
            stands = table is not None and not anew and self._numbers.stand()
            if not stands:
                try:
                    table = deltalake.DeltaTable(self.place.uri, storage_options=dict(self.place.options))
                except deltalake.exceptions.TableNotFoundError:
                    return None
            else:
                table.update_incremental()
            number = self._numbers.of(table, stands=stands)
        self._table = table
        return LoadedTable(self.named, table, number)

    def make(self, writer: DeltaWriter) -> None:
        """Make the table as its writer declares it, unless another program has made it meanwhile."""
        import deltalake

        kinds = writer.column_types()
        assert kinds is not None
        schema = pa.schema([(name, arrow_type(kind)) for name, kind in kinds.items()])
        with self._asked():
            try:
                deltalake.DeltaTable.create(
                    self.place.uri,
                    schema,
                    partition_by=list(writer.partitions),
                    configuration={"delta.checkpointInterval": str(_CHECKPOINT_EVERY)},
                    storage_options=dict(self.place.options),
                    commit_properties=deltalake.CommitProperties(max_commit_retries=0),
                )
            except deltalake.exceptions.DeltaError:
                if self.load() is None:
                    raise
        self.place.settle(0)

    def commit(self, loaded: LoadedTable, commit: Commit) -> None:
        """Commit the version behind the one that was loaded, or nothing.

        What became of it only the table says: an error may come after the commit, and another driver may have committed the
        same version. Raises `WriteRefused` for a file that cannot be removed, before anything is done.
        """
        from deltalake.transaction import CommitProperties, PostCommitHookProperties, Transaction

        removals = [file.removal(self.named) for file in commit.removed]
        properties = CommitProperties(
            custom_metadata={ABOUT: dict(commit.about)},
            max_commit_retries=0,
            app_transactions=[Transaction(name, number, None) for name, number in commit.rows.items()],
        )
        self._table = None  # it does not know of the commit
        crash_here(CrashPoint.BEFORE_LAKE_COMMIT)
        try:
            loaded.table.create_write_transaction(
                [*removals, *(file.action() for file in commit.added)],
                "append",
                loaded.table.schema(),
                partition_by=list(loaded.columns.partition_by),
                commit_properties=properties,
                # What it has outlived is for its owner to remove.
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            log.info("%s: the answer to a commit of version %d: %s", self.named, loaded.version + 1, plain(error))
            self.last_error = plain(error)
        crash_here(CrashPoint.AFTER_LAKE_COMMIT)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            with delta_rs(self.named):
                yield
        except LogioError:
            raise
        except OSError as error:
            raise ExternalUnavailable(f"{self.named}: {plain(error)}") from error
        except Exception as error:  # of delta-rs, which says by it that waiting does not help
            raise WriteRefused(f"{self.named}: delta-rs: {plain(error)}") from error


class _Numbers:
    """App id → number of a table, known up to a version. delta-rs reads all commits since the last checkpoint for each id
    that it is asked for; what came since is in a commit or two. What makes them hold is a digest (ADR-219).
    """

    def __init__(self, place: TablePlace) -> None:
        self._place = place
        self._table = ("", -1)
        """Uid and version up to which they are known."""
        self._commit: bytes | None = None
        """Digest of the commit of that version."""
        self._known: dict[str, int | None] = {}

    def stand(self) -> bool:
        """Whether the table still has the version up to which they are known: not an older copy of it, nor another table in
        its place that has as many versions. Raises OSError."""
        if self._commit is None:
            return False
        try:
            return self._commit == _digest(self._lines_of(self._table[1]))
        except FileNotFoundError:  # collected, or gone
            return False

    def of(self, table: Any, *, stands: bool) -> Callable[[str], int | None]:
        """Those of a table that is loaded; valid until another one is. `stands`: that was just asked. Raises OSError."""
        uid, version = str(table.metadata().id), int(table.version())
        if self._table[0] != uid or not (stands or self.stand()) or not self._follow(version):
            self._known, self._commit = {}, None
            with suppress(FileNotFoundError):  # only a checkpoint has it
                self._commit = _digest(self._lines_of(version))
        self._table = (uid, version)
        known = self._known

        def number(app_id: str) -> int | None:
            if app_id not in known:
                known[app_id] = table.transaction_version(app_id)
            return known[app_id]

        return number

    def _follow(self, version: int) -> bool:
        """Take what commits up to a version have changed. False if that is too much, or one of them is collected."""
        since = self._table[1]
        if not 0 <= version - since <= _FOLLOWED:
            return False
        for commit in range(since + 1, version + 1):
            try:
                lines = self._lines_of(commit)
                actions = [json.loads(line) for line in lines]
            except (FileNotFoundError, ValueError):  # collected, or half there: delta-rs knows what that is
                return False
            self._commit = _digest(lines)
            for action in actions:
                if "txn" in action:
                    self._known[action["txn"]["appId"]] = int(action["txn"]["version"])
        return True

    def _lines_of(self, version: int) -> list[bytes]:
        with self._place.open(f"{LOG}/{version:020}.json") as file:
            return bytes(file.read()).splitlines()


def _digest(lines: Iterable[bytes]) -> bytes:
    return blake2b(b"\n".join(lines), digest_size=16).digest()


_FOLLOWED = 20
"""Commits of others that are read one by one."""
