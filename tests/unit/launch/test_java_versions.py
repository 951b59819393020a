"""Which Java a launch accepts, and when it asks again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.spark_submit import check_java

Installed = Callable[[str], Path]
"""What `java -version` prints → the file that notes each time that it is asked."""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """JAVA_HOME with a program in place of Java, which may be replaced by another version."""
    java, asked = tmp_path / "jdk" / "bin" / "java", tmp_path / "asked"
    java.parent.mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
    changes = iter(range(1, 10))

    def install(printed: str) -> Path:
        java.write_text(f"#!/bin/sh\necho asked >> {asked}\necho '{printed}' >&2\n")
        java.chmod(0o755)
        os.utime(java, (0, next(changes)))
        return asked

    return install


@pytest.mark.parametrize("printed", ['openjdk version "17.0.12" 2024-07-16', 'openjdk version "21" 2023-09-19'])
def test_what_was_asked_is_not_asked_again(installed: Installed, printed: str) -> None:
    asked = installed(printed)
    for _ in range(3):
        check_java()
    assert asked.read_text().splitlines() == ["asked"]


def test_another_version_in_the_same_place_is_noticed(installed: Installed) -> None:
    installed('openjdk version "17.0.12" 2024-07-16')
    check_java()
    installed('java version "1.8.0_401"')
    with pytest.raises(ConfigurationError, match=r'Spark needs Java 17 or 21; .*/java is java version "1.8.0_401"'):
        check_java()
    installed('openjdk version "21.0.4" 2024-07-16')
    check_java()


def test_what_was_refused_is_asked_again(installed: Installed) -> None:
    """Where `java` is a shim, its file stays the same when another version is chosen."""
    asked = installed('java version "1.8.0_401"')
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="Spark needs Java 17 or 21"):
            check_java()
    assert asked.read_text().splitlines() == ["asked", "asked"]


def test_what_does_not_run_is_refused(installed: Installed, tmp_path: Path) -> None:
    installed("")
    java = tmp_path / "jdk" / "bin" / "java"
    java.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(ConfigurationError, match=r"/java does not run: .* exit status 3"):
        check_java()
    java.unlink()
    with pytest.raises(ConfigurationError, match=r"there is no .*/java; correct it, or unset it"):
        check_java()
