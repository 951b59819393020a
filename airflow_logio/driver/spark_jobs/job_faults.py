"""Whose fault it is when an evaluation fails: the operator's, Spark's, that of executors, or of the payload store."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from airflow_logio.authored_frames import authored_frames
from airflow_logio.driver.mailbox import Closed
from airflow_logio.driver.spark_jobs.spark_errors import shortened, shuffle_lost, store_fault
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import (
    ExternalUnavailable,
    FailurePoint,
    LogioError,
    LogUnavailable,
    OperatorFailed,
    SparkLost,
)
from airflow_logio.systems.payloads import EpochPayloads

_NOT_SHIPPED = (
    ". What a function works with in tasks of Spark is sent to them: make locks, sessions, open files and connections inside "
    "of it, and hand in what they are made of"
)


class JobFaults:
    """`check_wanted` raises `Closed` when the epoch has ended: a job that was cancelled then is no one's failure."""

    def __init__(self, sessions: SparkSessions, payloads: EpochPayloads, check_wanted: Callable[[], None]) -> None:
        self._sessions = sessions
        self._payloads = payloads
        self._check_wanted = check_wanted

    @contextmanager
    def told_apart(self, where: str, at: FailurePoint) -> Iterator[None]:
        """Raises `OperatorFailed` with its place, `SparkLost`, `LogUnavailable`, `Closed`; a `LogioError` as it is."""
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
