"""An epoch of a group on its threads, over a log in memory: what its main thread tells the loop, and whom it wakes.

The loop has tests of its own (tests/unit/protocol/test_loop.py), and the simulator runs it; what stands around it in
`GroupEpoch` runs here, and in the crash tests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow import (
    Count,
    IdempotentWriter,
    Pipeline,
    SourceBatch,
    WriteAction,
)
from airflow_logio.dataflow.operators import SourceOperator
from airflow_logio.driver.epoch import GroupEpoch, Intake, operators_of
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.mailbox import LoadMeter, Mailbox
from airflow_logio.driver.source_reader import Exhausted, HandedOver, ReadBatch, Stored
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import LogInconsistent, OperatorFailed
from airflow_logio.launch.start_run import operator_shapes
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol import loop
from airflow_logio.protocol.commit import HandOver
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.protocol.writes import Applied
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.payloads import Payloads
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.breaking import Variants
from tests.support.logs import spec, start_driver
from tests.support.waiting import eventually

OUT, SAVED, COUNTED = Port("read", "out"), Port("save", "in"), Port("count", "in")
PATIENCE_SECONDS = 60.0
"""How long a group may take that does not end. One that does takes a tenth of a second."""
CLOCK_SECONDS = 60.0
"""How long an Output Set may wait that only the clock lets go."""


class Feed(SourceOperator):
    """Each read action follows the next script: the sizes of its batches, or what it raises."""

    def __init__(self, *scripts: Sequence[int | Exception], replayable: bool = True) -> None:
        self.scripts, self.replayable = scripts, replayable
        self.may_go_on = threading.Event()
        """The outside says what follows a read action."""
        self.may_go_on.set()
        self.asked = threading.Event()

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"part": 0}

    def next_action(self, params: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any] | None:
        self.asked.set()
        self.may_go_on.wait(PATIENCE_SECONDS)
        part = previous["part"] + 1
        return {"part": part} if part < len(self.scripts) else None

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        for place, size in enumerate(self.scripts[action["part"]][offset:], offset + 1):
            if isinstance(size, Exception):
                raise size
            yield SourceBatch(pa.table({"value": [place] * size}), place)


class Saving(IdempotentWriter[list[int]]):
    """Writes down how many records each action has."""

    def __init__(self) -> None:
        super().__init__("crm")
        self.written: list[int] = []

    @contextmanager
    def connect(self, url: str) -> Iterator[list[int]]:
        yield self.written

    def write(self, client: list[int], action: WriteAction) -> None:
        client.append(action.records.num_rows)


class Group:
    """The group of `read` and `save`; `count` is in another one, which is asleep."""

    def __init__(self, feed: Feed, folder: str, *, backlog: int = 100) -> None:
        self.saving = Saving()
        pipeline = Pipeline("mine", connections=["crm"])
        read = pipeline.source("read", feed)
        save = pipeline.writer("save", self.saving, read)
        pipeline.sink("count", Count(), read)
        pipeline.group("mine", read, save)
        pipeline.freeze()
        self.store = MemoryLogStore()
        run = self.store.start_run(
            replace(
                spec("mine", "count"),
                operators=operator_shapes(pipeline),
                actions={"read": feed.action({})},
                backlog=BacklogBound(events=backlog),
            )
        )
        driver = start_driver(self.store, group="mine", run=run)
        self.session = driver.session
        self.woken: list[Sequence[str]] = []
        self.session.announce = self.woken.append  # type: ignore[assignment, method-assign]
        self.stop, self.drain, self.load = threading.Event(), threading.Event(), LoadMeter()
        settings = EpochSettings(
            pipeline,
            run,
            "mine",
            Connections("mine", {"crm": "memory://"}, WriterIdentity(run.uid, 1, run.created_at), 1.0),
            SparkSessions(),
            lambda _: None,
            self.stop,
            drain_requested=self.drain,
            load=self.load,
            payloads=Payloads(folder),
        )
        recovered = self.session.recover(operators_of(settings, None))
        self.epoch = GroupEpoch(settings, self.session, 0, recovered)

    def run(self) -> bool:
        """True if the group has finished within `PATIENCE_SECONDS`."""
        timer = threading.Timer(PATIENCE_SECONDS, self.stop.set)
        timer.start()
        try:
            return self.epoch.run()
        finally:
            timer.cancel()

    def logged(self) -> list[int]:
        """Records of the events that are in the log for the other group; the end of the stream is none."""
        events = self.session.fetch(COUNTED, 0, max_events=100, max_bytes=1 << 30)
        return [one.event.records for one in events if one.event.kind is Kind.DATA]


@contextmanager
def group(*scripts: Sequence[int | Exception], replayable: bool = True, backlog: int = 100) -> Iterator[Group]:
    with TemporaryDirectory() as folder:
        yield Group(Feed(*scripts, replayable=replayable), folder, backlog=backlog)


def working() -> set[threading.Thread]:
    """Threads of an epoch."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("logio-")}


# --- what holds -------------------------------------------------------------------------------------------------------


def a_group_runs_to_its_end() -> None:
    """Two read actions; a batch without records is no event, but its offset is read."""
    with group([2, 0, 3], [4]) as one:
        assert one.run(), "it did not end"
        assert one.logged() == [2, 3, 4], "these are not the events that were read"
        assert one.saving.written == [2, 3, 4], "these are not the write actions"
        (status,) = (found for found in one.store.groups(one.session.ref.run_id) if found.group == "mine")
        assert status.state is GroupState.FINISHED, "its end is not in the log"
        assert one.load.read().events_out == 4, "the load meter has missed what was sent"


def what_cannot_be_read_again_is_used_from_its_store() -> None:
    """An effect without records ends with its store."""
    with group([2, 3], [], [4], replayable=False) as one:
        assert one.run(), "it did not end"
        assert one.logged() == [2, 3, 4]


def a_drain_does_not_wait_for_what_follows() -> None:
    """The stored effect is used whole, and the outside does not say whether more is to come: the stream ends here."""
    with group([2], [4], replayable=False) as one:
        feed = one.epoch._members["read"]
        assert isinstance(feed, Feed)
        feed.may_go_on.clear()

        def drain() -> None:
            feed.asked.wait(PATIENCE_SECONDS)
            eventually(lambda: one.logged() == [2])
            one.drain.set()
            time.sleep(0.2)  # the reader still waits, and is joined when the epoch ends
            eventually(lambda: one.epoch._loop.finishing or one.stop.is_set())
            feed.may_go_on.set()

        asking = threading.Thread(target=drain)
        asking.start()
        assert one.run(), "it waited for what follows"
        asking.join()
        assert one.logged() == [2]


def what_is_durable_wakes_its_receivers() -> None:
    """The group behind a port is woken when events are sent, and when held ones are released."""
    with group([2]) as one:
        assert one.run()
        assert ["count"] in one.woken, "no operator was woken by an event"
        one.woken.clear()
        one.epoch._release(HandOver(released=[OUT]))
        assert ["count", "mine"] in one.woken, "no operator was woken by a release"


def a_receiver_that_lags_holds_it_up() -> None:
    with group([1] * 12, backlog=3) as one:
        threading.Timer(0.5, one.stop.set).start()
        ended = one.run()
        assert 1 <= len(one.logged()) <= 4, "it sent more than its receiver may lag"
        assert not ended


def a_failure_of_a_thread_ends_it() -> None:
    with group([2, ValueError("a broken feed")]) as one, pytest.raises(OperatorFailed, match="a broken feed"):
        one.run()


def an_end_that_the_log_refuses_is_none() -> None:
    with group([2]) as one:
        commit = one.session.commit

        def refuse_the_end(effects: fx.Effects) -> Any:
            if any(isinstance(effect, fx.FinishGroup) for effect in effects):
                raise LogInconsistent("the end was refused")
            return commit(effects)

        one.session.commit = refuse_the_end  # type: ignore[method-assign]
        with pytest.raises(LogInconsistent, match="the end was refused"):
            one.run()


def nothing_of_it_lives_on() -> None:
    before = working()
    with group([2, 3], [4], replayable=False) as one:
        one.run()
        eventually(lambda: working() <= before, what="a thread was not joined", timeout=PATIENCE_SECONDS)


def a_halt_ends_it_at_once() -> None:
    with group([1] * 50) as one:
        one.stop.set()
        begun = time.monotonic()
        assert not one.run()
        assert time.monotonic() - begun < PATIENCE_SECONDS / 2
        assert not one.epoch._loop.finishing


def an_output_set_waits_for_the_committer_and_for_no_clock() -> None:
    """The end of a read action comes while its event is on its way to the log, and nothing more is heard."""
    with pytest.MonkeyPatch.context() as patch, group([1], [1]) as one:
        feed = one.epoch._members["read"]
        assert isinstance(feed, Feed)
        feed.may_go_on.clear()
        patch.setattr(loop, "FLUSH_SECONDS", CLOCK_SECONDS)
        third = threading.Event()
        patch.setattr(Saving, "write", lambda _self, _client, _action: third.wait(CLOCK_SECONDS * 0.8))
        commit, begun, ended = one.session.commit, list[float](), list[float]()

        def gated(effects: fx.Effects) -> Any:
            begun.append(time.monotonic())
            if len(begun) == 3:
                third.set()
                one.stop.set()  # what follows does wait for the clock
            if len(begun) == 2:
                feed.may_go_on.set()
                eventually(one.epoch._loop.awaits_committer)
            collected = commit(effects)
            ended.append(time.monotonic())
            return collected

        patch.setattr(one.session, "commit", gated)
        one.run()
        assert len(begun) >= 3 and begun[2] - ended[1] < CLOCK_SECONDS / 2, "the clock lets it go"


CHECKS = [
    a_group_runs_to_its_end,
    what_cannot_be_read_again_is_used_from_its_store,
    a_drain_does_not_wait_for_what_follows,
    what_is_durable_wakes_its_receivers,
    a_receiver_that_lags_holds_it_up,
    a_failure_of_a_thread_ends_it,
    an_end_that_the_log_refuses_is_none,
    nothing_of_it_lives_on,
    a_halt_ends_it_at_once,
    an_output_set_waits_for_the_committer_and_for_no_clock,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_an_epoch(check: Callable[[], None]) -> None:
    check()


# --- that it is noticed if it does not --------------------------------------------------------------------------------

BROKEN = Variants()


def ignoring(patch: pytest.MonkeyPatch, *kinds: type) -> None:
    """The main thread does not tell the loop of these news."""
    observe = Intake.take

    def deaf(self: Intake, item: Any) -> None:
        if not isinstance(item, kinds):
            observe(self, item)

    patch.setattr(Intake, "take", deaf)


@BROKEN.of(a_group_runs_to_its_end, "did not end")
def ends_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """The loop does not hear that a read action has no more records."""
    ignoring(patch, Exhausted)


@BROKEN.of(a_group_runs_to_its_end, "did not end")
def applied_writes_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """The loop does not hear that write actions are applied."""
    ignoring(patch, Applied)


@BROKEN.of(a_group_runs_to_its_end, "not the events that were read")
def every_batch_is_an_event(patch: pytest.MonkeyPatch) -> None:
    """A batch without records makes an event without records."""
    observe = Intake._observe_source

    def emit(self: Intake, item: Any, now: float) -> None:
        if isinstance(item, ReadBatch) and not item.table.num_rows:
            item = replace(item, table=pa.table({"value": [0]}))
        observe(self, item, now)

    patch.setattr(Intake, "_observe_source", emit)


@BROKEN.of(a_group_runs_to_its_end, "the load meter")
def what_is_sent_is_not_noted(patch: pytest.MonkeyPatch) -> None:
    """A step is closed, and neither back-pressure nor the load meter hears of it."""
    patch.setattr(GroupEpoch, "_close", lambda self: self._loop.close())


@BROKEN.of(a_group_runs_to_its_end, "its end is not in the log")
def ends_without_a_commit(patch: pytest.MonkeyPatch) -> None:
    """The driver ends when the group could end."""
    patch.setattr(GroupEpoch, "_finish", lambda _self: True)


@BROKEN.of(what_cannot_be_read_again_is_used_from_its_store, "did not end")
def empty_effects_do_not_end(patch: pytest.MonkeyPatch) -> None:
    """Of an effect without records the loop hears that it is stored, and not that the read action ends with it."""
    observe = Intake._observe_source

    def without_end(self: Intake, item: Any, now: float) -> None:
        observe(self, replace(item, end=None) if isinstance(item, Stored) else item, now)

    patch.setattr(Intake, "_observe_source", without_end)


@BROKEN.of(a_drain_does_not_wait_for_what_follows, "waited for what follows")
def handed_over_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """The loop does not hear that a stored effect is used up."""
    ignoring(patch, HandedOver)


@BROKEN.of(a_drain_does_not_wait_for_what_follows, "waited for what follows")
def drains_are_not_heard(patch: pytest.MonkeyPatch) -> None:
    """The loop is not told that the group is to drain."""
    patch.setattr(GroupEpoch, "_drain_if_asked", lambda _self: None)


def forgetting(patch: pytest.MonkeyPatch, part: str) -> None:
    """What is handed over lacks a part."""
    release = GroupEpoch._release
    patch.setattr(GroupEpoch, "_release", lambda self, durable: release(self, replace(durable, **{part: []})))


@BROKEN.of(what_is_durable_wakes_its_receivers, "by a release")
def released_events_wake_nobody(patch: pytest.MonkeyPatch) -> None:
    """Receivers of events that were held are not woken."""
    forgetting(patch, "released")


@BROKEN.of(what_is_durable_wakes_its_receivers, "by an event")
def sent_events_wake_nobody(patch: pytest.MonkeyPatch) -> None:
    """Receivers of events are not woken."""
    forgetting(patch, "sent")


@BROKEN.of(a_group_runs_to_its_end, "did not end")
def orders_are_not_handed_over(patch: pytest.MonkeyPatch) -> None:
    """Readers do not hear that their next read action is in the log."""
    forgetting(patch, "sources")


@BROKEN.of(a_group_runs_to_its_end, "not the write actions")
def writes_are_not_handed_over(patch: pytest.MonkeyPatch) -> None:
    """Writers do not hear that their write actions are in the log."""
    forgetting(patch, "writes")


@BROKEN.of(a_receiver_that_lags_holds_it_up, "more than its receiver may lag")
def nothing_holds_it_up(patch: pytest.MonkeyPatch) -> None:
    """Inputs are taken however far a receiver lags."""
    patch.setattr(GroupEpoch, "_accepts_inputs", lambda _self: True)


@BROKEN.of(a_failure_of_a_thread_ends_it, "DID NOT RAISE")
def failures_are_kept_to_itself(patch: pytest.MonkeyPatch) -> None:
    """A thread that has failed ends, and the main thread does not hear of it."""
    patch.setattr(GroupEpoch, "_fail", lambda _self, _error: None)


@BROKEN.of(an_end_that_the_log_refuses_is_none, "DID NOT RAISE")
def refused_end_is_one(patch: pytest.MonkeyPatch) -> None:
    """The main thread waits for the last commit, and does not look what became of it."""

    def finish(self: GroupEpoch) -> bool:
        self._loop.finish()
        self._committer.drain()
        return True

    patch.setattr(GroupEpoch, "_finish", finish)


LIVE_ON: list[Callable[[], object]] = []
"""What ends the threads that a broken variant leaves."""


def leaving(patch: pytest.MonkeyPatch, part: str) -> None:
    """The threads of a part are not joined, before the test ends."""
    stop = GroupEpoch._stop

    def forgetful(self: GroupEpoch, why: str, *, for_good: bool) -> OperatorFailed | None:
        kept = getattr(self, part)
        setattr(self, part, None if part == "_channel" else {})
        left = stop(self, why, for_good=for_good)
        setattr(self, part, kept)
        LIVE_ON.append(partial(stop, self, why, for_good=for_good))
        return left

    patch.setattr(GroupEpoch, "_stop", forgetful)


@BROKEN.of(nothing_of_it_lives_on, "was not joined")
def writers_live_on(patch: pytest.MonkeyPatch) -> None:
    """The threads of writers are not joined."""
    leaving(patch, "_writers")


@BROKEN.of(nothing_of_it_lives_on, "was not joined")
def readers_live_on(patch: pytest.MonkeyPatch) -> None:
    """The threads of sources are not joined."""
    leaving(patch, "_sources")


@BROKEN.of(a_halt_ends_it_at_once, "assert not")
def halts_are_not_heard(patch: pytest.MonkeyPatch) -> None:
    """The main thread does not look whether its group is to halt."""
    drive = GroupEpoch._drive

    def deaf(self: GroupEpoch) -> bool:
        self._settings.stop_requested.clear()
        return drive(self)

    patch.setattr(GroupEpoch, "_drive", deaf)


@BROKEN.of(an_output_set_waits_for_the_committer_and_for_no_clock, "the clock lets it go")
def the_committer_wakes_no_one(patch: pytest.MonkeyPatch) -> None:
    """It does not say that it is free."""
    patch.setattr(Mailbox, "wake", lambda _self: None)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_epoch_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name_of, seconds in (("PATIENCE_SECONDS", 0.7), ("CLOCK_SECONDS", 1.0)):
        monkeypatch.setattr(f"tests.unit.driver.test_epoch.{name_of}", seconds)
    BROKEN[name].is_noticed(monkeypatch)
    while LIVE_ON:
        LIVE_ON.pop()()
