"""The last task of a DAG run whose run has set Input Sets aside: it says which, and is not green."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_logio.errors import UnknownRun
from airflow_logio.operators.finish_run import LogioFinishRunOperator
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import Context, encode_state
from airflow_logio.protocol.states import RunState
from airflow_logio.protocol.values import Port, Status
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from tests.support.logs import SOMEBODY, sent, start_driver
from tests.unit.airflow.support import context, write_transactions

REF = "pipelines.sales:sales"
FROM, TO = Port("ingest", "out"), Port("totals", "in")
ERROR = "pipeline 'sales', operator 'totals', Input Set '1', port 'in', event 1: KeyError: 'quantity'"


@pytest.fixture
def run(log: LogStore, tmp_path: Path) -> Run:
    """All groups have finished; `totals` has set an Input Set aside."""
    params = {"transactions": str(write_transactions(tmp_path / "transactions.parquet"))}
    start = LogioStartRunOperator(task_id="start_run", pipeline=REF, connections={"warehouse": "warehouse_db"})
    run = log.find_run(start.execute(context(params=params)))
    drivers = {group: start_driver(log, group=group, run=run) for group in run.spec.groups}
    drivers["ingest"].session.commit([sent(1, receiver=TO, sender=FROM)])
    drivers["totals"].session.commit([fx.Acknowledge(FROM, TO, 1, (("1", Status.UNDONE),))])
    state = encode_state(Context(aside=["1"], finished=True), {})
    drivers["totals"].session.commit([fx.SetAside("totals", "1", 1, ERROR), fx.StoreState("totals", state)])
    for driver in drivers.values():
        driver.session.commit([fx.FinishGroup()])
    return run


def closing(run: Run, *, fails: bool = True, log: str = "logio_default") -> LogioFinishRunOperator:
    return LogioFinishRunOperator(
        task_id="finish_run", pipeline=REF, run_uid=run.uid, fail_on_quarantine=fails, logio_conn_id=log
    )


def close(run: Run, *, fails: bool = True) -> None:
    closing(run, fails=fails).execute(context())


def test_commands_name_the_log_unless_it_is_the_default_one(
    run: Run, log: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PROD_LOG", os.environ["AIRFLOW_CONN_LOGIO_DEFAULT"])
    with pytest.raises(AirflowFailException, match=f"`logio retry {run.uid[:8]} --code new --log prod_log`, then"):
        closing(run, log="prod_log").execute(context())
    gone = replace(run, uid="none")
    with pytest.raises(UnknownRun, match="`logio status --log prod_log` lists the runs"):
        closing(gone, log="prod_log").execute(context())
    with pytest.raises(UnknownRun, match="`logio status` lists the runs"):
        closing(gone).execute(context())


def test_a_run_with_quarantine_turns_its_closing_task_red(
    log: LogStore, run: Run, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AirflowFailException) as caught:
        close(run)
    said = str(caught.value)
    assert "is finished with quarantine: 1 Input Set(s) are set aside" in said
    assert f"`logio retry {run.uid[:8]} --code new`, then clear this task" in said
    assert log.find_run(run.uid).state is RunState.QUARANTINED
    printed = caplog.text + "".join(capsys.readouterr())
    assert f"Quarantined: operator totals, Input Set 1: {ERROR}" in printed


def test_it_is_green_where_its_author_says_so_and_names_them_all_the_same(
    log: LogStore, run: Run, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO):
        close(run, fails=False)
    assert log.find_run(run.uid).state is RunState.QUARANTINED
    assert f"Quarantined: operator totals, Input Set 1: {ERROR}" in caplog.text + "".join(capsys.readouterr())


def test_cleared_after_a_retry_it_is_green(log: LogStore, run: Run) -> None:
    with pytest.raises(AirflowFailException, match="finished with quarantine"):
        close(run)
    assert [one.inset_id for one in log.retry_quarantined(run.run_id).input_sets] == ["1"]
    assert log.find_run(run.uid).state is RunState.RUNNING
    with pytest.raises(AirflowFailException, match="is not finished: totals is halted"):
        close(run)
    claim = log.claim(run.run_id, "totals", expected=1, reason="retried", by_user=True)
    session = log.session(log.register(claim, SOMEBODY))
    session.open()
    session.commit([fx.MarkDone("totals", "1", 1), fx.FinishGroup()])
    close(run)
    assert log.find_run(run.uid).state is RunState.FINISHED
