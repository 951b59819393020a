"""Payloads as a driver sees them: written under its incarnation and epoch, read by reference, whichever driver wrote them."""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import PurePosixPath
from typing import Any, TypeVar

import pyarrow as pa
from msgspec.structs import replace

from airflow_logio.errors import ConfigurationError, LogInconsistent, LogioError, LogUnavailable, OperatorFailed
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.store.rules.session_rules import Patience
from airflow_logio.systems.arrow import decode
from airflow_logio.systems.calls import CallWatch, Wait
from airflow_logio.systems.hdfs_roots import is_hdfs
from airflow_logio.systems.payload_roots import check_shared, is_local, local_path, redacted, shown
from airflow_logio.systems.payloads.data_files import DamagedFile, DataFiles
from airflow_logio.systems.payloads.dataset import Dataset, check_whole
from airflow_logio.systems.payloads.file_roots import data_files
from airflow_logio.systems.payloads.manifests import (
    SUFFIX,
    DataFile,
    Manifest,
    StoredFrame,
    in_order,
    is_manifest,
    is_stored_frame,
    manifest_of,
    stored_frame_of,
)
from airflow_logio.systems.payloads.storage import LocalStorage, Storage
from airflow_logio.systems.payloads.task_files import FileLine, sealed_files

log = logging.getLogger(__name__)

T = TypeVar("T")

INLINE_BYTES = 2**20
"""Bodies up to this size are in the log; larger ones in the payload store, if there is one."""

_BLOCK = 2**20


def _storage_of(root: str) -> Storage:
    if is_local(root):
        return LocalStorage(local_path(root))
    if is_hdfs(root):
        from airflow_logio.systems.payloads.hdfs_storage import HdfsStorage

        return HdfsStorage(root)
    match root.partition("://")[0]:
        case "s3":
            from airflow_logio.systems.payloads.s3_storage import S3Storage

            return S3Storage(root)
        case "gs":
            from airflow_logio.systems.payloads.google_storage import GoogleStorage

            return GoogleStorage(root)
        case "abfss":
            from airflow_logio.systems.payloads.azure_storage import AzureStorage

            return AzureStorage(root)
    from airflow_logio.systems.payloads.object_storage import ObjectStorage

    return ObjectStorage(root)


class Payloads:
    """The payload store of a deployment. Raises `ConfigurationError` for a root that cannot be used."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._storage = _storage_of(root)

    def __str__(self) -> str:
        return f"payload store {shown(self._root)}"

    def epoch(
        self, run_uid: str, group: str, incarnation: int, epoch: int, calls: CallWatch | None = None
    ) -> EpochPayloads:
        """For what one epoch of a group's driver writes; `calls` is told while a thread waits for the store."""
        return EpochPayloads(self, f"{run_uid}/{group}/{incarnation}/{epoch}", calls)

    # --- reading ------------------------------------------------------------------------------------------------------

    def load(self, where: str, ref: str) -> bytes:
        """The bytes of a payload. Raises `LogInconsistent`, naming `where`, if they are not those that were written.

        `LogUnavailable` if the store cannot be reached.
        """
        reference = Reference.parse(where, ref)
        with self._looked_for(where, reference):
            data = self._storage.read(reference.path)
        check_whole(str(self), where, reference, zlib.crc32(data), len(data))
        return data

    def dataset(self, where: str, ref: str) -> Dataset:
        """The dataset whose manifest `ref` names; none of its files is looked at. Raises as `load`, `ConfigurationError`."""
        root = self.data_root()
        manifest = manifest_of(where, self.load(where, ref))
        return Dataset(where, root, Reference.parse(where, ref), manifest)

    def table(self, where: str, ref: str) -> pa.Table:
        """The records of a body or a dataset. Raises as `load`, and `OperatorFailed` for a dataset too large for a table."""
        if is_manifest(Reference.parse(where, ref).path):
            return self.dataset(where, ref).table
        return decode(where, self.load(where, ref))

    def pieces(self, where: str, ref: str, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """The records of a body or a dataset of any size, at least one table, without records if there are none; only
        `columns`, if some are named, and those of them that it has. Raises as `load`."""
        if not is_manifest(Reference.parse(where, ref).path):
            yield decode(where, self.load(where, ref), columns)
            return
        dataset = self.dataset(where, ref)
        names = [name for name in dataset.empty().column_names if not columns or name in columns]
        yield dataset.empty().select(names)
        for _, table in dataset.batches(columns=names):
            yield table

    @contextmanager
    def opened(self, where: str, ref: str) -> Iterator[Any]:
        """A payload to be read bit by bit, its checksum verified before; raises as `load`."""
        reference = Reference.parse(where, ref)
        with self._found(where, reference) as file:
            checksum = size = 0
            while block := file.read(_BLOCK):
                checksum = zlib.crc32(block, checksum)
                size += len(block)
            check_whole(str(self), where, reference, checksum, size)
            file.seek(0)
            yield file

    @contextmanager
    def _found(self, where: str, reference: Reference) -> Iterator[Any]:
        with self._looked_for(where, reference), self._storage.open(reference.path) as file:
            yield file

    @contextmanager
    def _looked_for(self, where: str, reference: Reference) -> Iterator[None]:
        with self._translated():
            try:
                yield
            except FileNotFoundError:
                raise LogInconsistent(
                    f"the payload of {where} is missing: {reference.path} is not in the {self}. Is this the store that the "
                    "run was started with? Put the file back, or start a fresh run"
                ) from None
            except DamagedFile as error:
                raise LogInconsistent(
                    f"the payload of {where} is damaged: {error}. Put it back, or start a fresh run"
                ) from None

    # --- writing and removing -----------------------------------------------------------------------------------------

    @contextmanager
    def created(self, path: str) -> Iterator[PayloadFile]:
        """A new file; durable, and its `reference` complete, when the block ends. Raises `LogUnavailable`.

        What the block itself raises comes out as it is, and the file is gone.
        """
        creating = self._storage.create(path)
        with self._translated():
            handle = creating.__enter__()
        try:
            yield PayloadFile(path, handle, self._translated)
        except BaseException as error:
            creating.__exit__(type(error), error, error.__traceback__)
            raise
        with self._translated():
            creating.__exit__(None, None, None)

    def remove(self, refs: Iterable[str]) -> None:
        """Remove payloads that the log does not name any more; those that are gone already are no error.

        The manifest of a dataset goes last, so that a removal that was cut short can be repeated. With a stored effect of
        Spark go the files that belong to no event. The author removes references of their own making (operators written by
        hand).
        """
        with self._translated():
            paths = [own.path for ref in refs if (own := Reference.own(ref)) is not None]
            files = self._files_of(paths)
            self._storage.remove(files)
            # Empty after the last of its datasets.
            self._storage.drop_folders({str(PurePosixPath(file).parent) for file in files})
            self._storage.remove(paths)

    def manifest(self, path: str) -> Manifest | None:
        """A manifest by its path; None if there is none. Raises `LogInconsistent`, `LogUnavailable`."""
        data = self.content(path)
        return None if data is None else manifest_of(path, data)

    def stored_frame(self, path: str) -> StoredFrame | None:
        """A stored effect of Spark by its path. As `manifest`."""
        data = self.content(path)
        return None if data is None else stored_frame_of(path, data)

    def content(self, path: str) -> bytes | None:
        """What a file has; None if it is not there. Raises `LogUnavailable`."""
        with self._translated():
            try:
                return self._storage.read(path)
            except FileNotFoundError:
                return None

    def _files_of(self, paths: Iterable[str]) -> list[str]:
        """The files that go with these."""
        found: list[DataFile] = []
        for path in paths:
            if is_manifest(path) and (manifest := self.manifest(path)) is not None:
                found += manifest.files
            elif is_stored_frame(path) and (stored := self.stored_frame(path)) is not None:
                found += stored.own_files()
        return [file.path for file in found]

    def data_root(self) -> str:
        """The root as `data_files` takes it. Raises `ConfigurationError` if datasets cannot be there."""
        check_shared(self._root)
        return str(local_path(self._root)) if is_local(self._root) else self._root

    def make_folder(self, path: str) -> None:
        """Make a folder below the root, durable."""
        with self._translated():
            self._storage.make_folder(path)

    def settle_folder(self, path: str) -> None:
        """The names in a folder below the root are durable when this returns."""
        with self._translated():
            self._storage.settle_folder(path)

    def link(self, paths: Iterable[str], folder: str) -> None:
        """Give files a second name each, in a folder. Raises `LogInconsistent` for one that is missing, `LogUnavailable`."""
        with self._translated():
            try:
                self._storage.link(paths, folder)
            except FileNotFoundError as error:
                raise LogInconsistent(f"{self}: a dataset has lost a file: {error}") from None

    def copy(self, files: Sequence[DataFile], targets: Sequence[DataFile]) -> None:
        """Copy files, each to the path of another, in a folder that is there; as files of a published folder look, durable.

        Raises as `link`.
        """
        with self._translated():
            try:
                self._storage.copy((file.path, to.path, file.size) for file, to in zip(files, targets, strict=True))
            except FileNotFoundError as error:
                raise LogInconsistent(f"{self}: a dataset has lost a file: {error}") from None

    def sealed(self, mode: int, paths: Sequence[str]) -> list[FileLine]:
        """As `task_files.sealed_files`. Raises `LogUnavailable`, and `OperatorFailed` for a footer that cannot be read."""
        with self._translated():
            try:
                return sealed_files(self.data_root(), mode, paths)
            except pa.ArrowException as error:
                raise OperatorFailed(
                    f"Spark has written files whose footers cannot be read: {error}. Does the cluster encrypt them "
                    "(parquet.crypto.factory.class)? Datasets are read by others than Spark, too: leave that to the disk"
                ) from error

    def find(self, folder: str) -> list[str]:
        """Paths of all files below ``<run uid>`` or ``<run uid>/<group>``."""
        with self._translated():
            return self._storage.find(folder)

    def drop(self, paths: Iterable[str]) -> None:
        """Remove files, and no folder."""
        with self._translated():
            self._storage.remove(paths)

    def runs(self) -> list[str]:
        """The uids of all runs that have something here; other names may be among them."""
        with self._translated():
            return self._storage.runs()

    def discard(self, paths: Iterable[str], emptied: str) -> None:
        """Remove files, and the folders below `emptied` that have become empty."""
        with self._translated():
            self._storage.remove(paths)
            self._storage.prune(emptied)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (LogioError, GeneratorExit):
            raise
        except FileExistsError as error:
            raise LogInconsistent(f"{self}: a file that is to be written is there already: {error}") from error
        except DamagedFile as error:
            raise LogInconsistent(f"{self}: {error}. Put it back, or start a fresh run") from error
        except PermissionError as error:
            raise ConfigurationError(f"{self}: {redacted(str(error), self._root)}") from None
        except Exception as error:
            if not isinstance(error, OSError) and type(error).__module__ == "builtins":
                raise  # a defect, not an answer of a file system or its library
            raise LogUnavailable(f"{self}: {type(error).__name__}: {redacted(str(error), self._root)}") from None


class PayloadFile:
    """A file being written: sums up what passes. A binary file as Arrow writes it."""

    def __init__(self, path: str, handle: Any, translated: Callable[[], AbstractContextManager[None]]) -> None:
        self._path = path
        self._handle = handle
        self._translated = translated
        self._checksum = 0
        self.size = 0
        self.closed = False

    @property
    def reference(self) -> Reference:
        return Reference(self._path, self._checksum, self.size)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with self._translated():
            self._handle.write(view)
        self._checksum = zlib.crc32(view, self._checksum)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """The file is durable once it is closed."""

    def close(self) -> None:
        """The storage closes the file."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class EpochPayloads:
    """What one epoch of one incarnation writes, and reads; patient while the store is unavailable, until `stop`."""

    def __init__(self, payloads: Payloads, folder: str, calls: CallWatch | None = None) -> None:
        self._payloads = payloads
        self._folder = folder
        self._calls = calls or CallWatch()
        self._stopping = threading.Event()
        self._attempts: dict[str, int] = {}
        self._counting = threading.Lock()

    def __str__(self) -> str:
        return str(self._payloads)

    def stop(self) -> None:
        """Stop waiting for the store."""
        self._stopping.set()

    def is_stopped(self) -> bool:
        return self._stopping.is_set()

    def store(self, purpose: str, body: bytes, *, suffix: str = "") -> Reference:
        """Write a body; durable when this returns. Raises `LogUnavailable` when patience ends."""

        def attempt() -> Reference:
            with self.created(purpose, suffix=suffix) as file:
                file.write(body)
            return file.reference

        return self._patiently(f"storing {purpose}", attempt)

    @contextmanager
    def created(self, purpose: str, *, suffix: str = "") -> Iterator[PayloadFile]:
        """A new file for this purpose, of a name of its own for each attempt."""
        with self._payloads.created(f"{self._folder}/{purpose}.{self._attempt(purpose)}{suffix}") as file:
            yield file

    def _attempt(self, purpose: str) -> int:
        with self._counting:
            number = self._attempts[purpose] = self._attempts.get(purpose, 0) + 1
        return number

    def load(self, where: str, ref: str) -> bytes:
        """As `Payloads.load`."""
        return self._patiently(f"loading the payload of {where}", lambda: self._payloads.load(where, ref))

    def dataset(self, where: str, ref: str) -> Dataset:
        """As `Payloads.dataset`."""
        return self._patiently(f"loading the manifest of {where}", lambda: self._payloads.dataset(where, ref))

    def content(self, path: str) -> bytes | None:
        """What a file has; None if it is not there."""
        return self._patiently("reading a file", lambda: self._payloads.content(path))

    def discard(self, paths: Iterable[str], emptied: str) -> None:
        """As `Payloads.discard`."""
        discarded = tuple(paths)
        self._patiently("removing files", lambda: self._payloads.discard(discarded, emptied))

    def find(self, folder: str) -> list[str]:
        """As `Payloads.find`."""
        return self._patiently(f"listing {folder}", lambda: self._payloads.find(folder))

    def drop(self, paths: Iterable[str]) -> None:
        """As `Payloads.drop`."""
        dropped = tuple(paths)
        self._patiently("removing files", lambda: self._payloads.drop(dropped))

    def drop_folder(self, folder: str) -> None:
        """Remove the files of an attempt that has failed, as far as that can be done now: what is left is swept later."""
        try:
            self._payloads.discard(self._payloads.find(folder), folder)
        except (OSError, LogioError) as error:
            log.warning("files of a failed attempt stay in %s until they are swept: %s", folder, error)

    # --- datasets -----------------------------------------------------------------------------------------------------

    @property
    def root(self) -> str:
        """As `Payloads.data_root`."""
        return self._payloads.data_root()

    @property
    def files(self) -> DataFiles:
        """Those of datasets, as tasks reach them."""
        return data_files(self.root)

    def new_folder(self, purpose: str) -> str:
        """A new folder for the files of one attempt of a job, durable; its path below the root."""
        path = f"{self._folder}/{purpose}.{self._attempt(purpose)}"
        self._patiently(f"making the folder of {purpose}", lambda: self._payloads.make_folder(path))
        return path

    def settle(self, folder: str) -> None:
        """The names of files in a folder are on the disk when this returns."""
        self._patiently(f"settling {folder}", lambda: self._payloads.settle_folder(folder))

    def put(self, where: str, purpose: str, manifest: Manifest) -> Dataset:
        """Write the manifest of files that are durable; durable when this returns."""
        reference = self.store(purpose, manifest.encoded(), suffix=SUFFIX)
        return Dataset(where, self.root, reference, manifest)

    def own(self, where: str, purpose: str, dataset: Dataset) -> Dataset:
        """The same records as a dataset of its own, with names of its own for the files; durable when this returns."""

        def attempt() -> tuple[DataFile, ...]:
            folder = self.new_folder(purpose)
            self._payloads.link([file.path for file in dataset.manifest.files], folder)
            return tuple(
                replace(file, path=f"{folder}/{PurePosixPath(file.path).name}") for file in dataset.manifest.files
            )

        files = self._patiently(f"naming the files of {purpose}", attempt)
        manifest = dataset.manifest
        return self.put(where, purpose, replace(manifest, files=in_order(files)))

    def sealed(self, mode: int, paths: Sequence[str]) -> list[FileLine]:
        """As `Payloads.sealed`."""
        return self._patiently("sealing files", lambda: self._payloads.sealed(mode, paths))

    def copy(self, files: Sequence[DataFile], targets: Sequence[DataFile]) -> None:
        """As `Payloads.copy`; names that are there already are replaced by the same."""
        self._patiently("copying files", lambda: self._payloads.copy(files, targets))

    def opened(self, where: str, ref: str) -> AbstractContextManager[Any]:
        """As `Payloads.opened`."""
        return self._payloads.opened(where, ref)

    def remove(self, refs: Iterable[str]) -> None:
        """As `Payloads.remove`."""
        removed = tuple(refs)
        self._patiently("removing payloads", lambda: self._payloads.remove(removed))

    def _patiently(self, what: str, action: Callable[[], T]) -> T:
        """Displays are told that this thread waits, and why."""
        patience, waits = Patience(waits_for=f"the {self}"), list[Wait]()
        try:
            return patience.call(
                what,
                action,
                still_wanted=lambda: not self._stopping.is_set(),
                told=lambda cause: waits.append(self._calls.waits(what, cause)),
            )
        finally:
            if waits:
                self._calls.waits_no_more()
