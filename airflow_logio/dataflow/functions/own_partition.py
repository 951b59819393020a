"""`OwnPartition`: which records are of the run's day or hour, and which are not (design, "Days").

The bounds are the two instants that the partition gives its run, which are whole seconds. So a time belongs to the
partition if its second does, whatever its unit is, and nothing overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, ClassVar

from airflow_logio.dataflow.arrow import np, pa, pc
from airflow_logio.dataflow.dependencies import from_one
from airflow_logio.dataflow.functions.decorators import StatelessFunction, stateless
from airflow_logio.dataflow.names import check_column, check_name, did_you_mean
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.dataflow.quantities import DAY
from airflow_logio.dataflow.windows import zones
from airflow_logio.dataflow.windows.timeline import Grid
from airflow_logio.dataflow.windows.zones import UTC_ITSELF, same_zone
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.values import ExecutionMode

OWN, OTHER = "own", "other"
EARLIER, LATER = "earlier", "later"
"""Where records are counted that are of no partition near that of the run."""
BEFORE, BEHIND = 400, 40
"""How many partitions are near, before and behind that of the run: each that records are of has a counter in the log."""
_SECONDS = {"day": DAY, "hour": 3600}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class OwnPartition:
    """An operator that sends the records of the run's partition to port ``own``, and all others, such as late ones, to
    port ``other``: ``p.operator("own", OwnPartition("day", on="ts"), web)``.

    :param partition: the name of the pipeline's partition, as in ``Pipeline(partition=Days("day", zone=...))``.
    :param on: the column with the time: a timestamp or a date, without nulls.
    :param mode: ``"driver"`` (the default) or ``"dataframe"``, as of `stateless`.

    Records stay as they are, in their order. A timestamp belongs to the partition if it is at its start or later, and
    before its end, by the microsecond. Timestamps are instants; in mode ``driver`` those without a zone are in UTC. In
    mode ``dataframe`` wall times (``TIMESTAMP_NTZ``) are taken if the zone of the partition is UTC. A date belongs to
    the day of that date, in any zone. The log counts what goes to ``other`` by the partition that it is of, and
    `logio days` tells it for that one.

    Raises PipelineDefinitionError if the pipeline has no partition of that name; in a run OperatorFailed for a null, a
    column that is missing or no time, wall times in another zone than UTC, and dates in a pipeline of hours.
    """

    partition: str
    on: str
    mode: str = "driver"

    def __post_init__(self) -> None:
        check_name("partition", self.partition)
        check_column(self.on)
        self.of("day", UTC_ITSELF, str)  # refuses what no mode is

    def of(self, what: str, zone: str, key_at: Callable[[datetime], str]) -> StatelessFunction:
        """The function of a pipeline whose partitions are called `what`, ``day`` or ``hour``, and are those of `zone`.
        `key_at` says what the partition is called that a moment is in."""
        kind = _OwnRecords if self.mode == ExecutionMode.DRIVER else _OwnFrame
        function = kind(self.partition, self.on, what, zone, key_at)
        return stateless(mode=self.mode, outputs=(OWN, OTHER), depends=from_one())(function)


# The classes hold what was given, so that `describe` says it.
@dataclass(frozen=True)
class Dividing:
    """Which records are of the partition."""

    __name__: ClassVar[str] = "OwnPartition"
    partition: str
    on: str
    what: str
    zone: str
    key_at: Callable[[datetime], str] = field(compare=False, repr=False)

    def describe(self) -> dict[str, Any]:
        return {"partition": self.partition, "on": self.on, "what": self.what, "zone": self.zone}

    def bounds(self, params: Mapping[str, Any]) -> tuple[int, int]:
        """Start and end in seconds since 1970-01-01 UTC."""
        start, end = (
            (datetime.fromisoformat(params[f"{self.partition}_{side}"]) - _EPOCH) // timedelta(seconds=1)
            for side in ("start", "end")
        )
        return start, end

    def near(self, params: Mapping[str, Any], *, is_date: bool) -> tuple[int, int]:
        """Where the first partition near that of the run begins, and where the last one ends, in seconds since 1970.

        Each partition between them has a counter of its own, so that a run has few, whatever comes. Dates count as if they
        were days of UTC.
        """
        if is_date:
            own = (self.day(params).toordinal() - _EPOCH.toordinal()) * DAY
            start, end, zone, seconds = own, own + DAY, UTC_ITSELF, DAY
        else:
            (start, end), zone, seconds = self.bounds(params), self.zone, _SECONDS[self.what]
        try:
            first = zones.number(zone, seconds, 0, start - BEFORE * seconds)
            return first, zones.number(zone, seconds, 0, end + BEHIND * seconds)
        except OperatorFailed:  # at an end of the calendar
            return start, end

    def grid(self, *, has_zone: bool) -> Grid:
        """The partitions, as windows of times that are instants, or else of dates and wall times, which are those of UTC."""
        zone = self.zone if has_zone and not same_zone(self.zone, UTC_ITSELF) else ""
        return Grid(self.on, _SECONDS[self.what], zone=zone)

    def named(self, earlier: int, starts: Mapping[int, int], later: int, *, is_date: bool) -> dict[str, int]:
        """By the names of partitions. `starts` has how many records are of the one that begins then, in seconds since 1970;
        those that are not near are counted as `EARLIER` and `LATER`."""
        counts = {EARLIER: earlier, LATER: later}
        for start, records in starts.items():
            at = datetime.fromtimestamp(start, UTC)
            counts[at.date().isoformat() if is_date else self.key_at(at)] = records
        return {key: records for key, records in counts.items() if records}

    def day(self, params: Mapping[str, Any]) -> date:
        """Raises OperatorFailed if partitions are no days."""
        if self.what != "day":
            raise OperatorFailed(
                f"OwnPartition: column {self.on!r} has dates, which do not say which {self.what} of {self.zone} they are in: "
                "name a column of timestamps"
            )
        return date.fromisoformat(params[self.partition])

    def check_named(self, names: list[str]) -> None:
        if names.count(self.on) != 1:
            raise OperatorFailed(
                f"OwnPartition: column {self.on!r} is needed, once; the records have {names}.{did_you_mean(self.on, names)}"
            )

    def no_time(self, kind: object) -> OperatorFailed:
        return OperatorFailed(
            f"OwnPartition: column {self.on!r} is {kind}, and must be a timestamp or a date: make one of it in an operator "
            "before this one"
        )

    def nulls(self, has: str) -> OperatorFailed:
        return OperatorFailed(
            f"OwnPartition: column {self.on!r} {has}: a record without a time belongs to no {self.what}. Drop or fill such "
            "records before this operator"
        )


@dataclass(frozen=True)
class _OwnRecords(Dividing):
    """In mode ``driver``."""

    def __call__(self, records: pa.Table, params: Mapping[str, Any]) -> dict[str, pa.Table]:
        mask = self._mask(records, params)
        return {OWN: records.filter(mask), OTHER: records.filter(pc.invert(mask))}

    def late(self, records: pa.Table, params: Mapping[str, Any]) -> dict[str, int]:
        """Partition → how many of the records, which are all of others than the run's, are of it."""
        column = records.column(self.on)
        if is_date := pa.types.is_date(column.type):
            seconds = column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()).to_numpy() * DAY
        else:
            seconds = column.cast(pa.int64()).to_numpy() // _PER_SECOND[column.type.unit]
        first, last = self.near(params, is_date=is_date)
        near = seconds[(seconds >= first) & (seconds < last)]
        starts, counts = np.unique(near if is_date else self._starts(near), return_counts=True)
        found = zip(starts.tolist(), counts.tolist(), strict=True)
        return self.named(int((seconds < first).sum()), dict(found), int((seconds >= last).sum()), is_date=is_date)

    def _starts(self, seconds: Any) -> Any:
        return zones.numbers(self.zone, _SECONDS[self.what], 0, seconds)

    def _mask(self, records: pa.Table, params: Mapping[str, Any]) -> pa.Array:
        self.check_named(records.column_names)
        column = records.column(self.on)
        kind = column.type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise self.no_time(kind)
        if column.null_count:
            raise self.nulls(f"has {column.null_count:,} null(s)")
        if pa.types.is_date(kind):
            day = self.day(params)
            return pc.equal(column.cast(pa.date32()), pa.scalar(day, pa.date32()))
        seconds = column.cast(pa.int64()).to_numpy() // _PER_SECOND[kind.unit]
        start, end = self.bounds(params)
        return pa.array((seconds >= start) & (seconds < end))


LateCounter = Callable[["pa.Table", Mapping[str, Any]], Mapping[str, int]]
"""(records that all are of other partitions than the run's, the run's parameters) → partition → how many are of it."""


def late_counter(function: object) -> LateCounter | None:
    """What counts the records of port `OTHER`, of an `OwnPartition` of mode ``driver``; None of anything else."""
    return function.late if isinstance(function, _OwnRecords) else None


def divides_lazily(function: object, port: str) -> Dividing | None:
    """What knows whose the records of port `OTHER` are, of an `OwnPartition` of mode ``dataframe``; None of anything else."""
    return function if isinstance(function, _OwnFrame) and port == OTHER else None


@dataclass(frozen=True)
class _OwnFrame(Dividing):
    """In mode ``dataframe``: two lazy filters, in Spark's SQL."""

    def __call__(self, frame: SparkFrame, params: Mapping[str, Any]) -> dict[str, SparkFrame]:
        self.check_named(frame.columns)
        first, last = self._limits(str(frame.schema[self.on].dataType.typeName()), params)
        column = f"`{self.on}`"
        failed = f"""raise_error('{str(self.nulls("is null in a record")).replace("'", '"')}')"""
        own = f"CASE WHEN {column} IS NULL THEN {failed} ELSE {column} >= {first} AND {column} < {last} END"
        return {OWN: frame.where(own), OTHER: frame.where(f"NOT ({own})")}

    def _limits(self, kind: str, params: Mapping[str, Any]) -> tuple[str, str]:
        """The first value of the partition and the first one behind it, as literals of the column's type."""
        start, end = self.bounds(params)
        match kind:
            case "timestamp":
                return f"timestamp_seconds({start})", f"timestamp_seconds({end})"
            case "timestamp_ntz":
                if not same_zone(self.zone, UTC_ITSELF):
                    raise OperatorFailed(
                        f"OwnPartition: column {self.on!r} is {kind}, which is no moment, and the {self.what} is one of zone "
                        f"{self.zone!r}: make instants of it in an operator before this one"
                    )
                first, last = ((_EPOCH + timedelta(seconds=at)).replace(tzinfo=None) for at in (start, end))
                return f"TIMESTAMP_NTZ '{first}'", f"TIMESTAMP_NTZ '{last}'"
            case "date":
                day = self.day(params)
                return f"DATE '{day}'", f"DATE '{day + timedelta(days=1)}'"
        raise self.no_time(kind)
