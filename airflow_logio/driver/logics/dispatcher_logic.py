"""The adapter of a Dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from airflow_logio.dataflow.operators import InputSet
from airflow_logio.dataflow.replication import Dispatcher, Routes
from airflow_logio.driver.logics.stateful_logic import StatefulLogic
from airflow_logio.protocol.logic import Emit, Output
from airflow_logio.protocol.replicas import PLACE, PROGRESS
from airflow_logio.systems.connections import Connections

RoutesOf = Callable[[str], Routes]
"""Dispatcher → what it knows of the replicas behind it."""


def no_routes(dispatcher: str) -> Routes:
    """The routes of a group that has no Dispatcher: none."""
    raise LookupError(f"operator {dispatcher!r} is no Dispatcher of this group")


class DispatcherLogic(StatefulLogic):
    """A Dispatcher, which looks at the replicas behind it when it sends an event (Section 7.1)."""

    def __init__(
        self, pipeline: str, name: str, operator: Dispatcher, connections: Connections, routes_of: RoutesOf
    ) -> None:
        super().__init__(pipeline, name, operator, connections)
        self._routes_of = routes_of

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        try:
            sent = list(self._operator.dispatch(InputSet(inset_id, held), state, self._routes_of(self._name)))
        except Exception as error:
            self._fail_in(error, inset_id)
        for one in sent:
            about: dict[str, Any] = {PROGRESS: one.progress} if one.progress else {}
            if one.place is not None:
                about[PLACE] = [one.place, True]
            yield Emit(one.port, one.table, one.table.num_rows, about=about)
