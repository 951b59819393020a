"""Algorithms 1 and 6: replayable and non-replayable read actions, one after the other; every step and every refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import Context, encode_state
from airflow_logio.protocol.effects import CompleteReadAction, DropRead, ReadDone, StartReadAction
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.logic import Emit, OperatorSpec
from airflow_logio.protocol.source import READ_ACTION_ID
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logics import Group, of, produced, serialized
from tests.support.logs import Driver, replace_driver, spec, start_driver

OUT, SINK = Port("op", "out"), Port("sink", "in")
SOURCE_READS = (StartReadAction, CompleteReadAction, ReadDone, DropRead)


def source_group(*, replayable: bool, in_scope: bool = False) -> Group:
    outside = frozenset({"out"}) if in_scope else frozenset()
    return Group([OperatorSpec("op", (), ("out",), None, lineage_out=outside, replayable=replayable)], {OUT: [SINK]})


def reads(effects: fx.Effects) -> list[fx.Effect]:
    """The effects on READ_ACTION and on the event of a stored effect."""
    return [effect for effect in effects if isinstance(effect, SOURCE_READS)]


def step(group: Group, *calls: Callable[[], None]) -> fx.Effects:
    for call in calls:
        call()
    return group.protocol.close_step()


def begun(*, replayable: bool) -> Group:
    group = source_group(replayable=replayable)
    step(group, lambda: group.protocol.begin_source("op", {"queue": 1}))
    return group


def after(group: Group, effects: fx.Effects) -> Group:
    """The group rebuilt from the state that a step stored."""
    again = Group(group.specs, group.receivers)
    (state,) = of(fx.StoreState, effects)
    again.protocol.operators["op"].restore(state.data)
    again.resume()
    return again


# --- step by step -----------------------------------------------------------------------------------------------------


def test_the_life_of_a_non_replayable_read_action() -> None:
    group = source_group(replayable=False)
    source = group.protocol.source("op")
    effects = step(group, lambda: group.protocol.begin_source("op", {"queue": 1}))
    assert reads(effects) == [StartReadAction("op", "source", 1, {"queue": 1})], "Step 1: incomplete"
    effects = step(group, lambda: group.protocol.store_effect("op", "effects/1", 3))
    assert reads(effects) == [CompleteReadAction("op", "source", 1, "effects/1", 3)], "Step 2.b: stored, complete"
    assert source.stored == "effects/1"
    effects = step(group, lambda: group.protocol.emit("op", [Emit("out", [1, 2], 2)], offset=2))
    assert produced(effects) == [("op.out", 1, [1, 2])], "Step 2.c"
    assert reads(effects) == [] and source.offset == 2
    effects = step(
        group,
        lambda: group.protocol.emit("op", [Emit("out", [3], 1)], offset=3),
        lambda: group.protocol.end_source("op"),
    )
    assert reads(effects) == [ReadDone("op", "source", 1)], "Step 2.c (3), with the last event"
    assert [effect.event.kind for effect in of(fx.LogEvent, effects)] == [Kind.DATA, Kind.END]
    assert source.to_drop() == [[1, "effects/1"]]
    assert not group.protocol.is_finished(), "the stored effect is still there"
    effects = step(group, lambda: group.protocol.effect_dropped("op", 1))
    assert reads(effects) == [DropRead("op", "source", 1)], "Step 2.d"
    assert group.protocol.is_finished()


def test_the_columns_of_the_first_event_stay_with_its_transaction() -> None:
    """Through the read actions that follow, whatever those say; an event without columns tells none."""
    group = begun(replayable=True)
    effects = step(group, lambda: group.protocol.emit("op", [Emit("out", [1], 1)], 1))
    assert after(group, effects).protocol.source("op").sent_schema is None
    effects = step(group, lambda: group.protocol.emit("op", [Emit("out", [2], 1)], 2, "id"))
    assert after(group, effects).protocol.source("op").sent_schema == "id"
    effects = step(group, lambda: group.protocol.end_source("op", {"queue": 2}))
    assert after(group, effects).protocol.source("op").sent_schema == "id"
    effects = step(group, lambda: group.protocol.emit("op", [Emit("out", [3], 1)], 1, "other"))
    assert after(group, effects).protocol.source("op").sent_schema == "id"


def drained(group: Group) -> tuple[bool, fx.Effects]:
    """Whether the source has ended with the step that drains the group, and the step."""
    ended: list[bool] = []
    effects = step(group, group.protocol.drain, lambda: ended.append(group.protocol.drain_source("op")))
    assert of(fx.DrainGroup, effects) == [fx.DrainGroup()]
    return ended[0], effects


def ends(effects: fx.Effects) -> list[Kind]:
    return [effect.event.kind for effect in of(fx.LogEvent, effects)]


@pytest.mark.parametrize("replayable", [True, False])
def test_a_drain_cuts_the_read_action_short_that_is_not_in_the_log(replayable: bool) -> None:
    group = begun(replayable=replayable)
    if replayable:
        step(group, lambda: group.protocol.emit("op", [Emit("out", [1, 2], 2)], offset=2))
    ended, effects = drained(group)
    assert ended and ends(effects) == [Kind.END]
    assert reads(effects) == [CompleteReadAction("op", "source", 1)], "over, with what the log has of it"
    assert group.protocol.is_finished()
    again = after(group, effects)
    assert again.protocol.source("op").has_ended and again.protocol.is_finished()
    assert again.protocol.drain_source("op"), "asked again after a recovery: nothing is left to do"
    again.protocol.begin_source("op", {"queue": 1})
    assert reads(again.protocol.close_step()) == []


def test_a_drain_before_the_first_read_action() -> None:
    group = source_group(replayable=True)
    ended, effects = drained(group)
    assert ended and ends(effects) == [Kind.END] and reads(effects) == []
    again = after(group, effects)
    assert again.protocol.source("op").action is None and again.protocol.is_finished()
    again.protocol.begin_source("op", {"queue": 1})
    assert reads(again.protocol.close_step()) == []


def test_a_drain_processes_what_is_stored_and_asks_for_nothing_else() -> None:
    group = begun(replayable=False)
    step(group, lambda: group.protocol.store_effect("op", "effects/1", 2))
    ended, effects = drained(group)
    assert not ended and ends(effects) == [] and reads(effects) == []
    with pytest.raises(ProtocolViolation, match="its effect is stored, so it has been read"):
        group.protocol.source("op").cut_short(group.protocol.ledger)
    effects = step(
        group,
        lambda: group.protocol.emit("op", [Emit("out", [1, 2], 2)], offset=2),
        lambda: group.protocol.end_source("op"),
    )
    assert reads(effects) == [ReadDone("op", "source", 1)] and ends(effects) == [Kind.DATA, Kind.END]
    assert group.protocol.source("op").to_drop() == [[1, "effects/1"]], "discarded as at any end"


def test_an_empty_effect() -> None:
    """Hole H5: nothing but Step 2.b, and the end."""
    group = begun(replayable=False)
    effects = step(
        group, lambda: group.protocol.store_effect("op", "effects/1", 0), lambda: group.protocol.end_source("op")
    )
    assert reads(effects) == [CompleteReadAction("op", "source", 1, "effects/1", 0), ReadDone("op", "source", 1)]
    assert [effect.event.kind for effect in of(fx.LogEvent, effects)] == [Kind.END]


@pytest.mark.parametrize("replayable", [True, False])
def test_read_actions_follow_one_another(replayable: bool) -> None:
    group = begun(replayable=replayable)
    if not replayable:
        group.protocol.store_effect("op", "effects/1", 1)
    group.protocol.emit("op", [Emit("out", [1], 1)], offset=1)
    group.protocol.close_step()
    effects = step(group, lambda: group.protocol.end_source("op", {"queue": 2}))
    first = CompleteReadAction("op", "source", 1) if replayable else ReadDone("op", "source", 1)
    assert reads(effects) == [first, StartReadAction("op", "source", 2, {"queue": 2})], "in one transaction"
    source = group.protocol.source("op")
    assert (source.action, source.action_id, source.offset) == ({"queue": 2}, 2, 0)
    assert not source.has_ended
    assert source.to_drop() == ([] if replayable else [[1, "effects/1"]]), "discarded while the next one continues"
    if not replayable:
        group.protocol.store_effect("op", "effects/2", 1)
        group.protocol.effect_dropped("op", 1)
    group.protocol.emit("op", [Emit("out", [2], 1)], offset=1)
    group.protocol.end_source("op")
    assert [row[1:] for row in produced(group.protocol.close_step())] == [(2, [2]), (3, None)]
    assert source.has_ended


def test_events_say_which_read_action_they_are_of_where_lineage_asks() -> None:
    group = source_group(replayable=True, in_scope=True)
    effects = step(
        group,
        lambda: group.protocol.begin_source("op", {"file": 1}),
        lambda: group.protocol.emit("op", [Emit("out", [1], 1)], offset=1),
        lambda: group.protocol.end_source("op", {"file": 2}),
        lambda: group.protocol.emit("op", [Emit("out", [2], 1, about={"rows": 5})], offset=1),
    )
    assert [effect.kept for effect in of(StartReadAction, effects)] == [True, True]
    about = [dict(effect.event.about) for effect in of(fx.LogEvent, effects)]
    assert about == [{READ_ACTION_ID: 1}, {READ_ACTION_ID: 2, "rows": 5}]


def test_what_a_rebuilt_source_goes_on_with() -> None:
    group = begun(replayable=False)
    effects = step(group, lambda: group.protocol.store_effect("op", "effects/1", 3))
    again = after(group, effects)
    assert (again.protocol.source("op").stored, again.protocol.source("op").offset) == ("effects/1", 0)
    step(again, lambda: again.protocol.begin_source("op", {"queue": "other"}))
    assert again.protocol.source("op").action == {"queue": 1}, "a read action on record is not begun again"
    effects = step(again, lambda: again.protocol.end_source("op"))
    last = after(again, effects)
    assert last.protocol.source("op").has_ended
    assert last.protocol.source("op").to_drop() == [[1, "effects/1"]], "Algorithm 6 Step 3.a"
    assert step(last, lambda: last.protocol.begin_source("op", {"queue": "other"})) == [], "nothing follows an end"


# --- refusals ---------------------------------------------------------------------------------------------------------


def emit_one(group: Group) -> None:
    group.protocol.emit("op", [Emit("out", [1], 1)], offset=1)


@pytest.mark.parametrize(
    ("replayable", "wrong", "words"),
    [
        (True, lambda g: g.protocol.store_effect("op", "x", 1), "read action 1, which can be replayed"),
        (False, emit_one, "read action 1, which cannot be replayed and whose effect is not stored"),
        (False, lambda g: g.protocol.end_source("op"), "the effect of read action 1 of 'op' is not stored"),
        (True, lambda g: g.protocol.effect_dropped("op", 1), "has no used-up effect of read action 1 to discard"),
    ],
)
def test_steps_that_are_not_due(replayable: bool, wrong: Callable[[Group], None], words: str) -> None:
    with pytest.raises(ProtocolViolation, match=words):
        wrong(begun(replayable=replayable))


def test_an_effect_is_stored_once_and_dropped_once() -> None:
    group = begun(replayable=False)
    group.protocol.store_effect("op", "effects/1", 1)
    with pytest.raises(ProtocolViolation, match="read action 1, which has its effect stored at 'effects/1'"):
        group.protocol.store_effect("op", "effects/2", 1)
    with pytest.raises(ProtocolViolation, match="no used-up effect"):
        group.protocol.effect_dropped("op", 1)
    group.protocol.end_source("op")
    group.protocol.effect_dropped("op", 1)
    with pytest.raises(ProtocolViolation, match="no used-up effect"):
        group.protocol.effect_dropped("op", 1)


@pytest.mark.parametrize("replayable", [True, False])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda g: g.protocol.source("op").advance(1, g.protocol.ledger),
        lambda g: g.protocol.store_effect("op", "x", 1),
        lambda g: g.protocol.end_source("op"),
    ],
)
@pytest.mark.parametrize("when", ["before it began", "after it ended"])
def test_nothing_happens_without_a_read_action(replayable: bool, wrong: Callable[[Group], None], when: str) -> None:
    group = source_group(replayable=replayable)
    if when == "after it ended":
        group = begun(replayable=replayable)
        if not replayable:
            group.protocol.store_effect("op", "effects/1", 0)
        group.protocol.end_source("op")
    with pytest.raises(ProtocolViolation, match="has no read action under way"):
        wrong(group)


# --- crashes ----------------------------------------------------------------------------------------------------------

ACTIONS = 3
BATCHES = 3


@dataclass
class Queue:
    """An external system that answers every read differently, and the payload store that keeps what it answered."""

    asked: int = 0
    stored: dict[str, list[int]] = field(default_factory=dict)

    def read(self, action: int) -> list[int]:
        self.asked += 1
        return [1000 * action + 10 * self.asked + batch for batch in range(BATCHES)]


@dataclass
class Machine:
    """A source with its driver: `advance` does the next thing that is due, as the runtime would."""

    replayable: bool
    store: MemoryLogStore = field(default_factory=MemoryLogStore)
    queue: Queue = field(default_factory=Queue)
    uncommitted: list[fx.Effects] = field(default_factory=list)
    used: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        run = self.store.start_run(spec("g", budget=RecoveryBudget(recoveries=1000)))
        self.driver: Driver = start_driver(self.store, group="g", run=run)
        self._rebuild()

    def advance(self) -> None:
        """One step of Algorithm 1, or of Algorithm 6 after a crash."""
        source = self.protocol.source("op")
        assert source.action is not None
        number = int(source.action["number"])
        durable = [pair for pair in source.to_drop() if not self.uncommitted]
        if durable:
            action_id, ref = durable[0]
            self.queue.stored.pop(ref, None)  # before the log forgets it: discarding twice does no harm
            self.protocol.effect_dropped("op", action_id)
        elif source.has_ended:
            return
        elif not self.replayable and source.stored is None:
            ref = f"{self.driver.ref.incarnation}/{number}/{self.queue.asked}"
            self.queue.stored[ref] = self.queue.read(number)
            self.protocol.store_effect("op", ref, BATCHES)
        elif source.offset < BATCHES:
            self._emit(source.offset, number, source.stored)
        else:
            self.protocol.end_source("op", {"number": number + 1} if number < ACTIONS else None)
        self.uncommitted.append(serialized(self.protocol.close_step()))

    def _emit(self, offset: int, number: int, ref: str | None) -> None:
        effect = [1000 * number + batch for batch in range(BATCHES)] if ref is None else self.queue.stored[ref]
        if ref is not None:
            self.used[ref] = effect
        self.protocol.emit("op", [Emit("out", [effect[offset]], 1)], offset + 1)

    def commit(self, many: int) -> None:
        if many and self.uncommitted:
            self.driver.session.commit([effect for effects in self.uncommitted[:many] for effect in effects])
            del self.uncommitted[:many]

    def crash(self) -> None:
        self.driver = replace_driver(self.driver)
        self._rebuild()

    def _rebuild(self) -> None:
        self.uncommitted.clear()
        specs = [OperatorSpec("op", (), ("out",), None, replayable=self.replayable)]
        self.protocol = GroupProtocol(specs, {OUT: [SINK]})
        self.protocol.rebuild(self.driver.session.recover(["op"]))
        self.protocol.resume()
        self.protocol.begin_source("op", {"number": 1})
        self.uncommitted.append(serialized(self.protocol.close_step()))

    def run_to_the_end(self) -> None:
        for _ in range(100):
            self.advance()
            self.commit(9)
        assert self.protocol.is_finished()

    def sent(self) -> list[int]:
        rows = self.driver.session.fetch(SINK, 0, max_events=1000, max_bytes=1 << 30)
        assert [row.event.event_id for row in rows] == list(range(1, ACTIONS * BATCHES + 2))
        assert rows[-1].event.kind is Kind.END
        return [json.loads(row.event.body or b"")[0] for row in rows[:-1]]


def committed_effects(effects: Sequence[Any]) -> list[list[int]]:
    return [list(effects[start : start + BATCHES]) for start in range(0, len(effects), BATCHES)]


CRASHES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans()), max_size=20)


@settings(deadline=None)
@given(CRASHES)
def test_a_crash_at_any_step_of_replayable_read_actions(actions: list[tuple[int, int, bool]]) -> None:
    machine = Machine(replayable=True)
    run_through(machine, actions)
    assert machine.sent() == [1000 * number + batch for number in (1, 2, 3) for batch in range(BATCHES)]


@settings(deadline=None)
@given(CRASHES)
def test_a_crash_at_any_step_of_read_actions_that_cannot_be_repeated(actions: list[tuple[int, int, bool]]) -> None:
    """The events of each read action come from one answer, the one whose storing was committed; then it is discarded."""
    machine = Machine(replayable=False)
    run_through(machine, actions)
    answers = committed_effects(machine.sent())
    assert len(answers) == ACTIONS
    for number, answer in enumerate(answers, start=1):
        assert answer in machine.used.values(), "all of one answer, in order"
        assert answer[0] // 1000 == number
    assert not any(effect in answers for effect in machine.queue.stored.values()), "used effects are discarded"
    assert machine.store.tables.bodies.keys() == {key for key in machine.store.tables.bodies if key.channel == "out"}, (
        "no event of a stored effect is left"
    )


def run_through(machine: Machine, actions: list[tuple[int, int, bool]]) -> None:
    for steps, commits, crash in actions:
        for _ in range(steps):
            machine.advance()
        machine.commit(commits)
        if crash:
            machine.crash()
    machine.run_to_the_end()


def test_the_external_system_is_asked_once_per_read_action_without_crashes() -> None:
    machine = Machine(replayable=False)
    machine.run_to_the_end()
    assert machine.queue.asked == ACTIONS
    assert machine.queue.stored == {}


def test_a_complete_read_action_is_never_asked_again() -> None:
    machine = Machine(replayable=False)
    machine.advance()
    machine.commit(9)
    for _ in range(5):
        machine.crash()
        machine.advance()
    assert machine.queue.asked == 1


@pytest.mark.parametrize("complete", [False, True])
def test_a_source_of_the_first_schema_goes_on(complete: bool) -> None:
    group = Group([OperatorSpec("src", (), ("out",), None)], {Port("src", "out"): [Port("sink", "in")]})
    source = group.protocol.source("src")
    state = {"action_id": 1, "action": {"path": "p"}, "offset": 7, "complete": complete}
    source.restore(encode_state(Context(next_action=2), state))
    assert (source.action_id, source.offset, source.has_ended, source.to_drop()) == (1, 7, complete, [])
    if not complete:
        group.protocol.end_source("src")
        assert [kind for _, _, kind in produced(group.protocol.close_step())] == [None], "the end of the stream"
