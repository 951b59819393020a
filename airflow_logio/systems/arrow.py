"""Event bodies are Arrow IPC streams (design D6); nothing read from the log is ever unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.errors import LogInconsistent

COMPRESS_FROM_BYTES = 4096
"""Below this a compressed stream is not smaller; compression is paid for per column buffer."""

COLUMNS_FROM_BYTES = 1 << 14
"""Below this it costs more to open a stream twice, for its names and then for some columns, than to read all of it."""

THREADS_FROM_BYTES = 1 << 18
"""Below this it costs more to hand columns to other threads, 0.1 ms each time, than they save."""

BYTES_OF_A_TABLE = 4096
"""What a table takes in memory beside its records, roughly."""

SMALL_BYTES = 4096
"""A table in one piece that holds no more is taken to show all that it holds."""

FEW_COLUMNS = 16
"""So many columns could share their buffers without hiding much."""

_PLAIN = pa.ipc.IpcWriteOptions()
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_COMPRESSED_BY_MANY = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=True)
_READ = pa.ipc.IpcReadOptions(use_threads=False)
_READ_BY_MANY = pa.ipc.IpcReadOptions(use_threads=True)


def bytes_held(table: pa.Table) -> int:
    """What a table keeps in memory: itself, and its buffers as a whole, even where a slice shows little of them.

    What others have made and lent to Arrow counts only as far as the table shows it.
    """
    return BYTES_OF_A_TABLE + int(table.get_total_buffer_size())


def bytes_shown(table: pa.Table) -> int:
    """What the records of a table take: a slice takes its own share of the buffers; buffers that it shows several times
    count each time.

    Arrow finds that out buffer by buffer, and lets other threads run meanwhile, which take their time: several times for
    each small event. What a small table holds is near enough, if it shows each buffer once.
    """
    batches = table.to_batches() if table.num_columns <= FEW_COLUMNS else []
    if len(batches) == 1 and (held := int(batches[0].get_total_buffer_size())) <= SMALL_BYTES:
        return held  # a batch answers at once; a new table makes an object of each of its columns first
    return int(table.nbytes)


def encode(table: pa.Table) -> bytes:
    """An Arrow IPC stream of `table`, without schema metadata that readers do not need."""
    if table.schema.metadata is not None:
        table = table.replace_schema_metadata(None)
    size = bytes_shown(table)
    if size < COMPRESS_FROM_BYTES and (small := _as_plain_stream(table)) is not None:
        return small
    large = _COMPRESSED_BY_MANY if size >= THREADS_FROM_BYTES else _COMPRESSED
    options = large if size >= COMPRESS_FROM_BYTES else _PLAIN
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def decode_unchecked(where: str, body: bytes) -> pa.Table:
    """As `decode`, whatever its values are: only for bytes whose checksum was compared, to mend them."""
    try:
        return pa.ipc.open_stream(body, options=_READ).read_all()
    except (pa.ArrowException, OSError, EOFError) as error:
        raise LogInconsistent(f"the body of {where} is not an Arrow stream: {error}") from error


def decode(where: str, body: bytes, columns: Sequence[str] = ()) -> pa.Table:
    """The table of an event body; raises `LogInconsistent` naming `where` if the bytes are not a whole stream, or if it
    has values that their type cannot have: earlier versions logged them.

    If some `columns` are named, only those of them that it has: of a large body, others are not decompressed. If it has
    none of them, the table has neither columns nor records.
    """
    if not body.endswith(END):  # Arrow takes a stream that breaks off between two messages for a shorter one
        raise LogInconsistent(f"the body of {where} is not a whole Arrow stream: it breaks off ({len(body):,} bytes)")
    try:
        wanted = columns if len(body) >= COLUMNS_FROM_BYTES else ()
        table = None if wanted else _of_plain_stream(body, COMPRESS_FROM_BYTES)
        if table is None:
            table = _of_stream(body, wanted)
        if table is None:
            return pa.table({})
        names = table.schema.names  # which are decoded now, from bytes that may be no text
    except _Invalid as error:
        raise LogInconsistent(
            f"the body of {where} has values that their type cannot have: {error.__cause__}. An earlier version has logged "
            "them as they were handed over; `logio mend` shows them, and makes them null, or leaves out their rows"
        ) from error
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise LogInconsistent(f"the body of {where} is not an Arrow stream: {error}") from error
    if not columns:
        return table
    kept = [place for place, name in enumerate(names) if name in columns]
    return table.select(kept) if kept else pa.table({})


def _of_stream(body: bytes, columns: Sequence[str]) -> pa.Table | None:
    """The table of a stream, or these columns of it; None if it has none of them."""
    options = _READ_BY_MANY if len(body) >= THREADS_FROM_BYTES else _READ
    if columns and (options := _of_columns(body, columns, options)) is None:
        return None
    table = pa.ipc.open_stream(body, options=options).read_all()
    _validated(table)  # a buffer that is too short would be read beyond its end; costs a tenth of decoding
    return table


class _Invalid(Exception):
    """What was decoded has values that are none; its cause is Arrow's word for it."""


def _validated(records: pa.Table | pa.RecordBatch) -> None:
    try:
        records.validate(full=True)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise _Invalid from error


def _of_columns(body: bytes, columns: Sequence[str], options: pa.ipc.IpcReadOptions) -> pa.ipc.IpcReadOptions | None:
    """Options that read only the fields of these names; None if there are none, for which Arrow would read all."""
    names = pa.ipc.open_stream(body, options=options).schema.names
    fields = [place for place, name in enumerate(names) if name in columns]
    return pa.ipc.IpcReadOptions(use_threads=options.use_threads, included_fields=fields) if fields else None


def as_read(table: pa.Table) -> pa.Table:
    """The table as if it had been read from its body: no metadata of the schema, one chunk per column."""
    return table.replace_schema_metadata(None).combine_chunks()


# --- plain streams: one small batch, without a writer or reader of streams --------------------------------------------

# They are what Arrow writes, byte for byte: the schema as a message, the batch as another one, and the mark of the end. Every
# other stream is left to Arrow.


_CONTINUES = b"\xff\xff\xff\xff"
"""Every message of a stream begins with it; the length of its header follows, in four bytes."""
END = _CONTINUES + bytes(4)
"""Every whole stream ends with it."""
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


def _as_plain_stream(table: pa.Table) -> bytes | None:
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


def _of_plain_stream(body: bytes, most: int) -> pa.Table | None:
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
    _validated(batch)  # as of every stream; a new table would make an object of each column first
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


# --- digests: equal for equal tables ----------------------------------------------------------------------------------

DIGEST_BYTES = 16


def digest_of(table: pa.Table) -> bytes:
    """A digest of 16 bytes of names, types and values, in the order of columns and rows.

    Bytes of Arrow are not enough: the same records may lie in other chunks, at other offsets, with other values under their
    nulls, when they are computed again. Metadata of the schema does not count, nor does whether a column may have nulls:
    only whether it has.
    """
    found = blake2b(digest_size=DIGEST_BYTES)
    found.update(repr([(field.name, str(field.type)) for field in table.schema]).encode())
    for column in table.columns:
        _add_array(found, column.combine_chunks() if column.num_chunks != 1 else column.chunk(0))
    return found.digest()


def _add_array(found: Any, array: pa.Array) -> None:
    """How many values there are, how many of them are null, and which; then the others."""
    found.update(len(array).to_bytes(8, "little"))
    found.update(
        array.null_count.to_bytes(8, "little")
    )  # else which are null could be taken for a value, and none for null
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        found.update(repr(array.to_pylist()).encode())  # Arrow computes next to nothing on them
        return
    if array.null_count:
        found.update(np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes())
        array = array.drop_null()
    if (inner := _arrays_inside(found, array)) is None:
        _add_values(found, array)
        return
    for one in inner:
        _add_array(found, one)


def _arrays_inside(found: Any, array: pa.Array) -> list[pa.Array] | None:
    """The arrays that one of nested values consists of; None for any other."""
    if isinstance(array, pa.ExtensionArray):
        return [array.storage]
    if pa.types.is_dictionary(array.type):
        return [array.dictionary_decode()]
    if pa.types.is_struct(array.type):
        return list(array.flatten())
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        found.update(pc.list_value_length(array).cast(pa.int64()).to_numpy().tobytes())
        return [array.flatten()]
    return None


def _add_values(found: Any, array: pa.Array) -> None:
    kind, start = array.type, array.offset
    if pa.types.is_boolean(kind):
        found.update(np.packbits(array.to_numpy(zero_copy_only=False)).tobytes())
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        _add_text(found, array, np.dtype(np.int32))
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        _add_text(found, array, np.dtype(np.int64))
    elif _has_width(kind):
        width = kind.bit_width // 8
        if len(array):
            found.update(memoryview(array.buffers()[1])[start * width : (start + len(array)) * width])
    else:  # maps, unions: seldom, and slow
        found.update(repr(array.to_pylist()).encode())


def _add_text(found: Any, array: pa.Array, offsets: np.dtype[Any]) -> None:
    if not len(array):
        return
    _, places, text = array.buffers()
    bounds = np.frombuffer(places, offsets)[array.offset : array.offset + len(array) + 1]
    found.update(np.diff(bounds).astype(np.int64).tobytes())
    if text is not None:
        found.update(memoryview(text)[int(bounds[0]) : int(bounds[-1])])


def _has_width(kind: pa.DataType) -> bool:
    """Whether its values are so many bytes each, and nothing else."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
