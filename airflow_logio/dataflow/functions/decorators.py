"""From a function to an operator: the decorators `stateless` and `generate`.

Both return the function wrapped in a description of how it is to be used; calling the result calls the function, so
that authors test their functions without a pipeline. What a function asks for is read from its signature once, when it
is decorated: a parameter that nothing can fill is an error at import, not in a driver.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from airflow_logio.dataflow.dependencies import Dependencies, by_port
from airflow_logio.dataflow.names import check_columns, check_name, did_you_mean, quoted
from airflow_logio.dataflow.parameters import PARAMS
from airflow_logio.dataflow.reads import DeclaredRead
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.protocol.record_rules import Dependence
from airflow_logio.protocol.values import ExecutionMode

Function = Callable[..., Any]

ONE_INPUT = ("in",)
ONE_OUTPUT = ("out",)

FACTS = ("inset_id", "window_start", "state", "event_ids", PARAMS)
"""What a ``driver``-mode generative function may ask for by parameter name, beside its declared reads."""
SPARK_FACTS = ("inset_id", "window_start", PARAMS)
"""The same for one that gets a DataFrame of one Input Set."""


@dataclass(frozen=True)
class StatelessFunction:
    """A function of one event: Arrow table in; a table, a dict output port → table, or None out. See `stateless`."""

    fn: Function
    inputs: tuple[str, ...] = ("in",)
    outputs: tuple[str, ...] = ("out",)
    columns: tuple[str, ...] = ()
    state_version: int = 1
    asks: tuple[str, ...] = ()
    on_error: str = "fail"
    mode: ExecutionMode = ExecutionMode.DRIVER
    materialize_input: bool = False
    depends: Mapping[str, Dependence] = field(default_factory=dict)
    """By output port."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


@dataclass(frozen=True)
class GenerativeFunction:
    """The Generation phase of a stateful operator as a function; a window supplies the other phases. See `generate`."""

    fn: Function
    mode: ExecutionMode = ExecutionMode.DRIVER
    reads: Mapping[str, DeclaredRead] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    accumulate: Function | None = None
    finish: Function | None = None
    inputs: tuple[str, ...] = ONE_INPUT
    outputs: tuple[str, ...] = ONE_OUTPUT
    state_version: int = 1
    asks: tuple[str, ...] = ()
    on_error: str = "fail"
    order_insensitive: bool = False
    depends: Mapping[str, Dependence] = field(default_factory=dict)
    """By output port."""
    many: bool = False
    """It gets many Input Sets in one plan, which column ``inset_id`` tells apart."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


_Wrapped = TypeVar("_Wrapped", StatelessFunction, GenerativeFunction)


@overload
def stateless(fn: Function, /) -> StatelessFunction: ...
@overload
def stateless(
    *,
    mode: str = ...,
    inputs: Iterable[str] = ...,
    outputs: Iterable[str] = ...,
    columns: Iterable[str] | None = ...,
    state_version: int = ...,
    on_error: str = ...,
    materialize_input: bool = ...,
    depends: Dependencies | None = ...,
) -> Callable[[Function], StatelessFunction]: ...
def stateless(
    fn: Function | None = None,
    /,
    *,
    mode: str = "driver",
    inputs: Iterable[str] = ("in",),
    outputs: Iterable[str] = ("out",),
    columns: Iterable[str] | None = None,
    state_version: int = 1,
    on_error: str = "fail",
    materialize_input: bool = False,
    depends: Dependencies | None = None,
) -> StatelessFunction | Callable[[Function], StatelessFunction]:
    """Decorator of a deterministic function of each event: ``fn(records)`` returns a table, ``{output port: table}``,
    or None.

    :param fn: the function, if the decorator is used without arguments. It gets the records of one event, and by name
        what its parameters ask for: ``port`` the input port, ``params`` the run's parameters (a mapping), in mode
        ``driver`` also ``event_ids``, a list with the number of the event on the sender's port, as `logio lineage`
        takes it. A parameter that nothing fills is refused.
    :param mode: ``"driver"`` (the default): an Arrow table comes, and an Arrow table or a DataFrame of pandas or polars
        is returned. ``"dataframe"``: a DataFrame of Spark comes, and one is returned, or ``{output port: DataFrame}``
        with every port; the records stay on the executors.
    :param inputs: names of the input ports; each event of any of them is one call. By default ``in``.
    :param outputs: names of the output ports; by default ``out``. In mode ``driver`` an output without records is not
        sent; in mode ``dataframe`` each event makes one event per port, also without records.
    :param columns: the input columns that it needs; by default all.
    :param state_version: a number to raise when a run that was begun before must not continue with this function.
    :param on_error: ``"fail"`` (the default) fails the group when the function raises; ``"quarantine"`` sets the event
        aside with the error, and processes the others (`logio status` shows it, `logio retry` puts it back). In mode
        ``dataframe`` only ``"fail"``.
    :param materialize_input: in mode ``dataframe``, put the records into files before the function is called, so that
        it may use actions (``count()``, ``collect()``). Without, it is evaluated lazily together with its neighbours,
        perhaps more than once: an action might see other records than those of the result, and is refused where Spark
        tells.
    :param depends: how output records depend on input records, for all output ports or by port: ``from_one()`` for a
        filter, which hands columns on under their names, ``from_one({"shop": "store_id"})`` for a renaming. Only
        lineage of records uses it.

    The decorated function can still be called, so test it as it is. Raises PipelineDefinitionError.
    """

    def wrap(function: Function) -> StatelessFunction:
        where, named, outs = _stateless_mode(mode, function), _ports(inputs), _ports(outputs)
        facts = ("port", PARAMS) if where is ExecutionMode.DATAFRAME else ("port", "event_ids", PARAMS)
        wrapped = StatelessFunction(
            function,
            named,
            outs,
            check_columns(columns),
            state_version,
            _asks(function, facts, ()),
            on_error,
            where,
            _materialize_input(materialize_input, where, function),
            by_port(depends, named, outs, f"function {name_of(function)!r}", has_windows=False),
        )
        return _dressed(wrapped, function)

    return wrap if fn is None else wrap(fn)


@overload
def generate(fn: Function, /) -> GenerativeFunction: ...
@overload
def generate(
    *,
    mode: str = ...,
    reads: Mapping[str, DeclaredRead] | None = ...,
    columns: Iterable[str] | None = ...,
    accumulate: Function | None = ...,
    finish: Function | None = ...,
    inputs: Iterable[str] = ...,
    outputs: Iterable[str] = ...,
    state_version: int = ...,
    on_error: str = ...,
    order_insensitive: bool = ...,
    depends: Dependencies | None = ...,
    many: bool = ...,
) -> Callable[[Function], GenerativeFunction]: ...
def generate(
    fn: Function | None = None,
    /,
    *,
    mode: str = "driver",
    reads: Mapping[str, DeclaredRead] | None = None,
    columns: Iterable[str] | None = None,
    accumulate: Function | None = None,
    finish: Function | None = None,
    inputs: Iterable[str] = ONE_INPUT,
    outputs: Iterable[str] = ONE_OUTPUT,
    state_version: int = 1,
    on_error: str = "fail",
    order_insensitive: bool = False,
    depends: Dependencies | None = None,
    many: bool = False,
) -> GenerativeFunction | Callable[[Function], GenerativeFunction]:
    """Decorator of the generation of an Input Set: ``fn(records)`` makes of all its records its Output Set.

    Add it with a window: ``pipeline.operator("totals", fn, upstream, window=EveryEvents(100))``.

    :param fn: the function, if the decorator is used without arguments. It gets the records, and by name what its
        parameters ask for, as said for each mode.
    :param mode: ``"driver"`` (the default): an Input Set as an Arrow table. ``"executors"``: an Input Set as a
        DataFrame of Spark, which the driver ships to executors. ``"dataframe"``: the same for records that do not fit
        through a driver, because executors read and write them.
    :param reads: name → `TableRead` or `FunctionRead`: what else it needs from outside. It must have a parameter of
        each name.
    :param columns: the input columns that it needs, so that less is held and shipped; by default all. Not with `inputs`.
    :param accumulate: ``accumulate(held or None, table) -> held`` makes the event state of an Input Set, in place of
        the list of its tables, so that it stays small: `Sums`, or a pure function. Mode ``driver`` only, and
        not with `inputs`.
    :param finish: ``finish(held)`` makes of that what `fn` gets; by default the attribute ``finish`` of `accumulate`,
        else `held` as it is.
    :param inputs: names of the input ports, if there are several: then ``fn(clicks, views, ...)`` gets a table of each,
        by name. One to which nothing has come has no rows (and no columns, if no event of that port was ever seen). Not
        in mode ``executors``.
    :param outputs: names of the output ports; by default ``out``. Several only in mode ``driver``. An output without
        records is not sent.
    :param state_version: a number to raise when a run that was begun before must not continue with this function.
    :param on_error: ``"fail"`` (the default) fails the group when the function raises; ``"quarantine"`` sets the Input
        Set aside with the error, and generates the others. This needs `order_insensitive`. An error of `accumulate` or
        of the window fails the group all the same: it comes before the Input Set is complete.
    :param order_insensitive: your word that it does not matter when an Output Set comes.
    :param many: in modes ``executors`` and ``dataframe``: it gets many Input Sets in one plan. See below.
    :param depends: how output records depend on those of the Input Set, so that lineage leads from one to the other
        (Section 7.3): output column → input column, ``{"store_id": "store_id", "hour": window_start}``, with `inputs`
        ``"clicks.store_id"``. Alone it means: made from some of the records with the same values. `from_every`: from
        every one of them, as in a grouping; so also with `Sums`, where all columns of its `by` are named. `from_one`:
        from one of them. With several `outputs`, one for all or one by port.

    In mode ``driver`` it returns None, a table (of Arrow, pandas or polars), ``{port: table}`` or ``{port: [table,
    ...]}``; or an iterable of ``(port, table)``, which says in which order events of several ports are sent. Each table
    is an event. It may ask for ``inset_id`` (str), ``window_start`` (windows of time only: a datetime in UTC without
    zone, or with the zone that `Tumbling` names), ``state`` (the global state, which is then logged at the trigger),
    ``params`` (the run's parameters), ``event_ids`` (the numbers of its events on the sender's port, in order: a list, or
    with `inputs` a list per port) and each declared read (an Arrow table).

    In modes ``executors`` and ``dataframe`` it gets one Input Set as well, as a DataFrame, and returns a DataFrame, as
    in any script. It may ask for ``inset_id`` (str), ``window_start`` (datetime with a zone, for ``F.lit``),
    ``params`` and each declared read (a DataFrame). Times are cast to dates and texts in UTC, unless
    ``Pipeline(zone=...)`` says another zone. What it gets in mode ``dataframe`` does not change any more, so
    that actions are allowed. Several Input Sets share a Spark job as a union of their plans.

    With ``many=True`` it gets many Input Sets in one plan, which is cheaper where they are small: the records have
    column ``inset_id`` (and ``window_start``), and the DataFrame that it returns keeps ``inset_id``. Every aggregate,
    window function, deduplication and join must have it among its keys, or the group fails; `limit`, random values and
    functions of partitions are refused. Now and then one Input Set is generated alone as well, and compared.

    The decorated function can still be called, so test it as it is. Raises PipelineDefinitionError.
    """

    def wrap(function: Function) -> GenerativeFunction:
        where = _mode(mode)
        named, ports, outs = dict(reads or {}), _ports(inputs), _ports(outputs)
        if not ports:
            raise PipelineDefinitionError(
                f"function {name_of(function)!r} has inputs=(): name its input ports, or leave it out"
            )
        facts = FACTS if where is ExecutionMode.DRIVER else (PARAMS,) if many else SPARK_FACTS
        wrapped = GenerativeFunction(
            function,
            where,
            named,
            check_columns(columns),
            accumulate,
            finish or getattr(accumulate, "finish", None),
            ports,
            outs,
            state_version,
            _asks(function, facts, tuple(named), () if ports == ONE_INPUT else ports),
            on_error,
            order_insensitive,
            by_port(depends, ports, outs, f"function {name_of(function)!r}", has_windows=True),
            bool(many),
        )
        _check_generative(wrapped)
        return _dressed(wrapped, function)

    return wrap if fn is None else wrap(fn)


def name_of(function: Function) -> str:
    """The function's name for messages."""
    return str(getattr(function, "__name__", type(function).__name__))


def _dressed(wrapped: _Wrapped, function: Function) -> _Wrapped:
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        object.__setattr__(wrapped, attribute, getattr(function, attribute, None))
    object.__setattr__(wrapped, "__wrapped__", function)  # inspect.signature() and source links of documentation
    return wrapped


def _ports(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise PipelineDefinitionError(f"ports is the single string {names!r}: write ({names!r},)")
    return tuple(check_name("port", name) for name in names)


def _mode(mode: str) -> ExecutionMode:
    try:
        return ExecutionMode(mode)
    except ValueError:
        modes = [str(known) for known in ExecutionMode]
        raise PipelineDefinitionError(
            f"mode {mode!r} is not one of {quoted(modes)}.{did_you_mean(mode, modes)}"
        ) from None


def _stateless_mode(mode: str, function: Function) -> ExecutionMode:
    where = _mode(mode)
    if where is ExecutionMode.EXECUTORS:
        raise PipelineDefinitionError(
            f"function {name_of(function)!r} is stateless and has mode 'executors', which is for the Input Sets of a window. "
            "Use mode='dataframe', or the default mode 'driver'"
        )
    return where


def _materialize_input(wanted: bool, where: ExecutionMode, function: Function) -> bool:
    if wanted and where is not ExecutionMode.DATAFRAME:
        raise PipelineDefinitionError(
            f"function {name_of(function)!r} has materialize_input=True and mode {str(where)!r}, whose "
            "records are in memory: it is for mode='dataframe'; leave it out"
        )
    return bool(wanted)


def _asks(
    function: Function, facts: tuple[str, ...], reads: tuple[str, ...], ports: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The parameters that are facts or declared reads; every read, and every port of `ports`, must be asked for.

    Without `ports`, the first parameter gets the records of the only port.
    """
    name = name_of(function)
    parameters = list(inspect.signature(function).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not ports:
        if not parameters or parameters[0].kind not in positional:
            raise PipelineDefinitionError(f"function {name!r} needs a first parameter for the records")
        parameters = parameters[1:]
    known = (*ports, *reads, *facts)
    asked = tuple(p.name for p in parameters if p.default is p.empty or p.name in known)
    for parameter in asked:
        if parameter not in known:
            records = "" if ports else "beside the records "
            raise PipelineDefinitionError(
                f"function {name!r} takes {parameter!r}, which nothing fills; {records}it may take "
                f"{quoted(known)}.{did_you_mean(parameter, known)}{_about_port(parameter, ports, facts)}"
            )
    for kind, wanted in (("read", reads), ("input port", ports)):
        for one in wanted:
            if one not in asked:
                raise PipelineDefinitionError(
                    f"function {name!r} declares the {kind} {one!r} but has no such parameter"
                )
    return tuple(parameter for parameter in asked if parameter not in ports)


def _about_port(parameter: str, ports: tuple[str, ...], facts: tuple[str, ...]) -> str:
    """What to do about parameters that a function of one event would have, in one of an Input Set."""
    if ports:
        return f" With inputs={list(ports)} it gets a table of each port, by its name: def f({', '.join(ports)})"
    if parameter == "port" and "port" not in facts:
        return (
            " `port` is for @stateless functions, which are called for each event; name the ports, "
            "@generate(inputs=('a', 'b')) def f(a, b), to get a table of each"
        )
    return ""


def _check_generative(function: GenerativeFunction) -> None:
    name = name_of(function.fn)
    for read, declared in function.reads.items():
        if read in FACTS or not isinstance(declared, DeclaredRead):
            raise PipelineDefinitionError(
                f"function {name!r}: read {read!r} must be a TableRead or FunctionRead, and no word of {FACTS}"
            )
        if function.columns and declared.key is not None and declared.key not in function.columns:
            raise PipelineDefinitionError(
                f"function {name!r}: read {read!r} is restricted by key {declared.key!r}, "
                f"which is not among the columns {function.columns} that the function needs"
            )
    if function.inputs != ONE_INPUT:
        _check_inputs(function)
    if function.finish is not None and function.accumulate is None:
        raise PipelineDefinitionError(f"function {name!r} has finish= without accumulate=")
    if function.many and function.mode is ExecutionMode.DRIVER:
        raise PipelineDefinitionError(
            f"function {name!r} has many=True and mode 'driver', in which each Input Set is a call of its own: many=True is "
            "for modes 'executors' and 'dataframe'; leave it out"
        )
    if function.mode is not ExecutionMode.DRIVER and (function.accumulate is not None or len(function.outputs) != 1):
        raise PipelineDefinitionError(
            f"function {name!r}: in mode {str(function.mode)!r} Spark gets the records themselves (no accumulate=), "
            "and returns one DataFrame (one output port)"
        )


def _check_inputs(function: GenerativeFunction) -> None:
    name, ports = name_of(function.fn), function.inputs
    for port in ports:
        if port in FACTS or port in function.reads or ports.count(port) > 1:
            raise PipelineDefinitionError(
                f"function {name!r}: the parameter {port!r} would have two meanings; rename that input port"
            )
    alone = {
        "mode='executors'": function.mode is ExecutionMode.EXECUTORS,
        "accumulate=": function.accumulate is not None,
        "columns=": bool(function.columns),
    }
    for what, given in alone.items():
        if given:
            raise PipelineDefinitionError(
                f"function {name!r} has inputs={list(ports)}, so it gets a table of each port; {what} is for the one table "
                "of a function without inputs=. Derive from StatefulOperator, or do that in an operator before this one"
            )
