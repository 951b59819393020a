"""`logio gc` and `logio db`: upkeep of a log. Garbage of runs that have ended, old runs, and the tables themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from airflow_logio.cli.common import TERMINAL_PATIENCE, LogOption, err, opened, out, warn
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.databases import parse_url, shown
from airflow_logio.dataflow.quantities import retention_seconds
from airflow_logio.dataflow.writers.bucket_urls import SCHEME
from airflow_logio.errors import (
    ConfigurationError,
    LogInconsistent,
    LogioError,
    ManagerUnavailable,
    PipelineDefinitionError,
    ProtocolViolation,
)
from airflow_logio.launch.driver_folders import discard, folders_of
from airflow_logio.launch.launcher import is_known
from airflow_logio.launch.managers.known_managers import Managers
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Submission
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.upkeep_records import BY_GC
from airflow_logio.store.rules.run_rules import GroupStates, check_removable
from airflow_logio.store.sql.revision import check as check_schema
from airflow_logio.supervision import keeping, tidying
from airflow_logio.supervision.clusters.left_drivers import LeftDrivers
from airflow_logio.supervision.clusters.manager_answers import shared_answers
from airflow_logio.supervision.tidying import drop_staging_of, is_staged_in, staging_of
from airflow_logio.systems import payload_roots
from airflow_logio.systems.payloads import Payloads, sweep_removed, sweep_run
from airflow_logio.systems.payloads.bucket_settings import kept_versions

Discard = Callable[[Sequence[str]], None]
db = typer.Typer(help="The tables of the log.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.command("gc")(gc)
    app.add_typer(db, name="db")


def gc(
    run: Annotated[
        str | None, typer.Argument(help="Run: uid, the beginning of it, or its run id; default: all")
    ] = None,
    log: LogOption = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", help="Remove runs that ended at least this long ago from all tables: 12h, 30d, 26w"
        ),
    ] = None,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also halted or parked runs, which can then no longer be retried")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, but change nothing")] = False,
) -> None:
    """Collect what ended runs have left in the log, the files of their drivers on this machine and on clusters, and staging
    tables. With --older-than, remove old runs altogether.

    Running groups collect their own garbage, and a run that finishes is tidied up. So this command is for interrupted
    cleanups and for old runs. It refuses a run that has not ended.
    """
    age = None if older_than is None else _age(older_than)
    known = ConnectionUrls.load(warn)
    root = known.payloads(log)
    payloads = None if root is None else Payloads(root)
    with opened(known.log_url(log)) as store:
        ended = _ended(store, run, unfinished=unfinished)
        old = [] if age is None else _of(ended, store.removable(age, unfinished=unfinished))
        young = [found for found in ended if found not in old]
        for found in ended:
            if found.damage is not None:
                warn(f"where its staging tables are is not known, and they stay: {found.damage}")
        young = [found for found in young if found.damage is None]
        if dry_run:
            _say_what_would_be_done(store, old, young, known)
            return
        for found in ended:
            if not _drop_staging(found, known) and found in old:
                warn(f"{_name(found)} stays in the log until they are dropped: only the log says whose they are")
                old.remove(found)
                young.append(found)
        # The rows say where files are: they go last, so that the next one makes good what is interrupted here.
        discard_files([folder for found in ended for folder in folders_of(found.uid, store.drivers(found.run_id))])
        for found in _not_left(store, ended):
            if found in old:
                warn(f"{_name(found)} stays in the log until its drivers have left their cluster")
                old.remove(found)
                young.append(found)
        rows = sum(_remove(store, found, payloads, unfinished=unfinished) for found in old)
        rows += sum(_tidy(store, found, payloads) for found in young)
        if payloads is not None and run is None and (left := sweep_removed(payloads, store)):
            out.print(
                f"{left:,} files of removed runs, which their drivers wrote afterwards, are removed", markup=False
            )
        out.print(f"{rows:,} rows of {len(ended)} ended run(s)", markup=False)
    for url, what in _buckets(root, ended, known).items():
        _say_what_is_kept(url, what)


def _buckets(root: str | None, runs: Sequence[Run], known: ConnectionUrls) -> dict[str, str]:
    """URL → what is there: the payload store, and what runs have published, as far as its place is known here."""
    ids = {conn_id for run in runs for conn_id in run.spec.connections.values()}
    published = filter(None, map(known.find, sorted(ids)))
    found = dict.fromkeys(published, "what runs have published") | ({} if root is None else {root: "the payload store"})
    return {url: what for url, what in found.items() if url.startswith(SCHEME)}


def _say_what_is_kept(url: str, what: str) -> None:
    """A bucket with versions keeps what is removed or replaced: only its owner ends that."""
    try:
        kept = kept_versions(url)
    except ConfigurationError as error:
        warn(f"whether the bucket of {what} keeps versions of what was removed is not known: {error}")
        return
    if kept is not None and (kept.versions or kept.markers):
        count = f"{'' if kept.is_all else 'more than '}{kept.versions:,}"
        out.print(
            f"the bucket of {what} has versions: {count} of {kept.bytes:,} bytes, and {kept.markers:,} marks of "
            f"removals, stay in {payload_roots.shown(url)}. A lifecycle rule of the bucket ends them "
            "(NoncurrentVersionExpiration, ExpiredObjectDeleteMarker)",
            markup=False,
        )


def _not_left(store: LogStore, ended: Sequence[Run]) -> Sequence[Run]:
    """Have drivers that are left on clusters ended, and remove what drivers of runs that the log does not have left there.

    Returns the runs of drivers whose end is not confirmed.
    """
    runs = [*ended, *(run for run, _ in store.unfinished())]
    submitted = [one.submission for run in runs for one in store.drivers(run.run_id) if one.submission is not None]
    if not submitted:
        return []
    managers = shared_answers().managers
    log_uid = store.log_uid()
    late = {one.ref.run_id for one in LeftDrivers(store, managers, [run.run_id for run in ended]).look_after()}
    for manager in {managers.at(one) for one in submitted if _is_known_here(managers, one)}:
        try:
            if count := manager.sweep(log_uid, lambda uid: is_known(store, uid)):
                out.print(f"{count} things of earlier runs' drivers are removed from {manager.name}", markup=False)
        except ManagerUnavailable as error:
            warn(f"what drivers have left with {manager.name} stays: {error}")
    return [run for run in ended if run.run_id in late]


def _is_known_here(managers: Managers, submission: Submission) -> bool:
    try:
        managers.at(submission)
    except ManagerUnavailable as error:
        warn(f"what drivers have left with {submission.manager} at {submission.address} stays: {error}")
        return False
    return True


def say_removed(store: LogStore, known: ConnectionUrls, payloads: str | None, pipeline: str) -> None:
    """Remove runs of a pipeline that are older than it says (`keep_runs`), and print what was removed."""
    for said in keeping.remove_old(store, keeping.Places(payloads, known.find), pipeline):
        out.print(said, markup=False)


def _age(text: str) -> float:
    try:
        return retention_seconds(text)
    except PipelineDefinitionError:
        raise typer.BadParameter(
            f"{text!r} is not understood: write a whole number of s, m, h, d or w: 12h, 30d, 26w",
            param_hint="--older-than",
        ) from None


def _ended(store: LogStore, name: str | None, *, unfinished: bool) -> Sequence[Run]:
    """Raises `UnknownRun`, and `ProtocolViolation` if the named run has not ended."""
    ended = store.removable(0.0, unfinished=unfinished)
    if name is None:
        return ended
    run = store.find_run(name, damaged=True)
    if not _of([run], ended):
        check_removable(run, _group_states(store, run), unfinished=unfinished)
        raise ProtocolViolation(f"run {run.spec.key} has just ended; try again")
    return [run]


def _group_states(store: LogStore, run: Run) -> GroupStates:
    slots = {group: sum(not slot.done for slot in store.slots(run.run_id, group)) for group in run.spec.replicated}
    states = {status.group: status.state for status in store.groups(run.run_id)}
    return GroupStates(states, {group: count for group, count in slots.items() if count})


def _of(runs: Sequence[Run], among: Sequence[Run]) -> list[Run]:
    ids = {run.run_id for run in among}
    return [run for run in runs if run.run_id in ids]


def _say_what_would_be_done(store: LogStore, old: Sequence[Run], young: Sequence[Run], known: ConnectionUrls) -> None:
    for run in old:
        out.print(f"would remove {_name(run)}", markup=False)
    staging = [table for run in (*old, *young) for table in _asked_for_staging(run, known)]
    for table in staging:
        out.print(f"would drop {table}, a staging table that a run has left", markup=False)
    files = [folder for run in (*old, *young) for folder in folders_of(run.uid, store.drivers(run.run_id))]
    for folder in files:
        out.print(f"would remove {folder}, the files of a run's drivers", markup=False)
    garbage = [(run, store.garbage(run.run_id)) for run in young]
    for run, rows in garbage:
        if rows:
            out.print(f"would collect {rows:,} rows of {_name(run)}", markup=False)
    if not old and not files and not staging and not any(rows for _, rows in garbage):
        out.print("nothing would be done")


def _remove(store: LogStore, run: Run, payloads: Payloads | None, *, unfinished: bool) -> int:
    with _showing(f"removing {_name(run)}") as progress:
        rows = tidying.remove(
            store,
            run.run_id,
            _discard(payloads),
            _clear(payloads, run),
            unfinished=unfinished,
            reason=BY_GC,
            patience=TERMINAL_PATIENCE,
            progress=progress,
        )
    out.print(f"removed {_name(run)}: {rows:,} rows", markup=False)
    return rows


def _tidy(store: LogStore, run: Run, payloads: Payloads | None) -> int:
    with _showing(f"collecting what {_name(run)} has left behind") as progress:
        rows = tidying.tidy(store, run.run_id, _discard(payloads), patience=TERMINAL_PATIENCE, progress=progress)
        if payloads is not None:  # the end of the run has swept before its last zombie had written
            try:
                sweep_run(payloads, store, run)
            except LogInconsistent as error:  # the next run is tidied all the same
                warn(f"{_name(run)}: files that nothing names stay: {error}")
    if rows:
        out.print(f"{_name(run)}: {rows:,} rows collected", markup=False)
    return rows


def _discard(payloads: Payloads | None) -> Discard:
    return (lambda _: None) if payloads is None else payloads.remove


def _clear(payloads: Payloads | None, run: Run) -> Callable[[], None]:
    """Removes all files of a run: those of attempts that have lost, and of zombies, too."""
    return (lambda: None) if payloads is None else (lambda: payloads.discard(payloads.find(run.uid), run.uid))


def _name(run: Run) -> str:
    return f"run {run.spec.key}, uid {run.uid[:8]}"


@contextmanager
def _showing(what: str) -> Iterator[Callable[[int], None]]:
    """Show how many rows have been removed so far; on a terminal only."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed:,.0f} rows"))
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True, disable=not err.is_terminal) as bars:
        task = bars.add_task(what, total=None)
        yield lambda rows: bars.advance(task, rows)


def _drop_staging(run: Run, known: ConnectionUrls) -> bool:
    """Whether none is left, as far as its connections are known here."""
    urls = _staged_in(run, known)
    try:
        if dropped := drop_staging_of(urls, run):
            out.print(f"{_name(run)}: {dropped} staging table(s) dropped", markup=False)
        return not staging_of(urls, run)
    except LogioError as error:
        warn(f"the staging tables of {_name(run)} are not dropped: {error}")
        return False


def _asked_for_staging(run: Run, known: ConnectionUrls) -> Sequence[str]:
    try:
        return staging_of(_staged_in(run, known), run)
    except LogioError as error:
        warn(f"whether {_name(run)} has left staging tables is unknown: {error}")
        return ()


def _staged_in(run: Run, known: ConnectionUrls) -> dict[str, str]:
    """The connections of a run, of those that are known here, in which there may be staging tables: name → URL."""
    urls = {name: known.find(conn_id) for name, conn_id in run.spec.connections.items()}
    return {name: url for name, url in urls.items() if url is not None and is_staged_in(url)}


def discard_files(folders: Sequence[Path]) -> None:
    removed = [folder for folder in folders if discard(folder)]
    if removed:
        out.print(f"files of the drivers of {len(removed)} run(s) removed", markup=False)
    for folder in folders:
        if folder not in removed:
            warn(f"{folder} stays: a driver still works there, or it is not yours to remove")


# --- the tables of the log --------------------------------------------------------------------------------------------


@db.command()
def upgrade(log: LogOption = None) -> None:
    """Create the tables of the log, or upgrade them to this version. No run may be active."""
    from airflow_logio.store.sql import migrate

    url = ConnectionUrls.load(warn).log_url(log)
    revision = migrate.upgrade(url)
    out.print(f"{shown(parse_url(url))} is at schema {revision}", markup=False)


@db.command("check")
def check_tables(log: LogOption = None) -> None:
    """Check whether the log has the tables that this version needs."""
    url = ConnectionUrls.load(warn).log_url(log)
    check_schema(url)
    out.print(f"{shown(parse_url(url))} has the tables that this version needs", markup=False)
