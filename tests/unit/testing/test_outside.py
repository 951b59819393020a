"""What a pipeline reads and writes outside, under the simulator: stand-ins answer, and what has none is refused."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from airflow_logio.cli.app import commands
from airflow_logio.dataflow import (
    Count,
    EveryEvents,
    FunctionRead,
    Pipeline,
    QuerySource,
    TableRead,
    TableWriter,
    generate,
)
from airflow_logio.dataflow.operators import SourceBatch
from airflow_logio.dataflow.reads import DeclaredRead
from airflow_logio.dataflow.sources.connected import ConnectedSource
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.testing import Observed, ScriptedSource, Simulator, Violation, pipeline_scenario
from airflow_logio.testing.simulator.authored_pipeline import ExternalTables
from airflow_logio.testing.simulator.drains import DRAIN_EVERY
from tests.unit.testing.mutants import MUTANTS

NUMBERS = pa.table({"number": [n % 50 for n in range(240)]})
NAMES = pa.table({"number": list(range(50)), "name": [f"number {n}" for n in range(50)], "unused": [0] * 50})


def priced(url: str, keys: pa.Array | None) -> pa.Table:
    raise AssertionError(f"the simulator reads nothing outside, and asks {url} for {keys}")


READS: dict[str, DeclaredRead] = {
    "names": TableRead("books", "names", ("number", "name"), key="number"),
    "prices": FunctionRead("shop", priced, {"what": "prices"}, key="number"),
}


@generate(mode="driver", reads=READS)
def bill(records: pa.Table, inset_id: str, names: pa.Table, prices: pa.Table) -> pa.Table:
    assert names.column_names == ["number", "name"]
    named = dict(zip(names.column("number").to_pylist(), names.column("name").to_pylist(), strict=True))
    costs = dict(zip(prices.column("number").to_pylist(), prices.column("price").to_pylist(), strict=True))
    numbers = records.column("number").to_pylist()
    assert set(named) == set(costs) == set(numbers)
    return pa.table({"bill": [int(inset_id)] * len(numbers), "price": [costs[number] for number in numbers]})


def pipeline() -> Pipeline:
    made = Pipeline("bills", connections=["books", "shop", "warehouse"])
    read = made.source("read", ScriptedSource(NUMBERS, 4))
    bills = made.operator("bills", bill, read, window=EveryEvents(5))
    save = made.writer("save", TableWriter("warehouse", "bills", {"bill": "bigint", "price": "bigint"}), bills)
    made.group("ingest", read)
    made.group("compute", bills)
    made.group("store", save)
    made.lineage("read.out", "bills.out")
    return made.freeze()


def twice(_read: object, keys: pa.Array | None) -> pa.Table:
    assert keys is not None
    return pa.table({"number": keys, "price": [2 * key for key in keys.to_pylist()]})


def test_reads_of_tables_and_of_functions_are_answered() -> None:
    simulator = Simulator(pipeline_scenario(pipeline(), tables={"books": {"names": NAMES}, "shop": twice}))
    seen = simulator.reference().observed
    assert [len(seen.ports[port]) for port in ("bills<books", "bills<shop", "bills.out")] == [12, 12, 13]
    for seed in range(2 * DRAIN_EVERY):
        figures, failure = simulator.run(seed)
        assert failure is None
        assert figures.crashes >= 3


def test_an_answer_that_is_another_one_each_time_is_used_once() -> None:
    """What is written was made of the very effect that is on record, though crashes have asked for more."""
    asked = itertools.count(1)
    answers: dict[str, int] = {}

    def changing(_read: object, keys: pa.Array | None) -> pa.Table:
        assert keys is not None
        return pa.table({"number": keys, "price": [next(asked)] * len(keys)})

    def judge(seen: Observed, codec: Any) -> list[str]:
        effects = [set(codec.decode(body).column("price").to_pylist()) for body in seen.ports["bills<shop"]]
        made = [set(codec.decode(body).column("price").to_pylist()) for body in seen.ports["bills.out"] if body]
        answers["asked"] = answers.get("asked", 0) + 1
        return [] if effects == made else [f"{made} was made, and {effects} is on record"]

    tables: ExternalTables = {"books": {"names": NAMES}, "shop": changing}
    simulator = Simulator(pipeline_scenario(pipeline(), tables=tables, deterministic=False, judge=judge))
    simulator.reference()
    before = next(asked)
    seeds = range(2 * DRAIN_EVERY)
    assert [simulator.run(seed)[1] for seed in seeds] == [None] * len(seeds)
    assert next(asked) - before > 12 * len(seeds), "it was not read again, so nothing was tried"
    assert answers["asked"] == len(seeds) + 1


@pytest.mark.parametrize(
    ("tables", "what"),
    [
        ({}, "table 'names' of connection 'books'"),
        ({"books": {"titles": NAMES}}, "table 'names' of connection 'books'"),
        ({"books": {"names": NAMES}}, "of connection 'shop'"),
        ({"books": {"names": NAMES}, "shop": {"prices": NAMES}}, "of connection 'shop'"),
    ],
)
def test_what_is_not_answered_is_refused_with_the_next_step(tables: Mapping[str, Any], what: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=f"operator 'bills'.*does not know .*{what}; say what it holds"):
        pipeline_scenario(pipeline(), tables=tables)


def test_an_answer_that_is_no_table_is_refused() -> None:
    simulator = Simulator(
        pipeline_scenario(pipeline(), tables={"books": {"names": NAMES}, "shop": lambda _read, _keys: {}})
    )
    with pytest.raises(
        Violation, match=r"stands in for connection 'shop' answered function .* with a dict; return an Arrow"
    ):
        simulator.reference()


OWN = """
import pyarrow as pa
from airflow_logio.testing import pipeline_scenario
from tests.unit.testing.test_outside import NAMES, pipeline, twice

bills = pipeline()
scenario = pipeline_scenario(bills, tables={"books": {"names": NAMES}, "shop": twice})
"""


def test_the_command_line_says_what_to_write_and_runs_it(tmp_path: Path) -> None:
    path = tmp_path / f"outside_{tmp_path.name}.py"
    path.write_text(OWN)
    refused = CliRunner().invoke(commands(), ["simulate", f"{path}:bills", "--schedules", "1"])
    assert isinstance(refused.exception, PipelineDefinitionError | ConfigurationError)
    assert re.search(r"tables=\{'books': ...\}\).*`file.py:scenario` for `logio simulate`", str(refused.exception))
    done = CliRunner().invoke(commands(), ["simulate", f"{path}:scenario", "--schedules", "2"])
    assert done.exit_code == 0, done.output
    assert "2 schedules; 0 violations" in done.output


def asking(source: QuerySource) -> Pipeline:
    """What a source asks a database for goes to a table as it is."""
    made = Pipeline("asks", params={"least": int}, connections=["books", "warehouse"])
    rows = made.source("rows", source)
    columns = {"number": "bigint", "name": "text"}
    made.group("ingest", rows)
    made.group("store", made.writer("save", TableWriter("warehouse", "copies", columns), rows))
    return made.freeze()


COLUMNS = {"number": "bigint", "name": "text"}
QUERY = QuerySource(
    "books", "SELECT number, name FROM names WHERE number >= :least", columns=COLUMNS, records_per_event=2
)
SHUFFLED = pa.table(
    {"name": [f"number {n}" for n in range(239, -1, -1)], "number": list(range(239, -1, -1)), "unused": [0] * 240}
)
TABLE = QuerySource(
    "books",
    table="names",
    columns=["number", "name"],
    order_by="number",
    append_only=True,
    replayable=True,
    records_per_event=2,
)


@pytest.mark.parametrize(
    ("source", "contents"),
    [(TABLE, {"names": SHUFFLED}), (QUERY, {"rows": SHUFFLED}), (QUERY, lambda _source, _keys: SHUFFLED)],
)
def test_sql_sources_are_answered_by_tables(source: QuerySource, contents: Any) -> None:
    scenario = pipeline_scenario(asking(source), params={"least": 0}, tables={"books": contents})
    simulator = Simulator(scenario)
    events = [scenario.codec.decode(body) for body in simulator.reference().observed.ports["rows.out"] if body]
    assert [event.num_rows for event in events] == [2] * 120 and events[0].column_names == ["number", "name"]
    assert events[0]["number"].to_pylist() == ([0, 1] if source.order_by else [239, 238])
    for seed in range(DRAIN_EVERY + 1):
        figures, failure = simulator.run(seed)
        assert failure is None and figures.crashes >= 3


@pytest.mark.parametrize(
    ("source", "contents", "what"),
    [
        (TABLE, {}, "does not know table 'names' of connection 'books'; say what it holds"),
        (QUERY, {"names": SHUFFLED}, "the result of the query, under the source's name, 'rows', of connection 'books'"),
    ],
)
def test_a_sql_source_that_is_not_answered_is_refused(source: QuerySource, contents: Any, what: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=f"source 'rows'.*{what}"):
        pipeline_scenario(asking(source), params={"least": 0}, tables={"books": contents})


@pytest.mark.parametrize(
    ("table", "what"),
    [
        (pa.table({"number": [1]}), "has no column 'name', which a source reads; it has number"),
        (pa.table({"number": ["one"], "name": ["x"]}), "does not have the types that a source declares: "),
    ],
)
def test_rows_that_a_sql_source_cannot_have_are_refused(table: pa.Table, what: str) -> None:
    scenario = pipeline_scenario(asking(QUERY), params={"least": 0}, tables={"books": {"rows": table}})
    with pytest.raises(Violation, match=what):
        Simulator(scenario).reference()


UNLIKE = """
import uuid
import pyarrow as pa
from airflow_logio import EveryEvents, Pipeline, TableWriter, generate
from airflow_logio.testing import ScriptedSource


@generate
def tagged(part: pa.Table) -> pa.Table:
    return part.append_column("tag", pa.array([uuid.uuid4().hex for _ in range(part.num_rows)]))


tags = Pipeline("tags", connections=["warehouse"])
read = tags.source("read", ScriptedSource(pa.table({"number": list(range(240))}), 3))
tag = tags.operator("tag", tagged, read, window=EveryEvents(2))
save = tags.writer("save", TableWriter("warehouse", "tags", {"number": "bigint", "tag": "text"}), tag)
tags.group("ingest", read)
tags.group("compute", tag)
tags.group("store", save)
"""


def test_crash_safety_alone_needs_neither_determinism_nor_a_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"unlike_{tmp_path.name}.py"
    path.write_text(UNLIKE)
    arguments = ["simulate", f"{path}:tags", "--schedules", "10"]
    compared = CliRunner().invoke(commands(), arguments)
    assert compared.exit_code == 1 and "--not-deterministic checks its crash safety alone" in compared.output
    alone = CliRunner().invoke(commands(), [*arguments, "--not-deterministic"])
    assert alone.exit_code == 0, alone.output
    assert "10 schedules" in alone.output and "destinations have what the log says" in alone.output
    MUTANTS["marker_not_checked"].install(monkeypatch)
    broken = CliRunner().invoke(commands(), [*arguments, "--not-deterministic"])
    assert broken.exit_code == 1 and "destinations have what the log says — violated: " in broken.output, broken.output


def test_operators_by_hand_and_sources_of_ones_own_are_refused() -> None:
    from pipelines.by_hand import by_hand

    class Feed(ConnectedSource):
        def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
            return {}

        def read_from(self, connection: Any, params: Any, action: Any, offset: int) -> Iterator[SourceBatch]:
            raise NotImplementedError

    made = Pipeline("asks", connections=["books"])
    rows = made.source("rows", Feed("books"))
    made.group("ingest", rows, made.sink("done", Count(), rows))
    with pytest.raises(
        PipelineDefinitionError, match=r"'rows' reads connection 'books'.*a ScriptedSource over an Arrow table"
    ):
        pipeline_scenario(made.freeze())
    with pytest.raises(
        PipelineDefinitionError, match=r"driven by hand.*a function or a ScriptedSource stands in for it"
    ):
        pipeline_scenario(by_hand)
