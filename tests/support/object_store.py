"""Object stores that speak S3 over HTTP, on a free port, to which real clients go as to any other.

Moto's server is in memory, and lenient. S3Proxy's is over a folder, checks signatures, and refuses what it does not know.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from airflow_logio.launch.spark_submit import find_java
from tests.support.maven import NotFetched, jars
from tests.support.waiting import eventually

S3PROXY = "org.gaul:s3proxy:3.0.0"


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
            # Clients send checksums of a newer kind otherwise, which not every store knows that speaks S3.
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        }

    @property
    def port(self) -> int:
        found = urlsplit(self.endpoint).port
        assert found is not None
        return found

    def through(self, port: int) -> ObjectStore:
        """The same store by another way."""
        return replace(self, endpoint=f"http://127.0.0.1:{port}")

    def new_bucket(self) -> str:
        name = uuid.uuid4().hex
        self.client().create_bucket(Bucket=name)
        return name

    def client(self) -> Any:
        """As boto3 sees it, in a process without these variables; for what tests set up and look at."""
        return _client(self)

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


@lru_cache(maxsize=8)
def _client(store: ObjectStore) -> Any:
    import boto3
    from botocore.config import Config

    variables = store.variables
    return boto3.client(
        "s3",
        endpoint_url=store.endpoint,
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        region_name=variables["AWS_DEFAULT_REGION"],
        config=Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"total_max_attempts": 1},
        ),
    )


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """Moto's. What it keeps is in memory, and gone with it."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with _listening(folder, command, r"Running on http://127\.0\.0\.1:(\d+)") as port:
        yield ObjectStore(f"http://127.0.0.1:{port}")


def why_no_s3proxy() -> str | None:
    """Why this machine cannot have it, in words; None if it can. Fetches it, the first time."""
    try:
        jars(S3PROXY)
    except NotFetched as error:
        return str(error)
    return None


@contextmanager
def s3proxy(
    folder: Path, *, checks_signatures: bool = True, provider: str = "filesystem-nio2"
) -> Iterator[ObjectStore]:
    """S3Proxy's server. What it keeps is in files below the folder, also for the next one there, as one of its providers has
    them. Raises `NotFetched`."""
    kept = folder / "kept"
    kept.mkdir(exist_ok=True)
    names = ObjectStore("").variables
    (folder / "s3proxy.conf").write_text(
        "s3proxy.endpoint=http://127.0.0.1:0\n"
        f"s3proxy.authorization={'aws-v2-or-v4' if checks_signatures else 'none'}\n"
        f"s3proxy.identity={names['AWS_ACCESS_KEY_ID']}\ns3proxy.credential={names['AWS_SECRET_ACCESS_KEY']}\n"
        "s3proxy.ignore-unknown-headers=true\n"  # checksums of removals
        f"jclouds.provider={provider}\njclouds.filesystem.basedir={kept}\n"
    )
    (folder / "logback.xml").write_text(_LOGBACK)
    command = [str(find_java()), "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += [f"-Dlogback.configurationFile={folder}/logback.xml", "-cp", f"{jars(S3PROXY)}/*"]
    command += ["org.gaul.s3proxy.Main", "--properties", f"{folder}/s3proxy.conf"]
    with _listening(folder, command, r"Started ServerConnector.*\{127\.0\.0\.1:(\d+)\}") as port:
        yield ObjectStore(f"http://127.0.0.1:{port}")


_LOGBACK = """<configuration>
<appender name="out" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%d %level %msg%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="out"/></root>
</configuration>
"""


@contextmanager
def _listening(folder: Path, command: Sequence[str], says: str) -> Iterator[int]:
    """The port on which a program listens, as its log says; it is killed in the end."""
    log = folder / "objects.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={"PATH": os.environ.get("PATH", os.defpath), "PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8"},
        )

    def port() -> str | None:
        assert process.poll() is None, f"it ended while it was starting: {log.read_text()}"
        found = re.search(says, log.read_text())
        return found and found[1]

    try:
        found = eventually(port, what="the object store listens", timeout=120)
        assert found is not None
        yield int(found)
    finally:
        process.kill()
        process.wait()
