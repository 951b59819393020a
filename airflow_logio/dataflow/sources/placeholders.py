"""Paths with ``{param}`` placeholders, which run parameters fill."""

from __future__ import annotations

import os
import string
from collections.abc import Collection, Mapping
from typing import Any

from airflow_logio.dataflow.names import check_name
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError


def placeholders_of(path: object) -> frozenset[str]:
    """The parameters that a path refers to. Raises PipelineDefinitionError."""
    if not isinstance(path, str) or not path:
        raise PipelineDefinitionError(f"path is {path!r}; give a string")
    try:
        fields = [(name, spec, conversion) for _, name, spec, conversion in string.Formatter().parse(path)]
    except ValueError as error:
        raise PipelineDefinitionError(f"path {path!r}: {error}") from error
    names = set()
    for name, spec, conversion in fields:
        if name is not None:
            if spec or conversion:
                raise PipelineDefinitionError(f"path {path!r}: write {{{name}}} without format or conversion")
            names.add(check_name("parameter", name))
    return frozenset(names)


def resolved(path: str, placeholders: Collection[str], params: Mapping[str, Any]) -> str:
    """The path with its parameters, absolute: the driver that replays a read may have another working directory.

    Raises ConfigurationError if a parameter has no value.
    """
    missing = sorted(set(placeholders) - set(params))
    if missing:
        raise ConfigurationError(f"path {path!r} needs run parameter {missing[0]!r}, which has no value")
    path = path.format_map({name: str(params[name]) for name in placeholders})
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))
