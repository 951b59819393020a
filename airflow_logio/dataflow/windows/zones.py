"""Windows of the days and hours of a zone: where they begin, by the clock of that zone, across its changes.

A window begins whenever the clock shows a multiple of its length, counted from midnight, and where the clock jumps over
one. A window of days begins once for each day: at the first moment of the day. So a day has 23, 24 or 25 hours, and an hour
that the clock shows twice is two windows. A window is known by the moment at which it begins, in seconds since 1970-01-01
UTC.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from airflow_logio.dataflow.arrow import np
from airflow_logio.dataflow.names import did_you_mean
from airflow_logio.dataflow.quantities import DAY
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError

if TYPE_CHECKING:
    import numpy.typing as npt

SESSION_ZONE = "spark.sql.session.timeZone"
"""The property of Spark that says in which zone a session casts times to dates and texts."""
UTC_ITSELF = "UTC"
_UTC = frozenset({"UTC", "Etc/UTC", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu", "GMT", "Etc/GMT", "Z", "+00:00", "Universal"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOOKS, _FEW_LOOKS = DAY, 5 * DAY
"""The offset of a zone is looked at so often; a change between two looks is found by halving. Few looks are enough to tell
rules from others."""
_FIRST, _LAST = -62_135_596_800 + 3 * DAY, 253_402_300_800 - 3 * DAY
"""The years 1 to 9999, less what a zone may shift."""
_RULES = (1970, 2100)
"""The years whose rules are part of what a window says of itself."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which the clock is not changed."""

    begin: int
    offset: int
    """Seconds by which the clock is ahead of UTC."""
    first: int
    """From here on, windows of this stretch begin where the clock shows a multiple."""
    before: int
    """Where the window began that lasts until then."""


def check_zone(zone: object) -> str:
    """Return the name of a zone. Raises PipelineDefinitionError for one that is unknown here."""
    if isinstance(zone, str) and zone:
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
        else:
            return zone
    raise PipelineDefinitionError(
        f"zone {zone!r} is unknown: give the name of a time zone, such as 'Europe/Berlin'."
        f"{did_you_mean(zone, sorted(available_timezones()))}"
    )


def same_zone(one: str, other: str) -> bool:
    """Whether two names mean one zone for sure."""
    return one == other or {one, other} <= _UTC


def offset_at(zone: str, at: int) -> int:
    """By how many seconds the clock of a zone is ahead of UTC."""
    found = (_EPOCH + timedelta(seconds=at)).astimezone(ZoneInfo(zone)).utcoffset()
    return 0 if found is None else int(found.total_seconds())


@cache
def rules_of(zone: str) -> str:
    """What a zone does to its clock from 1970 to 2099, as a short text: another one where other rules are installed."""
    begin, end = (int((datetime(year, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()) for year in _RULES)
    changes = ",".join(f"{at}:{offset}" for at, offset in _changes(zone, begin, end, _FEW_LOOKS))
    return hashlib.sha256(changes.encode()).hexdigest()[:16]


def _changes(zone: str, begin: int, end: int, looks: int = _LOOKS) -> Iterator[tuple[int, int]]:
    """(moment, offset from then on), from `begin` on."""
    before = offset_at(zone, begin)
    yield begin, before
    for look in range(begin + looks, min(end, _LAST) + looks, looks):
        early, late = look - looks, min(look, _LAST)
        now = offset_at(zone, late)
        if now != before:
            while late - early > 1:
                middle = (early + late) // 2
                early, late = (middle, late) if offset_at(zone, middle) == before else (early, middle)
            yield late, offset_at(zone, late)
            before = now


@cache
def stretches(zone: str, seconds: int, origin: int, year: int) -> Sequence[Stretch]:
    """The stretches of a year, with those before that a window of the year may begin in, and a window behind."""
    reach = seconds + 3 * DAY
    begin = max(_FIRST, _year(year) - reach)
    changes = list(_changes(zone, begin, min(_LAST, _year(year + 1) + reach)))
    found: list[Stretch] = []
    latest = 0
    for place, (at, offset) in enumerate(changes):
        shown = at + offset - origin
        if not found:
            start = at - shown % seconds
            found.append(Stretch(at, offset, at, start))
        else:
            found.append(_changed(found[-1], at, offset, seconds, origin, latest))
        end = changes[place + 1][0] if place + 1 < len(changes) else at + 1
        latest = max(latest if place else shown // seconds, (end - 1 + offset - origin) // seconds)
    return found


def _changed(before: Stretch, at: int, offset: int, seconds: int, origin: int, latest: int) -> Stretch:
    """The stretch that begins when the clock is changed; `latest` is the number of the latest multiple that it has shown."""
    lasting = _start(before, at - 1, seconds, origin)
    shown = at + offset - origin
    if seconds >= DAY:  # each multiple once
        if shown // seconds > latest:
            return Stretch(at, offset, at + 1, at)
        return Stretch(at, offset, (latest + 1) * seconds - offset + origin, lasting)
    was = at + before.offset - origin
    jumped_over = offset > before.offset and shown - shown % seconds >= was
    begins = jumped_over or shown % seconds == 0
    return Stretch(at, offset, at + 1, at if begins else lasting)


def _start(stretch: Stretch, at: int, seconds: int, origin: int) -> int:
    found = at - (at + stretch.offset - origin) % seconds
    return found if found >= stretch.first else stretch.before


def _year(year: int) -> int:
    if year > 9999:
        return _LAST
    return int((datetime(max(year, 1), 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())


def _year_of(at: int) -> int:
    if not _FIRST <= at <= _LAST:
        raise OperatorFailed("a time outside the years 1 to 9999 is in no window of a zone")
    return (_EPOCH + timedelta(seconds=at)).year


def number(zone: str, seconds: int, origin: int, at: int) -> int:
    """The window that a time is in. Raises OperatorFailed for a time outside the years 1 to 9999."""
    found = [one for one in stretches(zone, seconds, origin, _year_of(at)) if one.begin <= at]
    return _start(found[-1], at, seconds, origin)


def numbers(zone: str, seconds: int, origin: int, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """As `number`, of many times."""
    found = np.empty(len(times), np.int64)
    if not len(times):
        return found
    _year_of(int(times.min())), _year_of(int(times.max()))
    years = times.astype("datetime64[s]").astype("datetime64[Y]").astype(np.int64) + 1970
    for year in np.unique(years).tolist():
        mine = np.flatnonzero(years == year)
        at, known = times[mine], stretches(zone, seconds, origin, year)
        place = np.searchsorted([one.begin for one in known], at, side="right") - 1
        offset, first, before = (np.array([getattr(one, name) for one in known], np.int64)[place] for name in _PARTS)
        start = at - (at + offset - origin) % seconds
        found[mine] = np.where(start >= first, start, before)
    return found


_PARTS = ("offset", "first", "before")


def end(zone: str, seconds: int, origin: int, begun: int) -> int:
    """Where a window ends, and the next one begins."""
    known = stretches(zone, seconds, origin, _year_of(begun))
    starts = [one.begin for one in known if one.begin > begun and _start(one, one.begin, seconds, origin) == one.begin]
    for place, one in enumerate(known):
        until = known[place + 1].begin if place + 1 < len(known) else None
        if until is not None and until <= begun:
            continue
        least = max(begun + 1, one.first)
        start = least + -(least + one.offset - origin) % seconds
        if until is None or start < until:
            starts.append(start)
    return min(starts)


def within(zone: str, seconds: int, origin: int, first: int, last: int) -> Sequence[Stretch]:
    """The stretches that times from `first` to `last` are in, in their order."""
    found: dict[int, Stretch] = {}
    for year in range(_year_of(first), _year_of(last) + 1):
        known, begin, end_ = (
            stretches(zone, seconds, origin, year),
            max(first, _year(year)),
            min(last, _year(year + 1) - 1),
        )
        for place, one in enumerate(known):
            until = known[place + 1].begin if place + 1 < len(known) else end_ + 1
            if one.begin <= end_ and until > begin:
                # A stretch that has begun before this year's are known from begins with the year, as the table has it.
                found.setdefault(max(one.begin, begin), one)
    return [Stretch(at, one.offset, one.first, one.before) for at, one in sorted(found.items())]
