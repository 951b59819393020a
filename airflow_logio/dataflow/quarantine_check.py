"""Where an Input Set may be set aside: only where order does not matter, there and behind it.

A quarantined Input Set is generated late, when a person has fixed its cause: perhaps after everything else, perhaps
after the stream had ended. The result of every receiver must not depend on when its events come.
"""

from __future__ import annotations

from airflow_logio.dataflow.definition import Definition
from airflow_logio.dataflow.function_operators import WindowedOperator
from airflow_logio.dataflow.graph import Graph
from airflow_logio.dataflow.names import did_you_mean, quoted
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.several_functions import SeveralFunctions

ON_ERROR = ("fail", "quarantine")


def check_on_error(definition: Definition, name: str, operator: Operator) -> None:
    """Raises PipelineDefinitionError for an unknown choice."""
    if operator.on_error not in ON_ERROR:
        hint = did_you_mean(operator.on_error, ON_ERROR)
        definition.refuse(f"operator {name!r}: on_error={operator.on_error!r} is none of {quoted(ON_ERROR)}.{hint}")


def check_quarantines(definition: Definition, graph: Graph) -> None:
    """Raises PipelineDefinitionError for a quarantine whose late events could change what is made of the others."""
    for name, operator in definition.operators.items():
        if operator.on_error != "quarantine":
            continue
        for other in (name, *_behind(graph, name)):
            if other != name and isinstance(definition.operators[other], WindowedOperator | SeveralFunctions):
                definition.refuse(
                    f"operator {name!r} sets Input Sets aside on errors, but {other!r} behind it collects events in windows, "
                    "which close at the end of the stream at the latest: a retried Input Set would come too late. Let "
                    f"{name!r} fail (on_error='fail'), or put it behind the window"
                )
            if not definition.operators[other].order_insensitive:
                where = "which is stateful" if other == name else f"but {other!r} behind it is stateful"
                definition.refuse(
                    f"operator {name!r} sets Input Sets aside on errors, {where} and does not say that the order of its "
                    "events does not matter: a retried Input Set comes late, even after the end of the stream. Declare "
                    f"{other!r} order_insensitive=True if that is so, or let {name!r} fail (on_error='fail')"
                )


def _behind(graph: Graph, operator: str) -> list[str]:
    found: list[str] = []
    todo = [operator]
    while todo:
        for follower in graph.after(todo.pop()):
            if follower not in found:
                found.append(follower)
                todo.append(follower)
    return found
