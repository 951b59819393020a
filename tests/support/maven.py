"""Java programs that tests need from Maven's repositories: fetched once, into a cache outside the clone."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

FETCH_SECONDS = 900


class NotFetched(Exception):
    """Why it cannot be had here, in words."""


@cache
def jars(*artifacts: str, without: tuple[str, ...] = ()) -> Path:
    """The folder with the jars of these artifacts (``group:name:version``), and of those that they need, but for those
    `without` which they do (``group:name``). Raises `NotFetched`.

    Complete or not at all, also if two test workers do so at once.
    """
    digest = hashlib.sha256("\n".join((*artifacts, *without)).encode()).hexdigest()[:12]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "logio-tests"
    folder = home / f"{artifacts[0].split(':')[1]}-{digest}"
    if not folder.is_dir():
        _fetch(folder, artifacts, without)
    return folder


def _fetch(folder: Path, artifacts: tuple[str, ...], without: tuple[str, ...]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotFetched(f"it needs {artifacts[0]} from Maven's repositories, and there is no mvn on the PATH")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="fetched-", dir=folder.parent))
    (made / "pom.xml").write_text(_pom(artifacts, without))
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
    command = [maven, "-B", "-q", "-f", str(made / "pom.xml"), goal, f"-DoutputDirectory={made / 'jars'}"]
    command += ["-DincludeScope=runtime", f"-Dmaven.repo.local={folder.parent / 'repository'}"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip()[-600:]
            raise NotFetched(f"it needs {artifacts[0]} from Maven's repositories, and mvn cannot fetch it: {said}")
        try:
            (made / "jars").rename(folder)
        except OSError:
            assert folder.is_dir(), "another worker was faster"
    except subprocess.TimeoutExpired:
        raise NotFetched(f"mvn has not fetched {artifacts[0]} within {FETCH_SECONDS} s") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _pom(artifacts: tuple[str, ...], without: tuple[str, ...]) -> str:
    excluded = "".join(
        f"<exclusion><groupId>{group}</groupId><artifactId>{name}</artifactId></exclusion>"
        for group, name in (one.split(":") for one in without)
    )
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        f"<exclusions>{excluded}</exclusions></dependency>"
        for group, name, version in (one.split(":") for one in artifacts)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>logio</groupId>'
        f"<artifactId>tests</artifactId><version>1</version><dependencies>{dependencies}</dependencies></project>"
    )
