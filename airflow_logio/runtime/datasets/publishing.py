"""Publishing a dataset into a folder: the write actions of a `DatasetWriter` (ADR-83)."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.dataset_writer import DatasetWriter
from airflow_logio.dataflow.write_actions import WriteAction
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogInconsistent, LogUnavailable
from airflow_logio.runtime.datasets.publications import RECEIPTS, Publication
from airflow_logio.runtime.payloads import task_files
from airflow_logio.runtime.payloads.dataset import Dataset
from airflow_logio.runtime.payloads.local import make_durable
from airflow_logio.runtime.payloads.roots import is_local, local_path

_WRONG = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EACCES,
        errno.EPERM,
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.EROFS,
    }
)
"""Errors of a file system that waiting does not fix."""


class Copy(NamedTuple):
    """A file that is to be published."""

    source: str
    target: str
    size: int
    """Bytes."""
    hidden: str
    """What its name begins with until it is whole."""


Copies = Sequence[Copy]


@dataclass(slots=True)
class Place:
    """The folder that a connection names, and what this driver has prepared in it."""

    base: str
    prepared: set[str] = field(default_factory=set)


class DatasetTarget:
    """Executes the write actions of one writer. `dataset` finds the dataset of a reference, `copy` is `copied_by_spark`."""

    unavailable: tuple[type[Exception], ...] = ()

    def __init__(
        self, writer: DatasetWriter, dataset: Callable[[str, str], Dataset], copy: Callable[[str, Copies], None]
    ) -> None:
        self._writer = writer
        self._dataset = dataset
        self._copy = copy

    @contextmanager
    def connect(self, url: str) -> Iterator[Place]:
        """The folder of the connection. Raises `ConfigurationError`."""
        named = f"connection {self._writer.connection!r}"
        if not is_local(url) or not local_path(url).is_absolute():
            raise ConfigurationError(
                f"{named} is no folder: a DatasetWriter needs one that driver and executors share, as an absolute path or "
                "file:///..."
            )
        base = str(local_path(url))
        if not os.path.isdir(base):  # to make it would hide a disk that is not mounted
            raise ConfigurationError(f"{named}: there is no folder {base}; make or mount it")
        yield Place(base)

    def write_group(self, client: Place, actions: Sequence[WriteAction]) -> None:
        """Publish the actions, in order. Doing it again makes the same files."""
        for action in actions:
            try:
                self._publish(client, action)
            except (OSError, LogUnavailable) as error:
                if isinstance(error, OSError) and error.errno in _WRONG:
                    raise ConfigurationError(
                        f"connection {self._writer.connection!r}: write action {action.number} of {action.operator!r} cannot "
                        f"be written: {error}"
                    ) from error
                raise ExternalUnavailable(f"connection {self._writer.connection!r}: {error}") from error

    def _publish(self, place: Place, action: WriteAction) -> None:
        where = f"write action {action.number} of {action.operator!r}"
        if action.dataset is None:
            raise LogInconsistent(f"{where} has no dataset in the log")
        dataset = self._dataset(where, action.dataset)
        folder = os.path.join(place.base, self._writer.folder)
        plan = Publication(action.run_uid, action.operator, action.number, action.token, dataset.manifest)
        targets = [os.path.join(folder, name) for name in plan.names()]
        for needed in {os.path.join(folder, RECEIPTS), *map(os.path.dirname, targets)}:
            self._prepare(place, needed, plan)
        copies = [
            Copy(source, target, file.size, plan.hidden(os.path.basename(target)))
            for source, target, file in zip(dataset.paths(), targets, dataset.manifest.files, strict=True)
        ]
        if copies:
            self._copy(where, copies)
            self._check(copies)
        crash_here(CrashPoint.IN_PUBLICATION)
        name = f"{plan.stem}.json"
        _put(os.path.join(folder, RECEIPTS), name, plan.hidden(name), plan.receipt())

    def _check(self, copies: Copies) -> None:
        """Raises `ConfigurationError` for a file that an executor has copied to where the driver does not see it."""
        for copy in copies:
            if not os.path.isfile(copy.target) or os.path.getsize(copy.target) != copy.size:
                raise ConfigurationError(
                    f"connection {self._writer.connection!r}: an executor has copied {copy.size:,} bytes to {copy.target}, "
                    "and the driver does not see them; driver and all executors need the folder under one path"
                )

    @staticmethod
    def _prepare(place: Place, folder: str, plan: Publication) -> None:
        """A folder that is there, and free of what drivers that were replaced have left half-written."""
        if folder in place.prepared:
            return
        make_durable(Path(folder), mode=0o777)
        for name in os.listdir(folder):
            if plan.is_left_over(name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, name))
        place.prepared.add(folder)


def copied_by_spark(session: Any, job_group: str, description: str, copies: Copies) -> None:
    """Copy files on executors, a task for each, as a job of that group. Raises what the job raises."""
    import pyarrow as pa

    session.sparkContext.setJobGroup(job_group, description, interruptOnCancel=True)
    table = pa.Table.from_pylist([copy._asdict() for copy in copies])
    frame = session.createDataFrame(table).repartition(len(copies))
    done = frame.mapInArrow(task_files.copied, task_files.COPIED).toArrow()
    if done.num_rows != len(copies):
        raise OSError(f"{description}: {done.num_rows:,} of {len(copies):,} files were copied")


def _put(folder: str, name: str, beginning: str, data: bytes) -> None:
    """A whole file or none, durable."""
    path, hidden = os.path.join(folder, name), os.path.join(folder, f"{beginning}{uuid.uuid4().hex}")
    with open(hidden, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(hidden, path)
    task_files.sync(folder)
