"""What a replicated group becomes, under which conditions it may be replicated, and what the Dispatcher tells its slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow import (
    ByKey,
    Count,
    Dispatcher,
    EveryEvents,
    External,
    IdempotentWriter,
    InputEvent,
    InputSet,
    LeastLoaded,
    Pipeline,
    RoundRobin,
    SourceBatch,
    SourceOperator,
    StatefulOperator,
    TableWriter,
    Tumbling,
    WriteAction,
    generate,
    lineage_paths,
    stateless,
)
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.protocol.values import Port


@stateless
def same(table: pa.Table) -> pa.Table:
    return table


@stateless(outputs=("odd", "even"))
def halves(table: pa.Table) -> Mapping[str, pa.Table]:
    return {"odd": table}


@stateless
def numbered(table: pa.Table, event_ids: list[int]) -> pa.Table:
    return table


@generate
def total(records: pa.Table) -> pa.Table:
    return records


class Numbers(SourceOperator):
    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        yield from ()


class Latest(StatefulOperator):
    """Stateful, and says nothing of keys."""

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        return {}

    def part(self, event: InputEvent, inset_id: str) -> Any:
        return None

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return ()

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[Any]:
        return ()


class Mail(IdempotentWriter[None]):
    def __init__(self) -> None:
        super().__init__("mail")

    def connect(self, url: str) -> AbstractContextManager[None]:
        return nullcontext()

    def write(self, client: None, action: WriteAction) -> None: ...


def pipeline(*middle: Any, window: Any = None) -> Pipeline:
    """numbers → middle operators → done; the middle ones in group ``work``."""
    made = Pipeline("p", connections=["mail", "warehouse"])
    upstream: Any = made.source("numbers", Numbers())
    nodes = []
    for number, one in enumerate(middle):
        upstream = made.operator(f"op{number}", one, upstream, window=window if hasattr(one, "accumulate") else None)
        nodes.append(upstream)
    made.sink("done", Count(), upstream)
    made.group("work", *nodes)
    return made


def test_operators_per_slot_and_a_dispatcher_and_a_merger_beside_them() -> None:
    made = pipeline(same, total, window=Tumbling("1h", on="t"))
    made.replicate("work", partition=ByKey("k", slots=2), max=2, min=1)
    assert list(made.operators) == [
        "numbers", "dispatch(op0)", "op0[0]", "op0[1]", "op1[0]", "op1[1]", "merge(op1)", "done",
    ]  # fmt: skip
    assert {name: group.operators for name, group in made.groups.items()} == {
        "numbers": ("numbers", "dispatch(op0)"),
        "work": ("op0[0]", "op0[1]", "op1[0]", "op1[1]"),
        "done": ("merge(op1)", "done"),
    }
    assert made.sender(Port("dispatch(op0)", "in")) == Port("numbers", "out")
    assert made.sender(Port("op0[1]", "in")) == Port("dispatch(op0)", "slot1")
    assert made.sender(Port("op1[1]", "in")) == Port("op0[1]", "out")
    assert made.sender(Port("merge(op1)", "slot0")) == Port("op1[0]", "out")
    assert made.sender(Port("done", "in")) == Port("merge(op1)", "out")
    assert made.applications == ("numbers", "work.1", "work.2", "done")
    assert made.group_of("work.2").name == "work" == made.home("op1[0]")
    assert made.applications_of("op1[0]") == ("work.1", "work.2")


def test_several_ports_have_their_own_dispatchers_and_mergers() -> None:
    made = Pipeline("p")
    source = made.source("numbers", Numbers())
    split = made.operator("split", halves, source)
    made.sink("odd", Count(), split.port("odd"))
    made.operator("next", same, split.port("even"))
    made.sink("even", Count(), "next")
    made.group("work", split, "next")
    made.replicate("work", partition=RoundRobin(), max=3)
    assert [name for name in made.operators if "(" in name] == ["dispatch(split)", "merge(split/odd)", "merge(next)"]
    assert len([name for name in made.operators if "[" in name]) == 6


def test_lineage_leads_through_the_slots() -> None:
    made = pipeline(same)
    made.replicate("work", partition=LeastLoaded(), max=2)
    made.lineage("numbers", "op0")
    (scope,) = made.scopes
    assert (scope.start, scope.target) == (Port("numbers", "out"), Port("merge(op0)", "out"))
    assert len(list(lineage_paths(made.graph, scope))) == 2
    assert made.lineage_ports("op0[1]") == (frozenset({"in"}), frozenset({"out"}))


def test_the_fingerprint_knows_slots_and_the_largest_number_of_replicas_only() -> None:
    def fingerprint(**numbers: int) -> str:
        made = pipeline(same)
        if numbers:
            made.replicate("work", partition=ByKey("k", slots=8), **numbers)  # type: ignore[arg-type]
        return made.fingerprint()["graph"]

    assert fingerprint(max=4) == fingerprint(max=4, min=2, initial=3) != fingerprint(max=5)
    assert fingerprint() not in (fingerprint(max=4), fingerprint(max=5))


def replicated(made: Pipeline, **more: Any) -> Pipeline:
    made.replicate("work", **{"partition": ByKey("k"), "max": 2, **more})
    return made.freeze()


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: replicated(pipeline(same), max=0), "max is 0; give 1 to 256 replicas"),
    (lambda: replicated(pipeline(same), min=3), "initial is 3, which is not between min 3 and max 2"),
    (lambda: replicated(pipeline(same), initial=-1), "initial is -1; give a number of replicas"),
    (lambda: replicated(pipeline(numbered)), "operator 'op0' uses the ids of its events"),
    (lambda: replicated(pipeline(same), partition="k"), r"partition is 'k'; write RoundRobin\(\)"),
    (lambda: replicated(pipeline(same), max=20), "16 slots, but the group may have 20 replicas"),
    (
        lambda: replicated(pipeline(total, window=Tumbling("1h", on="t")), partition=RoundRobin()),
        "its operator 'op0' has state, and RoundRobin.* partition by key",
    ),
    (lambda: replicated(pipeline(total, window=EveryEvents(3))), "operator 'op0' is not partitionable"),
    (lambda: replicated(pipeline(Latest())), "operator 'op0' is not partitionable"),
    (lambda: replicated(pipeline(Mail())), "writes to connection 'mail' with idempotent write actions"),
]


@pytest.mark.parametrize(("make", "sentence"), REFUSED, ids=[sentence[:40] for _, sentence in REFUSED])
def test_what_cannot_be_replicated(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=sentence):
        make()


def test_what_cannot_be_kept_in_order() -> None:
    with pytest.raises(PipelineDefinitionError, match="replicated by key and ordered: events are split between slots"):
        replicated(pipeline(same), ordered=True)
    made = Pipeline("p")
    source = made.source("numbers", Numbers())
    made.operator("a", same, source)
    made.operator("b", same, source)
    made.sink("done_a", Count(), "a")
    made.sink("done_b", Count(), "b")
    made.group("work", "a", "b")
    with pytest.raises(
        PipelineDefinitionError, match=r"gets events on 'a.in' and 'b.in': there is one order to keep only"
    ):
        replicated(made, partition=RoundRobin(), ordered=True)
    with pytest.raises(PipelineDefinitionError, match="operator 'op0' has several input ports or sets events aside"):
        replicated(pipeline(stateless(on_error="quarantine")(same.fn)), partition=RoundRobin(), ordered=True)


def test_unknown_groups_neighbours_and_sources_are_refused() -> None:
    made = pipeline(same)
    made.replicate("worc", partition=RoundRobin(), max=2)
    with pytest.raises(PipelineDefinitionError, match=r"there is no such group. Did you mean 'work'\?"):
        made.validate()

    made = pipeline(same)
    made.replicate("numbers", partition=RoundRobin(), max=2)
    with pytest.raises(PipelineDefinitionError, match="'numbers' is a source: it reads once"):
        made.validate()

    made = Pipeline("p")
    made.sink("done", Count(), made.operator("b", same, made.operator("a", same, made.source("numbers", Numbers()))))
    made.replicate("a", partition=RoundRobin(), max=2)
    made.replicate("b", partition=RoundRobin(), max=2)
    with pytest.raises(PipelineDefinitionError, match="groups 'a' and 'b' are both replicated and next to each other"):
        made.validate()
    with pytest.raises(PipelineDefinitionError, match="group 'a' is replicated twice"):
        made.replicate("a", partition=RoundRobin(), max=2)


def test_a_scope_inside_a_replicated_group_is_refused() -> None:
    made = pipeline(same, same)
    made.replicate("work", partition=RoundRobin(), max=2)
    made.lineage("op0", "op1")
    with pytest.raises(
        PipelineDefinitionError, match=r"port 'op0.out', whose events do not leave replicated group 'work'"
    ):
        made.validate()


def test_conditional_writers_and_time_windows_may_be_replicated() -> None:
    made = Pipeline("p", connections=["warehouse"])
    hourly = made.operator("hourly", total, made.source("numbers", Numbers()), window=Tumbling("1h", on="t"))
    made.writer("table", TableWriter("warehouse", "t"), hourly)
    made.group("work", hourly, "table")
    made.replicate("work", partition=ByKey("k", slots=4), max=4)
    assert made.groups["work"].operators[-1] == "table[3]"


# --- the Dispatcher ----------------------------------------------------------------------------------------------------

HOUR = 3_600_000_000


def hours(number: int, *rows: tuple[int, int]) -> InputEvent:
    """An event of (key, hour) records."""
    table = pa.table(
        {"k": [key for key, _ in rows], "t": pa.array([hour * HOUR for _, hour in rows], pa.timestamp("us"))}
    )
    return InputEvent("in", number, table)


def test_all_slots_are_told_when_the_stream_enters_a_later_window() -> None:
    window = Tumbling("1h", on="t")
    dispatcher = Dispatcher(ByKey("k", slots=4), 4, [window])
    state = dispatcher.initial_state()

    def sent(event: InputEvent) -> dict[str, tuple[int, Mapping[str, str]]]:
        (inset_id,) = dispatcher.assign(event, state)
        held = dispatcher.part(event, inset_id)
        found = dispatcher.dispatch(InputSet(inset_id, held), state, None)  # type: ignore[arg-type]  # keys need no routes
        return {one.port: (one.table.num_rows, one.progress) for one in found}

    first = sent(hours(1, (1, 0)))
    assert set(first) == {"slot0", "slot1", "slot2", "slot3"}
    assert sorted(rows for rows, _ in first.values()) == [0, 0, 0, 1]
    assert all(progress == {"t/3600": "1970-01-01T00:00"} for _, progress in first.values())
    assert list(sent(hours(2, (1, 0), (1, 0))).values()) == [(2, {})], "nothing new: only the slot with records"
    later = sent(hours(3, (1, 2)))
    assert len(later) == 4
    assert {progress["t/3600"] for _, progress in later.values()} == {"1970-01-01T02:00"}


def test_progress_closes_the_windows_of_a_slot_that_gets_no_records() -> None:
    window = Tumbling("1h", on="t")
    state = window.initial_state()
    (inset_id,) = window.assign(hours(1, (1, 0)), state)
    assert window.triggered(state, [inset_id]) == []
    empty = hours(2, (1, 2))
    told = InputEvent("in", 2, empty.table.slice(0, 0), {window.progress_name(): str(window.progress(empty))})
    assert window.assign(told, state) == {}
    assert window.triggered(state, [inset_id]) == [inset_id]


def test_only_windows_that_get_the_very_events_are_told_of_time() -> None:
    """What an operator before the window makes of an event may have other times; the Dispatcher cannot know."""
    behind = pipeline(same, total, window=Tumbling("1h", on="t"))
    direct = pipeline(total, window=Tumbling("1h", on="t"))
    for made, windows in ((behind, 0), (direct, 1)):
        made.replicate("work", partition=ByKey("k", slots=2), max=2)
        dispatcher = made.operators["dispatch(op0)"]
        assert len(dispatcher.settings()["windows"]) == windows


def test_records_without_a_time_are_refused_by_the_window_and_not_before() -> None:
    dispatcher = Dispatcher(ByKey("k", slots=2), 2, [Tumbling("1h", on="t")])
    state = dispatcher.initial_state()
    nulls = InputEvent("in", 1, pa.table({"k": [1], "t": pa.array([None], pa.timestamp("us"))}))
    assert list(dispatcher.assign(nulls, state)) == ["1"]
    assert [one.table.num_rows for one in dispatcher.dispatch(InputSet("1", nulls), state, None)] == [1]  # type: ignore[arg-type]


def test_a_merger_lives_where_groups_stay_in_order() -> None:
    """work → x (late), work → y (early) → z (late): in group late, the Merger would send back to early."""
    made = Pipeline("p")
    work = made.operator("work", same, made.source("numbers", Numbers()))
    made.sink("x", Count(), work)
    y = made.operator("y", same, work)
    made.sink("z", Count(), y)
    made.group("late", "x", "z")
    made.group("early", y)
    made.replicate("work", partition=RoundRobin(), max=2)
    assert made.home("merge(work)") == "early"


def test_a_dispatcher_by_hand_goes_in_turn() -> None:
    dispatcher = Dispatcher(RoundRobin(), 3)
    state = dispatcher.initial_state()
    ports = []
    for number in range(1, 7):
        event = hours(number, (number, 0))
        (inset_id,) = dispatcher.assign(event, state)
        (pair,) = dispatcher.generate(InputSet(inset_id, event), state, None)  # type: ignore[arg-type]
        ports.append(pair[0])
    assert ports == ["slot1", "slot2", "slot0"] * 2
