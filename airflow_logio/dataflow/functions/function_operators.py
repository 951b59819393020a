"""Operators made of stateless functions: in the driver, or on Spark's executors as part of a chain (ADR-81).

What an author's function may return is read here (`outputs_of`), for windowed operators, too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_logio.dataflow.arrow import pa, pc
from airflow_logio.dataflow.arrow_tables import as_table, is_spark_frame, library_of, type_name
from airflow_logio.dataflow.describing import source, stable_name
from airflow_logio.dataflow.functions.decorators import Function, StatelessFunction, name_of
from airflow_logio.dataflow.functions.own_partition import OTHER, Dividing, divides_lazily, late_counter
from airflow_logio.dataflow.names import did_you_mean, quoted
from airflow_logio.dataflow.operators import External, InputEvent, PortTable, SparkFrame, StatelessOperator
from airflow_logio.dataflow.parameters import PARAMS
from airflow_logio.dataflow.reads import DeclaredRead
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.record_rules import WHOLE, RecordRules
from airflow_logio.protocol.values import ExecutionMode

PORT = "port"
EVENT_IDS = "event_ids"
_HAVE_COLUMNS = ("pyarrow", "pandas", "polars", "numpy")


class FunctionOperator(StatelessOperator):
    """A `stateless` function as an operator. `Pipeline.operator` makes it; derive from `StatelessOperator` for one of
    your own.

    :param function: what `stateless` has returned.
    """

    def __init__(self, function: StatelessFunction) -> None:
        self._function = function
        self.inputs = function.inputs
        self.outputs = function.outputs
        self.state_version = function.state_version
        self.on_error = function.on_error
        self.needs_event_ids = EVENT_IDS in function.asks
        self._late = late_counter(function.fn)

    def record_rules(self) -> RecordRules:
        return RecordRules(dict(self._function.depends), {"": WHOLE})

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        facts = {"port": event.port, EVENT_IDS: [event.event_id], PARAMS: external.params}
        asked = {name: facts[name] for name in self._function.asks if name in facts}
        result = self._function.fn(project(event.table, self._function.columns), **asked)
        return outputs_of(result, self.outputs, self._function.fn)

    def late(self, port: str, records: pa.Table, params: Mapping[str, Any]) -> Mapping[str, int]:
        """Of records that go to a port: partition → how many are of it, if the function knows them to be of others than the
        run's."""
        return {} if self._late is None or port != OTHER else self._late(records, params)

    def settings(self) -> dict[str, Any]:
        return {"function": stable_name(self._function.fn), "columns": list(self._function.columns)}

    def code(self) -> str:
        return source(self._function.fn)


class FrameOperator(StatelessOperator):
    """A stateless operator whose records are on Spark's executors (mode ``dataframe``). Implement `frames`.

    It sends one event per input event and output port. For a single function, `stateless` with ``mode="dataframe"`` is
    shorter.
    """

    mode = ExecutionMode.DATAFRAME
    materialize_input: bool = False
    """What it gets is in files before `frames` is called, which may run jobs on it then."""

    @abstractmethod
    def frames(self, port: str, frame: SparkFrame, params: Mapping[str, Any]) -> Mapping[str, SparkFrame]:
        """Output port → lazy DataFrame, for the records of one event.

        :param port: the input port that they came on.
        :param frame: the records. With ``materialize_input = True`` they are in files, and actions may be called on
            them; without, what is given may be evaluated again, and be another one then.
        :param params: the run's parameters.
        """

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

    def divides_to(self, port: str) -> Dividing | None:
        """If the function is an `OwnPartition`, and the port is that of records of others: what knows whose they are."""
        return divides_lazily(self._function.fn, port)

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


def project(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The table with `columns` only (all if empty), without copying; raises OperatorFailed if one is missing."""
    if not columns:
        return table
    names = table.schema.names
    for name in columns:
        if name not in names:
            raise OperatorFailed(f"column {name!r} is needed; the records have {names}.{did_you_mean(name, names)}")
    return table.select(columns)


def keys_of(records: Iterable[Any], read: DeclaredRead) -> pa.Array | None:
    """The distinct keys, sorted and without null, to which `read` is restricted; None if it has no key.

    `records` are the tables that may have the key column, or mappings of such tables, as an author's `accumulate` may return
    them; what is no table is passed over. Raises OperatorFailed if none has it.
    """
    if read.key is None:
        return None
    tables = [table for one in records for table in (one.values() if isinstance(one, Mapping) else (one,))]
    having = [table for table in tables if isinstance(table, pa.Table) and read.key in table.column_names]
    if not having:
        raise no_key(read)
    columns = [chunk for table in having for chunk in table.column(read.key).chunks]
    keys = pc.unique(pa.chunked_array(columns, having[0].column(read.key).type)).drop_null()
    return keys.take(pc.sort_indices(keys))


def no_key(read: DeclaredRead) -> OperatorFailed:
    """The records do not have the key column of a read."""
    return OperatorFailed(f"the read of {read} is restricted by {read.key!r}, not a column of the records")


def outputs_of(result: Any, ports: Sequence[str], function: Function) -> list[PortTable]:
    """Output events of what `function` returned, without the empty ones: of a mapping, in the order of `ports`.

    Frames of pandas and polars count as tables. Raises OperatorFailed for anything but a table (where there is one port), a
    mapping of ports to tables or iterables of tables, an iterable of (port, table) or (where there is one port) of tables, or
    None.
    """
    pairs = _pairs(result, ports)
    if pairs is None:
        raise OperatorFailed(f"function {name_of(function)!r} returned {type_name(result)}; return {_expected(ports)}")
    outputs = []
    for port, value in pairs:
        table = as_table(value)
        if port not in ports or (table is None and value is not None):
            raise OperatorFailed(
                f"function {name_of(function)!r} returned {type_name(value)} for port {port!r}; return {_expected(ports)}"
            )
        if table is not None and table.num_rows:
            outputs.append((port, table))
    return outputs


def _pairs(result: Any, ports: Sequence[str]) -> list[tuple[Any, Any]] | None:
    """(port, table), unchecked; None if `result` is nothing that could have them."""
    if result is None:
        return []
    if len(ports) == 1 and (table := as_table(result)) is not None:
        return [(ports[0], table)]
    if isinstance(result, Mapping):
        unknown = [port for port in result if port not in ports]
        return [(port, table) for port in [*ports, *unknown] for table in _several(result.get(port))]
    if _is_iterable_of_tables(result):
        alone = ports[0] if len(ports) == 1 else None
        return [one if isinstance(one, tuple) and len(one) == 2 else (alone, one) for one in result]
    return None


def _several(value: Any) -> Iterable[Any]:
    return value if _is_iterable_of_tables(value) else (value,)


def _is_iterable_of_tables(value: Any) -> bool:
    """Not a table, a frame, a column or a text, which can be iterated over, too."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes) and library_of(value) not in _HAVE_COLUMNS


def _expected(ports: Sequence[str]) -> str:
    table = "an Arrow table (or a pandas or polars DataFrame)"
    mapping = f"a dict of port to table for ports {list(ports)}"
    return f"{table}, or {mapping}" if len(ports) == 1 else f"{mapping}, each {table}"
