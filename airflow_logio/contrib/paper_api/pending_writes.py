"""Write actions that are logged but not done: in order per connection, one at a time (Algorithms 5 and 8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from airflow_logio.dataflow.write_actions import WriteAction
from airflow_logio.errors import ApiMisuse
from airflow_logio.protocol.writes import check_gapless


class WriteActions:
    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._undone: dict[str, deque[WriteAction]] = {}

    def logged(self, action: WriteAction) -> None:
        queue = self._undone.setdefault(action.connection, deque())
        check_gapless([*queue, action][-2:])
        queue.append(action)

    def undone(self) -> Sequence[WriteAction]:
        return [action for queue in self._undone.values() for action in queue]

    def check_due(self, connection: str | None, number: int, already: int = 0) -> WriteAction:
        """The undone action of that number, if `already` others before it and no more are undone.

        Raises `ApiMisuse`: an action beyond others must neither be executed nor be marked done before them.
        """
        queue = self._undone.get(str(connection), deque())
        named = f"write action {number} of operator {self._operator!r} on connection {connection!r}"
        if not queue or not queue[0].number <= number <= queue[-1].number:
            raise ApiMisuse(f"{named} is not among the undone ones: it was never committed, or is done")
        due = queue[min(already, len(queue) - 1)]
        if due.number != number:
            raise ApiMisuse(
                f"{named} is not due, {due.number} is: write actions of a connection run in order, each once"
            )
        return due

    def done(self, action: WriteAction) -> None:
        queue = self._undone[action.connection]
        assert queue[0] is action
        queue.popleft()
