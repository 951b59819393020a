"""Arrow IPC streams of plain columns in one small batch, put together and taken apart without a writer or reader of streams.

They are what Arrow writes, byte for byte: the schema as a message, the batch as another one, and the mark of the end. Every
other stream is left to Arrow.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from struct import error as StructError

import pyarrow as pa

_CONTINUES = b"\xff\xff\xff\xff"
"""What every message of a stream begins with; the length of its header follows, in four bytes."""

END = _CONTINUES + bytes(4)
"""What every whole stream ends with."""

_PREFIX_BYTES = 8
"""Bytes of a message before its header: the marker and a length."""

_HEADER, _COMPRESSION = 2, 3
"""Places of fields in the tables `Message` and `RecordBatch` of Arrow's format, from 0."""

_EXTENSION_NAME = b"ARROW:extension:name"
"""Key in the metadata of a field, by Arrow's format."""

_U16, _I32, _U32 = Struct("<H"), Struct("<i"), Struct("<I")

SCHEMAS_KEPT = 128
"""Schemas that a process remembers, by the bytes that a stream begins with; a port sends the same ones again and again."""

LARGEST_SCHEMA_KEPT = 1 << 16
"""In bytes: what is remembered stays small."""


def written(table: pa.Table) -> bytes | None:
    """The stream of `table`, which is small; None if it needs more messages than its schema and one batch.

    A writer of streams costs more than twice as much as what it writes of a small table.
    """
    batches = table.to_batches()
    if len(batches) != 1:
        return None
    begin: bytes = table.schema.serialize().to_pybytes()
    if len(begin) > LARGEST_SCHEMA_KEPT or _plain_schema(begin) is None:
        return None
    batch: bytes = batches[0].serialize().to_pybytes()
    return begin + batch + END


def read(body: bytes, most: int) -> pa.Table | None:
    """The table of such a stream, if its batch has fewer than `most` bytes; None for every other stream. Damaged bytes give
    None, or an error of Arrow's.

    A reader of streams costs more than what it reads of a small body, most of it for the same schema each time.
    """
    begin = _PREFIX_BYTES + int.from_bytes(body[4:_PREFIX_BYTES], "little")
    if begin > LARGEST_SCHEMA_KEPT or len(body) - begin >= most:
        return None
    if not (body.startswith(_CONTINUES) and body.startswith(_CONTINUES, begin)) or body.startswith(END, begin):
        return None  # damaged, of a format without markers, or without a batch
    if _is_compressed(body, begin + _PREFIX_BYTES) or (schema := _plain_schema(body[:begin])) is None:
        return None  # what is compressed would be handed to other threads, which costs more than a stream
    message = pa.ipc.read_message(pa.py_buffer(body).slice(begin))
    length = _PREFIX_BYTES + message.metadata.size + message.body.size
    if message.type != "record batch" or begin + length + len(END) != len(body):
        return None
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)  # as of every stream; a new table would make an object of each column first
    return pa.Table.from_batches([batch])


def _is_compressed(body: bytes, place: int) -> bool:
    """True if the batch whose header is at `place` has compressed buffers, or if its header cannot be read. Arrow does not
    tell. Nothing has checked these bytes yet: a wrong answer costs time only."""
    try:
        message = place + _U32.unpack_from(body, place)[0]
        batch = message + _field(body, message, _HEADER)
        return _field(body, batch + _U32.unpack_from(body, batch)[0], _COMPRESSION) > 0
    except StructError:
        return True


def _field(body: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table is, counted from the table; 0 if the table does not have it."""
    directory = table - _I32.unpack_from(body, table)[0]
    slot = 4 + 2 * number  # behind the sizes of directory and table
    return 0 if slot >= _U16.unpack_from(body, directory)[0] else int(_U16.unpack_from(body, directory + slot)[0])


@lru_cache(maxsize=SCHEMAS_KEPT)
def _plain_schema(begin: bytes) -> pa.Schema | None:
    """The schema that a stream begins with; None if it is damaged, or if a batch may need more than itself.

    Dictionaries are messages of their own. Left to Arrow's streams, too: everything nested, extension types, and schemas that
    this Arrow would not write byte for byte the same, say in another order of bytes.
    """
    try:
        # This changes another order of bytes to its own, so that the bytes below differ; `read_schema` would not.
        schema = pa.ipc.open_stream(pa.py_buffer(begin + END)).schema
        is_plain = all(map(_is_plain, schema))
    except (pa.ArrowException, OSError, EOFError):
        return None
    return schema if is_plain and schema.serialize().equals(pa.py_buffer(begin)) else None


def _is_plain(field: pa.Field) -> bool:
    """An extension type that is not registered looks like its storage, and is told by the field's metadata."""
    is_extension = isinstance(field.type, pa.BaseExtensionType) or _EXTENSION_NAME in (field.metadata or {})
    is_one_array = field.type.num_fields == 0 and not pa.types.is_run_end_encoded(field.type)
    return is_one_array and not is_extension and not pa.types.is_dictionary(field.type)
