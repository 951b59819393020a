"""Which errors of an author's libraries say that an external system is unavailable, so that it is asked again.

Libraries are recognized by the names of their error classes: this package imports none of them.
"""

from __future__ import annotations

import errno
import math
import ssl
from typing import Any

from airflow_logio.errors import ConfigurationError, ExternalUnavailable, PipelineDefinitionError

_ALWAYS = (ExternalUnavailable, ConnectionError, TimeoutError)

_OUTAGES = frozenset(
    {
        ("socket", "gaierror"),
        ("http", "IncompleteRead"),
        ("urllib3", "NewConnectionError"),
        ("urllib3", "TimeoutError"),
        ("urllib3", "ProtocolError"),
        ("urllib3", "MaxRetryError"),
        ("requests", "ConnectionError"),
        ("requests", "Timeout"),
        ("requests", "ChunkedEncodingError"),
        ("requests", "RetryError"),
        ("httpx", "TransportError"),
    }
)
"""Top-level package and class; what is derived from one of them counts, too."""

_NO_OUTAGES = frozenset(
    {
        ("requests", "SSLError"),
        ("httpx", "UnsupportedProtocol"),
        ("httpx", "LocalProtocolError"),
    }
)
"""Derived from an outage, but another attempt would end the same way."""

_UNREACHABLE = frozenset({errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH})

_TRY_LATER = frozenset({429, 502, 503, 504})
"""Too Many Requests, Bad Gateway, Service Unavailable, Gateway Timeout."""

_STATUS_ERRORS = frozenset({("urllib", "HTTPError"), ("requests", "HTTPError"), ("httpx", "HTTPStatusError")})


def is_outage(error: BaseException, more: type[Exception] | tuple[type[Exception], ...] = ()) -> bool:
    """Whether an error means "unavailable": one of Python's own, of a well-known library, or of the author's `more`.

    These count: ExternalUnavailable, ConnectionError, TimeoutError, unreachable networks, names that cannot be resolved;
    connection errors and timeouts of urllib, urllib3, requests and httpx; their errors for HTTP status 429, 502, 503, 504;
    and that requests has tried again for a status as often as its author allowed.
    """
    if isinstance(error, (*_ALWAYS, *(more if isinstance(more, tuple) else (more,)))):
        return True
    names = {_name(one) for one in type(error).__mro__}
    if names & _STATUS_ERRORS:
        return _status(error) in _TRY_LATER
    if ("urllib", "URLError") in names:
        return _is_outage_behind(getattr(error, "reason", None))
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return True
    return bool(names & _OUTAGES) and not names & _NO_OUTAGES


_NOT_THERE = ("[PATH_NOT_FOUND]", "[UNABLE_TO_INFER_SCHEMA]")
"""How Spark begins to say that a path, or the files in it, are not there."""


def is_missing_input(error: BaseException | None) -> bool:
    """Whether a source has failed because files that it reads are not there: by itself, or by what it was raised from."""
    while error is not None:
        if isinstance(error, FileNotFoundError) or str(error).startswith(_NOT_THERE):
            return True
        error = error.__cause__
    return False


def check_errors(owner: str, errors: Any) -> tuple[type[Exception], ...]:
    """`errors`, or a single class, as a tuple. Raises PipelineDefinitionError."""
    given = errors if isinstance(errors, tuple) else (errors,)
    for one in given:
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise PipelineDefinitionError(
                f"{owner}: unavailable has {one!r}; give classes of errors, as in unavailable=(LookupError,)"
            )
    return given


def advice(error: BaseException, where: str) -> str:
    """How an author says that this error means "unavailable": the end of a message; empty for an error of Python itself."""
    kind = type(error)
    if kind.__module__ == "builtins" and not isinstance(error, OSError):
        return ""
    return (
        f". If this means that the external system is unavailable, add {kind.__name__} to `unavailable` of {where}: it is "
        "then asked again for `replay_seconds`"
    )


def advice_for_code(error: BaseException) -> str:
    """How an author declares what a function of his has asked by itself, if that was unavailable; empty for other errors."""
    if not is_outage(error):
        return ""
    return (
        ". An operator's own code is not called again and again while a system is unavailable. Declare what it reads there "
        "as FunctionRead in `reads`, or what it writes as a writer: that is tried again for `replay_seconds`"
    )


def _name(kind: type) -> tuple[str, str]:
    return kind.__module__.partition(".")[0], kind.__qualname__


def _is_outage_behind(reason: Any) -> bool:
    """An OSError on the way; not an address that is none (a text), nor a certificate that is refused."""
    return isinstance(reason, OSError) and not isinstance(reason, ssl.SSLCertVerificationError | FileNotFoundError)


def _status(error: Any) -> Any:
    response = getattr(error, "response", None)
    return getattr(error, "code", None) if response is None else getattr(response, "status_code", None)


def check_replay_seconds(seconds: float | None) -> None:
    """Raises `ConfigurationError`. None is the default."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ConfigurationError(
            f"replay_seconds is {seconds!r}; give seconds, more than 0: for so long what an external system is asked is "
            "asked again while it is unavailable, then the group is parked"
        )
