"""Orders of a day as a lake that its run owns, in a folder of the day, by store; late ones are left out, or superseded."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_logio import Count, DatasetWriter, Days, FolderSource, OwnPartition, Pipeline, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@stateless(mode="dataframe")
def dated(orders: DataFrame, params: Any) -> DataFrame:
    """With the column by which the folder is divided."""
    from pyspark.sql import functions as F

    return orders.withColumn("day", F.lit(params["day"]))


def allowed(records: DataFrame, params: Any) -> str | None:
    """Takes as long as there is a file that says so, kills its driver once, if there is one, and refuses until there is one
    that allows."""
    orders = records.filter("store = 2").count()
    while Path(f"{params['orders']}.slow").exists():
        Path(f"{params['orders']}.reached").touch()
        time.sleep(0.05)
    if (fault := Path(f"{params['orders']}.fault")).exists():
        fault.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return None if Path(f"{params['orders']}.allowed").exists() else f"{orders} orders of store 2"


def _made(audit: Any = None, *, keeps_late: bool = False, switch: str = "at the end") -> Pipeline:
    made = Pipeline("lake_days", params={"orders": str}, partition=Days("day"), connections=["lake"])
    web = made.source("web", FolderSource("{orders}"))
    own = made.operator("own", OwnPartition("day", on="ts", mode="dataframe"), web)
    named = made.operator("dated", dated, own.port("own"))
    kept = DatasetWriter(
        "lake",
        "kept",
        partition_by=("day", "store"),
        on_new_run="overwrite",
        by=("day",),
        audit=audit,
        switch=switch,
    )
    made.writer("keep", kept, named)
    if keeps_late:
        late = DatasetWriter("lake", "late", partition_by=("store",), on_new_run="supersede", audit=audit)
        made.writer("late", late, own.port("other"))
    else:
        made.sink("late", Count(), own.port("other"))
    made.group("all", "web", "own", "dated", "keep", "late")
    return made


days = _made()
audited = _made({"of the day": "SELECT id, day FROM records WHERE day <> :day OR ts < :day_start", "allowed": allowed})
late = _made(keeps_late=True)
audited_late = _made({"allowed": allowed}, keeps_late=True)
filled = _made(switch="at once")
