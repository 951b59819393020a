"""Why a record is not there, where several ways lead to the port: through slots, and through operators with two outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.errors import LineageUnknown, LogInconsistent
from airflow_logio.lineage.record_fates import Fate
from airflow_logio.lineage.search_limits import SearchLimits
from airflow_logio.lineage.why_not import why_not
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.record_rules import WHOLE, Dependence, RecordRules, Uses
from airflow_logio.protocol.values import Event, Kind, Port, Status
from airflow_logio.run_report.why_not_text import why_not_json, why_not_lines
from airflow_logio.store import open_store
from airflow_logio.store.lineage.queries import backward
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import OperatorShape, ReplicatedShape, Run, ScopeShape
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import writing
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.systems.arrow import encode
from airflow_logio.systems.payloads import Payloads
from airflow_logio.testing.memory_log import MemoryLogStore
from airflow_logio.ui.lineage_documents import MOST_SEARCHES, event_node, why_not_document
from tests.support.logs import spec, start_driver
from tests.support.stored_bodies import store_body


def one_of(*outputs: str) -> RecordRules:
    return RecordRules({name: Dependence(Uses.ONE) for name in outputs}, {"": WHOLE})


def shape(group: str, inputs: Mapping[str, str], outputs: Sequence[str] = ("out",)) -> OperatorShape:
    rules = one_of(*outputs)
    return OperatorShape(group, dict(inputs), tuple(outputs), tuple(inputs), tuple(outputs), (), rules)


SOURCE = OperatorShape("g", {}, ("out",), (), ("out",), ("out",))


class Hand:
    """Writes a log by hand: each event is one Input Set, with its number, of its one receiver."""

    def __init__(self, store: LogStore, shapes: Mapping[str, OperatorShape], end: str, slots: int = 0) -> None:
        named = replace(spec("g"), operators=dict(shapes), scopes=(ScopeShape("source.out", end),))
        if slots:
            groups = spec("g", "op.1")
            named = replace(
                groups,
                operators=dict(shapes),
                scopes=(ScopeShape("source.out", end),),
                replicated={"op": ReplicatedShape(("op.1",), slots, 1)},
            )
        self._driver = start_driver(store, run=store.start_run(named))
        self._receivers = {
            sender: Port(name, port) for name, one in shapes.items() for port, sender in one.inputs.items()
        }
        self._sent: dict[Port, int] = {}
        self._effects: fx.Effects = []

    def sent(
        self, operator: str, port: str, values: Sequence[str], made_of: int | None = None, used: bool = True
    ) -> int:
        place = Port(operator, port)
        number = self._sent[place] = self._sent.get(place, 0) + 1
        receiver = self._receivers.get(str(place))
        inset = ((str(number), Status.DONE),) if used else ()
        deliveries = () if receiver is None else (fx.Delivery(receiver, inset, fused=used, kept=True),)
        body = encode(pa.table({"v": list(values)}))
        self._effects += [
            fx.LogEvent(Event(place, number, Kind.DATA, len(values), None, body), deliveries, kept=True),
            fx.CountEvents(place, "out", 1, len(values)),
        ]
        if made_of is not None:
            self._effects.append(fx.RecordLineage(place, number, str(made_of)))
        return number

    def done(self) -> Run:
        self._driver.session.commit(self._effects)
        return self._driver.run


def in_slots(store: LogStore, slots: int, dropped: int, waiting: int | None = None) -> Run:
    """source → op, replicated → end: record ``v<i>`` goes to slot i. The slot `dropped` drops its record, and that of
    `waiting` has not been merged yet. Event 1 of the source is another one, so that numbers differ."""
    names = [f"slot{number}" for number in range(slots)]
    shapes = {"source": SOURCE, "dispatch(op)": shape("g", {"in": "source.out"}, names)}
    shapes |= {f"op[{number}]": shape("op", {"in": f"dispatch(op).slot{number}"}) for number in range(slots)}
    shapes["merge(op)"] = shape("g", {f"slot{number}": f"op[{number}].out" for number in range(slots)})
    hand = Hand(store, shapes, "op.out", slots)
    values = [f"v{number}" for number in range(slots)]
    for event in ([f"first{number}" for number in range(slots - 1)], values):
        whole = hand.sent("source", "out", event)
        for number, value in enumerate(event):
            part = hand.sent("dispatch(op)", f"slot{number}", [value], whole)
            if value != f"v{dropped}":
                made = hand.sent(f"op[{number}]", "out", [value], part, used=value != f"v{waiting}")
                if value != f"v{waiting}":
                    hand.sent("merge(op)", "out", [value], made)
    return hand.done()


def told(store: LogStore, run: Run, port: str, value: str) -> list[str]:
    return list(why_not_lines(why_not(store, run, port, {"v": value})))


def test_a_slot_has_left_it_out_and_its_dispatcher_has_not(log_store: LogStore) -> None:
    run = in_slots(log_store, 3, dropped=2)
    assert told(log_store, run, "op.out", "v2") == [
        "op.out: no record has v=v2 (4 events searched)",
        "op.out in 3 slots: no record has v=v2 (4 events searched)",
        "source.out, the parts for 2 slots of op: no record has v=v2 (4 events searched)",
        "source.out, the parts for slot 2 of op: 1 record with v=v2, in 1 event: 2 (1 event searched)",
        "  event 2, Input Set 1 of op in slot 2: it was generated, and made no event: op in slot 2 has left it out",
    ]
    found = why_not_json(why_not(log_store, run, "op.out", {"v": "v2"}))["searches"]
    assert [one["slots"] for one in found] == [1, 3, 2, 1] and found[3]["named"] == {"1": "source.out 2"}


def test_what_waits_for_the_merger_is_named_with_its_slot(log_store: LogStore) -> None:
    run = in_slots(log_store, 3, dropped=0, waiting=1)
    lines = told(log_store, run, "op.out", "v1")
    assert lines[2:-1] == [
        "op.out in slot 1: 1 record with v=v1, in 1 event: op[1].out 2 (2 events searched)",
        "  event op[1].out 2: the Merger of op has not processed it yet",
    ]
    assert lines[1].startswith("op.out in 2 slots: no record")
    assert lines[-1].startswith("source.out, the parts for 2 slots of op: no record"), "the Dispatcher is not asked"


def test_no_slot_and_no_source_has_it(log_store: LogStore) -> None:
    run = in_slots(log_store, 3, dropped=0)
    assert told(log_store, run, "op.out", "never")[-2:] == [
        "source.out: no record has v=never (2 events searched)",
        "source is a source, and none of its events so far has such a record",
    ]


def test_the_page_shows_the_cause_however_many_slots_there_are() -> None:
    store = MemoryLogStore()
    run = in_slots(store, 64, dropped=63)
    found = why_not_document(why_not(store, run, "op.out", {"v": "v63"}), 0.0, log=None, errors_shown=True)
    assert found["searches_in_all"] == 4 < MOST_SEARCHES
    [cause] = [one for one in found["searches"] if one["met"]]
    assert cause["events"] == [{"port": "source.out", "event": 2}]
    assert (cause["met"][0]["port"], cause["met"][0]["event"]) == ("source.out", 2)
    for one in [*cause["events"], *cause["met"]]:  # what a click asks for
        assert backward(store, run, one["port"], one["event"]).roots[0].event_id == one["event"]
    with pytest.raises(LineageUnknown, match="ask for the port before the Dispatcher"):
        event_node(run, "dispatch(op).slot1", 1)


def split(store: LogStore, *, dropped_by_filter: str = "", dropped_by_split: str = "") -> Run:
    """source → split, with outputs a (x and z) and b (y) → join, b by way of a filter; `join` drops y and z."""
    shapes = {
        "source": SOURCE,
        "split": shape("g", {"in": "source.out"}, ("a", "b")),
        "filter": shape("g", {"in": "split.b"}),
        "join": shape("g", {"left": "split.a", "right": "filter.out"}),
    }
    hand = Hand(store, shapes, "join.out")
    whole = hand.sent("source", "out", ["x", "y", "z"])
    left = hand.sent("split", "a", [value for value in ("x", "z") if value != dropped_by_split] or ["none"], whole)
    other = hand.sent("split", "b", ["y" if dropped_by_split != "y" else "none"], whole)
    hand.sent("filter", "out", ["y" if dropped_by_filter != "y" else "none"], other)
    hand.sent("join", "out", ["x"], left)
    return hand.done()


def test_an_operator_with_two_outputs_is_asked_once_for_both(log_store: LogStore) -> None:
    run = split(log_store, dropped_by_split="z")
    lines = told(log_store, run, "join.out", "z")
    assert lines[-1] == (
        "  event 1, Input Set 1 of split: it was generated and made event split.a 1, split.b 1, without such a record: "
        "split has left it out"
    )
    assert sum(line.startswith("source.out") for line in lines) == 1


def test_what_went_the_other_way_was_not_left_out_before(log_store: LogStore) -> None:
    run = split(log_store)
    lines = told(log_store, run, "join.out", "y")
    assert lines == [
        "join.out: no record has v=y (1 event searched)",
        "filter.out: 1 record with v=y, in 1 event: 1 (1 event searched)",
        "  event 1, Input Set 1 of join: it was generated and made event 1, without such a record: join has left it out",
        "split.a: no record has v=y (1 event searched)",
    ], "split is not asked: its other output has sent it"


def test_the_operator_on_the_other_way_has_left_it_out(log_store: LogStore) -> None:
    lines = told(log_store, split(log_store, dropped_by_filter="y"), "join.out", "y")
    assert any("filter has left it out" in line for line in lines)
    assert not any("split has left it out" in line for line in lines)


@pytest.mark.parametrize("holds", ["x", "y"])
def test_two_columns_from_one_make_no_difference_by_their_order(log_store: LogStore, holds: str) -> None:
    """Both asks lead to the same records before the operator: what one of them finds, it has not left out."""
    both = RecordRules({"out": Dependence(Uses.ONE, {"in": {"x": "z", "y": "z"}})}, {"": WHOLE})
    end = RecordRules({"out": Dependence(Uses.ONE, {"a": {"v": "x"}, "b": {"v": "y"}})}, {"": WHOLE})
    shapes = {
        "source": SOURCE,
        "both": replace(shape("g", {"in": "source.out"}), rules=both),
        "end": replace(shape("g", {"a": "both.out", "b": "both.out"}), rules=end),
    }
    named = replace(spec("g"), operators=shapes, scopes=(ScopeShape("source.out", "end.out"),))
    driver = start_driver(log_store, run=log_store.start_run(named))
    for place, table in (
        (Port("source", "out"), {"z": ["q"]}),
        (Port("both", "out"), {"x": ["p"], "y": ["p"]} | {holds: ["q"]}),
    ):
        receivers = [Port("both", "in")] if place.operator == "source" else [Port("end", "a"), Port("end", "b")]
        deliveries = tuple(fx.Delivery(to, (("1", Status.DONE),), fused=True, kept=True) for to in receivers)
        body = encode(pa.table(table))
        effects: fx.Effects = [
            fx.LogEvent(Event(place, 1, Kind.DATA, 1, None, body), deliveries, kept=True),
            fx.CountEvents(place, "out", 1, 1),
        ]
        if place.operator == "both":
            effects.append(fx.RecordLineage(place, 1, "1"))
        driver.session.commit(effects)
    lines = told(log_store, driver.run, "end.out", "q")
    assert any(line.startswith(f"both.out: 1 record with {holds}=q") for line in lines)
    assert not any(line.startswith("source.out") for line in lines), "`both` has it, and is not asked about"


def test_what_limits_leave_out_of_many_slots_is_one_sentence() -> None:
    store = MemoryLogStore()
    run = in_slots(store, 64, dropped=63)
    with store.lineage(run) as log:
        bodies = log.bodies("merge(op)", "out", range(1, 200))
        limits = SearchLimits(size=sum(len(stored.body) for _, stored in bodies))
    found = why_not(store, run, "op.out", {"v": "v63"}, limits=limits)
    assert found.notes == ["op.out in 64 slots was not searched: the limits of this search are reached"]


class Unreadable:
    """A payload store that has lost what it had."""

    def table(self, where: str, ref: str) -> pa.Table:
        raise LogInconsistent(f"{where} is not there")

    def pieces(self, where: str, ref: str, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        yield self.table(where, ref)


def test_records_that_cannot_be_read_end_no_answer(sqlite_url: str, tmp_path: Path) -> None:
    store = open_store(sqlite_url)
    assert isinstance(store, SqlLogStore)
    run = split(store)
    store_body(store, run, "split.a", 1, pa.table({"v": ["x", "z"]}), Payloads(str(tmp_path)))
    assert why_not(store, run, "join.out", {"v": "x"}, Unreadable()).is_there, "nothing before it is asked"
    missing = why_not(store, run, "join.out", {"v": "z"}, Unreadable())
    assert "event 1 of split.a is not there" in missing.notes
    assert [str(one.port) for one in missing.searches][:2] == ["join.out", "filter.out"]
    assert not any(met.fate is Fate.LEFT_OUT and met.is_output_known for one in missing.searches for met in one.met)
    store.dispose()


def test_what_retention_may_have_removed_was_not_left_out(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    assert isinstance(store, SqlLogStore)
    run = split(store)
    with writing(store.engine) as connection:
        for table in (schema.event_data, schema.event_lineage):
            connection.execute(sa.delete(table).where(table.c.send_op == "join"))
    lines = told(store, run, "join.out", "z")
    assert lines[0] == "join.out: no record has v=z (0 events searched, the records of 1 are not in the log)"
    assert any("it made no event on the way to the port, or none that is in the log any more" in line for line in lines)
    assert not any("left it out" in line for line in lines)
    store.dispose()
