"""The code that a run was started with, or that a person has taken since: what its drivers and its supervisors load (ADR-63).

The log keeps it, so that an edit, a deployment, or a bundle version that was cleaned up changes nothing of a run that is
under way, on any machine. It is the one thing in the log that is executed: whoever can write the log decides what drivers
and supervisors execute.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError, LogInconsistent, LogioError
from airflow_logio.launch import bundle
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.code_bundle import CodeBundle, collect, from_archive
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import KeptCode
from airflow_logio.store.records.run_records import Run

Loaded = tuple[Pipeline, PipelineRef]
_DIGESTS: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()
"""Of the code that this process has imported, as it was then: what is edited later is not imported again."""


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
