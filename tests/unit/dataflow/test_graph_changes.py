"""What is said of a pipeline that has changed since its run was started: operator, setting, from, to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.dataflow import Count, EveryEvents, ParquetSource, Pipeline, TableWriter, generate
from airflow_logio.driver.spark_jobs.together import Contract, contract_of
from airflow_logio.errors import IncompatibleRun
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.start_run import run_spec
from airflow_logio.store.records.run_records import RunSpec
from airflow_logio.store.rules.run_rules import changes_between, is_graph_of
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import SOMEBODY, finish


@generate
def summed(records: pa.Table) -> pa.Table:
    return records


def pipeline(
    kind: str = "bigint", window: Any = None, table: str = "sums", more: str = "", on_new_run: str = "replace"
) -> Pipeline:
    made = Pipeline("p", params={"day": str, **({more: int} if more else {})}, connections=["wh"])
    read = made.source("read", ParquetSource("{day}.parquet", records_per_event=10))
    sums = made.operator("sums", summed, read, window=window or EveryEvents(2))
    columns = {"total": kind, **({more: "text"} if more else {})}
    save = made.writer("save", TableWriter("wh", table, columns, on_new_run=on_new_run), sums)
    made.group("all", read, sums, save)
    return made.freeze()


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (pipeline("decimal(10,2)"), ["operator 'save', columns, total was 'bigint', is now 'decimal(10,2)'"]),
        (pipeline(table="t"), ["operator 'save', table was 'sums', is now 't'"]),
        (pipeline(more="tax"), ["parameter 'tax' is new", "operator 'save', columns, tax is new"]),
        (pipeline(), []),
    ],
)
def test_each_setting_that_differs_is_named(now: Pipeline, words: list[str]) -> None:
    assert list(changes_between(pipeline().describe(), now.describe())) == words


def test_another_window_and_an_operator_that_is_gone() -> None:
    (said,) = changes_between(pipeline().describe(), pipeline(window=EveryEvents(3)).describe())
    assert said.startswith("operator 'sums', window") and said.endswith("was 2, is now 3")
    described = pipeline().describe()
    fewer = {**described, "operators": {name: one for name, one in described["operators"].items() if name != "save"}}
    assert list(changes_between(described, fewer)) == ["operator 'save' is gone"]
    assert list(changes_between(fewer, described)) == ["operator 'save' is new"]


def started(made: Pipeline, tmp_path: Path) -> RunSpec:
    pq.write_table(pa.table({"total": [1]}), tmp_path / "monday.parquet")
    params = {"day": str(tmp_path / "monday"), **({"tax": 1} if "tax" in made.params else {})}
    return run_spec(
        made, ref=PipelineRef("m", "p", tmp_path), dag_id="d", dag_run_id="r", params=params, connections={"wh": "wh"}
    )


def test_the_log_keeps_what_it_takes_to_say_it(tmp_path: Path) -> None:
    store = MemoryLogStore()
    run = store.start_run(started(pipeline(), tmp_path))
    with pytest.raises(IncompatibleRun) as refused:
        store.start_run(started(pipeline("double", more="tax"), tmp_path))
    said = str(refused.value)
    assert (
        "pipeline 'p': parameter 'tax' is new; operator 'save', columns, total was 'bigint', is now 'double'; " in said
    )
    assert f"`logio retry {run.uid[:8]}`" in said and f"`logio fresh {run.uid[:8]}`" in said

    for group in run.spec.groups:
        finish(store, store.register(store.claim(run.run_id, group, expected=0, reason="test"), SOMEBODY))
    assert store.finish_run(run.run_id)
    with pytest.raises(IncompatibleRun, match=f"It has finished. .*: `logio again {run.uid[:8]}`"):
        store.start_run(started(pipeline("double", more="tax"), tmp_path))


def test_a_run_of_an_earlier_version_of_this_package_is_told_by_its_hash(tmp_path: Path) -> None:
    store = MemoryLogStore()
    run = store.start_run(replace(started(pipeline(), tmp_path), graph={}))
    with pytest.raises(IncompatibleRun, match=f"its graph was {run.spec.graph_fingerprint}, now "):
        store.start_run(started(pipeline("double"), tmp_path))


def of_spark(mode: str, *, many: bool = False, size: int = 2) -> Pipeline:
    made = Pipeline("p", params={"day": str})
    read = made.source("read", ParquetSource("{day}.parquet", records_per_event=10))
    made.sink(
        "done", Count(), made.operator("sums", generate(mode=mode, many=many)(same), read, window=EveryEvents(size))
    )
    return made.freeze()


def same(records: Any) -> Any:
    return records


@pytest.mark.parametrize("mode", ["dataframe", "executors"])
def test_a_run_that_does_not_say_how_many_input_sets_a_function_gets_resumes(mode: str) -> None:
    """An earlier version has begun it, and calls of its functions stay what they were; any other change is one."""
    begun = of_spark(mode)
    recorded: Any = begun.describe()
    operators = {
        name: {key: value for key, value in one.items() if key != "many"} for name, one in recorded["operators"].items()
    }
    older = SimpleNamespace(spec=SimpleNamespace(graph={**recorded, "operators": operators}, graph_fingerprint="older"))
    newer = SimpleNamespace(spec=SimpleNamespace(graph=recorded, graph_fingerprint=begun.fingerprint()["graph"]))

    def is_of(run: Any, now: Pipeline) -> bool:
        return is_graph_of(run, now.fingerprint()["graph"], now.describe())

    operator: Any = begun.operators["sums"]
    for now in (begun, of_spark(mode, many=True)):
        assert is_of(older, now)
        assert contract_of(older.spec.graph, "sums", now.operators["sums"]) is Contract.EARLIER  # type: ignore[arg-type]
    assert not is_of(older, of_spark(mode, size=3))
    assert is_of(newer, begun) and not is_of(newer, of_spark(mode, many=True))
    assert contract_of(newer.spec.graph, "sums", operator) is Contract.ONE
    many: Any = of_spark(mode, many=True).operators["sums"]
    assert contract_of(newer.spec.graph, "sums", many) is Contract.MANY
