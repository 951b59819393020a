"""Tables in databases that cannot keep them exactly once are refused before the log knows of a run."""

from __future__ import annotations

import pytest

from airflow_logio.dataflow import Count, ParquetSource, Pipeline, TableSource, TableWriter
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.start_run import check_table_databases


def pipeline(table: str = "t") -> Pipeline:
    made = Pipeline("p", connections=["wh"])
    read = made.source("read", ParquetSource("/x.parquet"))
    made.writer("save", TableWriter("wh", table), read)
    return made


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("mysql+pymysql://u:s3cret@h/d", "mysql"),
        ("mariadb+pymysql://u:s3cret@h/d", "mariadb"),
        ("mssql+pyodbc://u:s3cret@h/d", "mssql"),
        ("oracle://u:s3cret@h/d", "oracle"),
        ("cockroachdb://u:s3cret@h/d", "cockroachdb"),
        ("redshift+psycopg2://u:s3cret@h/d", "redshift"),
    ],
)
def test_other_databases_are_refused_by_kind(url: str, kind: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"writer 'save': connection 'wh' is a database of kind '{kind}'"
    ) as error:
        check_table_databases(pipeline(), {"wh": url}.__getitem__)
    assert "s3cret" not in str(error.value)


def test_a_table_is_followed_in_databases_that_tell_who_writes() -> None:
    made = Pipeline("p", connections=["wh"])
    made.sink("done", Count(), made.source("raw", TableSource("wh", "t", append_only=True)))
    says = r"source 'raw': connection 'wh' is a database of kind 'mysql': a TableSource reads PostgreSQL and SQLite"
    with pytest.raises(ConfigurationError, match=says):
        check_table_databases(made, {"wh": "mysql+pymysql://u@h/d"}.__getitem__)
    check_table_databases(made, {"wh": "postgresql://u@h/d"}.__getitem__)


@pytest.mark.parametrize(
    "url", ["postgresql://u@h/d", "postgresql+psycopg2://u@h/d", "sqlite:////x.db", "postgresql+asyncpg://u@h/d"]
)
def test_postgresql_and_sqlite_are_not(url: str) -> None:
    check_table_databases(pipeline(), {"wh": url}.__getitem__)


def test_what_is_no_url_is_said_without_repeating_it() -> None:
    with pytest.raises(
        ConfigurationError, match="writer 'save', connection 'wh': the database URL cannot be parsed"
    ) as error:
        check_table_databases(pipeline(), {"wh": "u:s3cret@h"}.__getitem__)
    assert "s3cret" not in str(error.value)


def test_a_schema_in_sqlite_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"writer 'save', connection 'wh': table 's\.t': SQLite has no schemas"
    ):
        check_table_databases(pipeline("s.t"), {"wh": "sqlite:////x.db"}.__getitem__)
    check_table_databases(pipeline("main.t"), {"wh": "sqlite:////x.db"}.__getitem__)
    check_table_databases(pipeline("s.t"), {"wh": "postgresql://h/d"}.__getitem__)
