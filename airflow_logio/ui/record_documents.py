"""Lineage between records, as the page shows it: one step back from one record; and the payload store that it reads.

Bounded, as `lineage_documents`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from airflow_logio.errors import (
    ExternalUnavailable,
    LineageUnknown,
    LogInconsistent,
    LogioError,
    LogUnavailable,
    OperatorFailed,
)
from airflow_logio.lineage.event_columns import EventColumns
from airflow_logio.lineage.lineage_records import (
    Elsewhere,
    Extent,
    distinct_names,
    effect,
    effect_extent,
    port_in_log,
    rows_at,
)
from airflow_logio.lineage.record_lineage import (
    MOST_STEP_BYTES,
    MOST_STEP_RECORDS,
    TracedEvent,
    TracedRead,
    step_behind,
)
from airflow_logio.store.lineage.result import EventNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.ui.lineage_documents import MOST_COLUMNS, MOST_PORTS, MOST_READS, MOST_RECORDS, page_port, shown_text

log = logging.getLogger(__name__)
TOO_LARGE = "they are too large to be opened together: ask `logio lineage ... --records`"


def behind_document(
    store: LogStore, run: Run, port: str, event: int, place: int, load: Elsewhere | None
) -> dict[str, Any]:
    """The records that one record was made from, by port, with the first of them, and the rows of read actions; where these
    are too large to be opened, a sentence (`problem`).

    Raises as `step_behind`.
    """
    found = step_behind(store, run, port, event, place, load)
    with store.lineage(run) as lineage:
        columns = EventColumns(lineage, load, (MOST_STEP_BYTES, LineageUnknown(TOO_LARGE)))
        ports = [_port(run, name, group, columns) for name, group in list(_by_port(found.origins).items())[:MOST_PORTS]]
    left = _RowsLeft(MOST_STEP_RECORDS, MOST_STEP_BYTES)
    return {
        "ports": ports,
        "ports_in_all": len(_by_port(found.origins)),
        "reads": [_read(store, run, one, load, left) for one in found.reads[:MOST_READS]],
        "reads_in_all": len(found.reads),
    }


def _by_port(origins: Iterable[TracedEvent]) -> dict[str, list[TracedEvent]]:
    found: dict[str, list[TracedEvent]] = {}
    for one in origins:
        found.setdefault(page_port(one.event), []).append(one)
    return found


def _port(run: Run, name: str, group: Sequence[TracedEvent], events: EventColumns) -> dict[str, Any]:
    group = sorted(group, key=lambda one: one.event.event_id)
    columns: list[str] = []
    rows: list[dict[str, Any]] = []
    problem = None
    try:
        columns, rows = _rows(run, group, events)
    except LineageUnknown as error:
        problem = str(error)
    return {
        "port": name,
        "events": len(group),
        "records": sum(map(_many, group)),
        "unknown": sum(one.places is None for one in group),
        "doubts": list(dict.fromkeys(doubt for one in group for doubt in one.doubts)),
        "columns": columns,
        "rows": rows,
        "problem": problem,
    }


def _rows(run: Run, group: Sequence[TracedEvent], events: EventColumns) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns and the first records; what a replay operator made has none, also where a writer hands it on."""
    places = {(one.event.port, one.event.slot): one.event for one in group}
    in_log = {place: port_in_log(run, event) for place, event in places.items()}
    named = {EventNode(in_log[one.event.port, one.event.slot], one.event.event_id): one for one in group}
    having = iter([(node, one) for node, one in named.items() if _many(one)])
    columns: list[str] = []
    rows: list[dict[str, Any]] = []
    while len(rows) < MOST_RECORDS and (some := dict(islice(having, MOST_RECORDS))):
        for event, records in events.each_kept(some, None):
            one = some[event]
            places = [] if one.places is None else one.places[: MOST_RECORDS - len(rows)].tolist()
            table = distinct_names(rows_at(records, places))
            columns = columns or table.column_names[:MOST_COLUMNS]
            rows += [_row(one, *pair, columns) for pair in zip(places, table.to_pylist(), strict=True)]
    return columns, rows


def _many(one: TracedEvent) -> int:
    """Its records, as far as they are known."""
    return 0 if one.places is None else len(one.places)


def _row(one: TracedEvent, place: int, value: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    return {
        "event": one.event.event_id,
        "place": place,
        "source_row": one.source_row(place),
        "values": [shown_text(value.get(name)) for name in columns],
    }


@dataclass
class _RowsLeft:
    """Rows of reads through which this click may still search."""

    many: int
    size: int
    """Bytes of their bodies."""

    def take(self, extent: Extent) -> bool:
        """Search through so many more; false if they are too many."""
        if extent.records > self.many or extent.size > self.size:
            return False
        self.many -= extent.records
        self.size -= extent.size
        return True


def _read(store: LogStore, run: Run, one: TracedRead, load: Elsewhere | None, left: _RowsLeft) -> dict[str, Any]:
    """Its rows; where they are too many, or out of reach, a sentence: the records of events are there all the same."""
    shown = {"operator": one.read.operator_in_log, "connection": one.read.connection}
    extent = effect_extent(store, run, one.read)
    if not left.take(extent):
        said = "too many to be searched at once: ask `logio lineage ... --records`, or open the read"
        return {**shown, **_no_rows(extent.records), "problem": said}
    try:
        rows, by_key = one.rows(effect(store, run, one.read, load=load))
    except LineageUnknown as error:  # retention has removed them
        return {**shown, **_no_rows(extent.records), "problem": str(error)}
    except RecordsOutOfReach as error:
        if error.reason:  # for the owner of the server: it may name paths
            log.warning("The page of LOG.io cannot show the rows of %s: %s", one.read, error.reason)
        return {**shown, **_no_rows(extent.records), "problem": str(error)}
    first: pa.Table = distinct_names(rows.slice(0, MOST_RECORDS))
    first = first.select(first.column_names[:MOST_COLUMNS])
    return {
        **shown,
        "by_key": by_key,
        "columns": first.column_names,
        "rows": [[shown_text(value) for value in row.values()] for row in first.to_pylist()],
        "rows_in_all": rows.num_rows,
        "columns_in_all": rows.num_columns,
        "problem": None,
    }


def _no_rows(many: int) -> dict[str, Any]:
    return {"by_key": False, "columns": [], "rows": [], "rows_in_all": many, "columns_in_all": 0}


# --- the payload store ------------------------------------------------------------------------------------------------


class RecordsOutOfReach(LogioError):
    """Records are in the payload store, and this server cannot read them there. The message names no path and no secret."""

    def __init__(self, message: str, reason: str = "", status: int = 503) -> None:
        """`reason`: what the payload store has said, for the log of the server and for its owner."""
        super().__init__(message)
        self.reason = reason
        self.status = status


class RecordsDamaged(RecordsOutOfReach, LogInconsistent):
    """They are missing there, or not what the log says."""


class PagePayloads:
    """Opened when records are asked for that are not in the log. `opening` gives None where no payload store is known."""

    def __init__(self, opening: Callable[[], Elsewhere | None]) -> None:
        self._opening = opening

    def table(self, where: str, ref: str) -> pa.Table:
        """As `Elsewhere.table`. Raises `RecordsOutOfReach`."""
        with _told(where):
            return self._opened(where).table(where, ref)

    def pieces(self, where: str, ref: str, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """As `Elsewhere.pieces`. Raises `RecordsOutOfReach`."""
        with _told(where):
            yield from self._opened(where).pieces(where, ref, columns)

    def _opened(self, where: str) -> Elsewhere:
        found = self._opening()
        if found is None:
            raise RecordsOutOfReach(
                f"the records of {where} are in the payload store, which this server does not know: name it as `payloads` in "
                "the extra of the connection with which the page opens the log"
            )
        return found


@contextmanager
def _told(where: str) -> Iterator[None]:
    try:
        yield
    except RecordsOutOfReach:
        raise
    except LogInconsistent as error:
        raise RecordsDamaged(
            f"the records of {where} are missing in the payload store that this server knows, or damaged: look whether its "
            "connection names the folder or bucket that the drivers write to, in `payloads`",
            str(error),
            500,
        ) from error
    except OperatorFailed as error:  # as `Dataset.table` says it
        raise RecordsOutOfReach(
            f"the records of {where} are a dataset that is too large to be taken as one table", str(error), 404
        ) from error
    except (LogUnavailable, ExternalUnavailable) as error:
        raise RecordsOutOfReach(
            f"the records of {where} are in the payload store, which does not answer this server: try again in a moment, and "
            "look whether this server may reach that folder or bucket",
            str(error),
        ) from error
    except (LogioError, OSError, ImportError, ValueError) as error:
        # Also what the lookup of a connection raises, and a file system without its library.
        raise RecordsOutOfReach(
            f"the records of {where} are in the payload store, which this server cannot open: look at `payloads` in the "
            "extra of the connection with which the page opens the log, and whether this server may read that folder or "
            "bucket",
            str(error),
        ) from error
