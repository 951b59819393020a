"""Event bodies are Arrow IPC streams (design D6); nothing read from the log is ever unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError

import pyarrow as pa

from airflow_logio.errors import LogInconsistent

COMPRESS_FROM_BYTES = 4096
"""Below this a compressed stream is not smaller; compression is paid for per column buffer."""

_CONTINUES = b"\xff\xff\xff\xff"
"""What every message of a stream begins with; the length of its header follows, in four bytes."""

_END = _CONTINUES + bytes(4)
"""What every whole stream ends with."""

_PREFIX_BYTES = 8
"""Bytes of a message before its header: the marker and a length."""

_HEADER, _COMPRESSION = 2, 3
"""Places of fields in the tables `Message` and `RecordBatch` of Arrow's format, from 0."""

EXTENSION_NAME = b"ARROW:extension:name"
"""Key in the metadata of a field, by Arrow's format."""

_U16, _I32, _U32 = Struct("<H"), Struct("<i"), Struct("<I")

SCHEMAS_KEPT = 128
"""Schemas that a process remembers, by the bytes that a stream begins with; a port sends the same ones again and again."""

LARGEST_SCHEMA_KEPT = 1 << 16
"""In bytes: what is remembered stays small."""

COLUMNS_FROM_BYTES = 1 << 14
"""Below this it costs more to open a stream twice, for its names and then for some columns, than to read all of it."""

THREADS_FROM_BYTES = 1 << 18
"""Below this it costs more to hand columns to other threads, 0.1 ms each time, than they save."""

BYTES_OF_A_TABLE = 4096
"""What a table takes in memory beside its records, about."""

SMALL_BYTES = 4096
"""What holds no more, in one piece, is taken to show all that it holds."""

FEW_COLUMNS = 16
"""As many could share their buffers without hiding much."""

_PLAIN = pa.ipc.IpcWriteOptions()
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_COMPRESSED_BY_MANY = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=True)
_READ = pa.ipc.IpcReadOptions(use_threads=False)
_READ_BY_MANY = pa.ipc.IpcReadOptions(use_threads=True)


def bytes_held(table: pa.Table) -> int:
    """What a table keeps in memory: its buffers as a whole, of which a slice may show little, and the table itself.

    What others have made and lent to Arrow counts only as far as the table shows it.
    """
    return BYTES_OF_A_TABLE + int(table.get_total_buffer_size())


def bytes_shown(table: pa.Table) -> int:
    """What the records of a table take: of a slice, its own share of the buffers; of buffers that it shows several times,
    as much each time.

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
    if size < COMPRESS_FROM_BYTES and (small := _in_one_batch(table)) is not None:
        return small
    large = _COMPRESSED_BY_MANY if size >= THREADS_FROM_BYTES else _COMPRESSED
    options = large if size >= COMPRESS_FROM_BYTES else _PLAIN
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def decode(where: str, body: bytes, columns: Sequence[str] = ()) -> pa.Table:
    """The table of an event body; raises `LogInconsistent` naming `where` if the bytes are not a whole stream.

    If some `columns` are named, only those of them that it has: of a large body, others are not decompressed. If it has
    none of them, the table has neither columns nor records.
    """
    if not body.endswith(_END):  # Arrow takes a stream that breaks off between two messages for a shorter one
        raise LogInconsistent(f"the body of {where} is not a whole Arrow stream: it breaks off ({len(body):,} bytes)")
    try:
        wanted = columns if len(body) >= COLUMNS_FROM_BYTES else ()
        table = None if wanted else _of_one_batch(body)
        if table is None:
            table = _of_stream(body, wanted)
        if table is None:
            return pa.table({})
        names = table.schema.names  # which are decoded now, from bytes that may be no text
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
    table.validate(full=True)  # a buffer that is too short would be read beyond its end; costs a tenth of decoding
    return table


def _in_one_batch(table: pa.Table) -> bytes | None:
    """The stream of `table`, put together by hand; None if it needs more messages than its schema and one batch.

    A writer of streams costs more than twice as much as what it writes of a small table.
    """
    batches = table.to_batches()
    if len(batches) != 1:
        return None
    begin: bytes = table.schema.serialize().to_pybytes()
    if len(begin) > LARGEST_SCHEMA_KEPT or _plain_schema(begin) is None:
        return None
    batch: bytes = batches[0].serialize().to_pybytes()
    return begin + batch + _END


def _of_one_batch(body: bytes) -> pa.Table | None:
    """The table of a stream that is a plain schema and one small batch; None for every other stream. Damaged bytes give None,
    or an error of Arrow's.

    A reader of streams costs more than what it reads of a small body, most of it for the same schema each time.
    """
    begin = _PREFIX_BYTES + int.from_bytes(body[4:_PREFIX_BYTES], "little")
    if begin > LARGEST_SCHEMA_KEPT or len(body) - begin >= COMPRESS_FROM_BYTES:
        return None
    if not (body.startswith(_CONTINUES) and body.startswith(_CONTINUES, begin)) or body.startswith(_END, begin):
        return None  # damaged, of a format without markers, or without a batch
    if _is_compressed(body, begin + _PREFIX_BYTES) or (schema := _plain_schema(body[:begin])) is None:
        return None  # what is compressed would be handed to other threads, which costs more than a stream
    message = pa.ipc.read_message(pa.py_buffer(body).slice(begin))
    length = _PREFIX_BYTES + message.metadata.size + message.body.size
    if message.type != "record batch" or begin + length + len(_END) != len(body):
        return None
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)  # as in `_of_stream`; a new table would make an object of each column first
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
        schema = pa.ipc.open_stream(pa.py_buffer(begin + _END)).schema
        is_plain = all(map(_is_plain, schema))
    except (pa.ArrowException, OSError, EOFError):
        return None
    return schema if is_plain and schema.serialize().equals(pa.py_buffer(begin)) else None


def _is_plain(field: pa.Field) -> bool:
    """An extension type that is not registered looks like its storage, and is told by the field's metadata."""
    is_extension = isinstance(field.type, pa.BaseExtensionType) or EXTENSION_NAME in (field.metadata or {})
    is_one_array = field.type.num_fields == 0 and not pa.types.is_run_end_encoded(field.type)
    return is_one_array and not is_extension and not pa.types.is_dictionary(field.type)


def _of_columns(body: bytes, columns: Sequence[str], options: pa.ipc.IpcReadOptions) -> pa.ipc.IpcReadOptions | None:
    """Options that read only the fields of these names; None if there are none, for which Arrow would read all."""
    names = pa.ipc.open_stream(body, options=options).schema.names
    fields = [place for place, name in enumerate(names) if name in columns]
    return pa.ipc.IpcReadOptions(use_threads=options.use_threads, included_fields=fields) if fields else None


def as_read(table: pa.Table) -> pa.Table:
    """The table as if it had been read from its body: no metadata of the schema, one chunk per column."""
    return table.replace_schema_metadata(None).combine_chunks()
