"""Readers of the page with names, each of one DAG or of all: an authorization that tests can see through."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import HTTPException, Request

from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run, RunKey
from airflow_logio.ui.access import Access
from airflow_logio.ui.actions import Retrying


@dataclass(frozen=True)
class Reader:
    dag_ids: frozenset[str]
    output: bool = True
    data: bool = True
    change: bool = False
    name: str = "reader"


class Readers(Access):
    """Header ``x-reader`` names who asks."""

    def __init__(self, **readers: Reader) -> None:
        self._readers = readers
        self.noted: list[tuple[str, str, Mapping[str, Any]]] = []
        """Who asked for which action, and what else was asked."""

    async def user(self, request: Request) -> Any:
        reader = self._readers.get(request.headers.get("x-reader", ""))
        if reader is None:
            raise HTTPException(401, "who are you?")
        return reader

    def may_read(self, user: Any, dag_id: str) -> bool:
        return dag_id in user.dag_ids

    def may_read_output(self, user: Any, dag_id: str) -> bool:
        return user.output and dag_id in user.dag_ids

    def may_read_data(self, user: Any, dag_id: str) -> bool:
        return user.data and dag_id in user.dag_ids

    def may_change(self, user: Any, dag_id: str) -> bool:
        return user.change and dag_id in user.dag_ids

    def name_of(self, user: Any) -> str:
        name: str = user.name
        return name

    def note(self, user: Any, run: RunKey, action: str, asked: Mapping[str, Any]) -> None:
        self.noted.append((user.name, action, asked))

    def readable(self, user: Any) -> Collection[str] | None:
        dag_ids: frozenset[str] = user.dag_ids
        return dag_ids


@dataclass
class Retries:
    """Retries that were asked for."""

    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def retry(self, _store: LogStore, run: Run, group: str | None) -> str:
        self.asked.append((run.uid, group))
        return "it is launched again"

    def retrying(self) -> Retrying:
        return Retrying(self.retry, "It will be launched again.")
