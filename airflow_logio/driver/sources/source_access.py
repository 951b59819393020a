"""The external system of one source: which of the author's methods is called for what, each named while it lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from airflow_logio.dataflow.operators import SourceBatch, SourceOperator
from airflow_logio.dataflow.sources import ConnectedSource, RangeSource
from airflow_logio.dataflow.sources.ranges import END, START
from airflow_logio.errors import FailurePoint, OperatorFailed, SourceChanged
from airflow_logio.systems.connections import Connections

T = TypeVar("T")


class SourceAccess:
    """`point` says what the source was doing: a call that does not return is reported with it.

    Every method raises what the author's method does, and `ConfigurationError` if the run was started without a connection
    that the source asks for.
    """

    def __init__(
        self, name: str, operator: SourceOperator, params: Mapping[str, Any], connections: Connections
    ) -> None:
        self.name = name
        self.operator = operator
        self.params = params
        self.connections = connections
        self._connected: RangeSource | None = None
        self._connecting = threading.Lock()

    def batches(
        self, action: Mapping[str, Any], offset: int, point: Callable[[], FailurePoint]
    ) -> Iterator[SourceBatch]:
        """The batches of a read action, from the record after `offset` on. Each is a call of its own."""
        with self.connections.calls.call("read", point()):
            batches = iter(self._read(action, offset))
        while True:
            with self.connections.calls.call("read", point()):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _read(self, action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        operator = self.operator
        if isinstance(operator, ConnectedSource):
            connection = self.connections.source(operator.connection)
            return operator.read_from(connection, self.params, action, offset)
        return operator.read(self.params, action, offset)

    def next_action(self, previous: Mapping[str, Any], point: FailurePoint) -> Mapping[str, Any] | None:
        with self.connections.calls.call("next_action", point):
            asked = self._ranges() if isinstance(self.operator, RangeSource) else self.operator
            return asked.next_action(self.params, previous)

    def forget(self, end: Any, point: FailurePoint) -> None:
        with self.connections.calls.call("forget", point):
            self._ranges().forget(self.params, end)

    def unchanged(
        self, action: Mapping[str, Any], made: Callable[[], T], where: Callable[[], str], point: FailurePoint
    ) -> T:
        """What is made of a range that did not change while Spark read it. Raises `SourceChanged`."""
        before = self._observed(action, point)
        try:
            found = made()
        except OperatorFailed as error:  # Spark says of a file that has gone only that it is not there
            _check_unchanged(action, before, self._observed(action, point), where, error)
            raise
        _check_unchanged(action, before, self._observed(action, point), where)
        return found

    def _observed(self, action: Mapping[str, Any], point: FailurePoint) -> Any:
        with self.connections.calls.call("observed", point):
            return self._ranges().observed(self.params, action[START], action[END])

    def _ranges(self) -> RangeSource:
        """The source as it is asked, with its connections."""
        assert isinstance(self.operator, RangeSource)
        with self._connecting:
            if self._connected is None:
                self._connected = self.operator.connected(self.connections.source)
            return self._connected


def _check_unchanged(
    action: Mapping[str, Any],
    before: object,
    after: object,
    where: Callable[[], str],
    error: OperatorFailed | None = None,
) -> None:
    """Raises `SourceChanged` if the range is not what it was, as the cause of an `error`."""
    if after != before:
        raise SourceChanged(
            f"{where()}: the range from {action[START]} to {action[END]} was changed while it was read: it was "
            f"{before}, and is {after}. Nothing of it was used: put it back as it was, or start a fresh run"
        ) from error
