"""The columns of a Delta table: their types in Spark's SQL, and whether those of an earlier version fit into later ones."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from airflow_logio.errors import ConfigurationError

_TYPES = {
    "string": "string",
    "long": "bigint",
    "integer": "int",
    "short": "smallint",
    "byte": "tinyint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp_ltz",
    "timestamp_ntz": "timestamp_ntz",
}
_DECIMAL = re.compile(r"decimal\(\d+,\d+\)")
_WIDER = {"byte": ("short", "integer", "long"), "short": ("integer", "long"), "integer": ("long",)}
"""Type → those in which Spark reads its files, each value as it is."""


def columns_of(uri: str, schema: str) -> Mapping[str, str]:
    """Column → type, in the order of the table. Raises ConfigurationError for a type that is not known; `uri` names the
    table."""
    try:
        return _columns(schema)
    except ValueError as error:
        raise ConfigurationError(f"Delta table {uri} has the type {error}, which a DeltaSource does not read") from None


@lru_cache(maxsize=8)
def _columns(schema: str) -> Mapping[str, str]:
    """Each commit asks, and it seldom changes."""
    return {field["name"]: _type(field["type"]) for field in json.loads(schema)["fields"]}


def names_of(schema: str) -> list[str]:
    """The columns, whatever their types are."""
    return [field["name"] for field in json.loads(schema)["fields"]]


def misfit(earlier: str, later: str) -> str:
    """The first column of an earlier schema that a later one has not, or in a type in which its values cannot be read; empty
    if all fit."""
    if earlier == later:
        return ""
    return _misfit(json.loads(earlier), json.loads(later))


def _misfit(earlier: Any, later: Any) -> str:
    types = {field["name"]: field["type"] for field in later["fields"]}
    for field in earlier["fields"]:
        if field["name"] not in types or not _fits(field["type"], types[field["name"]]):
            return str(field["name"])
    return ""


def _fits(earlier: Any, later: Any) -> bool:
    if isinstance(earlier, str) or isinstance(later, str):
        return bool(earlier == later or (isinstance(earlier, str) and later in _WIDER.get(earlier, ())))
    if earlier.get("type") != later.get("type"):
        return False
    match earlier["type"]:
        case "array":
            return _fits(earlier["elementType"], later["elementType"])
        case "map":
            return _fits(earlier["keyType"], later["keyType"]) and _fits(earlier["valueType"], later["valueType"])
        case "struct":
            return not _misfit(earlier, later)
    return bool(earlier == later)


def _type(kind: Any) -> str:
    """Of Spark's SQL. Raises ValueError."""
    if isinstance(kind, str):
        if kind in _TYPES:
            return _TYPES[kind]
        if _DECIMAL.fullmatch(kind.replace(" ", "")):
            return kind
        raise ValueError(kind)
    match kind.get("type"):
        case "array":
            return f"array<{_type(kind['elementType'])}>"
        case "map":
            return f"map<{_type(kind['keyType'])},{_type(kind['valueType'])}>"
        case "struct":
            inner = ",".join(f"{quoted_name(one['name'])}:{_type(one['type'])}" for one in kind["fields"])
            return f"struct<{inner}>"
    raise ValueError(str(kind.get("type")))


def ddl(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted_name(name)} {kind}" for name, kind in columns.items())


def quoted_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
