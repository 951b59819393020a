"""A run with a replicated group, driven by hand over a log: ``feed`` → ``work`` in slots, by replicas → ``end``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import tenacity

from airflow_logio.errors import LogUnavailable, ReplicaBusy
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.replicas import Placement, Slot
from airflow_logio.protocol.values import Event, Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import OperatorShape, ReplicatedShape, Run, RunSpec
from tests.support.logs import SOMEBODY, UNDONE, Driver, spec, start_driver

GROUP = "work"
REPLICAS = ("work.1", "work.2", "work.3")
A, B, C = REPLICAS


def replicated_spec(*, slots: int = 4, initial: int = 2, least: int = 0, dag_run: str = "run-1") -> RunSpec:
    shapes = {"feed": OperatorShape("feed", {}, tuple(f"slot{n}" for n in range(slots)))}
    for n in range(slots):
        shapes[f"work[{n}]"] = OperatorShape(GROUP, {"in": f"feed.slot{n}"}, ("out",))
    shapes["end"] = OperatorShape("end", {f"slot{n}": f"work[{n}].out" for n in range(slots)})
    return replace(
        spec("feed", *REPLICAS, "end", dag_run=dag_run, budget=RecoveryBudget(recoveries=9)),
        operators=shapes,
        replicated={GROUP: ReplicatedShape(REPLICAS, slots, initial, least)},
    )


def replicated_run(store: LogStore, *, slots: int = 4, initial: int = 2, dag_run: str = "run-1") -> Run:
    return store.start_run(replicated_spec(slots=slots, initial=initial, dag_run=dag_run))


def launch(store: LogStore, run: Run, name: str) -> Driver:
    """A driver of a group, launched as a person does it: also of one that is retired."""
    status = store.group(run.run_id, name)
    claim = store.claim(run.run_id, name, expected=status.incarnation, reason="test", by_user=True)
    ref = store.register(claim, SOMEBODY)
    session = store.session(ref)
    session.open()
    return Driver(store, run, claim, ref, session)


def rescale_at_last(store: LogStore, run: Run, placement: Placement, *, retire: Collection[str] = ()) -> int:
    """As the executor of a request does: a step or another move that takes its time only delays this one."""
    busy = tenacity.retry_if_exception_type((ReplicaBusy, LogUnavailable))
    again = tenacity.Retrying(
        retry=busy, wait=tenacity.wait_fixed(0.01), stop=tenacity.stop_after_delay(30), reraise=True
    )
    return again(store.rescale, run.run_id, GROUP, placement, retire=retire)


def owners(store: LogStore, run: Run) -> list[str | None]:
    return [slot.owner for slot in store.slots(run.run_id, GROUP)]


def slots(store: LogStore, run: Run) -> list[Slot]:
    return list(store.slots(run.run_id, GROUP))


def to_slot(event_id: int, slot: int) -> fx.LogEvent:
    """An event of the feeder for one slot."""
    return fx.LogEvent(Event(Port("feed", f"slot{slot}"), event_id, records=1, body=b"x"), (fx.Delivery(inbox(slot)),))


def taken(event_id: int, slot: int, inset: str = "I") -> fx.Acknowledge:
    """Step 4 of a slot's operator, or what it means for delivery: the event is in an Input Set."""
    return fx.Acknowledge(Port("feed", f"slot{slot}"), inbox(slot), event_id, ((inset, UNDONE),))


def inbox(slot: int) -> Port:
    return Port(f"work[{slot}]", "in")


def feeder(store: LogStore, run: Run) -> Driver:
    return start_driver(store, group="feed", run=run)
