"""Who may see what on the page: Airflow decides it by DAG, `logio ui` by the token of the person that started it."""

from __future__ import annotations

import hmac
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from fastapi import HTTPException, Request

from airflow_logio.launch.processes import this_person
from airflow_logio.store.records.run_records import RunKey

log = logging.getLogger(__name__)


class Access(ABC):
    """Authentication and authorization of one web application."""

    @abstractmethod
    async def user(self, request: Request) -> Any:
        """Who asks, as the other methods take it. Raises `HTTPException` 401 for everyone else."""

    @abstractmethod
    def may_read(self, user: Any, dag_id: str) -> bool:
        """Whether this user may see the runs of a DAG."""

    @abstractmethod
    def may_read_output(self, user: Any, dag_id: str) -> bool:
        """Whether this user may see what the drivers of a DAG's runs have printed."""

    @abstractmethod
    def may_read_data(self, user: Any, dag_id: str) -> bool:
        """Whether this user may see the records that a DAG's runs have processed."""

    @abstractmethod
    def may_change(self, user: Any, dag_id: str) -> bool:
        """Whether this user may stop, scale or retry the runs of a DAG, or give them up."""

    def may_retry(self, user: Any, dag_id: str) -> bool:
        """Whether this user may have groups of a DAG's runs launched again."""
        return self.may_change(user, dag_id)

    @abstractmethod
    def name_of(self, user: Any) -> str:
        """The user's name, as it is written beside what was done."""

    @abstractmethod
    def note(self, user: Any, run: RunKey, action: str, asked: Mapping[str, Any]) -> None:
        """Write down who asks for what, before it is done. If this raises, it is not done."""

    @abstractmethod
    def readable(self, user: Any) -> Collection[str] | None:
        """The DAGs whose runs this user may see; None for all."""


class TokenAccess(Access):
    """One token opens everything: it belongs to the person who can read the log anyway."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def user(self, request: Request) -> Any:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, self._expected):
            raise HTTPException(401, "open the address that `logio ui` has printed")
        return "owner"

    def may_read(self, user: Any, dag_id: str) -> bool:
        return True

    def may_read_output(self, user: Any, dag_id: str) -> bool:
        return True

    def may_read_data(self, user: Any, dag_id: str) -> bool:
        return True

    def may_change(self, user: Any, dag_id: str) -> bool:
        return True

    def name_of(self, user: Any) -> str:
        return this_person()

    def note(self, user: Any, run: RunKey, action: str, asked: Mapping[str, Any]) -> None:
        log.warning("%s asks on the page: %s run %s, %s", this_person(), action, run, dict(asked))

    def readable(self, user: Any) -> Collection[str] | None:
        return None
