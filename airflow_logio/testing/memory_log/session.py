"""One incarnation's access to the log in memory (`GroupSession`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from airflow_logio.errors import EpochVoid, Fenced, LogInconsistent
from airflow_logio.protocol.commit import CommitAttempt
from airflow_logio.protocol.effects import Effects
from airflow_logio.protocol.recovery import LoggedEvent, Recovered
from airflow_logio.protocol.states import STOPPED, GroupState, allowed_from
from airflow_logio.protocol.values import Event, Port, Status
from airflow_logio.protocol.writes import PendingWrite, WriterKey, divided
from airflow_logio.store.port.session_port import Fetched, GroupSession, Short
from airflow_logio.store.records.driver_records import FenceRow, GroupRef
from airflow_logio.store.records.run_records import Upstream
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.store.rules.row_forms import STATE_CHANNEL, WRITES, decode_header
from airflow_logio.store.rules.run_rules import stopped
from airflow_logio.store.rules.session_rules import fitting, is_all, share
from airflow_logio.testing.memory_log import slots
from airflow_logio.testing.memory_log.apply import apply_effects
from airflow_logio.testing.memory_log.tables import GroupKey, LogRow, Tables


class MemoryGroupSession(GroupSession):
    def __init__(self, tables: Tables, ref: GroupRef) -> None:
        self.ref = ref
        self._tables = tables
        self._key = GroupKey(ref.run_id, ref.group)
        self._fence = FenceRow(ref.incarnation, 0, 0)
        self._seen = 0

    # --- fence --------------------------------------------------------------------------------------------------------

    def _current(self) -> FenceRow:
        fence = self._tables.fences.get(self._key)
        if fence is None:
            raise Fenced(f"group {self.ref.group!r} of run {self.ref.run_id} is not in the log any more")
        if fence.incarnation != self.ref.incarnation:
            raise Fenced(
                f"the driver of group {self.ref.group!r}, incarnation {self.ref.incarnation}, was replaced by "
                f"incarnation {fence.incarnation}; it has committed nothing since, and exits"
            )
        return fence

    def open(self, *, raise_epoch: bool = False) -> FenceRow:
        with self._tables.transaction():
            fence = self._current()
            if (state := self._tables.groups[self._key].state) in STOPPED:
                raise Fenced(stopped(self.ref, state.value))
            if raise_epoch:
                fence = replace(fence, epoch=fence.epoch + 1)
                self._tables.put(self._tables.fences, self._key, fence)
        self._fence = fence
        return fence

    def slots(self) -> Mapping[int, int]:
        with self._tables.transaction():
            return slots.owned(self._tables, self.ref)

    def commit(self, effects: Effects) -> tuple[Collected, ...]:
        number = self._fence.commit_no + 1
        with self._tables.transaction():
            fence = self._current()
            self._check_epoch(fence)
            if fence.commit_no != number - 1:
                raise LogInconsistent(
                    f"group {self.ref.group!r}: commit {number} was refused, the log is at commit {fence.commit_no}"
                )
            fence = FenceRow(fence.incarnation, fence.epoch, number)
            self._tables.put(self._tables.fences, self._key, fence)
            collected = apply_effects(self._tables, self.ref, effects)
            self._note_first_commit()
        self._fence = fence
        return collected

    def resolve(self, attempt: CommitAttempt) -> bool:
        with self._tables.transaction():
            fence = self._current()
        committed = attempt.was_committed(fence.epoch, fence.commit_no)
        if committed:
            self._fence = fence
        return committed

    def _note_first_commit(self) -> None:
        key = (self._key, self.ref.incarnation)
        driver = self._tables.drivers[key]
        if driver.first_commit_at is None:
            self._tables.put(self._tables.drivers, key, replace(driver, first_commit_at=self._tables.now()))

    def check(self) -> None:
        with self._tables.transaction():
            self._check_epoch(self._current())

    def check_patiently(self, still_wanted: Callable[[], bool]) -> None:
        self.check()

    def _check_epoch(self, fence: FenceRow) -> None:
        if fence.epoch != self._fence.epoch:
            raise EpochVoid(f"group {self.ref.group!r}: epoch {self._fence.epoch} is void, the log is at {fence.epoch}")

    # --- its end ------------------------------------------------------------------------------------------------------

    def why_short(self, upstream: Upstream) -> Short:
        with self._tables.transaction():
            self._check_epoch(self._current())
            found = Counter(operator for run, operator, _ in self._tables.quarantine if run == self.ref.run_id)
            groups = [(name, GroupKey(self.ref.run_id, name)) for name in upstream.source_groups]
            return Short(
                {name: found[name] for name in upstream.operators if name in found},
                tuple(name for name, key in groups if self._tables.groups[key].drained_at is not None),
            )

    def park(self, error: str) -> None:
        with self._tables.transaction():
            self._current()
            self._park(error)

    def park_short(self, cause: str) -> None:
        with self._tables.transaction():
            self._check_epoch(self._current())
            self._park(cause)

    def _park(self, error: str) -> None:
        row, clock = self._tables.groups[self._key], self._tables.now()
        if row.state in allowed_from(GroupState.PARKED):
            parked = replace(row, state=GroupState.PARKED, since=clock, error=error)
            self._tables.put(self._tables.groups, self._key, parked)
        key = (self._key, self.ref.incarnation)
        driver = self._tables.drivers[key]
        self._tables.put(self._tables.drivers, key, replace(driver, ended_at=clock, error=error))

    # --- delivery -----------------------------------------------------------------------------------------------------

    def fetch_all(self, cursors: Mapping[Port, int], *, max_events: int, max_bytes: int) -> Fetched:
        with self._tables.transaction():
            waiting = {port: self._first(port, after, max_events) for port, after in cursors.items()}
            sizes = {port: [(row.body.event_id, row.size) for row in rows] for port, rows in waiting.items()}
            last = share(sizes, max_bytes)
            found = {
                port: [self._logged(row, port) for row in waiting[port] if row.body.event_id <= end]
                for port, end in last.items()
            }
            return Fetched(found, is_all(sizes, last, max_events))

    def _first(self, receiver: Port, after: int, many: int) -> Sequence[LogRow]:
        rows = self._tables.events.on_their_way(self.ref.run_id, receiver)
        return [rows[event_id] for event_id in sorted(event_id for event_id in rows if event_id > after)[:many]]

    def _logged(self, row: LogRow, receiver: Port) -> LoggedEvent:
        sender = Port(row.body.operator, row.send_port or "")
        stored = self._tables.bodies[row.body]
        header = decode_header(f"event {row.body.event_id} of {sender}", stored.header, stored.body, stored.ref)
        event = Event(
            sender,
            row.body.event_id,
            header.kind,
            header.records,
            None,
            stored.body,
            header.about,
            stored.ref,
            header.made_of,
        )
        return LoggedEvent(receiver, event, row.inset_id)

    def input_sets(
        self, operator: str, insets: Sequence[str], max_bytes: int, *, still_wanted: Callable[[], bool] = lambda: True
    ) -> Mapping[str, Sequence[LoggedEvent]]:
        with self._tables.transaction():
            rows: dict[str, list[LogRow]] = {inset_id: [] for inset_id in insets}
            for row in self._tables.events.rows.values():
                of_run = row.receiver == operator and row.body.run_id == self.ref.run_id
                if of_run and row.inset_id in rows and row.send_port is not None and row.rec_port is not None:
                    rows[row.inset_id].append(row)
            sizes = {
                inset_id: sum(len(self._tables.bodies[row.body].body) for row in of_set)
                for inset_id, of_set in rows.items()
                if of_set
            }
            return {
                inset_id: [
                    self._logged(row, Port(operator, str(row.rec_port)))
                    for row in sorted(rows[inset_id], key=lambda row: (row.rec_port, row.body.event_id))
                ]
                for inset_id in fitting(operator, insets, sizes, max_bytes)
            }

    def acknowledged(self, receivers: Sequence[Port]) -> Mapping[Port, tuple[int, int]]:
        with self._tables.transaction():
            counters = self._tables.counters
            found = {port: counters.get((self.ref.run_id, port, "in")) for port in receivers}
            return {port: (row.events, row.bytes) for port, row in found.items() if row is not None}

    # --- recovery -----------------------------------------------------------------------------------------------------

    def recover(self, operators: Sequence[str], held: Collection[WriterKey] = ()) -> Recovered:
        with self._tables.transaction():
            run, names = self.ref.run_id, set(operators)
            undone = self._undone()
            holding = {operator for operator, _ in held}
            found = {writer: divided(self._pending_writes(self._of(writer, undone))) for writer in held}
            return Recovered(
                states={
                    operator: data
                    for (run_id, operator, state_id), data in self._tables.states.items()
                    if run_id == run and operator in names and state_id == 0
                },
                snapshots=self._snapshots([row for row in undone if row.body.operator in names]),
                acknowledged=self._acknowledged_events([row for row in undone if row.receiver in names]),
                writes=(
                    *self._pending_writes([row for row in undone if row.body.operator in names - holding]),
                    *chain.from_iterable(around for around, _ in found.values()),
                ),
                held={writer: group for writer, (_, group) in found.items() if group is not None},
            )

    def held_writes(self, writer: WriterKey, after: int, last: int, *, max_bytes: int) -> Sequence[PendingWrite]:
        with self._tables.transaction():
            self._check_epoch(self._current())
            rows = [row for row in self._of(writer, self._undone()) if after < row.body.event_id <= last]
            page: list[PendingWrite] = []
            for write in self._pending_writes(rows):
                total = sum(len(one.body) for one in page) + len(write.body)
                if write.number != after + 1 + len(page) or (page and total > max_bytes):
                    break
                page.append(write)
            if not page:
                raise LogInconsistent(
                    f"write action {after + 1} of {writer[0]!r} on {writer[1]!r} is not in the log any more"
                )
            return page

    def _undone(self) -> list[LogRow]:
        rows = self._tables.events.rows.values()
        return [row for row in rows if row.body.run_id == self.ref.run_id and row.status is Status.UNDONE]

    def _of(self, writer: WriterKey, rows: Sequence[LogRow]) -> list[LogRow]:
        return [row for row in rows if (row.body.operator, row.rec_port) == writer]

    def _snapshots(self, undone: Sequence[LogRow]) -> tuple[tuple[str, str, bytes], ...]:
        rows = sorted((row for row in undone if row.body.channel == STATE_CHANNEL), key=lambda row: row.body.event_id)
        states = self._tables.states
        return tuple(
            (row.body.operator, row.inset_id or "", states[row.body.run_id, row.body.operator, row.body.event_id])
            for row in rows
            if row.send_port is None
        )

    def _acknowledged_events(self, undone: Sequence[LogRow]) -> tuple[LoggedEvent, ...]:
        rows = [row for row in undone if row.inset_id is not None and row.send_port is not None]
        rows.sort(key=lambda row: (row.receiver, row.rec_port or "", row.body.event_id, row.inset_id or ""))
        return tuple(self._logged(row, Port(row.receiver, row.rec_port)) for row in rows if row.rec_port is not None)

    def _pending_writes(self, undone: Sequence[LogRow]) -> tuple[PendingWrite, ...]:
        rows = [row for row in undone if row.send_port is None and row.body.channel.startswith(WRITES)]
        rows.sort(key=lambda row: (row.body.operator, row.rec_port or "", row.body.event_id))
        writes = []
        for row in rows:
            operator, connection, number = row.body.operator, row.rec_port or "", row.body.event_id
            about, body, ref, *_ = self._tables.bodies[row.body]
            header = decode_header(f"write action {number} of {operator} on {connection}", about, body, ref)
            writes.append(PendingWrite(operator, connection, number, header.about, header.records, body, ref))
        return tuple(writes)

    # --- waking -------------------------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> None:
        """Every commit wakes every waiting session: that is cheap here."""
        changed = self._tables.changed
        with changed:
            changed.wait_for(lambda: self._tables.commits != self._seen, timeout)
            self._seen = self._tables.commits

    def will_hear(self) -> bool:
        """A wait begins with the number of commits that the last one has seen."""
        return True

    def announce(self, groups: Sequence[str]) -> None:
        """There is nothing to send: the commit has notified already."""

    def close(self) -> None:
        """There is nothing to close."""
