"""The code that a run was started with, or that a person has taken since: what its drivers and its supervisors load (ADR-63).

The log keeps it, so that an edit, a deployment, or a bundle version that was cleaned up changes nothing of a run that is
under way, on any machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError, LogioError
from airflow_logio.runtime.launch import bundle
from airflow_logio.runtime.launch.bundle import PipelineRef
from airflow_logio.runtime.launch.code_bundle import CodeBundle, collect, from_archive
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import Run

FOLDER = ".code"
"""Below the work folder of a run: its code, for processes that supervise it."""

Loaded = tuple[Pipeline, PipelineRef]
_DIGESTS: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()
"""Of the code that this process has imported, as it was then: what is edited later is not imported again."""


def code_for(store: LogStore, run: Run, ref: PipelineRef, number: int) -> CodeBundle:
    """What a driver gets whose claim says this number. Of a run that an earlier version began, the code as it is now.

    Raises `ConfigurationError` if it is installed, not kept, and another one by now; `LogInconsistent` if it is damaged.
    """
    kept = store.code(run.run_id, number)
    if kept.digest is not None and kept.archive is not None:
        return from_archive(kept.archive, kept.digest)
    found = collect(ref)
    if kept.digest is not None and found.digest != kept.digest:
        raise ConfigurationError(
            f"run {run.spec.key} has begun with another version of {ref}. It has compiled modules, so its code is not kept "
            f"with the run: install that version again, or take the one that is there now: "
            f"logio retry {run.uid[:8]} --code new"
        )
    return found


def take_new(store: LogStore, run: Run, group: str, loaded: Loaded, *, by: str) -> int:
    """Give the next drivers of a group the code as it is now; returns its number. Raises as `LogStore.take_code` does."""
    pipeline, ref = loaded
    code = collect(ref)
    return store.take_code(run.run_id, group, code.digest, pipeline.fingerprint()["code"], archive=code.kept(), by=by)


def load_kept(store: LogStore, run: Run, load_current: Callable[[], Loaded], work_dir: Path) -> Loaded:
    """The pipeline of a run as its newest drivers have it. What is installed or in the folder by now counts only if it is the
    same, or if the run has none of its own.

    The reference that is returned is that of `load_current`, if it can be loaded. Raises `ConfigurationError`.
    """
    number = max((change.number for change in store.code_changes(run.run_id)), default=0)
    kept = store.code(run.run_id, number)
    if kept.digest is None or kept.archive is None:
        return load_current()
    recorded = bundle.parse_ref(run.spec.pipeline_ref, Path(run.spec.bundle_root))
    with contextlib.suppress(LogioError):  # it cannot be imported any more, or defines no pipeline
        pipeline, ref = load_current()
        if _digest(ref) == kept.digest:
            return pipeline, ref
        recorded = ref
    code = from_archive(kept.archive, kept.digest)
    folder = _written(code, work_dir / run.uid / FOLDER / kept.digest)
    _forget(code)
    return bundle.load(PipelineRef(recorded.module, recorded.attr, folder)), recorded


def _digest(ref: PipelineRef) -> str:
    module = sys.modules[ref.module]
    if module not in _DIGESTS:
        _DIGESTS[module] = collect(ref).digest
    return _DIGESTS[module]


def _written(code: CodeBundle, folder: Path) -> Path:
    """Complete, or not there: other processes may be about to write the same."""
    if folder.is_dir():
        return folder
    making = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
    code.write(making)
    try:
        os.rename(making, folder)
    except OSError:  # another process was quicker
        shutil.rmtree(making, ignore_errors=True)
    return folder


def _forget(code: CodeBundle) -> None:
    """What this process has imported of another version stays with whoever has it; from here on it is imported anew."""
    ours = {name.partition("/")[0].removesuffix(".py") for name in code.files}
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]
