"""`logio status RUN`: what it shows of a run, once and again and again, through an outage of the log and Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from airflow_logio import Days
from airflow_logio.cli import display
from airflow_logio.cli.app import main
from airflow_logio.cli.run_tables import MAX_QUARANTINED
from airflow_logio.cli.status import FINISHING_SECONDS, JsonScreen, PlainScreen, Screen, TerminalScreen, watch
from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.states import GroupState
from airflow_logio.run_report.report import Report, Reporter
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Load, Standby
from airflow_logio.systems.calls import CallWatch
from tests.support.logs import replace_driver, spec
from tests.support.postgres import PostgresServer
from tests.support.two_groups import TwoGroups
from tests.support.waiting import eventually


@pytest.fixture
def flow(store: LogStore) -> TwoGroups:
    """10 events sent, 7 used, and `totals` has been recovered once."""
    run = TwoGroups(store)
    run.send(10, 500)
    store.heartbeat(run.drivers["totals"].ref, 1, ready=True, rss_bytes=1 << 20)
    run.recover("totals")
    run.use(7, 350, output_sets=2)
    return run


@pytest.fixture
def logio(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """One command: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGIO_URL", sqlite_url)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["logio", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return command


Logio = Callable[..., tuple[int, str, str]]


def row(text: str, beginning: str) -> list[str]:
    """The cells of the first line that begins so, split at blanks."""
    lines = [line for line in text.splitlines() if line.strip().startswith(beginning)]
    assert lines, f"no line begins with {beginning!r}:\n{text}"
    return lines[0].split()


# --- one look ---------------------------------------------------------------------------------------------------------


def test_one_look_shows_lag_drivers_and_recoveries(flow: TwoGroups, logio: Logio) -> None:
    code, text, said = logio("status", flow.run.uid[:8])
    assert code == 0
    assert f"uid {flow.run.uid}" in text
    assert row(text, "read.out → total.in")[3:] == ["10", "7", "3", "3", "150"]
    assert row(text, "totals ")[:4] == ["totals", "running", "2", "1"]
    assert "2 writes" in text and "lag 3 events" in text
    assert row(text, "totals/1")[-2:] == ["test", "test"], "why launched, why ended"
    recovery = row(text, "totals/2  ")
    assert recovery, text
    assert "in all" in text and text.count(" s ") >= 3
    assert "totals, incarnation 1 (earlier): test" in said


def test_what_is_quarantined_is_shown_up_to_a_number(flow: TwoGroups, logio: Logio) -> None:
    """For people; programs get all of it."""
    insets = [f"{number:03d}" for number in range(MAX_QUARANTINED + 2)]
    error = "pipeline 'sales', operator 'total', port 'in', event 1 of read.out, Input Set [red]: KeyError: 'hour'"
    whole = f'{error}\n  File "shop.py", line 7, in total\n    return hours[hour]'
    flow.set_aside(*insets, error=whole)
    code, text, _ = logio("status", flow.run.uid[:8])
    assert code == 0
    aside = text.partition("quarantined")[2]
    shown = [line for line in aside.splitlines() if line.startswith("total ")]
    assert [line.split()[1] for line in shown] == insets[:MAX_QUARANTINED]
    assert all(line.rstrip().endswith(error) for line in shown), "its first line, uncut"
    assert "shop.py" not in aside
    assert "whole errors, with the author's frames: --json" in aside
    assert "... and 2 more (all with --json)" in aside
    assert f"retry them with: `logio retry {flow.run.uid[:8]}`" in aside
    _, text, _ = logio("status", flow.run.uid, "--json")
    found = json.loads(text)["quarantined"]
    assert [one["input_set"] for one in found] == insets
    assert {(one["group"], one["operator"], one["error"]) for one in found} == {("totals", "total", whole)}
    finish(flow)
    _, text, _ = logio("status", flow.run.uid[:8])
    assert text.splitlines()[1].startswith("finished with quarantine, started "), text


def test_what_is_not_done_is_shown(flow: TwoGroups, logio: Logio) -> None:
    """Besides the three events that lag: two rows of an event in open Input Sets, and a pending write action."""
    flow.hold("A", "B")
    code, text, _ = logio("status", flow.run.uid[:8])
    assert code == 0
    assert row(text, "read.out → total.in")[3:7] == ["10", "7", "3", "5"]
    pending = text.partition("pending write actions")[2].split()
    assert pending[:2] == ["save.warehouse", "1"]
    _, text, _ = logio("status", flow.run.uid, "--json")
    found = json.loads(text)
    assert [one["undone_events"] for one in found["connections"]] == [5, 0]
    assert found["pending_writes"] == {"save.warehouse": 1}
    totals = found["groups"]["totals"]
    assert (totals["undone_events"], totals["pending_writes"]) == (5, 1)
    assert "pending" not in {row["direction"] for row in found["ports"]}


def test_the_same_as_json(flow: TwoGroups, logio: Logio) -> None:
    code, text, _ = logio("status", flow.run.uid, "--json")
    found = json.loads(text)
    assert code == 0
    feed, fused = found["connections"]
    assert (feed["from"], feed["to"], feed["to_group"]) == ("read.out", "total.in", "totals")
    assert feed["sent"] == {"events": 10, "records": 500}
    assert feed["acknowledged"] == {"events": 7, "records": 350}
    assert feed["lag"] == {"events": 3, "records": 150}
    assert fused["lag"] == {"events": 0, "records": 0}
    totals = found["groups"]["totals"]
    assert (totals["state"], totals["desired"], totals["incarnation"]) == ("running", "running", 2)
    assert (totals["commits"], totals["writes"], totals["lag"]["events"]) == (1, 2, 3)
    assert totals["last_error"] | {"log": None} == {
        "incarnation": 1, "text": "test", "log": None, "is_present": False
    }  # fmt: skip
    assert found["groups"]["ingest"]["last_error"] is None
    (recovery,) = found["recoveries"]
    assert (recovery["group"], recovery["incarnation"], recovery["cause"]) == ("totals", 2, "test")
    times = [recovery[f"{step}_at"] for step in ("last_heartbeat", "detected", "fenced", "running", "first_commit")]
    assert times == sorted(times)
    assert recovery["launched_at"] is None and "launched" not in recovery["seconds_of_steps"]
    assert recovery["recovery_seconds"] == pytest.approx(times[-1] - times[1], abs=0.01)


def test_the_error_of_a_dead_group_and_brackets_in_it(flow: TwoGroups, store: LogStore, logio: Logio) -> None:
    ref = flow.drivers["totals"].ref
    assert store.declare_dead(ref, "operator said [/red] [bold]no\nand more")
    code, text, said = logio("status", flow.run.uid)
    assert code == 0
    assert row(text, "totals ")[1] == "dead"
    assert "totals: operator said [/red] [bold]no\nand more" in said and "driver log: none" in said
    assert "operator said [/red] [bold]no" in text


def test_what_a_group_is_asked_to_be(flow: TwoGroups, store: LogStore, logio: Logio) -> None:
    store.request(flow.run.run_id, "ingest", GroupState.HALTED)
    _, text, _ = logio("status", flow.run.uid)
    assert "running (to be halted)" in text


def test_watching_needs_a_run(logio: Logio) -> None:
    code, _, said = logio("status", "--watch")
    assert code == 2 and "name the run to watch" in said


# --- again and again --------------------------------------------------------------------------------------------------


class Looks:
    """Scripted looks: reports, errors, and what happens between them."""

    def __init__(self, reporter: Reporter, *script: Callable[[], object] | Exception) -> None:
        self._reporter = reporter
        self._script = list(script)

    def __call__(self) -> Report:
        step = self._script.pop(0) if self._script else lambda: None
        if isinstance(step, Exception):
            raise step
        step()
        return self._reporter.look()


def watched(screen: Screen, looks: Looks, slept: Callable[[float], None] = lambda _: None) -> None:
    with screen:
        watch(looks, screen, 1.0, sleep=slept)


def finish(flow: TwoGroups) -> None:
    flow.use(3, 150)
    flow.finish()
    assert flow.store.finish_run(flow.run.run_id)


def test_plain_lines_until_the_run_has_ended(flow: TwoGroups, store: LogStore) -> None:
    printed = io.StringIO()
    looks = Looks(
        Reporter(store, flow.run.uid),
        lambda: None,
        lambda: flow.drivers.update(ingest=replace_driver(flow.drivers["ingest"])),
        lambda: flow.send(1, 50),
        LogUnavailable("connection refused"),
        LogUnavailable("connection refused"),
        lambda: flow.use(1, 50),
        lambda: finish(flow),
    )
    watched(PlainScreen(Console(file=printed, width=200)), looks)
    lines = printed.getvalue().splitlines()
    assert lines[0].endswith(" s  ingest 50% 10 events | totals inc 2 35% 7 events")
    assert "ingest: recovery by incarnation 2: test" in lines
    assert any(line.startswith("ingest: recovered, first commit ") for line in lines)
    away = [line for line in lines if "log unavailable since" in line]
    assert len(away) == 1 and away[0].endswith("UTC: connection refused"), "said once"
    assert any(line.startswith("the log is back after ") for line in lines)
    assert lines[-1] == "finished: ingest finished, totals finished"


def test_one_json_object_per_line(flow: TwoGroups, store: LogStore, capsys: pytest.CaptureFixture[str]) -> None:
    looks = Looks(
        Reporter(store, flow.run.uid), lambda: None, LogUnavailable("connection refused"), lambda: finish(flow)
    )
    watched(JsonScreen(), looks)
    first, away, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first["connections"][0]["lag"]["events"] == 3
    assert away["error"] == "connection refused" and first["at"] <= away["log_away_since"] <= away["at"]
    assert (last["state"], last["connections"][0]["lag"]["events"]) == ("finished", 0)


def test_a_page_on_a_terminal(flow: TwoGroups, store: LogStore) -> None:
    painted = io.StringIO()
    xterm = {"TERM": "xterm"}  # whatever runs the tests
    console = Console(file=painted, force_terminal=True, width=160, height=50, color_system=None, _environ=xterm)
    looks = Looks(
        Reporter(store, flow.run.uid), lambda: None, LogUnavailable("connection refused"), lambda: finish(flow)
    )
    watched(TerminalScreen(console), looks)
    text = painted.getvalue()
    assert "read.out → total.in" in text and "totals/2" in text
    assert "log unavailable since" in text and "connection refused" in text
    final = text.rpartition("run run-1 of sales")[2]
    assert "finished" in final and "log unavailable" not in final


def test_a_finished_run_that_nobody_marks_is_watched_for_a_while(flow: TwoGroups, store: LogStore) -> None:
    now, shown = 0.0, list[Report]()

    class Kept(JsonScreen):
        def show(self, report: Report) -> None:
            shown.append(report)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    flow.finish()
    watch(Reporter(store, flow.run.uid).look, Kept(), 10.0, sleep=sleep, clock=lambda: now)
    assert now == FINISHING_SECONDS
    assert all(report.is_finishing and not report.has_ended for report in shown)


def test_a_run_with_a_halted_group_and_none_that_runs_has_ended(flow: TwoGroups, store: LogStore) -> None:
    flow.finish(["ingest"])
    reporter = Reporter(store, flow.run.uid)
    assert not reporter.look().has_ended
    assert store.halted(flow.drivers["totals"].ref)
    assert reporter.look().has_ended


def test_what_stands_by_is_shown_with_its_memory(flow: TwoGroups, logio: Logio) -> None:
    assert "standby" not in logio("status", flow.run.uid)[1], "no column for what no group has"
    load = Load(1.0, 0.0, 1.0, 0.0, 0, 0, 0, 0, standby=Standby(4711, True, 512 << 20))
    flow.store.heartbeat(flow.drivers["totals"].ref, 1, ready=True, rss_bytes=1 << 20, load=load)
    printed = logio("status", flow.run.uid)[1]
    [row] = [line for line in printed.splitlines() if line.startswith("totals ")]
    assert "ready, 512 MB" in row
    shown = json.loads(logio("status", flow.run.uid, "--json")[1])["groups"]
    assert shown["totals"]["standby"] == {"pid": 4711, "ready": True, "rss_bytes": 512 << 20}
    assert shown["ingest"]["standby"] is None


def test_what_waits_for_an_external_system_is_shown_at_once_with_its_cause(flow: TwoGroups, logio: Logio) -> None:
    """By `logio status`, and by `logio run`, on a terminal and elsewhere."""
    calls = CallWatch()
    calls.waits("write action 3 of 'publish'", "connection 'wh': canceling statement due to statement timeout")
    wait, seconds = calls.longest()
    load = Load(1.0, 0.0, 1.0, 0.0, 0, 0, 0, 0, call=wait, call_seconds=seconds)
    flow.store.heartbeat(flow.drivers["totals"].ref, 1, ready=True, rss_bytes=1 << 20, load=load)
    _, _, said = logio("status", flow.run.uid)
    assert f"totals: in {wait} for 0 s" in " ".join(said.split())
    shown = json.loads(logio("status", flow.run.uid, "--json")[1])["groups"]["totals"]
    assert shown["call"]["what"] == wait
    snapshot = Reporter(flow.store, flow.run.uid).look().snapshot
    for width in (None, 300):
        console = Console(file=io.StringIO(), force_terminal=width is not None, width=300)
        with display.Progress(console) as progress:
            progress.show(snapshot)
            progress.show(snapshot)
        said = console.file.getvalue()  # type: ignore[attr-defined]
        assert f"totals: in {wait}" in said
        assert width is not None or said.count("`wait`") == 1, "a line that stays is said once"


def test_a_driver_that_is_silent_is_not_shown_as_if_it_ran(
    flow: TwoGroups, sqlite_url: str, logio: Callable[..., tuple[int, str, str]]
) -> None:
    """Its triggerer has died, say: it was not declared dead. That comes first, and on standard output."""
    flow.store.heartbeat(flow.drivers["totals"].ref, 1, ready=True, rss_bytes=1 << 20)
    beats = sqlite3.connect(sqlite_url.removeprefix("sqlite:///") + ".heartbeat")
    with beats:
        beats.execute("UPDATE logio_heartbeat SET at = at - 184 WHERE group_name = 'totals'")
    beats.close()
    code, printed, said = logio("status", flow.run.uid)
    assert code == 0 and "heartbeat" not in said
    first, *_ = printed.splitlines()
    assert first.startswith("warning: group totals is running, no heartbeat for 18"), printed
    assert "no supervisor has declared it dead" in first
    [row] = [line for line in printed.splitlines() if line.startswith("totals ")]
    assert "running, no heartbeat for 18" in row
    assert "totals running, no heartbeat for 18" in logio("status")[1]
    shown = json.loads(logio("status", flow.run.uid, "--json")[1])["groups"]["totals"]
    assert 184 <= shown["heartbeat_seconds_ago"] < 200
    store = open_store(sqlite_url)
    assert "totals running, no heartbeat for 18" in display.line(Reporter(store, flow.run.uid).look().snapshot)
    store.dispose()


# --- the command itself -----------------------------------------------------------------------------------------------


class Watching:
    """`logio status RUN --watch` as a process; what it prints goes to files."""

    def __init__(self, url: str, folder: Path, *arguments: str) -> None:
        environment = {**os.environ, "LOGIO_URL": url, "PYTHONPATH": str(Path(__file__).parents[3])}
        self._printed, self._said = folder / "printed.txt", folder / "said.txt"
        with self._printed.open("wb") as printed, self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "airflow_logio.cli", "status", *arguments, "--watch", "--interval", "0.1"],
                env=environment,
                cwd=folder,
                stdout=printed,
                stderr=said,
            )

    @property
    def lines(self) -> list[str]:
        """Those that are complete."""
        return self._printed.read_text().rpartition("\n")[0].splitlines()

    def ended(self) -> tuple[int, str]:
        """Exit code, and what was said on standard error."""
        return self.process.wait(90), self._said.read_text()


@contextmanager
def watching(url: str, folder: Path, *arguments: str) -> Iterator[Watching]:
    started = Watching(url, folder, *arguments)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def test_ctrl_c_ends_it_without_a_word(flow: TwoGroups, sqlite_url: str, tmp_path: Path) -> None:
    with watching(sqlite_url, tmp_path, flow.run.uid) as command:
        eventually(lambda: command.lines, what="a first line", timeout=60)
        command.process.send_signal(signal.SIGINT)
        assert command.ended() == (130, "")


@pytest.mark.postgres
def test_it_survives_the_log(postgres_server: PostgresServer, postgres_url: str, tmp_path: Path) -> None:
    store = open_store(postgres_url)
    flow = TwoGroups(store)
    flow.send(10, 500)

    def documents(command: Watching) -> list[dict[str, Any]]:
        return [json.loads(line) for line in command.lines]

    with watching(postgres_url, tmp_path, flow.run.uid, "--json") as command:
        eventually(lambda: documents(command), what="a first look", timeout=60)
        postgres_server.stop()
        try:
            eventually(lambda: "log_away_since" in documents(command)[-1], what="the log is unavailable", timeout=60)
        finally:
            postgres_server.start()
        eventually(lambda: "connections" in documents(command)[-1], what="the log is back", timeout=60)
        flow.use(7, 350)
        finish(flow)
        code, said = command.ended()
    store.dispose()
    assert (code, said) == (0, "")
    last = json.loads(command.lines[-1])
    assert (last["state"], last["connections"][0]["lag"]["events"]) == ("finished", 0)


def test_the_list_says_that_the_log_has_older_runs(store: LogStore, logio: Callable[..., tuple[int, str, str]]) -> None:
    for number in range(4):
        described = spec("g", dag_run=f"hour {number}")
        name = "clicks" if number < 3 else "other"
        store.start_run(replace(described, key=replace(described.key, pipeline=name)))
    code, listed, said = logio("status", "--most", "2")
    assert code == 0 and "hour 3" in listed and "hour 1" not in listed
    assert "the newest 2 runs; the log has older ones: `logio status --most 20`" in " ".join(said.split())
    code, listed, said = logio("status", "--most", "20", "--pipeline", "clicks", "--json")
    assert code == 0 and said == "" and [one["run_id"] for one in json.loads(listed)] == ["hour 2", "hour 1", "hour 0"]


def test_days_that_are_late_are_told_with_an_exit_code(
    store: LogStore, logio: Callable[..., tuple[int, str, str]]
) -> None:
    """For a cron of another machine: nothing of Airflow has to run."""
    assert logio("status", "--due") == (0, "no pipeline says when its days are due\n", "")
    two_days_ago = (datetime.now(UTC) - timedelta(days=2)).date().isoformat()
    plain = spec("g", dag_run="clicks__late")
    promise = Days("day", due="00:00").promise()
    run = store.start_run(replace(plain, partition=two_days_ago, due=promise))
    code, said, _ = logio("status", "--due")
    told = " ".join(said.split())
    assert code == 1 and f"day {two_days_ago} of pipeline sales is not there, and was due at" in told
    assert f"run {run.uid[:8]} of it has not finished" in told and "no run of it has begun" in told, "nor yesterday's"
    code, said, _ = logio("status", "--due", "--json")
    assert code == 1 and json.loads(said)[0]["partition"] == two_days_ago
    store.supersede(run.run_id)
    store.start_run(replace(plain, key=replace(plain.key, dag_run_id="says nothing"), partition="2020-01-01"))
    assert logio("status", "--due")[0] == 0
