"""Files that Arrow reaches where a connection's URL says: how they are opened, and put into an object store (ADR-124)."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError

_LASTING = frozenset(
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
_DENIED = frozenset(
    {
        "ACCESS_DENIED",
        "INVALID_ACCESS_KEY_ID",
        "INVALID_CLIENT_TOKEN_ID",
        "INVALID_SIGNATURE",
        "InvalidToken",
        "MISSING_AUTHENTICATION_TOKEN",
        "OPT_IN_REQUIRED",
        "SIGNATURE_DOES_NOT_MATCH",
        "UNRECOGNIZED_CLIENT",
    }
)
_NO_BUCKET = "NO_SUCH_BUCKET"
_ELSEWHERE = "PermanentRedirect"
_NEXT_STEPS = {
    **dict.fromkeys(
        _DENIED,
        "Give drivers and executors credentials that may list the bucket, and read, write and delete objects there: in "
        "their environment (AWS_ACCESS_KEY_ID, ...), in ~/.aws, or as the role of the machine",
    ),
    _NO_BUCKET: "Make the bucket, or correct the URL of the connection",
    "InvalidBucketName": "Correct the bucket in the URL of the connection",
    _ELSEWHERE: "Correct the region in the URL of the connection",
    "AuthorizationHeaderMalformed": "Correct the region in the URL of the connection",
    "KeyTooLongError": "Choose a shorter path or folder",
    "AllAccessDisabled": "Ask who owns the bucket",
    "AccountProblem": "Ask who owns the account",
}
"""What to do about the errors of S3 that waiting does not mend."""
_EXPIRED = frozenset({"ExpiredToken", "EXPIRED_TOKEN", "ExpiredTokenException", "TokenRefreshRequired"})
_RENEW = "The credentials have expired: renew those of drivers and executors, it is tried again"
_BUSY = frozenset({"SLOW_DOWN", "SERVICE_UNAVAILABLE", "INTERNAL_FAILURE", "REQUEST_TIMEOUT", "THROTTLING", "SlowDown"})
_BUSY_STATUS = re.compile(r"AWS Error UNKNOWN \(HTTP status 50\d\)")
"""A store that says so answers, and wants to be asked less, or later."""
_NAMELESS = "No response body"
_OF_FILES = {
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM),
        "Allow the user of drivers and executors to read and write there, or choose another one",
    ),
    errno.EROFS: "Mount it for writing, or choose another folder",
    errno.ENOENT: "Make the folder, or correct the connection",
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR), "Move what is in the way, or choose another folder"),
    errno.ENAMETOOLONG: "Choose a shorter path or folder, or partition by fewer columns",
}
"""Error number → what to do about it."""
_SAID_BY_S3 = re.compile(r"AWS Error (\w+)")
_NOT_KNOWN_TO_ARROW = re.compile(r"AWS Error UNKNOWN .*ExceptionName: (\w+)", re.DOTALL)
_REDIRECTED = re.compile(r"AWS Error \w+ \(HTTP status 301\)")
_NOT_FOUND = re.compile(r"Bucket '.*' not found")
"""Arrow has no numbers for errors of S3, only their names, or words of its own."""


def opened(named: str, url: str) -> tuple[Any, str]:
    """The file system of a URL or a local path, and the path in it. `named` says what has the URL.

    Raises `ConfigurationError`, `ExternalUnavailable`.
    """
    from pyarrow import fs

    try:
        if "://" in url:
            system, path = fs.FileSystem.from_uri(url)
            return system, path
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(url))
    except (ValueError, NotImplementedError, OSError) as error:
        # Not chained, nor quoted: the cause may repeat the URL, which may hold a password.
        raise _not_opened(named, error) from None


def _not_opened(named: str, error: Exception) -> LogioError:
    """Arrow looks for the region of a bucket when it opens a URL without one."""
    said = _said_by_s3(error)
    if isinstance(error, OSError) and said is not None:
        if is_lasting(error):
            return ConfigurationError(f"{named} cannot be opened: S3 says {said}{next_step(error)}")
        return ExternalUnavailable(f"{named} cannot be opened: S3 says {said}")
    return ConfigurationError(
        f"{named} is no folder that Arrow can open ({type(error).__name__}): give a local path, or a URI such as "
        "file:///..., s3://bucket/path, hdfs://host:port/path"
    )


@contextmanager
def whole_object(system: Any, path: str) -> Iterator[Any]:
    """A stream into an object, which appears in S3 when the block ends: as a whole, or, if the block raises, not at all."""
    stream = system.open_output_stream(path)
    try:
        yield stream
    except BaseException:
        # Closed or collected, Arrow's stream would complete the upload with what it has got: so it is never collected.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))
        raise
    stream.close()  # if this fails, it fails when the stream is collected, too: Arrow keeps the error


def is_lasting(error: OSError) -> bool:
    """Whether an error of a file system or an object store is one that waiting does not mend."""
    return error.errno in _LASTING or _said_by_s3(error) in _NEXT_STEPS


def has_expired(error: OSError) -> bool:
    """Whether a store takes the credentials no more that it has taken before; a new client may have newer ones."""
    return _said_by_s3(error) in _EXPIRED


def is_busy(error: OSError) -> bool:
    """Whether a store asks to be asked less, or later."""
    return _said_by_s3(error) in _BUSY or _BUSY_STATUS.search(str(error)) is not None


def look(system: Any, key: str) -> Any:
    """What `get_file_info` says of an object. Raises OSError as `saying`."""
    with saying(system, key):
        return system.get_file_info(key)


@contextmanager
def saying(system: Any, key: str) -> Iterator[None]:
    """An error of an object store comes with the name of what is wrong. An answer to HEAD has none: then the bucket is asked
    once more, by a request that lists nothing."""
    from pyarrow import fs

    try:
        yield
    except OSError as error:
        if _NAMELESS not in str(error):
            raise
        nothing = fs.FileSelector(f"{key}/{uuid.uuid4().hex}", allow_not_found=True)
        try:
            system.get_file_info(nothing)
        except OSError as told:
            raise told from error
        raise


def next_step(error: Exception) -> str:
    """What to do about an error of a file system or an object store: the end of a message; empty for any other one."""
    said = _said_by_s3(error) or ""
    step = (
        _NEXT_STEPS.get(said)
        or (_RENEW if said in _EXPIRED else None)
        or _OF_FILES.get(getattr(error, "errno", None) or 0)
    )
    return "" if step is None else f". {step}"


def _said_by_s3(error: Exception) -> str | None:
    text = str(error)
    if _NOT_FOUND.match(text):
        return _NO_BUCKET
    if _REDIRECTED.search(text):  # the answer to HEAD has no name
        return _ELSEWHERE
    found = _NOT_KNOWN_TO_ARROW.search(text) or _SAID_BY_S3.search(text)
    return None if found is None else found[1]
