"""The digest of a table is that of its contents: the layout of its memory does not count, and everything else does."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_logio.systems.arrow import decode, digest_of, encode

COLUMNS: dict[str, pa.Array] = {
    "integers": pa.array([1, None, 3, 4], pa.int32()),
    "numbers": pa.array([1.5, float("nan"), None, -0.0]),
    "flags": pa.array([True, None, False, True]),
    "text": pa.array(["a", "", None, "äöü"]),
    "bytes": pa.array([b"a", None, b"", b"bc"], pa.large_binary()),
    "moments": pa.array([7, None, -1, 2**40], pa.timestamp("us")),
    "amounts": pa.array([Decimal("1.10"), None, Decimal("-2.00"), Decimal("0.00")]),
    "fixed": pa.array([b"ab", None, b"cd", b"ef"], pa.binary(2)),
    "kinds": pa.array(["x", "y", None, "x"]).dictionary_encode(),
    "lists": pa.array([[1, None], None, [], [2, 3, 4]]),
    "records": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 2, "b": None}]),
    "maps": pa.array([[("k", 1)], None, [], [("l", 2), ("m", None)]], pa.map_(pa.string(), pa.int64())),
    "nulls": pa.nulls(4),
    "views": pa.array(["a", None, "b", "c" * 30], pa.string_view()),
}
TABLE = pa.table(COLUMNS)


@pytest.mark.parametrize("name", COLUMNS)
def test_chunks_offsets_and_a_way_through_the_log_do_not_count(name: str) -> None:
    table = TABLE.select([name])
    wanted = digest_of(table)
    column = table.column(0).chunk(0)
    padded = pa.concat_arrays([column.slice(3, 1), column, column.slice(0, 2)]).slice(1, len(column))
    assert padded.offset == 1
    assert digest_of(pa.table({name: padded})) == wanted
    chunked = pa.chunked_array([column.slice(0, 1), column.slice(1, 0), column.slice(1)])
    assert digest_of(pa.table({name: chunked})) == wanted
    assert digest_of(decode("an event", encode(table))) == wanted


@pytest.mark.parametrize("name", [name for name in COLUMNS if name not in ("nulls", "views")])
def test_values_their_order_their_number_and_what_is_null_count(name: str) -> None:
    table = TABLE.select([name])
    others = [table.slice(0, 3), table.take([0, 1, 3, 2]), table.take([0, 0, 2, 3]), table.take([1, 1, 2, 3])]
    assert len({digest_of(one) for one in (table, *others)}) == 5


def test_names_and_types_count() -> None:
    small, large = pa.array([1, 2], pa.int32()), pa.array([1, 2], pa.int64())
    made = [pa.table({"a": small}), pa.table({"b": small}), pa.table({"a": large}), pa.table({"a": small, "b": small})]
    assert len(set(map(digest_of, made))) == len(made)


def test_where_a_text_ends_counts() -> None:
    assert digest_of(pa.table({"a": ["ab", "c"]})) != digest_of(pa.table({"a": ["a", "bc"]}))
    assert digest_of(pa.table({"a": [[1, 2], [3]]})) != digest_of(pa.table({"a": [[1], [2, 3]]}))


def _with_null(values: list[Any], at: int, kind: pa.DataType) -> pa.Table:
    return pa.table({"a": pa.array([*values[:at], None, *values[at:]], kind)})


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([127, 1, 2, 3, 4, 5, 6, 7], pa.int8()),
        ([b"\x7f", *(bytes([number]) for number in range(7))], pa.binary(1)),
        ([2**63 - 1 - 2**56, *range(63)], pa.int64()),
        ([-(2**56) - 1, *range(63)], pa.int64()),
        ([0x7FFF, *range(15)], pa.uint16()),
        ([0xFF7F, *range(15)], pa.uint16()),
    ],
)
def test_a_value_is_never_taken_for_a_list_of_what_is_null(values: list[Any], kind: pa.DataType) -> None:
    """Which values are null is written before the others: bits, that may be those of a value."""
    whole = pa.table({"a": pa.array(values, kind)})
    others = [_with_null(values[1:], at, kind) for at in range(len(values))]
    assert len({digest_of(one) for one in (whole, *others)}) == 1 + len(others)


def test_what_lies_under_nulls_does_not_count() -> None:
    valid = pa.py_buffer(np.packbits([1, 0, 1], bitorder="little").tobytes())

    def with_garbage(garbage: int) -> pa.Table:
        values: Any = pa.py_buffer(np.array([7, garbage, 9], np.int64).tobytes())
        return pa.table({"a": pa.Array.from_buffers(pa.int64(), 3, [valid, values])})

    assert digest_of(with_garbage(1)) == digest_of(with_garbage(2)) == digest_of(pa.table({"a": [7, None, 9]}))
