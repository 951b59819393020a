"""What a replica finds strange while its slots move is not its fault: its epoch is void, and it continues in the next one."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_logio.dataflow import Count, Pipeline, RoundRobin, stateless
from airflow_logio.driver.epoch import GroupEpoch, operators_of
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import EpochVoid, ExternalUnavailable, LogInconsistent, OperatorFailed, ProtocolViolation
from airflow_logio.launch.start_run import operator_shapes
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.recovery import Recovered
from airflow_logio.protocol.values import Event, Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import ReplicatedShape, Run
from airflow_logio.systems.arrow import encode
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.testing import ScriptedSource
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import Driver, spec
from tests.support.replicated import REPLICAS, A, B, launch

RECORDS = pa.table({"value": [1]})
INTO, OUT_OF = Port("work[0]", "in"), Port("dispatch(work)", "slot0")


class Moving:
    """Where the slots move while the replica is at work."""

    def __init__(self) -> None:
        self.store: LogStore = MemoryLogStore()
        self.run: Run
        self.moves = True

    def move(self) -> None:
        if self.moves:
            self.store.rescale(self.run.run_id, "work", {0: B})


moving = Moving()


@stateless
def odd(records: pa.Table) -> pa.Table:
    moving.move()
    raise ValueError("an odd record")


@pytest.fixture
def replica() -> Driver:
    """The first replica, which owns all slots; event 1 waits at slot 0."""
    global moving  # noqa: PLW0603  # the operator is a function of the module
    moving = Moving()
    shape = ReplicatedShape(REPLICAS, 3, 1)
    base = spec("read", *REPLICAS, "done")
    run = moving.run = moving.store.start_run(
        replace(base, operators=operator_shapes(pipeline()), replicated={"work": shape})
    )
    feeder, mine = launch(moving.store, run, "read"), launch(moving.store, run, A)
    launch(moving.store, run, B)
    event = Event(OUT_OF, 1, records=1, body=encode(RECORDS))
    feeder.session.commit([fx.LogEvent(event, (fx.Delivery(INTO),))])
    return mine


def pipeline() -> Pipeline:
    made = Pipeline("mine")
    read = made.source("read", ScriptedSource(RECORDS, 1))
    work = made.operator("work", odd, read)
    made.sink("done", Count(), work)
    made.replicate(work, partition=RoundRobin(slots=3), max=3)
    return made.freeze()


def epoch_of(driver: Driver, stop_requested: threading.Event | None = None) -> GroupEpoch:
    run = driver.run
    connections = Connections("p", {}, WriterIdentity(run.uid, driver.ref.incarnation, run.created_at), 1.0)
    settings = EpochSettings(
        pipeline(),
        run,
        driver.ref.group,
        connections,
        SparkSessions(),
        lambda _: None,
        stop_requested or threading.Event(),
    )
    epoch, slots = driver.session.open().epoch, driver.session.slots()
    recovered = driver.session.recover(operators_of(settings, slots))
    return GroupEpoch(settings, driver.session, epoch, recovered, slots)


def test_an_error_while_its_slots_move_voids_the_epoch(replica: Driver) -> None:
    with pytest.raises(EpochVoid):
        epoch_of(replica).run()


def test_an_error_of_its_own_is_one(replica: Driver) -> None:
    moving.moves = False
    with pytest.raises(OperatorFailed, match="an odd record"):
        epoch_of(replica).run()


def test_an_event_that_its_new_owner_has_used_is_no_damage(replica: Driver) -> None:
    """The next one comes to the old owner with a gap before it: parking for that would need a person."""
    epoch = epoch_of(replica)
    moving.move()
    epoch._mailbox.put_input((INTO, Event(OUT_OF, 5, records=1, body=encode(RECORDS))), 0)
    with pytest.raises(EpochVoid):
        epoch.run()


def test_a_gap_of_its_own_is_damage(replica: Driver) -> None:
    epoch = epoch_of(replica)
    epoch._mailbox.put_input((INTO, Event(OUT_OF, 5, records=1, body=encode(RECORDS))), 0)
    with pytest.raises(ProtocolViolation, match="an event is missing"):
        epoch.run()


def halting(driver: Driver, failure: Exception | None) -> GroupEpoch:
    """It is asked to halt at once; a thread fails while it is joined, so that the loop does not see it."""
    stop = threading.Event()
    stop.set()
    epoch = epoch_of(driver, stop)
    epoch._mailbox.get = lambda *_, **__: None  # type: ignore[method-assign]
    if failure is not None:
        epoch._fail(failure)
    return epoch


def test_a_halt_does_not_hide_what_the_log_has_refused(replica: Driver) -> None:
    assert halting(replica, None).run() is False
    with pytest.raises(LogInconsistent, match="commit 7"):
        halting(replica, LogInconsistent("commit 7 was refused")).run()
    moved = halting(replica, LogInconsistent("a row is missing"))
    moving.move()
    with pytest.raises(EpochVoid):
        moved.run()


def test_an_unavailable_system_does_not_keep_a_group_from_halting(replica: Driver) -> None:
    assert halting(replica, ExternalUnavailable("the warehouse")).run() is False


class Watched(Recovered):
    __slots__ = ("__weakref__",)


def test_what_recovery_has_read_is_let_go_when_memory_is_rebuilt(
    replica: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the bodies of everything undone, a second time."""
    epoch = epoch_of(replica)
    read = epoch._recovered
    assert read is not None
    epoch._recovered = Watched(read.states, read.snapshots, read.acknowledged, read.writes)
    watched, alive = weakref.ref(epoch._recovered), list[bool]()

    def look(_point: object) -> None:
        alive.append(watched() is not None)
        raise EpochVoid("far enough")

    monkeypatch.setattr("airflow_logio.driver.epoch.crash_here", look)
    with pytest.raises(EpochVoid, match="far enough"):
        epoch.run()
    assert alive == [False]
