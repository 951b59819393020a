"""A replica without slots, over a log in memory: it waits, and takes itself out of use when all slots are done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.epochs import IdleEpoch
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import EpochVoid, LogUnavailable, ReplicaBusy
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import Context, encode_state
from airflow_logio.protocol.states import GroupState
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.replicated import GROUP, A, C, launch, replicated_run


class Idle:
    """Replica `C` of a group whose slots `A` and `B` own. What `first` raises, its first retirement meets."""

    def __init__(self, first: Exception | None = None) -> None:
        self.store = MemoryLogStore()
        self.run = replicated_run(self.store)
        self.driver = launch(self.store, self.run, C)
        self.refusals = [first] if first else []
        self.stop = threading.Event()
        settings = EpochSettings(
            cast(Any, None),  # it has no slot, so nothing of the pipeline runs
            self.run,
            C,
            Connections(C, {}, WriterIdentity(self.run.uid, 1, self.run.created_at), 1.0),
            SparkSessions(),
            lambda _: None,
            self.stop,
            slots_of=lambda group: self.store.slots(self.run.run_id, group),
        )
        self.epoch = IdleEpoch(settings, self.driver.session, self._retire)

    def _retire(self) -> None:
        if self.refusals:
            raise self.refusals.pop()
        self.store.rescale(self.run.run_id, GROUP, {}, retire=[C])

    def finish_all_slots(self) -> None:
        owner = launch(self.store, self.run, A)
        self.store.rescale(self.run.run_id, GROUP, dict.fromkeys(range(4), A))
        owner.session.open()
        for slot in range(4):
            ended = Context(ended={"in"}, finished=True, next_event={"out": 2})
            owner.session.commit([fx.StoreState(f"work[{slot}]", encode_state(ended, {}))])
        owner.session.commit([fx.FinishGroup()])

    @property
    def state(self) -> GroupState:
        return self.store.group(self.run.run_id, C).state


def test_it_waits_while_slots_have_work() -> None:
    idle = Idle()
    threading.Timer(0.6, idle.stop.set).start()
    assert idle.epoch.run() is False
    assert idle.state is GroupState.RUNNING


@pytest.mark.parametrize(
    "why", [lambda: None, lambda: ReplicaBusy("another process moves slots"), lambda: LogUnavailable("it restarts")]
)
def test_it_retires_when_all_slots_are_done_however_long_others_hold_it_up(why: Callable[[], Exception | None]) -> None:
    idle = Idle(first=why())
    idle.finish_all_slots()
    with pytest.raises(EpochVoid):
        idle.epoch.run()
    assert idle.state is GroupState.RETIRED
    assert idle.refusals == []
