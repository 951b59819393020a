"""The REST server with which a standalone master takes drivers: where it is, and what it is asked and answers.

Of several masters one is alive, and the others refuse each request by a sentence.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from time import monotonic
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

import msgspec

from airflow_logio.errors import ConfigurationError, ManagerUnavailable, SubmissionUnknown
from airflow_logio.launch.managers.cluster_manager import REQUEST_SECONDS

REST_PROPERTY = "spark.logio.standalone.rest"
"""Where the REST server is, if not at port 6066 of the master: ``http://host:6066``, several separated by commas."""
PAGE_PROPERTY = "spark.logio.standalone.page"
"""Where the master's page is, if not at port 8080 of the (first) master: ``http://host:8080``."""
SCHEME = "spark://"
REST_PORT = 6066
PAGE_PORT = 8080
_PATH = "/v1/submissions"
_NOT_ALIVE = "Current state is not alive"
"""What a master that stands by, or recovers, says to each request."""
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)
_MOST_BYTES = 1_000_000
_MASTER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/@,]+):(?P<port>\d{1,5})")
"""One master of an address."""


@dataclass(frozen=True, slots=True)
class StandaloneAddress:
    """Where the REST servers of the masters are, and the page of the master. As text ``server,server#page``."""

    servers: tuple[str, ...]
    page: str

    @classmethod
    def of_settings(cls, master: str, conf: Mapping[str, str]) -> StandaloneAddress:
        """From the master ``spark://host:7077,host:7077``, and two properties. Raises `ConfigurationError`."""
        found = [_MASTER.fullmatch(one.strip()) for one in master.removeprefix(SCHEME).split(",")]
        masters = [one for one in found if one is not None]
        if not master.startswith(SCHEME) or len(masters) != len(found):
            raise ConfigurationError(
                f"master {master!r} is no standalone master: give spark://HOST:7077, or several as "
                "spark://HOST:7077,HOST:7077"
            )
        if any(int(one["port"]) == REST_PORT for one in masters):
            raise ConfigurationError(
                f"master {master} has the port of the REST server ({REST_PORT}), and executors register at the master's own: "
                f"give spark://HOST:7077. The REST server is then asked at http://HOST:{REST_PORT}, or where {REST_PROPERTY} "
                "says"
            )
        named = conf.get(REST_PROPERTY)
        said = [f"http://{one['host']}:{REST_PORT}" for one in masters] if named is None else named.split(",")
        page = conf.get(PAGE_PROPERTY) or f"http://{masters[0]['host']}:{PAGE_PORT}"
        return cls(tuple(_checked(one, REST_PROPERTY) for one in said), _checked(page, PAGE_PROPERTY))

    @classmethod
    def parse(cls, text: str) -> StandaloneAddress:
        """What `str` has made."""
        servers, _, page = text.partition("#")
        return cls(tuple(servers.split(",")), page)

    def __str__(self) -> str:
        return f"{','.join(self.servers)}#{self.page}"


def _checked(url: str, name: str) -> str:
    """A URL without a slash at its end."""
    url = url.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is none
        is_good = False
    if not is_good or parts.query or parts.fragment or "@" in parts.netloc:
        shown = url if "@" not in url else "with a user or a password in it"
        raise ConfigurationError(
            f"{name}: {shown} is not an address such as http://HOST:{REST_PORT}, without credentials"
        )
    return url


class Answer(msgspec.Struct, rename="camel", frozen=True):
    """What the server says; which of it depends on what it was asked."""

    action: str = ""
    message: str = ""
    success: bool = False
    submission_id: str = ""
    driver_state: str | None = None
    worker_host_port: str | None = None
    status: int = 200
    """That of HTTP."""


@dataclass(frozen=True, slots=True)
class SubmissionServer:
    """The servers of masters. For use by several threads: each request has a connection of its own."""

    urls: Sequence[str]
    token: str | None = field(default=None, repr=False)

    def check(self) -> None:
        """Whether a master is alive and lets this process in. Raises `ManagerUnavailable`, or `ConfigurationError` if it does
        not let this process in."""
        refused: list[str] = []
        try:
            self._ask("GET", "status/none", None, refused)
        except ManagerUnavailable:
            if refused:
                raise ConfigurationError("; ".join(refused)) from None
            raise

    def status(self, driver: str, until: float | None = None) -> Answer:
        """What the master that is alive says of a driver; `until` is by the monotonic clock. Raises `ManagerUnavailable`."""
        return self._ask("GET", f"status/{quote(driver, safe='')}", until)

    def kill(self, driver: str) -> Answer:
        """Ask the master for the end of a driver. Raises `ManagerUnavailable`."""
        return self._ask("POST", f"kill/{quote(driver, safe='')}", None)

    def create(self, body: Mapping[str, Any], seconds: float) -> str:
        """Submit a driver once, to the master that is alive, and return its id.

        Raises `ConfigurationError` where it was refused for good, and `SubmissionUnknown` if there may be a driver, or none
        for now because no master could be asked.
        """
        content = msgspec.json.encode(body)
        why: list[str] = []
        for url, connection in self._connections(monotonic() + REQUEST_SECONDS, why):
            with closing(connection):
                answer = self._create(connection, url, content, seconds)
            if _NOT_ALIVE not in answer.message:
                return answer.submission_id
            why.append(f"{url}: {answer.message}")
        raise SubmissionUnknown(self._unavailable(why))

    def _create(self, connection: HTTPConnection, url: str, content: bytes, seconds: float) -> Answer:
        assert connection.sock is not None
        connection.sock.settimeout(seconds)
        try:
            answer = self._talk(
                connection, "POST", f"{urlsplit(url).path}{_PATH}/create", content, monotonic() + seconds
            )
        except (OSError, HTTPException, ValueError, msgspec.MsgspecError) as error:
            raise SubmissionUnknown(
                f"a driver was submitted to the standalone master at {url}, and its answer was lost: {_said(error)}"
            ) from error
        if answer.status in _REFUSED:
            raise ConfigurationError(_not_let_in(url, answer.status))
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise SubmissionUnknown(
                f"the standalone master at {url} answered a submission with {answer.status}: {_line(answer.message)}"
            )
        is_good = answer.status == HTTPStatus.OK and answer.success and answer.submission_id
        if not is_good and _NOT_ALIVE not in answer.message:
            raise ConfigurationError(
                f"{url} refused a driver ({answer.status}): {_line(answer.message) or 'it says no reason'}. Is it the REST "
                f"server of a standalone master (spark.master.rest.enabled)? If it is elsewhere, set {REST_PROPERTY}"
            )
        return answer

    def _ask(self, method: str, path: str, until: float | None, refused: list[str] | None = None) -> Answer:
        """`refused` gets the sentences of those that did not let this process in."""
        until = monotonic() + REQUEST_SECONDS if until is None else until
        why: list[str] = []
        for url, connection in self._connections(until, why):
            with closing(connection):
                try:
                    answer = self._talk(connection, method, f"{urlsplit(url).path}{_PATH}/{path}", b"", until)
                except (OSError, HTTPException, ValueError, msgspec.MsgspecError) as error:
                    why.append(f"{url}: {_said(error)}")
                    continue
            if answer.status in _REFUSED:
                why.append(_not_let_in(url, answer.status))
                if refused is not None:
                    refused.append(why[-1])
            elif answer.status != HTTPStatus.OK or _NOT_ALIVE in answer.message:
                why.append(f"{url} answered {answer.status}: {_line(answer.message)}")
            else:
                return answer
        raise ManagerUnavailable(self._unavailable(why))

    def _connections(self, until: float, why: list[str]) -> Iterator[tuple[str, HTTPConnection]]:
        """Connections to one server after the other, until the caller has its answer. Each has its share of the time."""
        for place, url in enumerate(self.urls):
            seconds = max((until - monotonic()) / (len(self.urls) - place), 0.05)
            connection = _connection(urlsplit(url), seconds)
            try:
                connection.connect()
            except OSError as error:
                why.append(f"{url}: {_said(error)}")
                connection.close()
                continue
            yield url, connection

    def _talk(self, connection: HTTPConnection, method: str, path: str, content: bytes, until: float) -> Answer:
        headers = {"Content-Type": "application/json;charset=UTF-8"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        connection.request(method, path, content, headers)
        response = connection.getresponse()
        parts: list[bytes] = []
        while (part := response.read1(65_536)) and sum(map(len, parts)) < _MOST_BYTES:
            parts.append(part)
            if monotonic() > until:
                raise TimeoutError("its answer takes too long")
        try:
            answer = msgspec.json.decode(b"".join(parts), type=Answer)
        except (ValueError, msgspec.MsgspecError):
            if response.status == HTTPStatus.OK:
                raise
            answer = Answer(message=response.reason)  # of a proxy, or of a filter
        return msgspec.structs.replace(answer, status=response.status)

    def _unavailable(self, why: Sequence[str]) -> str:
        return (
            f"no standalone master answers as the one that is alive: {'; '.join(why)}. Drivers on a cluster are submitted to "
            "its REST server, which is off by default: start the master with spark.master.rest.enabled=true (it has no "
            f"authentication of its own). {REST_PROPERTY} says where it is, if not at port {REST_PORT} of the master"
        )


def _connection(parts: SplitResult, seconds: float) -> HTTPConnection:
    assert parts.hostname is not None
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return kind(parts.hostname, parts.port, timeout=seconds)


def _not_let_in(url: str, status: int) -> str:
    return (
        f"{url} lets this process not in ({status}): a filter of the REST server, or its proxy, asks for a token. Set "
        "LOGIO_SPARK_REST_TOKEN for what launches and watches drivers"
    )


def _said(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "its host name is not known here"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, (msgspec.MsgspecError, ValueError)):
        return "what answers is no REST server of Spark"
    return str(error) or type(error).__name__


def _line(message: str) -> str:
    """The first line of a message, which may have a Java stack below."""
    return " ".join(message.split("\n\t", 1)[0].split())[:500]
