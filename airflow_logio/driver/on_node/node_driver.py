"""A driver that a cluster manager has started on a node: all that a launcher gives to one of its own machine, it gets itself.

Managers start a driver a second time when they please, with the same arguments. The log admits one of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from airflow_logio.driver.endings import EXIT_CODES, Ending, cause_of, declare_dead, ending_of, park
from airflow_logio.driver.on_node.container import Container
from airflow_logio.driver.spark_session import IDLE_SECONDS, begin_idle_application
from airflow_logio.errors import Fenced
from airflow_logio.launch.driver_arguments import DriverArguments, own_submission
from airflow_logio.launch.driver_config import FINISHED, REPLACED, DriverConfig
from airflow_logio.launch.nodes import node_connections, told_launch
from airflow_logio.launch.nodes.node_connections import NodeConnections
from airflow_logio.launch.processes import own_identity
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, Submission
from airflow_logio.store.rules.session_rules import Patience

log = logging.getLogger(__name__)
YARN = "yarn"


def drive(told: DriverArguments, drive_with: Callable[[DriverConfig], int]) -> int:
    """Find out what the driver works with, and let it work; returns its exit code. Raises `LogioError` where not even the log
    can be told why it cannot."""
    submission = own_submission(told.submission, os.environ, Path.cwd())
    container = Container.entered()
    node = node_connections.of_this_node(told.connections, os.environ)
    has_begun = False
    try:
        found = _config(told, node, submission, container.folder)
        has_begun = isinstance(found, DriverConfig)
        code = drive_with(found) if isinstance(found, DriverConfig) else found
    except Fenced as error:
        log.warning("%s", error)
        code = REPLACED
    if code != REPLACED or submission.manager != YARN:
        return code
    # To YARN it succeeds. Behind an attempt that fails, as one does that makes no Spark context, it may begin another one.
    if not has_begun:
        begin_idle_application().join(IDLE_SECONDS)
    return FINISHED


def _config(told: DriverArguments, node: NodeConnections, submission: Submission, folder: Path) -> DriverConfig | int:
    """What the driver works with, or its exit code if the log was told why it cannot work. Raises `Fenced`, `UnknownRun`."""
    store = Patience().call("opening the log", lambda: open_store(node.log_url))
    try:
        run, claim = store.patience.call("reading the claim", lambda: told_launch.claim_of(store, told, node))
        try:
            return replace(told_launch.config_of(store, run, claim, told, node, folder), submission=submission)
        except Exception as error:
            return _refused(store, claim, submission, error)
    finally:
        store.dispose()


def _refused(store: LogStore, claim: Claim, submission: Submission, error: Exception) -> int:
    """Take the place only to say why nothing can be done in it. Raises `Fenced`."""
    ending = ending_of(error)
    log.error("group %s cannot work here: %s", claim.group, cause_of(error), exc_info=error)
    if ending in (Ending.PARKED, Ending.DEAD):
        identity = own_identity()
        ref = store.patience.call("registering", lambda: store.register(claim, identity, reported=submission))
        if ending is Ending.PARKED:
            park(store, ref, cause_of(error))
        else:
            declare_dead(store, ref, cause_of(error), at=None)
    return EXIT_CODES[ending]
