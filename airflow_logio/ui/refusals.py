"""What the page answers instead of data, when the log says no."""

from __future__ import annotations

import logging
import time

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from airflow_logio.errors import LogUnavailable, UnknownRun
from airflow_logio.ui.log_source import TooManyAsk
from airflow_logio.ui.page_payloads import RecordsOutOfReach

AGAIN_SECONDS = 60.0
"""After so long the same reason is logged again: each viewer asks every two seconds."""
log = logging.getLogger(__name__)


class Refusals:
    """Reasons name the database's host, role and path. With `says_why` the answer has them, else only the server's log."""

    def __init__(self, *, says_why: bool) -> None:
        self._says_why = says_why
        self._logged: tuple[float, str] | None = None

    async def answer(self, _request: Request, error: Exception) -> Response:
        """For a `LogioError`, before anything else was answered."""
        status, detail = self.said(error)
        return JSONResponse({"detail": detail}, status)

    def said(self, error: Exception) -> tuple[int, str]:
        """404, 500 or 503 for a `LogioError`, and the sentence with it. The payload store has sentences of its own."""
        if isinstance(error, UnknownRun):
            return 404, "there is no such run, or no such group in it"
        if isinstance(error, TooManyAsk):
            return 503, str(error)
        if isinstance(error, RecordsOutOfReach):
            return error.status, self._out_of_reach(error)
        status = 503 if isinstance(error, LogUnavailable) else 500
        if self._says_why:
            return status, f"the log cannot be read: {error}"
        self._log(f"the log: {error}")
        return status, "the log cannot be read; why is in the log of this server"

    def _out_of_reach(self, error: RecordsOutOfReach) -> str:
        if not error.reason:
            return str(error)
        if self._says_why:
            return f"{error} ({error.reason})"
        self._log(f"the payload store: {error.reason}")
        return f"{error}. What is wrong is in the log of this server"

    def _log(self, reason: str) -> None:
        now = time.monotonic()
        if self._logged is None or self._logged[1] != reason or now - self._logged[0] >= AGAIN_SECONDS:
            self._logged = now, reason
            log.error("The page of LOG.io cannot read %s", reason)
