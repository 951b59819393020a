"""The events of a port that somebody looks for: by number, Input Set or time, or by values of their records. All bounded."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from airflow_logio.protocol.values import Kind, Port
from airflow_logio.runtime.figures.event_search import SearchLimits, search_newest
from airflow_logio.runtime.figures.lineage_records import Elsewhere
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage_port import LineageLog
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import Run
from airflow_logio.ui.fair_shares import fair_shares

MOST_FOUND = 100
"""Events in one answer."""
MOST_SINCE = 20
"""Events of one port of the log that are named of those that were logged from a time on."""
MOST_SECONDS = 5.0
SEARCH = SearchLimits(seconds=MOST_SECONDS, size=256 * 2**20, found=MOST_FOUND)
"""Of one search by values."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One of the three: the number of an event, an Input Set that it was made from, a time from which on it was logged."""

    event: int | None = None
    input_set: str | None = None
    at: float | None = None

    @property
    def most(self) -> int:
        """Events of one port of the log."""
        return MOST_FOUND if self.at is None else MOST_SINCE

    def of(self, log: LineageLog, place: Port) -> Iterable[int]:
        """The events of a port, the first ones: one more than are named, if there are so many."""
        if self.input_set is not None:
            made = log.outputs_of(place.operator, [self.input_set], [place.name])
            return [number for _, _, number in islice(made, self.most + 1)]
        if self.at is not None:
            return log.logged_since(place, self.at, self.most + 1)
        return [] if self.event is None else [self.event]


def found_document(store: LogStore, run: Run, port: str, wanted: Wanted) -> dict[str, Any]:
    """The first events that are wanted. If the log is slow, not all ports of the log are looked at: the slots of a group have
    their own. Raises `LineageUnknown`."""
    places = CapturedPorts(run).places(port)
    end = time.monotonic() + MOST_SECONDS
    found: list[list[dict[str, Any]]] = []
    with store.lineage(run) as log:
        log.most_rows = wanted.most + 1
        for place, name in zip(places, _names(run, places), strict=True):
            if found and time.monotonic() >= end:
                break
            found.append(_described(log, place, name, sorted(wanted.of(log, place))))
    shares = fair_shares([min(len(some), wanted.most) for some in found], MOST_FOUND)
    return {
        "events": [one for some, share in zip(found, shares, strict=True) for one in some[:share]],
        "more": any(len(some) > share for some, share in zip(found, shares, strict=True)),
        "ports": len(places),
        "ports_looked_at": len(found),
    }


def _described(log: LineageLog, place: Port, name: str, ids: Sequence[int]) -> list[dict[str, Any]]:
    headers = log.headers(place.operator, place.name, ids)
    return [
        {"port": name, "event": number, "records": header.records}
        for number, header in headers
        if header.kind is Kind.DATA
    ]


def held_document(
    store: LogStore,
    run: Run,
    port: str,
    where: Mapping[str, str],
    before: Sequence[int] | None,
    load: Elsewhere | None,
) -> dict[str, Any]:
    """The events of a port that hold a record with these values, the newest first, as far as one search comes.

    ``before`` of the answer is where the next one goes on; None if all are searched. Raises as `search_newest`.
    """
    found = search_newest(store, run, port, where, load, SEARCH, before)
    names = _names(run, [one.place for one in found.holding])
    return {
        "events": [
            {"port": name, "event": number, "records": many}
            for name, one in zip(names, found.holding, strict=True)
            for number, many in reversed(list(one.records.items()))
        ],
        "searched": sum(one.searched for one in found.holding),
        "sent": sum(one.sent for one in found.holding),
        "seconds": round(found.seconds, 3),
        "partly": sum(len(one.partly) for one in found.holding),
        "lacking": found.lacking,
        "before": found.before,
    }


def _names(run: Run, places: Iterable[Port]) -> list[str]:
    """As the page names ports of the log."""
    names = {found: name for name, found in CapturedPorts(run).named()}
    return [names.get(place, str(place)) for place in places]
