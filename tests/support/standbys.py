"""The shipped sales pipeline with standbys (ADR-108); its source waits for a file, so that they are ready before it reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from airflow_logio.launch import bundle
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Standby

SHIPPED = Path(__file__).parents[2] / "dags" / "pipelines" / "sales.py"
GROUPS = {"totals": 'sales.group("totals", totals, save_totals)', "hourly": 'sales.group("hourly", hourly)'}


def sales_with_standbys(folder: Path, groups: Iterable[str], go_on: Path, *, after: int) -> bundle.PipelineRef:
    """Written into a folder. The source stops after so many batches until the file `go_on` is there."""
    first = "    amounts = pc.round("
    held = (
        "    cents.calls = getattr(cents, 'calls', 0) + 1\n"
        f"    while cents.calls > {after} and not __import__('os').path.exists({str(go_on)!r}):\n"
        "        __import__('time').sleep(0.05)\n"
    )
    text = _replaced(SHIPPED.read_text(), first, held + first)
    for group in groups:
        text = _replaced(text, GROUPS[group], f"{GROUPS[group][:-1]}, standby=1)")
    path = folder / "sales.py"
    path.write_text(text)
    return bundle.parse_ref(f"{path}:sales")


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{SHIPPED} has changed: {old!r}"
    return text.replace(old, new)


def standby_of(store: LogStore, run_id: int, group: str) -> Standby | None:
    """As its driver has reported it last."""
    load = store.group(run_id, group).load
    return None if load is None else load.standby
