"""The records behind a result, and `logio lineage`: on a log with Arrow bodies, as a sales run leaves it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.cli.app import main
from airflow_logio.errors import ConfigurationError, LineageUnknown, LogInconsistent, NotKept, OperatorFailed
from airflow_logio.lineage import search_limits
from airflow_logio.lineage.event_search import events_holding, search_newest
from airflow_logio.lineage.lineage_records import effect, records
from airflow_logio.lineage.search_limits import EVENTS_AT_ONCE, SearchLimits
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind, MadeOf, Port, Status
from airflow_logio.store import open_store
from airflow_logio.store.lineage.queries import backward
from airflow_logio.store.lineage.result import InputSetNode, Lineage
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import OperatorShape, Run, ScopeShape
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.lineage_log import SqlLineageLog
from airflow_logio.systems.arrow import decode, encode
from airflow_logio.systems.payloads import Payloads, dataset
from airflow_logio.testing.memory_log import MemoryLogStore
from airflow_logio.testing.memory_log.lineage_log import MemoryLineageLog
from tests.support.datasets import dataset_of
from tests.support.logs import open_sql_store, spec, start_driver

INGEST, HOURLY = Port("ingest", "out"), Port("hourly", "out")
IN = Port("hourly", "in")
EVENTS = 60
PRODUCTS = pa.table({"product_id": pa.array(range(100), pa.int32()), "department": ["GROCERY"] * 100})


def sold(event_id: int) -> pa.Table:
    """Two records, of products that only this event has."""
    return pa.table({"product_id": [event_id, event_id + 1000], "quantity": [1, 2]})


@dataclass
class Sales:
    """`wide` is an Input Set of all events; every third is in the log with a gap behind it; `small` of two."""

    store: LogStore
    run: Run

    def origin(self, event_id: int) -> Lineage:
        return backward(self.store, self.run, "hourly.out", event_id)


def filled(store: LogStore, *, replay: bool = False, events: int = EVENTS, hour: str = "") -> Sales:
    """With `replay`, `hourly` is a replay operator. `hour`: what its records hold, instead of their Input Set."""
    shapes = {
        "ingest": OperatorShape("g", {}, ("out",), (), ("out",), ("out",)),
        "hourly": OperatorShape("g", {"in": "ingest.out"}, ("out",), ("in",), ("out",), ()),
    }
    named = replace(spec("g"), operators=shapes, scopes=(ScopeShape("ingest.out", "hourly.out"),))
    driver = start_driver(store, run=store.start_run(named))
    commit: fx.Effects = [fx.StartReadAction("ingest", "source", 1, {"path": "/data/sales 1.parquet"}, kept=True)]
    for n in range(1, events + 1):
        insets = ["wide"] if n % 20 else []
        insets += ["small"] if n in (3, 4) else []
        about = {"read_action": 1, "first": 2 * n - 2, "last": 2 * n - 1}
        event = Event(INGEST, n, Kind.DATA, 2, None, encode(sold(n)), about)
        delivery = fx.Delivery(IN, tuple((inset, Status.DONE) for inset in insets), fused=True, kept=True)
        commit += [fx.LogEvent(event, (delivery,), kept=True), fx.CountEvents(INGEST, "out", 1, 2)]
    for n, inset in enumerate(("wide", "small"), start=1):
        made_of = MadeOf(inset, 0, b"digest", 9) if replay else None
        event = Event(HOURLY, n, Kind.DATA, 1, None, encode(pa.table({"hour": [hour or inset]})), made_of=made_of)
        commit += [
            fx.LogEvent(event, (), kept=True),
            fx.RecordLineage(HOURLY, n, inset),
            fx.CountEvents(HOURLY, "out", 1, 1),
        ]
    described = {"table": "products", "key": "product_id"}
    commit.append(fx.LogRead("hourly", "warehouse", 1, described, ("wide", "small"), 100, None, encode(PRODUCTS)))
    driver.session.commit(commit)
    return Sales(store, driver.run)


@pytest.fixture
def sales(log_store: LogStore) -> Sales:
    return filled(log_store)


def test_the_records_of_an_event(sales: Sales) -> None:
    first, second = sales.origin(2).events("ingest.out")
    assert records(sales.store, sales.run, first).equals(sold(3))
    assert records(sales.store, sales.run, second).equals(sold(4))


def test_the_rows_of_a_read_action_for_one_input_set(sales: Sales) -> None:
    """Those whose key occurs in its events; the types of keys may differ."""
    (read,) = sales.origin(2).reads("hourly")
    assert effect(sales.store, sales.run, read).num_rows == 100
    mine = effect(sales.store, sales.run, read, InputSetNode("hourly", "small"))
    assert mine.column("product_id").to_pylist() == [3, 4]
    assert effect(sales.store, sales.run, read, InputSetNode("hourly", "wide")).num_rows == EVENTS - 3


def test_the_events_that_hold_a_record(sales: Sales) -> None:
    (found,) = events_holding(sales.store, sales.run, "ingest.out", {"product_id": "1007"})
    assert (found.records, found.searched, found.gone) == ({7: 1}, EVENTS, 0)
    (found,) = events_holding(sales.store, sales.run, "ingest.out", {"quantity": "2", "product_id": "7"})
    assert not found.records, "of one record, both must be true"
    (found,) = events_holding(sales.store, sales.run, "ingest.out", {"quantity": "1"})
    assert list(found.records) == list(range(1, EVENTS + 1))


def test_outputs_of_an_input_set_by_port_and_counters_of_ports(sales: Sales) -> None:
    with sales.store.lineage(sales.run) as log:
        assert list(log.outputs_of("hourly", ["small", "wide"], ["out"])) == [("small", HOURLY, 2), ("wide", HOURLY, 1)]
        assert not list(log.outputs_of("hourly", ["small"], ["late"])) and not list(
            log.outputs_of("hourly", ["small"], [])
        )
        assert log.sent_by([INGEST, HOURLY, Port("hourly", "late")]) == {
            INGEST: EVENTS,
            HOURLY: 2,
            Port("hourly", "late"): 0,
        }
        assert log.sent_by([]) == {} and log.sent(HOURLY) == 2


def test_bodies_come_the_newest_first(sales: Sales) -> None:
    with sales.store.lineage(sales.run) as log:
        some = dict(log.bodies_before("ingest", "out", EVENTS, 3))
        assert list(some) == [EVENTS - 1, EVENTS - 2, EVENTS - 3]
        assert some[EVENTS - 1].body == encode(sold(EVENTS - 1))
        assert [number for number, _ in log.bodies_before("ingest", "out", 3, 9)] == [2, 1]


def test_the_size_of_bodies_without_the_bodies(sales: Sales) -> None:
    with sales.store.lineage(sales.run) as log:
        wanted = sum(len(encode(sold(number))) for number in (1, 2, EVENTS))
        assert log.size("ingest", "out", [EVENTS, 2, 1, EVENTS + 9]) == wanted
        assert log.size("ingest", "out", [EVENTS + 9]) == log.size("ingest", "out", []) == 0


@pytest.mark.parametrize("limits", [SearchLimits(seconds=0), SearchLimits(size=3_000), SearchLimits(found=7)])
def test_searches_with_limits_add_up_to_the_whole_one(sales: Sales, limits: SearchLimits) -> None:
    (whole,) = events_holding(sales.store, sales.run, "ingest.out", {"quantity": "1"})
    found: dict[int, int] = {}
    before, searched, searches = None, 0, 0
    while before is not None or not searches:
        result = search_newest(sales.store, sales.run, "ingest.out", {"quantity": "1"}, None, limits, before)
        (one,) = result.holding
        assert not found.keys() & one.records.keys()
        found.update(one.records)
        before, searched, searches = result.before, searched + one.searched, searches + 1
    assert (dict(sorted(found.items())), searched) == (whole.records, EVENTS)
    assert searches > EVENTS / 10


@pytest.mark.parametrize(("room", "most"), [(2**20, EVENTS_AT_ONCE), (2 * len(encode(sold(1))), 2), (1, 1)])
def test_bodies_are_read_some_at_a_time(sales: Sales, monkeypatch: pytest.MonkeyPatch, room: int, most: int) -> None:
    """The first one alone: it says how large they are."""
    monkeypatch.setattr(search_limits, "BYTES_AT_ONCE", room)
    asked: list[int] = []
    adapter = MemoryLineageLog if isinstance(sales.store, MemoryLogStore) else SqlLineageLog
    bodies_before = adapter.bodies_before

    def heard(log: Any, operator: str, channel: str, before: int, limit: int) -> Any:
        asked.append(limit)
        return bodies_before(log, operator, channel, before, limit)

    monkeypatch.setattr(adapter, "bodies_before", heard)
    (found,) = events_holding(sales.store, sales.run, "ingest.out", {"quantity": "1"})
    assert found.searched == EVENTS
    assert asked[0] == 1 and set(asked[1:]) == {most}


def slots_with_events(store: LogStore, many: Sequence[int]) -> Run:
    """Slots of ``work.out``, without a Merger, that have sent so many events."""
    slots = {f"work[{n}]": OperatorShape("work", {}, ("out",), (), ("out",), ("out",)) for n in range(len(many))}
    driver = start_driver(store, run=store.start_run(replace(spec("g"), operators=slots)))
    for slot, events in enumerate(many):
        port = Port(f"work[{slot}]", "out")
        for number in range(1, events + 1):
            event = Event(port, number, Kind.DATA, 2, None, encode(sold(number)))
            driver.session.commit([fx.LogEvent(event, (), kept=True), fx.CountEvents(port, "out", 1, 2)])
    return driver.run


def test_slots_take_turns_by_the_part_of_their_events_that_is_left() -> None:
    """A slot with many events takes no more time from the others than they from it, and none is forgotten."""
    store = MemoryLogStore()
    run = slots_with_events(store, [100, 40, 0])
    limits = SearchLimits(found=72)
    first = search_newest(store, run, "work.out", {"quantity": "1"}, None, limits)
    assert [one.searched for one in first.holding] == [40, 32, 0] and first.before == [61, 9, 1]
    rest = search_newest(store, run, "work.out", {"quantity": "1"}, None, limits, first.before)
    assert [one.searched for one in rest.holding] == [60, 8, 0] and rest.before is None


def test_where_a_search_ends_is_known_of_slots_that_it_has_not_come_to() -> None:
    """What they send later is not searched: the one who asks is told how many there were."""
    store = MemoryLogStore()
    run = slots_with_events(store, [3, 3])
    first = search_newest(store, run, "work.out", {"quantity": "1"}, None, SearchLimits(found=1))
    assert first.before == [3, 4] and [one.searched for one in first.holding] == [1, 0]


def test_of_a_body_only_the_columns_that_are_asked_for_are_decoded() -> None:
    body = encode(sold(3))
    assert decode("it", body, ["quantity", "order"]).equals(sold(3).select(["quantity"]))
    assert decode("it", body, ["order"]).num_columns == 0
    assert decode("it", body).equals(sold(3))


def test_a_search_gets_past_an_event_that_is_too_large_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names those of which it has seen the beginning only. With others before it, it is left for the next search."""
    monkeypatch.setattr(dataset, "BATCH_RECORDS", 10)
    store = MemoryLogStore()
    sales = filled(store)
    payloads = Payloads(str(tmp_path))
    epoch = payloads.epoch(sales.run.uid, "g", 1, 0)
    large = pa.table({"product_id": pa.array(range(50)), "quantity": [1] * 50})
    for key, row in store.tables.bodies.items():
        if (key.operator, key.event_id) == ("ingest", EVENTS - 1):
            store.tables.bodies[key] = row._replace(
                body=b"", ref=str(dataset_of(epoch, large, purpose="large").reference)
            )

    def search(
        limits: SearchLimits, before: list[int] | None = None
    ) -> tuple[Mapping[int, int], int, Sequence[int], list[int] | None]:
        where = {"quantity": "1", "product_id": "45"}
        found = search_newest(store, sales.run, "ingest.out", where, payloads, limits, before)
        (one,) = found.holding
        return one.records, one.searched, one.partly, found.before

    beside = len(encode(sold(EVENTS))) + 1
    assert search(SearchLimits(size=beside)) == ({}, 1, (), [EVENTS]), "the next one is too large for what is left"
    assert search(SearchLimits(size=1), [EVENTS]) == ({}, 1, (EVENTS - 1,), [EVENTS - 1])
    assert search(SearchLimits(size=2**20), [EVENTS])[:3] == ({45: 1, EVENTS - 1: 1}, EVENTS - 1, ())
    a_moment = SearchLimits(seconds=0.0, alone_seconds=60.0)
    assert search(a_moment) == ({}, 1, (), [EVENTS]), "there is no time for the next one"
    assert search(a_moment, [EVENTS]) == ({EVENTS - 1: 1}, 1, (), [EVENTS - 1]), "which is searched as a whole, alone"


def test_the_events_that_were_logged_from_a_time_on(sales: Sales) -> None:
    """Those that are kept for lineage, the first ones."""
    with sales.store.lineage(sales.run) as log:
        assert list(log.logged_since(INGEST, 0.0, 5)) == [1, 2, 3, 4, 5]
        assert list(log.logged_since(HOURLY, 0.0, 5)) == [1, 2]
        assert list(log.logged_since(INGEST, 9e9, 5)) == []


@pytest.mark.parametrize("since", [*range(1, 10), EVENTS, EVENTS + 1])
def test_the_first_event_of_a_time_is_found_whatever_is_gone(sqlite_url: str, since: int) -> None:
    """Events are logged in the order of their ids; retention has removed the earliest, and some more are not there."""
    store = open_sql_store(sqlite_url)
    sales = filled(store)
    data = schema.event_data
    with store.engine.begin() as connection:
        connection.execute(sa.update(data).values(logged_at=data.c.event_id + 0.5))
        connection.execute(sa.delete(data).where(data.c.event_id.in_([1, 2, 7, 8])))
    there = [n for n in range(1, EVENTS + 1) if n not in (1, 2, 7, 8)]
    with store.lineage(sales.run) as log:
        assert list(log.logged_since(INGEST, since + 0.5, 3)) == [n for n in there if n >= since][:3]
    store.dispose()


def in_slots(store: LogStore, *, merged: bool) -> Sales:
    """``work.out`` of two slots, with a Merger behind them or not; the first event is whole, the second one damaged."""
    slots = {f"work[{n}]": OperatorShape("work", {}, ("out",), (), ("out",), ("out",)) for n in range(2)}
    inputs = {f"slot{n}": f"work[{n}].out" for n in range(2)}
    shapes = slots | ({"merge(work)": OperatorShape("g", inputs, ("out",), (), ("out",), ("out",))} if merged else {})
    driver = start_driver(store, run=store.start_run(replace(spec("g"), operators=shapes)))
    port = Port("merge(work)" if merged else "work[1]", "out")
    for number, body in enumerate((encode(sold(1)), b"damaged"), start=1):
        event = Event(port, number, Kind.DATA, 2, None, body)
        driver.session.commit([fx.LogEvent(event, (), kept=True), fx.CountEvents(port, "out", 1, 2)])
    return Sales(store, driver.run)


@pytest.mark.parametrize(
    ("merged", "place", "told"), [(True, "merge(work).out", "work.out"), (False, "work[1].out", "work.out in slot 1")]
)
def test_searches_name_ports_as_their_author_does(merged: bool, place: str, told: str) -> None:
    store = MemoryLogStore()
    found = in_slots(store, merged=merged)
    with pytest.raises(LogInconsistent, match=f"event 2 of {re.escape(told)}"):
        events_holding(store, found.run, "work.out", {"quantity": "1"})
    damaged = next(key for key in store.tables.bodies if key.event_id == 2)
    del store.tables.bodies[damaged]
    last = events_holding(store, found.run, "work.out", {"quantity": "1"})[-1]
    assert (str(last.port), str(last.place), last.records, last.gone) == ("work.out", place, {1: 1}, 1)
    assert last.slot == (None if merged else 1)
    with pytest.raises(LineageUnknown, match=f"the events of {re.escape(told)} have no column 'order'"):
        events_holding(store, found.run, "work.out", {"order": "1"})


@pytest.mark.parametrize("what", ["header", "body"])
def test_a_search_of_the_newest_passes_an_event_of_which_a_bit_is_flipped(what: str) -> None:
    store = MemoryLogStore()
    found = in_slots(store, merged=True)
    key = next(key for key in store.tables.bodies if key.event_id == 1)
    whole = getattr(store.tables.bodies[key], what)
    flipped = whole[:9] + bytes([whole[9] ^ 1]) + whole[10:]
    store.tables.bodies[key] = store.tables.bodies[key]._replace(**{what: flipped})
    result = search_newest(store, found.run, "work.out", {"quantity": "1"}, None, SearchLimits())
    (place,) = result.holding
    assert not place.records and len(place.damaged) == 2
    assert all(f"event {number} of work.out" in " ".join(place.damaged) for number in (1, 2))


@pytest.mark.parametrize(
    ("port", "values", "words"),
    [
        (
            "ingest.out",
            {"order": "1"},
            "the events of ingest.out have no column 'order'; they have product_id, quantity",
        ),
        ("ingest.out", {"product_id": "x"}, "column 'product_id' has type int64, and 'x' is no value of it"),
        ("hourly.in", {"hour": "1"}, "ask for the events of 'ingest.out'"),
    ],
)
def test_searches_that_cannot_find_anything(sales: Sales, port: str, values: dict[str, str], words: str) -> None:
    with pytest.raises(LineageUnknown, match=words):
        events_holding(sales.store, sales.run, port, values)


def test_a_source_has_no_effect_of_its_own(sales: Sales) -> None:
    (read,) = sales.origin(2).reads("ingest")
    with pytest.raises(LineageUnknown, match="its records are those of the events of ingest"):
        effect(sales.store, sales.run, read)
    with pytest.raises(LineageUnknown, match="its records are those of the events of ingest"):
        records(sales.store, sales.run, read)


def test_the_records_of_any_node_or_why_not(sales: Sales) -> None:
    origin = sales.origin(2)
    (read,) = origin.reads("hourly")
    assert records(sales.store, sales.run, read).equals(PRODUCTS)
    (inset,) = origin.input_sets()
    with pytest.raises(
        LineageUnknown, match="Input Set small of hourly has no records of its own: ask for those of its"
    ):
        records(sales.store, sales.run, inset)


def test_records_that_are_gone() -> None:
    store = MemoryLogStore()
    sales = filled(store)
    event = sales.origin(2).events("ingest.out")[0]
    for key in [key for key in store.tables.bodies if key.operator == "ingest"]:
        del store.tables.bodies[key]
    with pytest.raises(LineageUnknown, match=r"the records of ingest\.out 3 in run .* retention has removed them"):
        records(store, sales.run, event)


def test_records_of_a_replay_operator_were_never_in_the_log(log_store: LogStore) -> None:
    """Its events are, with what they were made of, and that has records."""
    sales = filled(log_store, replay=True)
    result = sales.origin(2)
    assert result.roots[0].records == 1
    with pytest.raises(NotKept, match=r"the records of hourly\.out 2 are not in the log: .* replay operator"):
        records(sales.store, sales.run, result.roots[0])
    with pytest.raises(NotKept, match="replay operator"):
        events_holding(sales.store, sales.run, "hourly.out", {"hour": "small"})
    assert records(sales.store, sales.run, result.events("ingest.out")[0]).equals(sold(3))


def test_records_in_the_payload_store() -> None:
    store = MemoryLogStore()
    sales = filled(store)
    event = sales.origin(2).events("ingest.out")[0]
    for key, row in store.tables.bodies.items():
        if (key.operator, key.event_id) == ("ingest", 3):
            store.tables.bodies[key] = row._replace(body=b"", ref="some/where")
    with pytest.raises(ConfigurationError, match="payload store"):
        records(store, sales.run, event)
    loaded = {("ingest.out 3", "some/where"): sold(3)}

    class Elsewhere(Payloads):
        def table(self, where: str, ref: str) -> pa.Table:
            return loaded[where, ref]

    assert records(store, sales.run, event, Elsewhere("/nowhere")).equals(sold(3))


def test_rows_for_one_input_set_of_a_dataset_by_events_that_are_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any size: nothing is taken as one table, and of the events the column of the key alone."""
    store = MemoryLogStore()
    sales = filled(store)
    payloads = Payloads(str(tmp_path))
    epoch = payloads.epoch(sales.run.uid, "g", 1, 0)
    for key, row in store.tables.bodies.items():
        if key.operator == "ingest" or row.body == encode(PRODUCTS):
            table = PRODUCTS if key.operator == "hourly" else sold(key.event_id)
            made = dataset_of(epoch, table, purpose=f"{key.operator}/{key.event_id}")
            store.tables.bodies[key] = row._replace(body=b"", ref=str(made.reference))
    monkeypatch.setattr(dataset, "MAX_TABLE_BYTES", 0)
    (read,) = sales.origin(2).reads("hourly")
    with pytest.raises(OperatorFailed, match="one table"):
        effect(store, sales.run, read, load=payloads)
    mine = effect(store, sales.run, read, InputSetNode("hourly", "small"), payloads)
    assert mine.column("product_id").to_pylist() == [3, 4]
    assert effect(store, sales.run, read, InputSetNode("hourly", "wide"), payloads).num_rows == EVENTS - 3


# --- logio lineage ----------------------------------------------------------------------------------------------------


@pytest.fixture
def logged(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sales]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    store = open_store(sqlite_url)
    yield filled(store)
    store.dispose()


def logio(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["logio", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_tree(logged: Sales, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert logio(monkeypatch, "lineage", "run-1", "hourly.out", "2") == 0
    assert capsys.readouterr().out.splitlines() == [
        "hourly.out 2   1 record",
        "└── Input Set small",
        "    ├── ingest.out 3-4   4 records   rows 4-7 of sales 1.parquet",
        "    └── read warehouse.products   2 of 100 rows",
        "2 events of ingest.out (4 records), 1 Input Set, 1 read action",
    ]


def test_neighbours_are_ranges_and_long_lists_are_cut(
    logged: Sales, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, "lineage", logged.run.uid[:8], "hourly.out", "1") == 0
    printed = capsys.readouterr().out
    assert "ingest.out 1-19   38 records   rows 0-37 of sales 1.parquet" in printed
    assert "ingest.out 21-39   38 records   rows 40-77" in printed
    assert "read warehouse.products   100 rows" in printed, "of so many events the keys are not read"
    assert logio(monkeypatch, "lineage", logged.run.uid[:8], "hourly.out", "1", "--lines", "1") == 0
    assert "... and 39 more" in capsys.readouterr().out


def test_forward(logged: Sales, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert logio(monkeypatch, "lineage", "run-1", "ingest.out", "3", "--forward", "--to", "hourly.out") == 0
    assert capsys.readouterr().out.splitlines() == [
        "ingest.out 3   2 records   rows 4-5",
        "├── Input Set small of hourly",
        "│   └── hourly.out 2   1 record",
        "└── Input Set wide of hourly",
        "    └── hourly.out 1   1 record",
        "2 events of hourly.out (2 records), 2 Input Sets",
    ]
    assert logio(monkeypatch, "lineage", "run-1", "ingest.out", "20", "--forward") == 0
    assert "nothing was made from it yet" in capsys.readouterr().out


def test_records_beside_the_tree(
    logged: Sales, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, "lineage", "run-1", "hourly.out", "2", "--records", "--most", "3") == 0
    printed = capsys.readouterr().out.split("\n\n")
    assert len(printed) == 4, "the tree, and a table for hourly.out, ingest.out and the read action"
    (ingest,) = (part.splitlines() for part in printed if part.startswith("ingest.out"))
    assert [line.split() for line in ingest[1:]] == [
        ["(event)", "product_id", "quantity"],
        ["3", "3", "1"],
        ["3", "1003", "2"],
        ["4", "4", "1"],
    ]


def test_records_beside_the_tree_without_those_of_a_replay_operator(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    store = open_store(sqlite_url)
    filled(store, replay=True)
    store.dispose()
    assert logio(monkeypatch, "lineage", "run-1", "hourly.out", "2", "--records", "--most", "3") == 0
    printed, warned = capsys.readouterr()
    assert len(printed.split("\n\n")) == 3, "the tree, and a table for ingest.out and the read action"
    assert warned.count("replay operator") == 1


def test_the_whole_result_as_json(
    logged: Sales, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, "lineage", "run-1", "hourly.out", "1", "--json", "--records", "--most", "1") == 0
    found = json.loads(capsys.readouterr().out)
    nodes = found["nodes"]
    assert nodes[found["roots"][0]] == {
        "kind": "event",
        "port": "hourly.out",
        "event_id": 1,
        "records": 1,
        "about": {},
        "code": 0,
    }
    assert sum(node["kind"] == "event" for node in nodes) == 1 + EVENTS - 3
    reached = {nodes[end]["kind"] for begin, end in found["edges"] if nodes[begin]["kind"] == "input_set"}
    assert reached == {"event", "read_action"}
    assert found["records"]["ingest.out"] == [{"(event)": 1, "product_id": 1, "quantity": 1}]


def test_from_a_value_to_its_lineage(
    logged: Sales, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, "lineage", "run-1", "hourly.out", "--where", "hour=small") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "hourly.out 2   1 record"
    assert "ingest.out 3-4   4 records" in printed[2]
    assert logio(monkeypatch, "lineage", "run-1", "ingest.out", "--where", "product_id=1003", "--forward") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "ingest.out 3   2 records   rows 4-5"
    assert logio(monkeypatch, "lineage", "run-1", "hourly.out", "--where", "hour=none") == 1
    assert "none of the 2 events of hourly.out in the log holds a record with hour=none" in capsys.readouterr().err
    assert logio(monkeypatch, "lineage", "run-1", "hourly.out") == 2
    assert logio(monkeypatch, "lineage", "run-1", "hourly.out", "1", "--where", "hour=small") == 2


def test_what_is_gone_is_said(
    logged: Sales, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = sa.create_engine(os.environ["LOGIO_URL"])
    with engine.begin() as connection:
        rows = schema.event_data.c
        connection.execute(schema.event_data.delete().where(rows.send_op == "ingest", rows.event_id > 10))
    engine.dispose()
    assert logio(monkeypatch, "lineage", "run-1", "ingest.out", "--where", "product_id=11") == 1
    said = capsys.readouterr().err
    assert (
        "none of the 10 events of ingest.out in the log holds a record with product_id=11; 50 more events of ingest.out are "
        "not in the log any more: retention has removed their records together with their lineage" in said
    )
    assert "lineage_column of a TableWriter names the event of each row" in said


def test_what_cannot_be_answered_is_one_sentence(
    logged: Sales, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, "lineage", "run-1", "hourly.out", "3") == 1
    assert "has no event 3 of hourly.out; its events so far have numbers up to 2" in capsys.readouterr().err
    assert logio(monkeypatch, "lineage", "run-1", "hourly.in", "3") == 1
    assert "ask for the events of 'ingest.out'" in capsys.readouterr().err
    assert logio(monkeypatch, "lineage", "run-1", "hourly.out", "x") == 2
