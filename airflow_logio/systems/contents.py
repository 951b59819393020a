"""The digest of a table's contents: equal for equal tables, however their memory is laid out.

Bytes of Arrow are not enough: the same records may lie in other chunks, at other offsets, with other values under their
nulls, when they are computed again.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DIGEST_BYTES = 16


def digest_of(table: pa.Table) -> bytes:
    """16 bytes, of names, types and values, in the order of columns and rows. Metadata of the schema does not count, nor
    does whether a column may have nulls: only whether it has."""
    found = blake2b(digest_size=DIGEST_BYTES)
    found.update(repr([(field.name, str(field.type)) for field in table.schema]).encode())
    for column in table.columns:
        _add(found, column.combine_chunks() if column.num_chunks != 1 else column.chunk(0))
    return found.digest()


def _add(found: Any, array: pa.Array) -> None:
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
    if (inner := _inside(found, array)) is None:
        _add_values(found, array)
        return
    for one in inner:
        _add(found, one)


def _inside(found: Any, array: pa.Array) -> list[pa.Array] | None:
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
