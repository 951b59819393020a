"""The sales of the lake are seeded, and made as a whole; the check sees a record that is missing, doubled or changed."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from airflow_logio.cli.connection_file import ConnectionFile, ConnectionUrls
from airflow_logio.cli.preparation import Wanted, describe, load
from airflow_logio.errors import ConfigurationError
from demo.checks import CheckResult, check_lake
from demo.data import CITIES, RECEIPT, all_records, parquet_file, records_in, sales_folder, wanted_records

RECORDS = 120_000
PIPELINE = Path(__file__).parents[2] / "dags" / "pipelines" / "orders_lake.py"
WHAT = ("lake/sales", "lake/department_hours", "department_hours")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sales_folder(tmp_path_factory.mktemp("data"), RECORDS, lambda _: None)


def test_sales_are_many_seeded_and_in_order(made: Path, tmp_path: Path) -> None:
    said: list[str] = []
    again = sales_folder(tmp_path, RECORDS, said.append)
    assert said[0] == f"making {RECORDS:,} sales in {again}"
    names = sorted(file.name for file in made.iterdir())
    assert names == sorted(file.name for file in again.iterdir())
    assert names[:3] == [RECEIPT, "sales-2017-01-01.parquet", "sales-2017-01-02.parquet"]
    for name in names:
        assert (made / name).read_bytes() == (again / name).read_bytes(), name
    query = f"""SELECT count(*), count(DISTINCT sale_id), max(sale_id), count(DISTINCT city), count(*) - count(quantity) > 0,
        min(quantity) < 0, min(product_id), bool_and(strftime(sold_at, '%Y-%m-%d') = filename[-18:-9])
        FROM read_parquet('{made}/*.parquet', filename = true)"""
    with duckdb.connect() as database:
        assert database.execute(query).fetchall() == [(RECORDS, RECORDS, RECORDS - 1, CITIES, True, True, 0, True)]
    assert all_records() == CITIES * 1_469_307 > 50_000_000


def test_what_is_whole_is_kept_and_anything_else_made_again(made: Path, tmp_path: Path) -> None:
    def sizes() -> dict[str, int]:
        return {file.name: file.stat().st_size for file in folder.iterdir()}

    said: list[str] = []
    folder = sales_folder(tmp_path, RECORDS, said.append)
    whole, times = sizes(), len(said)
    assert sales_folder(tmp_path, RECORDS, said.append) == folder and len(said) == times, "nothing was made"
    first = folder / "sales-2017-01-01.parquet"
    for harm in (first.unlink, lambda: first.write_bytes(b"cut"), (folder / RECEIPT).unlink):
        harm()
        assert sales_folder(tmp_path, RECORDS, lambda _: None) == folder
        assert sizes() == whole
    assert [path.name for path in tmp_path.iterdir()] == [folder.name], "no half of a folder stays"


@pytest.mark.parametrize("text", ["0", "-5", "many", "1e6", "99999999999"])
def test_a_wrong_number_of_records_is_refused(text: str) -> None:
    assert wanted_records({}) == all_records()
    assert wanted_records({"RECORDS": "1000"}) == 1_000
    with pytest.raises(ConfigurationError, match=f"RECORDS='{text}': give a number of records from 1 to 51425745"):
        wanted_records({"RECORDS": text})


# --- the check --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def right(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lake and warehouse as they must be, by SQL of this test's own."""
    root = tmp_path_factory.mktemp("right")
    with duckdb.connect() as database:
        database.execute(
            f"""CREATE TABLE sold AS
            SELECT sale_id, strftime(sold_at, '%Y-%m-%d')::DATE AS day, sold_at, city, store_id, household_id, product_id,
                   ifnull((SELECT any_value(department) FROM '{parquet_file("products")}' p
                           WHERE p.product_id = s.product_id), 'UNKNOWN') AS department,
                   quantity, round(sales_value * 100)::BIGINT AS sales_cents
            FROM '{made}/*.parquet' s WHERE quantity IS NOT NULL AND NOT quantity <= 0"""
        )
        database.execute(
            """CREATE TABLE summed AS
            SELECT day, extract(hour FROM sold_at)::INT AS hour, department, count(*) AS sales,
                   sum(quantity)::BIGINT AS quantity, sum(sales_cents)::BIGINT AS sales_cents
            FROM sold GROUP BY 1, 2, 3"""
        )
        for table, folder in (("sold", "sales"), ("summed", "department_hours")):
            database.execute(f"COPY {table} TO '{root / folder}' (FORMAT parquet, PARTITION_BY (day))")
        rows = database.execute("SELECT * REPLACE (day::VARCHAR AS day) FROM summed").fetchall()
    with closing(sqlite3.connect(root / "warehouse.db")) as warehouse, warehouse:
        warehouse.execute("CREATE TABLE department_hours (day, hour, department, sales, quantity, sales_cents)")
        warehouse.executemany("INSERT INTO department_hours VALUES (?, ?, ?, ?, ?, ?)", rows)
    return root


@pytest.fixture
def lake(right: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(right, tmp_path / "lake"))


def checked(lake: Path, made: Path) -> CheckResult:
    return check_lake(lake, f"sqlite:///{lake / 'warehouse.db'}", made, parquet_file("products"))


def rewritten(file: Path, query: str) -> None:
    """Replace a file by what the query makes of table `file`."""
    with duckdb.connect() as database:
        database.execute(f"CREATE TABLE file AS FROM read_parquet('{file}', hive_partitioning = false)")
        database.execute(f"COPY ({query}) TO '{file}' (FORMAT parquet)")


HARM: dict[str, tuple[str, str]] = {
    "missing": ("FROM file ORDER BY 1 DESC OFFSET 1", "found no row"),
    "doubled": ("FROM file UNION ALL (FROM file LIMIT 1)", " and ("),
    "changed": ("SELECT * REPLACE (sales_cents + (rowid = 0)::INT AS sales_cents) FROM file", "found ("),
}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("folder", ["sales", "department_hours"])
def test_one_wrong_record_is_named(lake: Path, made: Path, folder: str, harm: str) -> None:
    query, says = HARM[harm]
    first = sorted((lake / folder).rglob("*.parquet"))[0]
    rewritten(first, query)
    result = checked(lake, made)
    (wrong,) = [one for one in result.comparisons if not one.exact]
    assert (wrong.what, wrong.differing, result.exact) == (f"lake/{folder}", 1, False)
    assert says in str(wrong.differences[0])


def test_what_is_right_is_exact_and_what_lies_elsewhere_counts(lake: Path, made: Path) -> None:
    result = checked(lake, made)
    assert tuple(one.what for one in result.comparisons) == WHAT
    assert result.exact and all(one.found_rows for one in result.comparisons), "\n".join(result.lines())
    one = sorted((lake / "sales").rglob("*.parquet"))[0]
    elsewhere = lake / "sales" / "day=1999-01-01" / "a.parquet"
    elsewhere.parent.mkdir()
    shutil.copy(one, elsewhere)
    assert not checked(lake, made).exact
    elsewhere.unlink()
    with closing(sqlite3.connect(lake / "warehouse.db")) as warehouse, warehouse:
        warehouse.execute("UPDATE department_hours SET quantity = quantity + 1 WHERE hour = 12")
    assert [one.what for one in checked(lake, made).comparisons if not one.exact] == ["department_hours"]


def test_a_lake_that_is_not_there_is_told(lake: Path, made: Path, tmp_path: Path) -> None:
    broken = sorted((lake / "sales").rglob("*.parquet"))[0]
    broken.write_bytes(b"no Parquet")
    with pytest.raises(ConfigurationError, match=r"the lake .* cannot be compared with"):
        checked(lake, made)
    with pytest.raises(ConfigurationError, match="there are no sales in"):
        check_lake(lake, "sqlite://", tmp_path, parquet_file("products"))


# --- the pipeline -----------------------------------------------------------------------------------------------------


def test_the_pipeline_is_valid_and_brings_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `logio run` without options: a thousand sales, a folder and a warehouse."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECORDS", "1000")
    known = ConnectionUrls({}, ConnectionFile(None, {}))
    said: list[str] = []
    wanted = Wanted(f"{PIPELINE}:orders_lake", {}, {})
    described = describe(str(tmp_path / "payloads"), wanted, load(wanted, known), None, said.append)
    described.pipeline.validate()
    assert records_in(Path(described.spec.params["sales"])) == 1_000
    assert described.spec.params["products"] == str(parquet_file("products"))
    lake = tmp_path / ".logio" / "lake"
    assert described.urls == {"lake": str(lake), "warehouse": f"sqlite:///{lake.with_name('warehouse.db')}"}
    assert lake.is_dir() and said == []
