"""The description of a run with other types of columns, in memory: as in `sql/type_changes.py`."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from airflow_logio.errors import ProtocolViolation, UnknownRun
from airflow_logio.store.memory.tables import GroupKey, Tables
from airflow_logio.store.records import Run, RunSpec
from airflow_logio.store.rules.stored_spec import encode_spec
from airflow_logio.store.rules.type_rules import TypeChange, described_anew


def change(tables: Tables, run_id: int, wanted: TypeChange) -> Run:
    """Runs in an open transaction, like the others."""
    if run_id not in tables.runs:
        raise UnknownRun(f"no run {run_id} is in the log")
    groups = {}
    for group in wanted.incarnations:
        key = GroupKey(run_id, group)
        if key not in tables.groups:
            raise ProtocolViolation(f"run {run_id} has no group {group!r}")
        groups[group] = (tables.groups[key].state, tables.fences[key].incarnation)
    row = tables.runs[run_id]
    spec = described_anew(row.as_run(), wanted, groups)
    changed = replace(row, spec=msgspec.json.decode(encode_spec(spec), type=RunSpec))
    tables.put(tables.runs, run_id, changed)
    return changed.as_run()
