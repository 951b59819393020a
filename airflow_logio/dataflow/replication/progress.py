"""Which windows wait for time to pass, at an input port."""

from __future__ import annotations

from airflow_logio.dataflow.function_operators import WindowedOperator
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.several_functions import SeveralFunctions
from airflow_logio.dataflow.windows import Window


def windows_at(operator: Operator, port: str) -> tuple[Window, ...]:
    """The windows of an operator made of functions that get what comes on the port; none of any other operator.

    Windows behind another operator are not told of progress: what it makes of an event may have other times, or none.
    """
    return operator.windows(port) if isinstance(operator, WindowedOperator | SeveralFunctions) else ()
