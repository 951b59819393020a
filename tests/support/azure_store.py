"""Azurite: a store that speaks the protocol of Azure's blobs, by Node; it checks signatures.

Fetched once by npm, into a cache outside the clone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.faulty_store import Answer
from tests.support.maven import NotFetched
from tests.support.waiting import eventually

PACKAGE = "azurite@3.35.0"
FETCH_SECONDS = 500
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of the emulator, as its page says; it is no secret."""

BUSY = Answer(503, "ServerBusy")
EXPIRED = Answer(403, "AuthenticationFailed")
DENIED = Answer(403, "AuthorizationPermissionMismatch")


@dataclass(frozen=True)
class AzureStore:
    port: int

    @property
    def variables(self) -> Mapping[str, str]:
        """How clients find it, and get credentials."""
        return {
            "AZURE_STORAGE_CONNECTION_STRING": f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint=http://127.0.0.1:{self.port}/{ACCOUNT};"
        }

    def through(self, port: int) -> AzureStore:
        """The same store by another way."""
        return replace(self, port=port)

    def new_container(self) -> str:
        name = uuid.uuid4().hex
        with self._service() as service:
            service.create_container(name)
        return name

    def names(self, container: str) -> list[str]:
        """Of all blobs."""
        with self._service() as service:
            return sorted(service.get_container_client(container).list_blob_names())

    def put(self, container: str, name: str) -> None:
        """An empty blob."""
        with self._service() as service:
            service.get_blob_client(container, name).upload_blob(b"")

    def _service(self) -> Any:
        from azure.storage.blob import BlobServiceClient

        return BlobServiceClient.from_connection_string(self.variables["AZURE_STORAGE_CONNECTION_STRING"])


@contextmanager
def reached(store: AzureStore) -> Iterator[None]:
    """This process has the variables by which clients find the store."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.variables.items():
            patch.setenv(name, value)
        yield


@contextmanager
def azure_store(folder: Path) -> Iterator[AzureStore]:
    """What it keeps is in memory, and gone with it. Raises `NotFetched`."""
    log = folder / "store.log"
    # It knows no protocol that is newer than itself by its number.
    command = ["node", str(_program()), "--blobHost", "127.0.0.1", "--blobPort", "0", "--skipApiVersionCheck"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--inMemoryPersistence", "--disableTelemetry"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder)},
        )

    def port() -> str | None:
        assert process.poll() is None, f"it ended while it was starting: {log.read_text()}"
        found = re.search(r"successfully listens on http://127\.0\.0\.1:(\d+)", log.read_text())
        return found and found[1]

    try:
        found = eventually(port, what="the store listens", timeout=120)
        assert found is not None
        yield AzureStore(int(found))
    finally:
        process.kill()
        process.wait()


def why_no_azure_store() -> str | None:
    """Why this machine cannot have it, in words; None if it can. Fetches it, the first time."""
    try:
        _program()
    except NotFetched as error:
        return str(error)
    return None


@cache
def _program() -> Path:
    """Raises `NotFetched`. Whole or not at all, also if two test workers do so at once."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "logio-tests"
    folder = home / PACKAGE.replace("@", "-")
    program = folder / "node_modules/azurite/dist/src/blob/main.js"
    if program.is_file():
        return program
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise NotFetched(f"it needs {PACKAGE} from npm's registry, and there is no npm or node on the PATH")
    home.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="fetched-", dir=home))
    try:
        command = [
            npm,
            "install",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            str(made),
            PACKAGE,
        ]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
        if done.returncode != 0:
            raise NotFetched(
                f"it needs {PACKAGE} from npm's registry, and npm cannot fetch it: {done.stderr.strip()[-300:]}"
            )
        try:
            made.rename(folder)
        except OSError:
            assert program.is_file(), "another worker was faster"
    except subprocess.TimeoutExpired:
        raise NotFetched(f"npm has not fetched {PACKAGE} within {FETCH_SECONDS} s") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return program
