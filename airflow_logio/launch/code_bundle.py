"""The code of a pipeline as one value, named by its content: what a driver imports, and what is kept with a run (ADR-60).

From a folder of DAGs or a source tree, the packages and modules that the pipeline imports, with all their files. Of an
installed pipeline, its own top-level package. A package with compiled modules is not shipped: it belongs to the machine it
was installed on.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from airflow_logio.errors import ConfigurationError, LogInconsistent
from airflow_logio.launch.bundle import PipelineRef, is_installed
from airflow_logio.launch.code_imports import OURS, imported_parts, module_file

MOST_BYTES = 32 * 2**20
"""Code that is larger is refused: a driver gets it at every launch."""

_COMPILED = (".so", ".pyd", ".dylib")
_LEFT_OUT = ("__pycache__", ".pyc", ".pyo")
_BESIDE_A_DATABASE = ("-wal", "-shm")
"""A SQLite database with these beside it is in use, as the log of a terminal is: it is no code, and changes all the time."""
_SAME_TIME = (1980, 1, 1, 0, 0, 0)
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    lzma.LZMAError,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    RuntimeError,
    OverflowError,
)
"""What zipfile raises for bytes that are no zip file any more."""
_MEBIBYTE = 2**20
_SHOWN = 3


@dataclass(frozen=True)
class CodeBundle:
    """Relative path → content. `is_shipped` is False for what drivers find installed on their machine."""

    files: Mapping[str, bytes]
    is_shipped: bool = True

    @cached_property
    def digest(self) -> str:
        """blake2b of names and contents, 32 hexadecimal digits; the same wherever and whenever it is computed."""
        summed = hashlib.blake2b(digest_size=16)
        for name, content in sorted(self.files.items()):
            encoded = name.encode()
            summed.update(b"%d %d\n" % (len(encoded), len(content)) + encoded + content)
        return summed.hexdigest()

    def kept(self) -> bytes | None:
        """What the log keeps of it: nothing, if drivers find it installed."""
        return self.archive() if self.is_shipped else None

    def archive(self) -> bytes:
        """As a zip file, whose folders have entries of their own: without them, Python finds no namespace packages."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            folders = {str(parent) for name in self.files for parent in PurePosixPath(name).parents} - {"."}
            for folder in sorted(folders):
                archive.writestr(zipfile.ZipInfo(f"{folder}/", _SAME_TIME), b"")
            for name, content in sorted(self.files.items()):
                entry = zipfile.ZipInfo(name, _SAME_TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content)
        return packed.getvalue()

    def write(self, folder: Path) -> None:
        """Write all files below a folder. Raises OSError."""
        for name, content in self.files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            target.write_bytes(content)


def from_archive(data: bytes, digest: str) -> CodeBundle:
    """The bundle of that digest. Raises `LogInconsistent` if the archive holds anything else, whatever the reason."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if (total := sum(entry.file_size for entry in entries)) > MOST_BYTES:
                raise ValueError(f"it would have {total:,} bytes")
            files = {entry.filename: archive.read(entry) for entry in entries}
    except _DAMAGE as error:
        raise LogInconsistent(f"the kept code {digest} is damaged: {error}") from error
    bundle = CodeBundle(files)
    if bundle.digest != digest:
        raise LogInconsistent(f"the kept code {digest} is damaged: its content has the digest {bundle.digest}")
    if wrong := [name for name in files if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]:
        raise LogInconsistent(f"the kept code {digest} has a file outside its folder: {wrong[0]!r}")
    return bundle


def collect(ref: PipelineRef) -> CodeBundle:
    """The code of a pipeline as it is now. Raises `ConfigurationError` if it cannot be read or is too large."""
    installed = is_installed(ref.bundle_root)
    own = ref.module.partition(".")[0]
    if own == OURS:
        return CodeBundle({}, is_shipped=False)
    parts = _installed_part(ref) if installed else imported_parts(ref.bundle_root, ref.module)
    if not parts:
        raise ConfigurationError(
            f"module {ref.module!r} is no file in {ref.bundle_root}, so it cannot be given to drivers: put the pipeline "
            "into a folder that is no zip file, or install it as a package"
        )
    paths = [path for part in sorted(parts) for path in _files_of(ref.bundle_root, part)]
    is_compiled = installed and any(path.suffix in _COMPILED for path in paths)
    if not is_compiled:
        _check_size(ref, paths)
    try:
        files = {path.relative_to(ref.bundle_root).as_posix(): path.read_bytes() for path in paths}
    except OSError as error:
        raise ConfigurationError(f"the code of pipeline {ref} cannot be read: {error}") from error
    return CodeBundle(files, is_shipped=not is_compiled)


def _installed_part(ref: PipelineRef) -> set[str]:
    """The outermost regular package of the module, as a path. A namespace belongs to other distributions as well."""
    names = ref.module.split(".")
    for index in range(len(names)):
        part = "/".join(names[: index + 1])
        if (ref.bundle_root / part / "__init__.py").is_file() or index == len(names) - 1:
            return {part} if module_file(ref.bundle_root, part.replace("/", ".")) is not None else set()
    return set()


def _files_of(root: Path, part: str) -> Iterator[Path]:
    """The files of a package, module or folder; those that are hidden or compiled by Python are left out."""
    folder, module = root / part, root / f"{part}.py"
    if not folder.is_dir():
        yield module
        return
    seen = set()
    for where, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(where)
        if real in seen:  # a link to a folder above it
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if _is_wanted(name))
        in_use = {name + ending for name in files for ending in ("", *_BESIDE_A_DATABASE) if f"{name}-wal" in files}
        wanted = sorted(name for name in files if _is_wanted(name) and name not in in_use)
        yield from (path for name in wanted if (path := Path(where) / name).is_file())


def _is_wanted(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(_LEFT_OUT)


def _check_size(ref: PipelineRef, paths: list[Path]) -> None:
    sizes = {path: path.stat().st_size for path in paths}
    total = sum(sizes.values())
    if total <= MOST_BYTES:
        return
    largest = sorted(sizes, key=lambda path: sizes[path], reverse=True)[:_SHOWN]
    named = ", ".join(
        f"{path.relative_to(ref.bundle_root).as_posix()} ({sizes[path] / _MEBIBYTE:,.1f} MiB)" for path in largest
    )
    raise ConfigurationError(
        f"the packages that pipeline {ref} imports from {ref.bundle_root} have {total / _MEBIBYTE:,.1f} MiB; a driver gets "
        f"at most {MOST_BYTES / _MEBIBYTE:g} MiB of code. The largest files are {named}: move data out of the packages, and "
        "read them from a path that is a run parameter, or through a connection"
    )
