"""Which operators of a replicated group wait for time to pass, and which pass on how far it has come."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_logio.dataflow.function_operators import WindowedOperator
from airflow_logio.dataflow.graph import Graph
from airflow_logio.dataflow.operators import Operator, StatelessOperator
from airflow_logio.dataflow.several_functions import SeveralFunctions
from airflow_logio.dataflow.windows import Window


def windows_of(operator: Operator) -> tuple[Window, ...]:
    """The windows of an operator made of functions; none of any other."""
    return operator.windows() if isinstance(operator, WindowedOperator | SeveralFunctions) else ()


def windows_behind(
    graph: Graph, operators: Mapping[str, Operator], homes: Mapping[str, str], operator: str
) -> tuple[Window, ...]:
    """The windows that an event of `operator` reaches inside its group, through operators without state."""
    found: list[Window] = []
    todo, seen = list(graph.after(operator)), set()
    while todo:
        name = todo.pop()
        if name in seen or homes[name] != homes[operator]:
            continue
        seen.add(name)
        found += windows_of(operators[name])
        if isinstance(operators[name], StatelessOperator):
            todo += graph.after(name)
    return tuple(found)
