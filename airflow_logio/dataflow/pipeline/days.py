"""`Days` and `Hours`: the partition of a run, one day or hour of a zone (design, "Days").

Days and hours are the windows of `dataflow/windows/zones.py`, so that a run and ``Tumbling("1d", zone=...)`` agree on where
a day begins, also when the clock is changed. Nothing here is guessed: a text or an interval that is not exactly one
partition is refused.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from airflow_logio.dataflow.names import check_name
from airflow_logio.dataflow.quantities import DAY, period_seconds
from airflow_logio.dataflow.windows import zones
from airflow_logio.errors import ConfigurationError, OperatorFailed, PipelineDefinitionError

MOST_AT_ONCE = 10_000
"""Partitions in one range: more than a year of hours, and an upper bound for a slip of the pen."""
LONGEST_NAME = 28
"""Characters of a partition's name: it is a column, and begins the scope that a table keeps for each partition."""
BEHIND = timedelta(minutes=5)
"""How far the clock of a host may be behind that of the scheduler, for a partition that has just ended."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d)(?::?(\d\d)(?::?(\d\d)(?:\.0+)?)?)?(Z|[+-]\d\d(?::?\d\d)?)?")
_CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
_HOUR = 3600


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """One partition: from `start` until `end`, which is no part of it. Both are instants in UTC.

    `text` is how it is stored and shown. Texts of one pipeline sort as their starts do.
    """

    text: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Partitioning(ABC):
    """How the runs of a pipeline divide time."""

    what: ClassVar[str]
    """What one partition is called in sentences."""
    seconds: ClassVar[int]
    example: ClassVar[str]

    name: str
    zone: str = "UTC"
    early: bool = False
    due: str | None = None

    def __post_init__(self) -> None:
        if len(check_name("partition", self.name)) > LONGEST_NAME:
            raise PipelineDefinitionError(
                f"the partition's name {self.name!r} has {len(self.name)} characters, and may have {LONGEST_NAME}"
            )
        zones.check_zone(self.zone)
        if type(self.early) is not bool:
            raise PipelineDefinitionError(f"{type(self).__name__}: early is {self.early!r}; give True or False")
        if self.due is not None:
            self._check_due(self.due)

    @property
    def names(self) -> tuple[str, str, str]:
        """The parameters that a partition gives its run."""
        return self.name, f"{self.name}_start", f"{self.name}_end"

    def written(self) -> str:
        """As its author has written it, in short."""
        return f"{type(self).__name__}({self.name!r})"

    def parameters(self, key: PartitionKey) -> dict[str, str]:
        """The values of `names`: the key, and both instants in UTC as ``2026-02-28T23:00:00+00:00``."""
        return dict(zip(self.names, (key.text, key.start.isoformat(), key.end.isoformat()), strict=True))

    def key_of(self, text: object) -> PartitionKey:
        """The partition that a text names.

        Raises ConfigurationError for a text that names none, or that may mean two.
        """
        if not isinstance(text, str):
            raise self._refused(f"partition {text!r} is no text")
        return self._parsed(text.strip())

    def has_offset(self, text: str) -> bool:
        """Whether a text that names a partition says an instant: a time with an offset."""
        match = _TIME.fullmatch(text.strip())
        return match is not None and match[5] is not None

    def is_of_clock(self, text: str) -> bool:
        """Whether a text that names a partition does it by a time of the zone's clock, without an offset."""
        match = _TIME.fullmatch(text.strip())
        return match is not None and match[5] is None

    def of_interval(self, start: datetime, end: datetime) -> PartitionKey:
        """The partition that a data interval is. `start` and `end` have a zone.

        Raises ConfigurationError for an interval that is not exactly one partition.
        """
        shown = f"the data interval {_instant(start)} to {_instant(end)}"
        if start >= end:
            raise self._refused(f"{shown} has no length, as that of a schedule such as '@daily'", intervals=True)
        key = self._beginning(start)
        if key is None or key.end != end:
            raise self._refused(f"{shown} is not exactly one {self.what} of {self.zone}", intervals=True)
        return key

    def range_of(self, text: str) -> Sequence[PartitionKey]:
        """The partitions of ``A..B``, both included, in their order; of ``A`` just that one.

        Raises ConfigurationError as `key_of`, for a range that ends before it begins, and for one of more than
        `MOST_AT_ONCE`, with their number.
        """
        first, dots, last = text.partition("..")
        found = [self.key_of(first)]
        end = self.key_of(last) if dots else found[0]
        if end.start < found[0].start:
            raise ConfigurationError(f"the range {text!r} ends before it begins: write {end.text}..{found[0].text}")
        number = round((end.end - found[0].start).total_seconds() / self.seconds)
        if number > MOST_AT_ONCE:
            raise ConfigurationError(
                f"the range {text!r} has {number:,} {self.what}s, and at most {MOST_AT_ONCE:,} are taken at once: give parts "
                "of it"
            )
        while found[-1].text != end.text:
            found.append(self.following(found[-1]))
        return found

    def following(self, key: PartitionKey) -> PartitionKey:
        """The partition that begins where another one ends."""
        found = self._beginning(key.end)
        assert found is not None, key
        return found

    def preceding(self, key: PartitionKey) -> PartitionKey:
        """The partition that ends where another one begins."""
        return self.containing(key.start - timedelta(seconds=1))

    def containing(self, at: datetime) -> PartitionKey:
        """The partition that an instant is in. Raises OperatorFailed outside the years 1 to 9999."""
        begun = zones.number(self.zone, self.seconds, 0, int(at.timestamp()))
        found = self._beginning(datetime.fromtimestamp(begun, UTC))
        assert found is not None, at
        return found

    def day_of(self, key: PartitionKey) -> datetime:
        """Where the day of the zone begins that a partition begins in."""
        return datetime.fromtimestamp(zones.number(self.zone, DAY, 0, int(key.start.timestamp())), UTC)

    def check_ended(self, key: PartitionKey, now: datetime, run_after: datetime | None = None) -> None:
        """Raises ConfigurationError for a partition whose end is still to come, unless the author has said `early`.

        `now` is the clock of this host, which may be `BEHIND`; `run_after` is when the scheduler let a DAG run begin.
        """
        if self.early or key.end <= now + BEHIND or (run_after is not None and key.end <= run_after):
            return
        raise ConfigurationError(
            f"{self.what} {key.text} of {self.zone} ends at {_instant(key.end)}, which is still to come: a run of it would "
            f"find a part of its input. If a CronPartitionTimetable names the {self.what} that begins, give it "
            f"run_offset=-1; if runs shall begin before the {self.what} has ended, write "
            f"{type(self).__name__}({self.name!r}, ..., early=True)"
        )

    def due_at(self, key: PartitionKey) -> datetime | None:
        """When the partition is to be there, in UTC; None if nothing is said of that."""
        if self.due is None:
            return None
        if _CLOCK.fullmatch(self.due):
            after = key.end.astimezone(ZoneInfo(self.zone)).date()
            return datetime.combine(after, time.fromisoformat(self.due), ZoneInfo(self.zone)).astimezone(UTC)
        return key.end + timedelta(seconds=period_seconds("due", self.due, "'2h'"))

    def promise(self) -> dict[str, str] | None:
        """What the log keeps of it, to say which partitions are late (`partitioning_due`); None without `due`."""
        if self.due is None:
            return None
        return {"partition": type(self).__name__, "name": self.name, "zone": self.zone, "due": self.due}

    def _check_due(self, due: object) -> None:
        period_seconds("due", due, "'2h' or '30m', from its end")

    def describe(self) -> dict[str, Any]:
        """What enters the fingerprint of a run: other rules of the zone make other partitions."""
        return {
            "partition": type(self).__name__,
            "name": self.name,
            "zone": self.zone,
            "rules": zones.rules_of(self.zone),
        }

    @abstractmethod
    def _parsed(self, text: str) -> PartitionKey: ...

    @abstractmethod
    def _text(self, start: datetime) -> str: ...

    def _beginning(self, at: datetime) -> PartitionKey | None:
        """The partition that begins at an instant, if one does."""
        seconds = at.timestamp()
        try:
            if seconds != int(seconds) or zones.number(self.zone, self.seconds, 0, int(seconds)) != seconds:
                return None
            end = zones.end(self.zone, self.seconds, 0, int(seconds))
        except OperatorFailed:
            return None
        start = datetime.fromtimestamp(seconds, UTC)
        return PartitionKey(self._text(start), start, datetime.fromtimestamp(end, UTC))

    def _clock(self, text: str) -> tuple[datetime, bool]:
        """The time that a text gives, and whether it has an offset."""
        match = _TIME.fullmatch(text)
        if match is None:
            raise self._refused(f"partition {text!r} is no {self.what}")
        day, hour, minute, second, offset = match.groups()
        try:
            found = datetime.fromisoformat(f"{day}T{hour}:{minute or '00'}:{second or '00'}{_offset(offset)}")
        except ValueError as error:
            raise self._refused(f"partition {text!r} is no time: {error}") from None
        return found, offset is not None

    def _refused(self, why: str, *, intervals: bool = False) -> ConfigurationError:
        end = f"{why}. The pipeline has one run for each {self.what} of {self.zone}: {self.example}"
        if intervals:
            end += (
                ". Schedule it with CronDataIntervalTimetable, whose intervals have a length, or with "
                "CronPartitionTimetable(..., run_offset=-1), whose runs have a partition key, both in the zone "
                f"{self.zone}; or give the run a partition key"
            )
        return ConfigurationError(end)


@dataclass(frozen=True, slots=True)
class Days(Partitioning):
    """One run for each day of a zone: ``Pipeline("clicks", partition=Days("day", zone="Europe/Berlin"))``.

    :param name: the name of the partition: of the run parameter that has the day, and of the column that `by` names.
    :param zone: the zone whose clock says where a day begins, so that it has 23, 24 or 25 hours.
    :param early: whether a run may begin before its day has ended. By default it is refused, because a timetable that
        names the day that *begins* would find an empty input each night.
    :param due: when the day is to be there: ``"08:00"``, by the zone's clock on the day after, or ``"30h"`` from its end.
        `logio status --due`, `logio tend` and the DAG of `build_due_dag` say which days are late, also those that no run
        has begun for.

    A day is written ``2026-03-01``. Runs have the parameters ``{day}``, and ``{day_start}`` and ``{day_end}``, the instants
    in UTC (docs/parameters.md). Raises PipelineDefinitionError for an unknown zone.
    """

    what: ClassVar[str] = "day"
    seconds: ClassVar[int] = DAY
    example: ClassVar[str] = "write it as 2026-03-01"

    def _check_due(self, due: object) -> None:
        if not (isinstance(due, str) and _CLOCK.fullmatch(due)):
            period_seconds("due", due, "'08:00', by the clock of the day after, or '30h', from its end")

    def _parsed(self, text: str) -> PartitionKey:
        if _DATE.fullmatch(text):
            return self._of_date(text, text)
        clock, has_offset = self._clock(text)
        if has_offset:
            key = self._beginning(clock)
            if key is None:
                raise self._refused(f"partition {text!r} is not where a day of {self.zone} begins")
            return key
        if clock.time() != datetime.min.time():
            raise self._refused(
                f"partition {text!r} is a time within a day (a CronPartitionTimetable names days with key_format='%Y-%m-%d')"
            )
        return self._of_date(text, clock.date().isoformat())

    def _of_date(self, text: str, day: str) -> PartitionKey:
        """Noon is in the day wherever there is that day: clocks are changed at night."""
        try:
            noon = datetime.combine(date.fromisoformat(day), datetime.min.time(), ZoneInfo(self.zone)).replace(hour=12)
            begun = zones.number(self.zone, DAY, 0, int(noon.timestamp()))
        except (ValueError, OverflowError, OperatorFailed) as error:
            raise self._refused(f"partition {text!r} is no day of a calendar: {error}") from None
        key = self._beginning(datetime.fromtimestamp(begun, UTC))
        if key is None or key.text != day:
            raise self._refused(f"partition {text!r} is a day that the clock of {self.zone} has left out")
        return key

    def _text(self, start: datetime) -> str:
        return start.astimezone(ZoneInfo(self.zone)).date().isoformat()


@dataclass(frozen=True, slots=True)
class Hours(Partitioning):
    """One run for each hour of a zone: ``Pipeline("clicks", partition=Hours("hour", zone="Europe/Berlin"))``.

    :param name: the name of the partition: of the run parameter that has the hour, and of the column that `by` names.
    :param zone: the zone whose clock says where an hour begins. Hours of most zones are those of UTC.
    :param early: whether a run may begin before its hour has ended. By default it is refused.
    :param due: when the hour is to be there: ``"20m"`` from its end.

    An hour is stored by its start in UTC, ``2026-10-25T00Z`` (``T0030Z`` in zones that are half an hour off), so that the 25
    hours of a long day have 25 names. Where an hour is given, a time with an offset is understood as well, and one of
    the zone's clock unless the clock shows it twice or never. Runs have the parameters ``{hour}``, ``{hour_start}`` and
    ``{hour_end}``. Raises PipelineDefinitionError for an unknown zone.
    """

    what: ClassVar[str] = "hour"
    seconds: ClassVar[int] = _HOUR
    example: ClassVar[str] = "write it by its start in UTC, 2026-10-25T00Z, or with its offset, 2026-10-25T02:00+02:00"

    def _parsed(self, text: str) -> PartitionKey:
        clock, has_offset = self._clock(text)
        at = clock if has_offset else self._instant_of(text, clock)
        key = self._beginning(at)
        if key is None:
            raise self._refused(f"partition {text!r} is not where an hour of {self.zone} begins")
        return key

    def _instant_of(self, text: str, clock: datetime) -> datetime:
        first, second = (clock.replace(tzinfo=ZoneInfo(self.zone), fold=fold) for fold in (0, 1))
        if first.timestamp() == second.timestamp():
            return first
        if first.astimezone(UTC).astimezone(first.tzinfo).replace(tzinfo=None) != clock:
            raise self._refused(f"partition {text!r} is a time that the clock of {self.zone} leaves out")
        both = " and ".join(_instant(one) for one in (first, second))
        raise self._refused(f"partition {text!r} is a time that the clock of {self.zone} shows twice, at {both}")

    def _text(self, start: datetime) -> str:
        form = "%H" if not (start.minute or start.second) else "%H%M" if not start.second else "%H%M%S"
        return f"{start.date().isoformat()}T{start.strftime(form)}Z"


def _offset(text: str | None) -> str:
    if text is None or text == "Z":
        return "" if text is None else "+00:00"
    return text if ":" in text else f"{text[:3]}:{text[3:] or '00'}"


def _instant(at: datetime) -> str:
    return (
        at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if at.second
        else at.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")
    )


def check_partition(value: object) -> Partitioning | None:
    """What an author gives as ``partition=``. Raises PipelineDefinitionError."""
    if value is None or isinstance(value, Partitioning):
        return value
    raise PipelineDefinitionError(
        f"partition is {value!r}; give Days('day', zone='Europe/Berlin') or Hours('hour'), or leave it out"
    )


def partitioning_due(promise: Mapping[str, str]) -> Partitioning:
    """From `Partitioning.promise`. Raises ConfigurationError for what this version does not know."""
    kinds: Mapping[str, type[Partitioning]] = {"Days": Days, "Hours": Hours}
    try:
        return kinds[promise["partition"]](promise["name"], promise["zone"], due=promise["due"])
    except (KeyError, TypeError, PipelineDefinitionError) as error:
        raise ConfigurationError(f"when partitions are due cannot be read: {dict(promise)} ({error})") from error


def partitioning_of(pipeline: str, partitioning: Partitioning | None, text: str) -> Partitioning:
    """What says what a command means by ``--partition text``. Raises ConfigurationError if the pipeline has no partitions."""
    if partitioning is None:
        raise ConfigurationError(
            f"--partition {text!r}: pipeline {pipeline!r} has no partitions; define it with "
            "Pipeline(..., partition=Days('day', zone=...))"
        )
    return partitioning


def partitioning_of_graph(described: Mapping[str, Any] | None, key: str) -> Partitioning:
    """How runs divide time, as the graph of one of them says it (`Partitioning.describe`); if it kept none, as the key of its
    partition looks like, in UTC."""
    if described is None:
        return (Hours if "T" in key else Days)("partition")
    kind = {one.__name__: one for one in (Days, Hours)}[described["partition"]]
    return kind(described["name"], zone=described["zone"])


def partition_params(
    pipeline: str, partitioning: Partitioning | None, given: Mapping[str, Any], key: PartitionKey | None
) -> dict[str, str]:
    """The parameters that a run's partition gives it, none for a pipeline without partitions.

    Raises ConfigurationError for a partition that is missing, one too many, and parameters that are given beside it.
    """
    if partitioning is None:
        if key is not None:
            raise ConfigurationError(
                f"pipeline {pipeline!r} has no partitions, so a run of it has none: leave {key.text} out, or define the "
                "pipeline with partition=Days('day', zone=...)"
            )
        return {}
    for name in partitioning.names:
        if name in given:
            raise ConfigurationError(
                f"parameter {name!r} of pipeline {pipeline!r} is what the partition of a run gives it: say which "
                f"{partitioning.what} the run is for (logio run --partition, the partition key or the data interval of a "
                "DAG run), and leave the parameter out"
            )
    if key is None:
        raise ConfigurationError(
            f"pipeline {pipeline!r} has one run for each {partitioning.what} of {partitioning.zone}, and this run has none: "
            f"give it one ({partitioning.example}), as logio run --partition, or as the partition key or the data interval "
            "of its DAG run"
        )
    return partitioning.parameters(key)
