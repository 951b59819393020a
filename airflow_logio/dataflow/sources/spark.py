"""`SparkSource`: any DataFrame that an author can build, as a source whose effect is stored before it is used (ADR-85)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_logio.dataflow.arrow_tables import needed_spark_frame
from airflow_logio.dataflow.describing import source, stable_name
from airflow_logio.dataflow.names import check_column
from airflow_logio.dataflow.operators import SourceBatch, SourceOperator, SparkFrame
from airflow_logio.dataflow.parameters import PARAMS, for_function
from airflow_logio.dataflow.quantities import byte_size
from airflow_logio.dataflow.unavailability import check_errors
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError
from airflow_logio.protocol.values import ExecutionMode


class SparkSource(SourceOperator):
    """The records of any DataFrame that you can build. It need not be the same a second time (ADR-85).

    :param read: ``read(spark)`` or ``read(spark, params)`` returns the DataFrame. A streaming one is refused.
    :param ordered_by: a column that Spark sorts by: a timestamp, a date or a whole number, without nulls. No record of
        an event is then behind one of the next event: windows of time need that. Spark evaluates the DataFrame twice
        for it, the first time for samples.
    :param bytes_per_event: the most bytes of files that make an event, ``"256 MB"`` by default, or a number; one file
        may be a little more.
    :param unavailable: more classes of errors of `read` that mean that an external system is unavailable, so that it is
        called again.

    One Spark job writes the records into the payload store; its files are the events', whole files. Events leave when
    the job has ended and the log knows of it. If the driver dies before, the DataFrame is read again; afterwards,
    never. Raises PipelineDefinitionError.
    """

    mode = ExecutionMode.DATAFRAME
    outputs = ("out",)
    replayable = False

    def __init__(
        self,
        read: Callable[..., SparkFrame],
        *,
        ordered_by: str | None = None,
        bytes_per_event: str | int = "256 MB",
        unavailable: tuple[type[Exception], ...] = (),
    ) -> None:
        _check_function(read)
        self._read = read
        self.ordered_by = None if ordered_by is None else check_column(ordered_by)
        self.bytes_per_event = byte_size("bytes_per_event", bytes_per_event)
        self.unavailable = check_errors("a SparkSource", unavailable)

    def settings(self) -> dict[str, Any]:
        return {
            "read": stable_name(self._read),
            "ordered_by": self.ordered_by,
            "bytes_per_event": self.bytes_per_event,
        }

    def code(self) -> str:
        return source(self._read)

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The one read action of a run. Asks no external system."""
        return {"read": stable_name(self._read)} | ({} if self.ordered_by is None else {"ordered_by": self.ordered_by})

    def frame(self, spark: Any, params: Mapping[str, Any]) -> SparkFrame:
        """What the function returns. Raises OperatorFailed if that is no DataFrame of Spark, or a streaming one."""
        what = f"function {stable_name(self._read)!r} of a SparkSource"
        frame = needed_spark_frame(self._read(spark, **for_function(self._read, params)), what)
        if getattr(frame, "isStreaming", False):
            raise OperatorFailed(
                f"{what} returned a streaming DataFrame, which never ends: use spark.read, or derive a RangeSource"
            )
        return frame

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        raise OperatorFailed("the records of a SparkSource are read by Spark: frame() returns them")


def _check_function(read: object) -> None:
    if not callable(read) or isinstance(read, type):
        raise PipelineDefinitionError(
            f"read is {read!r}; give a function read(spark) or read(spark, params) that returns a DataFrame"
        )
    try:
        signature = inspect.signature(read)
    except (TypeError, ValueError):  # some builtins have none
        return
    given = {PARAMS: None} if PARAMS in signature.parameters else {}
    try:
        signature.bind(None, **given)
    except TypeError as error:
        raise PipelineDefinitionError(
            f"function {stable_name(read)!r} cannot be called as read(spark) or read(spark, params): {error}"
        ) from None
