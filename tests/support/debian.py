"""Programs of Debian's packages, unpacked where nothing is installed, for servers that no wheel brings."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


@cache
def unpacked(package: str, *rarer_libraries: str) -> Path:
    """The folder with the files of a package, and of those it needs whose names begin with one of `rarer_libraries`.

    Once per machine. Complete or not at all, also if two test workers do so at once.
    """
    assert shutil.which("apt-get"), f"these tests need {package}: install it, so that its programs are on the PATH"
    folder = Path(tempfile.gettempdir()) / f"logio-{package}-package-{os.getuid()}"
    if not folder.is_dir():
        _unpack(folder, package, rarer_libraries)
    return folder


def libraries(folder: Path) -> str:
    """LD_LIBRARY_PATH for its programs."""
    return ":".join(str(path) for path in (folder / "usr" / "lib").iterdir() if path.is_dir())


def _unpack(folder: Path, package: str, rarer_libraries: tuple[str, ...]) -> None:
    made = Path(tempfile.mkdtemp(prefix=f"logio-{package}-unpacked-"))
    done = _run(["apt-get", "download", package, *_needed(package, rarer_libraries)], made)
    if done.returncode != 0 and os.geteuid() == 0:
        _run(["apt-get", "update"], made)
        done = _run(["apt-get", "download", package, *_needed(package, rarer_libraries)], made)
    assert done.returncode == 0, f"these tests need {package}, and apt-get cannot download it: {done.stderr}"
    for file in made.glob("*.deb"):
        result = _run(["dpkg", "-x", file.name, "files"], made)
        assert result.returncode == 0, result.stderr
    made.chmod(0o755)
    (made / "files").chmod(0o755)
    try:
        (made / "files").rename(folder)
    except OSError:
        assert folder.is_dir(), "another worker was faster"
    shutil.rmtree(made, ignore_errors=True)


def _needed(package: str, rarer_libraries: tuple[str, ...]) -> list[str]:
    listed = _run(["apt-cache", "depends", package], Path("/")).stdout
    names = [line.split(":", 1)[1].strip() for line in listed.splitlines() if line.strip().startswith("Depends:")]
    return [name for name in names if name.startswith(rarer_libraries)]


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
