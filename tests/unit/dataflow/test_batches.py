"""Tagging many Input Sets and splitting a result: a round trip, and what is refused."""

from __future__ import annotations

import random
import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_logio.dataflow.arrow_tables import split_by_input_set, tag_input_sets
from airflow_logio.errors import OperatorFailed

SCHEMA = pa.schema([("name", pa.string()), ("value", pa.int64())])
record = st.tuples(st.one_of(st.none(), st.text(max_size=3)), st.one_of(st.none(), st.integers(-9, 9)))
tables = st.lists(record, max_size=6).map(
    lambda rs: pa.table({"name": [r[0] for r in rs], "value": [r[1] for r in rs]}, schema=SCHEMA)
)


def in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([("name", "ascending"), ("value", "ascending")]).combine_chunks()


@settings(deadline=None)
@given(st.lists(st.lists(tables, min_size=1, max_size=3), min_size=1, max_size=6), st.randoms())
def test_round_trip(held: list[list[pa.Table]], shuffle: random.Random) -> None:
    tagged = tag_input_sets(held, {"place": pa.array(range(len(held)), pa.int64())})
    assert tagged.schema.names == ["inset_id", "place", "name", "value"]
    assert tagged.schema.field("inset_id").type == pa.int64()
    assert tagged["inset_id"].to_pylist() == tagged["place"].to_pylist()
    order = list(range(tagged.num_rows))
    shuffle.shuffle(order)
    parts = split_by_input_set(tagged.drop_columns(["place"]).take(pa.array(order, pa.int64())), len(held))
    assert len(parts) == len(held)
    for part, before in zip(parts, held, strict=True):
        expected = in_order(pa.concat_tables(before))
        assert (part is None) == (expected.num_rows == 0)
        assert part is None or part.equals(expected)


def test_split_of_nothing() -> None:
    assert (
        split_by_input_set(pa.table({"inset_id": pa.array([], pa.int64()), "a": pa.array([], pa.int64())}), 3)
        == [None] * 3
    )


def test_split_finds_the_column_anywhere_and_orders_by_all_others() -> None:
    result = pa.table({"b": ["y", "x", "x"], "inset_id": pa.array([1, 1, 1], pa.int32()), "a": [1, 2, 1]})
    first, second = split_by_input_set(result, 2)
    assert first is None
    assert second is not None
    assert second.to_pylist() == [{"b": "x", "a": 1}, {"b": "x", "a": 2}, {"b": "y", "a": 1}]


def test_split_takes_nested_columns_along() -> None:
    (part,) = split_by_input_set(pa.table({"inset_id": [0, 0], "list": [[2], [1]], "n": [2, 1]}), 1)
    assert part is not None
    assert part.to_pylist() == [{"list": [1], "n": 1}, {"list": [2], "n": 2}]


def test_split_makes_times_and_schema_uniform() -> None:
    """Spark returns the zone of its session and "not null" of its plan; both must not reach an event."""
    schema = pa.schema(
        [("inset_id", pa.int64()), ("t", pa.timestamp("us", "Asia/Tokyo")), pa.field("n", "int64", False)]
    )
    (part,) = split_by_input_set(pa.table({"inset_id": [0], "t": [0], "n": [1]}, schema=schema), 1)
    assert part is not None
    assert part.schema == pa.schema([("t", pa.timestamp("us")), ("n", pa.int64())])
    assert part["t"].cast(pa.int64()).to_pylist() == [0]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (pa.table({"inset": [0]}), "has columns ['inset'], but not 'inset_id'"),
        (pa.table({"inset_id": ["0"]}), "is string with 0 nulls"),
        (pa.table({"inset_id": [0, None]}), "is int64 with 1 nulls"),
        (pa.table({"inset_id": [0, 2]}), "goes from 0 to 2, but the batch has 2 Input Sets"),
        (pa.table({"inset_id": [-1, 0]}), "goes from -1 to 0"),
    ],
)
def test_split_refuses(result: pa.Table, words: str) -> None:
    with pytest.raises(OperatorFailed) as caught:
        split_by_input_set(result, 2)
    assert words in str(caught.value)


def test_tagged_refuses() -> None:
    with pytest.raises(OperatorFailed, match="column 'inset_id'"):
        tag_input_sets([[pa.table({"inset_id": [1]})]])
    with pytest.raises(ValueError, match="at least one"):
        tag_input_sets([])


def test_thousands_of_input_sets_take_a_moment() -> None:
    """The sizes of the sales run; the bounds are far above what it takes, and far below one step per record."""
    event = pa.table({name: pa.array(range(1000), pa.int64()) for name in "abcd"})
    held = [[event.slice(i % 800, 130), event.slice(3, 20)] for i in range(3000)]
    begin = time.perf_counter()
    tagged = tag_input_sets(held)
    middle = time.perf_counter()
    parts = split_by_input_set(tagged.slice(0, 360_000), 8_000)
    end = time.perf_counter()
    assert tagged.num_rows == 450_000
    assert sum(part is not None for part in parts) == 2_400
    assert middle - begin < 1
    assert end - middle < 2


def test_slices_share_memory() -> None:
    parts: list[Any] = split_by_input_set(pa.table({"inset_id": [0, 1, 1], "n": [1, 2, 3]}), 2)
    addresses = {part["n"].chunk(0).buffers()[1].address for part in parts}
    assert len(addresses) == 1
