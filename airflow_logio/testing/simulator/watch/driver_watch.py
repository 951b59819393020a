"""Invariants of what a driver does: commits, heartbeats, reads, writes at external systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.source import READ_CONNECTION
from airflow_logio.protocol.writes import PendingWrite, WriterKey
from airflow_logio.store.rules.channels import WRITES, read_channel
from airflow_logio.testing.simulator.violation import Violation
from airflow_logio.testing.simulator.watch.event_watch import EventWatch
from airflow_logio.testing.simulator.watch.slot_watch import SlotWatch

if TYPE_CHECKING:
    from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver


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

    def after_commit(self, driver: SimulatedDriver, effects: fx.Effects) -> None:
        """A driver has committed."""
        self.a_replaced_driver_commits_nothing(driver)
        if driver.plan.replica_of:
            self._slots.a_retired_replica_commits_nothing(driver)
            self._slots.only_its_owner_commits_for_a_slot(driver, effects)

    def a_replaced_driver_commits_nothing(self, driver: SimulatedDriver) -> None:
        if driver.is_replaced:
            raise Violation(
                "a_replaced_driver_commits_nothing",
                f"{driver.plan.name}, incarnation {driver.number} has committed, and was replaced before",
            )

    def a_replaced_driver_has_no_heartbeat(self, driver: SimulatedDriver) -> None:
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
