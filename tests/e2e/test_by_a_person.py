"""What a person does to runs in the UI of a real Airflow, and what becomes of the drivers.

Second runs and backfills, a task that is marked successful, a run that is given up for a fresh one, one that is deleted; and
deadlines of recoveries, missed and met. Killed, marked failed and cleared are in `test_sales_in_airflow.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import UnderWay
from demo.rest import AirflowRefused
from demo.standalone import warehouse_connection
from tests.support.airflow_installation import LONG, SHORT, AirflowInstallation
from tests.support.grocery import expected, write_slice
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(2400)]

log = logging.getLogger(__name__)

ONE, DAYS, COUNTED = "one_run", "isolated_days", "counted"
RECOVERY, MET, MISSED, FRESH = "recovery_with_deadlines", "logio_recovered", "hurried", "logio_fresh"
FIRST, GROUP = "first", "sums.all"
RECORDS = 100_000
RECORDS_PER_BATCH = 250 * 10
DATES = (date(2024, 1, 1), date(2024, 1, 2))
TABLES = ("one", "counted", *(f"{day:%Y%m%d}" for day in DATES))


class Installation(AirflowInstallation):
    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self.sums = {name: f"sqlite:///{folder}/{name}.db" for name in TABLES}
        connections = {
            f"AIRFLOW_CONN_SUMS_{name.upper()}": warehouse_connection(url) for name, url in self.sums.items()
        }
        super().__init__(folder, server, connections)
        self.slow, self.stuck = folder / "slow", folder / "stuck"
        self.slow.touch()
        self.transactions = write_slice(folder / "transactions.parquet", RECORDS)
        self.conf = {"transactions": str(self.transactions), "folder": str(folder)}
        # The shipped DAG, in a hurry, and with time enough on any machine.
        shipped = self.places.dags / "logio_recovered.py"
        text = shipped.read_text()
        assert text.count("seconds=60") == 1
        hurried = text.replace('"logio_recovered"', f'"{MISSED}"').replace("seconds=60", "seconds=5")
        (self.places.dags / "hurried.py").write_text(hurried)
        shipped.write_text(text.replace("seconds=60", "seconds=600"))

    def wait_for_task(self, dag_id: str, run_id: str, task: str, state: str) -> None:
        def reached() -> bool:
            return self.person.states(dag_id, run_id).get(task) == state

        eventually(reached, what=f"{task} of {dag_id} {run_id} is {state}", timeout=LONG, every=0.3)

    def wait_for_run(self, dag_id: str, run_id: str, state: str) -> None:
        def reached() -> bool:
            return self.person.run_state(dag_id, run_id) == state

        eventually(reached, what=f"{run_id} of {dag_id} is {state}", timeout=LONG, every=0.3)

    def wait_for_halt(self, run: Run) -> None:
        """Its group is halted, and nothing of its drivers runs."""
        halted = lambda: self.group_of(run, "all").state is GroupState.HALTED  # noqa: E731
        eventually(halted, what="the group halts", timeout=LONG, every=0.1)
        eventually(lambda: not self.drivers(run), what="its driver and JVM end", timeout=SHORT, every=0.2)

    def wait_until_watched(self, dag_id: str, run_id: str, task: str) -> None:
        """A trigger of the task's last attempt runs: what a person does to a deferred task before that, no trigger sees."""
        self.wait_for_task(dag_id, run_id, task, "deferred")
        path = f"dag_id={dag_id}/run_id={run_id}/task_id={task}/"

        def watched() -> bool:
            logs = [one for one in (self.places.airflow_home / "logs").rglob("*.trigger.*.log") if path in str(one)]
            texts = [one.read_text(errors="replace") for one in sorted(logs, key=lambda one: one.stat().st_mtime)]
            return bool(texts) and ' starting"' in texts[-1] and "trigger completed" not in texts[-1]

        eventually(watched, what=f"{task} is watched", timeout=SHORT, every=0.1)

    def is_exact(self, table: str) -> bool:
        rows = rows_of(self.sums[table], "SELECT batch, product_id, quantity, sales_cents FROM item_totals")
        return len(set(rows)) == len(rows) and set(rows) == expected(self.transactions, RECORDS_PER_BATCH).totals


@pytest.fixture
def installation(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Installation]:
    here = Installation(tmp_path, postgres_server)
    try:
        here.airflow.migrate()
        here.airflow.start()
        here.wait_until_healthy(ONE, DAYS, COUNTED, RECOVERY, MET, MISSED, FRESH)
        yield here
    finally:
        here.close()


def test_what_a_person_does(installation: Installation) -> None:
    here = installation
    began = time.monotonic()
    try:
        for dag_id in (RECOVERY, MET, MISSED):
            here.person.unpause(dag_id)
        here.person.begin(ONE, FIRST, here.conf)
        here.person.begin(COUNTED, FIRST, here.conf)
        for step in STEPS:
            step(here)
            log.info("%6.1f s  %s", time.monotonic() - began, step.__name__)
    except BaseException as error:
        error.add_note(here.last_words())
        raise


def a_second_run_and_a_backfill_are_refused(here: Installation) -> None:
    here.wait_for_task(ONE, FIRST, "sums.start_run", "success")
    here.person.begin(ONE, "second", here.conf)
    here.person.backfill(ONE, DATES[0], DATES[0], here.conf, at_once=1)
    others = eventually(lambda: [run for run in here.person.runs(ONE) if run != FIRST], what="the DAG runs are made")
    assert len(others) == 2
    for run_id in others:
        here.wait_for_task(ONE, run_id, "sums.start_run", "failed")
        here.wait_for_run(ONE, run_id, "failed")
        said = here.person.log(ONE, run_id, "sums.start_run")
        assert here.run(ONE).uid[:8] in said, said
    assert [run.spec.key.dag_run_id for run in here.runs(ONE)] == [FIRST]


def a_missed_deadline_calls_and_one_that_is_met_does_not(here: Installation) -> None:
    """One recovery that takes longer than the hurried deadline, and less than the other one."""
    run = here.run(COUNTED)
    driver = here.driver_of(run, "all")
    here.stuck.touch()
    driver.kill()
    [missed] = eventually(lambda: here.person.runs(MISSED), what="the recovery is waited for", timeout=LONG, every=0.3)
    [met] = eventually(lambda: here.person.runs(MET), what="it is waited for twice", timeout=SHORT, every=0.3)
    was_missed = lambda: here.person.missed_deadlines(MISSED, missed) == [True]  # noqa: E731
    eventually(was_missed, what="the deadline is missed", timeout=SHORT, every=0.2)
    assert here.person.run_state(MISSED, missed) == "running", "the recovery is not over"
    here.stuck.unlink()
    for dag_id, run_id in ((MISSED, missed), (MET, met)):
        here.wait_for_run(dag_id, run_id, "success")
        assert here.person.result(dag_id, run_id, "recovered") > 5
    assert here.person.missed_deadlines(MET, met) == []
    calls = eventually(lambda: called(here), what="the callback runs", timeout=SHORT, every=0.5)
    assert all("Group all of pipeline counted is not recovered within 0:00:05" in call for call in calls), calls


def called(here: Installation) -> list[str]:
    """What deadlines have called, in all logs of Airflow."""
    logs = [*(here.places.airflow_home / "logs").rglob("*.log"), here.airflow.log("scheduler")]
    lines = [line for one in logs if one.is_file() for line in one.read_text(errors="replace").splitlines()]
    return [line for line in lines if "is not recovered within" in line]


def marked_successful_it_halts(here: Installation) -> None:
    run = here.run(ONE)
    here.driver_of(run, "all")
    here.wait_until_watched(ONE, FIRST, GROUP)
    here.person.mark(ONE, FIRST, GROUP, "success")
    here.wait_for_halt(run)
    here.wait_for_run(ONE, FIRST, "failed")
    states = here.person.states(ONE, FIRST)
    assert (states[GROUP], states["sums.finish_run"]) == ("success", "failed"), "the log counts, not the mark"
    assert "run first of one is not finished: all is " in here.person.log(ONE, FIRST, "sums.finish_run")


def given_up_it_begins_anew(here: Installation) -> None:
    run = here.run(ONE)
    here.person.begin(FRESH, "no", {"run": run.uid})
    asked(here, "no", run.uid)
    here.person.answer(FRESH, "no", "ask", "Reject")
    here.wait_for_run(FRESH, "no", "success")
    assert here.person.states(FRESH, "no")["give_up"] == "skipped"
    assert here.log.find_run(run.uid).state is RunState.RUNNING
    here.person.begin(FRESH, "give_up", {"run": run.uid})
    asked(here, "give_up", run.uid)
    here.person.answer(FRESH, "give_up", "ask", "Approve")
    here.wait_for_run(FRESH, "give_up", "success")
    assert here.log.find_run(run.uid).state is RunState.SUPERSEDED
    here.person.clear(ONE, FIRST, "sums.start_run")
    fresh = eventually(lambda: [one for one in here.runs(ONE) if one.uid != run.uid], what="a fresh run", timeout=LONG)
    assert [one.spec.key.dag_run_id for one in fresh] == [FIRST]
    here.driver_of(fresh[0], "all")
    assert here.group_of(fresh[0], "all").incarnation == 1


def asked(here: Installation, dag_run: str, uid: str) -> None:
    """A person is asked, and told which run it is."""
    text = eventually(
        lambda: here.person.waits_for_answer(FRESH, dag_run, "ask"), what="a person is asked", timeout=LONG, every=0.5
    )
    assert text is not None and uid in text and "all is halted" in text, text
    # Airflow counts a task as failed that is answered before its executor has reported the end of its first part.
    reported = f"TaskInstance Finished: dag_id={FRESH}, task_id=ask, run_id={dag_run},"
    eventually(lambda: reported in here.airflow.log("scheduler").read_text(), what="it is reported", timeout=SHORT)


def deleted_it_leaves_nothing_running(here: Installation) -> None:
    run = here.run(ONE)
    here.wait_until_watched(ONE, FIRST, GROUP)
    with pytest.raises(AirflowRefused) as refused:
        here.person.delete_run(ONE, FIRST)
    assert refused.value.status == 409, "Airflow deletes no DAG run that is running"
    here.person.fail_run(ONE, FIRST)
    here.person.delete_run(ONE, FIRST)
    assert FIRST not in here.person.runs(ONE)
    here.wait_for_halt(run)
    assert here.run(ONE).state is RunState.RUNNING, "it has not finished, and says so"


def isolated_days_go_on_side_by_side(here: Installation) -> None:
    here.person.unpause(DAYS)
    here.person.backfill(DAYS, *DATES, here.conf, at_once=2)
    runs = eventually(lambda: here.runs(DAYS) if len(here.runs(DAYS)) == 2 else [], what="both begin", timeout=LONG)
    for run in runs:
        here.driver_of(run, "all")
    assert {here.group_of(run, "all").state for run in runs} == {GroupState.RUNNING}, "at the same time"


def what_goes_on_is_exact(here: Installation) -> None:
    here.slow.unlink()
    for dag_id in (DAYS, COUNTED):
        for run_id in here.person.runs(dag_id):
            here.wait_for_run(dag_id, run_id, "success")
    for run in [*here.runs(DAYS), here.run(COUNTED)]:
        assert here.log.find_run(run.uid).state is RunState.FINISHED
        assert here.log.under_way(run.run_id) == UnderWay({}, {})
    assert [table for table in TABLES if table != "one" and not here.is_exact(table)] == []
    eventually(lambda: not here.drivers(), what="no driver and no JVM is left", timeout=SHORT, every=0.2)


STEPS = (
    a_second_run_and_a_backfill_are_refused,
    a_missed_deadline_calls_and_one_that_is_met_does_not,
    marked_successful_it_halts,
    given_up_it_begins_anew,
    deleted_it_leaves_nothing_running,
    isolated_days_go_on_side_by_side,
    what_goes_on_is_exact,
)
