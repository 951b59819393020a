"""Event bodies are Arrow IPC streams (design D6); nothing read from the log is ever unpickled."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from airflow_logio.errors import LogInconsistent
from airflow_logio.systems import plain_streams

COMPRESS_FROM_BYTES = 4096
"""Below this a compressed stream is not smaller; compression is paid for per column buffer."""

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
    if size < COMPRESS_FROM_BYTES and (small := plain_streams.written(table)) is not None:
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
    if not body.endswith(
        plain_streams.END
    ):  # Arrow takes a stream that breaks off between two messages for a shorter one
        raise LogInconsistent(f"the body of {where} is not a whole Arrow stream: it breaks off ({len(body):,} bytes)")
    try:
        wanted = columns if len(body) >= COLUMNS_FROM_BYTES else ()
        table = None if wanted else plain_streams.read(body, COMPRESS_FROM_BYTES)
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


def _of_columns(body: bytes, columns: Sequence[str], options: pa.ipc.IpcReadOptions) -> pa.ipc.IpcReadOptions | None:
    """Options that read only the fields of these names; None if there are none, for which Arrow would read all."""
    names = pa.ipc.open_stream(body, options=options).schema.names
    fields = [place for place, name in enumerate(names) if name in columns]
    return pa.ipc.IpcReadOptions(use_threads=options.use_threads, included_fields=fields) if fields else None


def as_read(table: pa.Table) -> pa.Table:
    """The table as if it had been read from its body: no metadata of the schema, one chunk per column."""
    return table.replace_schema_metadata(None).combine_chunks()
