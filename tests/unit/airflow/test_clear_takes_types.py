"""A person clears the task of a parked group whose table has other types of columns by now: the run takes them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.store.port import LogStore
from tests.unit.airflow.support import FakeLauncher, context, register

PRICES = Path(__file__).parents[2] / "support" / "bundle" / "prices.py"
REF = "prices_of_a_dag:prices"


def test_a_clear_takes_the_types_and_a_retry_of_airflow_does_not(
    log: LogStore, launcher: FakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"item": [1], "price": [1.5]}), tmp_path / "prices.parquet")
    module = Path(shutil.copy(PRICES, tmp_path / "prices_of_a_dag.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(LogioSparkOperator, "make_launcher", lambda self: launcher)
    params = {"transactions": str(tmp_path / "prices.parquet")}
    start = LogioStartRunOperator(task_id="start_run", pipeline=REF, connections={"warehouse": "warehouse_db"})
    uid = start.execute(context(params=params))
    task = LogioSparkOperator(task_id="store", pipeline=REF, retries=3)
    with pytest.raises(TaskDeferred):
        task.execute(context())
    log.park(register(log, launcher), "a decimal does not fit into a double")
    launcher.kill()
    module.write_text(module.read_text().replace('"double"', '"decimal(20,2)"'))
    sys.modules.pop("prices_of_a_dag")
    try:
        with pytest.raises(AirflowFailException, match="a decimal does not fit into a double"):
            task.execute(context(attempt=2))
        assert log.find_run(uid).spec.former_types == {}
        with pytest.raises(TaskDeferred):
            task.execute(context(attempt=2, max_tries=4))
        assert start.execute(context(params=params)) == uid
    finally:
        sys.modules.pop("prices_of_a_dag")
    assert log.find_run(uid).spec.former_types == {"save": {"price": ("double",)}}
    code = launcher.codes[-1]
    assert code is not None and b"decimal(20,2)" in code.files["prices_of_a_dag.py"]
    assert [claim.incarnation for claim in launcher.claims] == [1, 2]
