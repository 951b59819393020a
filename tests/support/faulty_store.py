"""A way to an object store on which requests are refused, delayed, or done while their answer is lost; and on which they are
counted, for each of them costs money.

Clients take it for the store: it passes each request on as it is, over HTTP, and names it as S3 does ("PutObject").
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support.listening import Listener, cut

# --- requests ---------------------------------------------------------------------------------------------------------

_OF_BUCKETS = {
    "GET": {
        "list-type": "ListObjectsV2",
        "lifecycle": "GetBucketLifecycleConfiguration",
        "location": "GetBucketLocation",
        "object-lock": "GetObjectLockConfiguration",
        "uploads": "ListMultipartUploads",
        "versioning": "GetBucketVersioning",
        "versions": "ListObjectVersions",
        "": "ListObjects",
    },
    "HEAD": {"": "HeadBucket"},
    "PUT": {"": "CreateBucket"},
    "POST": {"delete": "DeleteObjects"},
    "DELETE": {"": "DeleteBucket"},
}
_OF_OBJECTS = {
    "GET": {"uploadId": "ListParts", "": "GetObject"},
    "HEAD": {"": "HeadObject"},
    "PUT": {"partNumber": "UploadPart", "": "PutObject"},
    "POST": {"uploads": "CreateMultipartUpload", "uploadId": "CompleteMultipartUpload"},
    "DELETE": {"uploadId": "AbortMultipartUpload", "": "DeleteObject"},
}
"""Method → parameter → what S3 calls the request; "" is the one without any of these parameters."""
_COPIES = {"UploadPart": "UploadPartCopy", "PutObject": "CopyObject"}


@dataclass(frozen=True)
class Request:
    """`headers` have small letters. `bucket` and `key` are empty where a request has none."""

    method: str
    bucket: str
    key: str
    parameters: dict[str, str]
    headers: dict[str, str]

    @property
    def operation(self) -> str:
        """As S3 names it; the method and its parameters where that is not known here."""
        known = (_OF_OBJECTS if self.key else _OF_BUCKETS).get(self.method, {})
        for parameter, name in known.items():
            if parameter in self.parameters or not parameter:
                return _COPIES.get(name, name) if "x-amz-copy-source" in self.headers else name
        return f"{self.method} {'&'.join(self.parameters)}"


def _request(method: str, target: str, headers: dict[str, str]) -> Request:
    parts = urlsplit(target)
    bucket, _, key = unquote(parts.path.lstrip("/")).partition("/")
    return Request(method, bucket, key, dict(parse_qsl(parts.query, keep_blank_values=True)), headers)


# --- what goes wrong --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """An error of S3; the store hears nothing."""

    status: int
    code: str
    body: str = ""
    """What another store says, in JSON."""


@dataclass(frozen=True)
class LostAnswer:
    """The store does what it is asked, and the connection ends before its answer."""


@dataclass(frozen=True)
class Cut:
    """The connection ends, and the store hears nothing."""


@dataclass(frozen=True)
class Wait:
    """The request is passed on when the gate opens."""

    gate: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Torn:
    """The store's answer comes, and the connection ends in the middle of its body."""


@dataclass(frozen=True)
class Delay:
    """The request is passed on after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Ignored:
    """The store does not see this header (small letters). One that checks signatures refuses the request then."""

    header: str


Effect = Answer | LostAnswer | Torn | Cut | Wait | Delay | Ignored

SLOW_DOWN = Answer(503, "SlowDown")
BROKEN = Answer(500, "InternalError")
EXPIRED = Answer(400, "ExpiredToken")
"""Amazon answers so; others say 403."""
EXPIRED_403 = Answer(403, "ExpiredToken")
DENIED = Answer(403, "AccessDenied")
NO_CONDITIONS = Answer(501, "NotImplemented")
"""What some stores say to ``If-None-Match``; others pass over it: ``Ignored("if-none-match")``."""


def named(*operations: str, key: str = "") -> Callable[[Request], bool]:
    """Requests of these operations, of keys that have this part."""
    return lambda request: request.operation in operations and key in request.key


def by_hadoop(request: Request) -> bool:
    """Reads of objects by Hadoop's client, which is Spark's reader; Arrow and fsspec read as well. Since Hadoop 3.5 these are
    requests of Amazon's accelerator, which names itself, and has rules of its own when it asks again."""
    return request.operation == "GetObject" and request.headers.get("user-agent", "").startswith("Hadoop")


def conditional(request: Request) -> bool:
    """A put that is to be refused if the name is there."""
    return request.operation in ("PutObject", "CompleteMultipartUpload") and "if-none-match" in request.headers


@dataclass
class Fault:
    """Meets the requests that are `wanted`, the first `times` of them."""

    wanted: Callable[[Request], bool]
    effect: Effect
    times: float = float("inf")
    met: int = 0


# --- the way ----------------------------------------------------------------------------------------------------------


class FaultyStore:
    """Passes requests on to the object store at a port of this machine. Closed, it has ended with all of its threads."""

    def __init__(self, port: int) -> None:
        self.store_port = port
        """Another one, when it has been started again."""
        self.faults: list[Fault] = []
        """The first one that wants a request decides."""
        self.requests: list[Request] = []
        """In the order of their arrival; those too that were refused, which cost as well."""
        self.unheard = 0
        """Requests that found no store at its port."""
        self._lock = threading.Lock()
        self._listener = Listener(self._serve)
        self.port = self._listener.port
        self.keep = self._listener.keep

    def _serve(self, client: socket.socket) -> None:
        _Exchange(client, ("", 0), self)  # type: ignore[arg-type]

    def fail(self, wanted: Callable[[Request], bool], effect: Effect, times: float = float("inf")) -> Fault:
        """From now on; `heal` ends it."""
        made = Fault(wanted, effect, times)
        with self._lock:
            self.faults.append(made)
        return made

    def heal(self) -> None:
        """Nothing goes wrong any more, and what waits is passed on."""
        with self._lock:
            faults, self.faults = self.faults, []
        for fault in faults:
            if isinstance(fault.effect, Wait):
                fault.effect.gate.set()

    def counted(self) -> Counter[str]:
        """Operation → requests, since the last `forget`."""
        with self._lock:
            return Counter(request.operation for request in self.requests)

    def forget(self) -> None:
        with self._lock:
            self.requests.clear()

    def close(self) -> None:
        self.heal()
        self._listener.close()

    def connected(self) -> socket.socket:
        """To the store. Raises OSError if it does not listen."""
        try:
            return socket.create_connection(("127.0.0.1", self.store_port))
        except OSError:
            with self._lock:
                self.unheard += 1
            raise

    def met(self, request: Request) -> Effect | None:
        """Note a request; what goes wrong with it."""
        with self._lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.met < fault.times and fault.wanted(request):
                    fault.met += 1
                    return fault.effect
        return None


@contextmanager
def faulty_store(port: int) -> Iterator[FaultyStore]:
    made = FaultyStore(port)
    try:
        yield made
    finally:
        made.close()


class _Exchange(BaseHTTPRequestHandler):
    """The requests of one connection, one after the other."""

    protocol_version = "HTTP/1.1"
    server: FaultyStore  # type: ignore[assignment]

    def log_message(self, format: str, *args: Any) -> None:
        """It is counted."""

    def do_GET(self) -> None:
        body = self._body()
        request = _request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        effect = self.server.met(request)
        match effect:
            case Answer():
                return self._refuse(request, effect)
            case Cut():
                raise ConnectionError
            case Wait(gate):
                gate.wait()
            case Delay(seconds):
                threading.Event().wait(seconds)
        answer = self._passed_on(body, effect.header if isinstance(effect, Ignored) else "")
        if isinstance(effect, LostAnswer):
            raise ConnectionError
        if isinstance(effect, Torn):
            status, headers, found = answer
            self._answer(status, headers, found[: len(found) // 2])  # the store has said how long it is
            raise ConnectionError
        self._answer(*answer)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return found

    def _passed_on(self, body: bytes, ignored: str) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.store_port)
        upstream.sock = self.server.keep(self.server.connected())
        ours = {"connection", "content-length", "expect", "transfer-encoding", ignored}
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ours:
                    upstream.putheader(name, value)
            upstream.putheader("Content-Length", str(len(body)))
            upstream.putheader("Connection", "close")
            upstream.endheaders(body)
            found = upstream.getresponse()
            return found.status, found.getheaders(), found.read()
        except http.client.HTTPException as error:
            raise ConnectionError from error
        finally:
            upstream.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        has_length = False
        for name, value in headers:
            if name.lower() == "content-length":
                has_length = True
            if name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        if not has_length and status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, request: Request, what: Answer) -> None:
        xml = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{what.code}</Code><Message>{what.code}</Message></Error>"
        body = b"" if request.method == "HEAD" else (what.body or xml).encode()
        headers = [("Content-Type", f"application/{'json' if what.body else 'xml'}"), ("x-amz-request-id", "none")]
        self._answer(what.status, headers, body)

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
        cut(self.connection)
