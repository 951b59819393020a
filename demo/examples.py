"""The DAGs that can be demonstrated: ``make demo DAG=...``."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import ClassVar

import pyarrow.parquet as pq

from airflow_logio.errors import ConfigurationError
from demo.checks import CheckResult, check_clicks, check_lake, check_sales
from demo.clicks import DAYS, clicks_folder, late_file
from demo.data import load_products, parquet_file, records_in, sales_folder, wanted_records
from demo.places import Places
from demo.rest import Airflow

Params = Mapping[str, str]
"""Parameters of a DAG run."""
Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a person does in Airflow, and what must be there afterwards."""

    what: str
    """In few words; it begins what is said of the step. Empty for the only one."""
    begin: Callable[[Airflow], Sequence[str]]
    """Do it. Returns the DAG runs that it has begun."""
    check: Callable[[], CheckResult]
    """Compare what is there with an independent computation. Raises `ConfigurationError` if there is nothing to compare."""
    look: str = ""
    """What a person should look at meanwhile."""
    kills: bool = False
    """A driver of it is killed, as soon as there is one."""


@dataclass(frozen=True, slots=True)
class Example(ABC):
    """A DAG of the repository, and the pipeline that it runs."""

    dag_id: str
    pipeline: str
    """File below ``dags/pipelines``, and the attribute in it."""
    changes_code: ClassVar[bool] = False
    """The demonstration changes DAGs or pipelines, so it takes a copy of them."""

    @abstractmethod
    def check_installed(self) -> None:
        """Raises `ConfigurationError` if the data is not installed, or more of it is asked for than there is."""

    @abstractmethod
    def prepare(self, places: Places, say: Say) -> Params:
        """Make what the DAG runs need. Raises `ConfigurationError`."""

    @abstractmethod
    def steps(self, places: Places, params: Params, run_id: str, say: Say) -> Iterator[Step]:
        """What is done, one after the other. A step is asked for when all before it are exact."""

    def records_read(self, params: Params) -> int | None:
        """Records that the source reads, where the log does not count them."""
        return None


@dataclass(frozen=True, slots=True)
class OneRun(Example):
    """A DAG that is triggered once."""

    def steps(self, places: Places, params: Params, run_id: str, say: Say) -> Iterator[Step]:
        def trigger(airflow: Airflow) -> list[str]:
            airflow.trigger(self.dag_id, run_id, dict(params))
            return [run_id]

        yield Step("", trigger, lambda: self.check(places, params))

    @abstractmethod
    def check(self, places: Places, params: Params) -> CheckResult:
        """Compare what the DAG run has made with an independent computation. Raises `ConfigurationError` if there is
        nothing to compare."""


@dataclass(frozen=True, slots=True)
class SalesExample(OneRun):
    """The grocery transactions, one file, and products in the warehouse."""

    records: int | None = None
    """Number of transactions to use from the beginning of the file; None for all."""

    def check_installed(self) -> None:
        parquet_file("transactions"), parquet_file("products")

    def prepare(self, places: Places, say: Say) -> Params:
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
class LakeExample(OneRun):
    """51 million sales in a folder, or as many as RECORDS says; each demonstration begins with an empty lake."""

    def check_installed(self) -> None:
        wanted_records()

    def prepare(self, places: Places, say: Say) -> Params:
        sales = sales_folder(places.folder, wanted_records(), say)
        shutil.rmtree(places.lake, ignore_errors=True)
        places.lake.mkdir(mode=0o700)
        return {"sales": str(sales), "products": str(parquet_file("products"))}

    def records_read(self, params: Params) -> int | None:
        return records_in(Path(params["sales"]))

    def check(self, places: Places, params: Params) -> CheckResult:
        return check_lake(places.lake, places.warehouse_url, Path(params["sales"]), Path(params["products"]))


BEFORE, AFTER = 'clicks.groupBy("page")', """clicks.where("page NOT LIKE '/coupon%'").groupBy("page")"""
"""The change of code: pages of coupons are no longer counted."""


@dataclass(frozen=True, slots=True)
class DailyExample(Example):
    """Three days of clicks, two of which are computed again."""

    changes_code: ClassVar[bool] = True

    def check_installed(self) -> None:
        parquet_file("transactions"), parquet_file("products")

    def prepare(self, places: Places, say: Say) -> Params:
        folder = places.folder / "clicks"
        shutil.rmtree(folder, ignore_errors=True)
        places.lake.mkdir(mode=0o700, exist_ok=True)
        return {"data": str(clicks_folder(folder, say))}

    def steps(self, places: Places, params: Params, run_id: str, say: Say) -> Iterator[Step]:
        """The days of an earlier demonstration are replaced, as any day is."""
        data, changed, run_of = Path(params["data"]), set[date](), dict[date, str]()

        def backfill(airflow: Airflow) -> list[str]:
            run_of.update(airflow.backfill_days(self.dag_id, DAYS[0], DAYS[-1], params))
            return [run_of[day] for day in DAYS]

        def again(day: date) -> Callable[[Airflow], list[str]]:
            def clear(airflow: Airflow) -> list[str]:
                airflow.clear_run(self.dag_id, run_of[day])
                changed.add(day)
                return [run_of[day]]

            return clear

        def check() -> CheckResult:
            return check_clicks(places.lake, places.warehouse_url, data, changed)

        look = "two days have drivers at once, the third waits for a place; of one that is killed, the day is exact as well"
        yield Step("three days at once", backfill, check, look, kills=True)
        code = places.dags / "pipelines" / self.pipeline.partition(":")[0]
        replace_once(code, BEFORE, AFTER)
        say(f"changed {code}: {BEFORE} is {AFTER} now")
        look = "the old day stays until all of the new one is there; the log of start_run names both codes"
        yield Step(f"{DAYS[1]} again, with other code", again(DAYS[1]), check, look, kills=True)
        say(f"a file of {DAYS[0]} has come late: {late_file(data)}")
        look = f"files of this day are new in {places.lake / 'clicks'}, and no others"
        yield Step(f"{DAYS[0]} again, with a late file", again(DAYS[0]), check, look)


def replace_once(file: Path, before: str, after: str) -> None:
    """Raises `ConfigurationError` unless the file has the text once."""
    text = file.read_text()
    if text.count(before) != 1:
        raise ConfigurationError(f"{file} has {before!r} {text.count(before)} times, and should have it once")
    file.write_text(text.replace(before, after))


EXAMPLES: dict[str, Example] = {
    one.dag_id: one
    for one in (
        SalesExample("logio_sales", "sales.py:sales"),
        # Slow on purpose: all of them would take an hour.
        SalesExample("logio_sales_scaled", "sales_scaled.py:sales_scaled", records=200_000),
        LakeExample("logio_orders_lake", "orders_lake.py:orders_lake"),
        DailyExample("logio_daily", "clicks.py:clicks"),
    )
}


def example(dag_id: str) -> Example:
    """Raises `ConfigurationError`."""
    if dag_id not in EXAMPLES:
        raise ConfigurationError(f"there is no demonstration of DAG {dag_id!r}; choose {' or '.join(EXAMPLES)}")
    return EXAMPLES[dag_id]
