"""What the log of a task says of drivers on clusters: as what they were submitted, and what their manager says meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_logio.launch.managers.known_managers import page_of, where_its_output_is
from airflow_logio.protocol.states import ALIVE
from airflow_logio.status.condition import queued_seconds, waits_for_room, what_its_manager_says
from airflow_logio.store.records.status_records import GroupStatus


def manager_page(statuses: Sequence[GroupStatus]) -> str:
    """Its manager's page about the driver of a group, of the first living one of several replicas; empty if there is none.

    A manager shows for a while what has ended, too.
    """
    living_first = sorted(statuses, key=lambda one: one.state not in ALIVE)
    return next(filter(None, (page_of(one.submissions) for one in living_first if one.submissions)), "")


class ClusterNews:
    """For one group, with all its replicas. Each sentence is said once, however many looks find it."""

    def __init__(self, launch_seconds: float) -> None:
        """`launch_seconds`: of a driver that waits for room for so long, it is said again each time that this has passed."""
        self._launch_seconds = launch_seconds
        self._submitted: set[tuple[str, int]] = set()
        """Group and incarnation of which it was said where the driver is."""
        self._said: dict[str, tuple[int, str]] = {}
        """Group → incarnation, and what its manager has said of it last."""
        self._waited: dict[str, tuple[int, int]] = {}
        """Group → incarnation, and how many times `launch_seconds` had passed when that was said last."""

    def news(self, statuses: Sequence[GroupStatus]) -> list[str]:
        """What no earlier call has said."""
        told: list[str] = []
        for status in statuses:
            if status.state in ALIVE and status.submissions:
                told += self._of(status)
        return told

    def _of(self, status: GroupStatus) -> list[str]:
        told, who = [], f"Group {status.group}, incarnation {status.incarnation}"
        driver, key = status.submissions, (status.group, status.incarnation)
        if key not in self._submitted and any(one.id for one in driver):
            self._submitted.add(key)
            told.append(f"{who}: submitted to {where_its_output_is(driver)}")
        words = what_its_manager_says(status)
        if words is not None and self._said.get(status.group) != (status.incarnation, words):
            self._said[status.group] = status.incarnation, words
            told.append(f"{who}: {words}")
        if (waits := self._waits(status)) is not None:
            told.append(f"{who}: {waits}")
        return told

    def _waits(self, status: GroupStatus) -> str | None:
        seconds = queued_seconds(status)
        times = 0 if seconds is None else int(seconds // self._launch_seconds)
        if not times or (status.incarnation, times) <= self._waited.get(status.group, (0, 0)):
            return None
        self._waited[status.group] = status.incarnation, times
        return waits_for_room(status)
