"""`logio run` without options: what a pipeline brings along for that, and when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.cli.connection_file import ConnectionFile, ConnectionUrls
from airflow_logio.cli.preparation import Wanted, prepare, reopen
from airflow_logio.cli.spark_options import SparkOptions
from airflow_logio.dataflow import Pipeline
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.launch import bundle, spark_submit
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.store import open_store

EXAMPLE = """
from airflow_logio import Count, ParquetSource, Pipeline

example = Pipeline("example", params={"file": str, "note": str}, connections=["shop"])
source = example.source("source", ParquetSource("{file}", ordered_by="at", records_per_event=1))
example.sink("done", Count(), source)
example.local_defaults(
    params={"file": lambda: "data.parquet", "note": lambda: "assumed"},
    connections={"shop": "files/shop.db"},
    prepare=lambda urls: f"prepared {urls['shop']}",
)
"""
SPARK = SparkOptions(master="local[1]")
Prepared = tuple[LaunchContext, list[str]]


@pytest.fixture
def prepared(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Prepared]:
    """What `logio run example.py:example` makes of params, connection ids and an environment, and what it says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spark_submit, "check", lambda _: None)
    (tmp_path / "example_of_defaults.py").write_text(EXAMPLE)
    for name in ("data.parquet", "mine.parquet"):
        pq.write_table(pa.table({"at": [1, 2]}), tmp_path / name)

    def run(params: Mapping[str, str], ids: Mapping[str, str], environment: Mapping[str, str]) -> Prepared:
        said: list[str] = []
        wanted = Wanted("example_of_defaults.py:example", params, ids, None, False, SPARK)
        known = ConnectionUrls(environment, ConnectionFile(None, {}))
        store = open_store(sqlite_url, create=True)
        try:
            context = prepare(store, sqlite_url, None, wanted, known, said.append)
            again = reopen(store, sqlite_url, None, context.run, known, SPARK.settings())
        finally:
            store.dispose()
        assert again.connections == context.connections
        return context, said

    return run


def test_what_is_not_given_is_assumed(prepared: Callable[..., Prepared], tmp_path: Path) -> None:
    context, said = prepared({"note": "mine"}, {}, {})
    assert context.run.spec.params == {"file": str(tmp_path / "data.parquet"), "note": "mine"}
    shop = f"sqlite:///{tmp_path}/files/shop.db"
    assert context.connections == {"shop": shop}
    assert said == [f"prepared {shop}"]


def test_nothing_is_prepared_for_a_run_that_brings_everything(
    prepared: Callable[..., Prepared], tmp_path: Path
) -> None:
    given = {"file": str(tmp_path / "mine.parquet"), "note": "mine"}
    context, said = prepared(given, {}, {"LOGIO_CONN_SHOP": "sqlite:////mine.db"})
    assert context.run.spec.params == given
    assert (context.connections, said) == ({"shop": "sqlite:////mine.db"}, [])


def test_a_connection_id_that_was_named_must_be_known(prepared: Callable[..., Prepared]) -> None:
    with pytest.raises(ConfigurationError, match="connection 'other' is not known"):
        prepared({}, {"shop": "other"}, {})


@pytest.mark.parametrize(
    ("defaults", "says"),
    [
        ({"params": {"fiel": str}}, "parameter 'fiel', which the pipeline does not have. Did you mean 'file'"),
        ({"connections": {"shpo": "a.db"}}, "connection 'shpo', which the pipeline does not have. Did you mean 'shop'"),
        ({"params": {"file": "a.parquet"}}, "give a function that returns it"),
    ],
)
def test_wrong_defaults_are_refused_when_they_are_defined(defaults: dict[str, Any], says: str) -> None:
    pipeline = Pipeline("example", params={"file": str}, connections=["shop"])
    with pytest.raises(PipelineDefinitionError, match=f"pipeline 'example': local_defaults .*{says}"):
        pipeline.local_defaults(**defaults)


def test_the_sales_pipeline_brings_its_data() -> None:
    sales = bundle.load(bundle.parse_ref(f"{Path(__file__).parents[3] / 'dags' / 'pipelines' / 'sales.py'}:sales"))
    assert Path(sales.local.params["transactions"]()).is_file()
    assert set(sales.local.params) == set(sales.params) and set(sales.local.connections) == set(sales.connections)
