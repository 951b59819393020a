"""What Airflow learns from the package's entry point."""

from __future__ import annotations

import importlib
import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import airflow
import jsonschema  # type: ignore[import-untyped]
import pytest
from airflow.providers.common.compat.sdk import conf
from airflow.providers_manager import ProvidersManager
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

from airflow_logio.get_provider_info import get_provider_info
from airflow_logio.hooks.logio import LogioHook


@pytest.fixture(scope="module")
def providers() -> ProvidersManager:
    return ProvidersManager()


def test_it_satisfies_airflows_schema() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_the_package_announces_it() -> None:
    values = [point.value for point in entry_points(group="apache_airflow_provider")]
    assert "airflow_logio.get_provider_info:get_provider_info" in values


def test_airflow_finds_the_hook() -> None:
    hook = ProvidersManagerTaskRuntime().hooks["logio"]
    assert hook is not None
    assert (hook.hook_name, hook.connection_id_attribute_name) == ("LOG.io", "logio_conn_id")
    assert hook.hook_class_name == f"{LogioHook.__module__}.{LogioHook.__qualname__}"


def test_airflow_builds_the_form_of_a_connection(providers: ProvidersManager) -> None:
    widgets = {
        name.removeprefix("extra__logio__"): widget
        for name, widget in providers.connection_form_widgets.items()
        if name.startswith("extra__logio__")
    }
    assert set(widgets) == {"path", "payloads", "sslmode", "sslrootcert"}
    field: Any = widgets["sslmode"].field
    assert "verify-full" in field["schema"]["enum"]
    behaviour = providers.field_behaviours["logio"]
    assert behaviour["relabeling"]["schema"] == "Database"


def test_options_have_defaults() -> None:
    assert conf.getfloat("logio", "poll_interval") == 0.01  # from the environment of these tests
    assert conf.get("logio", "work_dir") == ""


def test_every_module_it_names_exists() -> None:
    info = get_provider_info()
    for kind in ("hooks", "operators", "triggers"):
        for integration in info[kind]:
            for module in integration["python-modules"]:
                importlib.import_module(module)
