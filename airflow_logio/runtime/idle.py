"""An epoch of a replica that owns no slot: warm, and waiting for one. Moves raise its epoch (protocol/replicas.py)."""

from __future__ import annotations

import logging

from airflow_logio.errors import LogUnavailable
from airflow_logio.runtime.channel import POLL_SECONDS
from airflow_logio.runtime.load import Doing
from airflow_logio.runtime.settings import EpochSettings
from airflow_logio.store.port import GroupSession

log = logging.getLogger(__name__)


class IdleEpoch:
    def __init__(self, settings: EpochSettings, session: GroupSession) -> None:
        self._settings = settings
        self._session = session

    def run(self) -> bool:
        """Wait until the epoch is void: a slot came, or the replica is retired. False if it was asked to halt."""
        log.info("replica %s owns no slot: it waits for one", self._settings.group)
        self._settings.load.now(Doing.IDLE)
        while not self._settings.stop_requested.is_set():
            self._settings.sessions.raise_if_failed()
            try:
                self._session.wait(POLL_SECONDS)
                self._session.check()
            except LogUnavailable as error:
                log.debug("waiting for a slot: %s", error)
                self._settings.stop_requested.wait(POLL_SECONDS)
        return False
