"""The files of datasets in a bucket of S3, by Arrow: each an object that is put as a whole, or not at all.

Tasks use this, so it needs nothing but Arrow. Objects are removed by drivers (`object_storage`): Arrow would leave an empty
object for the folder of each that it removes.
"""

from __future__ import annotations

import ctypes
import io
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar

from airflow_logio.dataflow.writers.arrow_files import is_lasting, next_step
from airflow_logio.dataflow.writers.folder_files import open_bucket
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError, LogUnavailable
from airflow_logio.systems.bucket_roots import BucketRoot
from airflow_logio.systems.payload_roots import shown
from airflow_logio.systems.payloads.data_files import DataFiles, NewFile, footer_of, new_name

Item = TypeVar("Item")
Answer = TypeVar("Answer")

AT_ONCE = 16
"""Round trips, of tens of milliseconds each."""
TAIL_BYTES = 2**20
"""What is kept of the end of a file that is written: a footer that is longer is read again."""
_READ_BYTES = 2**16
"""What is read of the end of a file at first: most footers are shorter."""
_OF_THE_WAY = re.compile(r"AWS Error|curlCode|[Tt]ime(?:d )?out|[Cc]onnection")
"""What Arrow says of a request that has failed, in any of its clients, and not of bytes that it does not understand."""
_EXPIRED = re.compile(r"Expired|EXPIRED|TokenRefreshRequired|RequestTimeTooSkewed|REQUEST_TIME_TOO_SKEWED")


class BucketFiles(DataFiles):
    """Raises `ConfigurationError`, and `LogUnavailable` if the store was asked where the bucket is, and did not answer."""

    by_spark = False  # its committer renames, which is to copy and remove here
    keeps_secrets = False  # there are no modes, and a bucket with versions keeps what was removed

    def __init__(self, root: str) -> None:
        self.root = root
        self._at = BucketRoot.of(root)
        self._named = f"the payload store {shown(root)}"
        self._system, bucket = self._opened()
        self._bucket = bucket.strip("/")

    def _opened(self) -> tuple[Any, str]:
        """A client, and the bucket."""
        try:
            return open_bucket(self._named, self._at.arrow_url())
        except ExternalUnavailable as error:
            raise LogUnavailable(str(error)) from error

    def create(self, folder: str, mode: int) -> tuple[str, NewFile]:
        name = new_name()
        return name, _NewObject(self, self._key(f"{folder}/{name}"))

    def settle(self, folder: str) -> None:
        """An object is durable when it is finished, and so is its name."""

    def open(self, path: str) -> AbstractContextManager[Any]:
        with self.translated():
            file: AbstractContextManager[Any] = self._system.open_input_file(self._key(path))
            return file

    def size(self, path: str) -> int:
        with self.translated():
            info = self._system.get_file_info(self._key(path))
        if not info.is_file:
            raise FileNotFoundError(path)
        return int(info.size)

    def footer(self, path: str, size: int) -> int | None:
        with self.translated(), self._system.open_input_file(self._key(path)) as file:
            if file.size() != size:
                return None
            file.seek(max(size - _READ_BYTES, 0))
            end = file.read()
            return footer_of(io.BytesIO(end), len(end)) if _has_footer(end, size) else footer_of(file, size)

    def location(self, path: str) -> str:
        return self._at.url(self._at.below(path))

    def spark_path(self, path: str, scheme: str | None = None) -> str:
        return self._at.hadoop_url(path, scheme)

    def spark_options(self) -> dict[str, str]:
        return self._at.hadoop_options()

    def each(self, ask: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        pool = ThreadPoolExecutor(AT_ONCE, "logio-objects")
        try:
            yield from pool.map(ask, items)
        finally:
            pool.shutdown(cancel_futures=True)

    def told(self, error: OSError) -> LogioError:
        said = f"{self._named}: {error}"
        if _EXPIRED.search(said):
            with suppress(LogioError):
                self._system = self._opened()[0]  # one keeps what it has read of a profile, for minutes
            return LogUnavailable(f"{said}. Renew the credentials of drivers and executors: it is tried again")
        if is_lasting(error):
            step = next_step(error).replace("of the connection", "of the payload store")
            return ConfigurationError(f"{said}{step}")
        return LogUnavailable(said)

    def is_of_content(self, error: Exception) -> bool:
        return isinstance(error, FileNotFoundError) or _OF_THE_WAY.search(str(error)) is None

    def begun(self, key: str) -> Any:
        """Arrow's stream into a new object."""
        with self.translated():
            return self._system.open_output_stream(key)

    def end_of(self, key: str, size: int) -> int:
        """As `footer`, of an object that this process has just put."""
        with self.translated(), self._system.open_input_file(key) as file:
            return footer_of(file, size)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raises what `told` makes of OSErrors; FileNotFoundError as it is, unless the bucket is not there."""
        try:
            yield
        except FileNotFoundError as error:
            if _OF_THE_WAY.search(str(error)):
                raise self.told(error) from error
            raise
        except OSError as error:
            raise self.told(error) from error

    def _key(self, path: str) -> str:
        return f"{self._bucket}/{self._at.below(path)}"


class _NewObject(NewFile):
    def __init__(self, files: BucketFiles, key: str) -> None:
        self._files = files
        self._key = key
        self._sink = _Sink(files, files.begun(key))
        self.stream = self._sink

    def finished(self) -> tuple[int, int]:
        self._sink.complete()
        end, size = bytes(self._sink.end), self._sink.tell()
        if _has_footer(end, size):
            return size, footer_of(io.BytesIO(end), len(end))
        return size, self._files.end_of(self._key, size)

    def discard(self) -> None:
        """A whole object is named by no manifest, and is swept; parts that were sent are what a lifecycle rule removes."""
        self._sink.abandon()


class _Sink:
    """A binary file as Arrow writes it, which keeps its end."""

    def __init__(self, files: BucketFiles, stream: Any) -> None:
        self._files = files
        self._stream = stream
        self._size = 0
        self._is_over = False
        self.end = bytearray()
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if not self._is_over:
            with self._files.translated():
                self._stream.write(view)
        self._size += view.nbytes
        self.end += view[-TAIL_BYTES:]
        del self.end[:-TAIL_BYTES]
        return view.nbytes

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """The object is durable once it is complete."""

    def close(self) -> None:
        """Only `complete` makes it an object."""

    def complete(self) -> None:
        self._is_over = True
        with self._files.translated():
            self._stream.close()  # if this fails, it fails when the stream is collected, too: Arrow keeps the error

    def abandon(self) -> None:
        """Closed or collected, Arrow's stream would complete the upload with what it has got: so it is never collected."""
        if not self._is_over:
            self._is_over = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._stream))

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


def _has_footer(end: bytes, size: int) -> bool:
    """Whether the last bytes of a file have all of its footer."""
    return len(end) == size or (len(end) >= 8 and int.from_bytes(end[-8:-4], "little") + 8 <= len(end))
