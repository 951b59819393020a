"""Where people see a group's Spark application: its UI while the driver lives, a history server after that."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_logio.protocol.states import ALIVE
from airflow_logio.store.records.driver_records import SparkApplication
from airflow_logio.store.records.status_records import GroupStatus


class SparkUi:
    """The address for one group, with all its replicas. `history_url`: address of a Spark history server, empty for none."""

    def __init__(self, history_url: str) -> None:
        self._history_url = history_url.rstrip("/")
        self._said: set[tuple[str, int]] = set()

    def address(self, statuses: Sequence[GroupStatus]) -> str:
        """Address for the present incarnation; empty if there is none that a browser could open.

        A replicated group has an application for each replica: the first living one stands for them. A UI ends with its
        driver, so a dead driver's own address is never given.
        """
        seen = [(status, one) for status in statuses if (one := application_of(status)) is not None]
        living = [one.ui_url for status, one in seen if status.state in ALIVE and one.ui_url]
        kept = [f"{self._history_url}/history/{one.id}/" for _, one in seen if self._history_url and one.keeps_events]
        return next(iter([*living, *kept]), "")

    def news(self, statuses: Sequence[GroupStatus]) -> list[str]:
        """A sentence for each application that no earlier call has named."""
        said = []
        for status in statuses:
            application, key = application_of(status), (status.group, status.incarnation)
            if application is not None and status.state in ALIVE and key not in self._said:
                self._said.add(key)
                where = f", UI {application.ui_url}" if application.ui_url else ""
                said.append(
                    f"Group {status.group}, incarnation {status.incarnation}: Spark application {application.id}{where}"
                )
        return said


def application_of(status: GroupStatus) -> SparkApplication | None:
    return None if status.load is None else status.load.application
