"""Side-effect reads in the simulator. It reads nothing outside, so its user says what the external systems hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow.operators import Operator, SourceOperator
from airflow_logio.dataflow.reads import DeclaredRead, TableRead
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.runtime.systems.call_watch import CallWatch

Answers = Callable[[DeclaredRead, pa.Array | None], pa.Table]
"""Stands in for an external system: returns the effect of a read, for these keys if it has a key."""
Contents = Mapping[str, pa.Table] | Answers
"""The tables of a SQL database by name, or a function that answers any read, even a `FunctionRead`."""
ExternalTables = Mapping[str, Contents]
"""Connection → what side-effect reads find there."""

NEXT_STEP = (
    "say what it holds, `scenario = pipeline_scenario(pipeline, tables={{{connection!r}: ...}})` with its tables by name or "
    "with one function of read and keys, and simulate that (`file.py:scenario` for `logio simulate`)"
)


class Reads:
    """What operators see of connections."""

    def __init__(self, tables: ExternalTables, params: Mapping[str, Any]) -> None:
        self._tables = tables
        self.params = MappingProxyType(dict(params))
        self.calls = CallWatch()

    def read(self, read: DeclaredRead, keys: pa.Array | None) -> pa.Table:
        """The effect of a side-effect read. Raises `ConfigurationError` if the user has not given it."""
        found = _contents(self._tables, read)
        if found is None:
            raise ConfigurationError(_unknown(str(read), read.connection))
        if not isinstance(found, pa.Table):
            return _answered(found, read, keys)
        if keys is not None and read.key is not None:
            found = found.filter(pc.is_in(found.column(read.key), pc.unique(keys)))
        columns = read.columns if isinstance(read, TableRead) else ()
        return found.select(list(columns)) if columns else found


def refuse_unknown_reads(name: str, operator: Operator, tables: ExternalTables) -> None:
    """Raises `PipelineDefinitionError` if an operator reads data that the user has not given to the simulator."""
    if isinstance(operator, SourceOperator):
        return
    declared: Mapping[str, DeclaredRead] = getattr(operator, "reads", {})
    for read in declared.values():
        if _contents(tables, read) is None:
            raise PipelineDefinitionError(f"operator {name!r}: {_unknown(str(read), read.connection)}")
    for connection in operator.connections():
        if connection not in tables and connection not in operator.writes():
            raise PipelineDefinitionError(f"operator {name!r}: {_unknown('what it reads', connection)}")


def _contents(tables: ExternalTables, read: DeclaredRead) -> pa.Table | Answers | None:
    contents = tables.get(read.connection, {})
    if callable(contents):
        return contents
    return contents.get(read.table) if isinstance(read, TableRead) else None


def _answered(answers: Any, read: DeclaredRead, keys: pa.Array | None) -> pa.Table:
    table = answers(read, keys)
    if not isinstance(table, pa.Table):
        raise ConfigurationError(
            f"the function that stands in for connection {read.connection!r} answered {read} with a "
            f"{type(table).__name__}; return an Arrow table"
        )
    return table


def _unknown(what: str, connection: str) -> str:
    next_step = NEXT_STEP.format(connection=connection)
    return f"the simulator reads nothing outside and does not know {what} of connection {connection!r}; {next_step}"
