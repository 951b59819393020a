"""The code of a pipeline as one value, named by its content: what drivers import, and a run keeps (ADR-60, ADR-63).

From a folder of DAGs or a source tree, the packages and modules that the pipeline imports, with all their files. They are
found in the source text, so nothing is executed; a module that is imported by a computed name is not found. Of an installed
pipeline, its own top-level package. A package with compiled modules is not shipped: it belongs to the machine it was
installed on.

The log keeps the code of a run, so that an edit, a deployment, or a bundle version that was cleaned up changes nothing of a
run that is under way, on any machine. It is the one thing in the log that is executed: a writer of the log decides
what drivers and supervisors execute.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import lzma
import os
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import ModuleType
from weakref import WeakKeyDictionary

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError, LogInconsistent, LogioError
from airflow_logio.launch import bundle
from airflow_logio.launch.bundle import PipelineRef, is_installed, module_file
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import KeptCode
from airflow_logio.store.records.run_records import Run

OURS = "airflow_logio"
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
_DIGESTS: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()
"""Module → digest of its code when this process imported it: what is edited later is not imported again."""
Loaded = tuple[Pipeline, PipelineRef]


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


def code_for(store: LogStore, run: Run, ref: PipelineRef, number: int) -> CodeBundle:
    """What a driver gets whose claim says this number. Of a run that an earlier version began, the code as it is now.

    What the log does not keep, or holds damaged, may be here: the digest tells. Raises `ConfigurationError` if it is not.
    """
    kept = store.code(run.run_id, number)
    if kept.digest is None:
        return collect(ref)
    try:
        return _unpacked(kept)
    except LogInconsistent as error:
        with contextlib.suppress(ConfigurationError):
            found = collect(ref)
            if found.digest == kept.digest:
                return found
        raise _missing(run, ref, str(error)) from error


def take_new(store: LogStore, run: Run, group: str, loaded: Loaded, *, by: str) -> int:
    """Give the next drivers of a group the code as it is now; returns its number. Raises as `LogStore.take_code` does."""
    pipeline, ref = loaded
    code, fingerprint = collect(ref), pipeline.fingerprint()["code"]
    return store.patience.call(
        "taking other code",
        lambda: store.take_code(run.run_id, group, code.digest, fingerprint, archive=code.kept(), by=by),
    )


def load_kept(store: LogStore, run: Run, load_current: Callable[[], Loaded], number: int) -> Loaded:
    """The pipeline of a run as drivers have it whose claim says this number of its code. What is installed or in the folder
    by now counts only if it is the same, or if the log keeps no code of the run.

    The reference that is returned is that of `load_current`, if it can be loaded. Raises `ConfigurationError`.
    """
    kept = store.patience.call("reading the code of the run", lambda: store.code(run.run_id, number))
    if kept.digest is None or kept.archive is None:
        return load_current()
    recorded = bundle.parse_ref(run.spec.pipeline_ref, Path(run.spec.bundle_root))
    with contextlib.suppress(LogioError):  # it cannot be imported any more, or defines no pipeline
        pipeline, ref = load_current()
        if _digest(ref) == kept.digest:
            return pipeline, ref
        recorded = ref
    try:
        return _loaded(_unpacked(kept), recorded), recorded
    except LogInconsistent as error:
        raise _missing(run, recorded, str(error)) from error


def newest(store: LogStore, run: Run) -> int:
    """The number of the code that was taken last, for any group; 0 if none was."""
    changes = store.patience.call("reading the code of the run", lambda: store.code_changes(run.run_id))
    return max((change.number for change in changes), default=0)


def own_pipeline(store: LogStore, run: Run, ref: PipelineRef, number: int, instead: Pipeline) -> Pipeline:
    """The pipeline of the code with this number; `instead` where the log keeps no copy that could be loaded.

    The names of groups are the same in both: so is the graph. Raises `ConfigurationError`.
    """
    kept = store.code(run.run_id, number)
    try:
        return _loaded(_unpacked(kept), ref)
    except LogInconsistent:  # `code_for` says what to do, or has found it elsewhere
        return instead


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


def imported_parts(root: Path, module: str) -> set[str]:
    """Top-level names in `root` (packages, modules, folders) that `module` needs, its own included.

    Names of the standard library are never taken from `root`, and this package is never among them: a driver has both.
    """
    own = module.partition(".")[0]
    todo, seen = [module], {module}
    while todo:
        name = todo.pop()
        for found in _with_parents(name):
            file = module_file(root, found)
            if file is None or file.suffix != ".py":
                continue
            for other in _imports(file, found):
                if other not in seen and _may_be_here(other, own):
                    seen.add(other)
                    todo.append(other)
    return {name.partition(".")[0] for name in seen if _is_here(root, name)}


def _is_here(root: Path, module: str) -> bool:
    top = module.partition(".")[0]
    return module_file(root, module) is not None and (root.joinpath(top).is_dir() or (root / f"{top}.py").is_file())


def _may_be_here(module: str, own: str) -> bool:
    top = module.partition(".")[0]
    return top == own or (top != OURS and top not in sys.stdlib_module_names)


def _with_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[: index + 1]) for index in range(len(parts))]


def _imports(file: Path, module: str) -> Iterator[str]:
    """Absolute names of all that the file may import; ``from a import b`` may mean module ``a.b``."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # it cannot be imported either
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            if base:
                yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names if alias.name != "*")


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _digest(ref: PipelineRef) -> str:
    module = sys.modules[ref.module]
    if module not in _DIGESTS:
        _DIGESTS[module] = collect(ref).digest
    return _DIGESTS[module]


def _unpacked(kept: KeptCode) -> CodeBundle:
    if kept.digest is None or kept.archive is None:
        raise LogInconsistent("the log has no copy of it: it has compiled modules, or its row is lost")
    return from_archive(kept.archive, kept.digest)


def _missing(run: Run, ref: PipelineRef, why: str) -> ConfigurationError:
    uid = run.uid[:8]
    return ConfigurationError(
        f"run {run.spec.key} has another version of {ref} than {ref.bundle_root}, and cannot be given its own: {why}. Put "
        f"that version back there and `logio retry {uid}`, or take what is there now: `logio retry {uid} --code new`"
    )


def _loaded(code: CodeBundle, ref: PipelineRef) -> Pipeline:
    """Import the pipeline from this code. What the process has imported of another version stays as it was: it may look
    after several runs."""
    before, path = _imported(code), list(sys.path)
    with tempfile.TemporaryDirectory(prefix="logio-code-") as folder:
        code.write(Path(folder))
        try:
            _forget(before)
            return bundle.load(PipelineRef(ref.module, ref.attr, Path(folder)))
        finally:
            _forget(_imported(code))
            sys.modules.update(before)
            sys.path[:] = path


def _imported(code: CodeBundle) -> dict[str, ModuleType]:
    ours = {name.partition("/")[0].removesuffix(".py") for name in code.files}
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in ours}


def _forget(modules: dict[str, ModuleType]) -> None:
    for name in modules:
        del sys.modules[name]
