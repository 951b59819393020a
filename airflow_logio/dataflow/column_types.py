"""Types of SQL columns, as an author writes them: ``bigint``, ``decimal(10,2)``."""

from __future__ import annotations

import re
from typing import NamedTuple

from airflow_logio.dataflow.names import did_you_mean, quoted
from airflow_logio.errors import PipelineDefinitionError

DECIMAL = "decimal"
HELD = {
    "bigint": "whole numbers of 64 bits",
    "int": "whole numbers of 32 bits",
    "double": "floating point numbers, and whole numbers that they hold exactly; no decimals",
    "decimal(p,s)": "decimals and whole numbers of at most `p` digits, `s` of them behind the point; `p` is at most 38",
    "text": "text",
    "boolean": "true or false",
    "timestamp": "times in UTC, by the microsecond; those with a zone are converted",
    "timestamptz": "the same in a column with a zone; times without a zone are UTC",
    "date": "days",
    "json": "text that is JSON",
    "uuid": "text with hyphens, or 16 bytes",
    "binary": "bytes",
}
"""Type as an author writes it → the values that it takes. One that does not fit without loss is refused."""
COLUMN_TYPES = tuple(HELD)
NULL = "null"
"""Behind a type of a table's column: it may be added to a table that is there."""
MOST_DIGITS = 38
"""What the 128 bits of a decimal hold in Arrow and Spark."""

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")


class ColumnType(NamedTuple):
    """The type of a column. A decimal has `precision` digits, `scale` of them behind the point."""

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"{self.name}({self.precision},{self.scale})" if self.name == DECIMAL else self.name


def column_type(whose: str, text: object) -> ColumnType:
    """The type that `text` names. Raises PipelineDefinitionError, which begins with `whose` column it is."""
    if text in COLUMN_TYPES and "(" not in str(text):
        return ColumnType(str(text))
    if isinstance(text, str) and (found := _DECIMAL.fullmatch(text)):
        precision, scale = int(found[1]), int(found[2])
        if 1 <= precision <= MOST_DIGITS and scale <= precision:
            return ColumnType(DECIMAL, precision, scale)
        raise PipelineDefinitionError(
            f"{whose} has type {text!r}: a decimal has 1 to {MOST_DIGITS} digits, and at most as many behind the point"
        )
    raise PipelineDefinitionError(
        f"{whose} has type {text!r}, which is not one of {quoted(COLUMN_TYPES)}.{did_you_mean(text, COLUMN_TYPES)}"
    )
