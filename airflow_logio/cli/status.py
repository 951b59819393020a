"""`logio status`: what the log says about runs, groups and drivers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table

from airflow_logio.cli.app import LogOption, err, out, warn
from airflow_logio.cli.connections import Connections
from airflow_logio.cli.logs import opened
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.runtime.run_summary import Outcome, driver_json, quarantined_json
from airflow_logio.store.records import GroupStatus, PortProgress, QuarantinedInputSet, Run
from airflow_logio.store.sql.drivers import DriverRecord, driver_records
from airflow_logio.store.sql.store import SqlLogStore

MAX_QUARANTINED = 20


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    run: Annotated[str | None, typer.Argument(help="Run: its uid, the beginning of it, or its run id")] = None,
    log: LogOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable, on standard output")] = False,
) -> None:
    """All runs of the log, the newest first; or one run with its groups, drivers and ports."""
    known = Connections.load(warn)
    with opened(known.log_url(log)) as store:
        if run is None:
            _runs(store, as_json=as_json)
        else:
            _run(store, store.find_run(run), as_json=as_json)


def _runs(store: SqlLogStore, *, as_json: bool) -> None:
    runs = [(run, store.groups(run.run_id)) for run in store.list_runs()]
    if as_json:
        typer.echo(json.dumps([_run_json(run, groups) for run, groups in runs], indent=2))
        return
    table = _table("uid", "run", "pipeline", "state", "started (UTC)", "groups")
    for run, groups in runs:
        states = ", ".join(f"{group.group} {group.state.value}" for group in groups)
        key = run.spec.key
        table.add_row(run.uid[:8], key.dag_run_id, key.pipeline, run.state.value, _time(run.created_at), states)
    out.print(table if runs else "no runs")


def _run(store: SqlLogStore, run: Run, *, as_json: bool) -> None:
    groups, ports = store.groups(run.run_id), store.progress(run.run_id)
    aside = store.quarantined(run.run_id)
    drivers = driver_records(store, run.run_id)
    if as_json:
        detail = _run_json(run, groups) | {
            "drivers": [driver_json(driver) for driver in drivers],
            "ports": [_port_json(row) for row in ports],
            "quarantined": [quarantined_json(one) for one in aside],
        }
        typer.echo(json.dumps(detail, indent=2))
        return
    key = run.spec.key
    out.print(f"run {key.dag_run_id} of {key.pipeline} (dag {key.dag_id}), uid {run.uid}", markup=False)
    state = Outcome.QUARANTINED if run.state is RunState.QUARANTINED else run.state
    out.print(f"{state.value}, started {_time(run.created_at)} UTC", markup=False)
    out.print()
    out.print(_group_table(groups))
    out.print()
    out.print(_port_table(ports))
    out.print()
    out.print(_driver_table(drivers))
    if aside:
        out.print()
        out.print(_quarantine_table(aside))
        out.print(f"retry them with: logio retry {run.uid[:8]}", markup=False)
    for group in groups:
        if group.error:
            err.print(f"{group.group}: {group.error}", markup=False, style="red")
            err.print(f"  driver log: {group.log_path}", markup=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column)
    return table


def _group_table(groups: Sequence[GroupStatus]) -> Table:
    table = _table("group", "state", "incarnation", "recoveries", "pid", "heartbeat", "MB")
    for group in groups:
        pid = "" if group.identity is None else f"{group.identity.pid or group.identity.parent_pid}"
        wanted = " (to halt)" if group.desired is GroupState.HALTED and group.state is GroupState.RUNNING else ""
        beat = "" if group.beat_at is None else _time(group.beat_at)
        memory = f"{group.rss_bytes / 2**20:,.0f}" if group.rss_bytes else ""
        table.add_row(
            group.group, group.state.value + wanted, str(group.incarnation), str(group.recoveries), pid, beat, memory
        )
    return table


def _port_table(ports: Sequence[PortProgress]) -> Table:
    table = _table("port", "", "events", "records", "MB", "last (UTC)")
    for row in ports:
        size = f"{row.bytes / 2**20:,.1f}" if row.bytes else ""
        table.add_row(str(row.port), row.direction, f"{row.events:,}", f"{row.records:,}", size, _time(row.last_at))
    return table


def _driver_table(drivers: Sequence[DriverRecord]) -> Table:
    table = _table("driver", "claimed (UTC)", "registered", "first commit", "why launched", "why ended")
    for driver in drivers:
        table.add_row(
            f"{driver.group}/{driver.incarnation}",
            _time(driver.claimed_at),
            _after(driver.registered_at, driver),
            _after(driver.first_commit_at, driver),
            driver.reason,
            driver.error or "",
        )
    return table


def _quarantine_table(aside: Sequence[QuarantinedInputSet]) -> Table:
    table = _table("quarantined", "Input Set", "since (UTC)", "error")
    for one in aside[:MAX_QUARANTINED]:
        table.add_row(one.operator, one.inset_id, _time(one.since), one.error)
    if len(aside) > MAX_QUARANTINED:
        table.add_row("", f"... and {len(aside) - MAX_QUARANTINED:,} more (all with --json)", "", "")
    return table


def _after(at: float | None, driver: DriverRecord) -> str:
    return "" if at is None else f"+{at - driver.claimed_at:.1f} s"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _run_json(run: Run, groups: Sequence[GroupStatus]) -> dict[str, Any]:
    key = run.spec.key
    return {
        "uid": run.uid,
        "pipeline": key.pipeline,
        "dag_id": key.dag_id,
        "run_id": key.dag_run_id,
        "generation": key.generation,
        "state": run.state.value,
        "created_at": run.created_at,
        "ended_at": run.ended_at,
        "groups": {group.group: _group_json(group) for group in groups},
    }


def _group_json(group: GroupStatus) -> dict[str, Any]:
    return {
        "state": group.state.value,
        "desired": group.desired.value,
        "incarnation": group.incarnation,
        "recoveries": group.recoveries,
        "pid": group.identity.pid if group.identity else None,
        "host": group.identity.host if group.identity else None,
        "heartbeat_at": group.beat_at,
        "rss_bytes": group.rss_bytes,
        "error": group.error,
        "log": group.log_path,
    }


def _port_json(row: PortProgress) -> dict[str, Any]:
    return {
        "port": str(row.port),
        "direction": row.direction,
        "events": row.events,
        "records": row.records,
        "bytes": row.bytes,
        "first_at": row.first_at,
        "last_at": row.last_at,
    }
