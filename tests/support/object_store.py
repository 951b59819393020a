"""An object store that speaks S3 over HTTP, on a free port: moto's server, to which real clients go as to any other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

from tests.support.waiting import eventually


@dataclass(frozen=True)
class ObjectStore:
    endpoint: str

    @property
    def variables(self) -> Mapping[str, str]:
        """How clients find it, whichever library they use; no URL of a pipeline names it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "anna",
            "AWS_SECRET_ACCESS_KEY": "geheim",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def new_bucket(self) -> str:
        name = uuid.uuid4().hex
        with urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")):
            return name

    def let_in(self, home: Path) -> None:
        """Whose home this is has credentials from now on, so that neither a variable nor a URL needs any."""
        (home / ".aws").mkdir(parents=True)
        access, secret = (self.variables[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
        (home / ".aws" / "credentials").write_text(
            f"[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n"
        )

    def new_url(self, path: str) -> str:
        """Of that path in a new bucket, without credentials."""
        scheme, _, endpoint = self.endpoint.partition("://")
        options = f"scheme={scheme}&endpoint_override={endpoint}&region={self.variables['AWS_DEFAULT_REGION']}"
        return f"s3://{self.new_bucket()}/{path}?{options}"

    def files(self) -> fs.S3FileSystem:
        """As Arrow sees it, in a process without these variables."""
        variables = self.variables
        return fs.S3FileSystem(
            access_key=variables["AWS_ACCESS_KEY_ID"],
            secret_key=variables["AWS_SECRET_ACCESS_KEY"],
            region=variables["AWS_DEFAULT_REGION"],
            endpoint_override=self.endpoint,
        )


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """What it keeps is in memory, and gone with it."""
    log = folder / "objects.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={"PATH": os.environ.get("PATH", os.defpath), "PYTHONUNBUFFERED": "1"},
        )

    def endpoint() -> str | None:
        assert process.poll() is None, f"it ended while it was starting: {log.read_text()}"
        found = re.search(r"Running on (http://127\.0\.0\.1:\d+)", log.read_text())
        return found and found[1]

    try:
        eventually(endpoint, what="the object store listens", timeout=60)
        found = endpoint()
        assert found is not None
        yield ObjectStore(found)
    finally:
        process.kill()
        process.wait()
