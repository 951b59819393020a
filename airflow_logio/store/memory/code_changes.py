"""Code that a person takes for a group of a run, in memory: as in `sql/code_changes.py`. Runs in an open transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_logio.errors import UnknownRun
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.store.code_records import CodeChange, KeptCode
from airflow_logio.store.memory.tables import GroupKey, Tables
from airflow_logio.store.rules.code_rules import LONGEST, digest_of, members, number_for


def take(tables: Tables, run_id: int, group: str, digest: str, fingerprint: str, by: str, archive: bytes | None) -> int:
    if run_id not in tables.runs:
        raise UnknownRun(f"no run {run_id} is in the log")
    row = tables.runs[run_id]
    keys = [GroupKey(run_id, name) for name in members(row.as_run(), group)]
    if not all(key in tables.groups for key in keys):
        raise UnknownRun(f"run {row.spec.key} is no longer in the log")
    current = max(tables.groups[key].code for key in keys)
    number = number_for(row.as_run(), row.state, changes(tables, run_id), current, digest)
    if number == current:
        return number
    change = CodeChange(number, replicated_group(group), digest, fingerprint, by[:LONGEST], tables.now())
    tables.add(tables.code_changes, (run_id, number), change)
    keep(tables, run_id, digest, archive)
    for key in keys:
        tables.put(tables.groups, key, replace(tables.groups[key], code=number))
    return number


def keep(tables: Tables, run_id: int, digest: str | None, archive: bytes | None) -> None:
    if digest is not None and archive is not None and (run_id, digest) not in tables.code:
        tables.add(tables.code, (run_id, digest), archive)


def kept(tables: Tables, run_id: int, number: int) -> KeptCode:
    if run_id not in tables.runs:
        raise UnknownRun(f"no run {run_id} is in the log")
    digest = digest_of(tables.runs[run_id].as_run(), changes(tables, run_id), number)
    return KeptCode(number, digest, None if digest is None else tables.code.get((run_id, digest)))


def changes(tables: Tables, run_id: int) -> Sequence[CodeChange]:
    return [change for (run, _), change in sorted(tables.code_changes.items()) if run == run_id]
