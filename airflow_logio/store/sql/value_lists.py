"""Many values in one statement, whose text does not depend on how many they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection


def among(
    connection: Connection, column: sa.ColumnElement[Any], values: Sequence[int] | Sequence[str]
) -> sa.ColumnElement[bool]:
    """Whether `column` is one of these numbers, or of these texts."""
    if connection.dialect.name == "postgresql":
        texts = bool(values) and isinstance(values[0], str)
        array = postgresql.ARRAY(sa.Text if texts else sa.BigInteger)
        return column == sa.any_(sa.cast(sa.literal(list(values), array), array))
    wanted = sa.func.json_each(json.dumps(list(values))).table_valued("value")
    return column.in_(sa.select(wanted.c.value))
