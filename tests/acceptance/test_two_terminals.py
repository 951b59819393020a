"""`logio run` in one terminal beside `logio retry` in another: real driver processes, and no group is ended for the other."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from airflow_logio.cli import retry
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.status.run_summary import Outcome, RunSummary
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.supervision.local_run import DriverEnder, LocalRun
from tests.acceptance.test_operator_errors import BUNDLE, expected, faulty_warehouse, mend, written
from tests.support import commands
from tests.support.running import PlainLauncher, Running, running
from tests.support.waiting import eventually

__all__ = ["faulty_warehouse"]  # a fixture

pytestmark = pytest.mark.acceptance

REOPENED = ["checked", "save"]
_launch = retry._launch


@pytest.fixture
def few_transactions(small_transactions: Path, tmp_path: Path) -> Path:
    """40 events, three of them unlucky."""
    file = tmp_path / "few.parquet"
    pq.write_table(pq.read_table(small_transactions).slice(0, 10_000), file)
    return file


@pytest.fixture
def quarantining(log_url: str, faulty_warehouse: str, few_transactions: Path, tmp_path: Path) -> Iterator[Running]:
    launcher = PlainLauncher(tmp_path / "drivers")
    ref = parse_ref(f"{BUNDLE}:quarantining")
    with running(log_url, faulty_warehouse, few_transactions, launcher, ref=ref) as run:
        yield run


class Died(Exception):
    """Of a command that is no more."""


class Supervisor:
    """`logio run` of the whole run, or what `logio retry` does behind its launches."""

    def __init__(self, context: LaunchContext, *, halt_grace: float = 15.0) -> None:
        self.local = LocalRun(context, poll=0.05, halt_grace=halt_grace)
        self._ended: list[RunSummary] = []
        self._thread = threading.Thread(target=lambda: self._ended.append(self.local.run()), daemon=True)

    def start(self) -> Supervisor:
        self._thread.start()
        return self

    def is_open(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> RunSummary:
        self._thread.join(120)
        assert self._ended, "the terminal has shown no summary"
        return self._ended[0]


def reopen(run: Running, monkeypatch: pytest.MonkeyPatch, *, launches: bool) -> None:
    """`logio retry` up to what it launches, over its own connection to the log; it may die between reopening groups and
    launching them."""
    commands.use(run, monkeypatch)
    launched: list[str] = []

    def launch(context: LaunchContext, group: str) -> int:
        if not launches:
            raise Died
        launched.append(group)
        return _launch(context, group)

    monkeypatch.setattr(retry, "_launch", launch)
    monkeypatch.setattr(retry, "check_supervised", lambda *_: None)
    with nullcontext() if launches else pytest.raises(Died):
        retry.retry(run.run.uid, detach=True, group=None, log=None, master="local[1]", json_path=None)
    assert launched == (REOPENED if launches else [])


def once_before(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, strike: Callable[[], None]) -> None:
    """Do something just before the first call of a method."""
    method, struck = getattr(owner, name), threading.Event()

    def call(*arguments: object, **settings: object) -> object:
        if not struck.is_set():
            struck.set()
            strike()
        return method(*arguments, **settings)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("launches", [True, False], ids=["retry launches", "retry dies before it launches"])
def test_groups_reopened_before_the_run_is_finished_are_supervised_again(
    quarantining: Running,
    faulty_warehouse: str,
    few_transactions: Path,
    monkeypatch: pytest.MonkeyPatch,
    launches: bool,
) -> None:
    run, context = quarantining, quarantining.context

    def strike() -> None:
        mend(faulty_warehouse)
        reopen(run, monkeypatch, launches=launches)

    once_before(monkeypatch, run.store, "finish_run", strike)
    summary = Supervisor(context).start().end()
    assert summary.outcome is Outcome.FINISHED and summary.quarantined == ()
    assert {group.group: group.incarnation for group in summary.groups} == {"ingest": 1, "checked": 2, "save": 2}
    assert run.store.find_run(run.run.uid).state is RunState.FINISHED
    assert written(faulty_warehouse) == expected(few_transactions, with_unlucky=True)


def test_groups_reopened_after_the_run_is_finished_are_left_to_who_reopened_them(
    quarantining: Running, faulty_warehouse: str, few_transactions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = quarantining.context

    def strike() -> None:
        mend(faulty_warehouse)
        reopen(quarantining, monkeypatch, launches=True)

    once_before(monkeypatch, DriverEnder, "end", strike)
    Supervisor(context).start().end()
    summary = Supervisor(context).start().end()
    assert summary.outcome is Outcome.FINISHED
    assert {group.group: group.incarnation for group in summary.groups} == {"ingest": 1, "checked": 2, "save": 2}, (
        "the first terminal has ended no driver of the other one"
    )
    assert written(faulty_warehouse) == expected(few_transactions, with_unlucky=True)


def test_a_parked_group_that_is_retried_while_the_run_ends_keeps_its_new_driver(
    log_url: str, faulty_warehouse: str, few_transactions: Path, tmp_path: Path
) -> None:
    """The first terminal waits for a driver of another group, which stands still, when the parked one is launched again."""
    mend(faulty_warehouse)
    launcher = PlainLauncher(tmp_path / "drivers", {(group, 1): "after_commit:1:stop" for group in REOPENED})
    ref = parse_ref(f"{BUNDLE}:failing")
    with running(log_url, faulty_warehouse, few_transactions, launcher, ref=ref) as run:
        first = Supervisor(run.context, halt_grace=600).start()
        for group in REOPENED:
            eventually(partial(is_stopped, run, group), what=f"{group} stands still", timeout=90)
        eventually(
            lambda: run.status("ingest").state is GroupState.FINISHED, what="ingest has nothing to halt", timeout=90
        )
        assert run.store.park(GroupRef(run.run.run_id, "checked", 1), "KeyError: 'basket'")
        eventually(lambda: run.status("save").desired is GroupState.HALTED, what="the run is being ended", timeout=30)
        run.relaunch("checked")
        for _ in range(2):
            first.local.halt()
        assert first.end().outcome is Outcome.PARKED
        assert run.status("save").state is GroupState.HALTED
        second = Supervisor(run.context).start().end()
        assert second.outcome is Outcome.FINISHED
        assert {group.group: group.incarnation for group in second.groups} == {"ingest": 1, "checked": 2, "save": 2}
    assert written(faulty_warehouse) == expected(few_transactions, with_unlucky=True)


def test_a_group_that_was_asked_to_halt_by_a_terminal_that_is_gone_is_resumed_when_it_has_halted(
    sqlite_url: str, faulty_warehouse: str, few_transactions: Path, tmp_path: Path
) -> None:
    """The terminal was killed while it ended the run. Its wish is in the log, and a driver obeys when the next one looks."""
    mend(faulty_warehouse)
    launcher = PlainLauncher(tmp_path / "drivers", {("save", 1): "after_commit:1:stop"})
    ref = parse_ref(f"{BUNDLE}:failing")
    with running(sqlite_url, faulty_warehouse, few_transactions, launcher, ref=ref) as run:
        run.until(lambda: is_stopped(run, "save"), "save stands still")
        run.store.request(run.run.run_id, "save", GroupState.HALTED)
        looks: list[object] = []
        local = LocalRun(run.context, poll=0.05, snapshot_every=0.05)
        summaries: list[RunSummary] = []
        second = threading.Thread(target=lambda: summaries.append(local.run(looks.append)), daemon=True)
        second.start()
        eventually(lambda: len(looks) > 2, what="the second terminal has looked", timeout=60)
        run.process("save").send_signal(signal.SIGCONT)
        second.join(60)
        local.halt()
        local.halt()
        second.join(60)
        assert [one.outcome for one in summaries] == [Outcome.FINISHED]
        assert run.status("save").incarnation == 2
    assert written(faulty_warehouse) == expected(few_transactions, with_unlucky=True)


def is_stopped(run: Running, group: str) -> bool:
    return run.is_running(group) and run.process(group).status() == psutil.STATUS_STOPPED
