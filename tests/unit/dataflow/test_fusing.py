"""Operators without a group share one where nothing tells them apart (ADR-121)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.contrib.paper_api import Logio
from airflow_logio.dataflow import (
    ByKey,
    Count,
    EveryEvents,
    ManualOperator,
    ParquetSource,
    Pipeline,
    TableRead,
    TableWriter,
    generate,
    stateless,
)


@stateless
def same(records: pa.Table) -> pa.Table:
    return records


@generate(mode="executors")
def spread(records: pa.Table) -> pa.Table:
    return records


@generate(inputs=("left", "right"))
def two_inputs(left: pa.Table, right: pa.Table) -> pa.Table:
    return left


class Hand(ManualOperator):
    order_insensitive = True

    def run(self, logio: Logio) -> None:
        """Only its place in the graph matters here."""


def made(**settings: Any) -> Pipeline:
    """read → one → two → done, and read → other → end."""
    p = Pipeline("p", connections=["shop"], **settings)
    begin = p.source("read", ParquetSource("f"))
    one = p.operator("one", same, begin)
    p.sink("done", Count(), p.operator("two", same, one))
    p.sink("end", Count(), p.operator("other", same, begin))
    return p


def groups(pipeline: Pipeline) -> dict[str, tuple[str, ...]]:
    return {name: group.operators for name, group in pipeline.groups.items()}


def test_all_that_are_connected_share_the_group_of_the_first() -> None:
    p = made()
    p.sink("alone", Count(), p.source("apart", ParquetSource("g")))
    assert groups(p) == {"read": ("read", "one", "two", "done", "other", "end"), "apart": ("apart", "alone")}


def test_each_has_its_own_where_the_author_wants_that() -> None:
    p = made(fuse=False)
    p.group("both", "one", "two")
    assert groups(p) == {
        "read": ("read",),
        "both": ("one", "two"),
        "done": ("done",),
        "other": ("other",),
        "end": ("end",),
    }


def test_a_named_group_is_as_its_author_made_it() -> None:
    p = made()
    p.group("middle", "one", spark={"spark.driver.memory": "2g"})
    # `two` and `done` are behind it, and `read` before it: together they would send to it and get from it.
    assert groups(p) == {"read": ("read", "other", "end"), "middle": ("one",), "two": ("two", "done")}
    assert p.groups["middle"].spark == {"spark.driver.memory": "2g"}


def test_groups_form_no_cycle_through_a_named_one() -> None:
    p = Pipeline("p")
    begin = p.source("read", ParquetSource("f"))
    middle = p.operator("middle", same, begin)
    p.operator("both", two_inputs, left=begin, right=middle, window=EveryEvents(2))
    p.sink("done", Count(), "both")
    p.group("middle", middle)
    assert groups(p) == {"read": ("read",), "middle": ("middle",), "both": ("both", "done")}


def test_what_needs_spark_is_told_apart() -> None:
    p = Pipeline("p")
    near = p.operator("near", same, p.source("read", ParquetSource("f")))
    p.operator("again", spread, p.operator("far", spread, near, window=EveryEvents(2)), window=EveryEvents(2))
    p.sink("done", Count(), "again")
    assert groups(p) == {"read": ("read", "near"), "far": ("far", "again"), "done": ("done",)}


def test_what_is_written_by_hand_replicated_or_replayed_is_alone() -> None:
    p = made()
    p.operator("hand", Hand(), "two")
    p.sink("counted", Count(), "hand")
    p.operator("replayed", same, "other", replay=True)
    p.sink("known", Count(), "replayed")
    p.lineage("read.out", "replayed.out")
    p.replicate("one", partition=ByKey("id"), max=2)
    # What is compared with replicas has the groups that it has without them.
    assert groups(p.unreplicated()) == {
        "read": ("read", "other", "end"),
        "one": ("one",),
        "two": ("two", "done"),
        "hand": ("hand",),
        "counted": ("counted",),
        "replayed": ("replayed",),
        "known": ("known",),
    }
    homes = {name: p.home(name) for name in ("one[0]", "dispatch(one)", "merge(one)", "two", "other")}
    assert homes == {"one[0]": "one", "dispatch(one)": "read", "merge(one)": "two", "two": "two", "other": "read"}


@generate(reads={"prices": TableRead("shop", "prices", key="id")})
def priced(records: pa.Table, prices: pa.Table) -> pa.Table:
    return records


def test_a_read_is_told_apart_from_the_writes_that_it_would_wait_for() -> None:
    p = Pipeline("p", connections=["shop"])
    begin = p.source("read", ParquetSource("f"))
    p.operator("priced", priced, begin, window=EveryEvents(2))
    p.writer("save", TableWriter("shop", "prices"), begin)
    p.sink("done", Count(), "priced")
    assert groups(p) == {"read": ("read", "priced", "done"), "save": ("save",)}


@pytest.mark.parametrize("order", [("left", "right"), ("right", "left")])
def test_the_groups_depend_on_the_graph_and_not_on_when_it_is_made(order: tuple[str, str]) -> None:
    p = Pipeline("p")
    begin = p.source("read", ParquetSource("f"))
    for name in order:
        p.sink(f"{name}_end", Count(), p.operator(name, same, begin))
    (members,) = groups(p).values()
    assert sorted(members) == sorted(["read", "left", "right", "left_end", "right_end"])
    assert p.fingerprint() == p.fingerprint()


def test_who_names_an_operator_in_place_of_its_group_is_told_where_it_is() -> None:
    p = made()
    assert p.no_group("nobody") == "pipeline 'p' has no group 'nobody'; it has ['read']"
    assert p.no_group("two").endswith(
        "Operator 'two' is in group 'read': give it a group of its own with .group('two', 'two')"
    )
