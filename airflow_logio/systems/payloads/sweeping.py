"""The sweep: removes what a fenced incarnation wrote and never committed.

A fenced incarnation commits nothing any more, so that a file of it which no row names now will never be named. Files are
listed first and the log is asked afterwards: a file of a live incarnation is not looked at, however it came there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from airflow_logio.errors import LogInconsistent, LogioError
from airflow_logio.protocol.states import CONCLUDED
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.payloads.manifests import StoredFrame, is_manifest, is_stored_frame
from airflow_logio.systems.payloads.payload_store import Payloads

log = logging.getLogger(__name__)


def sweep_group(payloads: Payloads, store: LogStore, run: Run, group: str, *, below: int) -> int:
    """Sweep what incarnations below `below` of a group have left: they must be fenced, or have ended.

    Returns the number of files removed. Raises `LogUnavailable`; a sweep that was cut short is made good by the next.
    """
    folder = f"{run.uid}/{group}"
    incarnations: dict[int, list[str]] = {}
    for path in payloads.find(folder):
        incarnations.setdefault(_incarnation(path), []).append(path)
    removed = 0
    for incarnation, paths in incarnations.items():
        if 0 < incarnation < below:
            removed += _sweep(payloads, store, run, f"{folder}/{incarnation}", paths)
    if removed:
        log.info("group %s: %d payload files of incarnations below %d swept", group, removed, below)
    return removed


def sweep_run(payloads: Payloads, store: LogStore, run: Run) -> int:
    """At the end of a run: what its fenced and its finished incarnations have left, zombies included."""
    removed = 0
    for status in store.groups(run.run_id):
        below = status.incarnation + 1 if status.state in CONCLUDED else status.incarnation
        removed += sweep_group(payloads, store, run, status.group, below=below)
    return removed


def sweep_removed(payloads: Payloads, store: LogStore) -> int:
    """What drivers of runs have written after these were removed from the log: the number of files removed.

    Only of runs of which this log knows that they were removed: another log may have its payloads here, or this one may be an
    old copy of it. Raises `LogUnavailable`.
    """
    removed = 0
    for uid in payloads.runs():
        gone = store.removed_run(uid)
        if gone is None or gone.uid != uid:
            continue
        left = payloads.find(uid)
        payloads.discard(left, uid)
        removed += len(left)
    return removed


def clear_away(root: str | None, store: LogStore, run: Run) -> None:
    """`sweep_run` for a run that has finished. It stays finished whatever goes wrong here; errors are logged."""
    if root is None:
        return
    try:
        sweep_run(Payloads(root), store, run)
    except LogioError as error:
        log.warning("the payloads of run %s are not swept: %s", run.spec.key, error)


def _sweep(payloads: Payloads, store: LogStore, run: Run, folder: str, paths: list[str]) -> int:
    named = {Reference.parse("a body", ref).path for ref in store.references(run.run_id, f"{folder}/")}
    live = named | _named_by(payloads, named)
    garbage = [path for path in paths if path not in live]
    # Those that name others last: of what was to be removed, they say what its files are.
    payloads.discard(sorted(garbage, key=_names_files), folder)
    return len(garbage)


def _names_files(path: str) -> bool:
    return is_manifest(path) or is_stored_frame(path)


def _named_by(payloads: Payloads, named: Iterable[str]) -> set[str]:
    """The files that datasets and stored effects name, of those that the log names.

    Raises `LogInconsistent` if one of them cannot be read: it is unknown then what to keep.
    """
    files: set[str] = set()
    for path in filter(_names_files, named):
        found = payloads.manifest(path) if is_manifest(path) else payloads.stored_frame(path)
        if found is None:
            raise LogInconsistent(f"{path} is missing, or was just removed: nothing is swept beside it")
        if isinstance(found, StoredFrame):
            files.update(file.path for file in found.files())
            files.update(Reference.parse(path, part.manifest).path for part in found.parts if part.manifest)
        else:
            files.update(file.path for file in found.files)
    return files


def _incarnation(path: str) -> int:
    """The incarnation in ``<run>/<group>/<incarnation>/...``; 0 for paths that are not ours."""
    parts = path.split("/")
    return int(parts[2]) if len(parts) > 3 and parts[2].isdigit() else 0
