"""What Airflow learns from the package's entry point."""

from __future__ import annotations

import importlib
import inspect
import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import airflow
import jsonschema  # type: ignore[import-untyped]
import pytest
from airflow.providers.common.compat.sdk import conf
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Asset
from airflow.sdk.module_loading import import_string
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

import airflow_logio
from airflow_logio.asset_uris import create_asset, sanitize_uri
from airflow_logio.get_provider_info import get_provider_info
from airflow_logio.hooks.logio import LogioHook

ROOT = Path(__file__).parents[3]


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


KINDS = ("hooks", "operators", "sensors", "triggers")
MODULES = [
    module for kind in KINDS for one in get_provider_info()[kind] for module in one["python-modules"]
]  # fmt: skip


def test_it_names_every_public_module_of_these_kinds() -> None:
    """By the classes: those that a DAG file imports begin with Logio."""
    package = Path(airflow_logio.__file__).parent
    found = {
        f"airflow_logio.{kind}.{path.stem}"
        for kind in KINDS
        for path in (package / kind).glob("[!_]*.py")
        if "\nclass Logio" in path.read_text(encoding="utf-8")
    }
    assert sorted(MODULES) == sorted(found)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_that_it_names_has_a_class_for_dags(module: str) -> None:
    found = importlib.import_module(module)
    public = [name for name, value in vars(found).items() if inspect.isclass(value) and value.__module__ == module]
    assert [name for name in public if name.startswith("Logio")]


def test_every_attribute_that_it_names_can_be_called() -> None:
    info = get_provider_info()
    paths = [one["hook-class-name"] for one in info["connection-types"]]
    paths += [one[key] for one in info["asset-uris"] for key in ("handler", "factory")]
    assert len(paths) == 3
    for path in paths:
        assert callable(import_string(path)), path


def test_the_pages_and_the_logo_are_there() -> None:
    (integration,) = get_provider_info()["integrations"]
    for path in (*integration["how-to-guide"], integration["logo"]):
        assert (ROOT / path.lstrip("/")).is_file(), path
    assert urlsplit(integration["external-doc-url"]).scheme == "https"


@pytest.mark.parametrize(
    ("written", "spelled"),
    [
        ("logio://warehouse_db/hourly%5Fsales", "logio://warehouse_db/hourly_sales"),
        ("logio://lake_folder/sales by hour", "logio://lake_folder/sales%20by%20hour"),
        ("logio://lake_folder//sales", "logio://lake_folder/sales"),
    ],
)
def test_airflow_has_one_spelling_of_a_uri(written: str, spelled: str) -> None:
    """It compares names, too, which a handler cannot change: another spelling would be another asset."""
    with pytest.raises(ValueError, match=f"another asset than '{spelled}'"):
        Asset(written)


@pytest.mark.parametrize("place", ["hourly_sales", "sales by hour", "what?", "no#1", "größe/tag=1", "a%2Fb", ""])
def test_a_made_asset_is_the_one_that_its_uri_names(place: str) -> None:
    made = create_asset(connection_id="warehouse_db", place=place)
    assert Asset(made.uri) == made
    assert made.uri == made.name == f"logio://warehouse_db/{quote(place)}"


@pytest.mark.parametrize("uri", ["logio:///hourly_sales", "logio://a/b?c=1"])
def test_a_uri_that_no_task_makes_an_event_for_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="names nothing that a pipeline writes; give logio://<connection id>/"):
        sanitize_uri(urlsplit(uri))
