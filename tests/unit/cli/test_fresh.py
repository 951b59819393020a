"""`logio fresh`, and `logio run --alone`, as a person types them."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_logio.cli import retry, run
from airflow_logio.dataflow import DatasetWriter, ParquetSource, Pipeline, TableWriter
from airflow_logio.launch import spark_submit
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.status import condition
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from tests.support.grocery import write_slice
from tests.support.logs import SOMEBODY, finish, spec

SALES = f"{Path(__file__).parents[3] / 'dags' / 'pipelines' / 'sales.py'}:sales"

Logio = Callable[..., tuple[int, str]]


@pytest.fixture
def logio(
    store: LogStore,
    sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: Logio,
) -> Logio:
    """Exit code and what is said; `logio run` starts runs, and launches nothing."""

    def supervise(context: LaunchContext, *_: object) -> int:
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    monkeypatch.delenv("WAREHOUSE_URL", raising=False)
    monkeypatch.setattr(run, "supervise", supervise)
    monkeypatch.setattr(spark_submit, "check", lambda _settings: None)

    return typed


@pytest.fixture
def start(store: LogStore, logio: Logio, tmp_path: Path, warehouse_with_products: Path) -> Callable[..., Run]:
    transactions = write_slice(tmp_path / "transactions.parquet", 1_000)
    (tmp_path / ".logio").mkdir()
    shutil.copy(warehouse_with_products, tmp_path / ".logio" / "warehouse.db")

    def run(name: str, *options: str) -> Run:
        code, said = logio("run", SALES, "--param", f"transactions={transactions}", "--run-id", name, *options)
        assert code == 0, said
        return store.find_run(name)

    return run


def test_a_run_is_given_up_and_begins_anew(store: LogStore, logio: Logio, start: Callable[..., Run]) -> None:
    run = start("nightly")
    ref = store.register(store.claim(run.run_id, "ingest", expected=0, reason="test"), SOMEBODY)
    assert store.declare_dead(ref, "test")
    code, said = logio("fresh", run.uid[:8])
    assert (code, store.find_run(run.uid).state) == (0, RunState.SUPERSEDED)
    assert "is given up. `logio run ... --run-id nightly` begins the fresh one" in said
    assert "appended" not in said, "its writers replace what is there"
    code, said = logio("retry", run.uid)
    assert code == 1 and "was given up for a fresh run: it does not resume" in said

    fresh = start("nightly")
    assert (fresh.spec.key.generation, fresh.uid != run.uid) == (2, True)
    code, said = logio("fresh", run.uid)
    assert code == 0 and "was given up before" in said
    assert store.find_run(fresh.uid).state is RunState.RUNNING, "the fresh run is spared"
    listed = json.loads(logio("status", "--json")[1])
    assert [(one["generation"], one["state"]) for one in listed] == [(2, "running"), (1, "superseded")]
    said = logio("status")[1]
    assert "nightly (generation 1)" in said and "nightly (generation 2)" in said
    assert "nightly (generation 2) of sales" in logio("status", fresh.uid)[1]


def test_what_an_appending_run_has_left_is_named_before_the_fresh_one_appends_it_again(
    store: LogStore, logio: Logio
) -> None:
    """Rows of both would be there twice, without a word."""
    pipeline = Pipeline("sums", connections=["wh", "lake"])
    rows = pipeline.source("ingest", ParquetSource("/none.parquet", columns=["a"]))
    pipeline.writer("save", TableWriter("wh", "s.t", {"a": "bigint"}, on_new_run="append"), rows)
    pipeline.writer("put", DatasetWriter("lake", "days"), rows)
    pipeline.writer("all", TableWriter("wh", "u", {"a": "bigint"}, on_new_run="replace"), rows)
    run = store.start_run(replace(spec(), graph=pipeline.describe()))
    code, said = logio("fresh", run.uid[:8])
    assert code == 0
    assert "appended to table 's.t' of 'wh', folder 'days' of 'lake' stays, and the fresh one appends all of it" in said
    assert f"names that begin with {run.uid}" in said


def test_only_a_uid_names_the_run(store: LogStore, logio: Logio, start: Callable[..., Run]) -> None:
    run = start("every-night")
    code, said = logio("fresh", "every-night")
    assert code == 1 and f"The newest is {run.uid[:8]} (running): `logio fresh {run.uid[:8]}`" in said
    code, said = logio("fresh", run.uid[:3])
    assert code == 1 and "8 digits or more" in said
    code, said = logio("fresh", "0123456789abcdef")
    assert code == 1 and "no run" in said
    assert store.find_run(run.uid).state is RunState.RUNNING


@pytest.mark.parametrize("answer", ["y", "n", "--yes"])
def test_a_run_id_names_the_newest_run_if_a_person_says_so(
    answer: str, store: LogStore, logio: Logio, start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which `logio run` took, too."""
    first = start("every-night")
    assert logio("fresh", first.uid)[0] == 0
    last = start("every-night")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("" if answer == "--yes" else answer + "\n"))
    options = ["--yes"] if answer == "--yes" else []
    code, said = logio("fresh", last.uid[:3], *options)
    assert code == 1 and "8 digits or more" in said, "the beginning of a uid is no run id"
    code, said = logio("fresh", "every-night", *options)
    assert (f"uid {last.uid[:8]}, running, started" in said) == (answer != "--yes")
    given_up = answer != "n"
    assert (code, store.find_run(last.uid).state is RunState.SUPERSEDED) == (int(not given_up), given_up)


@pytest.mark.parametrize("states", ["halted", "parked", "new"])
def test_what_is_said_to_be_next_works_as_it_is_written(
    states: str, store: LogStore, logio: Logio, start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that nobody runs: in `logio status`, and where it is in the way of the next."""
    run = start("monday")
    for group in store.groups(run.run_id) if states != "new" else []:
        ref = store.register(store.claim(run.run_id, group.group, expected=0, reason="test"), SOMEBODY)
        assert store.park(ref, "a test") if states == "parked" else store.halted(ref)
    word = "waiting for a person" if states == "new" else states
    monkeypatch.setattr(condition, "LEFT_SECONDS", -1.0)
    listed = json.loads(logio("status", "--json")[1])
    (found,) = listed
    assert (found["condition"], f"logio retry {run.uid[:8]}" in found["next_step"]) == (word, True)
    lines = logio("status", run.uid[:8])[1].splitlines()
    assert lines[0].startswith("warning: no process supervises this run (none ever has)") == (states == "new")
    assert f"next: {found['next_step']}" in lines and any(line.startswith(f"{word}, started ") for line in lines)
    code, said = logio("run", SALES, "--run-id", "tuesday", "--alone")
    assert code == 1 and f"`logio retry {run.uid[:8]}`" in said and f"`logio fresh {run.uid[:8]}`" in said
    assert "clear its red tasks" not in said and "LogioPipelineGroup" not in said, "nobody said Airflow"
    launched: list[str] = []
    monkeypatch.setattr(retry, "_launch", lambda _context, group: launched.append(group))
    monkeypatch.setattr(retry, "supervise", lambda *_: 0)
    assert logio("retry", run.uid[:8])[0] == 0
    assert launched == [group.group for group in store.groups(run.run_id)]


def test_a_driver_that_does_not_halt_keeps_its_run(store: LogStore, logio: Logio, start: Callable[..., Run]) -> None:
    run = start("nightly")
    store.register(store.claim(run.run_id, "ingest", expected=0, reason="test"), SOMEBODY)
    code, said = logio("fresh", run.uid, "--timeout", "0.1")
    assert code == 1 and "ingest: still not ended after 0.1 s" in said
    assert store.find_run(run.uid).state is RunState.RUNNING
    assert store.group(run.run_id, "ingest").desired is GroupState.HALTED


def test_a_second_run_is_warned_of_or_refused(
    store: LogStore, logio: Logio, start: Callable[..., Run], tmp_path: Path
) -> None:
    first = start("monday", "--alone")
    arguments = ("run", SALES, "--param", f"transactions={tmp_path / 'transactions.parquet'}", "--run-id", "tuesday")
    code, said = logio(*arguments, "--alone")
    assert code == 1 and f"run monday of sales, uid {first.uid[:8]}, has not finished" in said
    assert [run.uid for run in store.list_runs()] == [first.uid]
    start("monday", "--alone")  # to go on with it is no second run
    code, said = logio(*arguments)
    assert code == 0
    assert (
        f"1 other run(s) of pipeline 'sales' have not finished, the latest is monday of sales, uid {first.uid[:8]}"
        in said
    )
    assert store.find_run("tuesday").state is RunState.RUNNING


DAILY = """
from airflow_logio import Days, DatasetWriter, ParquetSource, ParquetWriter, Pipeline, TableWriter

def day_of(name, writer):
    p = Pipeline(name, partition=Days("day"), connections=["lake"])
    p.writer("save", writer, p.source("read", ParquetSource(PATH)))
    return p

added = day_of("added", ParquetWriter("lake", "sales"))
owned = day_of("owned", DatasetWriter("lake", "dt={day}", on_new_run="replace"))
taken = day_of("taken", TableWriter("lake", "sales", on_new_run="replace"))
"""


def test_days_begin_beside_a_red_one_where_their_writers_allow_it(
    store: LogStore, logio: Logio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGIO_CONN_LAKE", f"sqlite:///{tmp_path / 'lake.db'}")
    write_slice(tmp_path / "day.parquet", 10)
    module = tmp_path / "daily.py"
    module.write_text(DAILY.replace("PATH", repr(str(tmp_path / "day.parquet"))))

    def begin(name: str, day: str, *more: str) -> tuple[int, str]:
        return logio("run", f"{module}:{name}", "--partition", day, *more)

    for name in ("added", "owned"):
        for day in ("2026-03-01", "2026-03-02"):
            code, said = begin(name, day)
            assert code == 0 and "have not finished" not in said, said
        code, said = begin(name, "2026-03-01", "--run-id", "a second one")
        assert code == 1 and "is of partition 2026-03-01, as this one would be" in said, said
    assert begin("taken", "2026-03-01")[0] == 0
    code, said = begin("taken", "2026-03-02")
    assert code == 1 and "writer 'save' (TableWriter of table 'sales', on_new_run='replace'" in said, said
    assert "--alone" not in said and len(store.list_runs(pipeline="taken")) == 1


# --- logio again ------------------------------------------------------------------------------------------------------


@pytest.fixture
def days(store: LogStore) -> dict[str, Run]:
    """Three days of one pipeline, the first one twice."""
    found: dict[str, Run] = {}
    for day in ("2026-03-01", "2026-03-02", "2026-03-03"):
        described = spec("g", dag_run=f"clicks__{day}")
        found[day] = store.start_run(replace(described, partition=day))
    return found


def test_days_are_computed_again_at_a_persons_word(store: LogStore, logio: Logio, days: dict[str, Run]) -> None:
    code, said = logio("again", "--partition", "2026-03-02..2026-03-03", "--because", "late files", "--above", "70")
    assert code == 0 and said.count("is given up") == 2
    assert "`logio run ... --partition 2026-03-02 --run-id clicks__2026-03-02` begins the fresh one" in said
    states = {run.partition: (run.state, run.because) for run in store.list_runs()}
    assert states["2026-03-01"][0] is RunState.RUNNING
    assert states["2026-03-02"] == states["2026-03-03"] == (RunState.SUPERSEDED, "late files")
    assert logio("again", days["2026-03-02"].uid)[0] == 0, "a second time changes nothing"
    fresh = store.start_run(days["2026-03-02"].spec)
    assert (fresh.ordinal, fresh.spec.key.generation) == (71, 2)


def test_a_day_of_long_ago_is_found_behind_many_later_ones(store: LogStore, logio: Logio, days: dict[str, Run]) -> None:
    for number in range(60):
        store.start_run(replace(spec("g", dag_run=f"later {number}"), partition=f"2026-04-{number % 30 + 1:02}"))
    code, said = logio("again", "--partition", "2026-03-01")
    assert code == 0 and said.count("is given up") == 1, said
    assert store.find_run(days["2026-03-01"].uid).state is RunState.SUPERSEDED


def test_a_run_that_has_finished_says_that_nothing_is_computed(
    store: LogStore, logio: Logio, start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start("nightly")
    for group in run.spec.groups:
        finish(store, store.register(store.claim(run.run_id, group, expected=0, reason="test"), SOMEBODY))
    assert store.finish_run(run.run_id)
    again = ("run", SALES, "--param", f"transactions={tmp_path / 'transactions.parquet'}", "--run-id", "nightly")
    code, said = logio(*again)
    step = f"To compute it again: `logio again {run.uid[:8]}`, then this command"
    assert code == 0 and f"this run has finished before: nothing is computed now. {step}" in said
    assert logio("again", run.uid[:8])[0] == 0
    code, said = logio(*again)
    assert code == 0 and "finished before" not in said


def test_what_is_to_be_computed_again_is_named_once(store: LogStore, logio: Logio, days: dict[str, Run]) -> None:
    assert logio("again")[0] == 2
    assert logio("again", days["2026-03-01"].uid, "--partition", "2026-03-01")[0] == 2
    first = days["2026-03-01"]
    code, said = logio("again", first.spec.key.dag_run_id)
    assert code == 1 and f"`logio again {first.uid[:8]}`" in " ".join(said.split()), "the command with the uid"
    code, said = logio("again", "--partition", "2026-02-01")
    assert code == 1 and "no run of partition 2026-02-01 is in the log" in said
    other = spec("g", dag_run="other")
    store.start_run(replace(other, key=replace(other.key, pipeline="other"), partition="2026-03-01"))
    code, said = logio("again", "--partition", "2026-03-01")
    assert code == 1 and "say which one with --pipeline" in said
    assert logio("again", "--partition", "2026-03-01", "--pipeline", "other")[0] == 0
    assert store.find_run(days["2026-03-01"].uid).state is RunState.RUNNING


def test_a_day_whose_run_was_removed_is_computed_again(store: LogStore, logio: Logio, days: dict[str, Run]) -> None:
    """By its day, or by its uid; what only a row of the log would keep cannot be said of it."""
    gone, other = days["2026-03-01"], days["2026-03-02"]
    for one in (gone, other):
        while store.remove_run(one.run_id, 100, unfinished=True, reason="by keep_runs='90d'").more:
            pass
    code, said = logio("again", "--partition", "2026-03-01..2026-03-02")
    assert code == 0 and said.count("by keep_runs='90d', and is given up") == 2, said
    assert "`logio run ... --partition 2026-03-01 --run-id clicks__2026-03-01` begins the next one" in said
    code, said = logio("again", other.uid[:8])
    assert code == 0 and "and was given up before" in said, said
    code, said = logio("again", gone.uid, "--take-over", "--above", "9")
    assert code == 1 and "--take-over --above 9 cannot be said of it" in " ".join(said.split()), said
    store.start_run(gone.spec)
    code, said = logio("again", "--partition", "2026-03-01")
    assert code == 0 and "(generation 2)" in said and "is given up" in said, "the youngest one is meant"


@pytest.mark.parametrize("command", [("status",), ("lineage", "a.out", "1"), ("logs", "g"), ("again",), ("fresh",)])
def test_commands_say_that_a_run_was_removed(
    store: LogStore, logio: Logio, days: dict[str, Run], command: tuple[str, ...]
) -> None:
    gone = days["2026-03-01"]
    while store.remove_run(gone.run_id, 100, unfinished=True, reason="by keep_runs='90d'").more:
        pass
    code, said = logio(command[0], gone.uid[:8], *command[1:])
    told = "of partition 2026-03-01, was removed from the log on 20"
    assert told in " ".join(said.split()) and "by keep_runs='90d'" in said, said
    assert code == (0 if command == ("again",) else 1)


def test_a_command_that_ends_removes_old_runs_and_says_so(
    store: LogStore, logio: Logio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    monkeypatch.setenv("LOGIO_CONN_LAKE", f"sqlite:///{tmp_path / 'lake.db'}")
    write_slice(tmp_path / "day.parquet", 10)
    module = tmp_path / "monthly.py"
    kept = DAILY.replace("PATH", repr(str(tmp_path / "day.parquet"))).replace(
        'Days("day"),', 'Days("day"), keep_runs="1h",'
    )
    module.write_text(kept)

    def begin(day: str) -> tuple[int, str]:
        return logio("run", f"{module}:owned", "--partition", day)

    assert begin("2026-03-01") == (0, "")
    (old,) = store.list_runs()
    for group in old.spec.groups:
        finish(store, store.register(store.claim(old.run_id, group, expected=0, reason="test"), SOMEBODY))
    assert store.finish_run(old.run_id)
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as log:
        log.execute("UPDATE logio_run SET ended_at = ended_at - 7200")
        log.execute("UPDATE logio_pipeline SET swept_at = swept_at - 7200")
    code, said = begin("2026-03-02")
    assert code == 0 and "pipeline owned: 1 run(s) removed from the log by keep_runs='1h'" in said, said
    assert [run.partition for run in store.list_runs()] == ["2026-03-02"]
    code, said = logio("status", old.uid)
    assert code == 1 and "by keep_runs='1h'" in said
