"""Names of datasets: the standard's rules, the same name for the same place, and no credentials."""

from __future__ import annotations

import pytest

from airflow_logio.openlineage.external_datasets import tables_of
from airflow_logio.openlineage.naming import DatasetName, file_name, port_name, table_name
from airflow_logio.protocol.values import Port


@pytest.mark.parametrize(
    ("url", "table", "namespace", "name"),
    [
        ("postgresql://me:s3cret@db:5433/shop", "sales", "postgres://db:5433", "shop.public.sales"),
        ("postgres://me:s3cret@db/shop?sslmode=require", "raw.sales", "postgres://db:5432", "shop.raw.sales"),
        ("postgresql://me@[::1]/shop", "sales", "postgres://[::1]:5432", "shop.public.sales"),
        ("postgresql:///shop?host=/run/postgresql", "sales", "postgres://localhost:5432", "shop.public.sales"),
        ("mysql+pymysql://me:s3cret@db/shop", "sales", "mysql://db:3306", "shop.sales"),
        ("mssql+pyodbc://me:s3cret@db/shop?password=s3cret", "sales", "sqlserver://db:1433", "shop.dbo.sales"),
        ("sqlite:////data/shop.db", "sales", "sqlite:///data/shop.db", "sales"),
    ],
)
def test_a_table_is_named_as_other_producers_name_it(url: str, table: str, namespace: str, name: str) -> None:
    assert table_name(url, table) == DatasetName(namespace, name)


@pytest.mark.parametrize(
    ("path", "namespace", "name"),
    [
        ("/lake/sales/", "file", "/lake/sales"),
        ("file:///lake/sales", "file", "/lake/sales"),
        ("s3a://key:s3cret@bucket/lake/sales?secret_key=s3cret", "s3://bucket", "lake/sales"),
        ("gs://bucket", "gs://bucket", "/"),
        ("hdfs://me:s3cret@namenode:8020/lake", "hdfs://namenode:8020", "/lake"),
        ("abfss://box:s3cret@store.dfs.core.windows.net/lake", "abfss://box@store.dfs.core.windows.net", "/lake"),
    ],
)
def test_a_folder_is_named_without_credentials(path: str, namespace: str, name: str) -> None:
    assert file_name(path) == DatasetName(namespace, name)


@pytest.mark.parametrize(
    ("log", "namespace"),
    [
        ("postgresql://me:s3cret@db:5433/logio?sslmode=require", "logio://db:5433/logio"),
        ("sqlite:////home/logio.db", "logio:///home/logio.db"),
    ],
)
def test_a_port_is_named_by_the_log_that_has_its_events(log: str, namespace: str) -> None:
    assert port_name(log, "sales", Port("hourly", "out")) == DatasetName(namespace, "sales.hourly.out")


def test_the_tables_of_a_query_are_those_that_the_standards_parser_finds() -> None:
    query = "SELECT a.x FROM raw.sales AS a JOIN products p ON p.id = a.id WHERE a.x > :least"
    assert sorted(tables_of(query, "postgresql://db/shop")) == ["products", "raw.sales"]
    assert tables_of(")(", "postgresql://db/shop") == []
