"""Recovers groups from the triggerer, where that starts the driver which a worker would start.

A worker comes when the scheduler has found a slot for the task that recovers: seconds on a busy installation, hours where all
slots are taken. The triggerer is there. It imports no author's code and asks for no slot, so from the look that finds a death
to the claim it takes a fraction of a second. Nothing is decided here that a worker decides otherwise: the one `recover_group`
claims, ends the old driver and starts the new one, in this order. The triggerer may die

- before the claim: the group is dead in the log, and the next look of any supervisor finds that;
- in the claim's transaction: the database rolls it back, as if before;
- between claim and launch: the launch's deadline passes, and the group is dead again, as after the death of a worker there;
- after the launch: the driver, in a session of its own, is a child of no triggerer any more, and registers by itself. One on
  a cluster was noted before it was submitted, and is found by its name.

A driver on a cluster is launched by any process that has what its manager asks for: HTTP, or `spark-submit` with Java.

Of two that claim (two triggerers, or the triggerer and a worker), one is refused and starts nothing. No claim is left for
another process to launch: until a worker comes, a driver that was declared dead and lives may still finish, no deadline runs,
and no recovery of the budget is spent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from airflow_logio import _compat
from airflow_logio._compat import RecoverInTriggerer
from airflow_logio.errors import ConfigurationError, LogUnavailable, ManagerUnavailable
from airflow_logio.hooks.connections import connection_urls
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.hooks.spark import spark_target
from airflow_logio.launch import bundle, spark_submit, surroundings
from airflow_logio.launch.driver_folders import work_folder
from airflow_logio.launch.launcher import LaunchContext, Launcher, LocalProcessLauncher, NotedLaunch
from airflow_logio.launch.managers.submission_server import SCHEME as STANDALONE
from airflow_logio.launch.spark_settings import SparkArguments, SparkSettings, is_on_cluster, local_files
from airflow_logio.protocol.states import GroupState
from airflow_logio.status.last_words import last_words
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupNeeds, LaunchRecipe
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.findings import FailedGroup
from airflow_logio.supervision.tend import RecoveryOutcome, RecoveryResult, recover_group
from airflow_logio.triggers.log_poller import Share

log = logging.getLogger(__name__)
PATIENCE_SECONDS = 5.0
"""After that a worker is woken, too, whatever keeps the triggerer from its claim: a connection that Airflow does not tell, or
many that have died at once."""
AGAIN_SECONDS = 2.0
"""Between two questions to a cluster manager that does not answer."""


@dataclass(slots=True)
class _Attempt:
    began: float
    result: Future[RecoveryResult | None]
    """None: it is left to a worker."""
    ended: float | None = None


def _is_under_way(attempt: _Attempt) -> bool:
    return attempt.ended is None and time.monotonic() - attempt.began <= PATIENCE_SECONDS


class TriggererRecovery:
    """Recovers what a trigger finds, each in a thread of the log's poller. For the trigger's own looks, which come one after
    the other."""

    def __init__(self, logio_conn_id: str, share: Share) -> None:
        self._conn_id = logio_conn_id
        self._share = share
        self._attempts: dict[tuple[str, str, int], _Attempt] = {}
        self._given_up: set[tuple[str, str]] = set()
        """Groups that could not be launched from here. What fails behind a claim would fail again, and spend their budget."""
        self._parked: Queue[dict[str, Any]] = Queue()
        share.launch(lambda store: _warm_up())

    def left(self, failed: Sequence[FailedGroup], asked_at: float) -> tuple[FailedGroup, ...]:
        """Begin to recover what was not seen before; what a worker is to recover of what a look found that asked then, in
        monotonic seconds. Waits for nothing."""
        return tuple(one for one in failed if self._is_left(one, asked_at))

    def is_busy(self) -> bool:
        """Whether what becomes of a group is about to be known."""
        return any(map(_is_under_way, self._attempts.values()))

    def parked(self) -> Iterator[dict[str, Any]]:
        """Recoveries that have parked their group instead, as plain data, each once."""
        with suppress(Empty):
            while True:
                yield self._parked.get_nowait()

    def _is_left(self, failed: FailedGroup, asked_at: float) -> bool:
        key = (failed.run_uid, failed.group, failed.incarnation)
        attempt = self._attempts.get(key)
        if attempt is None:
            # One under way for the incarnation before may have made this one dead: it is about to give the group up.
            others = [one for other, one in self._attempts.items() if key[:2] == other[:2]]
            if key[:2] not in self._given_up and not any(map(_is_under_way, others)):
                self._attempts[key] = self._begun(failed, time.monotonic())
            return key[:2] in self._given_up
        late = time.monotonic() - attempt.began > PATIENCE_SECONDS
        if not attempt.result.done() or attempt.ended is None:
            return late
        error = attempt.result.exception()
        if isinstance(error, LogUnavailable) and not late:
            self._attempts[key] = self._begun(failed, attempt.began)
            return False
        if isinstance(error, ManagerUnavailable):  # a worker may reach it; until one does, nothing is spent
            if time.monotonic() - attempt.ended >= AGAIN_SECONDS:
                self._attempts[key] = self._begun(failed, attempt.began)
            return late
        # What a look has asked before the claim may be old. After it, this incarnation is not dead any more.
        return error is not None or attempt.result.result() is None or asked_at > attempt.ended

    def _begun(self, failed: FailedGroup, began: float) -> _Attempt:
        attempt = _Attempt(began, Future())

        def act(store: LogStore) -> None:
            try:
                attempt.result.set_result(self._recover(store, failed))
            except BaseException as error:
                attempt.result.set_exception(error)
                raise
            finally:
                attempt.ended = time.monotonic()

        try:
            self._share.launch(act)
        except RuntimeError as error:  # the poller has ended: so does this trigger
            attempt.result.set_exception(error)
            attempt.ended = time.monotonic()
        return attempt

    # --- in a thread --------------------------------------------------------------------------------------------------

    def _recover(self, store: LogStore, failed: FailedGroup) -> RecoveryResult | None:
        """Returns None where a worker is to do it. Nothing has changed then, or the launch has failed behind its claim, which
        makes the next incarnation dead. Raises `LogUnavailable`, and `ManagerUnavailable`: nothing has changed."""
        run = store.find_run(failed.run_uid)
        status = store.group(run.run_id, failed.group)
        if (status.state, status.incarnation) != (GroupState.DEAD, failed.incarnation):
            return RecoveryResult(failed.group, status.incarnation, RecoveryOutcome.NOT_NEEDED, status.state.value)
        recipe = store.launch_recipe(run.run_id, failed.group)
        try:
            context = _context(store, self._conn_id, run, status, recipe)
            result = recover_group(context, failed.group, failed=failed.incarnation, cause=failed.cause)
        except LogUnavailable:
            raise
        except ManagerUnavailable as error:
            log.warning(
                "%s is dead: %s. It is not launched for now, and no recovery is spent: %s", failed, failed.cause, error
            )
            raise
        except Exception as error:  # a worker may have what is missing here, and says what it lacks itself
            self._given_up.add((failed.run_uid, failed.group))
            log.warning("%s is dead: %s. It is left to a worker: %s", failed, failed.cause, error)
            return None
        if result.outcome is RecoveryOutcome.PARKED:
            nothing = dict.fromkeys(("launched_incarnation", "fenced_at", "launched_at"))
            self._parked.put({**failed.as_dict(), "outcome": result.outcome.value, "why": result.why, **nothing})
        _tell(store, run, status, failed, result)
        return result


def why_elsewhere(status: GroupStatus, recipe: LaunchRecipe | None) -> str | None:
    """Why this process launches no driver of a group, wherever that would be; None if it may."""
    if _compat.recover_in_triggerer() is RecoverInTriggerer.NEVER:
        return "[logio] recover_in_triggerer is never"
    if status.own_place:
        return "its own task launches it"
    if recipe is None or recipe.needs is None or recipe.needs.code != status.code:
        return f"the log does not say what a launch with code {status.code} needs"
    return None


def _not_here(settings: SparkSettings, needs: GroupNeeds) -> str | None:
    """What a launch on a cluster takes from the machine that submits, and this one may lack or have otherwise; None if that
    is nothing. What its manager needs of a process, the launch checks before its claim."""
    if settings.master.startswith(STANDALONE):  # all of it is on the nodes
        return None
    if files := local_files(settings, needs.properties):
        return f"{', '.join(files)} may be another file on the machine of the triggerer"
    return "the ticket cache is that of the workers" if settings.use_krb5ccache else None


def _not_beside(store: LogStore, run: Run, status: GroupStatus) -> str | None:
    """What the last driver had and the next one would not get from this process, of its machine, its folder, its control
    group, its user and its environment; None if it would get all. A driver may take what memory the container of a triggerer
    has, and end that with itself."""
    path = status.log_path or _last_log(store, run, status.group)
    if path is None:
        return "it had no driver, so it is not known where one may run"
    if work_folder(path) != _compat.work_dir().resolve():
        return f"the triggerer has another [logio] work_dir than {work_folder(path)}"
    differs = surroundings.difference(Path(path).parent)
    return None if differs is None else f"the triggerer does not have {differs}"


def _last_log(store: LogStore, run: Run, group: str) -> str | None:
    """Where the last driver of a group has printed: the process that claimed the group since then died before it launched."""
    drivers = [one for one in store.drivers(run.run_id) if one.group == group and one.log_path is not None]
    return max(drivers, key=lambda one: one.incarnation).log_path if drivers else None


def make_launcher() -> Launcher:
    """What starts the processes of drivers, on the machine of the triggerer."""
    return LocalProcessLauncher(_compat.work_dir())


def _warm_up() -> None:
    """Ask Java for its version now, once per process: a machine on which a driver has just died has no second for it."""
    with suppress(ConfigurationError):
        if _compat.recover_in_triggerer() is not RecoverInTriggerer.NEVER:
            spark_submit.check_java()


def _context(
    store: LogStore, conn_id: str, run: Run, status: GroupStatus, recipe: LaunchRecipe | None
) -> LaunchContext:
    """Raises `ConfigurationError`, also where a worker is to launch, and Airflow's error for a missing connection."""
    elsewhere = why_elsewhere(status, recipe)
    if elsewhere is not None or recipe is None or recipe.needs is None:
        raise ConfigurationError(elsewhere or "there is no recipe")
    settings = SparkArguments.from_given(recipe.arguments).settings(spark_target(recipe.spark_conn_id))
    if _compat.recover_in_triggerer() is not RecoverInTriggerer.ALWAYS:
        on_cluster = is_on_cluster(settings)
        elsewhere = _not_here(settings, recipe.needs) if on_cluster else _not_beside(store, run, status)
        if elsewhere is not None:
            raise ConfigurationError(elsewhere)
    hook, root = LogioHook(conn_id), Path(run.spec.bundle_root)
    return LaunchContext(
        store,
        hook.get_url(),
        run,
        None,
        bundle.parse_ref(run.spec.pipeline_ref, root),
        connection_urls(recipe.needs, run, recipe),
        make_launcher(),
        settings,
        hook.get_payloads(),
        code=recipe.needs.code,
        known=NotedLaunch(recipe.needs),
    )


def _tell(store: LogStore, run: Run, status: GroupStatus, failed: FailedGroup, result: RecoveryResult) -> None:
    if result.outcome is RecoveryOutcome.NOT_NEEDED:
        log.info("%s: %s", failed, result.why)
        return
    log.warning("%s is dead: %s\n%s", failed, failed.cause, last_words(store, run, status))
    if result.outcome is RecoveryOutcome.PARKED:
        log.error("%s is parked: %s", failed, result.why)
    else:
        log.warning("%s is launched as incarnation %s, by the triggerer", failed, result.incarnation)
