"""The events of a port that a reader looks for: by number, Input Set or time, or by values of their records. All bounded."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from airflow_logio.lineage.event_search import search_newest
from airflow_logio.lineage.lineage_records import Elsewhere
from airflow_logio.lineage.search_limits import SearchLimits
from airflow_logio.protocol.replicas import is_merger
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import LineageLog
from airflow_logio.store.records.run_records import Run
from airflow_logio.ui.fair_shares import fair_shares

MOST_FOUND = 100
"""Events in one answer."""
MOST_SINCE = 20
"""Events of one port of the log that are named of those that were logged from a time on."""
STEP_SECONDS = 0.2
MOST_SECONDS = 5.0
SEARCH = SearchLimits(seconds=STEP_SECONDS, alone_seconds=MOST_SECONDS, size=256 * 2**20, found=MOST_FOUND)
"""Of one step of a search by values: the page asks for the next one, and shows how far it has come."""


@dataclass(frozen=True, slots=True)
class Sought:
    """One of the three: the number of an event, an Input Set that it was made from, a time from which on it was logged."""

    event: int | None = None
    input_set: str | None = None
    at: float | None = None

    @property
    def most(self) -> int:
        """Events of one port of the log."""
        return MOST_FOUND if self.at is None else MOST_SINCE

    def origins(self, run: Run, place: Port) -> list[Port]:
        """The ports of the log that say which events of `place` it is: Input Sets are those of slots, also where a Merger
        numbers the events."""
        if self.input_set is None or not is_merger(place.operator):
            return [place]
        inputs = run.spec.operators[place.operator].inputs
        return [place, *(Port(*sender.split(".", 1)) for sender in inputs.values())]

    def of(self, log: LineageLog, place: Port, origin: Port) -> Iterable[int]:
        """The events of a port, the first ones: one more than are named, if there are so many."""
        if self.input_set is not None:
            made = _outputs(log, origin, [self.input_set], self.most + 1)
            return made if origin == place else _merged(log, place, origin, made)
        if self.at is not None:
            return log.logged_since(place, self.at, self.most + 1)
        return [] if self.event is None else [self.event]


def found_document(store: LogStore, run: Run, port: str, sought: Sought) -> dict[str, Any]:
    """The first events that are sought. If the log is slow, not all of its ports are looked at: the slots of a group have
    their own. Raises `LineageUnknown`."""
    places = CapturedPorts(run).places(port)
    names = dict(zip(places, port_names(run, places), strict=True))
    looks = [(place, origin) for place in places for origin in sought.origins(run, place)]
    end = time.monotonic() + MOST_SECONDS
    found: list[list[dict[str, Any]]] = []
    met: set[tuple[Port, int]] = set()  # a Merger and a slot may have Input Sets of the same name
    with store.lineage(run) as log:
        for place, origin in looks:
            if found and time.monotonic() >= end:
                break
            ids = sorted(number for number in sought.of(log, place, origin) if (place, number) not in met)
            met.update((place, number) for number in ids)
            found.append(_described(log, place, names[place], ids))
    shares = fair_shares([min(len(some), sought.most) for some in found], MOST_FOUND)
    return {
        "events": [one for some, share in zip(found, shares, strict=True) for one in some[:share]],
        "more": any(len(some) > share for some, share in zip(found, shares, strict=True)),
        "ports": len(looks),
        "ports_looked_at": len(found),
    }


def _outputs(log: LineageLog, port: Port, insets: Collection[str], most: int) -> list[int]:
    """The first events of a port that were made from these Input Sets."""
    log.most_rows = most
    made = [number for _, _, number in islice(log.outputs_of(port.operator, insets, [port.name]), most)]
    log.most_rows = None
    return made


def _merged(log: LineageLog, place: Port, origin: Port, made: Collection[int]) -> list[int]:
    """The numbers that a Merger has given events of a slot."""
    insets = {inset for _, receiver, inset in log.uses_of(origin, made) if receiver.operator == place.operator}
    return _outputs(log, place, insets, len(made))


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
    most: int = MOST_FOUND,
) -> dict[str, Any]:
    """The events of a port that hold a record with these values, at most so many, the newest first, as far as one step comes.

    ``before`` of the answer is where the next one continues; None if all are searched. Raises as `search_newest`.
    """
    found = search_newest(store, run, port, where, load, replace(SEARCH, found=min(SEARCH.found, most)), before)
    names = port_names(run, [one.place for one in found.holding])
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
        "damaged": sum(len(one.damaged) for one in found.holding),
        "damaged_first": next((said for one in found.holding for said in one.damaged), ""),
        "before": found.before,
    }


def port_names(run: Run, places: Iterable[Port]) -> list[str]:
    """As the page names ports of the log."""
    names = {found: name for name, found in CapturedPorts(run).named()}
    return [names.get(place, str(place)) for place in places]
