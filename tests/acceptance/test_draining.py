"""A run whose sources have no end is drained: what was read is processed exactly once, and nothing further is read.

The oracle: a source's table holds a prefix of what the source gives, as long as the counter of its port says; and after a
driver has died while it drained, the next one has read nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch import bundle
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.supervision.tidying import tidy
from airflow_logio.systems.payloads import Payloads
from tests.support.bundle.endless import RECORDS_PER_EVENT, RECORDS_PER_POLL
from tests.support.crash_sites import IN_DRAINS
from tests.support.running import PlainLauncher, Running, has_ended, running
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

pytestmark = pytest.mark.acceptance

ENDLESS = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'endless.py'}:endless")
SOURCES = ("ticks", "polls", "turns")
NEVER = -1
ON_SQLITE = pytest.mark.parametrize("log_url", ["sqlite"], indirect=True)
"""What is about drivers and sources, and not about transactions."""


class Endless:
    """A run of the pipeline without an end."""

    def __init__(self, run: Running, warehouse_url: str, payloads: str) -> None:
        self.run = run
        self.payloads = payloads
        self._warehouse_url = warehouse_url

    def records(self, source: str) -> int:
        progress = self.run.store.progress(self.run.run.run_id)
        return sum(row.records for row in progress if str(row.port) == f"{source}.out" and row.direction == "out")

    def ask(self, *groups: str, wish: GroupState = GroupState.DRAINING) -> None:
        for group in groups or SOURCES:
            self.run.store.request(self.run.run.run_id, group, wish)

    def until_read(self, events: int, *groups: str) -> None:
        sources = [group for group in groups or SOURCES if group in SOURCES]
        enough = RECORDS_PER_EVENT * events
        self.run.until(
            lambda: all(self.records(source) >= enough for source in sources), f"{events} events are read", *groups
        )

    def assert_exact(self) -> None:
        """Each table is the prefix that its source's port has sent."""
        tables = {name: rows_of(self._warehouse_url, f"SELECT * FROM {name}") for name in SOURCES}
        read = {source: self.records(source) for source in SOURCES}
        for source in ("ticks", "turns"):
            assert sorted(tables[source]) == [(number,) for number in range(read[source])]
        rows = sorted((poll, number) for poll, number, _ in tables["polls"])
        assert len({(poll, look) for poll, _, look in tables["polls"]}) == read["polls"] / RECORDS_PER_POLL, (
            "a poll is one look, whole"
        )
        assert rows == [divmod(place, RECORDS_PER_POLL) for place in range(read["polls"])]


@pytest.fixture
def start(log_url: str, tmp_path: Path) -> Callable[..., Any]:
    @contextmanager
    def begin(
        armed: dict[tuple[str, int], str] | None = None,
        *,
        ticks_block: int = NEVER,
        polls_block: int = NEVER,
        **more: Any,
    ) -> Iterator[Endless]:
        warehouse, payloads = f"sqlite:///{tmp_path / 'endless.db'}", str(tmp_path / "payloads")
        launcher = PlainLauncher(tmp_path / "drivers", armed or {})
        settings = {
            "ref": ENDLESS,
            "connections": {"warehouse": warehouse},
            "params": {"ticks_block": ticks_block, "polls_block": polls_block},
            "payloads": payloads,
        }
        with running(log_url, "", Path(), launcher, **settings, **more) as run:
            yield Endless(run, warehouse, payloads)

    return begin


@pytest.mark.parametrize("point", IN_DRAINS)
def test_dying_in_a_drain_reads_nothing_further(point: CrashPoint, start: Any) -> None:
    with start({(source, 1): f"{point}:1" for source in SOURCES}) as endless:
        run = endless.run
        endless.until_read(8)
        drivers = [run.process(source) for source in SOURCES]
        endless.ask()
        eventually(lambda: all(map(has_ended, drivers)), what=f"they die at {point}", timeout=60)
        died_with = {source: endless.records(source) for source in SOURCES}
        endless.ask()  # a second request changes nothing
        run.finish()
        assert [run.status(source).incarnation for source in SOURCES] == [2, 2, 2], "the point was not passed"
        drained = {status.group for status in run.store.groups(run.run.run_id) if status.drained_at is not None}
        assert drained == set(SOURCES), "the log keeps who has not read all that there is"
        assert {source: endless.records(source) for source in ("ticks", "turns")} == {
            source: died_with[source] for source in ("ticks", "turns")
        }
        assert endless.records("polls") - died_with["polls"] <= RECORDS_PER_POLL, "what is stored has been read"
        assert run.store.finish_run(run.run.run_id)
        assert run.store.find_run(run.run.uid).state is RunState.FINISHED
        endless.assert_exact()
        assert Payloads(endless.payloads).find(run.run.uid) == [], "stored effects are discarded"
        tidy(run.store, run.run.run_id, Payloads(endless.payloads).remove)


@ON_SQLITE
def test_sources_that_are_blocked_outside(start: Any) -> None:
    """A read that never answers, and a question for the next read action that is never answered, hold nothing up."""
    with start(ticks_block=5 * RECORDS_PER_EVENT, polls_block=1) as endless:
        run = endless.run
        endless.until_read(10, "polls", "turns")
        run.until(lambda: endless.records("ticks") == 5 * RECORDS_PER_EVENT, "ticks is blocked")
        run.until(lambda: endless.records("polls") == 2 * RECORDS_PER_POLL, "polls is blocked")
        drivers = [run.process(source) for source in SOURCES]
        endless.ask()
        run.until(lambda: run.status("turns").state is GroupState.FINISHED, "turns has drained")
        run.finish()
        assert [run.status(source).incarnation for source in SOURCES] == [1, 1, 1]
        endless.assert_exact()
        eventually(lambda: all(map(has_ended, drivers)), what="no read keeps its driver", timeout=60)


@ON_SQLITE
def test_a_drain_that_is_asked_for_before_the_first_launch_reads_nothing(start: Any) -> None:
    with start() as endless:
        endless.ask()
        endless.run.finish()
        assert [endless.records(source) for source in SOURCES] == [0, 0, 0]
        endless.assert_exact()


@ON_SQLITE
def test_a_drain_of_a_dead_driver_and_of_one_that_waits_to_start(start: Any) -> None:
    """`ticks` waits for the others to be ready, `turns` is dead: both drain, with what they have read."""
    with start({("polls", 1): "after_register:1:stop"}, hold_sources=True) as endless:
        run = endless.run
        run.until(lambda: all(run.is_running(group) for group in run.groups), "they run, and wait for polls")
        run.process("turns").kill()
        run.until(
            lambda: run.is_running("turns", 2) and endless.records("turns"), "turns waits for no other group", "turns"
        )
        turns = run.process("turns")
        turns.kill()
        eventually(lambda: has_ended(turns), what="turns is dead")
        endless.ask("ticks", "turns")
        run.until(lambda: run.status("ticks").state is GroupState.FINISHED, "ticks has drained", "ticks")
        died_with = endless.records("turns")
        run.until(lambda: run.status("turns").state is GroupState.FINISHED, "turns has drained", "turns")
        assert endless.records("turns") == died_with and endless.records("ticks") == 0


@ON_SQLITE
def test_a_halt_after_a_drain_and_back(start: Any) -> None:
    """Streams that have ended stay ended; a source that had not ended continues after the retry, until it is asked again."""
    with start() as endless:
        run = endless.run
        endless.until_read(4)
        endless.ask("ticks")
        run.until(lambda: run.status("ticks").state is GroupState.FINISHED, "ticks has drained")
        drained = endless.records("ticks")
        endless.ask(*SOURCES[1:], "save", wish=GroupState.HALTED)
        halted = (*SOURCES[1:], "save")
        run.until(lambda: all(run.status(group).state is GroupState.HALTED for group in halted), "the others halt")
        for group in halted:
            run.relaunch(group)
        before = endless.records("turns")
        run.until(lambda: endless.records("turns") > before, "turns continues")
        endless.ask()
        run.finish()
        assert endless.records("ticks") == drained
        endless.assert_exact()
