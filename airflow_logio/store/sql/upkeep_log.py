"""Outside any driver: quarantined Input Sets are put back, garbage is collected, ended runs are removed in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import ProtocolViolation, UnknownRun
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import Reopening, reopen
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import CONCLUDED, WAITING, GroupState, RunState
from airflow_logio.protocol.values import Kind, Port, Status
from airflow_logio.store.port.lineage_port import StoredBody
from airflow_logio.store.port.run_port import UpkeepLog
from airflow_logio.store.records.run_records import Run, senders_of
from airflow_logio.store.records.upkeep_records import (
    BY_PERSON,
    Collected,
    QuarantineCount,
    QuarantinedInputSet,
    Retried,
)
from airflow_logio.store.rules.row_forms import check_unchanged, encode_header, seal, unseal
from airflow_logio.store.rules.run_rules import GroupStates, check_removable, is_removable, shared_ports, superseded
from airflow_logio.store.sql import removed_runs, retention, schema, slots
from airflow_logio.store.sql.apply import add_to_counters
from airflow_logio.store.sql.bulk import among
from airflow_logio.store.sql.engines import now, reading, writing
from airflow_logio.store.sql.retention import of_channel, there_is_no
from airflow_logio.store.sql.run_log import group_states
from airflow_logio.store.sql.runs import SqlPart, described_run, described_runs, known, stored_run

ROWS = (
    schema.event_log,
    schema.event_data,
    schema.event_lineage,
    schema.state,
    schema.read_action,
    schema.port_counter,
    schema.quarantine,
    schema.slot,
    schema.scaling,
    schema.code_change,
    schema.code,
    schema.day_read,
    schema.driver,
)
"""Tables with rows of a run, the large ones first. The run's groups go before them, and its own row last."""


class SqlUpkeepLog(SqlPart, UpkeepLog):
    """Quarantine, garbage, and the removal of ended runs."""

    def quarantined(
        self, run_id: int, group: str | None = None, *, limit: int | None = None
    ) -> Sequence[QuarantinedInputSet]:
        with reading(self.engine) as connection:
            return quarantined(connection, run_id, group, limit)

    def retry_quarantined(self, run_id: int, group: str | None = None) -> Retried:
        with writing(self.engine) as connection:
            return retry(connection, self._run(connection, run_id), group)

    def replace_body(
        self, run_id: int, sender: Port, event_id: int, before: StoredBody, header: bytes, body: bytes
    ) -> None:
        with writing(self.engine) as connection:
            replace_body(connection, self._run(connection, run_id), sender, event_id, before, header, body)

    def collect(self, run_id: int, limit: int) -> Collected:
        with writing(self.engine) as connection:
            return collect(connection, run_id, limit)

    def garbage(self, run_id: int) -> int:
        with reading(self.engine) as connection:
            return garbage(connection, run_id)

    def removable(self, older_than_seconds: float, *, unfinished: bool = False) -> Sequence[Run]:
        with reading(self.engine) as connection:
            return removable(connection, older_than_seconds, unfinished=unfinished)

    def remove_run(
        self, run_id: int, limit: int, *, unfinished: bool = False, keep_row: bool = False, reason: str = BY_PERSON
    ) -> Collected:
        with writing(self.engine) as connection:
            removed = remove(connection, run_id, limit, unfinished=unfinished, keep_row=keep_row, reason=reason)
        with writing(self.beats) as connection:
            remove_beats(connection, run_id)
        self._runs.drop(run_id)
        return removed

    def references(self, run_id: int, prefix: str) -> Collection[str]:
        table = schema.event_data
        named = sa.select(table.c.ref).where(table.c.run_id == run_id, table.c.ref.startswith(prefix, autoescape=True))
        with reading(self.engine) as connection:
            return frozenset(connection.execute(named).scalars())


# --- quarantine -------------------------------------------------------------------------------------------------------


def quarantined(
    connection: Connection, run_id: int, group: str | None = None, limit: int | None = None
) -> Sequence[QuarantinedInputSet]:
    """Quarantined Input Sets, the oldest first."""
    table = schema.quarantine
    query = sa.select(table).where(table.c.run_id == run_id).order_by(table.c.since, table.c.op, table.c.inset_id)
    query = query.limit(limit)
    if group is not None:
        query = query.where(table.c.group_name == replicated_group(group))
    return [
        QuarantinedInputSet(row.group_name, row.op, row.inset_id, row.error, row.since)
        for row in connection.execute(query)
    ]


def quarantine_counts(connection: Connection, run_ids: Collection[int]) -> dict[int, dict[str, QuarantineCount]]:
    """Run id → group → its quarantined Input Sets in numbers, where there are any."""
    columns = schema.quarantine.c
    query = sa.select(columns.run_id, columns.group_name, sa.func.count(), sa.func.max(columns.since))
    found: dict[int, dict[str, QuarantineCount]] = {}
    rows = connection.execute(query.where(columns.run_id.in_(run_ids)).group_by(columns.run_id, columns.group_name))
    for run_id, group, count, latest in rows:
        found.setdefault(run_id, {})[group] = QuarantineCount(count, latest)
    return found


def retry(connection: Connection, run: Run, group: str | None) -> Retried:
    """Put Input Sets back among the triggered ones, and reopen what has ended behind them, under raised epochs.

    All fences of the run are locked first, in key order: no driver can commit in between, and none can keep using what
    it has in memory. Groups that had finished are left halted, ready for a launch.
    """
    _lock(connection, run, "retried")
    fences = schema.fence
    found = quarantined(connection, run.run_id, group)
    if not found:
        return Retried((), ())
    by_operator: dict[str, list[str]] = {}
    for one in found:
        by_operator.setdefault(one.operator, []).append(one.inset_id)
    reopened = reopen(_states(connection, run), senders_of(run.spec), by_operator)
    _put_back(connection, run.run_id, by_operator)
    _store(connection, run.run_id, reopened)
    groups = {run.spec.operators[operator].group for operator in reopened.concerned}
    owners = slots.reopen(connection, run.run_id, run.spec.slots_of(reopened.concerned))
    touched = sorted(groups - set(run.spec.replicated) | owners)
    connection.execute(
        sa.update(fences)
        .where(fences.c.run_id == run.run_id, fences.c.group_name.in_(touched))
        .values(epoch=fences.c.epoch + 1)
    )
    return Retried(tuple(found), tuple(_reopen_groups(connection, run.run_id, touched)))


def _lock(connection: Connection, run: Run, what: str) -> None:
    """All fences of the run, in key order, then the run. Raises `UnknownRun`, `ProtocolViolation` if it cannot be `what`."""
    runs, fences = schema.run, schema.fence
    locked = sa.select(fences.c.group_name).where(fences.c.run_id == run.run_id)
    connection.execute(locked.order_by(fences.c.group_name).with_for_update()).all()
    state = connection.execute(
        sa.select(runs.c.state).where(runs.c.run_id == run.run_id).with_for_update()
    ).scalar_one_or_none()
    if state in (None, RunState.REMOVING.value):
        raise UnknownRun(f"run {run.spec.key} is being removed from the log; it cannot be {what}")
    if state == RunState.SUPERSEDED.value:
        raise ProtocolViolation(superseded(run))


def _states(connection: Connection, run: Run) -> dict[str, bytes]:
    table = schema.state
    query = sa.select(table.c.op, table.c.sealed).where(table.c.run_id == run.run_id, table.c.state_id == 0)
    stored = {row.op: unseal(row.op, bytes(row.sealed)) for row in connection.execute(query)}
    return {operator: stored[operator] for operator in run.spec.operators if operator in stored}


def _put_back(connection: Connection, run_id: int, by_operator: dict[str, list[str]]) -> None:
    rows, table = schema.event_log, schema.quarantine
    for operator, insets in by_operator.items():
        put_back = connection.execute(
            sa.update(rows)
            .where(
                rows.c.run_id == run_id,
                rows.c.rec_op == operator,
                rows.c.status == Status.ASIDE.value,
                among(connection, rows.c.inset_id, insets),
            )
            .values(status=Status.UNDONE.value)
            .returning(rows.c.rec_port)
        )
        # State events have no port, and are not counted.
        found = Counter(port for port in put_back.scalars() if port is not None)
        reopened = {(Port(operator, port), schema.OPEN): (count, 0, 0) for port, count in found.items()}
        add_to_counters(connection, run_id, reopened)
        connection.execute(
            sa.delete(table).where(
                table.c.run_id == run_id, table.c.op == operator, among(connection, table.c.inset_id, insets)
            )
        )


def _store(connection: Connection, run_id: int, reopened: Reopening) -> None:
    states, data = schema.state, schema.event_data
    for operator, state in reopened.states.items():
        where = (states.c.run_id == run_id, states.c.op == operator, states.c.state_id == 0)
        connection.execute(sa.update(states).where(*where).values(sealed=seal(state)))
    for port, event_id in reopened.ends:
        connection.execute(
            sa.update(data)
            .where(
                data.c.run_id == run_id,
                data.c.send_op == port.operator,
                data.c.channel == port.name,
                data.c.event_id == event_id,
            )
            .values(header=encode_header(Kind.RESUMED, 0, b""))
        )


def _reopen_groups(connection: Connection, run_id: int, touched: Sequence[str]) -> list[str]:
    """Reopening is the only way out of `finished`. A group that has a driver, or is to be recovered, resumes by
    itself."""
    groups, runs = schema.group, schema.run
    clock = now(connection.dialect.name)
    finished = (
        sa.update(groups)
        .where(
            groups.c.run_id == run_id,
            groups.c.group_name.in_(touched),
            groups.c.state.in_([state.value for state in CONCLUDED]),  # one that retired may have finished slots
        )
        .values(state=GroupState.HALTED.value, since=clock)
    )
    connection.execute(finished)
    connection.execute(
        sa.update(runs).where(runs.c.run_id == run_id).values(state=RunState.RUNNING.value, ended_at=None)
    )
    waiting = sa.select(groups.c.group_name).where(
        groups.c.run_id == run_id,
        groups.c.group_name.in_(touched),
        groups.c.state.in_([state.value for state in WAITING]),
    )
    return list(connection.execute(waiting.order_by(groups.c.group_name)).scalars())


# --- bodies -----------------------------------------------------------------------------------------------------------


def replace_body(
    connection: Connection, run: Run, sender: Port, event_id: int, before: StoredBody, header: bytes, body: bytes
) -> None:
    """As `UpkeepLog.replace_body`: no driver commits in between, and none can keep using what it has in memory."""
    _lock(connection, run, "mended")
    data, fences = schema.event_data, schema.fence
    row = (
        data.c.run_id == run.run_id,
        data.c.send_op == sender.operator,
        data.c.channel == sender.name,
        data.c.event_id == event_id,
    )
    found = connection.execute(sa.select(data.c.header, data.c.body, data.c.ref).where(*row)).one_or_none()
    check_unchanged(
        f"event {event_id} of {sender}",
        None if found is None else StoredBody(bytes(found.header), bytes(found.body or b""), found.ref),
        before,
    )
    connection.execute(sa.update(data).where(*row).values(header=header, body=body, ref=None))
    connection.execute(sa.update(fences).where(fences.c.run_id == run.run_id).values(epoch=fences.c.epoch + 1))


# --- garbage ----------------------------------------------------------------------------------------------------------


def collect(connection: Connection, run_id: int, limit: int) -> Collected:
    """Collect one batch of what the finished groups of a run have left."""
    run = stored_run(connection, run_id)
    operators = _operators_of_finished_groups(connection, run)
    done = Collected()
    if operators:
        done = retention.collect(connection, run_id, fx.Collect(operators, limit))
    if done.more:
        return done
    refs, rows, more = list(done.refs), done.rows, False
    for port in shared_ports(run.spec):
        orphans = _orphans(connection, run_id, port, limit)
        dropped, found = retention.drop_bodies(connection, run_id, port, orphans, kept=False)
        rows, more = rows + len(dropped), more or len(orphans) == limit
        refs += found
    return Collected(rows, rows, more, refs=tuple(refs))


def garbage(connection: Connection, run_id: int) -> int:
    """Rows of EVENT_LOG that `collect` would remove."""
    table, operators = schema.event_log, _operators_of_finished_groups(connection, stored_run(connection, run_id))
    query = sa.select(sa.func.count()).select_from(table)
    where = (table.c.run_id == run_id, table.c.rec_op.in_(operators), sa.text(schema.GARBAGE))
    return connection.execute(query.where(*where)).scalar_one()


def _operators_of_finished_groups(connection: Connection, run: Run) -> tuple[str, ...]:
    table = schema.group
    unfinished = set(
        connection.execute(
            sa.select(table.c.group_name).where(
                table.c.run_id == run.run_id, table.c.state != GroupState.FINISHED.value
            )
        ).scalars()
    )
    return run.spec.operators_that_ended(unfinished, slots.done(connection, run.run_id))


def _orphans(connection: Connection, run_id: int, port: Port, limit: int) -> Sequence[int]:
    data, rows = schema.event_data, schema.event_log
    not_needed = there_is_no(*of_channel(rows, run_id, port), rows.c.event_id == data.c.event_id)
    query = (
        sa.select(data.c.event_id)
        .where(*of_channel(data, run_id, port), sa.text(f"NOT {schema.KEPT}"), not_needed)
        .order_by(data.c.event_id)
        .limit(limit)
    )
    return connection.execute(query).scalars().all()


# --- whole runs -------------------------------------------------------------------------------------------------------


def removable(connection: Connection, older_than_seconds: float, *, unfinished: bool) -> Sequence[Run]:
    """Runs that ended at least that long ago, the oldest first, and runs whose removal was interrupted."""
    runs, groups = schema.run, schema.group
    clock = connection.execute(sa.select(now(connection.dialect.name))).scalar_one()
    states: dict[int, dict[str, tuple[GroupState, float]]] = {}
    for row in connection.execute(sa.select(groups.c.run_id, groups.c.group_name, groups.c.state, groups.c.since)):
        state = known(GroupState, row.state, f"the state of group {row.group_name!r}")
        states.setdefault(row.run_id, {})[row.group_name] = (state, row.since)
    open_slots = slots.open_slots(connection)
    found = []
    for run in described_runs(connection, sa.select(runs).order_by(runs.c.run_id)):
        groups_of_run = states.get(run.run_id, {})
        ended_at = run.ended_at or max((since for _, since in groups_of_run.values()), default=run.created_at)
        left = GroupStates({name: state for name, (state, _) in groups_of_run.items()}, open_slots.get(run.run_id, {}))
        ended = is_removable(run, left, unfinished=unfinished)
        if run.state is RunState.REMOVING or (ended and clock - ended_at >= older_than_seconds):
            found.append(run)
    return found


def remove(
    connection: Connection,
    run_id: int,
    limit: int,
    *,
    unfinished: bool,
    keep_row: bool = False,
    reason: str = BY_PERSON,
) -> Collected:
    """Remove one batch of a run, its own row last, or not at all. Raises `ProtocolViolation` if it has not ended.

    The first batch removes its groups and its key: a run that is half removed cannot be claimed, retried or resumed. What
    stays of it is known from then on.
    """
    run = described_run(connection, run_id)
    if run.state is not RunState.REMOVING:
        return _begin_removal(connection, run, reason, unfinished=unfinished)
    for table in ROWS:
        refs, rows = _remove_rows(connection, table, run_id, limit)
        if rows:
            return Collected(rows, rows, more=True, refs=refs)
    if keep_row:
        return Collected()
    _forget_starts(connection, run)  # once more: one may have come since the removal began
    runs = schema.run
    delete = sa.delete(runs).where(runs.c.run_id == run_id)
    if connection.dialect.name == "sqlite":
        # The greatest id would be given to the next run, and a driver of this one may still be alive.
        newest = sa.select(sa.func.max(runs.alias().c.run_id)).scalar_subquery()
        delete = delete.where(runs.c.run_id < newest)
    return Collected(connection.execute(delete).rowcount)


def _begin_removal(connection: Connection, run: Run, reason: str, *, unfinished: bool) -> Collected:
    fences, groups, table = schema.fence, schema.group, schema.run
    locked = sa.select(fences).where(fences.c.run_id == run.run_id).order_by(fences.c.group_name)
    connection.execute(locked.with_for_update()).all()
    run = described_run(connection, run.run_id)  # a person may have given it up meanwhile, or let the next one do more
    check_removable(run, group_states(connection, run), unfinished=unfinished)
    removed_runs.keep(connection, run, reason)
    rows = sum(
        connection.execute(sa.delete(one).where(one.c.run_id == run.run_id)).rowcount for one in (groups, fences)
    )
    leaving = {"state": RunState.REMOVING.value, "dag_run_id": run.uid, "told": None}
    connection.execute(sa.update(table).where(table.c.run_id == run.run_id).values(**leaving))
    _forget_starts(connection, run)
    return Collected(rows, rows, more=True)


def _forget_starts(connection: Connection, run: Run) -> None:
    """What attempts to start the run have decided goes with its key: another attempt must not be led to it."""
    connection.execute(sa.delete(schema.start).where(schema.start.c.run_uid == run.uid))


def _remove_rows(connection: Connection, table: sa.Table, run_id: int, limit: int) -> tuple[tuple[str, ...], int]:
    keys = list(table.primary_key.columns)
    chosen = sa.select(*keys).where(table.c.run_id == run_id).limit(limit)
    key = keys[0] if len(keys) == 1 else sa.tuple_(*keys)
    delete = sa.delete(table).where(key.in_(chosen))
    if table is not schema.event_data:
        return (), connection.execute(delete).rowcount
    refs = connection.execute(delete.returning(table.c.ref)).scalars().all()
    return tuple(ref for ref in refs if ref is not None), len(refs)


def remove_beats(connection: Connection, run_id: int) -> None:
    """Remove heartbeats, output and addresses of a run whose removal has begun: on SQLite they are in another file."""
    for table in (schema.heartbeat, schema.load, schema.waiting, schema.output, schema.address):
        connection.execute(sa.delete(table).where(table.c.run_id == run_id))
