"""The epochs of one incarnation, one after the other, until the group has finished or halts.

A void epoch is rebuilt from the log in place, under the next one. So is an epoch whose operator failed at the first thing
that it had to do (ADR-70), and one that has lost Spark. A replica that owns no slot waits in an epoch of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.driver.channel import POLL_SECONDS
from airflow_logio.driver.epoch import GroupEpoch, holding, may_be_tried_again, moves_explain, operators_of
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.mailbox import Doing
from airflow_logio.driver.manual_epoch import ManualEpoch, manual_operator
from airflow_logio.errors import (
    EpochVoid,
    FailedAtOnce,
    LogUnavailable,
    OperatorFailed,
    ProtocolViolation,
    ReplicaBusy,
    SparkLost,
)
from airflow_logio.protocol.life import Life, LifeStep
from airflow_logio.protocol.recovery import Recovered
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.records.driver_records import GroupRef

log = logging.getLogger(__name__)


class Epochs:
    """`protocol.life` decides what is due; this class does it. For the main thread of a driver."""

    def __init__(self, settings: EpochSettings, store: LogStore, ref: GroupRef) -> None:
        self._settings = settings
        self._store = store
        self._ref = ref
        self._life = Life(is_replica=replicated_group(settings.group) in settings.pipeline.replicated)
        self._first = FirstFailure(ref.incarnation)

    def run(self) -> bool:
        """Run epochs. True if the group has finished, False if it has halted. Raises what ends the process."""
        while True:
            with closing(self._store.session(self._ref)) as session:
                try:
                    return self._live(session)
                except EpochVoid as void:
                    log.warning("%s; rebuilding from the log", void)
                except OperatorFailed as error:
                    self._first.check(error)
                    log.warning("%s\ntrying again in this process, from the log", error)
                except SparkLost as error:
                    if error.must_end or not self._settings.sessions.returns():
                        raise
                    log.warning(
                        "%s\nanother session is being made; what was under way begins again, from the log", error
                    )
                self._life.void()
            self._life.stopped()  # `GroupEpoch.run` has joined its threads

    def _live(self, session: GroupSession) -> bool:
        """One epoch. True if the group has finished, False if it has halted. Raises `EpochVoid`."""
        if self._begun(session).run():
            return True
        self._life.halt()
        log.info("group %s halts on request", self._ref.group)  # the threads are joined, and none of them has failed
        crash_here(CrashPoint.BEFORE_HALT)
        self._store.patience.call("halting", lambda: self._store.halted(self._ref))
        crash_here(CrashPoint.AFTER_HALT)
        return False

    def _begun(self, session: GroupSession) -> GroupEpoch | IdleEpoch | ManualEpoch:
        """Take the steps of `Life` that begin an epoch."""
        life, settings = self._life, self._settings
        epoch, slots = 0, None
        recovered: Recovered
        while True:
            match life.wants:
                case LifeStep.OPEN:
                    epoch = self._open(session)
                    if (by_hand := manual_operator(settings.pipeline, settings.group)) is not None:
                        return ManualEpoch(settings, session, epoch, by_hand)
                    life.done(LifeStep.OPEN)
                case LifeStep.ASK_SLOTS:
                    slots = self._ask_slots(session)
                case LifeStep.READ:
                    crash_here(CrashPoint.BEFORE_RECOVERY)
                    with moves_explain(session, slots):
                        recovered = session.recover(operators_of(settings, slots), holding(settings, slots))
                    life.done(LifeStep.READ)
                case LifeStep.REBUILD:
                    life.done(LifeStep.REBUILD)
                    return GroupEpoch(settings, session, epoch, recovered, slots)
                case LifeStep.WAIT:
                    return IdleEpoch(settings, session, self._retire)
                case _:
                    raise ProtocolViolation("a void epoch is stopped before the next one begins")

    def _open(self, session: GroupSession) -> int:
        raises = self._life.raises_epoch
        if raises:
            crash_here(CrashPoint.BEFORE_REBUILD)
        fence = self._store.patience.call("opening the fence", lambda: session.open(raise_epoch=raises))
        if raises:
            crash_here(CrashPoint.AFTER_REBUILD)
        return fence.epoch

    def _ask_slots(self, session: GroupSession) -> Mapping[int, int]:
        slots = self._store.patience.call("asking for its slots", session.slots)
        log.info("replica %s owns slots %s", self._ref.group, sorted(slots) or "none")
        self._life.done(LifeStep.ASK_SLOTS)
        if not slots:
            self._life.owns_nothing()
        return slots

    def _retire(self) -> None:
        group = self._ref.group
        self._store.rescale(self._ref.run_id, replicated_group(group), {}, retire=[group])


class FirstFailure:
    """What the first incarnation of a group remembers, over its epochs, of an error at the first thing that an operator did.

    It is tried once more in the same process, then the group is parked (ADR-70).
    """

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._point: str | None = None

    def check(self, error: OperatorFailed) -> None:
        """Return if the group may try again in this process. Raises `FailedAtOnce` if it has and failed at the same place,
        and `error` itself where a new driver is to try."""
        if not may_be_tried_again(error, self._incarnation):
            raise error
        if self._point == str(error.at):
            raise FailedAtOnce(
                f"it failed at {error.at}, the first that the operator had to do, and once more when that was tried again: "
                f"{error}"
            ) from error
        if self._point is not None:
            raise error
        self._point = str(error.at)


class IdleEpoch:
    """An epoch of a replica that owns no slot: warm, and waiting for one. Moves raise its epoch (`protocol/replicas.py`).

    `retire` takes the replica out of use: called when it can get no slot any more, because all are done.
    """

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
