"""How the arguments of a builder method become an operator and its connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_logio.dataflow.definition import Definition
from airflow_logio.dataflow.frame_operators import FrameFunctionOperator
from airflow_logio.dataflow.function_operators import FunctionOperator, WindowedOperator, windowed
from airflow_logio.dataflow.functions import GenerativeFunction, StatelessFunction, name_of
from airflow_logio.dataflow.operator_groups import Group
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.several_functions import SeveralFunctions
from airflow_logio.dataflow.validation import check_operator
from airflow_logio.dataflow.windows import Window
from airflow_logio.protocol.values import ExecutionMode, Port


def made(definition: Definition, name: str, function: object, window: object) -> object:
    """The operator of a decorated function and its window, or of several functions; anything else unchanged, for
    `accepted`."""
    if isinstance(function, Mapping):
        each = {part: _one_of_several(definition, f"{name}.{part}", one, window) for part, one in function.items()}
        return SeveralFunctions(each)
    if isinstance(function, GenerativeFunction):
        return _windowed(definition, name, function, window)
    if window is not None:
        definition.refuse(f"operator {name!r} has a window, but {function!r} is no @generate function")
    if isinstance(function, StatelessFunction):
        in_spark = function.mode is ExecutionMode.DATAFRAME
        return FrameFunctionOperator(function) if in_spark else FunctionOperator(function)
    if callable(function) and not isinstance(function, Operator | type):
        definition.refuse(
            f"operator {name!r} is the plain function {name_of(function)!r}; decorate it: @stateless or @generate(...)"
        )
    return function


def _windowed(definition: Definition, name: str, function: GenerativeFunction, window: object) -> WindowedOperator:
    if not isinstance(window, Window):
        windows = "EveryEvents(...), Tumbling(...) or Synchronized(...)"
        definition.refuse(f"operator {name!r} generates from Input Sets: give window={windows}")
    return windowed(function, window)


def _one_of_several(definition: Definition, name: str, given: object, window: object) -> WindowedOperator:
    """`given` is a function, for the window of all, or (function, window of its own)."""
    function, own = given if isinstance(given, tuple) and len(given) == 2 else (given, window)
    if not isinstance(function, GenerativeFunction):
        definition.refuse(
            f"{name!r} is one of several functions of an operator, and no @generate function: {function!r}"
        )
    return _windowed(definition, name, function, own)


def accepted(definition: Definition, name: str, operator: object, role: type[Operator]) -> Operator:
    """`operator`, if it is one, plays the role and can be added under that name; raises PipelineDefinitionError."""
    if not isinstance(operator, role):
        given = (
            f"the class {operator.__name__}: write {operator.__name__}(...)" if isinstance(operator, type) else operator
        )
        definition.refuse(f"{name!r} must be a {role.__name__}, not {given}")
    check_operator(definition, name, operator)
    return operator


def fed(
    definition: Definition, name: str, operator: Operator, upstreams: Sequence[str], inputs: Mapping[str, str]
) -> dict[Port, Port]:
    """Receiver → sender ports; resolved before anything is added, so that a refused call changes nothing."""
    for port in inputs:
        if port not in operator.inputs:
            definition.refuse_port(f"{name}.{port}", "upstream given for port", operator.inputs)
    free = [port for port in operator.inputs if port not in inputs]
    if len(upstreams) > len(free):
        definition.refuse(
            f"operator {name!r} gets {len(upstreams)} upstreams for {len(free)} input port(s): one input port has one "
            "sender. Give the operator one input port for each"
        )
    named = [*zip(free, upstreams, strict=False), *inputs.items()]
    return {Port(name, port): definition.output(upstream, f"operator {name!r} reads port") for port, upstream in named}


def check_group(definition: Definition, group: Group) -> None:
    """Its members are known and in no other group; raises PipelineDefinitionError."""
    name, members = group.name, group.operators
    if name in definition.groups:
        definition.refuse(f"group name {name!r} is used twice")
    owners = {member: other.name for other in definition.groups.values() for member in other.operators}
    for member in members:
        definition.operator_named(member, f"group {name!r} contains")
        if member in owners:
            definition.refuse(
                f"operator {member!r} is in group {owners[member]!r} and again in group {name!r}; it runs in one place"
            )
        owners[member] = name
    if group.jobs_at_once is not None and all(
        definition.operators[m].mode is not ExecutionMode.DATAFRAME for m in members
    ):
        definition.refuse(
            f"group {name!r} has jobs_at_once, and no operator of mode 'dataframe', whose events could be evaluated side by "
            "side; leave it out"
        )
