"""What a DAG file imports: Airflow does it for every segment of every task, so it is what declares a DAG and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from airflow._shared.module_loading import find_path_from_directory
from airflow.utils.file import list_py_file_paths

ROOT = Path(__file__).parents[3]
DAGS = ROOT / "dags"
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
"""It is Airflow's, about a library that reads .airflowignore."""

LOADED = """
import importlib, json, runpy, sys
import airflow.sdk, airflow.sdk.execution_time.task_runner, airflow.triggers.base

def loaded():
    return {name for name in sys.modules if not name.startswith("airflow.")}

for given in sys.argv[1:]:
    before = loaded()
    if given.endswith(".py"):
        runpy.run_path(given)
    else:
        importlib.import_module(given)
    print(json.dumps([given, sorted(loaded() - before)]))
"""

HEAVY = {"pyarrow", "numpy", "pandas", "pyspark", "psycopg2", "sqlalchemy", "openlineage", "typer", "duckdb", "polars"}
WORK = ("_task.segment", "_task.run_supervision", "_task.launches", "_task.status_page", "_task.openlineage_answers")
AT_WORK = (
    *(f"airflow_logio.operators.{name}" for name in WORK),
    *(
        f"airflow_logio.{name}"
        for name in ("cli", "driver", "launch.launcher", "store.sql", "store.port", "supervision")
    ),
    *(f"airflow_logio.{name}" for name in ("systems", "triggers.group", "triggers.log_poller")),
)
"""Modules of this package that are imported when a task has work."""


def imported_by(*given: str) -> dict[str, list[str]]:
    """File, or module → what it loads that Airflow's task runner and those before it have not."""
    program = [sys.executable, "-W", "ignore", "-c", LOADED, *given]
    env = {"PYTHONPATH": f"{ROOT}:{DAGS}", "PATH": "/usr/bin:/bin", "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))


def test_the_example_loads_what_declares_a_dag_and_no_more() -> None:
    found = imported_by(str(DAGS / "logio_sales.py"))
    [loaded] = found.values()
    assert "airflow_logio.operators.spark" in loaded, "it was looked at"
    assert HEAVY.isdisjoint({name.partition(".")[0] for name in loaded}), loaded
    assert [name for name in loaded if name.startswith(AT_WORK)] == []


def test_no_dag_file_sensor_trigger_or_plugin_loads_arrow_unless_its_author_does() -> None:
    files = [str(file) for file in sorted(DAGS.glob("*.py")) if file.name != "logio_revenue.py"]
    parts = ["sensors.failed_group", "sensors.recovered_group", "triggers.group", "triggers.failed_groups"]
    parts += ["triggers.scale", "triggers.stop", "triggers.recovered_group", "ui.airflow_plugin", "get_provider_info"]
    by_author = str(DAGS / "logio_revenue.py")
    found = imported_by(*files, *(f"airflow_logio.{part}" for part in parts), by_author)
    roots = {name: {one.partition(".")[0] for one in loaded} for name, loaded in found.items()}
    arrow = {"pyarrow", "numpy", "pandas", "pyspark", "openlineage"}
    assert {name: arrow & loaded for name, loaded in roots.items() if name != by_author and arrow & loaded} == {}
    assert roots[by_author] & arrow == {"pyarrow", "numpy"}, "its pipeline imports pyarrow; what Arrow imports is later"


@pytest.mark.parametrize("syntax", ["glob", "regexp"])
def test_pipelines_beside_dags_are_no_dag_files(syntax: str) -> None:
    found = [Path(file) for file in find_path_from_directory(str(DAGS), ".airflowignore", syntax)]
    assert sorted(file for file in found if file.suffix == ".py") == sorted(DAGS.glob("*.py"))


def test_airflow_reads_no_pipeline_as_a_dag_file() -> None:
    """Without the file, it would read two: its guess is whether a file says both "dag" and "airflow"."""
    assert {Path(file).parent for file in list_py_file_paths(str(DAGS), safe_mode=True)} == {DAGS}
