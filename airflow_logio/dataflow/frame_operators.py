"""Operators of mode ``dataframe``: functions DataFrame → DataFrame, evaluated lazily as parts of a chain (ADR-81)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_logio.dataflow.describing import source, stable_name
from airflow_logio.dataflow.frames import is_spark_frame, type_name
from airflow_logio.dataflow.functions import StatelessFunction, name_of
from airflow_logio.dataflow.names import quoted
from airflow_logio.dataflow.operators import External, InputEvent, PortTable, SparkFrame, StatelessOperator
from airflow_logio.dataflow.parameters import PARAMS
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.record_rules import WHOLE, RecordRules
from airflow_logio.protocol.values import ExecutionMode

PORT = "port"


class FrameOperator(StatelessOperator):
    """A stateless operator whose records are on Spark's executors. It sends one event per input event and output port."""

    mode = ExecutionMode.DATAFRAME
    materialize_input: bool = False
    """What it gets is in files before `frames` is called, which may run jobs on it then."""

    @abstractmethod
    def frames(self, port: str, frame: SparkFrame, params: Mapping[str, Any]) -> Mapping[str, SparkFrame]:
        """Output port → lazy DataFrame, for the records of one event that came on `port`. Without `materialize_input` it
        runs no action: what it is given may be evaluated again, and be another one then."""

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        raise OperatorFailed(f"operator {type(self).__name__} works on DataFrames: its events are evaluated in Spark")


class FrameFunctionOperator(FrameOperator):
    """A `stateless` function of mode ``dataframe`` as an operator."""

    def __init__(self, function: StatelessFunction) -> None:
        self._function = function
        self.inputs = function.inputs
        self.outputs = function.outputs
        self.state_version = function.state_version
        self.on_error = function.on_error
        self.materialize_input = function.materialize_input

    def record_rules(self) -> RecordRules:
        return RecordRules(dict(self._function.depends), {"": WHOLE})

    def frames(self, port: str, frame: SparkFrame, params: Mapping[str, Any]) -> Mapping[str, SparkFrame]:
        """Raises OperatorFailed if the function returns anything but a DataFrame for each output port."""
        facts = {PORT: port, PARAMS: params}
        asked = {name: facts[name] for name in self._function.asks}
        columns = self._function.columns
        returned = self._function.fn(frame.select(*columns) if columns else frame, **asked)
        return self._by_port(returned)

    def _by_port(self, returned: Any) -> Mapping[str, SparkFrame]:
        name = name_of(self._function.fn)
        by_port = returned if isinstance(returned, Mapping) else {self.outputs[0]: returned}
        if set(by_port) != set(self.outputs):
            wanted = "{output port: DataFrame}" if len(self.outputs) > 1 else "a DataFrame"
            raise OperatorFailed(
                f"function {name!r} has output ports {quoted(self.outputs)} and returned {_said(returned)}; in mode "
                f"'dataframe' return {wanted}, one for every port (an empty one if there is nothing to send)"
            )
        for port, frame in by_port.items():
            if not is_spark_frame(frame):
                raise OperatorFailed(
                    f"function {name!r} returned {type_name(frame)} for output port {port!r}; in mode 'dataframe' return a "
                    "DataFrame of Spark"
                )
        return {port: by_port[port] for port in self.outputs}

    def settings(self) -> dict[str, Any]:
        return {"function": stable_name(self._function.fn), "columns": list(self._function.columns)}

    def code(self) -> str:
        return source(self._function.fn)


def _said(returned: Any) -> str:
    return f"ports {quoted(tuple(returned))}" if isinstance(returned, Mapping) else type_name(returned)
