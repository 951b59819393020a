"""The read actions of a hand-written source: one at a time, each passes through its states (Algorithms 1 and 6)."""

from __future__ import annotations

from airflow_logio.contrib.paper_api.infos import ActionInfo, ReadAction, ReadProgress
from airflow_logio.contrib.paper_api.stored import ReadRecord
from airflow_logio.errors import ApiMisuse

_P = ReadProgress

ALLOWED = {
    _P.INCOMPLETE: (_P.COMPLETE, _P.DONE, _P.ENDED),
    _P.COMPLETE: (_P.DONE,),
    _P.DONE: (_P.ENDED,),
    _P.ENDED: (),
}
"""From an incomplete one to DONE at once: its effect is empty; to ENDED: it is replayable."""


class ReadActions:
    """Reads on record, in the order of their start."""

    def __init__(self, operator: str, records: list[ReadRecord]) -> None:
        self._operator = operator
        self._records = records

    def last(self) -> ReadAction | None:
        if not self._records:
            return None
        record = self._records[-1]
        info = ActionInfo(record.action_id, record.connection, record.description, record.replayable)
        return ReadAction(info, record.progress, record.action_data)

    def find(self, action: ActionInfo) -> ReadRecord:
        """Raises `ApiMisuse` for an action that is not on record."""
        for record in self._records:
            if (record.action_id, record.connection) == (action.action_id, action.connection):
                return record
        raise ApiMisuse(
            f"{action} of operator {self._operator!r} is not on record; initialize_read_action() comes first"
        )

    def moved(self, action: ActionInfo, to: ReadProgress, action_data: str | None = None) -> ReadRecord:
        """The record after the move, for `put`. Raises `ApiMisuse` if the action is in another state."""
        record = self.find(action)
        if to not in ALLOWED[record.progress]:
            raise ApiMisuse(f"{action} of operator {self._operator!r} is {record.progress}: it cannot become {to} now")
        data = record.action_data if action_data is None else action_data
        return ReadRecord(record.action_id, record.connection, record.description, record.replayable, to, data)

    def started(self, action: ActionInfo) -> ReadRecord:
        """A new record, for `put`. Raises `ApiMisuse` while another action is under way, or for a used id."""
        last = self.last()
        if last is not None and last.progress in (_P.INCOMPLETE, _P.COMPLETE):
            raise ApiMisuse(f"{last.info} of operator {self._operator!r} is under way; one read action at a time")
        return ReadRecord(action.action_id, action.connection, dict(action.description), action.replayable)

    def put(self, record: ReadRecord) -> None:
        key = (record.action_id, record.connection)
        for place, known in enumerate(self._records):
            if (known.action_id, known.connection) == key:
                self._records[place] = record
                break
        else:
            self._records.append(record)
        self._records[:-1] = [one for one in self._records[:-1] if one.progress is not _P.ENDED]

    def check_emitting(self) -> None:
        """Raises `ApiMisuse` unless events may be made of the last action (Algorithm 1 Steps 2.c and 3)."""
        last = self.last()
        if last is None:
            raise ApiMisuse(f"source {self._operator!r} logs an event, but has begun no read action")
        ready = _P.INCOMPLETE if last.info.replayable else _P.COMPLETE
        if last.progress is not ready:
            raise ApiMisuse(
                f"source {self._operator!r} logs an event of {last.info}, which is {last.progress}: "
                + (
                    "all its events are logged"
                    if last.progress in (_P.DONE, _P.ENDED)
                    else "store its whole effect first"
                )
            )

    def pending(self) -> list[ReadRecord]:
        return [record for record in self._records if record.progress is not _P.ENDED]
