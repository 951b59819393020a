"""Readers of the page with names, each of one DAG or of all: an authorization that tests can see through."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Request

from airflow_logio.ui.page_access import Access


@dataclass(frozen=True)
class Reader:
    dag_ids: frozenset[str]
    output: bool = True


class Readers(Access):
    """Header ``x-reader`` names who asks."""

    def __init__(self, **readers: Reader) -> None:
        self._readers = readers

    async def user(self, request: Request) -> Any:
        reader = self._readers.get(request.headers.get("x-reader", ""))
        if reader is None:
            raise HTTPException(401, "who are you?")
        return reader

    def may_read(self, user: Any, dag_id: str) -> bool:
        return dag_id in user.dag_ids

    def may_read_output(self, user: Any, dag_id: str) -> bool:
        return user.output and dag_id in user.dag_ids

    def readable(self, user: Any) -> Collection[str] | None:
        dag_ids: frozenset[str] = user.dag_ids
        return dag_ids
