"""Invariants of groups and their drivers: fences, ends, drains, commits, heartbeats, reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.replicas import replicated_group, slot_of
from airflow_logio.protocol.source import READ_CONNECTION
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Status
from airflow_logio.protocol.writes import PendingWrite, WriterKey
from airflow_logio.store.records.driver_records import FenceRow
from airflow_logio.store.rules.row_forms import WRITES, read_channel
from airflow_logio.testing.memory_log.tables import ABSENT, GroupKey, GroupRow, Tables
from airflow_logio.testing.simulator.actions import Incarnation
from airflow_logio.testing.simulator.plan import GroupPlan, Read, UpTo
from airflow_logio.testing.simulator.violation import Violation
from airflow_logio.testing.simulator.watch.event_watch import EventWatch
from airflow_logio.testing.simulator.watch.replica_watch import SlotWatch


class GroupRowWatch:
    """Rows of groups and fences, before and after a transaction."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._plans: Mapping[str, GroupPlan] = {}

    def begin(self, plans: Mapping[str, GroupPlan]) -> None:
        """In `plans`, a replicated group is one."""
        self._plans = plans

    def fences_only_rise(self, key: GroupKey, before: Any, after: FenceRow) -> None:
        if before is ABSENT:
            return
        low = after.incarnation < before.incarnation or after.epoch < before.epoch
        if low or not 0 <= after.commit_no - before.commit_no <= 1:
            raise Violation("fences_only_rise", f"{key.group}: {before} became {after}")

    def a_drain_is_not_taken_back(self, key: GroupKey, before: GroupRow, after: GroupRow) -> None:
        if before.desired is GroupState.DRAINING and after.desired is not GroupState.DRAINING:
            raise Violation(
                "a_drain_is_not_taken_back", f"{key.group} was to drain, and is to be {after.desired.value}"
            )

    def a_finished_group_holds_nothing(self, key: GroupKey) -> None:
        mine = self._run_by(key.group)
        for row in self._tables.events.rows.values():
            if row.receiver in mine and row.status in (Status.UNDONE, Status.HELD):
                raise Violation("a_finished_group_holds_nothing", f"{key.group} has finished with {row}")

    def _run_by(self, group: str) -> set[str]:
        """Operators of a group, or of the slots that a replica owns."""
        if group in self._plans:
            return {spec.name for spec in self._plans[group].operators}
        base = replicated_group(group)
        mine = {slot.number for (_, name, _), slot in self._tables.slots.items() if (name, slot.owner) == (base, group)}
        return {spec.name for spec in self._plans[base].operators if slot_of(spec.name) in mine}


class SourceProgress(NamedTuple):
    """What the log says of a source. 0 if it has begun no read action; with the reference of a stored effect, if any."""

    action_id: int
    offset: int
    stored: str | None

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> SourceProgress:
        return cls(state["action_id"], state["offset"], state["stored"]) if state else NOTHING


NOTHING = SourceProgress(0, 0, None)


class DrainWatch:
    """How far each source has read by its stored state, and which drivers must have heard that it is to drain."""

    def __init__(self) -> None:
        self._progress: dict[str, SourceProgress] = {}
        self._obeys: dict[str, int] = {}
        """Group → its first incarnation that registers after it was asked to drain."""

    def asked_to_drain(self, group: str, incarnation: int) -> None:
        """From this incarnation on, drivers of the group know the wish before they read."""
        self._obeys.setdefault(group, incarnation)

    def read(self, sources: Sequence[str]) -> Read:
        """How far every source was read, by its stored state."""
        found = {name: self._progress.get(name, NOTHING) for name in sources}
        return {name: UpTo(max(at.action_id - 1, 0), at.offset) for name, at in found.items()}

    def what_is_to_drain_reads_no_further(
        self, group: str, incarnation: int, operator: str, state: Mapping[str, Any]
    ) -> None:
        """A driver from before the wish may not have heard of it. Any later one uses what is stored, and nothing else."""
        before, now = self._progress.get(operator, NOTHING), SourceProgress.of(state)
        self._progress[operator] = now
        if incarnation < self._obeys.get(group, incarnation + 1):
            return
        begins = now.action_id != before.action_id
        stores = now.stored is not None and now.stored != before.stored
        if begins or stores or (now.offset != before.offset and before.stored is None):
            raise Violation(
                "what_is_to_drain_reads_no_further",
                f"incarnation {incarnation} of {group} was asked to drain before its first read, and {operator} went from "
                f"{before} to {now}",
            )


class DriverWatch:
    """What drivers report about themselves, compared with events and slots of the log."""

    def __init__(self, events: EventWatch, slots: SlotWatch) -> None:
        self._events = events
        self._slots = slots
        self._tokens: dict[WriterKey, int] = {}

    def before_write(self, key: WriterKey, writes: Sequence[PendingWrite]) -> None:
        """A driver is about to apply these writes."""
        self.a_write_action_is_logged_before_it_is_applied(key, writes)

    def a_write_action_is_logged_before_it_is_applied(self, key: WriterKey, writes: Sequence[PendingWrite]) -> None:
        operator, connection = key
        logged = self._events.last.get((operator, f"{WRITES}{connection}"), 0)
        if writes and writes[-1].number > logged:
            raise Violation(
                "a_write_action_is_logged_before_it_is_applied",
                f"write action {writes[-1].number} of {operator} on {connection} is applied, the log knows {logged}",
            )

    def a_lower_token_writes_nothing(self, key: WriterKey, token: int) -> None:
        """Checked when an external system has accepted a conditional write."""
        highest = self._tokens.get(key, 0)
        if token < highest:
            raise Violation(
                "a_lower_token_writes_nothing", f"{key[1]} accepted token {token} of {key[0]} after token {highest}"
            )
        self._tokens[key] = token

    def after_commit(self, driver: Incarnation, effects: fx.Effects) -> None:
        """A driver has committed."""
        self.a_replaced_driver_commits_nothing(driver)
        if driver.plan.replica_of:
            self._slots.a_retired_replica_commits_nothing(driver)
            self._slots.only_its_owner_commits_for_a_slot(driver, effects)

    def a_replaced_driver_commits_nothing(self, driver: Incarnation) -> None:
        if driver.is_replaced:
            raise Violation(
                "a_replaced_driver_commits_nothing",
                f"{driver.plan.name}, incarnation {driver.number} has committed, and was replaced before",
            )

    def a_replaced_driver_has_no_heartbeat(self, driver: Incarnation) -> None:
        if driver.is_replaced:
            raise Violation(
                "a_replaced_driver_has_no_heartbeat", f"{driver.plan.name}, incarnation {driver.number} was replaced"
            )

    def a_complete_read_action_is_never_read_again(self, operator: str, action_id: int) -> None:
        if self._events.last.get((operator, read_channel(READ_CONNECTION)), 0) >= action_id:
            raise Violation(
                "a_complete_read_action_is_never_read_again",
                f"{operator} reads action {action_id}, whose effect is stored",
            )
