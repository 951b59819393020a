"""A plain client of the API, for the tests' kubelet and the tests themselves."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.support.kubernetes.problems import Object, Problem

MERGE = "application/merge-patch+json"
STEPS = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
SECONDS = 30.0
Query = Mapping[str, object]


class Api:
    """Of the server at `url`, each thread with a connection of its own. A refusal is a `Problem`, an outage an `OSError`."""

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._own = threading.local()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        query: Query | None = None,
    ) -> Any:
        """The answer, as JSON. A request whose answer is lost is not repeated; a GET on a connection that was cut is."""
        headers = {**self._headers, "Content-Type": content_type}
        reused = getattr(self._own, "connection", None) is not None
        try:
            connection = self._connection()
            connection.request(method, _with(path, query), None if body is None else json.dumps(body), headers)
            with connection.getresponse() as answer:
                content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if reused and method == "GET":
                return self.ask(method, path, body, content_type, query)
            raise error if isinstance(error, OSError) else ConnectionError(str(error)) from error
        if answer.status >= 400:
            raise _problem(answer.status, content)
        try:
            return json.loads(content)
        except ValueError:
            return content.decode()

    def get(self, path: str, query: Query | None = None) -> Any:
        return self.ask("GET", path, query=query)

    def create(self, path: str, one: Object) -> Any:
        return self.ask("POST", path, one)

    def merge(self, path: str, patch: Object) -> Any:
        return self.ask("PATCH", path, patch, MERGE)

    def apply(self, path: str, one: Object, manager: str = "tests", force: bool = True) -> Any:
        return self.ask("PATCH", path, one, APPLY, {"fieldManager": manager, "force": str(force).lower()})

    def delete(self, path: str, options: Object | None = None, query: Query | None = None) -> Any:
        return self.ask("DELETE", path, options, query=query)

    @contextmanager
    def watch(self, path: str, query: Query | None = None) -> Iterator[Iterator[Object]]:
        """Events, as they come; their end is that of the watch, by the server or by an outage."""
        connection = http.client.HTTPConnection(*self._address, timeout=SECONDS)
        try:
            connection.request("GET", _with(path, {"watch": "true", **(query or {})}), headers=self._headers)
            answer = connection.getresponse()
            if answer.status >= 400:
                raise _problem(answer.status, answer.read())
            yield _events(answer)
        finally:
            connection.close()

    def close(self) -> None:
        """The connection of this thread."""
        connection = getattr(self._own, "connection", None)
        if connection is not None:
            connection.close()
            self._own.connection = None

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = http.client.HTTPConnection(*self._address, timeout=SECONDS)
        return connection


def _events(answer: http.client.HTTPResponse) -> Iterator[Object]:
    try:
        for line in answer:
            yield json.loads(line)
    except (ConnectionError, http.client.HTTPException):
        return


def _with(path: str, query: Query | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _problem(code: int, content: bytes) -> Problem:
    try:
        status = json.loads(content)
    except ValueError:
        return Problem(code, "", content.decode(errors="replace"))
    return Problem(code, status.get("reason", ""), status.get("message", ""), status.get("details"))
