"""Side-effect reads in the simulator. It reads nothing outside, so its user says what the external systems hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow.column_types import column_type
from airflow_logio.dataflow.operators import Operator, SourceOperator
from airflow_logio.dataflow.reads import DeclaredRead, TableRead
from airflow_logio.dataflow.sources import QuerySource
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.systems.call_watch import CallWatch
from airflow_logio.systems.databases.sql_types import arrow_type

Answers = Callable[[DeclaredRead | QuerySource, pa.Array | None], pa.Table]
"""Stands in for an external system: returns the effect of a read, for these keys if it has a key, or the rows of a source."""
Contents = Mapping[str, pa.Table] | Answers
"""The tables of a SQL database by name, the result of a source's query by the source's name; or a function that answers any
read, even a `FunctionRead`."""
ExternalTables = Mapping[str, Contents]
"""Connection → what reads and sources find there."""

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


class Rows:
    """A connection as a `QuerySource` sees it (`SourceConnection`): the rows of its table or query are those given for it."""

    def __init__(self, name: str, source: QuerySource, tables: ExternalTables) -> None:
        """Raises `PipelineDefinitionError` if nobody has given them."""
        self._source = source
        contents = tables.get(source.connection, {})
        place = source.table or name
        found: pa.Table | Answers | None = contents if callable(contents) else contents.get(place)
        if found is None:
            what = (
                f"table {place!r}" if source.table else f"the result of the query, under the source's name, {name!r},"
            )
            raise PipelineDefinitionError(f"source {name!r}: {_unknown(what, source.connection)}")
        self._found = found

    @property
    def url(self) -> str:
        return "simulated://"

    def query(
        self,
        statement: str,
        values: Mapping[str, Any],
        columns: Mapping[str, str | None],
        table: str | None = None,
    ) -> Iterator[pa.Table]:
        """Raises `ConfigurationError` if they are not what the source declares."""
        found = self._found
        rows = found if isinstance(found, pa.Table) else _answered(found, self._source, None)
        names = list(columns) or rows.column_names
        if missing := [name for name in names if name not in rows.column_names]:
            raise ConfigurationError(
                f"what stands in for connection {self._source.connection!r} has no column {missing[0]!r}, which a source "
                f"reads; it has {', '.join(rows.column_names)}"
            )
        kinds = {name: column_type(name, kind) for name, kind in columns.items() if kind}
        try:
            typed = [rows[name].cast(arrow_type(kinds[name])) if name in kinds else rows[name] for name in names]
        except pa.ArrowException as error:
            raise ConfigurationError(
                f"what stands in for connection {self._source.connection!r} does not have the types that a source declares: "
                f"{error}"
            ) from error
        order = [(name, "ascending") for name in self._source.order_by]
        result = pa.table(typed, names=names)
        yield result.sort_by(order) if order else result


def _contents(tables: ExternalTables, read: DeclaredRead) -> pa.Table | Answers | None:
    contents = tables.get(read.connection, {})
    if callable(contents):
        return contents
    return contents.get(read.table) if isinstance(read, TableRead) else None


def _answered(answers: Any, read: DeclaredRead | QuerySource, keys: pa.Array | None) -> pa.Table:
    table = answers(read, keys)
    asked = f"the query of a source ({read.query or read.table})" if isinstance(read, QuerySource) else read
    if not isinstance(table, pa.Table):
        raise ConfigurationError(
            f"the function that stands in for connection {read.connection!r} answered {asked} with a "
            f"{type(table).__name__}; return an Arrow table"
        )
    return table


def _unknown(what: str, connection: str) -> str:
    next_step = NEXT_STEP.format(connection=connection)
    return f"the simulator reads nothing outside and does not know {what} of connection {connection!r}; {next_step}"
