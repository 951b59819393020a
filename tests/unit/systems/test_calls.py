"""Whose time is taken while an author's code runs: the innermost call's; and what does not count."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from airflow_logio.dataflow import Count, FunctionRead, Pipeline
from airflow_logio.dataflow.pipeline.definition import CallLimit
from airflow_logio.errors import ExternalUnavailable, FailurePoint, LockHeld, PipelineDefinitionError
from airflow_logio.protocol.liveness import MOST_LONG_ATTEMPTS, Outage
from airflow_logio.systems.calls import CallWatch, Locks, replay
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.testing import ScriptedSource

POINT = FailurePoint("enrich[3]", inset_id="7")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> CallWatch:
    made = CallWatch(clock)
    made.limits = {"enrich": CallLimit(10, "park")}
    return made


def test_nothing_is_shown_while_no_code_of_an_author_runs(watch: CallWatch, clock: Clock) -> None:
    assert watch.longest() == ("", 0.0)
    with watch.call("generate", POINT):
        clock.now += 3
        assert watch.longest() == ("`generate` of Input Set '7' of operator 'enrich[3]'", 3.0)
    assert watch.longest() == ("", 0.0)


def test_the_limit_is_that_of_the_operator_as_its_author_named_it(watch: CallWatch, clock: Clock) -> None:
    with watch.call("generate", POINT) as call:
        clock.now += 10
        assert watch.overrun() is None
        clock.now += 1
        assert watch.overrun() == (call, 11.0)
        assert call.limit == CallLimit(10, "park")
    assert watch.overrun() is None
    with watch.call("generate", FailurePoint("other")):
        clock.now += 1000
        assert watch.overrun() is None


def test_each_call_is_measured_by_itself(watch: CallWatch, clock: Clock) -> None:
    for _ in range(5):
        with watch.call("generate", POINT):
            clock.now += 9
            assert watch.overrun() is None


def test_a_call_does_not_count_what_is_called_inside_of_it(watch: CallWatch, clock: Clock) -> None:
    with watch.call("generate", POINT) as outer:
        clock.now += 6
        with watch.inner("read", limited=False):
            clock.now += 600  # back-off while the system is unavailable
            assert watch.overrun() is None
            with watch.inner("fetch") as fetch:
                clock.now += 11
                assert watch.overrun() == (fetch, 11.0), "but one attempt has the limit, too"
        assert watch.overrun() is None
        clock.now += 5
        assert watch.overrun() == (outer, 11.0)


def test_the_time_in_which_the_process_was_stopped_is_nobodys(watch: CallWatch, clock: Clock) -> None:
    with watch.call("generate", POINT):
        clock.now += 3600
        watch.forgive(3600)
        assert watch.overrun() is None


def test_threads_do_not_mix(watch: CallWatch, clock: Clock) -> None:
    begun, leave = threading.Event(), threading.Event()

    def read() -> None:
        with watch.call("read", FailurePoint("feed", action="read action 1")):
            begun.set()
            leave.wait(60)

    thread = threading.Thread(target=read)
    thread.start()
    begun.wait(60)
    clock.now += 5
    with watch.call("generate", POINT):
        clock.now += 1
        assert watch.longest() == ("`read` of read action 1 of operator 'feed'", 6.0)
    leave.set()
    thread.join()
    assert watch.longest() == ("", 0.0)


def test_waiting_for_an_unavailable_system_is_no_overrun(clock: Clock, watch: CallWatch) -> None:
    attempts = iter(range(3))
    seen: list[object] = []

    def fetch(url: str, keys: pa.Array | None) -> pa.Table:
        clock.now += 6
        seen.append(watch.overrun())
        if next(attempts) < 2:
            raise ExternalUnavailable("come back later")
        return pa.table({"a": [1]})

    connections = Connections("p", {"api": "http://api"}, WriterIdentity("run", 1, 0.0), 30, watch)
    with watch.call("generate", POINT):
        connections.read(FunctionRead("api", fetch), None)
        assert watch.overrun() is None
    assert seen == [None, None, None], "eighteen seconds, but no attempt took ten"


# --- the declaration --------------------------------------------------------------------------------------------------


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    yield reading()


def reading() -> Pipeline:
    made = Pipeline("p")
    made.sink("done", Count(), made.source("read", ScriptedSource(pa.table({"n": [1]}), 1)))
    return made


def test_limits_are_no_part_of_what_a_run_resumes_with(pipeline: Pipeline) -> None:
    other = reading()
    other.limit("read", max_seconds=60, on_overrun="park")
    assert other.limits == {"read": CallLimit(60, "park")}
    assert pipeline.limits == {}
    assert other.fingerprint()["graph"] == pipeline.fingerprint()["graph"]


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), True, "60"])
def test_seconds_that_are_none_are_refused(pipeline: Pipeline, seconds: float) -> None:
    with pytest.raises(PipelineDefinitionError, match="max_seconds is"):
        pipeline.limit("read", max_seconds=seconds)


def test_unknown_operators_and_ends_are_refused(pipeline: Pipeline) -> None:
    with pytest.raises(PipelineDefinitionError, match=r"names 'raed', which is no operator. Did you mean 'read'"):
        pipeline.limit("raed", max_seconds=1)
    with pytest.raises(PipelineDefinitionError, match="on_overrun 'stop' is neither 'recover' nor 'park'"):
        pipeline.limit("read", max_seconds=1, on_overrun="stop")


def test_what_waits_for_an_external_system_says_so_with_cause_and_time(clock: Clock, watch: CallWatch) -> None:
    """Between two attempts as well, and rather than any call: from the first failure until it has what it wants."""
    causes = iter(["no route to\nhost", "no route to host, " + "long " * 100])
    seen: list[tuple[str, float]] = []

    def fetch(url: str, keys: pa.Array | None) -> pa.Table:
        clock.now += 6
        seen.append(watch.longest())
        if (cause := next(causes, None)) is not None:
            raise ExternalUnavailable(cause)
        return pa.table({"a": [1]})

    connections = Connections("p", {"api": "http://api"}, WriterIdentity("run", 1, 0.0), 30, watch)
    with watch.call("generate", POINT):
        connections.read(FunctionRead("api", fetch), None)
        assert watch.longest()[0].startswith("`generate`"), "it waits no more"
    assert seen[0][0].startswith("`fetch`")
    what = r"`wait` for reading .*fetch.* of connection 'api', unavailable since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: "
    assert re.fullmatch(what + "no route to host", seen[1][0]) and seen[1][1] == 6.0
    assert re.fullmatch(what + r"no route to host, (long )+\S* ?\.\.\.", seen[2][0]) and seen[2][1] == 12.0
    assert len(seen[2][0]) < 500, "a cause is shortened"


def lasting(seconds: float, *errors: Exception) -> tuple[list[float], Callable[[], str]]:
    """An action that takes longer than `seconds`, and fails with each of these errors first; and when it began."""
    begun: list[float] = []
    left = list(errors)

    def action() -> str:
        begun.append(time.monotonic())
        while time.monotonic() - begun[-1] <= seconds:
            time.sleep(seconds / 4)
        if left:
            raise left.pop(0)
        return "done"

    return begun, action


@pytest.mark.parametrize("outages", [1, MOST_LONG_ATTEMPTS - 1])
def test_what_rightly_takes_longer_than_it_is_replayed_is_tried_again(outages: int) -> None:
    begun, action = lasting(0.05, *[ConnectionError("cut")] * outages)
    assert replay("a long write", action, 0.05, threading.Event()) == "done"
    assert len(begun) == outages + 1


def test_what_fails_each_time_after_that_long_is_not_tried_for_ever() -> None:
    begun, action = lasting(0.05, *[ConnectionError("cut")] * 50)
    with pytest.raises(ExternalUnavailable, match=r"after 3 attempts \(3 times for longer than 0\.05 s\), .*: cut\."):
        replay("a long write", action, 0.05, threading.Event())
    assert len(begun) == MOST_LONG_ATTEMPTS


def test_a_long_read_of_another_system_is_tried_again() -> None:
    begun, action = lasting(0.05, TimeoutError("cut"))

    def fetch(url: str, keys: pa.Array | None) -> pa.Table:
        return pa.table({"a": [action()]})

    connections = Connections("p", {"api": "http://api"}, WriterIdentity("run", 1, 0.0), 0.05, CallWatch())
    assert connections.read(FunctionRead("api", fetch), None).num_rows == 1
    assert len(begun) == 2


def test_a_stop_ends_it_after_the_first_failure() -> None:
    stopping = threading.Event()
    stopping.set()
    begun, action = lasting(0.01, ConnectionError("cut"))
    with pytest.raises(ExternalUnavailable):
        replay("a write", action, 60, stopping)
    assert len(begun) == 1


# --- locks of others --------------------------------------------------------------------------------------------------


class Held:
    """An action that fails: with `before`, with `LockHeld` so often, with `after`; and what others commit meanwhile."""

    def __init__(self, waits: int, *, before: tuple[Exception, ...] = (), after: tuple[Exception, ...] = ()) -> None:
        self._errors = [*before, *[LockHeld("lock timeout")] * waits, *after]
        self.attempts = 0
        self.commits = 0

    def __call__(self) -> str:
        self.attempts += 1
        if self._errors:
            raise self._errors.pop(0)
        return "done"

    def another_commits(self) -> int:
        self.commits += 1
        return self.commits


NO_TIME = 1e-9
"""Any second failure in a row is one too many."""


def test_waits_for_a_lock_do_not_count_where_the_caller_says_so() -> None:
    held = Held(4)
    assert replay("the closing", held, NO_TIME, threading.Event(), locks=Locks(count=False)) == "done"
    assert held.attempts == 5


def test_waits_for_a_lock_count_otherwise() -> None:
    held = Held(10)
    with pytest.raises(ExternalUnavailable, match=r"after 3 attempts .*: lock timeout\."):
        replay("a write", held, NO_TIME, threading.Event())
    assert held.attempts == MOST_LONG_ATTEMPTS, "each has taken longer than no time at all"


def test_what_fails_behind_a_wait_for_a_lock_counts_from_there() -> None:
    """A system whose lock is held is there: what it was before, and how long the wait lasted, is no part of an outage."""
    gone = ConnectionError("gone")
    held = Held(3, before=(gone,), after=(gone,))
    seconds = 0.15  # less than the pauses between these attempts
    assert replay("the closing", held, seconds, threading.Event(), locks=Locks(count=False)) == "done"
    assert held.attempts == 6


def test_a_system_that_goes_away_while_a_lock_is_waited_for_is_given_up() -> None:
    held = Held(2, after=(ConnectionError("gone"),) * 50)
    with pytest.raises(ExternalUnavailable, match="still unavailable: ConnectionError: gone"):
        replay("the closing", held, 0.2, threading.Event(), locks=Locks(count=False))
    assert held.attempts < 52


def test_a_stop_ends_a_wait_for_a_lock() -> None:
    stopping = threading.Event()
    stopping.set()
    held = Held(50)
    with pytest.raises(ExternalUnavailable, match="lock timeout"):
        replay("the closing", held, 60, stopping, locks=Locks(count=False))
    assert held.attempts == 1


def test_the_clock_begins_anew_when_others_have_worked() -> None:
    held = Held(5)
    assert replay("the closing", held, 0.15, threading.Event(), locks=Locks(progress=held.another_commits)) == "done"
    assert (held.attempts, held.commits) == (6, 5), "asked once for each wait"


@pytest.mark.parametrize("seen", [None, ("run", 7)])
def test_a_lock_is_given_up_when_nothing_comes_of_the_waiting(seen: object) -> None:
    held = Held(50)
    with pytest.raises(ExternalUnavailable, match="lock timeout"):
        replay("the closing", held, 0.15, threading.Event(), locks=Locks(progress=lambda: seen))
    assert held.attempts < 51


def test_what_cannot_be_asked_has_not_moved() -> None:
    held = Held(50)
    asked = []

    def progress() -> object:
        asked.append(held.attempts)
        if len(asked) % 2:
            return ("run", 7)
        raise ExternalUnavailable("the disk is unavailable")

    with pytest.raises(ExternalUnavailable, match="lock timeout"):
        replay("the closing", held, 0.15, threading.Event(), locks=Locks(progress=progress))
    assert held.attempts < 51


def test_nothing_is_asked_of_an_outage_that_is_none_of_a_lock() -> None:
    held = Held(0, before=(ConnectionError("gone"),) * 50)
    with pytest.raises(ExternalUnavailable, match="gone"):
        replay("the closing", held, 0.15, threading.Event(), locks=Locks(progress=held.another_commits))
    assert held.commits == 0


def test_an_outage_that_is_over_is_counted_from_its_next_failure() -> None:
    outage = Outage(10)
    assert not outage.failed(0, 1)
    assert not outage.failed(1, 10)
    outage.is_over()
    assert not outage.failed(10, 12)
    assert not outage.failed(12, 21)
    assert outage.failed(21, 22)


def test_what_waits_in_vain_waits_no_more(watch: CallWatch) -> None:
    def fetch(url: str, keys: pa.Array | None) -> pa.Table:
        raise ExternalUnavailable("gone")

    connections = Connections("p", {"api": "http://api"}, WriterIdentity("run", 1, 0.0), 0.2, watch)
    with pytest.raises(ExternalUnavailable, match="still unavailable: gone"):
        connections.read(FunctionRead("api", fetch), None)
    assert watch.longest() == ("", 0.0)
