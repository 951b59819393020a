"""The guard against pyspark and pyspark-client of two versions, on installed distributions as importlib finds them."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from pathlib import Path

import pytest

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.launch.spark_submit import check, check_versions
from tests.support.distributions import install

ROOT = Path(__file__).parents[3]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of everything that is installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def alone(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but `site` is where distributions are found."""
    monkeypatch.setattr("sys.path", [str(site)])
    importlib.invalidate_caches()


@pytest.mark.parametrize(("spark", "client"), [("4.3.0", "4.2.0"), ("4.0.5", "4.2.0"), ("4.2.1", "4.2.0")])
def test_two_versions_are_refused_with_the_command_that_mends_it(spark: str, client: str, site: Path) -> None:
    install(site, "pyspark", spark)
    install(site, "pyspark-client", client)
    with pytest.raises(ConfigurationError) as refused:
        check(SparkSettings())  # what every launch asks before it claims anything
    said = str(refused.value)
    assert f"pyspark {spark} and pyspark-client {client}" in said
    assert f"pip install pyspark=={client} pyspark-client=={client} " in said


@pytest.mark.parametrize("installed", [{"pyspark": "4.3.0"}, {"pyspark-client": "4.2.0"}, {}])
def test_one_of_them_alone_is_no_mixture(
    installed: dict[str, str], site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in installed.items():
        install(site, name, number)
    alone(site, monkeypatch)
    check_versions()


def test_our_own_environments_have_one_version_of_both() -> None:
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert pins["pyspark"] == pins["pyspark-client"]
    assert {name: version(name) for name in pins} == pins
    words = " ".join(f"{name}=={number}" for name, number in pins.items())
    for page in ("README.md", "docs/how-to/run-on-a-cluster.md"):
        assert f"pip install 'airflow-logio[airflow,spark]' {words}" in (ROOT / page).read_text()
    check_versions()
