"""`logio run` waits in its terminal for the input of a run: before there is a run in the log, and before any driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.pipeline.days import PartitionKey
from airflow_logio.errors import LogioError
from airflow_logio.launch.input_arrival import InputLook, Waiting, in_words, may_begin, waits
from airflow_logio.launch.start_run import given_to
from airflow_logio.store.port import LogStore

LOOK_SECONDS = 2.0
NEXT_STEP = "When it is there, the same command begins the run; or give the source a longer wait"


@dataclass(slots=True)
class InputWait:
    """The wait of one run, which begins with its first look."""

    pipeline: Pipeline
    params: Mapping[str, Any]
    ids: Mapping[str, str]
    urls: Mapping[str, str]
    partition: PartitionKey | None
    since: datetime | None = None
    """When the first look was."""

    def look(self, store: LogStore, dag_id: str, name: str | None) -> Waiting | None:
        """What is not there; None if all of it is, and for a run of that name that resumes.

        Raises `ConfigurationError` for what is not there in time, or never will be.
        """
        try:
            waiting = self.look_alone()
        except LogioError:
            if resumes(store, self.pipeline.name, dag_id, name):
                return None
            raise
        return None if waiting is None or resumes(store, self.pipeline.name, dag_id, name) else waiting

    def look_alone(self) -> Waiting | None:
        """As `look`, of a run that begins. Asks no log."""
        if not waits(self.pipeline):
            return None
        self.since = self.since or datetime.now(UTC)
        own, checked = given_to(self.pipeline, self.params, self.ids, self.partition, None)
        found = InputLook(own, checked, self.urls.__getitem__)
        waiting = found.waiting(self.since, datetime.now(UTC), NEXT_STEP)
        if waiting is None:
            found.check_rows()
        return waiting

    def until_there(self, store: LogStore, dag_id: str, name: str | None, say: Callable[[str], None]) -> None:
        """Return when all of it is there. Raises as `look`."""
        said = None
        while (waiting := self.look(store, dag_id, name)) is not None:
            if waiting.what != said:
                say(f"The run {waiting}")
                said = waiting.what
            time.sleep(max(0.0, min(LOOK_SECONDS, waiting.until.timestamp() - time.time())))
        if said is not None and self.since is not None:
            say(f"The input is there, after {in_words((datetime.now(UTC) - self.since).total_seconds())}")


def resumes(store: LogStore, pipeline: str, dag_id: str, name: str | None) -> bool:
    """Whether the log has a run of that name which has not finished."""
    if name is None:
        return False
    found = store.list_runs(pipeline=pipeline, dag_ids=[dag_id], dag_run_id=name, limit=1)
    return not may_begin(found[0] if found else None)
