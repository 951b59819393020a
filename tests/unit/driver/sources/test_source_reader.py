"""The thread of a source: what it brings, in which order, and how often it asks the external system."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow import RangeSource, SourceBatch
from airflow_logio.dataflow.operators import SourceOperator
from airflow_logio.driver.mailbox import Bound, Mailbox
from airflow_logio.driver.source_reader import (
    Discarded,
    Exhausted,
    Forgotten,
    HandedOver,
    ReadBatch,
    SourceReader,
    Stored,
    without_plan,
)
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, InputMissing, LogInconsistent, OperatorFailed
from airflow_logio.protocol.commit import DiscardOrder, ForgetOrder, ReadOrder
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.payloads import EpochPayloads, Payloads
from tests.support.waiting import eventually

LONG = 60.0
"""Seconds for which something is in the way that is never waited for to its end."""
Script = Sequence[int | Exception]
"""Sizes of the batches of one execution, and what is raised between them."""


class Scripted(SourceOperator):
    """Each execution of a read action follows the next script; every record says which execution it comes from."""

    def __init__(self, *scripts: Script, replayable: bool = False) -> None:
        self.replayable = replayable
        self.scripts = list(scripts)
        self.reads: list[tuple[Any, int]] = []

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"part": 0}

    def next_action(self, params: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any] | None:
        parts = previous.get("plan", [])
        return {"part": previous["part"] + 1, "plan": parts} if previous["part"] + 1 < len(parts) else None

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        self.reads.append((action["part"], offset))
        script = self.scripts.pop(0)
        for step in script:
            if isinstance(step, Exception):
                raise step
            offset += step
            yield SourceBatch(pa.table({"read": [len(self.reads)] * step}), offset)


class Harness:
    """A reader with its mailbox; what it fails with is kept."""

    def __init__(
        self, source: Scripted, payloads: EpochPayloads | None, *, plan: Any = None, seconds: float = 5
    ) -> None:
        self.source = source
        self.mailbox = Mailbox(Bound())
        self.errors: list[BaseException] = []
        connections = Connections("p", {}, WriterIdentity("run", 1, 0.0), seconds)
        self.reader = SourceReader(
            "s", source, {}, plan, connections, payloads, self.mailbox, self._failed, lambda stopping: None
        )

    def _failed(self, error: BaseException) -> None:
        self.errors.append(error)
        self.mailbox.put(None)

    def take(self, count: int = 1) -> list[Any]:
        found: list[Any] = []
        deadline = time.monotonic() + 60
        while len(found) < count and not self.errors and time.monotonic() < deadline:
            if (item := self.mailbox.get(0.1, inputs=True)) is not None:
                found.append(item)
        assert len(found) == count, f"got {found}, errors {self.errors}"
        return found

    def error(self) -> BaseException:
        deadline = time.monotonic() + 60
        while not self.errors and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.errors
        return self.errors[0]

    def stop(self) -> None:
        self.mailbox.close()
        self.reader.stop(patience=60)


@pytest.fixture
def store(tmp_path: Path) -> Payloads:
    return Payloads(str(tmp_path))


@pytest.fixture
def epoch(store: Payloads) -> EpochPayloads:
    return store.epoch("run", "g", 1, 0)


@pytest.fixture
def start() -> Iterator[Any]:
    harnesses: list[Harness] = []

    def make(*arguments: Any, **settings: Any) -> Harness:
        harnesses.append(Harness(*arguments, **settings))
        return harnesses[-1]

    yield make
    for harness in harnesses:
        harness.stop()


def sizes(items: Sequence[Any]) -> list[tuple[int, int, int]]:
    """(records, offset, execution) of batches."""
    return [(item.table.num_rows, item.next_offset, item.table.column("read")[0].as_py()) for item in items]


def test_an_effect_is_stored_before_its_first_batch_and_discarded_when_it_is_used_up(
    start: Any, store: Payloads, epoch: EpochPayloads
) -> None:
    harness = start(Scripted([3, 4]), epoch)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    stored, *batches, handed_over, end = harness.take(5)
    assert isinstance(stored, Stored) and (stored.records, stored.end) == (7, None)
    assert sizes(batches) == [(3, 3, 1), (4, 7, 1)]
    assert (handed_over, end) == (HandedOver("s"), Exhausted("s", None))
    assert len(store.find("run")) == 1
    harness.reader.ask(DiscardOrder("s", 1))
    assert harness.take() == [Discarded("s", 1)]
    assert store.find("run") == []


def test_a_read_that_fails_midway_is_discarded_and_replayed(start: Any, store: Payloads, epoch: EpochPayloads) -> None:
    source = Scripted([3, ExternalUnavailable("gone")], [2, ConnectionError("reset")], [TimeoutError()], [5])
    harness = start(source, epoch)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    stored, batch, _ = harness.take(3)
    assert stored.records == 5 and sizes([batch]) == [(5, 5, 4)], "nothing of the earlier executions"
    assert source.reads == [(0, 0)] * 4
    assert len(store.find("run")) == 1


def test_a_system_that_stays_away_is_a_clear_end(start: Any, store: Payloads, epoch: EpochPayloads) -> None:
    harness = start(Scripted(*[[ExternalUnavailable("no route")]] * 50), epoch, seconds=0.5)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    error = harness.error()
    assert isinstance(error, ExternalUnavailable) and "reading source s" in str(error) and "no route" in str(error)
    assert store.find("run") == []


def test_a_long_read_that_fails_once_has_more_attempts(start: Any, epoch: EpochPayloads) -> None:
    harness = start(Scripted([1, ExternalUnavailable("late")], [1]), epoch, seconds=0.001)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    assert harness.take(3)[0].records == 1


def test_an_error_of_the_reader_is_fatal_and_named(start: Any, store: Payloads, epoch: EpochPayloads) -> None:
    harness = start(Scripted([3, ValueError("no such day")]), epoch)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    error = harness.error()
    assert (
        isinstance(error, OperatorFailed)
        and str(error).splitlines()[0]
        == "pipeline 'p', source 's', read action 1 after 0 records: ValueError: no such day"
    )
    assert str(error.at) == "read action 1 after 0 records of operator 's'", "where it comes back, if it does"
    assert store.find("run") == []


def test_a_stored_effect_is_never_read_again_outside(start: Any, epoch: EpochPayloads) -> None:
    first = start(Scripted([3, 4, 5]), epoch)
    first.reader.ask(ReadOrder("s", 1, {"part": 0}))
    ref = first.take(5)[0].ref
    nobody = Scripted()
    again = start(nobody, epoch)
    again.reader.ask(ReadOrder("s", 1, {"part": 0}, 7, ref))
    batch, _, end = again.take(3)
    assert sizes([batch]) == [(5, 12, 1)] and isinstance(end, Exhausted)
    assert nobody.reads == []


def test_a_stored_effect_that_is_gone_is_said_with_the_read_action(
    start: Any, store: Payloads, epoch: EpochPayloads
) -> None:
    first = start(Scripted([3]), epoch)
    first.reader.ask(ReadOrder("s", 7, {"part": 0}))
    ref = first.take(3)[0].ref
    store.remove([ref])
    again = start(Scripted(), epoch)
    again.reader.ask(ReadOrder("s", 7, {"part": 0}, 0, ref))
    error = again.error()
    assert isinstance(error, LogInconsistent) and "read action 7 of source 's' is missing" in str(error)


def test_an_empty_effect_completes_when_it_is_stored(start: Any, epoch: EpochPayloads) -> None:
    harness = start(Scripted([]), epoch)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    (stored,) = harness.take()
    assert (stored.records, stored.end) == (0, Exhausted("s", None))
    assert harness.mailbox.get(0.2, inputs=True) is None


def test_what_recovery_finds_used_up_is_discarded_before_anything_is_read(
    start: Any, store: Payloads, epoch: EpochPayloads
) -> None:
    ref = str(epoch.store("effects/s/1", b"used up"))
    harness = start(Scripted([2]), epoch)
    harness.reader.ask(DiscardOrder("s", 1, ref))
    harness.reader.ask(ReadOrder("s", 2, {"part": 1}))
    assert harness.take(2)[0] == Discarded("s", 1)
    assert [Path(path).parent.name for path in store.find("run")] == ["s"] and ref not in store.find("run")


@pytest.mark.parametrize("replayable", [True, False])
def test_read_actions_follow_each_other_and_only_the_run_keeps_their_plan(
    start: Any, epoch: EpochPayloads, replayable: bool
) -> None:
    source = Scripted([1], [2], replayable=replayable)
    harness = start(source, epoch, plan=["a", "b"])
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    items = 2 if replayable else 4
    end = harness.take(items)[-1]
    assert end == Exhausted("s", {"part": 1})
    harness.reader.ask(ReadOrder("s", 2, end.next_action))
    assert harness.take(items)[-1] == Exhausted("s", None)
    assert source.reads == [(0, 0), (1, 0)]
    assert without_plan({"part": 0, "plan": [1]}) == {"part": 0}


def test_a_replayable_read_resumes_behind_what_it_has_brought(start: Any, epoch: EpochPayloads) -> None:
    source = Scripted([3, ExternalUnavailable("gone")], [4], replayable=True)
    harness = start(source, None)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}, 10))
    assert sizes(harness.take(3)[:2]) == [(3, 13, 1), (4, 17, 2)]
    assert source.reads == [(0, 10), (0, 13)]


def test_without_a_payload_store_it_says_what_to_configure(start: Any) -> None:
    source = Scripted([3])
    harness = start(source, None)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    error = harness.error()
    assert isinstance(error, ConfigurationError) and "`payloads`" in str(error)
    assert source.reads == []


def test_it_ends_in_the_middle_of_a_read_and_leaves_no_file(start: Any, store: Payloads, epoch: EpochPayloads) -> None:
    reached, go_on = threading.Event(), threading.Event()

    class Slow(Scripted):
        def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
            for batch in super().read(params, action, offset):
                yield batch
                reached.set()
                go_on.wait(60)

    harness = start(Slow([1, 1, 1]), epoch)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    assert reached.wait(60)
    threading.Timer(0.2, go_on.set).start()
    harness.stop()
    assert store.find("run") == [] and harness.errors == []


class Blocked(Scripted):
    """Behind its scripts nothing answers, until the test ends."""

    def __init__(self, *scripts: Script, replayable: bool = False) -> None:
        super().__init__(*scripts, replayable=replayable)
        self.blocked, self.released = threading.Event(), threading.Event()

    def block(self) -> None:
        self.blocked.set()
        self.released.wait(60)

    def next_action(self, params: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any] | None:
        self.block()
        return {"part": previous["part"] + 1}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        yield from super().read(params, action, offset)
        if self.replayable:
            self.block()


def test_a_read_that_is_cut_short_brings_nothing_more_and_what_it_says_later_is_not_heard(start: Any) -> None:
    class Failing(Blocked):
        def block(self) -> None:
            super().block()
            raise ValueError("late")

    source = Failing([3], replayable=True)
    harness = start(source, None)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    harness.take()
    assert source.blocked.wait(60)
    harness.reader.drain(cut_short=True)
    source.released.set()
    harness.reader._reading_thread.join(60)
    assert not harness.reader._reading_thread.is_alive()
    assert harness.errors == [] and harness.mailbox.get(0, inputs=True) is None


def test_a_read_that_does_not_answer_is_left_behind_by_a_process_that_ends(start: Any) -> None:
    source = Blocked([3], replayable=True)
    harness = start(source, None)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    assert source.blocked.wait(60)
    harness.mailbox.close()
    harness.reader.stop(patience=0.05)
    assert harness.reader._reading_thread.is_alive()
    source.released.set()


def test_a_store_is_discarded_while_the_next_read_action_is_asked_for(
    start: Any, store: Payloads, epoch: EpochPayloads
) -> None:
    """Who drains needs no answer to that: the stored effect is handed over, and its store goes."""
    source = Blocked([3])
    harness = start(source, epoch)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    assert [type(item) for item in harness.take(3)] == [Stored, ReadBatch, HandedOver]
    assert source.blocked.wait(60)
    harness.reader.drain(cut_short=True)
    harness.reader.ask(DiscardOrder("s", 1))
    assert harness.take() == [Discarded("s", 1)]
    assert store.find("run") == []
    source.released.set()


def test_a_stored_effect_is_handed_over_whole_in_a_drain_and_nothing_is_asked_for(
    start: Any, epoch: EpochPayloads
) -> None:
    first = start(Scripted([3, 4]), epoch)
    first.reader.ask(ReadOrder("s", 1, {"part": 0}))
    ref = first.take()[0].ref
    source = Blocked()
    harness = start(source, epoch)
    harness.reader.drain(cut_short=False)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}, 3, ref))
    batch, handed_over = harness.take(2)
    assert sizes([batch]) == [(4, 7, 1)] and handed_over == HandedOver("s")
    assert harness.mailbox.get(0.1, inputs=True) is None and not source.blocked.is_set()


def test_a_source_whose_system_is_away_is_not_waited_for(start: Any) -> None:
    source = Scripted(*[[ExternalUnavailable("no route")]] * 50, replayable=True)
    harness = start(source, None, seconds=60)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    eventually(lambda: source.reads)
    harness.reader.drain(cut_short=True)
    harness.reader._reading_thread.join(60)
    assert not harness.reader._reading_thread.is_alive() and harness.errors == []


def test_batches_of_a_replayable_read_are_those_of_the_source(start: Any) -> None:
    harness = start(Scripted([2, 0, 1], replayable=True), None)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    assert all(isinstance(item, ReadBatch) for item in harness.take(4)[:3])


# --- what may be forgotten --------------------------------------------------------------------------------------------


class Forgetting(RangeSource):
    """It follows the script: what `forget` raises, or what it waits for."""

    unavailable = (LookupError,)

    def __init__(self, *script: Exception | threading.Event) -> None:
        self.script = list(script)
        self.told: list[int] = []

    def first(self, params: Mapping[str, Any]) -> int:
        return 0

    def latest(self, params: Mapping[str, Any], start: int, limit: int | None) -> int:
        return start

    def frame(self, spark: Any, params: Mapping[str, Any], start: int, end: int) -> Any:
        raise AssertionError("nothing is read here")

    def forget(self, params: Mapping[str, Any], end: int) -> None:
        self.told.append(end)
        match self.script.pop(0) if self.script else None:
            case Exception() as error:
                raise error
            case threading.Event() as event:
                event.wait(60)


def ranges(*ends: int) -> list[ForgetOrder]:
    return [ForgetOrder("s", number, {"start": 0, "end": end}) for number, end in enumerate(ends, start=1)]


def test_a_source_is_told_what_it_may_forget_though_the_group_drains(start: Any) -> None:
    source = Forgetting(LookupError("not now"), ConnectionError("nor now"))
    harness = start(source, None)
    harness.reader.drain(cut_short=True)
    for order in ranges(5, 9):
        harness.reader.ask(order)
    assert harness.take(2) == [Forgotten("s", 1), Forgotten("s", 2)]
    assert source.told == [5, 5, 5, 9]


def test_what_forget_raises_fails_the_group_with_its_place(start: Any) -> None:
    harness = start(Forgetting(KeyError("offset")), None)
    harness.reader._operator.unavailable = ()
    harness.reader.ask(ranges(5)[0])
    says = r"pipeline 'p', forget\(\) of read action 1 of operator 's': KeyError: 'offset'"
    with pytest.raises(OperatorFailed, match=says):
        raise harness.error()


def test_a_source_that_does_not_answer_is_not_waited_for(start: Any) -> None:
    answered = threading.Event()
    harness = start(Forgetting(answered), None)
    harness.reader.ask(ranges(5)[0])
    eventually(lambda: harness.source.told == [5], what="it was asked")
    assert harness.reader.stop(patience=0.1) is not None
    answered.set()


def test_offsets_are_kept_as_the_log_gives_them_back_or_refused() -> None:
    class Pairs(Forgetting):
        def latest(self, params: Mapping[str, Any], start: Any, limit: Any) -> Any:
            return (1, {"a": (2,)})

    assert Pairs().action({}) == {"start": 0, "end": [1, {"a": [2]}]}
    assert Pairs().next_action({}, {"start": 0, "end": [1, {"a": [2]}]}) == {
        "start": [1, {"a": [2]}],
        "end": [1, {"a": [2]}],
    }

    class Objects(Forgetting):
        def latest(self, params: Mapping[str, Any], start: Any, limit: Any) -> Any:
            return {1.5, float("nan")}

    with pytest.raises(OperatorFailed, match=r"latest\(\) returned .*, and offsets are JSON values"):
        Objects().action({})


class Stuck(Payloads):
    """Nothing can be removed before the test ends."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.asked, self.released = threading.Event(), threading.Event()

    def remove(self, refs: Iterable[str]) -> None:
        self.asked.set()
        self.released.wait(LONG)


def test_a_store_that_cannot_be_discarded_holds_nobody_up_for_ever(start: Any, tmp_path: Path) -> None:
    """Neither the end of the epoch, nor that of the process."""
    stuck = Stuck(str(tmp_path))
    harness = start(Scripted([3]), stuck.epoch("run", "g", 1, 0))
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    harness.take(4)
    harness.reader.ask(DiscardOrder("s", 1))
    assert stuck.asked.wait(60)
    harness.mailbox.close()
    began = time.monotonic()
    blocked = harness.reader.stop(patience=0.2)
    assert time.monotonic() - began < LONG / 2
    assert str(blocked) == "discarding the stored effect of read action 1 of operator 's'"
    stuck.released.set()


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file", "/data/today.csv"), ValueError("7")])
def test_a_file_that_is_missing_is_told_apart_from_a_mistake(
    start: Any, epoch: EpochPayloads, error: Exception
) -> None:
    """The group of the first waits at once, because another driver would not find the file, either."""
    harness = start(Scripted([error]), epoch)
    harness.reader.ask(ReadOrder("s", 1, {"part": 0}))
    found = harness.error()
    kind = InputMissing if isinstance(error, FileNotFoundError) else OperatorFailed
    assert type(found) is kind and "source 's', read action 1 after 0 records" in str(found)
    assert ("/data/today.csv" in str(found)) == (kind is InputMissing)
