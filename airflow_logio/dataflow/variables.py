"""Environment variables that a pipeline names, so that its drivers get them. The names alone are part of a pipeline."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from airflow_logio.errors import ConfigurationError, PipelineDefinitionError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFUSED = {
    "AIRFLOW": "Airflow's own settings hold its secrets. Name a connection, or a variable of your own",
    "LOGIO_": "variables of that prefix are settings of this provider",
}


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once. Raises PipelineDefinitionError for what is no name of a variable, and for those of Airflow."""
    if isinstance(names, str):
        raise PipelineDefinitionError(f"environment is the single string {names!r}: write [{names!r}]")
    given: tuple[object, ...] = tuple(names)
    for name in given:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise PipelineDefinitionError(
                "environment has an entry that is no name of a variable; give names, never values"
            )
        for prefix, reason in _REFUSED.items():
            if name.upper().startswith(prefix):
                raise PipelineDefinitionError(f"environment names {name!r}: {reason}")
    return tuple(dict.fromkeys(map(str, given)))


def values(pipeline: str, names: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """The values of the variables. Raises ConfigurationError for one that is not set; it names no value."""
    missing = [name for name in names if name not in given]
    if missing:
        raise ConfigurationError(
            f"pipeline {pipeline!r} names environment variable {missing[0]!r}, which is not set in the process that launches "
            "its drivers: set it there (for `logio` in the shell, for Airflow on the workers and wherever a supervisor runs)"
        )
    return {name: given[name] for name in names}
