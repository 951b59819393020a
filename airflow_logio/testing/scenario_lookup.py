"""Finds the scenario for a name on a command line: one of this package, or a user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.bundle import import_module, parse_ref
from airflow_logio.testing.scenarios import SCENARIOS
from airflow_logio.testing.simulator.authored_pipeline import pipeline_scenario
from airflow_logio.testing.simulator.plan import Scenario
from airflow_logio.testing.simulator.simulation import Simulator

ALL = "all"


def scenario_names(target: str) -> list[str]:
    """The scenarios that a name on the command line means."""
    return list(SCENARIOS) if target == ALL else [target]


def load_scenario(
    name: str, store: str = "memory", params: Sequence[tuple[str, str]] = (), *, deterministic: bool = True
) -> Simulator:
    """A simulator of a scenario by name, or of a pipeline or scenario by reference (``module:attr``, ``file.py:attr``).

    `deterministic` False: it makes another result each time, whatever the scenario says (`pipeline_scenario`). Raises
    `ConfigurationError` if there is none, `PipelineDefinitionError` if it cannot be simulated.
    """
    scenario = _scenario(name, params)
    return Simulator(scenario if deterministic else replace(scenario, deterministic=False), store=store)


def _scenario(name: str, params: Sequence[tuple[str, str]]) -> Scenario:
    if name in SCENARIOS:
        return SCENARIOS[name]()
    if ":" not in name:
        raise ConfigurationError(
            f"there is no scenario {name!r}; there are {', '.join(SCENARIOS)}, and `all`. Name a pipeline of your own "
            "by module:attr or file.py:attr"
        )
    ref = parse_ref(name)
    found = getattr(import_module(ref), ref.attr, None)
    if isinstance(found, Scenario):
        return found
    if isinstance(found, Pipeline):
        return pipeline_scenario(found.freeze(), params=dict(params))
    kind = "missing" if found is None else f"a {type(found).__name__}"
    raise ConfigurationError(f"{name} is {kind}; the simulator runs a Pipeline or an airflow_logio.testing.Scenario")
