"""Hand-written operators without a process of their own: handles over a log, as drivers make them, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_logio.contrib.paper_api import ActionInfo, EventInfo, Logio, StateInfo, StreamEvent
from airflow_logio.dataflow import Count, ManualOperator, Pipeline
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.manual_epoch import ManualEpoch
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.start_run import run_spec
from airflow_logio.protocol import effects as fx
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.systems.connections import Connections, WriterIdentity
from tests.support.logs import SOMEBODY


class Died(BaseException):
    """Stands for SIGKILL: no author's code catches it."""


class Feed(ManualOperator):
    inputs = ()

    def run(self, logio: Logio) -> None:
        raise NotImplementedError


class Middle(ManualOperator):
    """Lineage is captured from port ``a`` to port ``out``; ``b`` and ``rest`` are outside."""

    inputs = ("a", "b")
    outputs = ("out", "rest")

    def connections(self) -> tuple[str, ...]:
        return ("wh", "elsewhere")

    def writes(self) -> dict[str, str | None]:
        return {"wh": "conditional"}

    def run(self, logio: Logio) -> None:
        raise NotImplementedError


def pipeline() -> Pipeline:
    made = Pipeline("api", connections=["wh", "elsewhere"])
    made.operator("feed", Feed())
    made.operator("more", Feed())
    made.operator("mid", Middle(), a="feed", b="more")
    made.sink("done", Count(), "mid.out")
    made.sink("rest", Count(), "mid.rest")
    made.lineage("feed.out", "mid.out")
    return made.freeze()


@dataclass
class Bench:
    """A run of a pipeline; `open` is the start of a driver of a group that holds one hand-written operator."""

    store: LogStore
    pipeline: Pipeline = field(default_factory=pipeline)
    params: dict[str, Any] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=lambda: {"wh": "sqlite://", "elsewhere": "sqlite://"})
    backlog: BacklogBound = field(default_factory=BacklogBound)
    name: str = "run"

    def __post_init__(self) -> None:
        spec = run_spec(
            self.pipeline,
            PipelineRef("module", "attr", Path("/bundle")),
            dag_id="tests",
            dag_run_id=self.name,
            params=self.params,
            connections={name: name for name in self.urls},
            backlog=self.backlog,
        )
        self.run = self.store.start_run(spec)
        self.incarnations: dict[str, int] = {}
        self.epochs: dict[str, ManualEpoch] = {}
        self.die_at: dict[str, tuple[int, bool]] = {}
        """Operator → (number of the commit, whether it is made) at which its driver dies."""

    def open(self, operator: str) -> Logio:
        """The next incarnation: fenced off from the one before, read from the log, nothing called yet."""
        return self.epoch(operator)._recover()

    def epoch(self, operator: str, *, raise_epoch: bool = False) -> ManualEpoch:
        before = self.incarnations.get(operator, 0)
        if before:
            self.store.declare_dead(self.epochs[operator]._session.ref, "by the test")
        claim = self.store.claim(self.run.run_id, operator, expected=before, reason="test", by_user=True)
        self.incarnations[operator] = claim.incarnation
        session = self.store.session(self.store.register(claim, SOMEBODY))
        fence = session.open(raise_epoch=raise_epoch)
        identity = WriterIdentity(self.run.uid, claim.incarnation, self.run.created_at)
        stop = threading.Event()
        settings = EpochSettings(
            self.pipeline,
            self.run,
            operator,
            Connections(self.pipeline.name, self.urls, identity, 900.0),
            SparkSessions(),
            lambda _: None,
            stop,
        )
        found = self.pipeline.operators[operator]
        assert isinstance(found, ManualOperator)
        epoch = ManualEpoch(settings, session, fence.epoch, found)
        self.epochs[operator] = epoch
        if operator in self.die_at:
            _mortal(epoch, *self.die_at.pop(operator))
        return epoch

    def stop(self, operator: str) -> None:
        """What the heartbeat does when the group is asked to halt."""
        self.epochs[operator]._settings.stop_requested.set()

    def ready(self, operator: str = "mid") -> Logio:
        """A new incarnation that has recovered, and makes nothing of what it finds."""
        logio = self.open(operator)
        logio.initialize_context()
        list(logio.fetch_ack_events())
        return logio

    def feed(self, *batches: Sequence[int], source: str = "feed", end: bool = False) -> None:
        """Events of a source, each with these values."""
        logio = self.ready(source)
        read = logio.last_read_action()
        action = ActionInfo(logio.get_action_id(), replayable=True) if read is None else read.info
        if read is None:
            logio.initialize_read_action(action, StateInfo(logio.get_state_id()), {})
        for batch in batches:
            with logio.begin_transaction() as transaction:
                transaction.log_source_event(EventInfo(logio.get_event_id("out"), "out"), table(*batch))
            logio.send("out")
        if end:
            with logio.begin_transaction() as transaction:
                transaction.done_event(action)
            logio.end_of_stream()


def _mortal(epoch: ManualEpoch, number: int, made: bool) -> None:
    """The driver dies before, or behind, its commit of that number."""
    commit, count = epoch._session.commit, 0

    def dying(effects: fx.Effects) -> Any:
        nonlocal count
        count += 1
        if count == number and not made:
            raise Died
        result = commit(effects)
        if count == number:
            raise Died
        return result

    epoch._session.commit = dying  # type: ignore[method-assign]


def table(*values: int) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.int64())})


def values(event: StreamEvent) -> list[int]:
    return [int(value) for value in event.data["value"].to_pylist()]


def received(logio: Logio, port: str | None = None, **arguments: Any) -> StreamEvent:
    """The next event, which must be there."""
    event = logio.receive(port, timeout=5, **arguments)
    assert event is not None
    return event


def assigned(logio: Logio, *inset_ids: str, port: str = "a") -> StreamEvent:
    """The next event, assigned."""
    event = received(logio, port)
    logio.assign_in_sets(inset_ids, event.info)
    return event


def output(logio: Logio, port: str = "out") -> EventInfo:
    return EventInfo(logio.get_event_id(port), port)


def generate(logio: Logio, inset_id: str, *used: StreamEvent, outputs: Sequence[EventInfo] = ()) -> None:
    """An Output Set of an Input Set, committed and sent."""
    with logio.begin_transaction() as transaction:
        transaction.log_output_events(outputs, [table(1)] * len(outputs), inset_id, [event.info for event in used])
    for info in outputs:
        if info.port is not None:
            logio.send(info.port)
