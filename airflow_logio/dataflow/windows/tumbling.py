"""`Tumbling`: windows of time, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from airflow_logio.dataflow.arrow import np, pa
from airflow_logio.dataflow.names import check_column, check_count
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.quantities import window_origin, window_seconds
from airflow_logio.dataflow.windows.timeline import Grid, Numbers, too_many_windows, window_numbers
from airflow_logio.dataflow.windows.window import WINDOW_START, Arrival, Window, is_as_in
from airflow_logio.dataflow.windows.zones import check_zone, rules_of
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.record_rules import Part

MOST_WINDOWS = 10_000
"""The most for one event in mode ``dataframe``, unless the author says otherwise."""


@dataclass(frozen=True, slots=True)
class Tumbling(Window):
    """A window of time: Input Sets of the records of one stretch of time each, by a time in the records (the paper's
    OP3).

    :param length: ``"30s"``, ``"15m"``, ``"1h"``, ``"1d"``, ``"1w"``: it divides a day, or is whole days. Windows begin
        at midnight UTC and multiples of the length after it; those of several days are counted from 1970-01-01, weeks
        begin on a Monday.
    :param on: the column with the time: a timestamp (with a zone: taken in UTC) or a date, without nulls.
    :param zone: the name of a time zone, ``"Europe/Berlin"``: days begin at its midnight, and other windows where its clock
        shows a multiple of the length. So a day has 23, 24 or 25 hours, an hour that the clock shows twice is two windows,
        and what the clock jumps over is none. The column must have instants. By default windows are those of UTC.
    :param windows_per_event: the most windows that the records of one event may be in. By default 10,000 in mode
        ``dataframe``, otherwise any number.

    An Input Set is named by the start of its window, ``"2017-03-05T10:00"`` (with seconds where the length or the start
    has some), so that names sort like times: in UTC also with a `zone`. Functions may ask for ``window_start``: the start
    in UTC, or with a `zone` as a time of that zone, which is cast to the day that the window is of. A window is complete
    when a record of a later one has been seen, or the stream ends. The records of an event may come in any order, but one
    of an earlier window than the latest seen is late and refused: its window may be generated already, and dropping it
    would be silent loss. So order the input by time (``ordered_by`` of a source). Global state: ``{"watermark": the latest
    window seen}``.

    Raises PipelineDefinitionError for a length that fits no day, and for an unknown zone; in a run OperatorFailed for late
    records, null times, a column that is no time, and an event in more windows than allowed.
    """

    partitionable: ClassVar[bool] = True
    suits_datasets: ClassVar[bool] = True

    length: str
    on: str
    windows_per_event: int | None = None
    zone: str | None = None

    def __post_init__(self) -> None:
        window_seconds(self.length)
        check_column(self.on)
        if self.zone is not None:
            check_zone(self.zone)
        if self.windows_per_event is not None:
            check_count("Tumbling: windows_per_event", self.windows_per_event)

    def initial_state(self) -> dict[str, Any]:
        return {"watermark": None}

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, pa.Table]:
        slices = self._slices(event)
        windows = {number: records.num_rows for number, records in slices}
        progress = event.progress.get(self.progress_name())
        names = self.joined(Arrival(event.port, event.event_id, windows, progress), state)
        return dict(zip(names, (records for _, records in slices), strict=True))

    def joined(self, arrival: Arrival, state: dict[str, Any]) -> Sequence[str]:
        grid = self.grid()
        names = {grid.name(number): records for number, records in sorted(arrival.windows.items())}
        if grid.most is not None and len(names) > grid.most:
            raise too_many_windows(grid, len(names), min(arrival.windows), max(arrival.windows))
        self._refuse_late(arrival, names, state["watermark"])
        seen = (state["watermark"], arrival.progress, *names)
        state["watermark"] = max((one for one in seen if one is not None), default=None)
        return list(names)

    def for_datasets(self) -> Tumbling:
        return replace(self, windows_per_event=self.windows_per_event or MOST_WINDOWS)

    def record_part(self) -> Part | None:
        """A subclass with parts of its own says itself which they are."""
        if not is_as_in(Tumbling, self, "assign", "joined", "grid", "number", "part"):
            return None
        grid = self.grid()
        return None if grid.zone else Part(grid.on, grid.seconds, grid.origin)

    def grid(self) -> Grid:
        zone = self.zone or ""
        return Grid(self.on, window_seconds(self.length), window_origin(self.length), self.windows_per_event, zone)

    def number(self, inset_id: str) -> int:
        return self.grid().number(int(self._start(inset_id).timestamp()))

    def progress_name(self) -> str:
        weeks, zone = "/weeks" if window_origin(self.length) else "", f"/{self.zone}" if self.zone else ""
        return f"{self.on}/{window_seconds(self.length)}{weeks}{zone}"

    def ordered_on(self) -> str:
        return self.on

    def progress(self, event: InputEvent) -> str | None:
        """The latest window of its records."""
        if not event.table.num_rows:
            return None
        numbers, _ = self._numbers(event)
        return self.grid().name(int(np.max(numbers)))

    def part(self, event: InputEvent, inset_id: str) -> pa.Table:
        number = self.number(inset_id)
        numbers, ordered = self._numbers(event)
        if not ordered:
            return event.table.filter(pa.array(numbers == number))
        begin, end = np.searchsorted(numbers, [number, number + 1]).tolist()
        return event.table.slice(begin, end - begin)

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        watermark = state["watermark"]
        return [] if watermark is None else sorted(inset for inset in open_insets if inset < watermark)

    def order(self, inset_id: str) -> str:
        return inset_id

    def tags(self, inset_ids: Sequence[str]) -> dict[str, pa.Array]:
        """``window_start``: the start of each window, timestamp[us] in UTC without zone, or of the zone of the windows."""
        starts = [self._start(inset_id).replace(tzinfo=None) for inset_id in inset_ids]
        found = pa.array(starts, pa.timestamp("us"))
        return {WINDOW_START: found if self.zone is None else found.cast(pa.timestamp("us", self.zone))}

    def describe(self) -> dict[str, Any]:
        origin = {"origin": window_origin(self.length)} if window_origin(self.length) else {}
        zone = {} if self.zone is None else {"zone": self.zone, "rules": rules_of(self.zone)}
        return {"window": "Tumbling", "seconds": window_seconds(self.length), "on": self.on, **origin, **zone}

    def _numbers(self, event: InputEvent) -> Numbers:
        grid = self.grid()
        return window_numbers(event, grid.on, grid.seconds, grid.origin, grid.zone)

    def _slices(self, event: InputEvent) -> list[tuple[int, pa.Table]]:
        """(window number, its records), by window; slices share memory where the windows come in order."""
        if event.progress and not event.table.num_rows:
            return []  # it only brings progress, and may have other columns than the records
        numbers, ordered = self._numbers(event)
        if not ordered:
            return [(int(n), event.table.filter(pa.array(numbers == n))) for n in np.unique(numbers)]
        cuts = (np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()
        bounds = zip([0, *cuts], [*cuts, len(numbers)], strict=True)
        return [(int(numbers[begin]), event.table.slice(begin, end - begin)) for begin, end in bounds if end > begin]

    @staticmethod
    def _start(inset_id: str) -> datetime:
        return datetime.fromisoformat(inset_id).replace(tzinfo=UTC)

    def _refuse_late(self, arrival: Arrival, records: Mapping[str, int], watermark: str | None) -> None:
        late = [name for name in records if watermark is not None and name < watermark]
        if late:
            raise OperatorFailed(
                f"event {arrival.event_id} on port {arrival.port!r} brings {sum(records[name] for name in late)} late "
                f"record(s), the earliest for window {late[0]}: a record of window {watermark} has been seen, so the earlier "
                f"windows are closed. Order the input by {self.on!r} (ParquetSource(..., ordered_by={self.on!r}) refuses "
                "unordered files; several files of a pattern or a folder are read in the order of their names, as texts are "
                "sorted: 'part-10' before 'part-9'. Pad numbers with zeros, or give the paths in order)"
            )
