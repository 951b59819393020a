"""Values of every type that records can have: which are equal, and which cannot be compared."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa
import pytest

from airflow_logio.lineage.record_matching import Side, comparable, counts, numbered

DAYS = [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), None, dt.datetime(2020, 1, 2, tzinfo=dt.UTC)]
NUMBERS = [1, None, 2]
DECIMALS = [decimal.Decimal("1.0"), None, decimal.Decimal("2.0")]
TEXTS = ["a", None, "b"]
COLUMNS = {
    "nothing": pa.nulls(3),
    "booleans": pa.array([True, None, False]),
    **{str(kind): pa.array(NUMBERS, kind) for kind in (pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64())},
    "halffloat": pa.array([1.0, None, 2.0], pa.float32()).cast(pa.float16()),
    **{str(kind): pa.array(TEXTS, kind) for kind in (pa.string(), pa.large_string(), pa.string_view())},
    "dictionary": pa.array(TEXTS).dictionary_encode(),
    "dictionary with null": pa.array(NUMBERS).dictionary_encode(null_encoding="encode"),
    **{str(kind): pa.array([b"a", None, b"b"], kind) for kind in (pa.binary(), pa.binary(1), pa.binary_view())},
    **{str(kind): pa.array(DAYS, kind) for kind in (pa.timestamp("us"), pa.timestamp("ns", "UTC"))},
    **{str(kind): pa.array(DAYS, pa.timestamp("us")).cast(kind) for kind in (pa.date32(), pa.date64())},
    "time": pa.array([dt.time(1), None, dt.time(2)], pa.time64("us")),
    "duration": pa.array([dt.timedelta(1), None, dt.timedelta(2)]),
    **{str(kind): pa.array(DECIMALS, kind) for kind in (pa.decimal32(5, 1), pa.decimal128(5, 1), pa.decimal256(50, 1))},
    "interval": pa.array([(1, 2, 3), None, (1, 2, 4)], pa.month_day_nano_interval()),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_equal_values_have_equal_numbers_in_every_table(name: str) -> None:
    column = COLUMNS[name]
    compared = comparable([column.type, column.type])
    assert compared is not None
    turned = pa.chunked_array([column.slice(2), column.slice(1, 1), column.slice(0, 1)])
    empty = pa.chunked_array([], type=column.type)
    sides = [Side({"x": one}, len(one)) for one in (pa.chunked_array([column]), empty, turned)]
    numbers, none, backwards = (one.tolist() for one in numbered({"x": compared.kind}, sides))
    assert len(set(numbers)) == (1 if name == "nothing" else 3)
    assert (none, backwards) == ([], numbers[::-1])


@pytest.mark.parametrize(
    ("one", "other", "is_exact"),
    [
        (pa.int8(), pa.int64(), True),
        (pa.string(), pa.large_string(), True),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), True),
        (pa.float32(), pa.float64(), False),
        (pa.float64(), pa.float64(), False),
        (pa.float16(), pa.float64(), None),
        (pa.int64(), pa.uint64(), None),
        (pa.int64(), pa.float64(), None),
        (pa.int64(), pa.string(), None),
        (pa.timestamp("us"), pa.timestamp("ms"), None),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.decimal128(5, 1), pa.decimal128(6, 1), None),
        (pa.list_(pa.int64()), pa.list_(pa.int64()), None),
        (pa.uuid(), pa.uuid(), None),
    ],
)
def test_what_can_be_compared(one: pa.DataType, other: pa.DataType, is_exact: bool | None) -> None:
    for kinds in ([one, other], [other, one, other]):
        compared = comparable(kinds)
        assert (None if compared is None else compared.is_exact) is is_exact


def test_combinations_of_several_columns_are_counted() -> None:
    kinds = {"a": pa.int64(), "b": pa.large_string()}
    table = pa.table({"a": [1, 1, None, 1], "b": ["x", "y", "x", "x"]})
    side = Side({name: table.column(name) for name in "ab"}, 4)
    numbers, again = numbered(kinds, [side, side])
    assert numbers.tolist() == again.tolist() and len(set(numbers.tolist())) == 3
    assert counts([numbers, numbers[:1]]) == {numbers[0]: 3, numbers[1]: 1, numbers[2]: 1}
    assert counts([]) == {}
    assert [one.tolist() for one in numbered({}, [Side({}, 2), Side({}, 1)])] == [[0, 0], [0]], "all are alike"


def test_what_a_library_takes_for_equal_is_equal() -> None:
    """Pandas knows no null of floating point numbers, and Spark no -0.0."""
    column = pa.chunked_array([pa.array([0.0, None, float("nan"), -0.0, 1.0])])
    (numbers,) = numbered({"x": pa.float64()}, [Side({"x": column}, 5)])
    assert numbers[0] == numbers[3] and numbers[1] == numbers[2] and len(set(numbers.tolist())) == 3
