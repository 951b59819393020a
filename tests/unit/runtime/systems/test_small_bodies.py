"""Small bodies are put together and taken apart by hand: byte for byte what Arrow's own streams are."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from airflow_logio.errors import LogInconsistent
from airflow_logio.runtime.systems import arrow
from airflow_logio.runtime.systems.arrow import decode, encode

WHERE = "event 7 of a.out"


class _Opened(Exception):
    """A reader or writer of whole streams was wanted."""


def _by_arrow(*tables: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _refuse(*_args: object, **_options: object) -> None:
    raise _Opened


ONE = pa.table({"a": pa.array([1, 2, None], pa.int64()), "b": ["x", None, "é"]})

BY_HAND = {
    "numbers and text": ONE,
    "a slice": pa.table({"a": list(range(300)), "b": [str(i) for i in range(300)]}).slice(17, 5),
    "each simple type": pa.table(
        {
            "flag": [True, None],
            "small": pa.array([1, None], pa.uint8()),
            "half": pa.array([0.5, None], pa.float32()),
            "raw": [b"\0\xff", None],
            "fixed": pa.array([b"abc", None], pa.binary(3)),
            "large": pa.array(["x", None], pa.large_string()),
            "view": pa.array(["a text that is longer than twelve bytes", None], pa.string_view()),
            "day": [date(2026, 11, 29), None],
            "moment": pa.array([datetime(2026, 11, 29, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
            "span": pa.array([5, None], pa.duration("ns")),
            "price": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(20, 2)),
            "nothing": pa.nulls(2),
        }
    ),
    "names twice": pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]),
    "about a field": pa.table([pa.array([1])], schema=pa.schema([pa.field("a", pa.int64(), False, {"unit": "kg"})])),
}

BY_ARROW = {
    "no records": ONE.schema.empty_table(),
    "no columns": pa.table({}),
    "two chunks": pa.concat_tables([ONE, ONE]),
    "a dictionary": pa.table({"d": pa.array(["a", "b", "a"]).dictionary_encode()}),
    "a dictionary within": pa.table({"s": pa.StructArray.from_arrays([pa.array(["a"]).dictionary_encode()], ["d"])}),
    "runs": pa.table({"r": pa.RunEndEncodedArray.from_arrays([2], ["x"])}),
    "a type with a name": pa.table({"u": pa.array([bytes(16)], pa.uuid())}),
    "large": pa.table({"a": list(range(1000))}),
    "compressed to a small body": pa.table({"a": [7] * 10_000}),
}


@pytest.mark.parametrize("table", BY_HAND.values(), ids=BY_HAND)
def test_a_small_body_is_made_and_read_without_a_stream(table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _by_arrow(table)
    with monkeypatch.context() as patch:
        patch.setattr(pa.ipc, "new_stream", _refuse)
        patch.setattr(pa.ipc, "open_stream", _refuse)
        body = encode(table)
        read = decode(WHERE, body)
    assert body == expected
    assert read.equals(table, check_metadata=True) and read.schema.equals(table.schema, check_metadata=True)
    assert pa.ipc.open_stream(body).read_all().equals(table), "for those who have only Arrow"


@pytest.mark.parametrize("table", BY_ARROW.values(), ids=BY_ARROW)
def test_every_other_table_has_a_stream(table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    body = encode(table)
    with monkeypatch.context() as patch, pytest.raises(_Opened):
        patch.setattr(pa.ipc, "open_stream", _refuse)
        decode(WHERE, body)
    assert decode(WHERE, body).equals(table)
    assert pa.ipc.open_stream(body).read_all().equals(table)


def test_metadata_of_the_schema_are_left_out() -> None:
    assert encode(ONE.replace_schema_metadata({"pandas": "x" * 1000})) == encode(ONE)


def test_every_batch_of_a_stream_is_read() -> None:
    """A body of one batch was read before, so its schema is known."""
    decode(WHERE, encode(ONE))
    assert decode(WHERE, _by_arrow(ONE, ONE, ONE.slice(1))).equals(pa.concat_tables([ONE, ONE, ONE.slice(1)]))
    assert decode(WHERE, _by_arrow(ONE.slice(0, 0))).equals(ONE.slice(0, 0))


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda body: body[:-8] + body[-16:],
        lambda body: body[:-8] + bytes(8) + body[-8:],
        lambda body: body[:-8] + body[:-8] + body[-8:],
    ],
    ids=["eight bytes twice", "eight zeros", "two streams"],
)
def test_what_stands_between_the_batch_and_the_end_is_no_record(spoilt: Callable[[bytes], bytes]) -> None:
    """Whatever Arrow makes of it: as its own reader says, and nothing that only some readers see."""
    body = spoilt(encode(ONE))
    try:
        expected = pa.ipc.open_stream(body).read_all()
    except (pa.ArrowException, OSError):
        with pytest.raises(LogInconsistent, match="event 7"):
            decode(WHERE, body)
    else:
        assert decode(WHERE, body).equals(expected)


def test_lengths_that_do_not_fit_the_columns_are_refused() -> None:
    """Offsets of text that point beyond its bytes: memory that belongs to others would be shown."""
    body = bytearray(encode(pa.table({"b": ["abcd"]})))
    offsets = body.index((4).to_bytes(4, "little"), body.index(b"abcd") - 64)
    body[offsets : offsets + 4] = (1 << 20).to_bytes(4, "little")
    with pytest.raises(LogInconsistent, match="event 7"):
        decode(WHERE, bytes(body))


def test_few_schemas_are_remembered_and_no_large_one() -> None:
    wide = pa.table({f"column{number}": [number] for number in range(2_000)})
    assert decode(WHERE, encode(wide)).equals(wide)
    before = arrow._plain_schema.cache_info()
    for number in range(arrow.SCHEMAS_KEPT + 10):
        decode(WHERE, encode(pa.table({f"other{number}": [1]})))
    after = arrow._plain_schema.cache_info()
    assert after.currsize == arrow.SCHEMAS_KEPT and after.misses == before.misses + arrow.SCHEMAS_KEPT + 10
