"""Whose fault it is when a job of Spark fails: the operator's, Spark's, that of executors, or of the payload store."""

from __future__ import annotations

import errno
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from airflow_logio.driver.mailbox import Closed
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    FailurePoint,
    LogioError,
    LogUnavailable,
    OperatorFailed,
    SparkLost,
    authored_frames,
)
from airflow_logio.spark.store_probe import BUSY_BUCKET, CLOSED_BUCKET
from airflow_logio.systems.payloads import EpochPayloads

MOST_LINES = 12
_OF_STORES = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ESTALE,
    errno.EROFS,
    errno.ENODEV,
    errno.ENOTCONN,
    errno.EHOSTDOWN,
    errno.ETIMEDOUT,
)
"""Errors of a shared file system that is full or unavailable, and of nothing that an author's function computes."""
_OF_EXECUTORS = re.compile(
    r"ExecutorLostFailure|FetchFailed|MetadataFetchFailed|Python worker (?:exited unexpectedly|failed to connect back)"
    r"|\b(?:java\.net\.\w*(?:Connect|Socket|UnknownHost|NoRouteToHost)\w*Exception|java\.io\.EOFException)\b"
    r"|\bConnection(?:Refused|Reset|Aborted)?Error\b|\bBrokenPipeError\b|\bTimeoutError\b"
    r"|Connection (?:refused|reset by peer)|\bJob \d+ cancelled\b"
)
"""What Spark says of a job whose executors, or connections, were lost; or that was cancelled."""
_OF_SHUFFLES = re.compile(
    r"indeterminate output was failed and retried|indeterminate results from old attempt"
    r"|[Cc]annot rollback|[Rr]ollback failed"
    r"|has (?:failed|exceeded|been resubmitted for) the maximum allowable (?:number of times|total stage attempts)"
)
"""What Spark's scheduler says of a job when executors were lost with what tasks had shuffled: others have read some of it,
and it came out differently when it was made again; or it was lost again each time."""
_NOT_SHIPPED = (
    ". What a function works with in tasks of Spark is sent to them: make locks, sessions, open files and connections inside "
    "of it, and hand in what they are made of"
)


class JobFaults:
    """`check_wanted` raises `Closed` when the epoch has ended: a job that was cancelled then has not failed."""

    def __init__(self, sessions: SparkSessions, payloads: EpochPayloads, check_wanted: Callable[[], None]) -> None:
        self._sessions = sessions
        self._payloads = payloads
        self._check_wanted = check_wanted

    @contextmanager
    def told_apart(self, where: str, at: FailurePoint) -> Iterator[None]:
        """Raises `OperatorFailed` with its place, `SparkLost`, `LogUnavailable`, `ConfigurationError` for credentials that
        may not read, `Closed`; a `LogioError` as it is."""
        try:
            yield
        except OperatorFailed as error:
            raise OperatorFailed(str(error), error.at or at, place=where) from error
        except (LogioError, Closed):
            raise
        except Exception as error:
            self._check_wanted()
            if self._sessions.is_lost(error):
                raise SparkLost(f"Spark ended while it evaluated {where or at.operator}: {shortened(error)}") from error
            if fault := store_fault(error):
                raise LogUnavailable(
                    f"{self._payloads}, or a local disk of an executor: {fault}, told by a task of Spark while it evaluated "
                    f"{where or at}: {shortened(error)}"
                ) from error
            if CLOSED_BUCKET.search(str(error)):
                raise ConfigurationError(
                    f"{self._payloads}, or a bucket that is read: Spark's reader has no credentials that may read it, while "
                    f"it evaluated {where or at}. Give them to drivers and executors (docs/how-to/buckets.md): "
                    f"{shortened(error)}"
                ) from error
            if shuffle_lost(error):
                raise LogUnavailable(
                    f"Spark has lost executors while it evaluated {where or at.operator}, and with them what tasks had "
                    f"shuffled: {shortened(error)}"
                ) from error
            self.fail(error, where, at)

    def is_of_jobs(self, error: Exception) -> bool:
        """Whether Spark, executors or the payload store have failed a job that a function has run, and not the function."""
        of_spark = (type(error).__module__ or "").startswith(("py4j.", "pyspark."))
        # Spark is asked, whatever the function has raised.
        silent = self._sessions.is_lost(ExternalUnavailable(str(error)))
        return bool(silent or shuffle_lost(error) or (of_spark and store_fault(error)))

    def fail(self, error: Exception, where: str, at: FailurePoint) -> NoReturn:
        """Raises `OperatorFailed`: the author's function, or what it was made of, is at fault."""
        cause = str(error) if isinstance(error, OperatorFailed) else f"{type(error).__name__}: {shortened(error)}"
        if isinstance(error, pickle.PicklingError):
            cause += _NOT_SHIPPED
        cause += authored_frames(error)
        raise OperatorFailed(cause, at, place=where) from error


def store_fault(error: BaseException) -> str | None:
    """What a task has found of a file system that is full or unavailable; None if it has failed for another reason.

    Spark has the errors of tasks as text only: of Python with a number, of the JVM in the words of the system.
    """
    text = str(error)
    found = (number for number in _OF_STORES if any(words in text for words in _said(number)))
    of_bucket = BUSY_BUCKET.search(text)
    return next((os.strerror(number) for number in found), None if of_bucket is None else of_bucket[0])


def _said(number: int) -> tuple[str, str, str]:
    words = os.strerror(number)
    return f"[Errno {number}]", f"({words})", f"IOException: {words}"


def shuffle_lost(error: BaseException) -> str | None:
    """What Spark could not make again, after it had lost an executor, as it was; None if a job has failed for another reason.

    No operator is to blame, and Spark does not try again: the caller has to.
    """
    text = str(error)
    found = _OF_SHUFFLES.search(text) if "Job aborted" in text else None
    return None if found is None else found[0]


def lost_on_the_way(error: BaseException) -> str | None:
    """What a job has lost that is there again later: executors, their processes or connections, or what was shuffled; None if
    it has failed for another reason. In Spark's words, because it has nothing else."""
    if lost := shuffle_lost(error):
        return lost
    found = _OF_EXECUTORS.search(str(error))
    return None if found is None else found[0].strip()


def shortened(error: BaseException) -> str:
    """The beginning, and the end, where a Python worker says what was raised; without the frames of the JVM."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n".join(lines if len(lines) <= MOST_LINES else [*lines[:3], "...", *lines[3 - MOST_LINES :]])
