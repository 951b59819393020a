"""What is said at the end of `logio run` and `logio retry`: nothing that is not so, and commands that work as they are."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from airflow_logio.cli import run as run_command
from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol.values import Port
from airflow_logio.status.run_summary import Outcome, RunSummary
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Allowed, ReplicatedShape
from airflow_logio.store.records.status_records import PortProgress
from airflow_logio.store.records.upkeep_records import QuarantinedInputSet
from airflow_logio.store.rules.allowed_rules import options_in
from tests.support.two_groups import TwoGroups

Ended = Callable[..., RunSummary]


@pytest.fixture
def flow(store: LogStore) -> TwoGroups:
    return TwoGroups(store)


@pytest.fixture
def ended(flow: TwoGroups) -> Ended:
    """How the run has ended, as the log says now."""

    def summary(outcome: Outcome, aside: int = 0) -> RunSummary:
        log, run = flow.store, flow.run
        return RunSummary(
            outcome=outcome,
            run=run,
            seconds=3.0,
            groups=tuple(log.groups(run.run_id)),
            ports=tuple(log.progress(run.run_id)),
            drivers=tuple(log.drivers(run.run_id)),
            records=0,
            quarantined=tuple(
                QuarantinedInputSet("totals", "total", str(number), f"KeyError: {number}", 0.0)
                for number in range(aside)
            ),
            peak_rss={},
        )

    return summary


def said(summary: RunSummary, *, debug: bool = False) -> list[str]:
    printed = io.StringIO()
    run_command.report(Console(file=printed, width=300), summary, debug=debug)
    return printed.getvalue().splitlines()


def test_of_one_parked_group_the_command_names_it(flow: TwoGroups, ended: Ended, tmp_path: Path) -> None:
    log_path = tmp_path / "driver.log"
    log_path.write_text("its last words\n")
    flow.store.submitted(flow.drivers["totals"].claim, log_path=str(log_path), launcher=None)
    assert flow.store.park(flow.drivers["totals"].ref, "KeyError: 'department'")
    assert flow.store.halted(flow.drivers["ingest"].ref)
    lines = said(ended(Outcome.PARKED))
    assert "2 drivers launched, 0 of them recoveries" in lines
    assert "group totals is parked: KeyError: 'department'" in lines
    assert "  | its last words" in lines and f"Everything it has printed: {log_path}" in lines
    assert lines[-1].startswith(f"Fix the cause, then: `logio retry {flow.run.uid[:8]} totals` (")
    log_path.unlink()
    assert f"Everything it has printed: {log_path}" in said(ended(Outcome.PARKED)), "it may be on another machine"


def test_what_only_the_next_run_may_do_is_not_retried(flow: TwoGroups, ended: Ended) -> None:
    cause = (
        "WriteRefused: day=2026-03-01 is of another log: `logio again --pipeline p --partition 2026-03-01 --take-over`"
    )
    assert flow.store.park(flow.drivers["totals"].ref, cause)
    assert flow.store.halted(flow.drivers["ingest"].ref)
    last = said(ended(Outcome.PARKED))[-1]
    reads_it = cause.replace("WriteRefused", "ConfigurationError")
    assert (
        options_in(cause) == [Allowed.TAKE_OVER] and options_in(reads_it) == options_in("WriteRefused: --empty") == []
    )
    assert last == "Its cause names the `logio again` for the next run; a retry of this one would be refused as well"


def test_of_several_it_launches_all(flow: TwoGroups, ended: Ended) -> None:
    """One by one they would end at once, since the other one is parked."""
    for driver in flow.drivers.values():
        assert flow.store.park(driver.ref, "away")
    lines = said(ended(Outcome.PARKED))
    commands = [line for line in lines if "logio retry" in line]
    assert commands == [f"Fix the causes, then: `logio retry {flow.run.uid[:8]}` ({run_command.CHANGED})"]


def test_a_run_that_is_parked_has_not_finished_with_quarantine(flow: TwoGroups, ended: Ended) -> None:
    assert flow.store.park(flow.drivers["totals"].ref, "away")
    assert flow.store.halted(flow.drivers["ingest"].ref)
    lines = said(ended(Outcome.PARKED, aside=2))
    assert not [line for line in lines if "finished" in line]
    assert [line for line in lines if line.startswith("2 Input Set(s) are set aside. Fix the operator, then: `logio")]
    assert [
        line for line in said(ended(Outcome.QUARANTINED, aside=2)) if line.startswith("finished with quarantine: 2")
    ]


def test_what_is_not_shown_is_counted(flow: TwoGroups, ended: Ended) -> None:
    flow.finish()
    lines = said(ended(Outcome.QUARANTINED, aside=run_command.MAX_QUARANTINED + 3))
    assert sum(line.startswith("quarantined: ") for line in lines) == run_command.MAX_QUARANTINED
    assert f"... and 3 more quarantined: `logio status {flow.run.uid[:8]} --json` shows all" in lines


def test_drivers_that_have_not_ended_are_not_said_to_have(flow: TwoGroups, ended: Ended) -> None:
    """The log went away while they were halted, or Airflow supervises them."""
    assert flow.store.halted(flow.drivers["totals"].ref)
    retry = f"`logio retry {flow.run.uid[:8]}`"
    assert said(ended(Outcome.HALTED))[-1] == (
        f"halted; as the log last knew, not ended: ingest running. To continue: {retry}"
    )
    assert flow.store.halted(flow.drivers["ingest"].ref)
    assert said(ended(Outcome.HALTED))[-1] == f"halted; every driver has ended. To continue: {retry}"


def test_groups_that_finish_while_others_go_on_are_not_the_run(flow: TwoGroups, ended: Ended) -> None:
    """`logio retry RUN GROUP` of a run of Airflow."""
    flow.finish(["ingest"])
    assert said(ended(Outcome.FINISHED))[-1] == "These groups have finished; the run continues: totals running"
    flow.finish(["totals"])
    assert "the run continues" not in "".join(said(ended(Outcome.FINISHED)))


def test_the_file_has_the_authors_ports(ended: Ended, tmp_path: Path) -> None:
    """Neither slots nor Dispatchers."""
    summary = ended(Outcome.FINISHED)
    shape = ReplicatedShape(replicas=("totals.1", "totals.2"), slots=2, initial=1)
    rows = [
        PortProgress(Port(operator, "in"), "in", 3, 30, 0, 1.0, 2.0)
        for operator in ("dispatch(total)", "total[0]", "total[1]")
    ]
    run = replace(summary.run, spec=replace(summary.run.spec, replicated={"totals": shape}))
    run_command.write_json(tmp_path / "summary.json", replace(summary, run=run, ports=tuple(rows)))
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["ports"] == {"total.in in": {"events": 6, "records": 60, "bytes": 0}}


def test_a_file_that_cannot_be_written_is_named(flow: TwoGroups, ended: Ended, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"cannot be written to .*none/summary\.json.*The run itself has ended"
    ):
        run_command.write_json(tmp_path / "none" / "summary.json", ended(Outcome.FINISHED))
