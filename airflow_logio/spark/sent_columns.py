"""The columns of what is sent: they stay the same for a whole run. Schemas are JSON texts, as `schema_of` gives them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.errors import SourceChanged
from airflow_logio.spark.dataset_jobs import COLLATIONS

log = logging.getLogger(__name__)


class SentColumns:
    """Those of a source. `where` says where it is, for errors."""

    def __init__(self, source: str, where: Callable[[], str]) -> None:
        self._source = source
        self._where = where
        self._left_out: list[str] = []
        self.schema: str | None = None
        """Of what was sent so far, by this driver or the ones before; None before the first event."""

    def fitted(self, frame: SparkFrame, schema: str) -> SparkFrame:
        """The columns that were sent, in their order, of a DataFrame with this schema, without those that have come since.

        Raises `SourceChanged` if one is missing, or has another type.
        """
        if self.schema is None or self.schema == schema:
            return frame
        sent, found = _by_name(self.schema), _by_name(schema)
        if any(found.get(name) != field for name, field in sent.items()):
            raise SourceChanged(
                f"{self._where()}: the source {said_of_columns(self.schema, schema)}. Make it return the columns it had, "
                "and `logio retry` (`--code new` after a change of the code); or start a fresh run"
            )
        self._note([name for name in found if name not in sent])
        return frame.select(*(f"`{name}`" for name in sent))

    def _note(self, left_out: list[str]) -> None:
        if left_out and left_out != self._left_out:
            names = ", ".join(left_out)
            log.warning("source %s: columns that have come since its first event are left out: %s", self._source, names)
            self._left_out = left_out


def said_of_columns(known: str, schema: str) -> str:
    """What differs between two schemas."""
    return (
        f"has had records with the columns {_columns(known)}, and now gets {_columns(schema)}: they have one schema for the "
        "whole run"
    )


def _by_name(schema: str) -> dict[str, Any]:
    return {field["name"]: field for field in json.loads(schema)["fields"]}


def _columns(schema: str) -> str:
    return _fields(json.loads(schema)["fields"]) or "none"


def _fields(fields: Sequence[Any]) -> str:
    return ", ".join(f"{field['name']} {_type_name(field['type'])}{_collated(field)}" for field in fields)


def _type_name(kind: Any) -> str:
    match kind:
        case {"type": "array", "elementType": values}:
            return f"array<{_type_name(values)}>"
        case {"type": "map", "keyType": keys, "valueType": values}:
            return f"map<{_type_name(keys)}, {_type_name(values)}>"
        case {"type": "struct", "fields": fields}:
            return f"struct<{_fields(fields)}>"
        case {"type": name}:
            return str(name)
    return str(kind)


def _collated(field: Any) -> str:
    """How texts of a column, or within it, compare; empty for the usual way."""
    said = field.get("metadata", {}).get(COLLATIONS, {})
    return f" ({', '.join(f'{where}: {name}' for where, name in sorted(said.items()))})" if said else ""
