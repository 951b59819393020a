"""Which input columns a column of an output port is made from, where the author says so (ADR-101)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from airflow_logio.dataflow.names import check_column, did_you_mean
from airflow_logio.dataflow.operators import Operator, SourceOperator
from airflow_logio.protocol.record_rules import Dependence
from airflow_logio.protocol.values import Port


@dataclass(frozen=True, slots=True)
class InputColumn:
    """A column of an input port, or of a declared read."""

    place: str
    """Name of the input port or of the read."""
    column: str


MadeFrom = Mapping[str, tuple[InputColumn, ...]]
"""Column of an output port → what it is made from."""


def of_dependence(dependence: Dependence) -> MadeFrom:
    """What attribute dependencies say of columns: one with the same values is made from the other."""
    found: dict[str, list[InputColumn]] = {}
    for place, columns in (dependence.columns or {}).items():
        for name, column in columns.items():
            found.setdefault(name, []).append(InputColumn(place, column))
    return {name: tuple(columns) for name, columns in found.items()}


def declared(
    port: Port, operator: Operator, columns: Mapping[str, str | Iterable[str]], refuse: Callable[[str], NoReturn]
) -> MadeFrom:
    """The declaration of an author, checked; `refuse` gets the sentence of an error."""
    if isinstance(operator, SourceOperator):
        refuse(f"column lineage of {str(port)!r}: {port.operator!r} is a source, which has no input ports")
    if not isinstance(columns, Mapping) or not columns:
        refuse(
            f"column lineage of {str(port)!r} is {columns!r}; give column → input columns, e.g. "
            '{"revenue": "sales_value"}'
        )
    return {check_column(name): _made_from(port, operator, given, refuse) for name, given in columns.items()}


def _made_from(
    port: Port,
    operator: Operator,
    given: str | Iterable[str],
    refuse: Callable[[str], NoReturn],
) -> tuple[InputColumn, ...]:
    places = (*operator.inputs, *getattr(operator, "reads", {}))
    found = []
    for one in [given] if isinstance(given, str) else given:
        place, dot, column = one.rpartition(".")
        if not dot:
            place = places[0]
            if len(operator.inputs) > 1:
                refuse(
                    f"column lineage of {str(port)!r} names column {one!r}, and {port.operator!r} has several input ports: "
                    f"write '{place}.{one}'"
                )
        if place not in places:
            refuse(
                f"column lineage of {str(port)!r} names {one!r}, but {port.operator!r} has no input port and no declared "
                f"read {place!r}.{did_you_mean(place, places)}"
            )
        found.append(InputColumn(place, check_column(column)))
    return tuple(dict.fromkeys(found))
