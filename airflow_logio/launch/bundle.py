"""How a driver gets its code: ``module:attr`` of the pipeline plus the bundle root, by one rule (design D14).

The bundle root is the nearest folder above the file that is not a package: ``dags/pipelines/sales.py`` with
``dags/pipelines/__init__.py`` is module ``pipelines.sales`` in bundle ``dags``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError, LogioError, authored_frames

STAYING = ("__main__", __name__.partition(".")[0])
"""Not of a pipeline, even where they lie in its folder."""
_ROOTS: set[Path] = set()
"""From where this process has imported pipelines."""


@dataclass(frozen=True, slots=True)
class PipelineRef:
    """``module:attr``, importable from `bundle_root`."""

    module: str
    attr: str
    bundle_root: Path

    def __str__(self) -> str:
        return f"{self.module}:{self.attr}"


def parse_ref(text: str, bundle_root: Path | None = None) -> PipelineRef:
    """From ``path/to/file.py:attr`` or ``module.path:attr``; raises `ConfigurationError` with the accepted forms."""
    target, separator, attr = text.rpartition(":")
    if not separator or not target or not attr.isidentifier():
        raise ConfigurationError(
            f"{text!r} does not name a pipeline; expected path/to/file.py:attr or module.path:attr"
        )
    if target.endswith(".py"):
        return _of_file(Path(target), attr)
    root = (bundle_root or Path.cwd()).resolve()
    if bundle_root is None and module_file(root, target) is None:
        root = _root_elsewhere(target) or root
    return PipelineRef(target, attr, root)


def module_file(root: Path, module: str) -> Path | None:
    """The file of a module, or of a package's ``__init__``; None if `root` does not hold it."""
    place = root.joinpath(*module.split("."))
    for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
        if file.is_file():
            return file
    return None


def _root_elsewhere(module: str) -> Path | None:
    """Where Python finds a module that is not in the working folder; None if it does not find it."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # importing it says what is wrong
        return None
    return None if spec is None or spec.origin is None else _above(Path(spec.origin), module)


def is_installed(root: Path) -> bool:
    """Whether a folder belongs to a Python installation: drivers find there what they import, before they are given it."""
    return root.name in ("site-packages", "dist-packages")


def _of_file(path: Path, attr: str) -> PipelineRef:
    file = path.resolve()
    if not file.is_file():
        raise ConfigurationError(f"there is no file {path}; give the path of the Python file that defines the pipeline")
    parts = [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return PipelineRef(".".join(parts), attr, folder)


def locate(pipeline_module: str) -> Path:
    """The bundle root of a module that is already imported (a DAG file imports its pipeline)."""
    module = sys.modules.get(pipeline_module)
    file = getattr(module, "__file__", None)
    if file is None:
        raise ConfigurationError(f"module {pipeline_module!r} has no file: a driver could not import it")
    return _above(Path(file), pipeline_module)


def _above(file: Path, module: str) -> Path:
    root = file.resolve().parent
    for _ in range(module.count(".") + (1 if file.stem == "__init__" else 0)):
        root = root.parent
    return root


def import_module(ref: PipelineRef) -> ModuleType:
    """Import the module from its bundle, whatever version this process has imported before.

    Raises `ConfigurationError` that names module, bundle and cause.
    """
    _forget_other_versions(ref.bundle_root)
    if ref.module not in sys.modules:
        _look_first_in(ref.bundle_root)
    try:
        if is_installed(ref.bundle_root):
            _import_from(ref.bundle_root, ref.module.partition(".")[0])
        return importlib.import_module(ref.module)
    except LogioError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"module {ref.module!r} of bundle {ref.bundle_root} cannot be imported: {type(error).__name__}: {error}"
            f"{authored_frames(error)}"
        ) from error


def _forget_other_versions(root: Path) -> None:
    """A process that supervises several runs meets the same module in several folders (`code_bundle`). What others have
    imported of it stays with them."""
    others = _ROOTS - {root.resolve()}
    _ROOTS.add(root.resolve())
    # First what is in memory: to look where each of 5,000 modules lies took a second.
    here = _top_level_names(root) - set(STAYING) if others else set()
    for name, module in list(sys.modules.items()) if here else ():
        place = getattr(module, "__file__", None) if name.partition(".")[0] in here else None
        if place is not None and _above(Path(place), name) in others:
            del sys.modules[name]


def _top_level_names(root: Path) -> set[str]:
    """What can be imported from a folder: its own folders, which may be namespace packages, and its modules."""
    try:
        with os.scandir(root) as entries:
            found = [entry for entry in entries if entry.is_dir() or entry.name.endswith(".py")]
            return {entry.name.removesuffix(".py") for entry in found}
    except OSError:  # no folder
        return set()


def _look_first_in(root: Path) -> None:
    """What is installed must not hide modules of the standard library."""
    if str(root) in sys.path and not is_installed(root):
        sys.path.remove(str(root))
    if str(root) not in sys.path:
        sys.path.insert(len(sys.path) if is_installed(root) else 0, str(root))
    importlib.invalidate_caches()


def _import_from(root: Path, package: str) -> None:
    """Import a top-level package from `root`, not from the zip file of executors, in which files have no path."""
    spec = None if package in sys.modules else PathFinder.find_spec(package, [str(root)])
    if spec is None:
        return
    sys.modules[package] = module = importlib.util.module_from_spec(spec)
    try:
        if spec.loader is not None:
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[package]
        raise


def load(ref: PipelineRef) -> Pipeline:
    """Import the pipeline. Raises `ConfigurationError` that names module, attribute and cause."""
    module = import_module(ref)
    found = getattr(module, ref.attr, None)
    if not isinstance(found, Pipeline):
        names = [name for name, value in vars(module).items() if isinstance(value, Pipeline)]
        raise ConfigurationError(
            f"{ref.module}:{ref.attr} is {'missing' if found is None else 'no Pipeline'}; "
            f"the module defines: {', '.join(names) or 'no pipeline'}"
        )
    return found.freeze()
