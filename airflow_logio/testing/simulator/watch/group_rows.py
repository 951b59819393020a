"""Invariants of groups: their fences, the wish to drain, the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_logio.protocol.replicas import replicated_group, slot_of
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Status
from airflow_logio.store.records.driver_records import FenceRow
from airflow_logio.testing.memory_log.tables import ABSENT, GroupKey, GroupRow, Tables
from airflow_logio.testing.simulator.plan import GroupPlan
from airflow_logio.testing.simulator.violation import Violation


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
