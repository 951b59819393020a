"""What the drivers of a group print, in the log of the task while it is on its worker; its trigger does the same (ADR-98)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from airflow_logio.errors import LogioError
from airflow_logio.launch.driver_log import LATE_SECONDS, LEAST_PARTS, OutputRelay, beginning
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.look import Look

log = logging.getLogger(__name__)


class TaskRelay:
    """Says what an attempt of the task has not said yet: `relayed` by its trigger, or from the first look on."""

    def __init__(
        self,
        store: LogStore,
        run: Run,
        members: Collection[str],
        relayed: Mapping[str, Sequence[int]],
        say: Callable[[str], None],
    ) -> None:
        self._store = store
        self._run = run
        self._members = members
        self._begins_at = relayed
        self._say = say
        self._relay: OutputRelay | None = None
        self._seen_at = 0.0
        """When the last part was written that was seen, by the clock of the log."""

    @property
    def relayed(self) -> Mapping[str, Sequence[int]]:
        return self._begins_at if self._relay is None else self._relay.relayed

    def look(self, look: Look) -> None:
        """Call it after each look at the group."""
        if not look.statuses:
            return
        if self._relay is None:
            begins_at = beginning(look.incarnations, self._begins_at)
            self._relay = OutputRelay(self._members, begins_at, self._say)
        since, run_id = self._seen_at - LATE_SECONDS, self._run.run_id
        try:
            parts = self._store.output.written_since([run_id], since, most=LEAST_PARTS).get(run_id, ())
        except LogioError as error:  # the task has other work, and the trigger or the next look says the same lines
            log.debug("what the drivers of run %s print is not known: %s", self._run.uid, error)
            return
        self._relay.relay(parts)
        self._seen_at = max((part.at for part in parts), default=self._seen_at)
