"""Tables in databases that cannot keep them exactly once are refused before the log knows of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_logio.dataflow import Count, ParquetSource, Pipeline, TableSource, TableWriter
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.start_run import check_beside_log, check_table_databases


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


# --- a writer that closes ------------------------------------------------------------------------------------------------


class Closing(TableWriter):
    closes = True
    outputs = ()


def closing(writer: type[TableWriter] = Closing) -> Pipeline:
    made = Pipeline("p", connections=["wh"])
    made.writer("save", writer("wh", "t"), made.source("read", ParquetSource("/x.parquet")))
    return made


def test_the_file_of_the_log_is_refused_for_a_writer_that_closes_by_whatever_name(tmp_path: Path) -> None:
    log = tmp_path / "log.db"
    log.touch()
    (tmp_path / "another.db").symlink_to(log)
    (tmp_path / "sub").mkdir()
    says = r"writer 'save', connection 'wh': .* is the file of the log, too\. This writer closes: .*Give the connection"
    for name in ("log.db", "another.db", "sub/../log.db"):
        for written, logged in ((f"sqlite:///{tmp_path}/{name}", log), (f"sqlite+pysqlite:///{log}", tmp_path / name)):
            with pytest.raises(ConfigurationError, match=says):
                check_beside_log(closing(), {"wh": written}.__getitem__, f"sqlite:///{logged}")


def test_the_file_of_a_log_that_is_not_made_yet_is_known_by_its_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    with pytest.raises(ConfigurationError, match="is the file of the log, too"):
        check_beside_log(closing(), {"wh": url}.__getitem__, url)


def test_any_other_place_is_not_refused(tmp_path: Path) -> None:
    log = f"sqlite:///{tmp_path}/log.db"
    for place in (f"sqlite:///{tmp_path}/wh.db", "postgresql://u@h/d", f"{tmp_path}/log.db", "s3://bucket/log.db"):
        check_beside_log(closing(), {"wh": place}.__getitem__, log)
    check_beside_log(closing(), {"wh": "postgresql://u@h/d"}.__getitem__, "postgresql://u@h/d")
    check_beside_log(closing(TableWriter), {"wh": log}.__getitem__, log)
