"""Arguments of tasks in a DAG file that nothing takes, or that have the wrong form: named, with what was probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import wraps
from typing import Any, TypeVar

from airflow_logio.dataflow.names import did_you_mean, quoted
from airflow_logio.errors import PipelineDefinitionError

_Task = TypeVar("_Task", bound=type)


def with_told_arguments(task: _Task) -> _Task:
    """An operator, sensor or group of tasks that says what is wrong with an argument; Airflow says only that something is.

    The class stays the same object. Its constructor raises TypeError, as that of Airflow does.
    """
    original = task.__init__  # type: ignore[misc]

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except TypeError as error:
            if flaw := _flaw(type(self), kwargs):
                raise TypeError(flaw) from error
            raise

    # Airflow draws the edges to the tasks whose results are arguments while the innermost constructor of the class runs, and
    # knows it by this.
    __init__.__wrapped__ = getattr(original, "__wrapped__", original)
    task.__init__ = __init__  # type: ignore[misc]
    return task


def _flaw(task: type, given: dict[str, Any]) -> str | None:
    """Which of the arguments none of its classes has; None if each is known to one of them."""
    known = {name for one in task.__mro__ if "__init__" in vars(one) for name in inspect.signature(one).parameters}
    own = [
        name
        for name, one in inspect.signature(task).parameters.items()
        if name != "self" and one.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    for name in given:
        if name not in known:
            which = f" (task_id: {given['task_id']})" if "task_id" in given else ""
            return (
                f"{task.__name__}{which} has no argument {name!r}.{did_you_mean(name, own)} It has {quoted(own)}, and those "
                f"of Airflow's {task.__bases__[0].__name__}"
            )
    return None


def mapping_of(name: str, given: object) -> dict[str, Any]:
    """An argument that is a mapping; nothing for None. Raises PipelineDefinitionError for anything else.

    One template for all of it is refused, too: Airflow fills it with text, not with a mapping.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    came = "the result of another task" if not isinstance(given, str) and hasattr(given, "operator") else repr(given)
    raise PipelineDefinitionError(
        f"{name} is {came}; give a mapping, each value of which may be a template: {name}={{'name': '{{{{ params.name }}}}'}}"
    )
