"""Which spark-submit starts a driver, and which Java it will find."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from airflow_logio.errors import ConfigurationError

SPARK_SUBMIT = "spark-submit"
JAVA_VERSIONS = (17, 21)
_NEEDED = " or ".join(map(str, JAVA_VERSIONS))


def find_spark_submit(binary: str | None, environment: Mapping[str, str]) -> str:
    """The path of a command that is named, looked up on PATH as Airflow's Spark provider does; else that of ``SPARK_HOME``,
    of the installed pyspark, or of PATH.

    ``spark-submit`` may be missing on PATH: a worker that is started by its path has a virtual environment that is not
    there. `environment` is the driver's. Raises `ConfigurationError`.
    """
    path = environment.get("PATH", os.defpath)
    if binary is not None:
        found = shutil.which(binary, path=path)
        if found is not None:
            return os.path.abspath(found)  # the driver starts in another folder
        if binary != SPARK_SUBMIT:
            raise ConfigurationError(
                f"spark_binary={binary!r} is not an executable on this machine; it is looked up on PATH ({path})"
            )
    if home := environment.get("SPARK_HOME"):
        return _of_home(Path(home))
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        candidate = Path(folder) / "bin" / SPARK_SUBMIT
        if candidate.is_file():  # pyspark-client has none
            return str(candidate)
    found = shutil.which(SPARK_SUBMIT, path=path)
    if found is None:
        raise ConfigurationError(
            "spark-submit was not found: install pyspark (`pip install 'airflow-logio[spark]'` beside Airflow, or else `pip "
            "install pyspark`), or set SPARK_HOME to the Spark of this machine"
        )
    return os.path.abspath(found)


def _of_home(home: Path) -> str:
    """Any other spark-submit would use that Spark, too."""
    candidate = home / "bin" / SPARK_SUBMIT
    if not candidate.is_file():
        raise ConfigurationError(f"SPARK_HOME is {home}, but there is no {candidate}; correct it, or unset it")
    return os.path.abspath(candidate)


def find_java() -> Path | None:
    """``java`` by JAVA_HOME or PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:  # spark-submit looks only at JAVA_HOME
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise ConfigurationError(f"JAVA_HOME is {home}, but there is no {java}; correct it, or unset it")
        return java
    found = shutil.which("java")
    return Path(found) if found else None


def check_java() -> None:
    """Java 17 or 21, by JAVA_HOME or PATH. Raises `ConfigurationError`.

    One that was accepted is asked again when its file has changed: each recovery of a driver checks it.
    """
    java = find_java()
    if java is None:
        raise ConfigurationError(f"Java {_NEEDED} is needed for Spark and was not found: install it, or set JAVA_HOME")
    try:
        real = java.resolve(strict=True)
        file = real.stat()
        _accept(java, real, (file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns))
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"{java} does not run: {error}") from error


@lru_cache(maxsize=8)
def _accept(java: Path, _real: Path, _file: tuple[int, ...]) -> None:
    """Raises `ConfigurationError`. What is raised is not remembered, so that a mended Java is noticed wherever it is."""
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    version = re.search(r'version "(\d+)', printed)
    if version is None or int(version.group(1)) not in JAVA_VERSIONS:
        raise ConfigurationError(
            f"Spark needs Java {_NEEDED}; {java} is {printed.splitlines()[0] if printed else 'unknown'}"
        )
