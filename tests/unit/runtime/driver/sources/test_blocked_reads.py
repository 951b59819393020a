"""A driver whose epoch is void does not wait for ever for what does not answer: it ends, and is recovered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow import Count, IdempotentWriter, Pipeline, SourceBatch, WriteAction
from airflow_logio.dataflow.operators import Operator, SourceOperator
from airflow_logio.errors import EpochVoid, FailurePoint, OperatorFailed
from airflow_logio.runtime.driver import epoch as epochs
from airflow_logio.runtime.driver.epoch import GroupEpoch, operators_of
from airflow_logio.runtime.driver.epoch_settings import EpochSettings
from airflow_logio.runtime.driver.spark_session import SparkSessions
from airflow_logio.runtime.launch.start_run import operator_shapes
from airflow_logio.runtime.systems.connections import Connections, WriterIdentity
from airflow_logio.store.memory import MemoryLogStore
from tests.support.logs import Driver, spec, start_driver


class Blocked(SourceOperator):
    """One event, and then silence for `seconds`, or until the test ends."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ended = threading.Event()
        self._waits = threading.Event()

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        yield SourceBatch(pa.table({"n": [1]}), 1)
        self._waits.set()
        self._ended.wait(self._seconds)

    def wait(self) -> None:
        assert self._waits.wait(20)

    def end(self) -> None:
        self._ended.set()


class Stuck(IdempotentWriter[None]):
    """An external system that does not answer before the test ends."""

    def __init__(self) -> None:
        super().__init__("crm")
        self._ended = threading.Event()
        self._waits = threading.Event()

    def connect(self, url: str) -> AbstractContextManager[None]:
        return nullcontext()

    def write(self, client: None, action: WriteAction) -> None:
        self._waits.set()
        self._ended.wait(60)

    def wait(self) -> None:
        assert self._waits.wait(20)

    def end(self) -> None:
        self._ended.set()


def epoch_of(source: Blocked, sink: Operator | None = None) -> tuple[Driver, GroupEpoch]:
    pipeline = Pipeline("mine", connections=["crm"])
    read = pipeline.source("read", source)
    done = pipeline.operator("done", sink or Count(), read)
    pipeline.group("all", read, done)
    pipeline.freeze()
    store = MemoryLogStore()
    run = store.start_run(replace(spec("all"), operators=operator_shapes(pipeline), actions={"read": {}}))
    driver = start_driver(store, group="all", run=run)
    connections = Connections(
        "p", {"crm": "crm:"}, WriterIdentity(run.uid, driver.ref.incarnation, run.created_at), 1.0
    )
    settings = EpochSettings(pipeline, run, "all", connections, SparkSessions(), lambda _: None, threading.Event())
    number = driver.session.open().epoch
    recovered = driver.session.recover(operators_of(settings, None))
    return driver, GroupEpoch(settings, driver.session, number, recovered)


def void(driver: Driver, source: Blocked | Stuck) -> None:
    """Somebody raises the epoch, as a rebuild or a move of slots does."""
    source.wait()
    driver.store.session(driver.ref).open(raise_epoch=True)


def run(epoch: GroupEpoch, driver: Driver, source: Blocked | Stuck) -> BaseException:
    other = threading.Thread(target=void, args=(driver, source))
    other.start()
    with pytest.raises((EpochVoid, OperatorFailed)) as caught:
        epoch.run()
    other.join()
    return caught.value


def test_a_read_that_does_not_answer_ends_the_driver_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "REBUILD_PATIENCE_SECONDS", 0.3)
    source = Blocked(60)
    driver, epoch = epoch_of(source)
    started = time.monotonic()
    error = run(epoch, driver, source)
    source.end()
    assert isinstance(error, OperatorFailed) and time.monotonic() - started < 20
    assert error.at == FailurePoint("read", action="read action 1 after 1 records")
    assert "does not answer, and has been waited for 0.3 s after this epoch of the group became void" in str(error)


def test_a_read_that_answers_in_time_is_waited_for() -> None:
    source = Blocked(3)
    driver, epoch = epoch_of(source)
    assert isinstance(run(epoch, driver, source), EpochVoid)


def test_a_write_that_does_not_answer_ends_the_driver_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the epoch is void or the group was asked to halt: nothing may write beside a successor."""
    monkeypatch.setattr(epochs, "WORK_PATIENCE_SECONDS", 0.3)
    writer = Stuck()
    driver, epoch = epoch_of(Blocked(0), writer)
    error = run(epoch, driver, writer)
    assert isinstance(error, OperatorFailed)
    assert error.at == FailurePoint("done", action="write action 1 on 'crm'")
    assert "`write` of write action 1 on 'crm' of operator 'done' does not answer" in str(error)
    writer.end()

    writer = Stuck()
    driver, epoch = epoch_of(Blocked(0), writer)

    def halt() -> None:
        writer.wait()
        epoch._settings.stop_requested.set()

    halting = threading.Thread(target=halt)
    halting.start()
    with pytest.raises(OperatorFailed, match="after the group was asked to halt, so the driver ends"):
        epoch.run()
    halting.join()
    writer.end()
