"""An epoch of a replica that owns no slot: warm, and waiting for one. Moves raise its epoch (protocol/replicas.py)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_logio.driver.channel import POLL_SECONDS
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.heartbeat import Doing
from airflow_logio.errors import LogUnavailable, ProtocolViolation, ReplicaBusy
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.store.port.session_port import GroupSession

log = logging.getLogger(__name__)


class IdleEpoch:
    """`retire` takes the replica out of use: called when it can get no slot any more, because all are done."""

    def __init__(self, settings: EpochSettings, session: GroupSession, retire: Callable[[], None]) -> None:
        self._settings = settings
        self._session = session
        self._retire = retire

    def run(self) -> bool:
        """Wait until the epoch is void: a slot came, or the replica is retired. False if it was asked to halt."""
        log.info("replica %s owns no slot: it waits for one", self._settings.group)
        self._settings.load.now(Doing.IDLE)
        while not self._settings.stop_requested.is_set():
            self._settings.sessions.raise_if_failed()
            try:
                self._session.wait(POLL_SECONDS)
                self._session.check()
                self._retire_if_useless()
            except (LogUnavailable, ReplicaBusy) as error:
                log.debug("waiting for a slot: %s", error)
                self._settings.stop_requested.wait(POLL_SECONDS)
        return False

    def _retire_if_useless(self) -> None:
        """Otherwise it would hold up the end of the run: it finishes nothing, and the process that launched it may be
        gone."""
        if not all(slot.done for slot in self._settings.slots_of(replicated_group(self._settings.group))):
            return
        try:
            self._retire()
        except ProtocolViolation as error:  # the run was ended or given up; its driver learns that another way
            log.info("replica %s is not retired: %s", self._settings.group, error)
