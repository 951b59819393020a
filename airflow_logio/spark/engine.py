"""What a driver asks of Spark beyond DataFrames, in whichever way it reaches Spark (ADR-116)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from airflow_logio.store.records.driver_records import SparkApplication


class SparkEngine(ABC):
    """Makes the session of a driver, and knows what jobs it runs. A `session` is what `made` has returned."""

    patience: float = 60.0
    """Seconds for which a Spark that does not answer is waited for."""

    @abstractmethod
    def import_spark(self) -> None:
        """Import what making a session needs. On the caller's thread: no two threads import side by side."""

    @abstractmethod
    def made(self) -> Any:
        """A new session. Raises `ConfigurationError`, and what Spark raises."""

    @abstractmethod
    def application(self, session: Any) -> SparkApplication | None:
        """What people need to find the application. None if Spark does not say it: a driver works without that."""

    @abstractmethod
    def enter(self, session: Any, job_group: str, description: str) -> None:
        """From now on, jobs that this thread starts are those of a job group."""

    @abstractmethod
    def apart(self, session: Any, job_group: str) -> AbstractContextManager[None]:
        """Within the block, jobs that this thread starts are of another job group; otherwise as `enter` has said."""

    @abstractmethod
    def cancel(self, session: Any, job_groups: Sequence[str]) -> None:
        """Cancel what runs of job groups."""

    @abstractmethod
    def actions(self, job_group: str, session: Any) -> Sequence[str]:
        """What has run in an `apart` block that is over, and was no question about columns or files: for people to read."""

    @abstractmethod
    def is_lost(self, session: Any, error: BaseException) -> bool:
        """Whether an error of a job is the end of Spark or of this session, and not of the author's function."""

    @abstractmethod
    def may_return(self) -> bool:
        """Whether a driver whose Spark is lost can make another session."""

    @abstractmethod
    def end_earlier(self) -> None:
        """End what the last incarnation's session still does. Never raises: its jobs only take executors from others."""

    @abstractmethod
    def stop(self, session: Any) -> None:
        """End the session, and its jobs."""
