"""Code of an author that does not return, on real driver processes: seen, and ended where there is a limit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.protocol.states import GroupState
from airflow_logio.run_report import report
from tests.support.bundle import hanging
from tests.support.commands import Terminal
from tests.support.running import PlainLauncher, running
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

pytestmark = pytest.mark.acceptance

EVENTS = 12
BUNDLE = Path(hanging.__file__)


class Gate:
    """Who waits."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gate"
        count = EVENTS * hanging.RECORDS_PER_EVENT
        self.numbers = folder / "numbers.parquet"
        pq.write_table(pa.table({"n": range(count), "gate": [str(self.path)] * count}), self.numbers)

    def close(self, who: str) -> Path:
        file = Path(f"{self.path}.{who}")
        file.touch()
        return file

    def assert_exact(self, url: str) -> None:
        size = hanging.RECORDS_PER_EVENT * hanging.EVENTS_PER_SUM
        sums = [
            (batch + 1, sum(range(batch * size, (batch + 1) * size)))
            for batch in range(EVENTS // hanging.EVENTS_PER_SUM)
        ]
        assert sorted(rows_of(url, "SELECT batch, total FROM totals")) == sums


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def settings(gate: Gate, pipeline: str) -> dict[str, Any]:
    return {"ref": parse_ref(f"{BUNDLE}:{pipeline}"), "params": {"numbers": str(gate.numbers)}}


PLACES = {
    ("generate", "totals"): "`generate` of Input Set '3' of operator 'totals'",
    ("read", "read"): "`read` of read action 1 after 0 records of operator 'read'",
}


@pytest.mark.parametrize(("who", "group"), PLACES)
def test_what_takes_too_long_is_recovered_and_the_result_is_exact(
    who: str, group: str, log_url: str, warehouse_url: str, gate: Gate, tmp_path: Path
) -> None:
    closed = gate.close(who)
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(log_url, warehouse_url, Path(), launcher, **settings(gate, "hanging")) as run:
        run.until(lambda: run.status(group).incarnation == 2, "it is recovered")
        closed.unlink()
        run.finish()
        first = next(one for one in run.store.drivers(run.run.run_id) if one.group == group and one.incarnation == 1)
        assert first.error is not None and f"{PLACES[who, group]} has run for" in first.error
        assert f"max_seconds={hanging.MAX_SECONDS}" in first.error
        assert "hanging.py" in (tmp_path / "drivers" / group / "1" / "driver.log").read_text(), "where it hung"
    gate.assert_exact(warehouse_url)


def test_what_hangs_at_the_same_place_for_the_third_time_is_parked(
    sqlite_url: str, warehouse_url: str, gate: Gate, tmp_path: Path
) -> None:
    closed = gate.close("generate")
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(sqlite_url, warehouse_url, Path(), launcher, **settings(gate, "hanging")) as run:
        run.until(lambda: run.status("totals").state is GroupState.PARKED, "it is parked")
        assert run.status("totals").incarnation == 3
        assert "failed at Input Set '3' of operator 'totals' again" in (run.status("totals").error or "")
        closed.unlink()
        run.relaunch("totals")
        run.finish()
    gate.assert_exact(warehouse_url)


def test_a_group_that_is_to_be_parked_is_parked_at_once(
    log_url: str, warehouse_url: str, gate: Gate, tmp_path: Path
) -> None:
    closed = gate.close("generate")
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(log_url, warehouse_url, Path(), launcher, **settings(gate, "parking")) as run:
        run.until(lambda: run.status("totals").state is GroupState.PARKED, "it is parked")
        assert run.status("totals").incarnation == 1
        assert "longer than its max_seconds=1.5" in (run.status("totals").error or "")
        eventually(lambda: launcher.drivers["totals", 1].poll() is not None, what="its driver has ended")
        closed.unlink()
        run.relaunch("totals")
        run.finish()
    gate.assert_exact(warehouse_url)


@pytest.mark.parametrize("point", [CrashPoint.BEFORE_REPORT, CrashPoint.AFTER_REPORT])
def test_a_driver_that_dies_while_it_reports_what_hangs_is_recovered(
    point: CrashPoint, sqlite_url: str, warehouse_url: str, gate: Gate, tmp_path: Path
) -> None:
    closed = gate.close("generate")
    launcher = PlainLauncher(tmp_path / "drivers", {("totals", 1): f"{point}:1"})
    with running(sqlite_url, warehouse_url, Path(), launcher, **settings(gate, "hanging")) as run:
        run.until(lambda: run.status("totals").incarnation == 2, "it is recovered")
        closed.unlink()
        run.finish()
    gate.assert_exact(warehouse_url)


def test_without_a_limit_it_is_shown_where_a_driver_hangs(
    sqlite_url: str,
    warehouse_url: str,
    gate: Gate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(report, "LONG_CALL_SECONDS", 2.0)
    closed = gate.close("generate")
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(sqlite_url, warehouse_url, Path(), launcher, **settings(gate, "patient")) as run:
        terminal = Terminal(run, monkeypatch, capsys)
        shown = re.compile(r"totals: in `generate` of Input Set '3' of operator 'totals' for [2-9] s")
        run.until(lambda: shown.search(terminal.logio("status", run.run.uid)[2]), "it is shown", timeout=30)
        assert run.status("totals").incarnation == 1, "no code has failed"
        groups = json.loads(terminal.logio("status", run.run.uid, "--json")[1])["groups"]
        assert groups["totals"]["call"]["what"] == PLACES["generate", "totals"]
        assert groups["save"]["call"] is None
        closed.unlink()
        run.finish()
    gate.assert_exact(warehouse_url)
