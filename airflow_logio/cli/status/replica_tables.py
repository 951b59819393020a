"""`logio status` for people: the replicas of a group, and the requests to scale it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from airflow_logio.cli import display
from airflow_logio.cli.status import cells
from airflow_logio.protocol.states import OPEN_SCALING, GroupState
from airflow_logio.run_report.report import Replicas
from airflow_logio.status.condition import condition_of
from airflow_logio.store.records.driver_records import Load
from airflow_logio.store.records.status_records import ScalingRequest

MAX_REQUESTS = 10


def tables(replicated: Sequence[Replicas], requests: int = MAX_REQUESTS) -> Iterator[Table]:
    """Replicas and their load; the latest requests of each group, the newest first."""
    if replicated:
        yield _replicas(replicated)
    asked = [request for one in replicated for request in one.requests[:requests]]
    if asked:
        yield _requests(sorted(asked, key=lambda request: -request.request_id))


def _replicas(replicated: Sequence[Replicas]) -> Table:
    table = cells.table(
        "replica", "state", "slots", "busy", "idle", "blocked", "records/s in", "records/s out", "queue", "oldest"
    )
    for one in replicated:
        done = f", {one.done} done" if one.done else ""
        cells.row(table, one.group, f"{len(one.in_use)} of {len(one.shape.replicas)} in use", f"{len(one.slots)}{done}")
        for status in one.shown:
            name = Text(f"  {status.group}", style=display.style(status))
            slots = ranges(one.owned_by(status.group))
            load = status.load if status.state is GroupState.RUNNING else None
            cells.row(table, name, condition_of(status), slots, *_load(load))
    return table


def _load(load: Load | None) -> list[str]:
    if load is None:
        return []
    rates = (load.records_in, load.records_out)
    return [
        *(f"{share:.0%}" for share in (load.busy, load.idle, load.blocked)),
        *(f"{many / load.seconds:,.0f}" if load.seconds > 0 else "" for many in rates),
        f"{load.queued:,} events",
        f"{load.lag_seconds:.1f} s",
    ]


def _requests(requests: Sequence[ScalingRequest]) -> Table:
    table = cells.table("scaling", "asked (UTC)", "replicas", "state", "by", "why", "what became of it")
    for one in requests:
        state = Text(one.state.value, style="bold" if one.state in OPEN_SCALING else "")
        cells.row(
            table,
            f"{one.group} #{one.request_id}",
            cells.utc(one.requested_at),
            f"{one.replicas}",
            state,
            one.by,
            one.reason,
            one.note,
        )
    return table


def ranges(numbers: Sequence[int]) -> str:
    """Such as ``0-3, 7``; nothing for none."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
