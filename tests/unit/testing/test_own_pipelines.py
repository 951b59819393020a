"""What the simulator does to a pipeline follows from the pipeline: drains, retries of quarantine, retention of lineage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from airflow_logio.dataflow import (
    Days,
    EveryEvents,
    IdempotentWriter,
    ParquetWriter,
    Pipeline,
    RoundRobin,
    TableWriter,
    WriteAction,
    WriterOperator,
    generate,
    stateless,
)
from airflow_logio.protocol.effects import ExpireLineage, Kept
from airflow_logio.protocol.values import Port
from airflow_logio.systems.arrow import decode
from airflow_logio.testing import Observed, ScheduleFigures, ScriptedSource, Simulator, pipeline_scenario
from airflow_logio.testing.scenario_lookup import load_scenario
from airflow_logio.testing.simulator.actions import Verb
from airflow_logio.testing.simulator.drains import DRAIN_EVERY
from airflow_logio.testing.simulator.scheduler import Seeded, Undisturbed
from tests.simulator import SCENARIOS
from tests.unit.testing.mutants import MUTANTS

NUMBERS = pa.table({"value": list(range(200))})
PER_EVENT = 4
EVENTS = NUMBERS.num_rows // PER_EVENT
SEEDS = range(2 * DRAIN_EVERY)
SCOPES = Path(__file__).parents[2] / "bench" / "pipelines" / "scopes.py"


@stateless(on_error="quarantine")
def checked(records: pa.Table) -> pa.Table:
    values = records.column("value").to_pylist()
    if values[0] % 20 == 0:
        raise ValueError(f"{values[0]} is not wanted")
    return pa.table({"value": [value + 1 for value in values]})


@generate(mode="driver")
def total(part: pa.Table, inset_id: str) -> pa.Table:
    return pa.table({"batch": [int(inset_id)], "total": [sum(part.column("value").to_pylist())]})


def pipeline(*, retention: str | None = None) -> Pipeline:
    made = Pipeline("mine", connections=["warehouse"])
    read = made.source("read", ScriptedSource(NUMBERS, PER_EVENT))
    good = made.operator("good", checked, read)
    sums = made.operator("sums", total, read, window=EveryEvents(5))
    save = made.writer("save", TableWriter("warehouse", "good", {"value": "bigint"}), good)
    put = made.writer("put", TableWriter("warehouse", "sums", {"batch": "bigint", "total": "bigint"}), sums)
    made.group("ingest", read)
    made.group("compute", good, sums)
    made.group("store", save, put)
    made.lineage("read.out", "good.out", retention=retention)
    made.lineage("read.out", "sums.out")
    return made.freeze()


def run(simulator: Simulator) -> list[ScheduleFigures]:
    found = []
    for seed in SEEDS:
        figures, failure = simulator.run(seed)
        assert failure is None
        found.append(figures)
    return found


def test_what_is_set_aside_is_retried_and_compared_regardless_of_order() -> None:
    scenario = pipeline_scenario(pipeline())
    assert scenario.retries
    simulator = Simulator(scenario)
    seen = simulator.reference().observed
    assert seen.aside == {("good", f"{EVENTS // 5} Input Sets")}
    assert len(seen.ports["good.out"]) == EVENTS - EVENTS // 5
    assert any(figures.drained for figures in run(simulator))
    verbs = Counter(action.verb for action in simulator.record(1))
    assert verbs[Verb.RETRY] and not verbs[Verb.EXPIRE]


def test_lineage_whose_scopes_have_a_retention_expires() -> None:
    scenario = pipeline_scenario(pipeline(retention="1h"))
    assert scenario.kept == {Port("read", "out"), Port("sums", "out")}
    simulator = Simulator(scenario)
    run(simulator)
    expired = set()
    for seed in SEEDS:
        world, watch = simulator.world()
        Seeded(world, seed, simulator.reference().events).run()
        expired |= {port for port, _ in watch.expired}
    assert expired == {"good.out"}


def test_lineage_of_other_scopes_does_not_expire() -> None:
    scenario = pipeline_scenario(pipeline(retention="1h"))
    everything = [
        lambda limit, name=name: ExpireLineage(name, Kept.EVENTS, 0.0, 0, limit, "out", ()) for name in ("sums", "good")
    ]
    simulator = Simulator(replace(scenario, sweeps=everything, retention=0.0))
    failures = [failure for seed in range(100) if (failure := simulator.run(seed)[1]) is not None]
    assert {failure.invariant for failure in failures} == {"what_is_in_retention_is_kept"}
    assert all("is to be kept for ever" in failure.what for failure in failures)


class Overwrites(IdempotentWriter[None]):
    """An author's own writer that replaces a day, all of whose actions are applied with the closing one."""

    closes = True
    outputs = ()

    def connect(self, url: str) -> AbstractContextManager[None]:
        return nullcontext()

    def opening(self) -> Mapping[str, Any]:
        return {"day": "2026-03-01"}

    def write(self, client: None, action: WriteAction) -> None: ...

    def close_group(self, client: None, closing: WriteAction, records: int, pages: Iterable[Any]) -> None: ...


DAY = Days("day", zone="UTC")
DAY_COLUMNS = {"value": "bigint", "day": "text"}
MODES: Mapping[str, Callable[[], WriterOperator]] = {
    "append": lambda: TableWriter("warehouse", "t", DAY_COLUMNS, on_new_run="append"),
    "replace": lambda: TableWriter("warehouse", "t", DAY_COLUMNS, on_new_run="replace"),
    "error": lambda: TableWriter("warehouse", "t", DAY_COLUMNS),
    "by day": lambda: TableWriter("warehouse", "t", DAY_COLUMNS, on_new_run="overwrite", by=("day",)),
    "files of a day": lambda: ParquetWriter("warehouse", "days/{day}"),
    "own": lambda: Overwrites("warehouse"),
}


def written(writer: WriterOperator, *, slots: int = 0) -> Pipeline:
    """A run of a day, with one writer. With `slots`, the writer is replicated."""
    made = Pipeline("written", partition=DAY, connections=["warehouse"])
    days = pa.array(["2026-03-01"] * 60)
    read = made.source("read", ScriptedSource(NUMBERS.slice(0, 60).append_column("day", days), PER_EVENT))
    same = made.operator("same", stateless(lambda records: records), read)
    save = made.writer("save", writer, same)
    made.group("ingest", read)
    made.group("store", same, save)
    if slots:
        made.replicate("store", partition=RoundRobin(slots=slots), max=2)
    return made.freeze()


@pytest.mark.parametrize("mode", MODES)
def test_a_writer_of_each_kind_survives_every_failure(mode: str) -> None:
    """What the first write action says of earlier runs holds for the later ones, which do not repeat it."""
    made = written(MODES[mode]())
    simulator = Simulator(pipeline_scenario(made, partition=DAY.key_of("2026-03-01")))
    figures = run(simulator)
    closes = mode in ("by day", "own")
    assert any(one.drained for one in figures) != closes, "a run that closes cannot be drained"
    applied = simulator.reference().observed.systems["warehouse"].applied["save", "warehouse"]
    values = [row["value"] for action in applied if action.body for row in decode("rows", action.body).to_pylist()]
    assert values == list(range(60))


def test_the_slots_of_a_writer_append_to_one_table() -> None:
    made = written(MODES["append"](), slots=3)
    run(Simulator(pipeline_scenario(made, partition=DAY.key_of("2026-03-01"))))


@generate
def traced(part: pa.Table, inset_id: str, event_ids: list[int]) -> pa.Table:
    return pa.table({"batch": [int(inset_id)], "events": [" ".join(map(str, event_ids))]})


def test_event_ids_are_those_of_the_log_whatever_crashes() -> None:
    """Those that a function gets, and those that a table has beside its rows."""
    made = Pipeline("traced", connections=["warehouse"])
    read = made.source("read", ScriptedSource(NUMBERS, PER_EVENT))
    sums = made.operator("sums", traced, read, window=EveryEvents(5))
    table = TableWriter("warehouse", "sums", {"batch": "bigint", "events": "text"}, lineage_column="event")
    save = made.writer("save", table, sums)
    made.group("ingest", read)
    made.group("compute", sums)
    made.group("store", save)
    simulator = Simulator(pipeline_scenario(made.freeze()))
    run(simulator)
    applied = simulator.reference().observed.systems["warehouse"].applied["save", "warehouse"]
    rows = [row for action in applied if action.body for row in decode("a row", action.body).to_pylist()]
    wanted = [" ".join(str(5 * batch + n) for n in range(1, 6)) for batch in range(EVENTS // 5)]
    assert rows == [{"batch": n, "events": events, "event": n} for n, events in enumerate(wanted, start=1)]


def test_a_judge_says_whether_it_knows_of_drains() -> None:
    assert pipeline_scenario(pipeline()).drains
    assert not pipeline_scenario(pipeline(), judge=lambda _seen, _codec: ()).drains
    assert pipeline_scenario(pipeline(), judge=lambda _seen, _codec: (), drains=True).drains


UNORDERED = ("ends_not_taken_back", "state_event_left_aside")


@pytest.mark.parametrize("name", UNORDERED)
def test_without_order_enough_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenario of retries, compared with a run without failures instead of judged."""
    simulator = Simulator(replace(SCENARIOS["retry"](), deterministic=True, judge=None, retention=30.0))
    run(simulator)
    MUTANTS[name].install(monkeypatch)
    assert any(simulator.run(seed)[1] for seed in range(100))


def replicated(*, retention: str | None = None) -> Pipeline:
    """What is not wanted is set aside in slots, which up to three replicas own."""
    made = Pipeline("replicas", connections=["warehouse"])
    read = made.source("read", ScriptedSource(NUMBERS.slice(0, 120), PER_EVENT))
    good = made.operator("good", checked, read)
    save = made.writer("save", TableWriter("warehouse", "good", {"value": "bigint"}), good)
    near = made.writer("near", TableWriter("warehouse", "near", {"value": "bigint"}), good)
    made.group("compute", good, near)
    made.replicate("compute", partition=RoundRobin(slots=4), max=3)
    made.lineage("read.out", "good.out", retention=retention)
    made.lineage("read.out", save.out, retention=retention)
    return made.freeze()


@pytest.mark.parametrize("retention", [None, "1h"])
def test_replicas_make_what_one_would_make(retention: str | None) -> None:
    """Quarantine, retries, retention and drains among slots that move."""
    scenario = pipeline_scenario(replicated(retention=retention))
    assert scenario.retries and scenario.drains
    assert scenario.plain is not None and not scenario.plain.replicated
    simulator = Simulator(scenario)
    assert any(figures.drained for figures in run(simulator))
    verbs = Counter(action.verb for seed in SEEDS for action in simulator.record(seed))
    assert verbs[Verb.PLACE] and verbs[Verb.EXECUTE] and verbs[Verb.RETRY]
    assert bool(verbs[Verb.EXPIRE]) == bool(retention)


def test_the_judge_of_what_is_deterministic_sees_it_without_replicas() -> None:
    seen = set[frozenset[str]]()

    def judge(observed: Observed, _codec: object) -> list[str]:
        seen.add(frozenset(observed.ports))
        return []

    _, failure = Simulator(pipeline_scenario(replicated(), judge=judge)).run(1)
    assert failure is None
    assert {"read.out", "good.out"} <= next(iter(seen))
    assert not any("[" in port for port in next(iter(seen)))


@stateless
def drawn(records: pa.Table) -> pa.Table:
    return records.append_column("drawn", pa.array([uuid4().hex for _ in range(records.num_rows)]))


def differing() -> Pipeline:
    """Another result each time, written by replicas and behind their Merger."""
    made = Pipeline("differing", connections=["warehouse"])
    read = made.source("read", ScriptedSource(NUMBERS.slice(0, 80), PER_EVENT))
    lots = made.operator("lots", drawn, read)
    columns = {"value": "bigint", "drawn": "text"}
    near = made.writer("near", TableWriter("warehouse", "near", columns), lots)
    made.writer("save", TableWriter("warehouse", "lots", columns), lots)
    made.group("compute", lots, near)
    made.replicate("compute", partition=RoundRobin(slots=3), max=2)
    return made.freeze()


@pytest.mark.parametrize("broken", [None, "marker_not_checked"])
def test_replicas_that_make_another_result_each_time_are_held_against_the_log(
    broken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a judge: the writer of each slot, and that behind the Merger, has applied what the log says, in order."""
    simulator = Simulator(pipeline_scenario(differing(), deterministic=False))
    applied = simulator.reference().observed.writes
    assert set(applied) == {"near[0]>warehouse", "near[1]>warehouse", "near[2]>warehouse", "save>warehouse"}
    if broken is None:
        run(simulator)
        return
    MUTANTS[broken].install(monkeypatch)
    failures = (failure.invariant for seed in range(100) if (failure := simulator.run(seed)[1]) is not None)
    assert "destinations_have_what_the_log_says" in failures, "it takes up to a hundred schedules"


def test_what_lineage_is_compared_by_grows_with_events_and_not_with_records() -> None:
    """Ten scopes and eight slots: pairs of records would be thousands for each pair of events."""
    replicated = load_scenario(f"{SCOPES}:scopes").scenario
    assert len(replicated.replicated) == 1 and replicated.plain is not None
    simulator = Simulator(replicated.plain)
    world, watch = simulator.world()
    Undisturbed(world).run()
    pairs = simulator.observed(world, watch).lineage
    lineage = simulator.records().lineage
    assert len({(start, end) for start, _, end, _ in lineage}) == 4, "neighbours of the chain"
    assert sum(len(inputs) * len(outputs) for _, inputs, _, outputs in lineage) > 1_000 * len(pairs)
    assert len(lineage) <= len(pairs)


def test_the_judge_of_what_is_not_sees_the_slots() -> None:
    seen = set[str]()

    def judge(observed: Observed, _codec: object) -> list[str]:
        seen.update(observed.ports)
        return ["of no use"] if len(seen) > 20 else []

    _, failure = Simulator(pipeline_scenario(replicated(), judge=judge, deterministic=False)).run(1)
    assert failure is None
    assert {"good[0].out", "good[3].out", "merge(good).out"} <= seen
