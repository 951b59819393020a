"""Connections as Airflow has them, without Airflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def connection(conn_type: str, *, extra: Mapping[str, Any] | None = None, **fields: Any) -> str:
    """A connection as Airflow reads it from an environment variable."""
    return json.dumps({"conn_type": conn_type, "extra": extra or {}, **fields})
