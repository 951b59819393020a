"""Schemas of records as text, for descriptions in the log: Arrow's own serialization (nothing is unpickled)."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pyarrow as pa

SCHEMA = "schema"
"""Key of a schema as text: in the first read action of a source whose files have no rows, and in the write action that
begins a run of a `ParquetWriter`."""


def schema_text(schema: pa.Schema) -> str:
    """The schema in Base64; names and types alone."""
    plain = pa.schema([pa.field(field.name, field.type) for field in schema])
    return b64encode(plain.serialize().to_pybytes()).decode("ascii")


def schema_of(text: str) -> pa.Schema:
    """What `schema_text` was given. Raises ValueError, ArrowException."""
    return pa.ipc.read_schema(pa.py_buffer(b64decode(text, validate=True)))
