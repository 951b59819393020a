"""Finds what a reference on a command line names: a pipeline, a scenario, or a collection of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.pipeline.days import partitioning_of
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.bundle import import_module, parse_ref
from airflow_logio.testing.simulator.authored_pipeline import pipeline_scenario
from airflow_logio.testing.simulator.plan import Scenario
from airflow_logio.testing.simulator.simulation import Simulator

Simulated = Scenario | Pipeline
"""A collection maps names to such objects, or to functions that make one when it is needed."""


def scenario_names(target: str) -> list[str]:
    """The references of all scenarios that a reference means: one for each name of a collection, otherwise itself.

    Raises `ConfigurationError` if there is no such module or object.
    """
    found = _named(target)
    return [f"{target}.{name}" for name in found] if isinstance(found, Mapping) else [target]


def load_scenario(
    name: str,
    store: str = "memory",
    params: Sequence[tuple[str, str]] = (),
    *,
    deterministic: bool = True,
    partition: str | None = None,
) -> Simulator:
    """A simulator of a pipeline or scenario by reference: ``module:attr``, ``file.py:attr``, ``file.py:collection.name``.

    `partition` names the partition of the run, of a pipeline that has them.

    `deterministic` False: it makes another result each time, whatever the scenario says (`pipeline_scenario`). Raises
    `ConfigurationError` if there is none, `PipelineDefinitionError` if it cannot be simulated.
    """
    found = _named(name)
    if isinstance(found, Pipeline):
        key = None if partition is None else partitioning_of(found.name, found.partition, partition).key_of(partition)
        found = pipeline_scenario(found.freeze(), params=dict(params), partition=key)
    elif partition is not None:
        raise ConfigurationError(f"{name} is no pipeline, so it has no partition {partition!r}: leave --partition out")
    if not isinstance(found, Scenario):
        kind = "missing" if found is None else f"a {type(found).__name__}"
        raise ConfigurationError(
            f"{name} is {kind}; the simulator runs a Pipeline or an airflow_logio.testing.Scenario"
        )
    return Simulator(found if deterministic else replace(found, deterministic=False), store=store)


def _named(name: str) -> object:
    module, _, attribute = name.rpartition(":")
    attribute, _, key = attribute.partition(".")
    ref = parse_ref(f"{module}:{attribute}" if module else name)
    found = getattr(import_module(ref), ref.attr, None)
    if not key or not isinstance(found, Mapping):
        return found
    if key not in found:
        raise ConfigurationError(f"{module}:{attribute} has no {key!r}; it has {', '.join(map(str, found))}")
    made = found[key]
    return made if isinstance(made, Simulated) else made()
