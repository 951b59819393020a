"""`--take-over` of `logio run` and `logio again`, as a person types it: what is refused, and which run has it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.cli import run
from airflow_logio.launch import spark_submit
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.protocol.states import RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Allowed

MAY = frozenset({Allowed.TAKE_OVER})
D1, D2 = "2026-03-01", "2026-03-02"
PIPELINES = """
from airflow_logio import Days, ParquetSource, Pipeline, TableWriter

def made(name, partition, **how):
    pipeline = Pipeline(name, partition=partition, params={"data": str}, connections=["wh"])
    rows = pipeline.source("rows", ParquetSource("{data}"))
    pipeline.writer("save", TableWriter("wh", name, {"id": "bigint", "day": "text"}, ("day", "id"), **how), rows)
    return pipeline

owned = made("owned", Days("day"), on_new_run="overwrite", by=("day",))
added = made("added", Days("day"), on_new_run="append")
whole = made("whole", None, on_new_run="replace")
"""

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

    (tmp_path / "days.py").write_text(PIPELINES)
    pq.write_table(pa.table({"id": [1]}), tmp_path / "data.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    monkeypatch.setenv("LOGIO_CONN_WH", f"sqlite:///{tmp_path}/wh.db")
    monkeypatch.setattr(run, "supervise", supervise)
    monkeypatch.setattr(spark_submit, "check", lambda _settings: None)

    def command(*arguments: str) -> tuple[int, str]:
        if arguments[0] == "run":
            arguments = ("run", f"days.py:{arguments[1]}", "--param", "data=data.parquet", *arguments[2:])
        return typed(*arguments)

    return command


@pytest.mark.parametrize(
    ("pipeline", "options", "why"),
    [
        ("whole", (), "is for no partition"),
        ("owned", (), "--partition"),
        ("added", ("--partition", D1), r"no writer of pipeline 'added' has by=\(...\)"),
    ],
)
def test_what_owns_no_day_takes_none_over(
    store: LogStore, logio: Logio, pipeline: str, options: tuple[str, ...], why: str
) -> None:
    code, said = logio("run", pipeline, *options, "--take-over")
    assert code == 1 and re.search(why, said), said
    assert not store.list_runs(), "refused before anything starts"


def test_a_run_has_it_from_its_beginning_or_not(store: LogStore, logio: Logio) -> None:
    assert logio("run", "owned", "--partition", D1, "--take-over")[0] == 0
    assert logio("run", "owned", "--partition", D2)[0] == 0
    may, may_not = (store.find_run(f"owned__{day}") for day in (D1, D2))
    assert (may.spec.allowed, may_not.spec.allowed) == (MAY, frozenset())
    code, said = logio("run", "owned", "--partition", D2, "--take-over")
    assert code == 1
    (command,) = re.findall(r"`logio (again \w+ --take-over)`", said)
    for options in (("--partition", D1), ("--partition", D1, "--take-over")):
        assert logio("run", "owned", *options)[0] == 0, "the same run, which keeps what it has"
    assert store.find_run(may.uid) == may
    code, said = logio(*command.split())
    assert code == 0 and f"The next run of {D2} has --take-over, no later one. `logio run" in said
    assert store.find_run(may_not.uid).state is RunState.SUPERSEDED
    assert logio("run", "owned", "--partition", D2, "--take-over")[0] == 0
    assert store.find_run(f"owned__{D2}").spec.allowed == MAY


def test_again_says_it_for_each_partition_of_a_range(store: LogStore, logio: Logio) -> None:
    for day in (D1, D2):
        assert logio("run", "owned", "--partition", day)[0] == 0
    code, said = logio("again", "--pipeline", "owned", "--partition", f"{D1}..{D2}", "--take-over")
    assert code == 0 and said.count("--take-over") == 2
    for day in (D1, D2):
        assert logio("run", "owned", "--partition", day)[0] == 0
        fresh = store.find_run(f"owned__{day}")
        assert (fresh.spec.key.generation, fresh.spec.allowed) == (2, MAY)
    assert logio("again", "--partition", D1)[0] == 0 and logio("run", "owned", "--partition", D1)[0] == 0
    assert store.find_run(f"owned__{D1}").spec.allowed == frozenset(), "it has had its one run"


def test_again_refuses_it_of_a_run_that_owns_no_day_and_of_one_that_has_a_younger(
    store: LogStore, logio: Logio
) -> None:
    assert logio("run", "added", "--partition", D1)[0] == logio("run", "owned", "--partition", D1)[0] == 0
    added, first = store.find_run(f"added__{D1}"), store.find_run(f"owned__{D1}")
    code, said = logio("again", added.uid[:8], "--take-over")
    assert code == 1 and "no writer of pipeline 'added' has by=" in said
    assert store.find_run(added.uid).state is RunState.RUNNING
    assert logio("again", first.uid)[0] == 0 and logio("run", "owned", "--partition", D1)[0] == 0
    second = store.find_run(f"owned__{D1}")
    code, said = logio("again", first.uid, "--take-over")
    assert code == 1 and f"`logio again {second.uid[:8]} --take-over`" in said
    assert store.find_run(second.uid).state is RunState.RUNNING


def test_a_day_may_become_empty_by_a_word_of_its_own(store: LogStore, logio: Logio) -> None:
    assert logio("run", "owned", "--partition", D1, "--empty")[0] == 0
    assert store.find_run(f"owned__{D1}").spec.allowed == {Allowed.EMPTY}
    code, said = logio("again", "--partition", D1, "--empty", "--take-over")
    assert code == 0 and "has --empty --take-over, no later one" in said
    assert logio("run", "owned", "--partition", D1)[0] == 0
    assert store.find_run(f"owned__{D1}").spec.allowed == {Allowed.EMPTY, Allowed.TAKE_OVER}
    code, said = logio("run", "whole", "--empty")
    assert code == 1 and "--empty is for runs that own a day" in said
