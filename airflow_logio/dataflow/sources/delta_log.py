"""The log of a Delta table as a source reads it: its commits as files, and what the table was at a version by delta-rs.

What is believed of either, ADR-213 and ADR-216 say.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.writers.arrow_files import is_lasting, next_step
from airflow_logio.dataflow.writers.bucket_clients import delta_rs_options, s3a_settings
from airflow_logio.dataflow.writers.bucket_urls import SCHEME
from airflow_logio.dataflow.writers.folder_files import FolderFiles, LocalFiles, ObjectFiles
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, SourceChanged

LOG = "_delta_log"
CHANGE_FEED = "delta.enableChangeDataFeed"
_MAPPING, _COORDINATED = "delta.columnMapping.mode", "delta.coordinatedCommits"
_READABLE = frozenset({"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features that a reader must know, and that change nothing here: what two of them may do is looked for by itself."""
MANY = 64
"""So many commits are asked for at once where all of them are wanted."""
_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint\.(?:\d{10}\.(?P<parts>\d{10})\.|[0-9a-f-]{36}\.)?(?:parquet|json)$"
)
"""Of one file, of several parts, or of the second version, which has a UUID."""
_UNCLEAR = frozenset("*?[]{}\\")
_OUTAGE = ("generic s3 error", "error sending request", "error after", "timed out", "connection")
"""What delta-rs says of a store that does not answer; it has one class for all of its errors."""


@dataclass(frozen=True, slots=True)
class DeltaState:
    """What a table is at a version."""

    table: str
    """Its id: a table that is made anew in the same place has another one."""
    schema: str
    """Columns and partition columns, as Spark writes a type in JSON."""
    partitioned: tuple[str, ...]
    configuration: Mapping[str, str]
    reader: int
    features: frozenset[str]

    @property
    def has_changes(self) -> bool:
        """Whether commits keep what they change."""
        return self.configuration.get(CHANGE_FEED, "").lower() == "true"

    def after(self, commit: DeltaCommit) -> DeltaState:
        """What it is behind the next commit."""
        state = self
        if (found := commit.metadata) is not None:
            state = replace(
                state,
                table=str(found["id"]),
                schema=found["schemaString"],
                partitioned=tuple(found.get("partitionColumns") or ()),
                configuration=dict(found.get("configuration") or {}),
            )
        if (found := commit.protocol) is not None:
            state = replace(
                state, reader=int(found["minReaderVersion"]), features=frozenset(found.get("readerFeatures") or ())
            )
        return state

    def unreadable(self) -> str:
        """Why the data files alone are not what the table has; empty if they are."""
        if self.configuration.get(_MAPPING, "none").lower() != "none":
            return f"it maps the names of its columns ({_MAPPING}={self.configuration[_MAPPING]!r})"
        unknown = sorted(self.features - _READABLE)
        if unknown or self.reader > 3:
            return f"it has the reader feature {unknown[0]!r}" if unknown else f"it needs reader version {self.reader}"
        return ""


NO_STATE = DeltaState("", "", (), {}, 1, frozenset())
"""Before the first commit."""


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A file of a table's data, or of its changes. `path` is its name below the table, as the store has it."""

    path: str
    size: int | None
    values: Mapping[str, str | None] | None
    """Partition column → value, as text; empty texts are null, as the format says. None: the log does not say, as it need not
    of removed files."""
    change: str = ""
    """``insert``, ``delete``, or empty: of added files, and of those that say it of each row."""
    version: int = 0
    time: int | None = None
    """When the version was committed, as the commit says: milliseconds since 1970, UTC."""
    has_vector: bool = False
    """Rows of it are marked as deleted, in a file beside it or in the log."""
    vector: str = ""
    """The name of that file below the table; empty if it is not known, or there is none."""


@dataclass(frozen=True, slots=True)
class DeltaCommit:
    """A version: what its commit has done to the table, where it changes data."""

    version: int
    digest: str
    """Of the commit's file, which never changes."""
    operation: str = ""
    time: int | None = None
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    added: tuple[DeltaFile, ...] = ()
    removed: tuple[DeltaFile, ...] = ()
    changed: tuple[DeltaFile, ...] = ()
    """Files of the change feed."""

    def changes(self) -> tuple[DeltaFile, ...]:
        """The files of what it changes, as the format says: those of the change feed alone, if it has any."""
        if self.changed:
            return self.changed
        inserts = (replace(one, change="insert") for one in self.added)
        return (*inserts, *(replace(one, change="delete") for one in self.removed))

    def vectors(self) -> tuple[DeltaFile, ...]:
        """The files of deletion vectors by which it says what is changed. Their sizes are not known."""
        if self.changed:
            return ()
        names = sorted({one.vector for one in (*self.added, *self.removed)} - {""})
        return tuple(DeltaFile(name, None, {}, "", self.version) for name in names)


def commit_of(version: int, content: bytes) -> DeltaCommit:
    """The commit that a file of the log has. Raises ValueError, KeyError, TypeError for another text."""
    said: dict[str, Mapping[str, Any]] = {}
    files: dict[str, list[DeltaFile]] = {"add": [], "remove": [], "cdc": []}
    for line in io.BytesIO(content):  # one by one: a commit may have gigabytes, most of it statistics
        for name, action in json.loads(line).items() if line.strip() else ():
            if name not in files:
                said[name] = said.get(name, action) if name == "commitInfo" else action
            elif name == "cdc" or action.get("dataChange", True):
                files[name].append(_file(action, version))
    about = said.get("commitInfo", {})
    time = about.get("inCommitTimestamp", about.get("timestamp"))
    added, removed, changed = (tuple(replace(one, time=time) for one in some) for some in files.values())
    return DeltaCommit(
        version,
        hashlib.sha256(content).hexdigest()[:32],
        str(about.get("operation", "")),
        time,
        said.get("metaData"),
        said.get("protocol"),
        added,
        removed,
        changed,
    )


def _file(action: Mapping[str, Any], version: int) -> DeltaFile:
    values = action.get("partitionValues")
    if values is not None:
        values = {sys.intern(name): value or None for name, value in values.items()}
    vector = action.get("deletionVector")
    where = "" if vector is None else _vector_file(vector)
    return DeltaFile(unquote(action["path"]), action.get("size"), values, "", version, None, vector is not None, where)


_OF_85 = str.maketrans(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)
"""The letters of Z85 as those of Python's Base85."""


def _vector_file(vector: Mapping[str, Any]) -> str:
    """A deletion vector that lies below the table says a folder, and 20 letters of Z85 that are its UUID."""
    name = str(vector.get("pathOrInlineDv", ""))
    if vector.get("storageType") != "u" or len(name) < 20:
        return ""
    uuid = UUID(bytes=base64.b85decode(name[-20:].translate(_OF_85)))
    return "/".join(filter(None, (name[:-20], f"deletion_vector_{uuid}.bin")))


class DeltaLog(ABC):
    """The log of the table in a place. Methods raise ConfigurationError, ExternalUnavailable."""

    uri: str
    """As delta-rs takes it."""
    options: Mapping[str, str]
    root: str
    """As Spark takes it."""
    settings: Mapping[str, str]
    """Of Spark's reader: where the store is."""
    _files: FolderFiles

    @abstractmethod
    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Bytes of each file; None where there is none."""

    def commit(self, version: int) -> DeltaCommit | None:
        """None if it is not there: not yet, or not any more. Raises ConfigurationError for a damaged one."""
        with self._asked():
            try:
                content = self._files.read(f"{LOG}/{version:020}.json")
            except FileNotFoundError:
                return None
        try:
            return commit_of(version, content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"commit {version} of Delta table {self.uri} cannot be read: {error}") from error

    def commits(self, first: int, last: int, at_once: int) -> Iterator[DeltaCommit | None]:
        """Those of some versions, in their order; so many are asked for at once where each is a round trip."""
        for begin in range(first, last + 1, at_once):
            some = map(str, range(begin, min(begin + at_once, last + 1)))
            yield from self._files.each(lambda version: self.commit(int(version)), some)

    def reaches(self, version: int) -> bool:
        """Whether the log still says all that is in the table at a version: its first commit is there, or a whole checkpoint
        between. delta-rs takes what there is for all, if some commit in it has the metadata."""
        with self._asked():
            if self._files.is_there(f"{LOG}/{0:020}.json"):
                return True
            names = self._files.names(LOG)
        parts: dict[tuple[str, int], int] = {}
        for found in filter(None, map(_CHECKPOINT.match, names)):
            if int(found["version"]) <= version:
                key = found["version"], int(found["parts"] or 1)
                parts[key] = parts.get(key, 0) + 1
        return any(many >= wanted for (_, wanted), many in parts.items())

    def loaded(self, version: int | None = None) -> Any:
        """The table of delta-rs at a version, by default the newest. Raises FileNotFoundError if there is none."""
        try:
            import deltalake
        except ImportError:
            raise ConfigurationError(
                f"Delta table {self.uri}: deltalake is not installed here: pip install 'airflow-logio[delta]', where runs "
                "are started and for every driver"
            ) from None
        try:
            return deltalake.DeltaTable(self.uri, version=version, storage_options=dict(self.options) or None)
        except deltalake.exceptions.TableNotFoundError as error:
            what = "there is no Delta table in" if version is None else f"version {version} cannot be loaded of"
            raise FileNotFoundError(f"{what} {self.uri}: {_plain(error)}") from error
        except OSError as error:
            raise ExternalUnavailable(f"Delta table {self.uri}: {_plain(error)}") from error
        except (deltalake.exceptions.DeltaError, ValueError) as error:
            if any(word in str(error).lower() for word in _OUTAGE):
                raise ExternalUnavailable(f"Delta table {self.uri}: {_plain(error)}") from error
            if version is not None:
                raise FileNotFoundError(f"version {version} of {self.uri} cannot be loaded: {_plain(error)}") from error
            raise ConfigurationError(f"Delta table {self.uri} cannot be read: {_plain(error)}") from error

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            if is_lasting(error):
                raise ConfigurationError(f"Delta table {self.uri} cannot be read: {error}{next_step(error)}") from error
            raise ExternalUnavailable(f"Delta table {self.uri} cannot be read: {error}") from error


class LocalLog(DeltaLog):
    """Of a folder that this machine has mounted."""

    options: Mapping[str, str] = {}
    settings: Mapping[str, str] = {}

    def __init__(self, folder: str) -> None:
        self.uri = folder
        self.root = f"file://{folder}"
        self._files = LocalFiles(folder)

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        with self._asked():
            return [self._size(path) for path in paths]

    def _size(self, path: str) -> int | None:
        try:
            return os.stat(self._files.name(path)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None


class BucketLog(DeltaLog):
    """Of a bucket: Arrow and delta-rs ask it, and Spark's executors by Hadoop's client."""

    def __init__(self, url: str) -> None:
        files = ObjectFiles.of("the Delta table of a source", url)
        bucket, _, path = files.root.partition("/")
        self._files: ObjectFiles = files
        self.uri = files.where
        self.root = f"s3a://{bucket}/{path}".rstrip("/")
        self.options, self.settings = delta_rs_options(url), s3a_settings(url)

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        def size(path: str) -> int | None:
            info = self._files.system.get_file_info(self._files.key(path))
            return int(info.size) if info.is_file else None

        with self._asked():
            return list(self._files.each(size, paths))


def log_of(path: str) -> DeltaLog:
    """The log of the table in a folder, or below a URL. Raises ConfigurationError."""
    if found := sorted(_UNCLEAR & set(path.partition("?")[0] if "://" in path else path)):
        raise ConfigurationError(
            f"the path {path} of a Delta table has {found[0]!r}, which its readers would take for a pattern: rename the "
            "folder"
        )
    if "://" not in path:
        return LocalLog(path)
    if path.startswith(SCHEME):
        return BucketLog(path)
    scheme = path.partition("://")[0]
    step = (
        "write s3://bucket/path, which Arrow, delta-rs and Spark are all told of"
        if scheme in ("s3a", "s3n")
        else "a DeltaSource reads folders, and buckets of S3 and what speaks its protocol; read others with a SparkSource"
    )
    raise ConfigurationError(f"no Delta table is read from {scheme}://: {step}")


def state_of(table: Any) -> DeltaState:
    """What a table of delta-rs is."""
    about, protocol = table.metadata(), table.protocol()
    return DeltaState(
        str(about.id),
        table.schema().to_json(),
        tuple(about.partition_columns),
        {name: value for name, value in about.configuration.items() if value is not None},
        int(protocol.min_reader_version),
        frozenset(protocol.reader_features or ()),
    )


def snapshot_of(table: Any, state: DeltaState) -> list[DeltaFile]:
    """The files that a table of delta-rs has."""
    actions = pa.table(table.get_add_actions())
    marked = {unquote(path).rpartition("/")[2] for path in _marked(table, state)}
    columns = [actions.column(name).to_pylist() for name in ("path", "size_bytes")]
    held = actions.column("partition").to_pylist() if state.partitioned else [{}] * actions.num_rows
    version = int(table.version())
    files = [
        DeltaFile(
            name,
            size,
            {column: _text(values[column]) for column in state.partitioned},
            "",
            version,
            None,
            name.rpartition("/")[2] in marked,
        )
        for name, size, values in zip(map(unquote, columns[0]), columns[1], held, strict=True)
    ]
    return sorted(files, key=lambda one: one.path)


def _marked(table: Any, state: DeltaState) -> list[str]:
    """Files with deletion vectors. Raises SourceChanged if one of these is not there any more."""
    import deltalake

    if "deletionVectors" not in state.features:
        return []
    try:
        found: list[str] = pa.table(table.deletion_vectors()).column("filepath").to_pylist()
    except deltalake.exceptions.DeltaError as error:
        if "not found" not in str(error).lower():
            raise ExternalUnavailable(f"deletion vectors of Delta table {table.table_uri}: {_plain(error)}") from error
        raise SourceChanged(
            f"version {table.version()} of Delta table {table.table_uri} cannot be read any more: a deletion vector is gone "
            f"({_plain(error)}). {_VACUUMED}"
        ) from error
    return found


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    return str(value).lower() if isinstance(value, bool) else str(value)


def lost(log: DeltaLog, files: Iterable[DeltaFile]) -> list[DeltaFile]:
    """Those that are not there any more, or have other bytes than the log says."""
    wanted = list({one.path: one for one in files}.values())
    sizes = log.sizes([one.path for one in wanted])
    return [
        one
        for one, size in zip(wanted, sizes, strict=True)
        if size is None or (one.size is not None and size != one.size)
    ]


def check_kept(log: DeltaLog, files: Sequence[DeltaFile]) -> None:
    """Raises SourceChanged with versions and files that are lost."""
    if not (gone := lost(log, files)):
        return
    versions = sorted({one.version for one in gone})
    which = f"version {versions[0]}" if len(versions) == 1 else f"versions {versions[0]} to {versions[-1]}"
    names = ", ".join(one.path for one in gone[:3]) + (", ..." if len(gone) > 3 else "")
    raise SourceChanged(
        f"{which} of Delta table {log.uri} cannot be read any more: {len(gone):,} of {len(files):,} files are gone, or not "
        f"what the log says: {names}. {_VACUUMED}"
    )


_VACUUMED = (
    "A VACUUM removes files that the newest version does not have. Put them back, or start a fresh run that reads what is "
    "there (snapshot=True, or a later from_version); a longer delta.deletedFileRetentionDuration keeps them longer"
)


def coordinated(state: DeltaState) -> str:
    """Why commits are not in the log's folder; empty if they are."""
    names = sorted(name for name in state.configuration if name.startswith(_COORDINATED))
    if names or any(name.startswith("catalog") for name in state.features):
        return f"another program keeps its commits ({names[0] if names else 'catalogManaged'})"
    return ""


def _plain(error: Exception) -> str:
    return " ".join("".join(one if one.isprintable() else " " for one in str(error)).split())[:600]
