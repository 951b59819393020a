"""A driver whose epoch is void does not wait for ever for what does not answer: it ends, and is recovered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow import Count, IdempotentWriter, Pipeline, SourceBatch, TableWriter, WriteAction
from airflow_logio.dataflow.operators import Operator, SourceOperator
from airflow_logio.driver import epoch as epochs
from airflow_logio.driver.epoch import GroupEpoch, operators_of
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import EpochVoid, FailurePoint, LogUnavailable, OperatorFailed, SparkLost
from airflow_logio.launch.start_run import operator_shapes
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.testing.memory_log import MemoryLogStore
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
        assert self._waits.wait(60)

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
        assert self._waits.wait(60)

    def end(self) -> None:
        self._ended.set()


class Broken(SourceOperator):
    """Raises at its first record, once the other source waits."""

    def __init__(self, other: Blocked) -> None:
        self._other = other

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        self._other.wait()
        raise ValueError("no such column")


def epoch_of(
    source: Blocked,
    sink: Operator | None = None,
    *others: SourceOperator,
    sessions: SparkSessions | None = None,
    url: str = "crm:",
) -> tuple[Driver, GroupEpoch]:
    pipeline = Pipeline("mine", connections=["crm"])
    read = pipeline.source("read", source)
    done = pipeline.operator("done", sink or Count(), read)
    beside = [pipeline.source(f"other{number}", other) for number, other in enumerate(others)]
    sinks = [pipeline.sink(f"{other.name}_done", Count(), other) for other in beside]
    pipeline.group("all", read, done, *beside, *sinks)
    pipeline.freeze()
    store = MemoryLogStore()
    actions: dict[str, Any] = {name: {} for name in ("read", *(other.name for other in beside))}
    run = store.start_run(replace(spec("all"), operators=operator_shapes(pipeline), actions=actions))
    driver = start_driver(store, group="all", run=run)
    writer = WriterIdentity(run.uid, driver.ref.incarnation, run.created_at)
    connections = Connections("p", {"crm": url}, writer, 1.0)
    settings = EpochSettings(
        pipeline, run, "all", connections, sessions or SparkSessions(), lambda _: None, threading.Event()
    )
    number = driver.session.open().epoch
    recovered = driver.session.recover(operators_of(settings, None))
    return driver, GroupEpoch(settings, driver.session, number, recovered)


def void(driver: Driver, source: Blocked | Stuck) -> None:
    """The epoch is raised, as a rebuild or a move of slots does."""
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
    assert isinstance(error, OperatorFailed) and time.monotonic() - started < 50
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


class LostSessions(SparkSessions):
    """Spark is gone as soon as the source waits."""

    def __init__(self, source: Blocked, *, may_return: bool) -> None:
        super().__init__()
        self._source = source
        self._may_return = may_return

    def may_return(self) -> bool:
        return self._may_return

    def raise_if_failed(self) -> None:
        if self._source._waits.is_set():
            raise SparkLost("the server is gone")


def epoch_that_loses_spark(source: Blocked, *, may_return: bool) -> GroupEpoch:
    _, epoch = epoch_of(source, sessions=LostSessions(source, may_return=may_return))
    epoch._may_use_spark = True  # as if another operator of the group ran jobs
    return epoch


def test_a_session_is_not_made_again_beside_a_read_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two reads of one source side by side could share what the author keeps in it."""
    monkeypatch.setattr(epochs, "REBUILD_PATIENCE_SECONDS", 0.3)
    source = Blocked(60)
    epoch = epoch_that_loses_spark(source, may_return=True)
    with pytest.raises(SparkLost, match="the server is gone") as lost:
        epoch.run()
    source.end()
    assert lost.value.must_end
    assert "this process cannot begin again: read action 1 after 1 records of operator 'read'" in caplog.text
    assert "does not answer, and has been waited for 0.3 s after the group failed" in caplog.text


def test_a_group_of_which_only_a_table_writer_uses_spark_ends_with_its_session(tmp_path: Path) -> None:
    """It loads large events by jobs: it must not wait for the first of them to find out that they will all fail."""
    source = Blocked(1)
    sessions = LostSessions(source, may_return=False)
    writer = TableWriter("crm", "t", {"n": "bigint"}, on_new_run="replace")
    _, epoch = epoch_of(source, writer, sessions=sessions, url=f"sqlite:///{tmp_path}/crm.db")
    with pytest.raises(SparkLost, match="the server is gone"):
        epoch.run()


def test_a_session_is_made_again_when_nothing_is_left_of_the_epoch() -> None:
    source = Blocked(1)
    epoch = epoch_that_loses_spark(source, may_return=True)
    with pytest.raises(SparkLost) as lost:
        epoch.run()
    assert not lost.value.must_end


def test_a_driver_that_ends_with_its_spark_does_not_wait_for_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "REBUILD_PATIENCE_SECONDS", 60.0)
    monkeypatch.setattr(epochs, "SOURCE_PATIENCE_SECONDS", 0.3)
    source = Blocked(60)
    epoch = epoch_that_loses_spark(source, may_return=False)
    started = time.monotonic()
    with pytest.raises(SparkLost):
        epoch.run()
    source.end()
    assert time.monotonic() - started < 30


def test_a_source_that_fails_is_named_and_not_the_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It could be tried again in this process, but for the other one: so a new driver tries."""
    monkeypatch.setattr(epochs, "REBUILD_PATIENCE_SECONDS", 0.3)
    source = Blocked(60)
    _, epoch = epoch_of(source, None, Broken(source))
    with pytest.raises(OperatorFailed, match="no such column") as failed:
        epoch.run()
    source.end()
    assert failed.value.at == FailurePoint("other0", action="read action 1 after 0 records")
    assert not failed.value.is_first
    assert "this process cannot begin again: " in caplog.text


def test_what_the_log_refuses_is_not_hidden_by_an_earlier_failure() -> None:
    _, epoch = epoch_of(Blocked(0))
    epoch._fail(LogUnavailable("the payload store does not answer"))
    epoch._fail(EpochVoid("epoch 1 is void"))
    epoch._fail(OSError("and then this"))
    with pytest.raises(EpochVoid):
        epoch._raise_refusal()


def test_a_halt_whose_last_commit_is_refused_leaves_no_read_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another epoch would follow, and read beside it: the process ends instead."""
    monkeypatch.setattr(epochs, "REBUILD_PATIENCE_SECONDS", 0.3)
    source = Blocked(60)
    _, epoch = epoch_of(source)

    def halt() -> None:
        source.wait()
        epoch._fail(EpochVoid("epoch 1 is void"))
        epoch._settings.stop_requested.set()

    monkeypatch.setattr(epoch._mailbox, "put", lambda _: None)  # the main thread has not taken it when it halts
    halting = threading.Thread(target=halt)
    halting.start()
    with pytest.raises(OperatorFailed, match=r"has been waited for 0\.3 s after the group was asked to halt"):
        epoch.run()
    halting.join()
    source.end()
