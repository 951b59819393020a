"""``--where column=value`` of `logio lineage`: the events that hold such a record, and what could not be searched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from airflow_logio.errors import LineageUnknown
from airflow_logio.lineage.event_search import Holding, events_holding
from airflow_logio.lineage.lineage_records import Elsewhere
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run

MOST_EVENTS = 20
"""Most events whose lineage is shown. More are not what somebody looks for who asks where a number came from."""


def holding(
    store: LogStore, run: Run, port: str, values: Mapping[str, str], load: Elsewhere | None, warn: Callable[[str], None]
) -> Sequence[tuple[str, list[int]]]:
    """(port of the log, event ids) of the events that hold such a record. Raises `LineageUnknown` if none does."""
    found = events_holding(store, run, port, values, load)
    wanted = " and ".join(f"{name}={value}" for name, value in values.items())
    every = [(str(one.place), number) for one in found for number in one.records]
    gone = _gone(found, port)
    if not every:
        searched = sum(one.searched for one in found)
        raise LineageUnknown(f"none of the {searched:,} events of {port} in the log holds a record with {wanted}{gone}")
    if gone:
        warn(gone.removeprefix("; "))
    if len(every) > MOST_EVENTS:
        warn(f"{len(every):,} events of {port} hold records with {wanted}; shown are the first {MOST_EVENTS}")
    asked: dict[str, list[int]] = {}
    for place, number in every[:MOST_EVENTS]:
        asked.setdefault(place, []).append(number)
    return list(asked.items())


def _gone(found: Sequence[Holding], port: str) -> str:
    gone = sum(one.gone for one in found)
    if not gone:
        return ""
    return (
        f"; {gone:,} more events of {port} are not in the log any more: retention has removed their records together with "
        "their lineage, and nothing leads to them from a table. A scope's `retention` says for how long an event is kept; "
        "the lineage_column of a TableWriter names the event of each row, which needs no search"
    )
