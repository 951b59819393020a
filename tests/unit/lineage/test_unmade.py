"""What has become of events where nothing was made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from airflow_logio.errors import LineageUnknown
from airflow_logio.lineage import unmade as unmade_module
from airflow_logio.lineage.unmade import Unmade, Use, unmade_of
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind, Port, Status
from airflow_logio.store.lineage.queries import step
from airflow_logio.store.lineage.result import Direction, InputSetNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import OperatorShape, ReplicatedShape, ScopeShape
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.garbage import expiry
from tests.support.logs import spec, start_driver
from tests.support.statements import counted_statements
from tests.unit.lineage.flows import Flow
from tests.unit.lineage.test_authored import SLOTS, replicated
from tests.unit.lineage.test_steps import parted_flow
from tests.unit.lineage.test_why_not import HOURLY, Logged, logged


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine does not cut the answers here; a test that is about the limit sets it."""
    monkeypatch.setattr(unmade_module, "MOST_SECONDS", 600.0)


def hourly(use: Use, event: int, inset: str | None = None) -> Unmade:
    return Unmade("hourly", use, {event}, set() if inset is None else {InputSetNode("hourly", inset)})


def of(run: Logged, port: str, *events: int, most_rows: int = 99) -> list[Unmade]:
    return unmade_of(run.store, run.run, port, events, most_rows=most_rows)[0]


def test_each_use_of_events_of_which_nothing_was_made(log_store: LogStore) -> None:
    run = logged(log_store)
    expected = {
        1: None,
        2: hourly(Use.WAITING, 2, "2024-01-01T11:00"),
        3: hourly(Use.UNUSED_YET, 3),
        4: hourly(Use.IGNORED, 4),
        5: hourly(Use.ASIDE, 5, "2024-01-01T12:00"),
    }
    for event, use in expected.items():
        assert of(run, "clean.out", event) == ([] if use is None else [use])
    together = of(run, "clean.out", *expected)
    assert sorted(together, key=lambda one: min(one.events)) == [one for one in expected.values() if one is not None]
    (dropped,) = of(run, "source.out", 1, 6)
    assert dropped == Unmade("clean", Use.WITHOUT_OUTPUT, {6}, {InputSetNode("clean", "6")})
    assert of(run, "hourly.out", 1) == [], "no operator receives it"


def test_it_is_bounded_and_claims_nothing_of_what_it_has_not_read(log_store: LogStore) -> None:
    run = logged(log_store)
    found, is_cut = unmade_of(run.store, run.run, "source.out", range(1, 7), most_rows=3)
    assert (found, is_cut) == ([], True), "of an Input Set whose outputs were not read, it is not said that it has none"
    found, is_cut = unmade_of(run.store, run.run, "source.out", range(1, 7), most_rows=99)
    assert ([one.use for one in found], is_cut) == ([Use.WITHOUT_OUTPUT], False)
    with pytest.raises(LineageUnknown, match="has no port"):
        of(run, "nothing.out", 1)


def test_behind_a_dispatcher_it_is_what_the_slots_have_done(log_store: LogStore) -> None:
    flow, said = parted_flow(log_store), []
    for port in ("a.out", "w.out"):
        for number in (1, 2, 3):
            unmade, is_cut = unmade_of(flow.store, flow.run, port, [number], most_rows=999)
            assert not is_cut and {one.operator for one in unmade} <= {"v", "x"}
            made = {
                (inset.operator_in_log, inset.inset_id)
                for inset in step(flow.store, flow.run, Direction.FORWARD, port, number, most_rows=999)[0].input_sets()
            }
            said += [one.operator for one in unmade]
            for one in unmade:
                assert one.use is Use.WITHOUT_OUTPUT and one.events == {number}
                assert not made & {(inset.operator_in_log, inset.inset_id) for inset in one.input_sets}
    assert set(said) == {"v"}, "some events from which nothing was made"


def parted(store: LogStore, parts: Mapping[int, Sequence[int]]) -> Logged:
    """a → dispatch(v) → v: event of `a` → how many records each slot has got of it; none if nothing was sent on.

    What has records waits in an Input Set, what has none is used by none.
    """
    slots = tuple(f"slot{number}" for number in range(max(map(len, parts.values()))))
    shapes = {
        "a": OperatorShape("g", {}, ("out",), (), ("out",), ("out",)),
        "dispatch(v)": OperatorShape("g", {"in": "a.out"}, slots, ("in",), slots),
    }
    for number, port in enumerate(slots):
        shapes[f"v[{number}]"] = OperatorShape("v", {"in": f"dispatch(v).{port}"}, ("out",), ("in",), ("out",))
    named = replace(
        spec("g", "v.1"),
        operators=shapes,
        scopes=(ScopeShape("a.out", "v.out"),),
        replicated={"v": ReplicatedShape(("v.1",), len(slots), 1)},
    )
    driver = start_driver(store, run=store.start_run(named))
    commit: fx.Effects = []
    for number, counts in parts.items():
        whole = fx.Delivery(Port("dispatch(v)", "in"), ((str(number), Status.DONE),), fused=True, kept=True)
        event = Event(Port("a", "out"), number, Kind.DATA, sum(counts), None, b"")
        commit += [fx.LogEvent(event, (whole,), kept=True), fx.CountEvents(event.sender, "out", 1, 1)]
        for slot, records in enumerate(counts):
            part = Event(Port("dispatch(v)", f"slot{slot}"), number, Kind.DATA, records, None, b"")
            insets = (("w", Status.UNDONE),) if records else ()
            taken = fx.Delivery(Port(f"v[{slot}]", "in"), insets, fused=True, kept=True)
            commit += [
                fx.LogEvent(part, (taken,), kept=True),
                fx.RecordLineage(part.sender, number, str(number)),
                fx.CountEvents(part.sender, "out", 1, 1),
            ]
    driver.session.commit(commit)
    return Logged(store, driver.run)


def waits(event: int, *slots: int) -> Unmade:
    return Unmade("v", Use.WAITING, {event}, {InputSetNode("v", "w", slot) for slot in slots})


def test_parts_without_records_say_nothing_of_an_event(log_store: LogStore) -> None:
    """Slots get them to know how far time has come. An event without records was sent to no receiver."""
    run = parted(log_store, {1: [0, 2, 0], 2: [], 3: [0, 0, 0]})
    assert of(run, "a.out", 1) == [waits(1, 1)]
    for event in (2, 3):
        assert of(run, "a.out", event) == [Unmade("v", Use.NO_RECORDS, {event})]
    assert of(run, "a.out", 1, 2, 3) == [Unmade("v", Use.NO_RECORDS, {2, 3}), waits(1, 1)]


def test_behind_a_dispatcher_it_stops_after_some_slots_rows_and_seconds(
    log_store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = parted(log_store, {1: [1] * 20})

    def asked(most_rows: int = 99) -> tuple[list[Unmade], bool]:
        return unmade_of(run.store, run.run, "a.out", [1], most_rows=most_rows)

    assert asked() == ([waits(1, *range(20))], False)
    (one,), is_cut = asked(21)
    assert is_cut and len(one.input_sets) == 20, "of each kind, of all slots together"
    (one,), is_cut = asked(5)
    assert is_cut and len(one.input_sets) == 4
    with counted_statements() as every:
        asked()
    monkeypatch.setattr(unmade_module, "MOST_SENDERS", 4)
    with counted_statements() as some:
        (one,), is_cut = asked()
    assert is_cut and len(one.input_sets) == 3
    assert len(some) < len(every) / 2 or not every, "a log in memory has no statements"
    monkeypatch.setattr(unmade_module, "MOST_SECONDS", 0.0)
    assert asked() == ([], True)


def kept_for(run: Logged, seconds: float | None) -> Logged:
    scopes = tuple(replace(scope, retention_seconds=seconds) for scope in run.run.spec.scopes)
    return Logged(run.store, replace(run.run, spec=replace(run.run.spec, scopes=scopes)))


def test_where_retention_has_removed_outputs_it_does_not_say_that_there_were_none(
    log_store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes by port: what an Input Set was made of may be kept for longer than what was made of it."""
    run = logged(log_store)
    session = log_store.session(GroupRef(run.run.run_id, "g", 1))
    session.open()
    session.commit([expiry(HOURLY)])
    inset = "2024-01-01T10:00"
    assert of(run, "clean.out", 1) == [hourly(Use.LET_GO, 1, inset)]
    assert of(run, "clean.out", 2) == [hourly(Use.WAITING, 2, "2024-01-01T11:00")]
    dropped = Unmade("clean", Use.WITHOUT_OUTPUT, {6}, {InputSetNode("clean", "6")})
    assert of(run, "source.out", 6) == [dropped], "nothing of clean.out was removed"
    assert of(kept_for(run, 1.0), "clean.out", 1) == [hourly(Use.LET_GO, 1, inset)]
    assert of(kept_for(run, 3600.0), "clean.out", 1) == [hourly(Use.WITHOUT_OUTPUT, 1, inset)], (
        "too young to be removed"
    )
    monkeypatch.setattr(unmade_module, "MOST_COUNTED", 3)
    assert of(run, "source.out", 6) == [dropped], "it is kept for ever, and begins with its first events"
    assert of(kept_for(run, 1.0), "source.out", 6) == [replace(dropped, use=Use.LET_GO)], "not all of it was counted"
    assert of(kept_for(run, 3600.0), "source.out", 6) == [dropped]


def test_what_a_dispatcher_has_not_parted_was_not_processed_by_its_receiver() -> None:
    flow = Flow(MemoryLogStore(), replicated(), [("a.out", "x.out")], groups=[("a", "dispatch(v)"), ("merge(w)", "x")])
    flow.run = replace(
        flow.run, spec=replace(flow.run.spec, replicated={"v": ReplicatedShape(("v.1",), len(SLOTS), 1)})
    )
    flow.to_the_end()
    tables = flow.store.tables  # type: ignore[attr-defined]
    taken = {key: row for key, row in tables.events.rows.items() if row.receiver == "dispatch(v)"}
    key, row = next(iter(taken.items()))
    assert row.send_port is not None
    for other in [one for one in taken if tables.events.rows[one].body == row.body]:
        del tables.events.rows[other]
    tables.events.rows[key] = row._replace(inset_id=None, status="undone")
    sender, number = Port(row.body.operator, row.body.channel), row.body.event_id
    assert unmade_of(flow.store, flow.run, sender, [number], most_rows=999)[0] == [
        Unmade("v", Use.UNUSED_YET, {number})
    ]
