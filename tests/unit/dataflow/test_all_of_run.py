"""`AllOfRun`: one Input Set of everything that a run reads, with crashes, drains, several ports, functions and reads."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from airflow_logio.dataflow import (
    AllOfRun,
    ByKey,
    Count,
    EveryEvents,
    InputEvent,
    InputSet,
    OwnPartition,
    Pipeline,
    RoundRobin,
    Sums,
    TableRead,
    TableWriter,
    generate,
    stateless,
)
from airflow_logio.dataflow.functions.windowed_operators import windowed
from airflow_logio.dataflow.pipeline.days import Days
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.protocol.record_rules import WHOLE
from airflow_logio.testing import Observed, ScriptedSource, Simulator, pipeline_scenario
from airflow_logio.testing.simulator.codec import Codec
from tests.unit.dataflow.conftest import FakeExternal

ROWS, PER_EVENT = 60, 4
SCHEDULES = range(16)
NAMES = pa.table({"store": [0, 1, 2], "name": ["zero", "one", "two"]})
BERLIN = Days("day", zone="Europe/Berlin")
DAY = BERLIN.key_of("2026-03-29")
"""23 hours: its clock skips one."""


def clicks(seed: int) -> pa.Table:
    """Some of them an hour before the day, or after it."""
    chance = random.Random(seed)
    minutes = [chance.randrange(-60, 24 * 60) for _ in range(ROWS)]
    at = [DAY.start.replace(tzinfo=None) + dt.timedelta(minutes=minute) for minute in minutes]
    return pa.table(
        {
            "id": range(ROWS),
            "ts": pa.array(at, pa.timestamp("us")),
            "store": [chance.randrange(3) for _ in range(ROWS)],
            "cents": [chance.randrange(50) for _ in range(ROWS)],
        }
    )


WEB, SHOPS = clicks(1), clicks(2)


@generate(reads={"names": TableRead("warehouse", "names", key="store")})
def ranked(records: pa.Table, names: pa.Table, inset_id: str) -> pa.Table:
    """The two largest of each store: right only of all records at once."""
    assert inset_id == "all"
    known = dict(zip(names["store"].to_pylist(), names["name"].to_pylist(), strict=True))
    rows = sorted(records.to_pylist(), key=lambda row: (row["store"], -row["cents"], row["id"]))
    found = [
        {"store": known[store], "id": row["id"], "cents": row["cents"]}
        for store in sorted(known)
        for row in [row for row in rows if row["store"] == store][:2]
    ]
    return pa.Table.from_pylist(found)


@generate(accumulate=Sums(by=["store"], of=["cents"]))
def sums(records: pa.Table) -> pa.Table:
    return records


@generate
def number(records: pa.Table, inset_id: str) -> pa.Table:
    return pa.table({"batch": [int(inset_id)], "records": [records.num_rows]})


@generate(inputs=("web", "shops"))
def beside(web: pa.Table, shops: pa.Table) -> pa.Table:
    """In the order in which each port has brought them."""
    return pa.table({"web": [str(web["id"].to_pylist())], "shops": [str(shops["id"].to_pylist())]})


def pipeline() -> Pipeline:
    made = Pipeline("clicks", partition=BERLIN, connections=["warehouse"])
    web = made.source("web", ScriptedSource(WEB, PER_EVENT))
    shops = made.source("shops", ScriptedSource(SHOPS, PER_EVENT))
    own = made.operator("own", OwnPartition("day", on="ts"), web)
    top = made.operator("top", ranked, own.port("own"), window=AllOfRun())
    several = made.operator("several", {"sums": sums, "number": (number, EveryEvents(2))}, web, window=AllOfRun())
    both = made.operator("both", beside, window=AllOfRun(), web=own.port("other"), shops=shops)

    def save(name: str, port: Any, **columns: str) -> None:
        made.writer(f"save_{name}", TableWriter("warehouse", name, columns), port)

    save("top", top, store="text", id="bigint", cents="bigint")
    save("sums", several.port("sums"), store="bigint", cents="bigint")
    save("number", several.port("number"), batch="bigint", records="bigint")
    save("both", both, web="text", shops="text")
    made.group("read", web, shops, own)
    made.group("make", top, several, both)
    made.group("write", *(f"save_{name}" for name in ("top", "sums", "number", "both")))
    made.lineage("web.out", "top.out")
    return made.freeze()


def by_duckdb(query: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    with duckdb.connect() as database:
        for name, table in tables.items():
            database.register(name, table)
        return database.execute(query).fetchall()


IS_OWN = "ts >= TIMESTAMP '2026-03-28 23:00' AND ts < TIMESTAMP '2026-03-29 22:00'"


def expected(read: Mapping[str, int]) -> dict[str, list[tuple[Any, ...]]]:
    """What each writer has written, by SQL, of the part of the input that was read."""
    web, shops = WEB.slice(0, read["web"]), SHOPS.slice(0, read["shops"])
    rank = "row_number() OVER (PARTITION BY store ORDER BY cents DESC, id) AS place"
    ranks = f"SELECT *, {rank} FROM web WHERE {IS_OWN}"
    top = f"SELECT name, id, cents FROM ({ranks}) JOIN names USING (store) WHERE place < 3 ORDER BY store, place"
    late = [row for (row,) in by_duckdb(f"SELECT id FROM web WHERE NOT ({IS_OWN}) ORDER BY id", web=web)]
    bundles = range(0, web.num_rows, 2 * PER_EVENT)
    return {
        "save_top": by_duckdb(top, web=web, names=NAMES),
        "save_sums": by_duckdb("SELECT store, sum(cents) FROM web GROUP BY store ORDER BY store", web=web),
        "save_number": [(n, len(web.slice(at, 2 * PER_EVENT))) for n, at in enumerate(bundles, start=1)],
        "save_both": [(str(late), str(list(range(read["shops"]))))] if late or shops.num_rows else [],
    }


def judge(seen: Observed, codec: Codec) -> list[str]:
    read = {name: seen.read[name].offset for name in ("web", "shops")}
    wrong = []
    for writer, wanted in expected(read).items():
        tables = [codec.decode(body) for body in seen.writes.get(f"{writer}>warehouse", ()) if body]
        found = [tuple(row.values()) for table in tables for row in table.to_pylist()]
        if found != wanted:
            wrong.append(f"{writer} has written {found} instead of {wanted}")
        if writer != "save_number" and len(tables) > 1:
            wrong.append(f"{writer} was given {len(tables)} Output Sets")
    return wrong


def test_one_input_set_whatever_crashes_and_when_it_is_drained() -> None:
    """Compared with SQL and, with several input ports in any order of arrival, with a run without failures."""
    scenario = pipeline_scenario(
        pipeline(), partition=DAY, tables={"warehouse": {"names": NAMES}}, judge=judge, drains=True
    )
    simulator = Simulator(scenario)
    assert (
        len({pair for pair in simulator.reference().observed.lineage if pair[2] == "top.out"}) > ROWS // PER_EVENT // 2
    )
    drained = crashed = 0
    for seed in SCHEDULES:
        figures, failure = simulator.run(seed)
        assert failure is None, failure
        drained += figures.drained
        crashed += figures.crashes
    assert drained and crashed


def test_a_run_without_an_event_has_no_input_set() -> None:
    made = Pipeline("nothing")
    made.sink(
        "end",
        Count(),
        made.operator("total", sums, made.source("web", ScriptedSource(WEB.slice(0, 0), 1)), window=AllOfRun()),
    )
    observed = Simulator(pipeline_scenario(made.freeze())).reference().observed
    assert not observed.ports.get("total.out")
    window = AllOfRun()
    assert window.flush([]) == [] and window.triggered(window.initial_state(), ["all"]) == ()


def test_events_without_records_are_an_input_set() -> None:
    """And a port without events is a table without rows."""
    operator = windowed(beside, AllOfRun())
    state = operator.initial_state()
    [(name, part)] = operator.assign(InputEvent("web", 1, WEB.slice(0, 0)), state).items()
    assert name == "all" and operator.part(InputEvent("web", 1, WEB.slice(0, 0)), "all") == part
    held = operator.accumulate(None, part)
    assert operator.triggered(state, ["all"]) == () and operator.flush(state, ["all"]) == ["all"]
    assert operator.record_rules().parts == {"": WHOLE}
    two = InputEvent("shops", 1, SHOPS.slice(0, 2))
    held = operator.accumulate(held, operator.assign(two, state)["all"])
    [(_, made)] = operator.generate(InputSet("all", held), state, FakeExternal())
    assert made.to_pylist() == [{"web": "[]", "shops": "[0, 1]"}]


@pytest.mark.parametrize("partition", [ByKey("store"), RoundRobin()], ids=["by key", "any"])
@pytest.mark.parametrize("several", [False, True], ids=["one function", "several"])
def test_it_is_refused_in_a_replicated_group(partition: Any, several: bool) -> None:
    """No slot gets everything, so each would have an Input Set of its own."""
    made = Pipeline("replicated")
    node = made.operator(
        "total",
        {"sums": sums} if several else sums,
        made.source("web", ScriptedSource(WEB, PER_EVENT)),
        window=AllOfRun(),
    )
    made.sink("end", Count(), node)
    made.group("work", "total")
    made.replicate("work", partition=partition, max=2)
    reason = "not partitionable.*AllOfRun" if partition.keyed else "has state, and RoundRobin"
    with pytest.raises(PipelineDefinitionError, match=f"its operator 'total' .*{reason}"):
        made.freeze()


def test_it_is_refused_behind_what_is_set_aside() -> None:
    """A retried event would come when the Input Set is closed. What cannot be used may go to a port of its own."""
    made = Pipeline("aside")
    good = made.operator(
        "good", stateless(on_error="quarantine")(lambda records: records), made.source("web", ScriptedSource(WEB, 4))
    )
    made.sink("end", Count(), made.operator("total", sums, good, window=AllOfRun()))
    says = r"'good' sets Input Sets aside on errors, but 'total' behind it.*no retry makes it again.*a port of its own"
    with pytest.raises(PipelineDefinitionError, match=says):
        made.freeze()
    other = Pipeline("apart")
    split = stateless(outputs=("good", "bad"))(lambda records: {"good": records, "bad": records.slice(0, 0)})
    other.operator("split", split, other.source("web", ScriptedSource(WEB, 4)))
    other.sink("end", Count(), other.operator("total", sums, "split.good", window=AllOfRun()))
    other.sink("unusable", Count(), "split.bad")
    other.freeze()


def test_it_is_part_of_the_pipeline() -> None:
    assert AllOfRun().describe() == {"window": "AllOfRun"} and AllOfRun() == AllOfRun()
    with pytest.raises(PipelineDefinitionError, match=r"give window=AllOfRun\(\), EveryEvents"):
        Pipeline("p").operator("total", sums, "web")
