"""The DAGs that can be demonstrated: ``make demo DAG=...``."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from airflow_logio.errors import ConfigurationError
from demo.checks import CheckResult, check_lake, check_sales
from demo.data import load_products, parquet_file, records_in, sales_folder, wanted_records
from demo.places import Places

Params = Mapping[str, str]
"""Parameters of a DAG run."""


@dataclass(frozen=True, slots=True)
class Example(ABC):
    """A DAG of the repository, and the pipeline that it runs."""

    dag_id: str
    pipeline: str
    """File below ``dags/pipelines``, and the attribute in it."""

    @abstractmethod
    def check_installed(self) -> None:
        """Raises `ConfigurationError` if the data is not installed, or more of it is asked for than there is."""

    @abstractmethod
    def prepare(self, places: Places, say: Callable[[str], None]) -> Params:
        """Make what the DAG run needs. Raises `ConfigurationError`."""

    @abstractmethod
    def check(self, places: Places, params: Params) -> CheckResult:
        """Compare what the DAG run has made with an independent computation. Raises `ConfigurationError` if there is
        nothing to compare."""

    def records_read(self, params: Params) -> int | None:
        """Records that the source reads, where the log does not count them."""
        return None


@dataclass(frozen=True, slots=True)
class SalesExample(Example):
    """The grocery transactions, one file, and products in the warehouse."""

    records: int | None = None
    """Number of transactions to use from the beginning of the file; None for all."""

    def check_installed(self) -> None:
        parquet_file("transactions"), parquet_file("products")

    def prepare(self, places: Places, say: Callable[[str], None]) -> Params:
        if loaded := load_products(places.warehouse_url, parquet_file("products")):
            say(f"loaded {loaded:,} products into the warehouse")
        return {"transactions": str(self._transactions(parquet_file("transactions"), places.folder))}

    def _transactions(self, file: Path, folder: Path) -> Path:
        """`file` itself, or its beginning, written into `folder`."""
        if self.records is None:
            return file
        target = folder / f"transactions_{self.records}.parquet"
        pq.write_table(pq.read_table(file).slice(0, self.records), target)
        return target

    def check(self, places: Places, params: Params) -> CheckResult:
        return check_sales(places.warehouse_url, Path(params["transactions"]), parquet_file("products"))


@dataclass(frozen=True, slots=True)
class LakeExample(Example):
    """51 million sales in a folder, or as many as RECORDS says; each demonstration begins with an empty lake."""

    def check_installed(self) -> None:
        wanted_records()

    def prepare(self, places: Places, say: Callable[[str], None]) -> Params:
        sales = sales_folder(places.folder, wanted_records(), say)
        shutil.rmtree(places.lake, ignore_errors=True)
        places.lake.mkdir(mode=0o700)
        return {"sales": str(sales), "products": str(parquet_file("products"))}

    def records_read(self, params: Params) -> int | None:
        return records_in(Path(params["sales"]))

    def check(self, places: Places, params: Params) -> CheckResult:
        return check_lake(places.lake, places.warehouse_url, Path(params["sales"]), Path(params["products"]))


EXAMPLES: dict[str, Example] = {
    one.dag_id: one
    for one in (
        SalesExample("logio_sales", "sales.py:sales"),
        # Slow on purpose: all of them would take an hour.
        SalesExample("logio_sales_scaled", "sales_scaled.py:sales_scaled", records=200_000),
        LakeExample("logio_orders_lake", "orders_lake.py:orders_lake"),
    )
}


def example(dag_id: str) -> Example:
    """Raises `ConfigurationError`."""
    if dag_id not in EXAMPLES:
        raise ConfigurationError(f"there is no demonstration of DAG {dag_id!r}; choose {' or '.join(EXAMPLES)}")
    return EXAMPLES[dag_id]
