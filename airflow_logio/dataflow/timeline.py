"""Which window the records of an event belong to, by integer arithmetic on whole columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_logio.dataflow.durations import DAY
from airflow_logio.dataflow.names import did_you_mean
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.errors import OperatorFailed

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def window_numbers(event: InputEvent, on: str, seconds: int, origin: int = 0) -> tuple[npt.NDArray[np.int64], bool]:
    """Number of the window of each record, and whether they never decrease. Window 0 starts at `origin`, seconds after
    1970-01-01 UTC; if that is not 0, both are whole days.

    `on` is a timestamp column of any unit (with a zone: taken in UTC) or a date column. Floor division, so that times
    before 1970 fall into the window that contains them. Raises OperatorFailed for another type, a missing column,
    nulls.
    """
    column = _column(event, on)
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    unit = column.type.unit
    ticks: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    if origin:  # by days first: a difference of ticks could overflow
        days: npt.NDArray[np.int64] = np.floor_divide(ticks, DAY * _PER_SECOND[unit])
        numbers: npt.NDArray[np.int64] = np.floor_divide(days - origin // DAY, seconds // DAY)
    else:
        numbers = np.floor_divide(ticks, seconds * _PER_SECOND[unit])
    return numbers, bool((numbers[1:] >= numbers[:-1]).all())


def _column(event: InputEvent, on: str) -> Any:
    names = event.table.column_names
    if on not in names:
        raise OperatorFailed(f"the window needs column {on!r}; the records have {names}.{did_you_mean(on, names)}")
    if names.count(on) > 1:
        raise OperatorFailed(f"the window needs column {on!r}, of which the records have {names.count(on)}")
    column = event.table.column(on)
    if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        raise OperatorFailed(f"the window needs a timestamp or date in column {on!r}, which is {column.type}")
    if column.null_count:
        raise OperatorFailed(
            f"column {on!r} has {column.null_count} null(s) in event {event.event_id} on port {event.port!r}: a record "
            "without a time belongs to no window. Drop or fill such records before the window"
        )
    return column
