"""A driver that a cluster manager starts: what is refused before its claim, and from the claim to *accepted*.

Dead before the note: nothing was submitted. Dead behind it: a look finds the driver by its name, or the deadline passes; the
driver registers by itself. Two launchers at once: one claim fails, and nothing is submitted for a claim that is void.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from msgspec import structs

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.databases import parse_url, shown
from airflow_logio.errors import ConfigurationError, Fenced, ManagerUnavailable, NeverFits, SubmissionUnknown
from airflow_logio.launch import spark_settings, spark_submit
from airflow_logio.launch.driver_arguments import CONNECTIONS_PROPERTY, checked_file
from airflow_logio.launch.driver_config import DriverKind, Launch
from airflow_logio.launch.managers.cluster_manager import ClusterManager
from airflow_logio.launch.managers.known_managers import Managers
from airflow_logio.launch.managers.submission_server import SCHEME as STANDALONE
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, GroupRef, Submission

log = logging.getLogger(__name__)


def check_possible(settings: SparkSettings, log_url: str, kind: DriverKind, *, standby: bool) -> None:
    """Refuse what a driver on a node cannot have, and a launch for which this machine has no spark-submit that could submit
    it. Raises `ConfigurationError`."""
    if spark_settings.is_client(settings):
        raise ConfigurationError(
            "deploy_mode='cluster' and a Spark Connect server exclude each other: a server that is shared is found on the "
            "machine of its drivers only. Leave one of them out"
        )
    if log_url.startswith("sqlite"):
        raise ConfigurationError(
            f"deploy_mode='cluster' needs a log that all nodes reach, and {shown(parse_url(log_url))} is a file of this "
            "machine: use PostgreSQL for the log"
        )
    named = settings.conf.get(CONNECTIONS_PROPERTY)
    if named is not None:
        checked_file(named, CONNECTIONS_PROPERTY)
    if standby:
        raise ConfigurationError(
            "a process that stands by is on its driver's machine, which only the launching machine can be: leave standby "
            "out of the group, or use deploy_mode='client'"
        )
    if kind is DriverKind.SPARK_SUBMIT and not settings.master.startswith(STANDALONE):
        spark_submit.find_spark_submit(settings.spark_binary, spark_submit.environment(settings))
        spark_submit.check_java()


def submit(store: LogStore, manager: ClusterManager, claim: Claim, launch: Launch, access: str = "") -> None:
    """Submit the driver of a claim: note as what, submit it, note its id. `access` as `Submission` has it.

    A lost answer is no failure: the driver may come, and is looked for. Raises `ConfigurationError` if it was refused, and
    the group is dead then, or parked if it would be refused each time (`NeverFits`); `ManagerUnavailable` if it is refused
    for now, which spends no budget; `Fenced` if the claim is void by now: nothing was submitted.
    """
    ref = GroupRef(claim.run_id, claim.group, claim.incarnation)
    noted = structs.replace(manager.prepare(claim, launch), access=access)
    crash_here(CrashPoint.BEFORE_SUBMISSION_NOTE)
    if not store.submitting(claim, noted):
        raise Fenced(
            f"group {claim.group!r} was claimed by another process before incarnation {claim.incarnation} left"
        )
    log.info("group %s, incarnation %d: submitting %s to %s", claim.group, claim.incarnation, noted.name, noted.address)
    crash_here(CrashPoint.BEFORE_SUBMISSION)
    try:
        submission = manager.submit(noted, claim, launch)
    except SubmissionUnknown as error:
        log.warning("group %s, incarnation %d: %s", claim.group, claim.incarnation, error)
        store.submitted(claim, log_path=None, launcher=None)
        return
    except NeverFits as error:
        store.park(ref, f"launch failed: {error}")  # nothing was submitted, so that no driver can have registered
        raise
    except Exception as error:
        spends_nothing = isinstance(error, ManagerUnavailable)  # such as a quota that is used up: not for now
        store.declare_dead(ref, f"launch failed: {error}", unregistered=True, was_taken=spends_nothing)
        raise
    log.info("group %s, incarnation %d: accepted as %s", claim.group, claim.incarnation, submission.id)
    crash_here(CrashPoint.AFTER_SUBMISSION)
    store.patience.call("noting the driver's id", lambda: store.note_id(ref, submission))
    store.submitted(claim, log_path=None, launcher=None)


def end(managers: Managers, submissions: Collection[Submission]) -> bool:
    """Ask for the end of what was submitted; whether all of it is confirmed. Never raises: it is asked again."""
    confirmed = True
    for submission in submissions:
        try:
            confirmed &= managers.at(submission).end(submission)
        except Exception as error:  # also of a manager's client: the next driver is not kept from its launch
            log.info("the end of %s is not known: %s", submission.id or submission.name, error)
            confirmed = False
    return confirmed
