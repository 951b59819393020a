"""What executes the write actions of an epoch's writers: with jobs of Spark where the records are datasets."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.driver.spark_jobs.spark_errors import lost_on_the_way, shortened, store_fault
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError, OperatorFailed, SparkLost
from airflow_logio.protocol.warehouse_rules import Owner
from airflow_logio.spark.published_places import Copies, CopyTask, Lines, copied_by_spark
from airflow_logio.spark.publishing import DatasetTarget
from airflow_logio.spark.table_staging import StagingTarget
from airflow_logio.systems.connections import Connections
from airflow_logio.systems.execution import (
    ConditionalExecutor,
    IdempotentExecutor,
    WriteExecutor,
    executor_of,
    table_target,
)
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.bodies import Bodies

_LACKS = "ModuleNotFoundError: "
"""What a task says that cannot import what it needs."""


@dataclass(frozen=True)
class Executors:
    """Makes them. Their jobs are those of `job_group`; without a payload store there are no datasets."""

    connections: Connections
    bodies: Bodies
    payloads: EpochPayloads | None
    sessions: SparkSessions
    job_group: str

    def of(self, operator: str, writer: ActionWriter, moves: int) -> WriteExecutor:
        """The executor of a writer whose slot has changed owners `moves` times."""
        connections = self.connections
        match writer:
            case DatasetWriter():
                identity = connections.identity
                run = Owner(identity.run_uid, identity.started_at)
                published = DatasetTarget(writer, run, self.bodies.dataset, self._copied, is_fresh=identity.is_fresh)
                return IdempotentExecutor(operator, writer, published, connections)
            case TableWriter() if self.payloads is not None:
                tables = table_target(operator, writer, connections)
                url = connections.url(writer.connection)
                target = StagingTarget(tables, url, self.bodies.dataset, self.payloads, self._run)
                return ConditionalExecutor(operator, writer, target, connections, moves)
        return executor_of(operator, writer, connections, moves)

    def _copied(self, description: str, copies: Copies, task: CopyTask) -> Lines:
        """Errors of `copied_by_spark` told apart: `SparkLost`; OSError if something is unavailable; else `OperatorFailed`."""
        try:
            return copied_by_spark(self.sessions.entered(self.job_group, description), description, copies, task)
        except (OSError, LogioError):
            raise
        except Exception as error:
            if self.sessions.is_lost(error):
                raise SparkLost(f"Spark ended while it copied files of {description}: {shortened(error)}") from error
            if found := store_fault(error) or lost_on_the_way(error):
                raise OSError(f"files could not be copied: {found}, told by Spark: {shortened(error)}") from error
            raise OperatorFailed(f"{description}: files could not be copied: {shortened(error)}") from error

    def _run(self, description: str, job: Callable[[Any], pa.Table]) -> pa.Table:
        """Run a job.

        Raises `SparkLost`; `ExternalUnavailable` if executors, connections or a file system are unavailable;
        `ConfigurationError` if executors cannot run its code; `OperatorFailed` for any other end, which would be the same
        again.
        """
        try:
            return job(self.sessions.entered(self.job_group, description))
        except LogioError:
            raise
        except Exception as error:
            if self.sessions.is_lost(error):
                raise SparkLost(f"Spark ended at {description}: {shortened(error)}") from error
            if isinstance(error, pickle.PicklingError) or _LACKS in str(error):
                raise ConfigurationError(
                    f"{description}: executors cannot load the table: {shortened(error)}. They need psycopg2 and SQLAlchemy "
                    "as the driver has them, and a writer without locks, sessions or open files in it"
                ) from error
            if found := store_fault(error) or lost_on_the_way(error):
                raise ExternalUnavailable(f"{description}: {found}, told by Spark: {shortened(error)}") from error
            raise OperatorFailed(f"{description}: the job has failed: {shortened(error)}") from error
