"""Flink for the bench: fetched when it is first wanted, and kept under .bench/. Nothing of the project depends on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

VERSION = "2.3.0"
WHEEL = "apache-flink-libraries"
DRIVER = "libpostgresql-jdbc-java"
SOURCES = Path(__file__).with_name("flink")
KEPT = Path(__file__).parents[3] / ".bench" / "flink"
JARS = tuple(f"{name}.jar" for name in (f"flink-dist-{VERSION}", "log4j-api", "log4j-core", "log4j-slf4j-impl"))
"""Those that a cluster needs; the versions of log4j's are left out here."""
PATIENCE_SECONDS = 900


class NoFlink(Exception):
    """It cannot be had here; the message says what to do."""


@cache
def java() -> str:
    """The program that runs it, of `JAVA_HOME` if there is one."""
    return _program("java", "openjdk-17-jre-headless")


@cache
def class_path(operators: Path = SOURCES) -> str:
    """Jars and compiled operators. Raises `NoFlink`."""
    compiler = _program("javac", "openjdk-17-jdk-headless")
    jars = [*_flink(), _driver()]
    classes = KEPT / "classes" / operators.parent.name
    sources = sorted(str(file) for file in operators.rglob("*.java"))
    shutil.rmtree(classes, ignore_errors=True)
    _run(
        [compiler, "-J-XX:-UsePerfData", "--release", "17", "-d", str(classes), "-cp", str(jars[0]), *sources],
        "the operators cannot be compiled",
        f"look at {operators}",
    )
    return os.pathsep.join(map(str, (classes, *jars)))


def _program(name: str, package: str) -> str:
    home = os.environ.get("JAVA_HOME")
    found = (home and shutil.which(name, path=f"{home}/bin")) or shutil.which(name)
    if not found:
        raise NoFlink(f"there is no {name}; install it (Debian: apt-get install {package})")
    return found


def _flink() -> list[Path]:
    """flink-dist first."""
    folder = KEPT / VERSION
    if not folder.is_dir():
        fetched = _empty(KEPT / "fetched")
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        _run(
            [*download, "--dest", str(fetched), f"{WHEEL}=={VERSION}"],
            f"the wheel {WHEEL} {VERSION} cannot be had (320 MB)",
            f"let pip reach it, or put {', '.join(JARS)} into {folder}",
        )
        with zipfile.ZipFile(next(fetched.glob("*.whl"))) as wheel:
            for name in wheel.namelist():
                if name.startswith("pyflink/lib/") and _is_wanted(Path(name).name):
                    (fetched / Path(name).name).write_bytes(wheel.read(name))
        next(fetched.glob("*.whl")).unlink()
        fetched.rename(folder)
    return sorted(folder.glob("*.jar"))


def _is_wanted(jar: str) -> bool:
    return any(jar.startswith(name.removesuffix(".jar")) for name in JARS)


def _driver() -> Path:
    """PostgreSQL's for Java: as Debian's package has put it, or out of that package, which needs no installation."""
    installed, kept = (
        Path("/usr/share/java/postgresql.jar"),
        KEPT / "driver" / "usr" / "share" / "java" / "postgresql.jar",
    )
    if installed.is_file():
        return installed
    if not kept.is_file():
        fetched = _empty(KEPT / "fetched")
        what, then = "PostgreSQL's driver for Java cannot be had", f"install it (Debian: apt-get install {DRIVER})"
        _run(["apt-get", "download", "--quiet", DRIVER], what, then, fetched)
        package = str(next(fetched.glob("*.deb")))
        _run(["dpkg-deb", "--extract", package, str(KEPT / "driver")], what, then)
        shutil.rmtree(fetched)
    return kept


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _run(command: list[str], what: str, then: str, folder: Path | None = None) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise NoFlink(f"{what}: {' / '.join(said[-2:]) or error}; {then}") from error
