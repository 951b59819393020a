"""Audits: what an author asks of the rows of a day before a writer puts them in the place of the old ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from airflow_logio.dataflow.arrow_tables import as_table, is_spark_frame, type_name
from airflow_logio.dataflow.describing import source
from airflow_logio.dataflow.parameters import for_function
from airflow_logio.dataflow.query_text import check_select, query_parameters
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError

AuditFunction = Callable[..., Any]
"""Gets the records, and ``params`` if it has a parameter of that name."""
TABLES, FRAME = "an iterator of Arrow tables", "a DataFrame of Spark"
"""What the records are: those for a table, and those for a folder."""
AUDIT = "audit"
"""The name of one that has none of its own."""
SHOWN = 5
"""So many rows at fault are shown."""
MOST_OF_A_ROW = 300
"""Characters of one that are shown."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Asks one thing: by a SELECT whose rows are faults, or by a function."""

    name: str
    query: str | None = None
    function: AuditFunction | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    """Of the run; parameters of a query that are instants are times with a zone."""

    def placeholders(self) -> frozenset[str]:
        return query_parameters(self.query or "")

    def code(self) -> str:
        return f"{self.name}: {self.query if self.function is None else source(self.function)}"

    def for_run(self, params: Mapping[str, Any], instants: tuple[str, ...]) -> Audit:
        """With the parameters of a run; those that are named are instants, as texts with an offset."""
        if self.function is not None:
            return replace(self, params=params)
        values = {name: params[name] for name in self.placeholders()}
        times = {name: datetime.fromisoformat(values[name]) for name in values.keys() & set(instants)}
        return replace(self, params=values | times)

    def asked(self, records: Any) -> str:
        """What the function finds in the records of the day, in words; empty if nothing is wrong. Raises what it raises,
        and OperatorFailed for what it must not return."""
        assert self.function is not None
        found = self.function(records, **for_function(self.function, self.params))
        if found is None or isinstance(found, str):
            return found or ""
        if is_spark_frame(found):
            return told(found.limit(SHOWN + 1).toArrow().to_pylist())
        table = as_table(found)
        if table is None:
            raise OperatorFailed(
                f"it returned {type_name(found)}; return None or an empty text if nothing is wrong, else a text that says "
                "what is, or the rows at fault as an Arrow table, or a DataFrame"
            )
        return told(table.slice(0, SHOWN + 1).to_pylist(), table.num_rows)


def audits_of_run(audits: Iterable[Audit], partition: str, params: Mapping[str, Any]) -> tuple[Audit, ...]:
    """Audits with the parameters of a run, in a pipeline whose partition has that name."""
    instants = (f"{partition}_start", f"{partition}_end")
    return tuple(audit.for_run(params, instants) for audit in audits)


def check_audits(where: str, given: Any, records: str = TABLES, *, owns: bool) -> tuple[Audit, ...]:
    """What an author gives as `audit`: SQL, a function, or a mapping of names to these. Raises PipelineDefinitionError unless
    runs of the writer own what they write. `records` says what functions get."""
    if given is None:
        return ()
    if not owns:
        raise PipelineDefinitionError(
            f"{where}: audit is asked before a day is replaced, so it needs on_new_run='overwrite' with by=..., or "
            "'supersede'; without them, rows are there as they come"
        )
    if not isinstance(given, Mapping):
        return (_audit(f"{where}: audit", getattr(given, "__name__", AUDIT), given, records),)
    if not given:
        raise PipelineDefinitionError(f"{where}: audit is an empty mapping; name some, or leave it out")
    for name in given:
        if not isinstance(name, str) or not name.strip():
            raise PipelineDefinitionError(f"{where}: audit has the name {name!r}; give a text")
    return tuple(_audit(f"{where}: audit {name!r}", name, one, records) for name, one in given.items())


def _audit(where: str, name: str, given: Any, records: str) -> Audit:
    if isinstance(given, str):
        check_select(given, where)
        return Audit(name, query=given)
    if not callable(given) or isinstance(given, type):
        raise PipelineDefinitionError(
            f"{where} is {given!r}; give a SELECT whose rows are faults, a function, or a mapping of names to these"
        )
    _check_function(where, given, records)
    return Audit(name, function=given)


def _check_function(where: str, function: AuditFunction, records: str) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise PipelineDefinitionError(
            f"{where}: the function returns what is wrong; it must be no generator, and not asynchronous"
        )
    try:
        inspect.signature(function).bind(None, **for_function(function, {}))
    except TypeError:
        raise PipelineDefinitionError(
            f"{where}: the function is called with the records of the day, {records}, and with params if it has a "
            f"parameter of that name; it takes {inspect.signature(function)}"
        ) from None
    except ValueError:  # some builtins have no signature
        return


# --- in words ---------------------------------------------------------------------------------------------------------


def told(rows: Sequence[Mapping[str, Any]], count: int | None = None) -> str:
    """The first rows; empty if there are none. `count` says how many there are, if that is known."""
    if not rows:
        return ""
    shown = ", ".join(_row(row) for row in rows[:SHOWN])
    if len(rows) <= SHOWN:
        return f"{_number(len(rows))}: {shown}"
    return f"{f'more than {SHOWN}' if count is None else f'{count:,}'} rows; the first are {shown}"


def _number(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"


def _row(row: Mapping[str, Any]) -> str:
    text = f"({', '.join(f'{name}={_value(value)}' for name, value in row.items())})"
    return text if len(text) <= MOST_OF_A_ROW else f"{text[:MOST_OF_A_ROW]} ...)"


def _value(value: Any) -> str:
    if value is None:
        return "null"
    return str(value) or "''"  # times of PostgreSQL are texts here
