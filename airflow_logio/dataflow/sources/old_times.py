"""Dates and times as old versions of Spark have written them into Parquet files: by the Julian calendar, and as INT96.

They are read as Spark reads them by default (`DataSourceUtils.datetimeRebaseSpec` of Spark 4): what a file says of itself
decides. A file without Spark's version is taken for one of the calendar of today.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from airflow_logio.dataflow.arrow import np, pa, pc
from airflow_logio.errors import OperatorFailed

_VERSION, _ZONE = b"org.apache.spark.version", b"org.apache.spark.timeZone"
_LEGACY, _LEGACY_INT96 = b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"
_UTC = frozenset(
    ["UTC", "Etc/UTC", "GMT", "Etc/GMT", "UCT", "Etc/UCT", "Zulu", "Etc/Zulu", "Universal", "Greenwich", "Z"]
)
_DAY_MICROS = 86_400_000_000
FIRST_GREGORIAN_DAY = -141_427
"""1582-10-15; the day before was 1582-10-04. In days since 1970-01-01, as below."""
_LAST_SWITCH_MICROS = -2_208_988_800_000_000
"""1900-01-01. Before, the clocks of zones differ between old and new Java."""
_JULIAN_DAY_OF_EPOCH = 2_440_588


class OldTimes:
    """What a file says of its dates and times; `content` is the `pyarrow.parquet.ParquetFile`."""

    def __init__(self, path: str, content: Any) -> None:
        self._path = path
        said = content.metadata.metadata or {}
        self._zone = said.get(_ZONE, b"").decode()
        self._legacy = _is_legacy(said, b"3.0.0", _LEGACY)
        self._legacy_int96 = _is_legacy(said, b"3.1.0", _LEGACY_INT96)
        leaves = [content.schema.column(number) for number in range(len(content.schema))]
        self._int96 = {leaf.path.split(".")[0] for leaf in leaves if leaf.physical_type == "INT96"}

    def int96(self, columns: Iterable[str]) -> list[str]:
        """Those of the columns that are INT96, or have some inside."""
        return [name for name in columns if name in self._int96]

    def corrected(self, table: pa.Table, nanoseconds: pa.Table | None, row: int) -> pa.Table:
        """Rows as Spark reads them, from number `row` on; `nanoseconds` has the columns of INT96 in their own unit.

        Raises OperatorFailed for times that microseconds do not hold, and for those of an old calendar in a zone.
        """
        for place, name in enumerate(table.column_names):
            if nanoseconds is not None and name in self._int96:
                self._check_microseconds(name, table.column(name), nanoseconds.column(name), row)
            legacy = self._legacy_int96 if name in self._int96 else self._legacy
            if legacy and _may_be_old(table.schema.field(name).type):
                table = table.set_column(place, name, self._gregorian(name, table.column(name), row))
        return table

    def _gregorian(self, name: str, values: pa.ChunkedArray, row: int) -> pa.ChunkedArray | pa.Array:
        kind = values.type
        if pa.types.is_date32(kind):
            days = _numbers(values, pa.int32())
            return _array(_gregorian_days(days), values, pa.int32())
        if not pa.types.is_timestamp(kind):  # inside of lists and structs
            for leaf in _leaves(values.combine_chunks()):
                self._refuse_old(name, leaf, row)
            return values
        if kind.tz is None and name not in self._int96:  # a time without a zone has never been of another calendar
            return values
        if self._zone not in _UTC:
            self._refuse_old(name, values, row)
            return values
        micros = _numbers(values.cast(pa.timestamp("us", kind.tz)), pa.int64())
        days, rest = np.divmod(micros, _DAY_MICROS)
        return _array(_gregorian_days(days) * _DAY_MICROS + rest, values, pa.int64(), pa.timestamp("us", kind.tz))

    def _refuse_old(self, name: str, values: Any, row: int) -> None:
        if pa.types.is_date(values.type):
            old = pc.less(values.cast(pa.date32()).cast(pa.int32()), FIRST_GREGORIAN_DAY)
        else:
            old = pc.less(values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64()), _LAST_SWITCH_MICROS)
        if (place := pc.index(old, True).as_py()) < 0:
            return
        where = (
            f"row {row + place:,} (counted from 0)"
            if isinstance(values, pa.ChunkedArray)
            else "inside of a list or struct"
        )
        zone = f"in the zone {self._zone!r}" if self._zone else "in a zone that it does not name"
        raise OperatorFailed(
            f"{self._path}, column {name!r}, {where}: the file was written by an old Spark, or for one, {zone}. It has a "
            "date before 1582-10-15 or a time before 1900, which are of another calendar and of other clocks there, so that "
            "only Spark knows which instant is meant: read the file with a FolderSource or a SparkSource, or write it again "
            "with Spark 3 or later and spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED"
        )

    def _check_microseconds(self, name: str, micros: pa.ChunkedArray, nanos: pa.ChunkedArray, row: int) -> None:
        """Of nanoseconds, all but 64 bits may be lost: what is left of the difference is exact."""
        if not pa.types.is_timestamp(micros.type):
            if not micros.cast(nanos.type, safe=False).equals(nanos):
                raise OperatorFailed(
                    f"{self._path}, column {name!r}: a time within a list or struct does not fit into microseconds; nothing "
                    "is rounded in silence: rewrite the file with timestamp[us], or leave the column out (columns=...)"
                )
            return
        lost = _numbers(nanos, pa.int64()) - _numbers(micros, pa.int64()) * 1000
        if lost.any():
            place = int(np.flatnonzero(lost)[0])
            raise OperatorFailed(
                f"{self._path}, column {name!r}, row {row + place:,} (counted from 0): a timestamp does not fit into "
                f"microseconds, it has {int(lost[place])} ns more; nothing is rounded in silence: rewrite the file with "
                "timestamp[us], or leave the column out (columns=...)"
            )


def _is_legacy(said: dict[bytes, bytes], first: bytes, key: bytes) -> bool:
    version = said.get(_VERSION)
    return version is not None and (version < first or key in said)


def _may_be_old(kind: Any) -> bool:
    if pa.types.is_nested(kind):
        return any(_may_be_old(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _leaves(values: Any) -> Iterator[Any]:
    kind = values.type
    if pa.types.is_struct(kind):
        for field in values.flatten():
            yield from _leaves(field)
    elif pa.types.is_map(kind):
        yield from _leaves(values.keys)
        yield from _leaves(values.items)
    elif pa.types.is_nested(kind):
        yield from _leaves(values.flatten())
    elif _may_be_old(kind):
        yield values


def _numbers(values: pa.ChunkedArray, kind: pa.DataType) -> Any:
    """Nulls as 0."""
    return pc.fill_null(values.cast(kind), 0).to_numpy().astype(np.int64)


def _array(numbers: Any, values: pa.ChunkedArray, kind: pa.DataType, final: pa.DataType | None = None) -> pa.Array:
    nulls = values.combine_chunks().is_null().to_numpy(zero_copy_only=False)
    return pa.array(numbers, kind, mask=nulls).cast(values.type if final is None else final)


def _gregorian_days(days: Any) -> Any:
    """The days of the same date in the calendar of today; 1 March for a 29 February that it does not have."""
    old = days < FIRST_GREGORIAN_DAY
    if not old.any():
        return days
    year, month, day = _julian_date(days[old] + _JULIAN_DAY_OF_EPOCH)
    changed = days.copy()
    changed[old] = _first_of_month(year, month) + day - 1
    return changed


def _julian_date(number: Any) -> tuple[Any, Any, Any]:
    """Year, month and day of Julian day numbers in the Julian calendar."""
    shifted = number + 32_082
    years = (4 * shifted + 3) // 1461
    rest = shifted - 1461 * years // 4
    months = (5 * rest + 2) // 153
    day = rest - (153 * months + 2) // 5 + 1
    return years - 4800 + months // 10, months + 3 - 12 * (months // 10), day


def _first_of_month(year: Any, month: Any) -> Any:
    """Days from 1970-01-01 to the first of a month of the Gregorian calendar. Each of its eras has 146,097 days."""
    shifted = np.where(month <= 2, year - 1, year)
    era, of_era = np.divmod(shifted, 400)
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
