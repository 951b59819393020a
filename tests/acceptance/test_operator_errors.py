"""Errors in an operator's code, on real driver processes: parked at the same event, or set aside and put back.

What a person sees and does is done with `logio status` and `logio retry`.
"""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store.records.run_records import BacklogBound
from tests.support.bundle import faulty_windows
from tests.support.bundle.faulty_sales import COLUMNS, RECORDS_PER_EVENT, is_unlucky
from tests.support.commands import Terminal
from tests.support.crash_sites import IN_REBUILDS, IN_REPORTS
from tests.support.running import PlainLauncher, Running, running
from tests.support.warehouse import change, rows_of

pytestmark = pytest.mark.acceptance

BUNDLE = Path(__file__).parents[1] / "support" / "bundle" / "faulty_sales.py"
WINDOWS = Path(faulty_windows.__file__)
GROUPS = ("ingest", "checked", "save")
Rows = Counter[tuple[int, ...]]


@pytest.fixture
def faulty_warehouse(warehouse_url: str) -> str:
    change(warehouse_url, "CREATE TABLE mended (who TEXT)")
    return warehouse_url


def mend(url: str) -> None:
    change(url, "INSERT INTO mended VALUES ('a data engineer')")


def written(url: str) -> Rows:
    return Counter(rows_of(url, f"SELECT {', '.join(COLUMNS)} FROM sales"))


def expected(transactions: Path, *, with_unlucky: bool) -> Rows:
    """From the file alone: event n holds rows (n - 1) * 250 to n * 250."""
    columns = pq.read_table(transactions, columns=list(COLUMNS)).to_pydict()
    rows = list(zip(*(map(int, columns[name]) for name in COLUMNS), strict=True))
    return Counter(
        row for index, row in enumerate(rows) if with_unlucky or not is_unlucky(index // RECORDS_PER_EVENT + 1)
    )


def unlucky_events(transactions: Path) -> list[str]:
    events = -(-pq.read_metadata(transactions).num_rows // RECORDS_PER_EVENT)
    return [str(event) for event in range(1, events + 1) if is_unlucky(event)]


def test_an_error_that_comes_back_at_the_same_event_parks_the_group(
    log_url: str, faulty_warehouse: str, small_transactions: Path, tmp_path: Path
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(log_url, faulty_warehouse, small_transactions, launcher, ref=parse_ref(f"{BUNDLE}:failing")) as run:
        run.until(lambda: run.status("checked").state is GroupState.PARKED, "the group is parked")
        status = run.status("checked")
        assert status.incarnation == 3, "two recoveries at the same event, then no more"
        assert status.error is not None
        assert re.search(
            r"failed at event 5 on port checked\.in, Input Set '5' of operator 'checked' again", status.error
        )
        assert re.search(
            r"pipeline 'faulty', operator 'checked', port 'in', event 5 of ingest\.out, Input Set '5': "
            r"ValueError: cannot use basket \d+",
            status.error,
        )
        printed = (launcher.work_dir / "checked" / "2" / "driver.log").read_text()
        assert printed.index("faulty_sales.py") < printed.index("Traceback"), "the author's frames come before ours"
        mend(faulty_warehouse)
        run.relaunch("checked")
        run.finish()
    assert written(faulty_warehouse) == expected(small_transactions, with_unlucky=True)


@pytest.mark.parametrize("point", [None, *IN_REBUILDS])
def test_an_error_at_the_first_event_parks_the_group_without_more_drivers(
    point: CrashPoint | None, log_url: str, faulty_warehouse: str, small_transactions: Path, tmp_path: Path
) -> None:
    """It is tried once more in the same process. A driver that dies then is recovered like any other."""
    few = tmp_path / "few.parquet"
    pq.write_table(pq.read_table(small_transactions).slice(0, 5 * RECORDS_PER_EVENT), few)
    launcher = PlainLauncher(tmp_path / "drivers", {("checked", 1): f"{point}:1"} if point else {})
    with running(log_url, faulty_warehouse, few, launcher, ref=parse_ref(f"{BUNDLE}:unable")) as run:
        run.until(lambda: run.status("checked").state is GroupState.PARKED, "the group is parked")
        status = run.status("checked")
        error = status.error or ""
        if point is None:
            assert status.incarnation == 1
            assert "it failed at event 1 on port checked.in, Input Set '1' of operator 'checked', the first" in error
        else:
            assert status.incarnation == 4, "no first driver, so two recoveries at the same event, then no more"
        frame = r"KeyError: 'department'\n  File \".*faulty_sales.py\", line \d+, in process"
        assert re.search(frame, error), "the author's frames"
        assert not [line for line in error.splitlines() if "/airflow_logio/" in line], "and no others"
        mend(faulty_warehouse)
        run.relaunch("checked")
        run.finish()
    assert written(faulty_warehouse) == expected(few, with_unlucky=True)


def test_an_error_without_an_event_of_its_own_that_comes_back_parks_the_group(
    sqlite_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """While an event is accumulated, at the trigger after one, at the end of the stream: twice recovered, no more."""
    few = tmp_path / "few.parquet"
    pq.write_table(pq.read_table(small_transactions).slice(0, 10 * faulty_windows.RECORDS_PER_EVENT), few)
    launcher = PlainLauncher(tmp_path / "drivers")
    ref = parse_ref(f"{WINDOWS}:windows")
    failing = {
        "accumulate": (
            "event 7 on port accumulate.in, Input Set '1' of operator 'accumulate'",
            "accumulating an event, port 'in', event 7 of ingest.out, Input Set '1'",
        ),
        "trigger": (
            "event 7 on port trigger.in",
            "evaluating the trigger after port 'in', event 7, open Input Sets '1'",
        ),
        "flush": (
            "the flush at the end of the stream of operator 'flush'",
            "flushing at the end of the stream, open Input Sets '2'",
        ),
    }
    with running(sqlite_url, "", few, launcher, ref=ref, connections={}) as run:
        run.until(lambda: all(run.status(name).state is GroupState.PARKED for name in failing), "they are parked")
        for name, (point, place) in failing.items():
            status = run.status(name)
            assert status.incarnation == 3, "two recoveries at the same place, then no more"
            assert status.error is not None
            assert f"failed at {point} again after 2 recoveries" in status.error
            assert f"pipeline 'windows', operator '{name}', {place}: KeyError: 'basket'" in status.error


@pytest.mark.parametrize("point", IN_REPORTS)
def test_dying_around_the_report_of_an_error_twice(
    point: CrashPoint, log_url: str, faulty_warehouse: str, small_transactions: Path, tmp_path: Path
) -> None:
    """Who died before it could say where it failed is recovered like any other; the group is parked by what the log says."""
    launcher = PlainLauncher(tmp_path / "drivers", {("checked", n): f"{point}:1" for n in (1, 2)})
    settings = {"ref": parse_ref(f"{BUNDLE}:failing"), "end_old_drivers": False}
    with running(log_url, faulty_warehouse, small_transactions, launcher, **settings) as run:
        run.until(lambda: run.status("checked").state is GroupState.PARKED, "the group is parked")
        codes = [launcher.drivers["checked", n].wait(timeout=60) for n in (1, 2)]
        assert codes == [-signal.SIGKILL, -signal.SIGKILL], f"{point} was not passed"
        unsaid = 2 if point is CrashPoint.BEFORE_REPORT else 0
        assert run.status("checked").incarnation == 3 + unsaid
        mend(faulty_warehouse)
        run.relaunch("checked")
        run.finish()
    assert written(faulty_warehouse) == expected(small_transactions, with_unlucky=True)


def test_set_aside_and_put_back_after_the_end(
    log_url: str,
    faulty_warehouse: str,
    small_transactions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Drivers die on the way, too: what is aside stays aside, and comes back once."""
    armed = {("checked", 1): "before_commit:2", ("checked", 2): "after_commit:2", ("save", 1): "after_write:2"}
    launcher = PlainLauncher(tmp_path / "drivers", armed)
    with running(
        log_url, faulty_warehouse, small_transactions, launcher, ref=parse_ref(f"{BUNDLE}:quarantining")
    ) as run:
        run.finish()
        assert written(faulty_warehouse) == expected(small_transactions, with_unlucky=False)
        aside = run.store.quarantined(run.run.run_id)
        assert sorted((one.inset_id for one in aside), key=int) == unlucky_events(small_transactions)
        assert run.store.finish_run(run.run.run_id)
        assert run.store.find_run(run.run.uid).state is RunState.QUARANTINED

        terminal = Terminal(run, monkeypatch, capsys)
        check_status(terminal, run, small_transactions)
        mend(faulty_warehouse)
        before = [run.status(group).incarnation for group in GROUPS]
        code, said, _ = terminal.logio("retry", run.run.uid[:8])
        assert code == 0 and said.startswith(f"{len(aside)} quarantined Input Set(s) are retried\n"), said
        assert run.store.find_run(run.run.uid).state is RunState.FINISHED
        incarnations = [run.status(group).incarnation for group in GROUPS]
        assert incarnations == [before[0], before[1] + 1, before[2] + 1], "only what it concerns was launched again"
        described = json.loads(terminal.logio("status", run.run.uid, "--json")[1])
        assert (described["state"], described["quarantined"]) == ("finished", [])
    assert written(faulty_warehouse) == expected(small_transactions, with_unlucky=True)


def check_status(terminal: Terminal, run: Running, transactions: Path) -> None:
    """`logio status` shows what is aside, and what to do about it; and so it does for programs."""
    unlucky = unlucky_events(transactions)
    code, text, _ = terminal.logio("status", run.run.uid[:8])
    assert code == 0
    assert text.splitlines()[1].startswith("finished with quarantine, started "), text
    assert f"retry them with: `logio retry {run.run.uid[:8]}`" in text
    table = text.partition("quarantined")[2].partition("retry them")[0]
    rows = [line.split() for line in table.splitlines() if line.strip().startswith("checked")]
    assert sorted((cells[1] for cells in rows), key=int) == unlucky
    described = json.loads(terminal.logio("status", run.run.uid, "--json")[1])
    assert described["state"] == "quarantined"
    aside = described["quarantined"]
    assert sorted((one["input_set"] for one in aside), key=int) == unlucky
    for one in aside:
        assert (one["group"], one["operator"]) == ("checked", "checked")
        event = one["input_set"]
        place = f"pipeline 'faulty', operator 'checked', port 'in', event {event} of ingest.out, Input Set '{event}': "
        assert one["error"].startswith(f"{place}ValueError: cannot use basket")


def test_put_back_while_the_run_goes_on(
    log_url: str,
    faulty_warehouse: str,
    small_transactions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The driver has nothing to commit: it learns by itself that its epoch is void."""
    launcher = PlainLauncher(tmp_path / "drivers", {("ingest", 1): "before_commit:9:stop"})
    bound = BacklogBound(events=4)  # or one slow commit takes so many of the 80 events that the ninth is not the end
    ref = parse_ref(f"{BUNDLE}:quarantining")
    with running(log_url, faulty_warehouse, small_transactions, launcher, ref=ref, backlog=bound) as run:
        run.until(lambda: run.store.quarantined(run.run.run_id), "an event is set aside")
        mend(faulty_warehouse)
        code, said, _ = Terminal(run, monkeypatch, capsys).logio("retry", run.run.uid[:8])
        assert code == 0 and said.endswith("quarantined Input Set(s) are retried\n"), "no group is launched"
        run.signal("ingest", signal.SIGKILL)
        run.finish()
        assert run.status("checked").incarnation == 1, "its driver rebuilt itself"
    assert written(faulty_warehouse) == expected(small_transactions, with_unlucky=True)


@pytest.mark.parametrize("on_new_run", ["append", "replace"])
def test_put_back_after_the_next_run_has_begun(
    on_new_run: str,
    sqlite_url: str,
    faulty_warehouse: str,
    small_transactions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A table that is appended to takes the rows, each once, though a driver dies; one that was replaced does not."""
    ref = parse_ref(f"{BUNDLE}:{'appending' if on_new_run == 'append' else 'quarantining'}")
    armed = PlainLauncher(tmp_path / "first", {("save", 2): "in_warehouse_transaction:1"})
    arguments = (sqlite_url, faulty_warehouse, small_transactions)
    with running(*arguments, armed, ref=ref, name="first") as first:
        first.finish()
        aside = first.store.quarantined(first.run.run_id)
        assert first.store.finish_run(first.run.run_id)
        mend(faulty_warehouse)
        with running(*arguments, PlainLauncher(tmp_path / "second"), ref=ref, name="second") as second:
            second.finish()
        whole, part = (expected(small_transactions, with_unlucky=unlucky) for unlucky in (True, False))
        assert written(faulty_warehouse) == (whole + part if on_new_run == "append" else whole)
        code, _, told = Terminal(first, monkeypatch, capsys).logio("retry", first.run.uid[:8])
        if on_new_run == "append":
            assert code == 0, told
            assert first.status("save").incarnation == 3, "the driver died with the rows in its transaction"
            assert written(faulty_warehouse) == whole + whole
            return
        assert code == 1 and "nothing was put back: table 'sales' of connection 'warehouse' belongs to run" in told
        assert f"`logio fresh {first.run.uid[:8]}`" in told
        assert first.store.quarantined(first.run.run_id) == aside
        assert first.store.find_run(first.run.uid).state is RunState.QUARANTINED, "nothing of it is parked"
    assert written(faulty_warehouse) == whole


@pytest.mark.parametrize("point", IN_REBUILDS)
def test_dying_around_a_rebuild_twice(
    point: CrashPoint, log_url: str, faulty_warehouse: str, small_transactions: Path, tmp_path: Path
) -> None:
    """An event is put back before its cause is mended, set aside again, and put back once more."""
    launcher = PlainLauncher(tmp_path / "drivers", {("checked", n): f"{point}:1" for n in (1, 2)})
    settings = {"ref": parse_ref(f"{BUNDLE}:quarantining"), "backlog": BacklogBound(events=8)}
    with running(log_url, faulty_warehouse, small_transactions, launcher, **settings) as run:
        groups = ("ingest", "checked")  # without the one behind them, they wait
        for incarnation in (1, 2):
            run.until(partial(run.store.quarantined, run.run.run_id), "an event is set aside", *groups)
            assert run.status("checked").incarnation == incarnation
            if incarnation == 2:
                mend(faulty_warehouse)
            assert run.store.retry_quarantined(run.run.run_id).to_launch == ()
            assert launcher.drivers["checked", incarnation].wait(timeout=60) == -signal.SIGKILL, run.log_of("checked")
        run.finish()
        assert run.status("checked").incarnation == 3
    assert written(faulty_warehouse) == expected(small_transactions, with_unlucky=True)
