"""An author's pipeline with replay operators, on Arrow: results are those of a run without failures, and of no replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_logio.dataflow import EveryEvents, Pipeline, RoundRobin, TableWriter, generate, stateless
from airflow_logio.protocol.replay import Replay
from airflow_logio.protocol.values import Event, MadeOf
from airflow_logio.testing import LogWatch, ScriptedSource, Simulator, pipeline_scenario
from airflow_logio.testing.simulator.violation import Violation

NUMBERS = pa.table({"value": list(range(200)), "name": [f"n{n % 7}" if n % 5 else None for n in range(200)]})
PER_EVENT = 4
SEEDS = range(8)


@stateless
def halves(records: pa.Table) -> Iterator[pa.Table]:
    """Slices: what is made again lies elsewhere in memory."""
    yield records.slice(0, 2)
    yield pa.table({"value": pc.add(records["value"], 1000), "name": records["name"]}).slice(2)


@stateless
def even(records: pa.Table) -> pa.Table:
    return records.filter(pc.equal(pc.bit_wise_and(records["value"], 1), 0))


@generate
def sums(records: pa.Table) -> pa.Table:
    found = records.group_by("name", use_threads=False).aggregate([("value", "sum")]).sort_by("name")
    return found.rename_columns(["name", "value"])


def pipeline(*, replicas: bool = False) -> Pipeline:
    made = Pipeline("replayed", connections=["warehouse"])
    read = made.source("read", ScriptedSource(NUMBERS, PER_EVENT))
    cut = made.operator("cut", even if replicas else halves, read, replay=True)
    summed = made.operator("sums", sums, cut, window=EveryEvents(3), replay=not replicas)
    writer = TableWriter("warehouse", "sums", {"name": "text", "value": "bigint"})
    made.writer("save", writer, summed)
    if replicas:
        made.replicate("cut", partition=RoundRobin(), max=2, ordered=True)
    made.lineage("read.out", "sums.out", retention=None if replicas else "1h")
    return made.freeze()


@pytest.mark.parametrize("replicas", [False, True])
def test_no_schedule_changes_what_comes_out(replicas: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made, again = Replay._made_again, Counter[str]()

    def counted(self: Replay, event: Event, made_of: MadeOf) -> object:
        again[event.sender.operator.partition("[")[0]] += 1
        return made(self, event, made_of)

    monkeypatch.setattr(Replay, "_made_again", counted)
    simulator = Simulator(pipeline_scenario(pipeline(replicas=replicas)))
    for seed in SEEDS:
        _, failure = simulator.run(seed)
        assert failure is None, failure
    assert again["cut"] > 100 and (replicas or again["sums"] > 50)


def test_the_log_has_no_record_of_a_replay_operator() -> None:
    logged: dict[str, int] = {}

    class Looking(LogWatch):
        def close(self) -> None:
            for key, body in self.tables.bodies.items():
                logged[key.operator] = logged.get(key.operator, 0) + len(body.body)
            super().close()

    simulator = Simulator(pipeline_scenario(pipeline()), watch_class=Looking)
    _, failure = simulator.run(2)
    assert failure is None
    assert logged["read"] > 0 == logged["cut"] == logged["sums"]


@generate
def roots(records: pa.Table) -> pa.Table:
    """One column comes in a chunk per event, the other one in a single chunk."""
    return records.append_column("root", pa.array(np.sqrt(records["value"].to_numpy() + 0.37) * 1.1))


@stateless
def total(records: pa.Table) -> pa.Table:
    return pa.table({"total": [pc.sum(records["root"]).as_py()]})


def test_sums_do_not_depend_on_how_an_operator_of_the_same_group_hands_records_over() -> None:
    """A sum over other chunks is another one in the last bit, and the log has other chunks."""
    made = Pipeline("chunks", connections=["warehouse"])
    read = made.source("read", ScriptedSource(NUMBERS, 7))
    rooted = made.operator("roots", roots, read, window=EveryEvents(3))
    made.operator("total", total, rooted, replay=True)
    made.writer("save", TableWriter("warehouse", "totals", {"total": "double"}), "total")
    made.group("first", "roots", "total")
    made.lineage("read.out", "total.out")
    simulator = Simulator(pipeline_scenario(made.freeze()))
    for seed in SEEDS:
        _, failure = simulator.run(seed)
        assert failure is None, failure


def test_what_is_another_result_each_time_is_refused_in_the_first_run() -> None:
    @stateless
    def numbered(records: pa.Table) -> pa.Table:
        return records.append_column("number", pa.array([next(numbers)] * records.num_rows))

    numbers = count()
    made = Pipeline("undecided", connections=["warehouse"])
    read = made.source("read", ScriptedSource(NUMBERS, PER_EVENT))
    made.operator("number", numbered, read, replay=True)
    columns = {"value": "bigint", "name": "text", "number": "bigint"}
    made.writer("save", TableWriter("warehouse", "numbered", columns), "number")
    made.lineage("read.out", "number.out")
    with pytest.raises(Violation, match="'number', Input Set '1': it was generated twice, and the results differ"):
        Simulator(pipeline_scenario(made.freeze())).reference()
