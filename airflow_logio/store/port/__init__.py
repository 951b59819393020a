"""The port of the log: what drivers, supervisors and displays ask of it.

Adapters: `sql` (SQLite, PostgreSQL), and `testing/memory_log` for tests.

Each part of `LogStore` stands in a module here, with its documentation; an adapter implements the parts. Every method
except `listen` is one transaction. Any method may raise `LogUnavailable`, which means: nothing is known to be lost, try
again.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager

from airflow_logio.store.port.cluster_port import ClusterLog
from airflow_logio.store.port.group_port import GroupLog
from airflow_logio.store.port.lineage_port import LineageLog
from airflow_logio.store.port.retention_port import RetentionLog
from airflow_logio.store.port.run_port import CodeLog, RunLog, UpkeepLog
from airflow_logio.store.port.scaling_port import ScalingLog
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.port.unfenced_port import AddressBook, OutputLog
from airflow_logio.store.port.watch_port import WatchLog
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.session_rules import Patience


class LogStore(RunLog, CodeLog, UpkeepLog, RetentionLog, GroupLog, ClusterLog, ScalingLog, WatchLog):
    """The log as one object. A driver commits and reads through the `session` of its incarnation, and in no other way."""

    patience: Patience
    """How long callers should wait for this log while it is unavailable. Only the methods of sessions wait by
    themselves."""

    @abstractmethod
    def log_uid(self) -> str:
        """What tells this log from others: 32 hexadecimal digits, drawn when its tables were made. A copy of a log, and
        one that was restored, have the uid of the original. Raises `LogInconsistent` if it is gone."""

    @abstractmethod
    def session(self, ref: GroupRef) -> GroupSession:
        """The log as the driver of this incarnation sees it. Nothing is asked of the database yet."""

    @abstractmethod
    def lineage(self, run: Run) -> AbstractContextManager[LineageLog]:
        """The rows that lineage queries join, in one snapshot; the queries are in `store/lineage/queries.py`."""

    @property
    @abstractmethod
    def output(self) -> OutputLog:
        """What drivers have printed."""

    @property
    @abstractmethod
    def addresses(self) -> AddressBook:
        """Where drivers hand over bodies directly."""

    @abstractmethod
    def dispose(self) -> None:
        """Close every connection."""
