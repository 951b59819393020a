"""A small API server of Kubernetes, for tests: plain HTTP on a free port. The README beside it says what it does.

What it answers is what Kubernetes answers: `tests/acceptance/test_kubernetes_api.py` asks both the same.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from tests.support.kubernetes import problems
from tests.support.kubernetes.objects import Deletion, Objects
from tests.support.kubernetes.patches import merged, patched
from tests.support.kubernetes.problems import Object, Problem
from tests.support.kubernetes.resources import BY_PLURAL, PODS, RESOURCES, VERBS, Resource
from tests.support.kubernetes.selectors import selector
from tests.support.listening import Listener, cut

VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.3", "platform": "linux/amd64"}
_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/v1)(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?"
)
_SUBRESOURCES = (None, "status", "binding")
_MERGE, _STEPS, _APPLY = "application/merge-patch+json", "application/json-patch+json", "application/apply-patch+yaml"
_WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@dataclass
class Fault:
    """What happens to the next `times` requests whose method and path match."""

    method: str
    path: re.Pattern[str]
    times: int
    code: int | None
    """What is answered instead of doing it; None: it is done, and the connection ends without an answer."""
    message: str = ""


class ApiServer:
    """Serves on all addresses of this machine, so that pods reach it, too. `url` is for this machine."""

    def __init__(self) -> None:
        self.objects = Objects()
        self.token: str | None = None
        """A bearer token without which everything is refused with 401."""
        self.requests: list[str] = []
        """Method and path with query of all that was asked, in order."""
        self._faults: list[Fault] = []
        self._listener = Listener(self._serve, host="0.0.0.0")
        self.port = self._listener.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # --- faults -------------------------------------------------------------------------------------------------------

    def break_watches(self) -> None:
        """All watches end, as when their server restarts."""
        self.objects.break_watches()

    def forget(self) -> None:
        """All versions before now are too old to be watched from: 410."""
        self.objects.forget()

    def lose_answers(self, method: str, path: str, times: int = 1) -> None:
        """The next requests whose path matches (a regular expression) are done, and never answered."""
        self._faults.append(Fault(method, re.compile(path), times, None))

    def refuse(self, method: str, path: str, code: int, message: str = "told to refuse", times: int = 1) -> None:
        """The next requests whose path matches are refused, for example with 403, 429 or 503."""
        self._faults.append(Fault(method, re.compile(path), times, code, message))

    def go_down(self) -> None:
        """Nothing listens any more, and all connections end; objects stay."""
        self.break_watches()
        self._listener.close()

    def come_back(self) -> None:
        """At the same port."""
        self._listener = Listener(self._serve, port=self.port, host="0.0.0.0")

    def close(self) -> None:
        self.go_down()

    def fault_of(self, method: str, path: str) -> Fault | None:
        """Of this request, which takes one of its times."""
        with self.objects.changed:
            for fault in self._faults:
                if fault.times > 0 and fault.method == method and fault.path.search(path):
                    fault.times -= 1
                    return fault
        return None

    def _serve(self, connection: socket.socket) -> None:
        try:
            _Handler(connection, connection.getpeername(), self)  # type: ignore[arg-type]
        finally:
            cut(connection)


@contextmanager
def api_server() -> Iterator[ApiServer]:
    server = ApiServer()
    try:
        yield server
    finally:
        server.close()


@dataclass(frozen=True)
class Asked:
    """A request for objects."""

    method: str
    resource: Resource
    namespace: str
    name: str | None
    sub: str | None
    query: dict[str, str]
    content_type: str
    raw: bytes

    @property
    def body(self) -> Any:
        if not self.raw:
            return {}
        try:
            return yaml.safe_load(self.raw) if self.content_type.endswith("yaml") else json.loads(self.raw)
        except (ValueError, yaml.YAMLError) as error:
            raise problems.bad_request(f"cannot be read: {error}") from error

    @property
    def object(self) -> Object:
        if self.content_type not in {"application/json", "application/yaml", ""}:
            raise problems.unsupported(self.content_type, "application/json, application/yaml")
        if not isinstance(body := self.body, dict):
            raise problems.bad_request("couldn't get version/kind; json parse error")
        return body

    @property
    def watches(self) -> bool:
        return self.query.get("watch", "") in {"true", "1"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ApiServer  # type: ignore[assignment]

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""

    def _do(self) -> None:
        server, address = self.server, urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server.requests.append(f"{self.command} {self.path}")
        try:
            if server.token is not None and self.headers.get("Authorization") != f"Bearer {server.token}":
                raise Problem(HTTPStatus.UNAUTHORIZED, "Unauthorized", "Unauthorized")
            fault = server.fault_of(self.command, address.path)
            if fault is not None and fault.code is not None:
                raise Problem(fault.code, _REASONS.get(HTTPStatus(fault.code), "InternalError"), fault.message)
            query = dict(parse_qsl(address.query, keep_blank_values=True))
            content_type = (self.headers.get("Content-Type") or "").partition(";")[0].strip()
            if (found := discovered(address.path)) is not None:
                code, answer = HTTPStatus.OK, found
            else:
                asked = _asked(self.command, address.path, query, content_type, raw)
                if asked.watches and self.command == "GET":
                    self._watch(asked)
                    return
                code, answer = _answer(server.objects, asked)
            if fault is not None:
                self.close_connection = True
                return
        except Problem as problem:
            code, answer = HTTPStatus(problem.code), problem.status if problem.reason else problem.message
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # of an object that has another shape
            code = HTTPStatus.INTERNAL_SERVER_ERROR
            answer = Problem(code, "InternalError", repr(error)).status
        self._send(code, answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do

    def _send(self, code: HTTPStatus, answer: Object | str) -> None:
        plain = isinstance(answer, str)
        body = str(answer).encode() if plain else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if plain else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    # --- watches ------------------------------------------------------------------------------------------------------

    def _watch(self, asked: Asked) -> None:
        name = [f"metadata.name={asked.name}"] if asked.name else []
        fields = ",".join([*name, *filter(None, [asked.query.get("fieldSelector", "")])])
        holds = selector(asked.query.get("labelSelector", ""), fields)
        version = asked.query.get("resourceVersion", "")
        since = int(version) if version not in {"", "0"} else None
        seconds = float(asked.query.get("timeoutSeconds", "1800"))
        framed = (self.headers.get("Upgrade") or "").lower() == "websocket"
        if framed and not self.headers.get("Origin"):
            raise Problem(HTTPStatus.FORBIDDEN, "", "null origin")
        write = self._begin_frames() if framed else self._begin_chunks()
        ends = time.monotonic() + seconds
        for event in self.server.objects.watch(asked.resource, asked.namespace, holds, since):
            if event is not None:
                write(json.dumps(event).encode() + b"\n")
            elif time.monotonic() > ends or self._has_gone(framed):
                break
        if framed:
            self.connection.sendall(b"\x88\x02\x03\xe8")  # closed, 1000
        else:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def _begin_chunks(self) -> Callable[[bytes], None]:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        return lambda line: self.connection.sendall(b"%x\r\n%s\r\n" % (len(line), line))

    def _begin_frames(self) -> Callable[[bytes], None]:
        """WebSocket (RFC 6455), which the client of Spark asks for first."""
        key = (self.headers.get("Sec-WebSocket-Key") or "").encode()
        self.send_response(HTTPStatus.SWITCHING_PROTOCOLS)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key + _WEBSOCKET).digest()).decode())
        self.end_headers()
        return partial(_send_frame, self.connection, 1)

    def _has_gone(self, framed: bool) -> bool:
        """Whether the client has ended its watch."""
        if not select.select([self.connection], [], [], 0)[0]:
            return False
        if not framed:
            return True
        first = self._exactly(2)
        if len(first) < 2:
            return True
        size = first[1] & 127
        if size >= 126:
            size = int.from_bytes(self._exactly(2 if size == 126 else 8), "big")
        mask, payload = self._exactly(4), self._exactly(size)
        if first[0] & 15 == 9:  # ping, which is answered with what it holds
            _send_frame(self.connection, 10, bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)))
        return first[0] & 15 == 8

    def _exactly(self, size: int) -> bytes:
        """Fewer at the end. Not by `rfile`, which reads ahead: the socket would then seem to have nothing more."""
        found = b""
        while len(found) < size and (come := self.connection.recv(size - len(found))):
            found += come
        return found


def _send_frame(connection: socket.socket, sort: int, data: bytes) -> None:
    size = len(data)
    if size < 126:
        length = bytes([size])
    else:
        length = b"\x7e" + struct.pack(">H", size) if size < 65_536 else b"\x7f" + struct.pack(">Q", size)
    connection.sendall(bytes([0x80 | sort]) + length + data)


# --- what is asked for, and the answer --------------------------------------------------------------------------------


def discovered(path: str) -> Object | str | None:
    """What the server says of itself; None if that is not asked for."""
    if path in {"/healthz", "/livez", "/readyz"}:
        return "ok"
    groups = sorted({resource.group for resource in RESOURCES if resource.group})
    said: dict[str, Object] = {
        "/version": dict(VERSION),
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/api/v1": _listed(""),
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(group) for group in groups]},
        **{f"/apis/{group}": {"kind": "APIGroup", "apiVersion": "v1", **_group(group)} for group in groups},
        **{f"/apis/{group}/v1": _listed(group) for group in groups},
    }
    return said.get(path)


def _group(group: str) -> Object:
    version = {"groupVersion": f"{group}/v1", "version": "v1"}
    return {"name": group, "versions": [version], "preferredVersion": version}


def _listed(group: str) -> Object:
    of_group = [
        {"name": one.plural, "singularName": "", "namespaced": one.namespaced, "kind": one.kind, "verbs": list(VERBS)}
        for one in RESOURCES
        if one.group == group
    ]
    return {"kind": "APIResourceList", "groupVersion": f"{group}/v1" if group else "v1", "resources": of_group}


def _asked(method: str, path: str, query: dict[str, str], content_type: str, raw: bytes) -> Asked:
    found = _PATH.fullmatch(path)
    if found is None or found["sub"] not in _SUBRESOURCES:
        raise problems.no_such_path()
    resource, group = BY_PLURAL.get(found["plural"]), found["group"] or ""
    if group not in {one.group for one in RESOURCES}:
        raise Problem(HTTPStatus.NOT_FOUND, "", "404 page not found")
    if resource is None or resource.group != group or (found["namespace"] and not resource.namespaced):
        raise problems.no_such_path()
    if found["name"] and resource.namespaced and not found["namespace"]:
        raise problems.no_such_path()
    return Asked(method, resource, found["namespace"] or "", found["name"], found["sub"], query, content_type, raw)


def _answer(objects: Objects, asked: Asked) -> tuple[HTTPStatus, Object]:
    resource, namespace, name = asked.resource, asked.namespace, asked.name
    if asked.sub == "binding":
        if asked.method != "POST" or resource is not PODS or name is None:
            raise problems.no_such_path()
        objects.bind(namespace, name, asked.object["target"]["name"])
        return HTTPStatus.CREATED, _success()
    return _of_many(objects, asked) if name is None else _of_one(objects, asked, name)


def _of_one(objects: Objects, asked: Asked, name: str) -> tuple[HTTPStatus, Object]:
    resource, namespace = asked.resource, asked.namespace
    if asked.method == "GET":
        return HTTPStatus.OK, objects.get(resource, namespace, name)
    if asked.method == "PUT":
        return HTTPStatus.OK, objects.replace(resource, namespace, name, asked.object, status=asked.sub == "status")
    if asked.method == "PATCH":
        return _patch(objects, asked, name)
    if asked.method != "DELETE" or asked.sub is not None:
        raise _not_allowed()
    one, gone = objects.delete(resource, namespace, name, _deletion(asked))
    if not gone or resource.answers_deleted:
        return HTTPStatus.OK, one
    return HTTPStatus.OK, _success({"name": name, "kind": resource.plural, "uid": one["metadata"]["uid"]})


def _of_many(objects: Objects, asked: Asked) -> tuple[HTTPStatus, Object]:
    resource, namespace = asked.resource, asked.namespace
    if asked.method == "POST":
        if resource.namespaced and not namespace:
            raise _not_allowed()
        return HTTPStatus.CREATED, objects.create(resource, namespace, asked.object)
    if asked.method not in {"GET", "DELETE"}:
        raise _not_allowed()
    holds = selector(asked.query.get("labelSelector", ""), asked.query.get("fieldSelector", ""))
    found, version = objects.list(resource, namespace, holds)
    listed: Object = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
    if asked.method == "DELETE":
        for one in found:
            objects.delete(resource, one["metadata"].get("namespace", ""), one["metadata"]["name"], _deletion(asked))
        return HTTPStatus.OK, {**listed, "metadata": {"resourceVersion": str(version)}, "items": found}
    metadata: Object = {"resourceVersion": str(version)}
    begin, limit = int(asked.query.get("continue") or 0), int(asked.query.get("limit") or 0)
    page = found[begin : begin + limit] if limit else found[begin:]
    if begin + len(page) < len(found):
        metadata.update({"continue": str(begin + len(page)), "remainingItemCount": len(found) - begin - len(page)})
    return HTTPStatus.OK, {**listed, "metadata": metadata, "items": page}


def _patch(objects: Objects, asked: Asked, name: str) -> tuple[HTTPStatus, Object]:
    resource, namespace, patch, status = asked.resource, asked.namespace, asked.body, asked.sub == "status"
    if asked.content_type == _MERGE:
        how: Callable[[Object], Object] = lambda before: merged(before, patch)  # noqa: E731
    elif asked.content_type == _STEPS:
        how = lambda before: patched(before, patch)  # noqa: E731
    elif asked.content_type == _APPLY and not status:
        manager = asked.query.get("fieldManager", "")
        if not manager:
            why = "Required value: is required for apply patch"
            raise problems.invalid("PatchOptions.meta.k8s.io", "", "fieldManager", why)
        force = asked.query.get("force", "") == "true"
        one, created = objects.apply(resource, namespace, name, patch, manager, force)
        return HTTPStatus.CREATED if created else HTTPStatus.OK, one
    else:
        raise problems.unsupported(asked.content_type, ", ".join((_STEPS, _MERGE, _APPLY)))
    return HTTPStatus.OK, objects.change(resource, namespace, name, how, status=status)


def _deletion(asked: Asked) -> Deletion:
    given = {**asked.query, **asked.body}
    demanded = given.get("preconditions") or {}
    grace = given.get("gracePeriodSeconds")
    return Deletion(
        grace=None if grace is None else int(grace),
        propagation=given.get("propagationPolicy") or "Background",
        uid=demanded.get("uid"),
        version=demanded.get("resourceVersion"),
    )


def _success(details: Object | None = None) -> Object:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return {**status, "details": details} if details else status


def _not_allowed() -> Problem:
    message = "the server does not allow this method on the requested resource"
    return Problem(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed", message)


_REASONS = {
    HTTPStatus.FORBIDDEN: "Forbidden",
    HTTPStatus.CONFLICT: "Conflict",
    HTTPStatus.TOO_MANY_REQUESTS: "TooManyRequests",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailable",
    HTTPStatus.GATEWAY_TIMEOUT: "Timeout",
}
