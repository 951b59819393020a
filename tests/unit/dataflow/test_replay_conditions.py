"""Which operators may be replay operators, and what those that may not are told."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from airflow_logio.dataflow import (
    Count,
    EveryEvents,
    ParquetSource,
    Pipeline,
    RoundRobin,
    Synchronized,
    TableRead,
    generate,
    stateless,
)
from airflow_logio.errors import PipelineDefinitionError


@stateless
def passed(records: pa.Table) -> pa.Table:
    return records


@stateless(mode="dataframe")
def in_spark(records: pa.Table) -> pa.Table:
    return records


@generate
def total(records: pa.Table, inset_id: str) -> pa.Table:
    return records


@generate
def seeing(records: pa.Table, state: dict[str, int]) -> pa.Table:
    return records


@generate(mode="executors")
def in_jobs(records: pa.Table) -> pa.Table:
    return records


@generate(inputs=["left", "right"])
def joined(left: pa.Table, right: pa.Table) -> pa.Table:
    return left


@generate(reads={"prices": TableRead("warehouse", "prices", key="item")})
def priced(records: pa.Table, prices: pa.Table) -> pa.Table:
    return records


def pipeline() -> Pipeline:
    made = Pipeline("p", connections=["warehouse"])
    made.source("read", ParquetSource("x.parquet"))
    return made


def ended(made: Pipeline, *scopes: tuple[str, str], last: str = "work") -> Pipeline:
    made.sink("done", Count(), last)
    for start, target in scopes:
        made.lineage(start, target)
    return made


def test_functions_and_windows_with_lineage_on_all_their_ports() -> None:
    made = pipeline()
    made.operator("first", passed, "read", replay=True)
    made.operator("work", {"totals": total, "rest": total}, "first", window=EveryEvents(2), replay=True)
    made.sink("rest", Count(), "work.rest")
    ended(made, ("read.out", "work.totals"), ("read.out", "work.rest"), last="work.totals")
    made.freeze()
    assert [name for name in made.operators if made.replays(name)] == ["first", "work"]
    assert made.describe()["operators"]["first"]["replay"] is True
    assert "replay" not in made.describe()["operators"]["rest"]


def test_a_run_does_not_continue_with_another_choice() -> None:
    def built(*, replay: bool) -> str:
        made = pipeline()
        made.operator("work", passed, "read", replay=replay)
        return ended(made, ("read.out", "work.out")).fingerprint()["graph"]

    assert built(replay=True) != built(replay=False) == built(replay=False)


def test_in_slots_of_a_replicated_group_too() -> None:
    made = pipeline()
    made.operator("work", passed, "read", replay=True)
    made.replicate("work", partition=RoundRobin(), max=2)
    ended(made, ("read.out", "work.out"))
    replayed = {name for name in made.operators if made.replays(name)}
    assert replayed == {name for name in made.operators if name.startswith("work[")}


def only(*scopes: tuple[str, str]) -> Callable[[], Pipeline]:
    def build() -> Pipeline:
        made = pipeline()
        made.operator("work", passed, "read", replay=True)
        made.operator("behind", passed, "work")
        return ended(made, *scopes, last="behind")

    return build


def of(function: object, **window: EveryEvents) -> Callable[[], Pipeline]:
    def build() -> Pipeline:
        made = pipeline()
        made.operator("work", function, "read", replay=True, **window)  # type: ignore[arg-type]
        return ended(made, ("read.out", "work.out"))

    return build


def joining() -> Pipeline:
    made = pipeline()
    made.operator("work", joined, left="read", right="read", window=EveryEvents(2), replay=True)
    return ended(made, ("read.out", "work.out"))


def before_spark() -> Pipeline:
    made = pipeline()
    made.operator("work", passed, "read", replay=True)
    made.operator("frames", in_spark, "work")
    return ended(made, ("read.out", "work.out"), last="frames")


def in_turn() -> Pipeline:
    made = pipeline()
    made.operator("work", passed, "read", replay=True)
    made.operator("turns", joined, left="work", right="read", window=Synchronized(left=1, right=1, ordered=True))
    made.group("both", "work", "turns")
    return ended(made, ("read.out", "work.out"), last="turns")


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (only(), r"no lineage is captured through its ports 'in' and 'out'"),
        (only(("work.out", "behind.out")), r"no lineage is captured through its ports 'in' and 'out'"),
        (of(in_spark), "has mode 'dataframe'"),
        (of(in_jobs, window=EveryEvents(2)), "has mode 'executors'"),
        (of(seeing, window=EveryEvents(2)), "reads the global state"),
        (of(priced, window=EveryEvents(2)), "uses connections 'warehouse'"),
        (joining, "has input ports 'left' and 'right'"),
        (in_turn, "'turns' of the same group uses its events in turn with others"),
        (before_spark, "'frames', which gets its events, has mode 'dataframe'"),
    ],
)
def test_others_are_refused_with_the_reason(build: Callable[[], Pipeline], says: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=says):
        build().validate()
