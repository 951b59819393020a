"""`logio status` for people: tables and lines."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from airflow_logio.cli import display
from airflow_logio.cli.common import options, written
from airflow_logio.protocol.replicas import base_operator
from airflow_logio.protocol.states import ENDED, OPEN_SCALING, GroupState, RunState
from airflow_logio.protocol.values import Port
from airflow_logio.run_report.report import Replicas, Report, condition_seen
from airflow_logio.status.authored_figures import connections_seen, pending_seen, ports_seen
from airflow_logio.status.condition import condition_of, standby_of
from airflow_logio.status.recoveries import Recovery
from airflow_logio.status.snapshot import ConnectionView
from airflow_logio.store.records.day_records import DayRead
from airflow_logio.store.records.driver_records import CodeChange, DriverRecord, Load
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, PortProgress, ScalingRequest, SupervisorRecord
from airflow_logio.store.records.upkeep_records import QuarantinedInputSet

MAX_QUARANTINED = 20
MAX_WATCHED_RECOVERIES = 5
MAX_WATCHED_REQUESTS = 2
MAX_REQUESTS = 10
MAX_CAUSE = 100


def runs(
    listed: Sequence[tuple[Run, Sequence[GroupStatus], SupervisorRecord | None]],
    paused: Collection[str],
    stale: Mapping[int, Sequence[DayRead]],
) -> RenderableType:
    """All runs, the newest first, with their partitions if some have one; `paused` are the uids of those whose DAG is paused,
    `stale` has the days that a run was computed from and that were replaced since."""
    have_partitions = any(run.partition is not None for run, _, _ in listed)
    partition = ("partition",) if have_partitions else ()
    table = new_table("uid", "run", "pipeline", *partition, "state", "started (UTC)", "groups", "next")
    for run, groups, looked in listed:
        used = [group for group in groups if group.state is not GroupState.RETIRED]
        states = ", ".join(f"{group.group} {condition_of(group)}" for group in used)
        key = run.spec.key
        found = condition_seen(run, groups, time.time(), looked, options.log, is_paused=run.uid in paused)
        started = utc(run.created_at)
        own = (run.partition or "",) if have_partitions else ()
        said = "; ".join(filter(None, (found.next_step, _stale(stale.get(run.run_id, ())))))
        add_row(table, run.uid[:8], _name(run), key.pipeline, *own, found.word, started, states, said)
    return table


def _stale(days: Sequence[DayRead]) -> str:
    more = f", and from {len(days) - 1:,} more such days" if len(days) > 1 else ""
    return f"computed from {days[0]}{more}" if days else ""


def _name(run: Run) -> str:
    """The name of a run, with its generation if there is, or will be, another one."""
    key = run.spec.key
    several = key.generation > 1 or run.state is RunState.SUPERSEDED
    return f"{key.dag_run_id} (generation {key.generation})" if several else key.dag_run_id


def whole(report: Report) -> RenderableType:
    """Everything, to be shown once."""
    parts = [
        _warnings(report),
        _heading(report),
        _groups(report),
        *replica_tables(report.replicated),
        _connections(connections_seen(report.snapshot)),
        _ports(ports_seen(report.run, report.snapshot.ports)),
        _pending(pending_seen(report.snapshot)),
        _drivers(report.drivers),
        _recoveries(report.recoveries),
        _code_changes(report.code_changes),
        _quarantine(report),
    ]
    return spaced(part for part in parts if part is not None)


def page(report: Report) -> RenderableType:
    """Everything that changes, for a page that is repainted."""
    parts = [
        _warnings(report),
        _heading(report),
        _groups(report),
        *replica_tables(report.replicated, requests=MAX_WATCHED_REQUESTS),
        _connections(connections_seen(report.snapshot)),
        _pending(pending_seen(report.snapshot)),
        _recoveries(report.recoveries[-MAX_WATCHED_RECOVERIES:]),
        _quarantine(report),
    ]
    errors_ = [Text(str(line), style=line.style, no_wrap=True, overflow="ellipsis") for line in errors(report)]
    return spaced([*(part for part in parts if part is not None), *([Group(*errors_)] if errors_ else [])])


def last_line(report: Report) -> str:
    """How a watched run has ended."""
    used = [view for view in report.snapshot.groups if view.status.state is not GroupState.RETIRED]
    states = ", ".join(f"{view.name} {view.status.state.value}" for view in used)
    next_step = report.condition.next_step
    return f"{report.condition.word}: {states or 'no groups'}{next_step and '; ' + next_step}"


def errors(report: Report) -> Iterator[Text]:
    """Calls that take long, last errors of groups: in full if the group is not running, else only the first line."""
    for group, call in report.long_calls:
        yield Text(f"{group}: {call}", style="yellow")
    for error in report.last_errors:
        if error.is_present:
            yield Text(f"{error.group}: {error.text}", style="red")
            yield Text(f"  driver log: {error.log_path or 'none'}")
        else:
            yield Text(f"{error.group}, incarnation {error.incarnation} (earlier): {first_line(error.text)}", "dim")


def clock_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def _warnings(report: Report) -> RenderableType | None:
    """What a person should know before anything else."""
    lines = [Text(f"warning: {one}", style="bold red") for one in report.warnings]
    return Group(*lines) if lines else None


def _heading(report: Report) -> Text:
    run, key = report.run, report.run.spec.key
    partition = "" if run.partition is None else f", for {run.partition}"
    return Text(
        f"run {_name(run)} of {key.pipeline} (dag {key.dag_id}){partition}, uid {run.uid}\n"
        f"{report.condition.word}, started {utc(run.created_at)} UTC{_supervision(report)}{_next_step(report)}"
    )


def _next_step(report: Report) -> str:
    step = report.condition.next_step
    return step and f"\nnext: {step}"


def _supervision(report: Report) -> str:
    looked = report.supervisor
    if looked is None or report.has_ended or report.unsupervised is not None:
        return ""
    return f"\nsupervised by {looked.name}, last seen {looked.age_seconds:.0f} s ago"


def _groups(report: Report) -> Table:
    """Groups; a replicated group as a whole, with those of its replicas that are in use."""
    has_standbys = any(standby_of(view.status) for view in report.snapshot.rows)
    standby = ("standby",) if has_standbys else ()
    columns = ("group", "state", "incarnation", "recoveries", "pid", "heartbeat", "commits", "MB", *standby, "done", "")
    table = new_table(*columns)
    whole_of = {name: one for one in report.replicated for name in one.shape.replicas}
    for view in report.snapshot.rows:
        status = view.status
        if view.name in whole_of and status.state is GroupState.RETIRED:
            continue
        add_row(
            table,
            f"  {status.group}" if view.name in whole_of else status.group,
            Text(_state(status), style=display.style(status)),
            f"{status.incarnation}",
            f"{status.recoveries}",
            "" if status.identity is None else f"{status.identity.pid or status.identity.parent_pid}",
            "" if status.beat_at is None else clock_time(status.beat_at),
            f"{status.commits:,}",
            f"{status.rss_bytes / 2**20:,.0f}" if status.rss_bytes else "",
            *((standby_of(status),) if has_standbys else ()),
            display.amount(view),
            display.lag(view),
        )
    return table


def _state(status: GroupStatus) -> str:
    """The state, with the desired one if that differs and is still to come."""
    if status.desired is not GroupState.RUNNING and status.state not in ENDED and status.state is not status.desired:
        return f"{condition_of(status)} (to be {status.desired.value})"
    return condition_of(status)


def _connections(views: Sequence[ConnectionView]) -> Table | None:
    """Connections. Inside a group, events are passed on in one step: only those where events wait are shown."""
    shown = [one for one in views if not one.inside_group or one.undone]
    if not shown:
        return None
    table = new_table("connection", "sent", "acknowledged", "lag", "undone", "records behind", "records/s")
    for one in shown:
        add_row(
            table,
            f"{one.sender} → {one.receiver}",
            f"{one.sent.events:,}",
            f"{one.acknowledged.events:,}",
            f"{one.lag.events:,}",
            f"{one.undone:,}",
            f"{one.lag.records:,}",
            f"{one.rate:,.0f}" if one.rate else "",
        )
    return table


def _ports(rows: Sequence[PortProgress]) -> Table | None:
    table = new_table("port", "", "events", "records", "MB", "last (UTC)")
    for row in rows:
        size = f"{row.bytes / 2**20:,.1f}" if row.bytes else ""
        add_row(table, str(row.port), row.direction, f"{row.events:,}", f"{row.records:,}", size, utc(row.last_at))
    return table if rows else None


def _pending(writes: Mapping[Port, int]) -> Table | None:
    """Write actions that are logged, but not applied at the external system."""
    table = new_table("writer's connection", "pending write actions")
    for port, count in sorted(writes.items()):
        add_row(table, str(port), f"{count:,}")
    return table if writes else None


def _drivers(drivers: Sequence[DriverRecord]) -> Table | None:
    table = new_table("driver", "claimed (UTC)", "registered", "first commit", "why launched", "why ended")
    for driver in drivers:
        add_row(
            table,
            f"{driver.group}/{driver.incarnation}",
            utc(driver.claimed_at),
            _after(driver.registered_at, driver),
            _after(driver.first_commit_at, driver),
            first_line(driver.reason),
            first_line(driver.error or ""),
        )
    return table if drivers else None


def _recoveries(found: Sequence[Recovery]) -> Table | None:
    table = new_table("recovery", "detected (UTC)", "fenced", "launched", "running", "first commit", "in all", "cause")
    for one in found:
        took = one.seconds_of_steps
        steps = [f"+{took[step]:.1f} s" if step in took else "" for step, _ in one.steps[1:]]
        whole_ = "" if one.seconds is None else f"{one.seconds:.1f} s"
        add_row(
            table,
            f"{one.group}/{one.incarnation}",
            utc(one.detected_at),
            *steps,
            whole_,
            first_line(one.cause),
        )
    return table if found else None


def _code_changes(changes: Sequence[CodeChange]) -> RenderableType | None:
    if not changes:
        return None
    table = new_table("code", "group", "taken (UTC)", "by", "digest")
    for one in changes:
        add_row(table, str(one.number), one.group, utc(one.taken_at), one.taken_by, one.digest[:8])
    return table


def _quarantine(report: Report) -> RenderableType | None:
    if not report.quarantined:
        return None
    lines = [Text(written(f"retry them with: `logio retry {report.run.uid[:8]}` (with changed code: --code new)"))]
    if any("\n" in one.error for one in report.quarantined):
        lines.append(Text("whole errors, with the author's frames: --json"))
    return Group(_quarantined(report.quarantined), *lines)


def _quarantined(aside: Sequence[QuarantinedInputSet]) -> Table:
    table = new_table("quarantined", "Input Set", "since (UTC)", "error")
    for one in aside[:MAX_QUARANTINED]:
        add_row(table, base_operator(one.operator), one.inset_id, utc(one.since), one.error.partition("\n")[0])
    if len(aside) > MAX_QUARANTINED:
        add_row(table, "", f"... and {len(aside) - MAX_QUARANTINED:,} more (all with --json)", "", "")
    return table


def _after(at: float | None, driver: DriverRecord) -> str:
    return "" if at is None else f"+{at - driver.claimed_at:.1f} s"


# --- replicas, and requests to scale ----------------------------------------------------------------------------------


def replica_tables(replicated: Sequence[Replicas], requests: int = MAX_REQUESTS) -> Iterator[Table]:
    """Replicas and their load; the latest requests of each group, the newest first."""
    if replicated:
        yield _replicas(replicated)
    asked = [request for one in replicated for request in one.requests[:requests]]
    if asked:
        yield _requests(sorted(asked, key=lambda request: -request.request_id))


def _replicas(replicated: Sequence[Replicas]) -> Table:
    table = new_table(
        "replica", "state", "slots", "busy", "idle", "blocked", "records/s in", "records/s out", "queue", "oldest"
    )
    for one in replicated:
        done = f", {one.done} done" if one.done else ""
        add_row(table, one.group, f"{len(one.in_use)} of {len(one.shape.replicas)} in use", f"{len(one.slots)}{done}")
        for status in one.shown:
            name = Text(f"  {status.group}", style=display.style(status))
            slots = ranges(one.owned_by(status.group))
            load = status.load if status.state is GroupState.RUNNING else None
            add_row(table, name, condition_of(status), slots, *_load(load))
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
    table = new_table("scaling", "asked (UTC)", "replicas", "state", "by", "why", "what became of it")
    for one in requests:
        state = Text(one.state.value, style="bold" if one.state in OPEN_SCALING else "")
        add_row(
            table,
            f"{one.group} #{one.request_id}",
            utc(one.requested_at),
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


# --- cells ------------------------------------------------------------------------------------------------------------


def new_table(*columns: str) -> Table:
    """A table with these headings and without rules."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column)
    return made


def add_row(into: Table, *texts: str | Text) -> None:
    """Add a row. Cells are text, not markup, because names and errors may contain brackets."""
    into.add_row(*(Text(text) if isinstance(text, str) else text for text in texts))


def spaced(parts: Iterable[RenderableType]) -> Group:
    """Parts with an empty line between them."""
    lines: list[RenderableType] = []
    for part in parts:
        lines += [Text(), part] if lines else [part]
    return Group(*lines)


def first_line(text: str) -> str:
    """The first line of what the log says, cut if it is long."""
    line = written(text).partition("\n")[0]
    return line if len(line) <= MAX_CAUSE else line[: MAX_CAUSE - 3] + "..."


def utc(at: float) -> str:
    """A time of the log, in seconds since the epoch."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
