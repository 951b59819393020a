"""How records find their slot: every record in one part, all of a key in one slot, the same slot in every process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_logio.dataflow import ByKey, InputEvent, LeastLoaded, Partition, RoundRobin
from airflow_logio.dataflow.replication.partition import AllSlots, by_slot, slots_of
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError

STORES = [7, 4, 2, 6]
BOTH = [119, 101, 58, 42]
"""Slots of the keys in `test_slots_are_for_ever`, as they were first computed."""


class Known:
    """Routes that say what a test wants."""

    def __init__(self, replicas: Sequence[Sequence[int]], backlogs: dict[int, int] | None = None) -> None:
        self._replicas = replicas
        self._backlogs = backlogs or {}

    def replicas(self) -> Sequence[Sequence[int]]:
        return self._replicas

    def backlog(self, slot: int) -> int:
        return self._backlogs.get(slot, 0)


def event(number: int, **columns: Any) -> InputEvent:
    return InputEvent("in", number, pa.table(columns or {"x": [number]}))


keys = st.one_of(
    st.lists(st.one_of(st.none(), st.integers(-(2**60), 2**60)), max_size=60).map(lambda v: pa.array(v, pa.int64())),
    st.lists(st.one_of(st.none(), st.text(max_size=4)), max_size=60).map(lambda v: pa.array(v, pa.string())),
    st.lists(st.floats(allow_nan=False), max_size=60).map(lambda v: pa.array(v, pa.float64())),
    st.lists(st.booleans(), max_size=60).map(lambda v: pa.array(v, pa.bool_())),
)


@settings(deadline=None)
@given(keys, st.integers(1, 20), st.integers(0, 60))
def test_parts_are_the_records_each_once_in_their_order(column: pa.Array, slots: int, cut: int) -> None:
    table = pa.table({"row": range(len(column)), "key": column})
    chunked = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    parts = dict(by_slot(chunked, ("key",), slots))
    assert sorted(row for part in parts.values() for row in part["row"].to_pylist()) == list(range(len(column)))
    where: dict[Any, int] = {}
    for slot, part in parts.items():
        assert 0 <= slot < slots
        rows = part["row"].to_pylist()
        assert rows and rows == sorted(rows)
        for key in part["key"].to_pylist():
            assert where.setdefault(key, slot) == slot


TYPES = [
    pa.array([1, None, 3], pa.int32()),
    pa.array(["a", None, "b"]).dictionary_encode(),
    pa.array([b"a", b""], pa.binary()),
    pa.array([datetime(2017, 3, 5, tzinfo=UTC), None], pa.timestamp("ns", "UTC")),
    pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
    pa.nulls(3),
    pa.array([], pa.string()),
    pa.array([5], pa.time32("s")),
    pa.array([5], pa.time64("ns")),
    pa.array([5], pa.duration("ms")),
]


@pytest.mark.parametrize("column", TYPES, ids=lambda column: str(column.type))
def test_keys_of_many_types(column: pa.Array) -> None:
    assert len(slots_of(pa.table({"key": column}), ("key",), 7)) == len(column)


def test_a_wider_type_and_a_dictionary_keep_the_slots() -> None:
    small = slots_of(pa.table({"key": pa.array([1, -5, None], pa.int16())}), ("key",), 128)
    wide = slots_of(pa.table({"key": pa.array([1, -5, None], pa.int64())}), ("key",), 128)
    assert small.tolist() == wide.tolist()
    text = pa.array(["north", "south"])
    plain, encoded = (slots_of(pa.table({"key": one}), ("key",), 128) for one in (text, text.dictionary_encode()))
    assert plain.tolist() == encoded.tolist()
    assert slots_of(pa.table({"key": [0.0]}), ("key",), 128) == slots_of(pa.table({"key": [-0.0]}), ("key",), 128)


def test_the_unit_of_a_time_makes_no_other_key() -> None:
    times = pa.array(
        [datetime(2017, 3, 5, 4, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC), None], pa.timestamp("s", "UTC")
    )
    seen = {
        tuple(slots_of(pa.table({"key": times.cast(pa.timestamp(unit, zone))}), ("key",), 128).tolist())
        for unit in ("s", "ms", "us", "ns")
        for zone in ("UTC", "Europe/Berlin")
    }
    assert len(seen) == 1
    days = pa.array([17_000, -1], pa.int32()).cast(pa.date32())
    assert slots_of(pa.table({"key": days}), ("key",), 128).tolist() == (
        slots_of(pa.table({"key": days.cast(pa.date64())}), ("key",), 128).tolist()
    )


def test_slots_are_for_ever() -> None:
    """A run that was started by another version, or another process, has its keys where they were."""
    table = pa.table({"store": [1, 2, 3, 450], "name": ["a", "b", None, "ü"]})
    assert slots_of(table, ("store",), 16).tolist() == STORES
    assert slots_of(table, ("store", "name"), 128).tolist() == BOTH
    code = (
        "import pyarrow as pa; from airflow_logio.dataflow.replication.partition import slots_of;"
        "print(slots_of(pa.table({'store': [1, 2, 3, 450]}), ('store',), 16).tolist())"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert seen.stdout.strip() == str(STORES)


def test_keys_are_spread() -> None:
    numbers = slots_of(pa.table({"key": range(16_000)}), ("key",), 16).tolist()
    counts = [numbers.count(slot) for slot in range(16)]
    assert min(counts) > 800 and max(counts) < 1_200


def test_a_key_that_is_none() -> None:
    with pytest.raises(OperatorFailed, match=r"key column 'stor'; the records have .* Did you mean 'store'\?"):
        by_slot(pa.table({"store": [1]}), ("stor",), 4)
    with pytest.raises(OperatorFailed, match="whose type list<"):
        by_slot(pa.table({"store": [[1]]}), ("store",), 4)


def parted(partition: Partition, number: int, routes: Any) -> list[int]:
    return [slot for slot, _ in partition.part(event(number), 8, routes)]


def test_round_robin_goes_from_replica_to_replica() -> None:
    routes = Known([(0, 1, 2), (3, 4)])
    sent = [slot for number in range(1, 13) for slot in parted(RoundRobin(), number, routes)]
    assert [slot in (0, 1, 2) for slot in sent] == [number % 2 == 0 for number in range(1, 13)]
    assert {slot: sent.count(slot) for slot in range(5)} == {0: 2, 1: 2, 2: 2, 3: 3, 4: 3}


def test_the_least_loaded_replica_gets_the_event() -> None:
    routes = Known([(0, 1), (2, 3), (4,)], {0: 5, 1: 0, 2: 2, 3: 1, 4: 4})
    assert parted(LeastLoaded(), 1, routes) == [3]
    level = {parted(LeastLoaded(), number, AllSlots(8))[0] for number in range(1, 9)}
    assert level == set(range(8)), "slots without a backlog are taken in turn"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (ByKey, "ByKey needs a column"),
        (lambda: ByKey("Key;Column"), "column name"),
        (lambda: ByKey("k", slots=0), "ByKey: slots is 0"),
        (lambda: RoundRobin(5000), "RoundRobin: slots is 5000; at most 1024"),
        (
            lambda: ByKey("k", slots=3).slots_for(4),
            "3 slots, but the group may have 4 replicas: 1 of",
        ),
    ],
)
def test_what_no_partition_can_be(make: Any, sentence: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=sentence):
        make()
