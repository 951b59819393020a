"""Quarantine: Input Sets set aside, shown, and put back, before and after the streams behind them have ended."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.driver.back_pressure import ASK_EVERY_SECONDS, Backlog
from airflow_logio.errors import BudgetSpent, EpochVoid, FailurePoint, OperatorFailed, UnknownRun
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.logic import OperatorSpec, Output
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import BacklogBound, OperatorShape, Run
from airflow_logio.store.sql import upkeep_log
from airflow_logio.store.sql.engines import writing
from airflow_logio.store.sql.store import SqlLogStore
from tests.support.logics import EachEvent, end, fed, operator, serialized
from tests.support.logs import SOMEBODY, Driver, spec, start_driver
from tests.support.waiting import eventually

UNLUCKY = 13
GROUPS = {"first": ("faulty", "next"), "second": ("last",)}
SENDERS = {"faulty": "feed.out", "next": "faulty.out", "last": "next.out"}
SINK = Port("sink", "in")


class Faulty(EachEvent):
    """Raises on the unlucky number until it is mended."""

    mended = False

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        if UNLUCKY in held and not self.mended:
            raise OperatorFailed(f"cannot use {UNLUCKY}", FailurePoint("faulty", inset_id=inset_id))
        return super().generate(inset_id, held, state)


class Pipeline:
    """feed → faulty → next, last → sink in two groups, driven by hand over a log."""

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self.faulty = Faulty()
        shapes = {
            name: OperatorShape(group, {"in": SENDERS[name]}, ("out",))
            for group, names in GROUPS.items()
            for name in names
        }
        described = replace(spec("feed", *GROUPS, budget=RecoveryBudget(9)), operators=shapes)
        self.run: Run = store.start_run(described)
        self.feeder = start_driver(store, group="feed", run=self.run)
        self.drivers: dict[str, tuple[Driver, GroupProtocol]] = {}

    def feed(self, *values: int, last: bool = False) -> None:
        protocol = GroupProtocol(
            [OperatorSpec("feed", (), ("out",), None)], {Port("feed", "out"): [Port("faulty", "in")]}
        )
        states = self.feeder.session.recover(["feed"]).states
        if "feed" in states:
            protocol.operators["feed"].restore(states["feed"])
        start = protocol.operators["feed"].context.next_event.get("out", 1)
        for number, value in enumerate(values, start=start):
            event = fed(number, value, sender=Port("feed", "out"))
            protocol.ledger.produce(event, (Port("faulty", "in"),), (), in_scope=False)
        following = start + len(values)
        if last:
            protocol.ledger.produce(
                end(following, sender=Port("feed", "out")), (Port("faulty", "in"),), (), in_scope=False
            )
            following += 1
        protocol.operators["feed"].context.next_event["out"] = following
        protocol.operators["feed"].dirty = True
        effects = protocol.close_step()
        self.feeder.session.commit(serialized(effects))

    def launch(self, group: str) -> None:
        """A person's launch: whatever the group's state is."""
        status = self.store.group(self.run.run_id, group)
        claim = self.store.claim(
            self.run.run_id, group, expected=status.incarnation, reason="test", by_user=status.incarnation > 0
        )
        ref: GroupRef = self.store.register(claim, SOMEBODY)
        session = self.store.session(ref)
        session.open()
        self.drivers[group] = (Driver(self.store, self.run, claim, ref, session), self._protocol(group))
        self.rebuild(group)

    def _protocol(self, group: str) -> GroupProtocol:
        logics = {"faulty": self.faulty}
        specs = [
            replace(operator(name, logics.get(name, EachEvent())), quarantines=name == "faulty")
            for name in GROUPS[group]
        ]
        receivers = {Port("faulty", "out"): [Port("next", "in")], Port("next", "out"): [Port("last", "in")]}
        receivers[Port("last", "out")] = [SINK]
        return GroupProtocol(specs, {port: to for port, to in receivers.items() if port.operator in GROUPS[group]})

    def rebuild(self, group: str) -> None:
        driver, protocol = self.drivers[group]
        protocol.rebuild(driver.session.recover(GROUPS[group]))
        protocol.resume()
        self.commit(group)

    def take_up(self, group: str) -> None:
        """What a live driver does whose epoch is void: it rebuilds itself from the log."""
        driver, _ = self.drivers[group]
        with pytest.raises(EpochVoid):
            driver.session.check()
        driver.session.open(raise_epoch=True)
        self.drivers[group] = (driver, self._protocol(group))
        self.rebuild(group)

    def commit(self, group: str) -> None:
        driver, protocol = self.drivers[group]
        if effects := protocol.close_step():
            driver.session.commit(serialized(effects))

    def pump(self, *groups: str) -> None:
        """Deliver all that is there, in steps of one event; finish what has ended."""
        for group in groups or tuple(GROUPS):
            driver, protocol = self.drivers[group]
            for port in protocol.inputs_from_log():
                for logged in driver.session.fetch(port, 0, max_events=99, max_bytes=1 << 30):
                    protocol.deliver(port, logged.event)
                    self.commit(group)
            if protocol.is_finished():
                protocol.finish()
                self.commit(group)

    def results(self) -> list[Any]:
        """Values and ends as the sink would receive them, in order."""
        session = self.feeder.session
        sent = session.fetch(SINK, 0, max_events=99, max_bytes=1 << 30)
        return [
            json.loads(row.event.body or b"null") if row.event.kind is Kind.DATA else row.event.kind.value
            for row in sent
        ]

    def states(self) -> dict[str, GroupState]:
        return {status.group: status.state for status in self.store.groups(self.run.run_id) if status.group in GROUPS}


@pytest.fixture
def pipeline(log_store: LogStore) -> Pipeline:
    made = Pipeline(log_store)
    for group in GROUPS:
        made.launch(group)
    return made


def finish_feeder(pipeline: Pipeline) -> None:
    pipeline.feeder.session.commit([fx.FinishGroup()])


def test_the_pipeline_goes_on_and_the_run_ends_with_quarantine(pipeline: Pipeline) -> None:
    pipeline.feed(1, UNLUCKY, 2, last=True)
    pipeline.pump()
    assert pipeline.results() == [[1], [2], "end"]
    (aside,) = pipeline.store.quarantined(pipeline.run.run_id)
    assert (aside.group, aside.operator, aside.inset_id) == ("first", "faulty", "in:2")
    assert "cannot use 13" in aside.error
    finish_feeder(pipeline)
    assert pipeline.store.finish_run(pipeline.run.run_id)
    assert pipeline.store.find_run(pipeline.run.uid).state is RunState.QUARANTINED


def test_a_recovery_leaves_it_aside(pipeline: Pipeline) -> None:
    pipeline.feed(1, UNLUCKY, 2)
    pipeline.pump()
    pipeline.store.declare_dead(pipeline.drivers["first"][0].ref, "test")
    pipeline.launch("first")
    pipeline.feed(3, last=True)
    pipeline.pump()
    assert pipeline.results() == [[1], [2], [3], "end"]
    assert len(pipeline.store.quarantined(pipeline.run.run_id)) == 1


def test_a_retry_under_a_live_driver_voids_its_epoch(pipeline: Pipeline) -> None:
    pipeline.feed(1, UNLUCKY, 2)
    pipeline.pump()
    session = pipeline.drivers["first"][0].session
    session.check()
    pipeline.faulty.mended = True
    retried = pipeline.store.retry_quarantined(pipeline.run.run_id)
    assert [one.inset_id for one in retried.input_sets] == ["in:2"]
    assert retried.to_launch == (), "it has a driver, which rebuilds itself"
    with pytest.raises(EpochVoid):
        session.check()
    pipeline.feed(3)
    with pytest.raises(EpochVoid):
        pipeline.pump("first")
    pipeline.take_up("first")
    pipeline.feed(last=True)
    pipeline.pump()
    assert pipeline.results() == [[1], [2], [UNLUCKY], [3], "end"]
    assert pipeline.store.quarantined(pipeline.run.run_id) == []


@pytest.mark.parametrize("received", [True, False], ids=["end received", "end on its way"])
def test_a_retry_behind_the_end_of_the_stream_takes_the_end_back(pipeline: Pipeline, *, received: bool) -> None:
    pipeline.feed(1, UNLUCKY, 2, last=True)
    pipeline.pump("first")
    if received:
        pipeline.pump("second")
        finish_feeder(pipeline)
        assert pipeline.store.finish_run(pipeline.run.run_id)
        assert set(pipeline.states().values()) == {GroupState.FINISHED}
    pipeline.faulty.mended = True
    retried = pipeline.store.retry_quarantined(pipeline.run.run_id, "first")
    assert retried.to_launch == (("first", "second") if received else ("first",))
    assert pipeline.store.find_run(pipeline.run.uid).state is RunState.RUNNING
    for group in retried.to_launch:
        assert pipeline.states()[group] is GroupState.HALTED
        pipeline.launch(group)
    if not received:
        pipeline.take_up("second")
    pipeline.pump()
    # What the sink was sent stands; an end that no group had received yet is sent as one that was taken back.
    ends = [event for event in pipeline.results() if isinstance(event, str)]
    assert [event for event in pipeline.results() if isinstance(event, list)] == [[1], [2], [UNLUCKY]]
    assert ends == (["resumed", "end"] if received else ["end"])
    assert set(pipeline.states().values()) == {GroupState.FINISHED}
    if not received:
        finish_feeder(pipeline)
    assert pipeline.store.finish_run(pipeline.run.run_id)
    assert pipeline.store.find_run(pipeline.run.uid).state is RunState.FINISHED


def test_a_retry_that_fails_again_sets_it_aside_again(pipeline: Pipeline) -> None:
    pipeline.feed(UNLUCKY, last=True)
    pipeline.pump()
    for group in pipeline.store.retry_quarantined(pipeline.run.run_id).to_launch:
        pipeline.launch(group)
    pipeline.pump()
    assert pipeline.results() == ["resumed", "end"]
    assert len(pipeline.store.quarantined(pipeline.run.run_id)) == 1


def test_there_may_be_nothing_to_retry(pipeline: Pipeline) -> None:
    pipeline.feed(1)
    pipeline.pump()
    retried = pipeline.store.retry_quarantined(pipeline.run.run_id)
    assert (retried.input_sets, retried.to_launch) == ((), ())
    pipeline.drivers["first"][0].session.check()


def test_a_receiver_that_holds_the_end_in_memory_does_not_finish_with_it(pipeline: Pipeline) -> None:
    """It was fetched, and its receipt is not in the log: there it still looks like one that is on its way."""
    pipeline.feed(1, UNLUCKY, 2, last=True)
    pipeline.pump("first")
    driver, protocol = pipeline.drivers["second"]
    receiver = Port("last", "in")
    fetched = driver.session.fetch(receiver, 0, max_events=99, max_bytes=1 << 30)
    assert fetched[-1].event.kind is Kind.END
    pipeline.faulty.mended = True
    assert pipeline.store.retry_quarantined(pipeline.run.run_id).to_launch == ("first",)
    protocol.deliver(receiver, fetched[0].event)
    with pytest.raises(EpochVoid):
        pipeline.commit("second")
    pipeline.take_up("second")
    pipeline.launch("first")
    pipeline.pump()
    assert pipeline.results() == [[1], [2], [UNLUCKY], "end"]


def test_an_end_that_was_taken_back_is_no_backlog(pipeline: Pipeline) -> None:
    pipeline.feed(1, UNLUCKY, last=True)
    pipeline.pump()
    pipeline.faulty.mended = True
    for group in pipeline.store.retry_quarantined(pipeline.run.run_id).to_launch:
        pipeline.launch(group)
    driver, protocol = pipeline.drivers["first"]
    context, receiver = protocol.operators["next"].context, Port("last", "in")
    backlog = Backlog(
        (receiver,),
        driver.session.acknowledged,
        BacklogBound(events=1),
        lambda: context.next_event["out"] - 2,  # the last one is an end, behind which nothing is sent
        context.taken_back,
    )
    assert backlog.is_full(), "the retried one is on its way"
    for logged in pipeline.drivers["second"][0].session.fetch(receiver, 0, max_events=99, max_bytes=1 << 30):
        pipeline.drivers["second"][1].deliver(receiver, logged.event)
    pipeline.commit("second")
    assert not _is_full_now(backlog)


def _is_full_now(backlog: Backlog) -> bool:
    """After it has asked again."""
    time.sleep(ASK_EVERY_SECONDS)
    return backlog.is_full()


def test_nothing_of_a_run_that_is_being_removed_is_retried(pipeline: Pipeline) -> None:
    pipeline.feed(1, UNLUCKY, last=True)
    pipeline.pump()
    finish_feeder(pipeline)
    assert pipeline.store.finish_run(pipeline.run.run_id)
    assert pipeline.store.remove_run(pipeline.run.run_id, 1).more, "interrupted after its first batch"
    with pytest.raises(UnknownRun, match="being removed from the log; it cannot be retried"):
        pipeline.store.retry_quarantined(pipeline.run.run_id)
    assert pipeline.store.find_run(pipeline.run.uid).state is RunState.REMOVING


@pytest.mark.postgres
def test_a_run_is_not_finished_while_a_retry_reopens_its_groups(postgres_url: str) -> None:
    store, other = open_store(postgres_url), open_store(postgres_url, application="logio finisher")
    assert isinstance(store, SqlLogStore)
    pipeline = Pipeline(store)
    for group in GROUPS:
        pipeline.launch(group)
    pipeline.feed(1, UNLUCKY, last=True)
    pipeline.pump()
    finish_feeder(pipeline)
    answers: list[bool] = []
    finishing = threading.Thread(target=lambda: answers.append(other.finish_run(pipeline.run.run_id)))
    with writing(store.engine) as connection:
        assert upkeep_log.retry(connection, pipeline.run, None).to_launch == ("first", "second")
        finishing.start()
        eventually(lambda: _waits_for_a_lock(store, "logio finisher"), what="the other one waits")
    finishing.join()
    assert answers == [False]
    assert store.find_run(pipeline.run.uid).state is RunState.RUNNING
    other.dispose()
    store.dispose()


def _waits_for_a_lock(store: SqlLogStore, application: str) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE :name AND wait_event_type = 'Lock'"
    with store.engine.connect().execution_options(logio_writes=False) as connection:
        return bool(connection.execute(sa.text(query), {"name": f"{application}%"}).scalar_one())


def test_many_input_sets_are_retried_with_a_few_statements(log_url: str) -> None:
    """All fences of the run are locked as long as it takes."""
    store = open_store(log_url)
    assert isinstance(store, SqlLogStore)
    pipeline = Pipeline(store)
    pipeline.launch("first")
    many = 1_000
    pipeline.feed(*[UNLUCKY] * many)
    driver, protocol = pipeline.drivers["first"]
    receiver = Port("faulty", "in")
    for logged in driver.session.fetch(receiver, 0, max_events=many, max_bytes=1 << 30):
        protocol.deliver(receiver, logged.event)
    pipeline.commit("first")
    with _statements(store) as seen:
        retried = store.retry_quarantined(pipeline.run.run_id)
    assert len(retried.input_sets) == many and len(seen) < 30
    assert store.quarantined(pipeline.run.run_id) == []
    pipeline.faulty.mended = True
    pipeline.take_up("first")
    assert len(pipeline.feeder.session.fetch(Port("last", "in"), 0, max_events=2 * many, max_bytes=1 << 30)) == many
    store.dispose()


@contextmanager
def _statements(store: SqlLogStore) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    sa.event.listen(store.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(store.engine, "before_cursor_execute", note)


def test_the_same_event_spends_another_budget(log_store: LogStore) -> None:
    run = log_store.start_run(spec("g", budget=RecoveryBudget(recoveries=9, same_event=2)))
    point, elsewhere = FailurePoint("op", "in", 7), FailurePoint("op", "in", 8)

    def fail(incarnation: int, at: FailurePoint | None) -> None:
        log_store.claim(run.run_id, "g", expected=incarnation - 1, reason="test")
        log_store.declare_dead(GroupRef(run.run_id, "g", incarnation), "raised", failed_at=at)

    for incarnation, at in enumerate([point, point, elsewhere, None, point, point, point], start=1):
        fail(incarnation, at)
    with pytest.raises(BudgetSpent, match=r"failed at event 7 on port op\.in again after 2 recoveries"):
        fail(8, point)
    assert log_store.group(run.run_id, "g").state is GroupState.PARKED
    log_store.claim(run.run_id, "g", expected=7, reason="mended", by_user=True)
    log_store.declare_dead(GroupRef(run.run_id, "g", 8), "raised", failed_at=point)
    log_store.claim(run.run_id, "g", expected=8, reason="forgiven: a person has looked at it")
