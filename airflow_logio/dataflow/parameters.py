"""Run parameters: declared with a type, checked before a run begins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from airflow_logio.dataflow.names import did_you_mean, quoted
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError

TYPES: tuple[type, ...] = (str, int, float, bool)
_WORDS = {"true": True, "false": False}


def check_type(name: str, kind: object) -> type:
    """Return `kind` if a parameter may have it; raises PipelineDefinitionError."""
    if isinstance(kind, type) and kind in TYPES:
        return kind
    raise PipelineDefinitionError(f"parameter {name!r} has type {kind!r}; use str, int, float or bool")


PARAMS = "params"
"""The parameter of an author's function that gets the run's parameters, a read-only mapping."""


def for_function(function: Callable[..., Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name for a function that may take ``params``."""
    try:
        named = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some builtins have none
        return {}
    return {PARAMS: params} if PARAMS in named else {}


def unknown_param(pipeline: str, declared: Mapping[str, type], name: str) -> str:
    """The sentence for a parameter that there is not."""
    only = f", only {quoted(tuple(declared))}" if declared else ": it has none"
    return f"pipeline {pipeline!r} has no parameter {name!r}{only}.{did_you_mean(name, declared)}"


def needed_param(pipeline: str, declared: Mapping[str, type], name: str) -> str:
    """The sentence for a parameter without a value."""
    return (
        f"pipeline {pipeline!r} needs parameter {name!r} ({declared[name].__name__}), which has no value: give it one, in a "
        f"terminal --param {name}=VALUE, in a DAG params={{{name!r}: VALUE}}"
    )


def check_params(pipeline: str, declared: Mapping[str, type], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given values by declaration order, text from a terminal turned into the declared type.

    Raises ConfigurationError for a parameter that is missing, unknown, or of another type.
    """
    for name in given:
        if name not in declared:
            raise ConfigurationError(unknown_param(pipeline, declared, name))
    for name in declared:
        if given.get(name) is None:
            raise ConfigurationError(needed_param(pipeline, declared, name))
    return {name: _value(pipeline, name, kind, given[name]) for name, kind in declared.items()}


def _value(pipeline: str, name: str, kind: type, value: Any) -> Any:
    if type(value) is kind:
        return value
    try:
        if isinstance(value, str):
            return _WORDS[value.strip().lower()] if kind is bool else kind(value)
        if kind is float and type(value) is int:
            return float(value)
    except (ValueError, KeyError):
        pass
    raise ConfigurationError(f"parameter {name!r} of pipeline {pipeline!r} is {value!r}; it must be {kind.__name__}")
