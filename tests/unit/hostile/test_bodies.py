"""Event bodies that are not what was written: an error that names the event, or the records as they were. Nothing else."""

from __future__ import annotations

import resource
import struct
import sys
import zlib

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.values import Kind, MadeOf
from airflow_logio.store.rules.row_forms import Header, decode_header, encode_header
from airflow_logio.systems.arrow import decode, digest_of, encode

TABLES = {
    "small": pa.table({"a": pa.array([1, 2, None], pa.int64()), "b": ["x", None, "é"]}),
    "compressed": pa.table({"a": list(range(900)), "b": [f"text {i}" for i in range(900)]}),
    "no rows": pa.table({"a": pa.array([], pa.int64())}),
    "no columns": pa.table({}),
    "dictionary": pa.table({"d": pa.array(["a", "b", "a"]).dictionary_encode()}),
    "nested": pa.table({"l": pa.array([[1, 2], [], None]), "s": pa.array([{"x": 1}, None, {"x": 2}])}),
    "times": pa.table({"t": pa.array([0, -1], pa.timestamp("ns", "Europe/Berlin"))}),
    "odd names": pa.table({"": [1], "né 'q\" \n\t": [2], "a.b": [3], "日本": [4]}),
    "names twice": pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]),
    "nulls": pa.table({"n": pa.nulls(3)}),
}
BODIES = {name: encode(table) for name, table in TABLES.items()}


@pytest.mark.parametrize("name", TABLES)
def test_what_was_written_comes_back(name: str) -> None:
    assert decode("event 1 of a.out", BODIES[name]).equals(TABLES[name])


@pytest.mark.parametrize("name", TABLES)
def test_a_body_that_breaks_off_anywhere_is_refused(name: str) -> None:
    """Also between two messages, where Arrow sees the end of a stream with fewer rows."""
    body = BODIES[name]
    for length in range(len(body)):
        with pytest.raises(LogInconsistent, match=r"event 7 of a\.out"):
            decode("event 7 of a.out", body[:length])


@pytest.mark.parametrize("name", TABLES)
def test_every_flipped_bit_of_a_row_is_refused_or_harmless(name: str) -> None:
    """Every single bit of header and body. Of a body each one is refused; Arrow alone takes up to a third of them for
    other values. Of a header a few are harmless: those of the name of its seal, without which it is one of before seals."""
    body = BODIES[name]
    row = encode_header(Kind.DATA, 3, body, {"first": 0, "last": 2}, code=1)
    whole, split = meaning(decode_header("event 7", row, body)), len(row)
    taken = []
    for bit in range(8 * (split + len(body))):
        damaged = flipped(row + body, bit)
        try:
            found = meaning(decode_header("event 7", damaged[:split], damaged[split:]))
        except LogInconsistent as error:
            assert "event 7" in str(error)
        else:
            assert found == whole, f"bit {bit} has made another event of it"
            taken.append(bit)
    assert all(bit < 8 * split for bit in taken) and len(taken) < 40


ABOUT = {
    "an end": (Kind.END, b"", {}, None),
    "a write action": (
        Kind.DATA,
        b"body",
        {"action": "insert", "event": 1 << 40, "rate": 2.5, "of": ["a", None]},
        None,
    ),
    "a replay operator's": (Kind.DATA, b"", {}, MadeOf("2026-01-01", 2, bytes(range(16)), 4_711)),
}


@pytest.mark.parametrize("what", ABOUT)
def test_no_flipped_bit_of_a_header_makes_another_event(what: str) -> None:
    """Without seals, 42 to 69 of a hundred did: an end, other counts, another table, another digest."""
    kind, body, about, made_of = ABOUT[what]
    header = encode_header(kind, 3, body, about, code=1, made_of=made_of)
    whole = meaning(decode_header("event 7", header, body))
    for bit in range(8 * len(header)):
        try:
            assert meaning(decode_header("event 7", flipped(header, bit), body)) == whole, f"bit {bit}"
        except LogInconsistent as error:
            assert "event 7" in str(error)


def test_older_headers_are_read_and_older_readers_read_these() -> None:
    """Both have the same keys, and the seal is one that older readers pass over."""
    about = {"seal": 1 << 31}  # which an author may say, too
    older = msgspec.msgpack.encode({"records": 3, "checksum": zlib.crc32(b"body"), "about": about})
    found = decode_header("event 7", older, b"body")
    assert (found.records, found.about, found.seal) == (3, about, None)
    newer = msgspec.msgpack.decode(encode_header(Kind.DATA, 3, b"body", about))
    assert {key: newer[key] for key in newer if key != "seal"} == msgspec.msgpack.decode(older)


@pytest.mark.parametrize("name", [name for name in TABLES if name != "compressed"])
def test_a_flipped_bit_of_a_body_that_comes_directly_is_seen_by_its_digest(name: str) -> None:
    """It has no header: what counts is the digest that the log has of its contents (`protocol/replay.py`)."""
    body, digest = BODIES[name], digest_of(TABLES[name])
    for bit in range(8 * len(body)):
        try:
            table = decode("event 7", flipped(body, bit))
        except LogInconsistent:
            continue
        if digest_of(table) == digest:
            assert table.cast(TABLES[name].schema).equals(TABLES[name]), "all but 'not null' is the same"


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def meaning(header: Header) -> Header:
    return msgspec.structs.replace(header, seal=None)


@pytest.mark.parametrize("name", TABLES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_body_of_a_wrong_checksum_does_no_harm_either(name: str, data: st.DataObject) -> None:
    """The checksum was mended: a table or a refusal, never another error."""
    body = bytearray(BODIES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        table = decode("event 7", bytes(body))
    except LogInconsistent as error:
        assert "event 7" in str(error)
    else:
        table.validate(full=True)
        assert all(isinstance(name, str) for name in table.column_names)


@given(body=st.binary(max_size=200), ends_well=st.booleans())
@settings(max_examples=200, deadline=None)
def test_bytes_that_are_no_stream_are_refused(body: bytes, ends_well: bool) -> None:
    with pytest.raises(LogInconsistent, match="event 7"):
        decode("event 7", body + (b"\xff\xff\xff\xff\0\0\0\0" if ends_well and not _is_empty_stream(body) else b""))


def _is_empty_stream(body: bytes) -> bool:
    return len(body) > 8 and body[:4] == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("length", [1 << 31, 3 << 30, 1 << 40, 1 << 62, -1, -(1 << 63), 0, 1])
def test_a_huge_declared_length_allocates_nothing_of_the_kind(length: int) -> None:
    """The length of a compressed buffer stands in front of it, and says how much room to make."""
    body = bytearray(BODIES["compressed"])
    place = body.index(struct.pack("<q", 900 * 8))
    body[place : place + 8] = struct.pack("<q", length)
    before = _peak_mebibytes()
    with pytest.raises(LogInconsistent, match="event 7"):
        decode("event 7", bytes(body))
    assert _peak_mebibytes() - before < 64


def _peak_mebibytes() -> float:
    unit = 1024 if sys.platform == "linux" else 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
