"""The DataFrames that sources return: the records of a range, or of the effect that is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow_logio.dataflow.arrow_tables import needed_spark_frame
from airflow_logio.dataflow.operators import Operator, SourceOperator, SparkFrame
from airflow_logio.dataflow.sources import RangeSource, SparkSource
from airflow_logio.dataflow.sources.ranges import END, START
from airflow_logio.dataflow.unavailability import is_outage
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.errors import ExternalUnavailable, FailurePoint
from airflow_logio.spark.row_readers import range_connections
from airflow_logio.spark.schemas import schema_of
from airflow_logio.systems.payloads import EpochPayloads

Fit = Callable[[SparkFrame, str], SparkFrame]
"""(records of a range, their schema) → the records as they are sent. Raises `SourceChanged`."""


class SourceFrames:
    """Both methods raise what the source and `fit` raise, and `ExternalUnavailable` for what says so."""

    def __init__(self, settings: EpochSettings, payloads: EpochPayloads) -> None:
        self._settings = settings
        self._payloads = payloads

    @contextmanager
    def of_effect(
        self, operator: Operator, params: Mapping[str, Any], action: Mapping[str, Any], at: FailurePoint, fit: Fit
    ) -> Iterator[SparkFrame]:
        """What a read action returns whose effect is stored."""
        if isinstance(operator, RangeSource):
            with self.of_range(operator, params, action, at, fit) as frame:
                yield frame
            return
        assert isinstance(operator, SparkSource)
        session = self._settings.sessions.get()
        with self._asking(operator), self._settings.connections.calls.call("read", at):
            frame = operator.frame(session, params)
        yield frame

    @contextmanager
    def of_range(
        self, operator: RangeSource, params: Mapping[str, Any], action: Mapping[str, Any], at: FailurePoint, fit: Fit
    ) -> Iterator[SparkFrame]:
        """The records of a range, for as long as the block lasts. Spark may have to ask what columns they have."""
        session, connections = self._settings.sessions.get(), self._settings.connections
        with range_connections(session, self._payloads, connections) as named:
            with self._asking(operator), connections.calls.call("frame", at):
                made = operator.connected(named).frame(session, params, action[START], action[END])
                frame = needed_spark_frame(made, f"frame() of {type(operator).__name__}")
                schema = schema_of(frame)
            yield fit(frame, schema)

    @contextmanager
    def _asking(self, operator: SourceOperator) -> Iterator[None]:
        """What a source raises if an external system is unavailable becomes `ExternalUnavailable`; not if Spark is."""
        try:
            yield
        except Exception as error:
            unavailable = ExternalUnavailable(f"{type(error).__name__}: {error}")
            if not is_outage(error, operator.unavailable) or self._settings.sessions.is_lost(unavailable):
                raise
            raise unavailable from error
