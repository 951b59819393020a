"""What `logio run` uses where neither its options nor the connections of this machine say otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_logio.dataflow.names import did_you_mean

Prepare = Callable[[Mapping[str, str]], str | None]
"""Takes connection name → database URL; returns what to tell the person at the terminal, None for nothing."""


@dataclass(frozen=True, slots=True)
class LocalDefaults:
    """How an example runs without options. Deployments ignore it, and it is not part of a pipeline's fingerprint."""

    params: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """Run parameter → function that makes its value; called only if the parameter is not given."""
    connections: Mapping[str, Path] = field(default_factory=dict)
    """Connection → SQLite file, or a folder where files are written; relative to the terminal's folder."""
    prepare: Prepare | None = None
    """Called before a run is started that uses any of these defaults, e.g. to load tables that the pipeline reads."""

    def flaw(self, params: Iterable[str], connections: Iterable[str]) -> str | None:
        """Why a pipeline with these parameters and connections cannot have these defaults; None if it can."""
        for what, given, known in (
            ("parameter", self.params, tuple(params)),
            ("connection", self.connections, tuple(connections)),
        ):
            for name in given:
                if name not in known:
                    hint = did_you_mean(name, known)
                    return f"local_defaults names {what} {name!r}, which the pipeline does not have.{hint}"
        for name, make in self.params.items():
            made: object = make
            if not callable(made):
                return f"local_defaults has {made!r} for parameter {name!r}: give a function that returns it"
        return None
