"""Names of datasets: the standard's rules, the same name for the same place, and no credentials."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_logio.dataflow.sources import ParquetSource
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.parquet_writer import ParquetWriter
from airflow_logio.errors import ConfigurationError
from airflow_logio.hooks.connections import external_url
from airflow_logio.openlineage.external_datasets import (
    DatasetName,
    ExternalDatasets,
    file_name,
    port_name,
    table_name,
    tables_of,
)
from airflow_logio.protocol.values import Port
from tests.support.airflow_connections import connection


@pytest.mark.parametrize(
    ("url", "table", "namespace", "name"),
    [
        ("postgresql://me:s3cret@db:5433/shop", "sales", "postgres://db:5433", "shop.public.sales"),
        ("postgres://me:s3cret@db/shop?sslmode=require", "raw.sales", "postgres://db:5432", "shop.raw.sales"),
        ("postgresql://me@[::1]/shop", "sales", "postgres://[::1]:5432", "shop.public.sales"),
        ("postgresql:///shop?host=/run/postgresql", "sales", "postgres://localhost:5432", "shop.public.sales"),
        ("postgresql:///shop?host=pg1", "sales", "postgres://pg1:5432", "shop.public.sales"),
        ("postgresql:///shop?host=pg1:5433&host=pg2", "sales", "postgres://pg1:5433", "shop.public.sales"),
        ("postgresql:///shop?host=pg1,pg2&port=6000", "sales", "postgres://pg1:6000", "shop.public.sales"),
        ("mysql+pymysql://me:s3cret@db/shop", "sales", "mysql://db:3306", "shop.sales"),
        ("mysql+pymysql://me:s3cret@db/shop", "other.sales", "mysql://db:3306", "other.sales"),
        ("mariadb+pymysql://db:3307/shop", "sales", "mysql://db:3307", "shop.sales"),
        ("mssql+pyodbc://me:s3cret@db/shop?password=s3cret", "sales", "sqlserver://db:1433", "shop.dbo.sales"),
        ("sqlite:////data/shop.db", "sales", "sqlite:///data/shop.db", "sales"),
    ],
)
def test_a_table_is_named_as_other_producers_name_it(url: str, table: str, namespace: str, name: str) -> None:
    assert table_name(url, table) == DatasetName(namespace, name)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("snowflake://me:s3cret@account/shop", "kind 'snowflake' have no rule"),
        ("oracle+oracledb://me:s3cret@db/shop", "kind 'oracle' have no rule"),
        ("postgresql://me:s3@cret@db/shop", "two @"),
        ("postgresql://me:s3@cret/et@db/shop", "two @"),
        ("postgresql://me:s3cret@db", "names no database"),
        ("mssql+pyodbc:///?odbc_connect=s3cret", "names no host"),
    ],
)
def test_a_table_without_a_certain_name_has_none(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        table_name(url, "sales")
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "namespace", "name"),
    [
        ("/lake/sales/", "file", "/lake/sales"),
        ("file:///lake/sales", "file", "/lake/sales"),
        ("s3a://key:s3cret@bucket/lake/sales?secret_key=s3cret", "s3://bucket", "lake/sales"),
        ("file:///lake%2Fsales%20of%20may", "file", "/lake/sales of may"),
        ("s3://bucket/lake%2Fsales", "s3://bucket", "lake/sales"),
        ("gs://bucket", "gs://bucket", "/"),
        ("hdfs://me:s3cret@NameNode:8020/lake", "hdfs://NameNode:8020", "/lake"),
        ("abfss://box:s3cret@store.dfs.core.windows.net/lake", "abfss://box@store.dfs.core.windows.net", "/lake"),
    ],
)
def test_a_folder_is_named_without_credentials(path: str, namespace: str, name: str) -> None:
    assert file_name(path) == DatasetName(namespace, name)


@pytest.mark.parametrize("path", ["s3://key:12/s3cret@bucket/lake", "s3://key:s3/cret@bucket/lake", "file://"])
def test_a_folder_whose_url_is_wrong_has_no_name(path: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        file_name(path)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        ("file", {"schema": "data/out/x"}, DatasetName("file", "/data/out/x")),
        ("s3", {"host": "bucket", "schema": "pre/fix"}, DatasetName("s3://bucket", "pre/fix")),
    ],
)
def test_a_folder_of_a_connection_is_named_as_its_writer_finds_it(
    kind: str, fields: dict[str, Any], expected: DatasetName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", connection(kind, **fields))
    url = external_url("lake")
    assert "%2F" in url, "Airflow quotes the fields"
    external = ExternalDatasets({}, lambda _: url)
    assert external.written_by(ParquetWriter("lake")) == [expected]


@pytest.mark.parametrize("writer", [ParquetWriter, DatasetWriter])
def test_a_folder_with_run_parameters_is_that_of_the_run(writer: Any) -> None:
    one = writer("lake", "sales/dt={day}")
    assert ExternalDatasets({"day": "2024-05-17"}, lambda _: "/lake").written_by(one) == [
        DatasetName("file", "/lake/sales/dt=2024-05-17")
    ]
    assert ExternalDatasets({}, lambda _: "/lake").written_by(one) == [], "before a run has told its parameters"


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/lake/*/sales_*.parquet", "/lake"),
        ("/lake/2026/s?les.parquet", "/lake/2026"),
        ("s3://bucket/lake/*.parquet", "lake"),
        ("/*/sales_*.parquet", "/"),
    ],
)
def test_files_of_a_pattern_are_the_folder_that_has_all_of_them(path: str, folder: str) -> None:
    external = ExternalDatasets({}, lambda name: name)
    assert [found.name for found in external.read_by(ParquetSource(path))] == [folder]


@pytest.mark.parametrize(
    ("log", "namespace"),
    [
        ("postgresql://me:s3cret@db:5433/logio?sslmode=require", "logio://db:5433/logio"),
        ("sqlite:////home/logio.db", "logio:///home/logio.db"),
    ],
)
def test_a_port_is_named_by_the_log_that_has_its_events(log: str, namespace: str) -> None:
    assert port_name(log, "sales", Port("hourly", "out")) == DatasetName(namespace, "sales.hourly.out")


def names_in(query: str, url: str = "postgresql://db/shop") -> list[str]:
    return sorted(found.name for found in tables_of(query, url))


def test_the_tables_of_a_query_are_those_that_the_standards_parser_finds() -> None:
    query = "SELECT a.x FROM raw.sales AS a JOIN products p ON p.id = a.id WHERE a.x > :least"
    assert names_in(query) == ["shop.public.products", "shop.raw.sales"]
    assert names_in(")(") == []
    assert names_in("SELECT x FROM other.raw.sales") == ["other.raw.sales"]
    assert names_in("SELECT x FROM `other`.`sales`, sales", "mysql://db/shop") == ["other.sales", "shop.sales"]


def test_a_function_in_a_query_is_no_table() -> None:
    assert names_in("SELECT day FROM generate_series(1, 9) AS day") == []
    assert names_in("SELECT x FROM sales, pg_catalog.unnest_all (1) JOIN latest(9) l ON true") == ["shop.public.sales"]
    assert names_in("SELECT max(x) FROM sales JOIN max USING (id)") == ["shop.public.max", "shop.public.sales"]
