"""The examples of docs/reference.md are what Airflow accepts, and its defaults those of the code."""

from __future__ import annotations

import ast
import importlib
import inspect
import runpy
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG
from airflow.sdk.module_loading import import_string
from airflow.serialization.serialized_objects import DagSerialization

from airflow_logio.triggers.base import PlainTrigger
from tests.unit.airflow import reference_examples as examples

REFERENCE = runpy.run_path(str(Path(__file__).parents[3] / ".ci" / "reference"))
ENTRIES = [one for found in REFERENCE["chapters"]().values() for one in found]
DAGS = [value for value in vars(examples).values() if isinstance(value, DAG)]
TRIGGERS = [value for value in vars(examples).values() if isinstance(value, PlainTrigger)]


@pytest.mark.parametrize("dag", DAGS, ids=lambda dag: dag.dag_id)
def test_a_dag_of_the_examples_is_stored_as_airflow_stores_it(dag: DAG) -> None:
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert set(stored.task_dict) == set(dag.task_dict) != set()


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: type(trigger).__name__)
def test_a_trigger_of_the_examples_is_the_same_in_another_process(trigger: PlainTrigger) -> None:
    path, arguments = trigger.serialize()
    assert import_string(path)(**arguments).serialize() == (path, arguments)


def test_the_page_has_all_of_them() -> None:
    """Airflow's own page of a provider has them by module; ours by name."""
    names = {one.name for one in ENTRIES}
    assert {type(trigger).__name__ for trigger in TRIGGERS} == {name for name in names if name.endswith("Trigger")}
    assert len(DAGS) == 5 + len([name for name in names if name.startswith("build_")])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda one: one.name)
def test_defaults_are_those_of_the_signature(entry: Any) -> None:
    signature = inspect.signature(getattr(importlib.import_module(entry.module), entry.name))
    for name, argument in entry.arguments.items():
        default = signature.parameters[name].default
        if not argument.default:
            assert default is inspect.Parameter.empty, name
        elif not argument.default.startswith("timedelta("):
            assert ast.literal_eval(argument.default) == default, name
