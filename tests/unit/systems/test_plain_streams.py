"""Small bodies are put together and taken apart by hand: byte for byte what Arrow's own streams are."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from airflow_logio.errors import LogInconsistent
from airflow_logio.systems import arrow
from airflow_logio.systems.arrow import decode, encode

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
    "runs of a dictionary": pa.table(
        {"r": pa.RunEndEncodedArray.from_arrays([2], pa.array(["x"]).dictionary_encode())}
    ),
    "an unknown type with a name": pa.table(
        [pa.array([1])], schema=pa.schema([pa.field("u", pa.int64(), metadata={b"ARROW:extension:name": b"of.others"})])
    ),
    "a type with a name": pa.table({"u": pa.array([bytes(16)], pa.uuid())}),
    "large": pa.table({"a": list(range(1000))}),
    "compressed to a small body": pa.table({"a": [7] * 10_000}),
}


@pytest.mark.parametrize("table", BY_HAND.values(), ids=BY_HAND)
def test_a_small_body_is_made_and_read_without_a_stream(table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _by_arrow(table)
    assert arrow._plain_schema(table.schema.serialize().to_pybytes()) == table.schema
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
    arrow._plain_schema(body[: _schema_bytes(body)])  # itself opens a stream, once
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


def _schema_bytes(body: bytes | bytearray) -> int:
    return 8 + _number(body, 4)


def _in_the_middle(body: bytes, *parts: bytes) -> bytes:
    return body[: _schema_bytes(body)] + b"".join(parts)


def _of_old_format(body: bytes, junk: bytes) -> bytes:
    """Messages had no marker: the batch is four bytes shorter, and as many others follow it."""
    return _in_the_middle(body, body[_schema_bytes(body) + 4 : -8], junk, END)


END = b"\xff\xff\xff\xff\0\0\0\0"
SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "eight bytes twice": lambda body: body[:-8] + body[-16:],
    "eight zeros": lambda body: body[:-8] + bytes(8) + END,
    "two streams": lambda body: body[:-8] + body,
    "two streams with an end": lambda body: body + body,
    "an end and what follows": lambda body: _in_the_middle(body, END, b"abcdefgh", END),
    "an end and a batch": lambda body: _in_the_middle(body, END, body[_schema_bytes(body) + 8 :]),
    "zeros for a batch": lambda body: _in_the_middle(body, bytes(64), END),
    "the old format and text": lambda body: _of_old_format(body, b"abcd"),
    "the old format and a marker": lambda body: _of_old_format(body, END[:4]),
    "the old format and a length": lambda body: _of_old_format(body, b"\1\0\0\0"),
}


@pytest.mark.parametrize("spoilt", SPOILT.values(), ids=SPOILT)
def test_other_bytes_are_read_as_arrow_reads_them_or_refused(spoilt: Callable[[bytes], bytes]) -> None:
    decode(WHERE, encode(ONE))  # the schema is known
    body = spoilt(encode(ONE))
    try:
        expected = pa.ipc.open_stream(body).read_all()
    except (pa.ArrowException, OSError):
        with pytest.raises(LogInconsistent, match="event 7"):
            decode(WHERE, body)
    else:
        assert decode(WHERE, body).equals(expected)


def _number(body: bytes | bytearray, place: int, size: int = 4) -> int:
    return int.from_bytes(body[place : place + size], "little")


def test_numbers_in_another_order_of_bytes_are_read_as_arrow_reads_them() -> None:
    """The schema's table has no room for its field `endianness`, which is 0. So the field is said to be where a 1 is: the
    number of columns, right behind."""
    body = bytearray(encode(pa.table({"a": pa.array([1, 2], pa.int64())})))
    message = 8 + _number(body, 8)
    schema = message + _number(body, message - _number(body, message) + 8, 2)
    schema += _number(body, schema)
    fields = schema + 4 + _number(body, schema + 4)
    assert _number(body, fields) == 1
    directory = schema - _number(body, schema)
    body[directory + 4 : directory + 6] = (fields - schema).to_bytes(2, "little")
    turned = bytes(body)
    expected = pa.ipc.open_stream(turned).read_all()
    assert expected.column("a").to_pylist() == [1 << 56, 2 << 56]
    assert decode(WHERE, turned).equals(expected)
    length = _schema_bytes(turned)
    begin = pa.ipc.read_schema(pa.py_buffer(turned[:length])).serialize().to_pybytes()
    turned = begin + turned[length:]  # as Arrow writes it on a machine of that order, if it is a new one
    assert decode(WHERE, turned).equals(pa.ipc.open_stream(turned).read_all())


def test_lengths_that_do_not_fit_the_columns_are_refused() -> None:
    """Offsets of text that point beyond its bytes: memory that belongs to others would be shown."""
    body = bytearray(encode(pa.table({"b": ["abcd"]})))
    end = body.index(b"abcd") - 4
    assert _number(body, end) == 4
    body[end : end + 4] = (1 << 20).to_bytes(4, "little")
    with pytest.raises(LogInconsistent, match="event 7"):
        decode(WHERE, bytes(body))


def test_few_schemas_are_remembered_and_no_large_one() -> None:
    large = pa.table({"a" * arrow.LARGEST_SCHEMA_KEPT: [1]})
    before = arrow._plain_schema.cache_info()
    assert decode(WHERE, encode(large)).equals(large)
    assert arrow._plain_schema.cache_info().misses == before.misses
    for number in range(arrow.SCHEMAS_KEPT + 10):
        decode(WHERE, encode(pa.table({f"other{number}": [1]})))
    after = arrow._plain_schema.cache_info()
    assert after.currsize == arrow.SCHEMAS_KEPT and after.misses == before.misses + arrow.SCHEMAS_KEPT + 10
