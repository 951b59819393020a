"""Which window of time a record belongs to, by integer arithmetic on whole columns."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_logio.dataflow.arrow import np, pa
from airflow_logio.dataflow.names import did_you_mean
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.quantities import DAY
from airflow_logio.dataflow.windows import zones
from airflow_logio.errors import OperatorFailed

if TYPE_CHECKING:
    import numpy.typing as npt

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
Numbers: TypeAlias = "tuple[npt.NDArray[np.int64], bool]"
"""The window of each record, and whether they never decrease."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Windows of one length by the times in column `on`: window n holds what is at `start(n)` or later, and before
    `start(n + 1)`, in seconds since 1970-01-01 UTC."""

    on: str
    seconds: int
    origin: int = 0
    """Where window 0 starts; if it is not 0, both are whole days."""
    most: int | None = None
    """At most so many windows in one event; None says nothing."""
    zone: str = ""
    """If it is not empty: windows of the clock of that zone, and the number of a window is its start."""

    def start(self, number: int) -> int:
        return number if self.zone else self.origin + number * self.seconds

    def end(self, number: int) -> int:
        """Where the next window starts."""
        return zones.end(self.zone, self.seconds, self.origin, number) if self.zone else self.start(number + 1)

    def number(self, at: int) -> int:
        """The window that a time is in."""
        if self.zone:
            return zones.number(self.zone, self.seconds, self.origin, at)
        return (at - self.origin) // self.seconds

    def name(self, number: int) -> str:
        """The start of a window, ``2017-03-05T10:00``, so that names sort like times; with seconds where it has some, as in
        zones of before 1972. Raises OperatorFailed for one that no calendar of ours has."""
        try:
            start = datetime.fromtimestamp(self.start(number), UTC).replace(tzinfo=None)
        except (OverflowError, ValueError, OSError) as error:
            raise OperatorFailed(f"column {self.on!r} holds a time outside the years 1 to 9999") from error
        return start.isoformat(timespec="seconds" if self.seconds % 60 or start.second else "minutes")


@dataclass(slots=True)
class _Latest:
    """The answer of the last call: a recovery asks about an event once for each of its Input Sets, one after the other.

    It is read and replaced as one, so that threads do no harm. It keeps eight bytes for each record, and not the records.
    """

    answer: tuple[weakref.ref[pa.Table], tuple[str, int, int, str], Numbers] | None = None


_latest = _Latest()


def window_numbers(event: InputEvent, on: str, seconds: int, origin: int = 0, zone: str = "") -> Numbers:
    """Number of the window of each record, read-only. Window 0 starts at `origin`, seconds after 1970-01-01 UTC; if that is
    not 0, both are whole days. Windows of a `zone` have their start as number.

    `on` is a timestamp column of any unit (with a zone: taken in UTC) or a date column. Floor division, so that times
    before 1970 fall into the window that contains them. Raises OperatorFailed for another type, a missing column,
    nulls.
    """
    asked, latest = (on, seconds, origin, zone), _latest.answer
    if latest is not None and latest[0]() is event.table and latest[1] == asked:
        return latest[2]
    found = _window_numbers(event, on, seconds, origin, zone)
    found[0].flags.writeable = False
    _latest.answer = weakref.ref(event.table), asked, found
    return found


def _window_numbers(event: InputEvent, on: str, seconds: int, origin: int, zone: str) -> Numbers:
    column = _column(event, on)
    if zone and pa.types.is_date(column.type):
        raise no_moment(on, zone, str(column.type))
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    unit = column.type.unit
    ticks: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    if zone:
        numbers: npt.NDArray[np.int64] = zones.numbers(zone, seconds, origin, np.floor_divide(ticks, _PER_SECOND[unit]))
    elif origin:  # by days first: a difference of ticks could overflow
        days: npt.NDArray[np.int64] = np.floor_divide(ticks, DAY * _PER_SECOND[unit])
        numbers = np.floor_divide(days - origin // DAY, seconds // DAY)
    else:
        numbers = np.floor_divide(ticks, seconds * _PER_SECOND[unit])
    return numbers, bool((numbers[1:] >= numbers[:-1]).all())


def _column(event: InputEvent, on: str) -> Any:
    check_named(on, event.table.schema.names)
    column = event.table.column(on)
    if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        raise no_time(on, column.type)
    if column.null_count:
        raise nulls(on, column.null_count, f" in event {event.event_id} on port {event.port!r}")
    return column


def check_named(on: str, names: Sequence[str]) -> None:
    """Raises OperatorFailed if the records do not have the column `on`, once."""
    if on not in names:
        raise OperatorFailed(
            f"the window needs column {on!r}; the records have {list(names)}.{did_you_mean(on, names)}"
        )
    if names.count(on) > 1:
        raise OperatorFailed(f"the window needs one column {on!r}; the records have {names.count(on)} of that name")


def no_time(on: str, kind: object) -> OperatorFailed:
    """`kind` is the type of the column as its library names it."""
    return OperatorFailed(f"the window needs a timestamp or date in column {on!r}, which is {kind}")


def no_moment(on: str, zone: str, kind: str) -> OperatorFailed:
    """The error for a column of dates or wall times, which are no moments, and windows of a zone."""
    return OperatorFailed(
        f"the window is one of zone {zone!r}, and column {on!r} is {kind}, which is no moment: leave the zone out, which "
        "takes dates and wall times as they are, or give the window a column of instants"
    )


def nulls(on: str, count: int, where: str = "") -> OperatorFailed:
    """`where` continues the sentence."""
    return OperatorFailed(
        f"column {on!r} has {count:,} null(s){where}: a record without a time belongs to no window. Drop or fill such "
        "records before the window"
    )


def too_many_windows(grid: Grid, count: int, first: int, last: int) -> OperatorFailed:
    """`first` and `last` are the numbers of the earliest and the latest of the `count` windows."""
    return OperatorFailed(
        f"the times of column {grid.on!r} are in {count:,} windows, from {grid.name(first)} to {grid.name(last)}, and one "
        f"event may be in {grid.most:,}. Make smaller events at the source, or longer windows; if so many are meant, say "
        "Tumbling(..., windows_per_event=...)"
    )
