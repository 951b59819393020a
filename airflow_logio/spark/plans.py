"""What Spark says of the plan of a DataFrame, however it is reached."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_logio.spark.task_slots import is_remote

_ANALYZED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)(?:\n== Optimized Logical Plan ==|\Z)", re.DOTALL)
_UNDETERMINED = re.compile(
    r"\b(rand|randn|random|randstr|uniform|uuid|shuffle|monotonically_increasing_id|spark_partition_id|input_file_name"
    r"|input_file_block_\w+|java_method|reflect|try_reflect)\(",
    re.IGNORECASE,
)
"""What Spark's own plans call not deterministic. A Connect server only shows its plans, so they are found by name: a text
in a query that reads the same is taken for one."""
_FUNCTIONS = ("CommonInlineUserDefinedFunction", "CommonInlineUserDefinedTableFunction")
_FIELDS = "spark.sql.debug.maxToStringFields"
"""Of a longer list, Spark prints the first ones."""
_MOST_FIELDS = "2147483647"


def analyzed(frame: Any) -> tuple[str, bool]:
    """The analyzed plan of a DataFrame as Spark prints it, and whether Spark takes it for deterministic.

    What a Python function returns Spark takes for determined by its arguments, unless its author says `asNondeterministic`.
    """
    with _whole_plans(frame.sparkSession):
        if not is_remote(frame):
            plan = frame._jdf.queryExecution().analyzed()
            return str(plan.toString()), bool(plan.deterministic())
        said = str(frame._explain_string(extended=True))
    found = _ANALYZED.search(said)
    text = found[1].partition("\n")[2] if found else said  # behind a line with the names of all columns
    return text, _UNDETERMINED.search(text) is None and _all_deterministic(
        frame._plan.to_proto(frame.sparkSession.client)
    )


@contextmanager
def _whole_plans(session: Any) -> Iterator[None]:
    before = session.conf.get(_FIELDS)
    session.conf.set(_FIELDS, _MOST_FIELDS)
    try:
        yield
    finally:
        session.conf.set(_FIELDS, before)


def _all_deterministic(message: Any) -> bool:
    """Whether no Python function in a plan, as it is sent, was declared otherwise."""
    if message.DESCRIPTOR.name in _FUNCTIONS and not message.deterministic:
        return False
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        if isinstance(value, dict) or hasattr(value, "items"):
            inner = list(value.values())
        else:
            inner = list(value) if hasattr(value, "__len__") else [value]
        if not all(_all_deterministic(one) for one in inner if hasattr(one, "DESCRIPTOR")):
            return False
    return True
