"""What the thread of a source brings to its group: values, which the group turns into steps (Algorithms 1 and 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_logio.spark.chains import Evaluated


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Records of one event, and the offset after them."""

    operator: str
    table: pa.Table
    next_offset: int
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """The event of a range, or one of an effect that Spark has stored, evaluated; and the offset after it."""

    operator: str
    payload: Evaluated
    records: int
    next_offset: int
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The read action has no more records; `next_action` follows it."""

    operator: str
    next_action: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The stored effect of the read action is handed over whole; what follows is asked of the external system now."""

    operator: str


@dataclass(frozen=True, slots=True)
class Stored:
    """The whole effect of the read action is stored; `end` if it is empty, so that the action completes with that."""

    operator: str
    ref: str
    records: int
    end: Exhausted | None = None


@dataclass(frozen=True, slots=True)
class Discarded:
    """The store of a read action was discarded."""

    operator: str
    action_id: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The external system has heard that it may forget what was read up to the end of a read action."""

    operator: str
    action_id: int
