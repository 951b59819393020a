"""How an Airflow task names its pipeline: always as ``module:attr``, so that every worker and every driver imports it.

A task may also get the `Pipeline` itself. Then its module is looked up when the DAG is parsed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection
from types import ModuleType
from typing import Any

from airflow_logio import _compat
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.launch import bundle
from airflow_logio.launch.bundle import PipelineRef

_DAG_FILE = "unusual_prefix_"
"""Airflow imports a DAG file under a name with this prefix. No driver can import that module, or should."""


def reference(pipeline: Pipeline | str) -> str:
    """``module:attr`` of a pipeline. Raises `PipelineDefinitionError` if a driver could not import it."""
    if isinstance(pipeline, str):
        return pipeline
    places = [
        (module, attr)
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType)
        for attr, value in list(vars(module).items())
        if value is pipeline
    ]
    importable = [(module, attr) for module, attr in places if _is_importable(module)]
    if not importable:
        where = f"the DAG file {places[0][0].__file__}" if places else "no module-level variable"
        raise PipelineDefinitionError(
            f"pipeline {pipeline.name!r} is found in {where}: Spark drivers, which need no Airflow, could not import it. "
            "Define it in a module of its own beside the DAG file, e.g. pipelines/sales.py, and import it from there"
        )
    # A module that imports the class has built the pipeline; the others have only imported it.
    built = [place for place in importable if any(value is Pipeline for value in vars(place[0]).values())]
    module, attr = (built or importable)[0]
    return f"{module.__name__}:{attr}"


def launching_tasks(task: Any, pipeline: str) -> set[str]:
    """The tasks in the DAG of `task`, mapped or not, that launch groups of the pipeline ``module:attr``, or do not
    name theirs."""
    found = [one for one in (task.dag.tasks if task.has_dag() else ()) if _compat.launches_group(one)]
    return {one.task_id for one in found if _pipeline_of(one) in (None, pipeline)}


def _pipeline_of(task: Any) -> str | None:
    given = getattr(task, "pipeline", None) or getattr(task, "partial_kwargs", {}).get("pipeline")
    return given if given is None or isinstance(given, str) else reference(given)


def _is_importable(module: ModuleType) -> bool:
    name = module.__name__
    return name != "__main__" and not name.startswith(_DAG_FILE) and getattr(module, "__file__", None) is not None


def resolve(text: str) -> tuple[Pipeline, PipelineRef]:
    """Import the pipeline on this machine. Its bundle root is the module's place here, not where the DAG was parsed.

    Raises `ConfigurationError`.
    """
    ref = bundle.parse_ref(text)
    if not text.rpartition(":")[0].endswith(".py"):
        try:
            importlib.import_module(ref.module)
        except Exception as error:
            raise ConfigurationError(
                f"module {ref.module!r} of pipeline {text!r} cannot be imported: {type(error).__name__}: {error}. "
                "It must be in the DAG folder or be installed on the workers"
            ) from error
        ref = PipelineRef(ref.module, ref.attr, bundle.locate(ref.module))
    return bundle.load(ref), ref


def known_at_parse(pipeline: Pipeline | str) -> Pipeline | None:
    """The frozen pipeline while a DAG is parsed; None if only workers can import it: then they refuse what is wrong.

    Raises what the pipeline's own definition raises.
    """
    module, _, attr = ("", "", "") if isinstance(pipeline, Pipeline) else pipeline.rpartition(":")
    if module.endswith(".py"):
        return None
    try:
        found = getattr(importlib.import_module(module), attr, None) if module else pipeline
    except ImportError:
        return None
    return found.freeze() if isinstance(found, Pipeline) else None


def is_template(text: object) -> bool:
    """Whether Airflow renders a text, so that only a worker knows its value; an XCom of another task is none either."""
    return not isinstance(text, str) or "{{" in text or "{%" in text


def imported(pipeline: Pipeline | str) -> Pipeline:
    """The frozen pipeline while a DAG is parsed. Raises `ConfigurationError`."""
    if isinstance(pipeline, Pipeline):
        return pipeline.freeze()
    module, _, attr = pipeline.rpartition(":")
    found = getattr(importlib.import_module(module), attr, None) if module else None
    if not isinstance(found, Pipeline):
        raise ConfigurationError(
            f"{pipeline!r} does not name a pipeline; expected module.path:attr, importable from the DAGs"
        )
    return found.freeze()


def check_connections(pipeline: Pipeline | None, given: Collection[str], *, all_of_them: bool = True) -> None:
    """Raises `ConfigurationError` for a connection that the pipeline does not have, and for one that `given` lacks.

    A pipeline that is not known while the DAG is parsed (None), the worker checks.
    """
    if pipeline is None:
        return
    if all_of_them and (missing := [name for name in pipeline.connections if name not in given]):
        raise ConfigurationError(
            f"pipeline {pipeline.name!r} needs a connection id for {', '.join(missing)}: "
            f'connections={{"{missing[0]}": "<Airflow connection id>"}}'
        )
    if unknown := [name for name in given if name not in pipeline.connections]:
        raise ConfigurationError(
            f"pipeline {pipeline.name!r} has no connection {', '.join(unknown)}; it has {list(pipeline.connections)}"
        )
