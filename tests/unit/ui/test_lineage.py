"""Lineage on the page: who sees what of it, what a click answers, and how much at most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_logio.lineage import record_lineage
from airflow_logio.lineage.event_search import search_newest
from airflow_logio.lineage.search_limits import SearchLimits
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.record_rules import Dependence, Uses
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.run_report.causes import HIDDEN
from airflow_logio.store.lineage.result import Direction
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import OperatorShape, Run
from airflow_logio.systems.arrow import encode
from airflow_logio.ui import lineage_documents, lineage_routes, record_documents
from airflow_logio.ui.lineage_documents import fair_shares
from tests.support.app_routes import routes
from tests.support.logs import spec, start_driver
from tests.support.statements import counted_statements
from tests.support.streams import events
from tests.unit.lineage.test_record_lineage import TAKEN, logged, shop
from tests.unit.lineage.test_records import EVENTS, Sales, filled, slots_with_events, sold
from tests.unit.lineage.test_steps import parted_flow
from tests.unit.lineage.test_why_not import logged as written
from tests.unit.ui.conftest import OWNER, QUIET, SILENT, STRANGER

QUERIES = {
    "lineage": "",
    "lineage/step": "?port=hourly.out&event=2&direction=backward",
    "lineage/records": "?port=ingest.out&event=3",
    "lineage/behind": "?port=hourly.out&event=2&place=0",
    "lineage/read": "?operator=hourly&connection=warehouse&action=1",
}
DATA = ("lineage/records", "lineage/behind", "lineage/read")


@pytest.fixture
def sales(store: LogStore) -> Sales:
    return filled(store)


def path(sales: Sales, name: str) -> str:
    return f"/api/runs/{sales.run.uid}/{name}{QUERIES.get(name, '')}"


def asked(client: TestClient, sales: Sales, name: str, query: str, reader: dict[str, str] = OWNER) -> dict[str, Any]:
    answer = client.get(f"/api/runs/{sales.run.uid}/{name}?{query}", headers=reader)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def find(client: TestClient, sales: Sales, reader: dict[str, str] = OWNER, **wanted: Any) -> Any:
    return client.post(path(sales, "lineage/find"), json={"port": "ingest.out", **wanted}, headers=reader)


# --- who ---------------------------------------------------------------------------------------------------------------


def test_these_are_all_the_routes_of_lineage(client: TestClient) -> None:
    every = routes(client.app, uid="u", group="g", name="n")
    found = {(method, one.partition("u/")[2]) for method, one in every if "/lineage" in one}
    assert found == {*(("GET", name) for name in QUERIES), ("POST", "lineage/find"), ("POST", "lineage/why_not")}


@pytest.mark.parametrize("name", QUERIES)
def test_lineage_is_for_readers_of_the_run_and_records_for_those_of_its_data(
    client: TestClient, sales: Sales, name: str
) -> None:
    where = path(sales, name)
    expected = {"": 401, "stranger": 403, "owner": 200, "quiet": 403 if name in DATA else 200}
    for reader, status in expected.items():
        answer = client.get(where, headers={"x-reader": reader})
        assert answer.status_code == status, reader
    unknown = where.replace(sales.run.uid, "0" * 32)
    assert client.get(unknown, headers=OWNER).json() == {"detail": "there is no such run, or no such group in it"}


def test_to_look_for_values_needs_the_right_to_data(client: TestClient, sales: Sales) -> None:
    where = {"product_id": "1007"}
    assert find(client, sales, {}, where=where).status_code == 401
    assert find(client, sales, STRANGER, event=3).status_code == 403
    assert find(client, sales, QUIET, where=where).status_code == 403
    assert find(client, sales, QUIET, event=3).status_code == 200
    by_set = find(client, sales, QUIET, port="hourly.out", input_set="small")
    assert (by_set.status_code, by_set.json()["detail"]) == (403, "you may not read the data of this DAG")
    assert client.post(path(sales, "lineage/find"), content=b"{}", headers=OWNER).status_code == 415


def test_what_sources_say_and_what_was_read_are_data(client: TestClient, sales: Sales) -> None:
    for query in (QUERIES["lineage/step"][1:], "port=ingest.out&event=3&direction=backward"):
        shown, quiet = (asked(client, sales, "lineage/step", query, reader) for reader in (OWNER, QUIET))
        assert any(one["about"] for one in shown["reads"])
        text = str(quiet)
        assert "products" not in text and "sales 1.parquet" not in text
        assert [one["action"] for one in quiet["reads"]] == [one["action"] for one in shown["reads"]]
        assert quiet["input_sets"] == [] and quiet["input_sets_in_all"] == shown["input_sets_in_all"]


# --- what --------------------------------------------------------------------------------------------------------------


def test_ports_say_how_many_events_they_have(client: TestClient, sales: Sales) -> None:
    ports = asked(client, sales, "lineage", "")
    assert ports == {"ports": [{"port": "ingest.out", "sent": EVENTS}, {"port": "hourly.out", "sent": 2}], "in_all": 2}


def test_the_counters_of_all_ports_come_in_one_statement(store: LogStore) -> None:
    run = slots_with_events(store, range(9))
    with counted_statements() as seen:
        document = lineage_documents.ports_document(store, run)
    assert [one["sent"] for one in document["ports"]] == list(range(9))
    assert ["logio_port_counter" in statement for statement in seen].count(True) == 1


def test_a_step_back_names_what_was_used_and_read(client: TestClient, sales: Sales) -> None:
    found = asked(client, sales, "lineage/step", "port=hourly.out&event=2&direction=backward")
    assert found["input_sets"] == [{"operator": "hourly", "id": "small"}]
    (port,) = found["ports"]
    assert (port["port"], port["events"], port["records"]) == ("ingest.out", 2, 4)
    assert [one["event"] for one in port["first"]] == [3, 4]
    (side,) = found["reads"]
    assert (side["operator"], side["connection"], side["records"], side["about"]["table"]) == (
        "hourly",
        "warehouse",
        100,
        "products",
    )
    assert found["cut"] is False
    (source,) = asked(client, sales, "lineage/step", "port=ingest.out&event=3&direction=backward")["reads"]
    assert source["is_source"] and source["about"]["path"] == "/data/sales 1.parquet"
    onward = asked(client, sales, "lineage/step", "port=ingest.out&event=3&event=4&direction=forward")
    assert [(one["port"], one["events"]) for one in onward["ports"]] == [("hourly.out", 2)]


def test_a_step_forward_says_what_became_of_events_where_nothing_was_made(
    client: TestClient, store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales = Sales(store, written(store).run)
    every = "port=clean.out&direction=forward&" + "&".join(f"event={n}" for n in range(1, 6))

    def unmade(reader: dict[str, str] = OWNER, query: str = every) -> dict[str, tuple[int, int, list[str]]]:
        found = asked(client, sales, "lineage/step", query, reader)["unmade"]
        assert {one["operator"] for one in found} <= {"hourly"}
        return {
            one["use"]: (one["events"], one["input_sets_in_all"], [inset["id"] for inset in one["input_sets"]])
            for one in found
        }

    assert unmade() == {
        "waiting": (1, 1, ["2024-01-01T11:00"]),
        "unused_yet": (1, 0, []),
        "ignored": (1, 0, []),
        "aside": (1, 1, ["2024-01-01T12:00"]),
    }
    assert unmade(QUIET)["aside"] == (1, 1, [])
    assert unmade(query="port=clean.out&direction=forward&event=1") == {}
    assert unmade(query="port=clean.out&direction=backward&event=5") == {}
    monkeypatch.setattr(lineage_documents, "MOST_UNMADE", 0)
    assert unmade()["aside"] == (1, 1, [])
    monkeypatch.setattr(lineage_documents, "MOST_ROWS", 2)
    cut = asked(client, sales, "lineage/step", every)
    assert cut["unmade_cut"] and [one["use"] for one in cut["unmade"]] == ["waiting"]


def test_many_events_are_counted_and_some_are_named(
    client: TestClient, sales: Sales, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "port=hourly.out&event=1&direction=backward"
    (port,) = asked(client, sales, "lineage/step", query)["ports"]
    assert (port["events"], len(port["first"])) == (EVENTS - 3, EVENTS - 3)
    monkeypatch.setattr(lineage_documents, "MOST_EVENTS", 5)
    (port,) = asked(client, sales, "lineage/step", query)["ports"]
    assert (port["events"], [one["event"] for one in port["first"]]) == (EVENTS - 3, [1, 2, 3, 4, 5])
    monkeypatch.setattr(lineage_documents, "MOST_NAMED", 3)
    assert len(asked(client, sales, "lineage/step", query)["ports"][0]["first"]) == 3
    monkeypatch.setattr(lineage_documents, "MOST_PORTS", 0)
    none = asked(client, sales, "lineage/step", query)
    assert (none["ports"], none["ports_in_all"]) == ([], 1)
    monkeypatch.undo()
    monkeypatch.setattr(lineage_documents, "MOST_ROWS", 10)
    cut = asked(client, sales, "lineage/step", query)
    assert (cut["cut"], cut["ports"][0]["events"]) == (True, 10)
    too_many = "&".join(f"event={n}" for n in range(1, 200))
    answer = client.get(f"{path(sales, 'lineage/step')}&{too_many}", headers=OWNER)
    assert answer.status_code == 422


def test_boxes_of_the_graph_have_ids_of_their_members(
    client: TestClient, sales: Sales, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all of them, not only of those that are named: two boxes may begin with the same hundred."""

    def box(query: str) -> Any:
        return asked(client, sales, "lineage/step", query)["ports"][0]

    monkeypatch.setattr(lineage_documents, "MOST_EVENTS", 2)
    wide, small = (box(f"port=hourly.out&event={n}&direction=backward") for n in (1, 2))
    both = box("port=hourly.out&event=1&event=2&direction=backward")
    assert wide["id"].startswith(f"ingest.out {EVENTS - 3} ") and small["id"].startswith("ingest.out 2 ")
    assert both["id"] == wide["id"] == box("port=hourly.out&event=1&direction=backward")["id"]
    monkeypatch.setattr(lineage_documents, "MOST_ROWS", 10)
    part = box("port=hourly.out&event=1&direction=backward")
    assert part["id"] != wide["id"] and part["first"] == wide["first"]
    assert box("port=ingest.out&event=1&direction=forward")["id"] == "hourly.out 1 1"


@pytest.mark.parametrize(
    ("wanted", "most", "shares"),
    [
        ([], 5, []),
        ([3, 1], 5, [3, 1]),
        ([100, 100, 1], 50, [24, 25, 1]),
        ([9, 9, 9], 2, [0, 1, 1]),
        ([0, 1_000_000], 500, [0, 500]),
    ],
)
def test_an_answer_is_shared_fairly(wanted: list[int], most: int, shares: list[int]) -> None:
    assert fair_shares(wanted, most) == shares


def test_records_are_the_first_ones_as_texts(client: TestClient, sales: Sales, monkeypatch: pytest.MonkeyPatch) -> None:
    records = asked(client, sales, "lineage/records", "port=ingest.out&event=3")
    assert records == {
        "columns": ["product_id", "quantity"],
        "rows": [["3", "1"], ["1003", "2"]],
        "rows_in_all": 2,
        "columns_in_all": 2,
    }
    read = asked(client, sales, "lineage/read", QUERIES["lineage/read"][1:])
    assert (read["columns"], len(read["rows"]), read["rows_in_all"]) == (["product_id", "department"], 50, 100)
    monkeypatch.setattr(lineage_documents, "MOST_RECORDS", 1)
    monkeypatch.setattr(lineage_documents, "LONGEST_VALUE", 3)
    cut = asked(client, sales, "lineage/read", QUERIES["lineage/read"][1:])
    assert (cut["columns"], cut["rows"]) == (["product_id", "department"], [["0", "GRO..."]])
    monkeypatch.setattr(lineage_documents, "MOST_COLUMNS", 1)
    cut = asked(client, sales, "lineage/read", QUERIES["lineage/read"][1:])
    assert cut == {"columns": ["product_id"], "rows": [["0"]], "rows_in_all": 100, "columns_in_all": 2}


def test_events_are_found_by_number_input_set_and_time(
    client: TestClient, sales: Sales, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find(client, sales, event=3).json()
    assert found["events"] == [{"port": "ingest.out", "event": 3, "records": 2}]
    assert (found["more"], found["ports"], found["ports_looked_at"]) == (False, 1, 1)
    assert find(client, sales, event=999).json()["events"] == []
    of_set = find(client, sales, port="hourly.out", input_set="small").json()
    assert of_set["events"] == [{"port": "hourly.out", "event": 2, "records": 1}]
    assert find(client, sales, port="hourly.out", input_set="none").json()["events"] == []
    since = find(client, sales, at=0).json()
    assert [one["event"] for one in since["events"]] == list(range(1, 21)) and since["more"]
    monkeypatch.setattr(lineage_documents, "MOST_SINCE", EVENTS)
    since = find(client, sales, at=0).json()
    assert (len(since["events"]), since["more"]) == (EVENTS, False)
    assert find(client, sales, at=9e9).json()["events"] == []


def test_of_slots_each_gets_its_part_of_the_answer(
    client: TestClient, store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = slots_with_events(store, [30, 5])
    sales = Sales(store, run)
    of_two = [{"port": f"work[{slot}].out", "event": 4, "records": 2} for slot in range(2)]
    assert find(client, sales, port="work.out", event=4).json()["events"] == of_two

    def numbers() -> tuple[list[tuple[str, int]], bool]:
        found = find(client, sales, port="work.out", at=0).json()
        return [(one["port"], one["event"]) for one in found["events"]], found["more"]

    first, second = ([(f"work[{slot}].out", n) for n in range(1, 21)] for slot in range(2))
    assert numbers() == (first + second[:5], True)
    monkeypatch.setattr(lineage_documents, "MOST_FOUND", 8)
    assert numbers() == (first[:4] + second[:4], True)
    monkeypatch.setattr(lineage_documents, "MOST_SECONDS", 0.0)
    assert numbers() == (first[:8], True)
    found = find(client, sales, port="work.out", event=4).json()
    assert (found["events"], found["ports_looked_at"], found["ports"]) == (of_two[:1], 1, 2)


def test_an_input_set_is_looked_for_on_one_port(
    client: TestClient, store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much was made of it on others."""
    shape = OperatorShape("g", {}, ("late", "out"), (), ("late", "out"), ("late", "out"))
    driver = start_driver(store, run=store.start_run(replace(spec("g"), operators={"work": shape})))
    for name, many in (("late", 9), ("out", 3)):
        for number in range(1, many + 1):
            event = Event(Port("work", name), number, Kind.DATA, 2, None, b"")
            made = fx.RecordLineage(Port("work", name), number, "one")
            driver.session.commit(
                [fx.LogEvent(event, (), kept=True), made, fx.CountEvents(Port("work", name), "out", 1, 2)]
            )
    sales = Sales(store, driver.run)
    for most, more in ((3, False), (2, True)):
        monkeypatch.setattr(lineage_documents, "MOST_FOUND", most)
        found = find(client, sales, port="work.out", input_set="one").json()
        assert [(one["port"], one["event"]) for one in found["events"]] == [("work.out", n) for n in range(1, most + 1)]
        assert found["more"] is more


def test_an_input_set_of_a_slot_is_found_behind_the_merger(log_store: LogStore) -> None:
    """As a step back from the event has named it."""
    flow = parted_flow(log_store)
    sent = next(
        one["sent"] for one in lineage_documents.ports_document(flow.store, flow.run)["ports"] if one["port"] == "w.out"
    )
    assert sent > 1
    for number in range(1, sent + 1):
        back = lineage_documents.step_document(
            flow.store, flow.run, Direction.BACKWARD, "w.out", [number], with_data=True
        )
        (inset,) = back["input_sets"]
        assert inset["operator"].startswith("w[")
        found = lineage_documents.found_document(
            flow.store, flow.run, "w.out", lineage_documents.Sought(input_set=inset["id"])
        )
        assert ("w.out", number) in [(one["port"], one["event"]) for one in found["events"]]
        assert not found["more"]


def test_a_search_by_values_looks_at_the_newest_first_and_is_continued(
    client: TestClient, sales: Sales, monkeypatch: pytest.MonkeyPatch
) -> None:
    seventh = {"product_id": "1007"}
    held = find(client, sales, where=seventh).json()
    assert held["seconds"] >= 0 and {**held, "seconds": 0} == {
        "events": [{"port": "ingest.out", "event": 7, "records": 1}],
        "searched": EVENTS,
        "sent": EVENTS,
        "seconds": 0,
        "partly": 0,
        "lacking": "",
        "damaged": 0,
        "damaged_first": "",
        "before": None,
    }
    monkeypatch.setattr(lineage_documents, "SEARCH", SearchLimits(found=4))
    every = {"quantity": "1"}
    first = find(client, sales, where=every).json()
    assert [one["event"] for one in first["events"]] == [EVENTS - n for n in range(4)]
    assert (first["searched"], first["before"]) == (4, [EVENTS - 3])
    fewer = find(client, sales, where=every, most=3).json()
    assert [one["event"] for one in fewer["events"]] == [EVENTS - n for n in range(3)]
    assert find(client, sales, where=every, most=0).status_code == 422
    second = find(client, sales, where=every, before=first["before"]).json()
    assert [one["event"] for one in second["events"]] == [EVENTS - 4 - n for n in range(4)]
    monkeypatch.setattr(lineage_documents, "SEARCH", SearchLimits(seconds=0))
    slow = find(client, sales, where=seventh, before=[9]).json()
    assert (slow["events"], slow["searched"], slow["before"]) == ([], 1, [8])
    assert [one["event"] for one in find(client, sales, where=seventh, before=[8]).json()["events"]] == [7]
    assert find(client, sales, where=seventh, before=[2]).json()["before"] is None
    other = find(client, sales, where=seventh, before=[8, 8])
    assert (other.status_code, "start it again" in other.json()["detail"]) == (404, True)


def test_searches_by_values_leave_room_for_looks(
    client: TestClient, sales: Sales, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"quantity": "1"}
    monkeypatch.setattr(lineage_routes, "WAIT_SECONDS", 0.05)
    depth, search = 0, search_newest
    seen: list[tuple[int, int, int]] = []

    def in_the_middle(*arguments: Any) -> Any:
        """Others ask while it searches."""
        nonlocal depth
        depth += 1
        seen.append((depth, find(client, sales, where=where).status_code, find(client, sales, event=3).status_code))
        depth -= 1
        return search(*arguments)

    monkeypatch.setattr(lineage_documents, "search_newest", in_the_middle)
    for _ in range(2):
        assert find(client, sales, where=where).status_code == 200
    assert seen == [(2, 503, 200), (1, 200, 200)] * 2


def test_a_column_that_the_newest_events_lack_may_be_in_earlier_ones(
    client: TestClient, sales: Sales, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types of ports change: only of a port that was searched as a whole it is sure that there is no such column."""
    monkeypatch.setattr(lineage_documents, "SEARCH", SearchLimits(seconds=0))
    found = find(client, sales, where={"order": "1"}).json()
    assert "have no column 'order'; they have product_id, quantity" in found["lacking"] and found["before"] == [EVENTS]
    last = find(client, sales, where={"order": "1"}, before=[2])
    assert last.status_code == 200 and last.json()["lacking"]


def test_what_is_asked_wrongly_is_said(client: TestClient, sales: Sales) -> None:
    wrong: list[dict[str, Any]] = [
        {},
        {"event": 1, "input_set": "small"},
        {"event": 0},
        {"event": "1"},
        {"at": "now"},
        {"where": {}},
        {"where": {"quantity": "1"}, "before": 7},
        {"where": {"quantity": "1"}, "before": [0]},
        {"where": {"quantity": "1"}, "before": [1] * 1025},
        {"else": 1},
    ]
    for wanted in wrong:
        assert find(client, sales, **wanted).status_code == 422, wanted
    for wanted, said in (
        ({"where": {"order": "1"}}, "have no column 'order'"),
        ({"where": {"product_id": "x"}}, "is no value of it"),
        ({"port": "nothing.out", "event": 1}, "has no port"),
    ):
        answer = find(client, sales, **wanted)
        assert (answer.status_code, said in answer.json()["detail"]) == (404, True)
    for query in ("port=hourly.out&event=9&direction=backward", "port=x&event=1&direction=forward"):
        assert client.get(f"/api/runs/{sales.run.uid}/lineage/step?{query}", headers=OWNER).status_code == 404
    for query in (
        "port=hourly.out&event=1&direction=up",
        "port=hourly.out&event=-1&direction=forward",
        "port=hourly.out",
    ):
        assert client.get(f"/api/runs/{sales.run.uid}/lineage/step?{query}", headers=OWNER).status_code == 422
    for query in ("operator=hourly[x]&connection=warehouse&action=1", "operator=hourly&connection=warehouse&action=9"):
        assert client.get(f"/api/runs/{sales.run.uid}/lineage/read?{query}", headers=OWNER).status_code == 404
    for query in ("dag_id=%00", "dag_id=dag&dag_run_id=a%00b", "named=%00"):
        assert client.get(f"/api/runs?{query}", headers=OWNER).status_code == 422
    for query in ("operator=hourly&connection=a%00&action=1", "operator=%00&connection=warehouse&action=1"):
        assert client.get(f"/api/runs/{sales.run.uid}/lineage/read?{query}", headers=OWNER).status_code == 422


# --- records of records --------------------------------------------------------------------------------------------------


def test_one_step_back_from_one_record(client: TestClient, store: LogStore) -> None:
    run = logged(shop(), store=store).run
    where = f"/api/runs/{run.uid}/lineage/behind?port=op.out&event=1&place="
    found = client.get(f"{where}0", headers=OWNER).json()
    assert found["reads"] == []
    assert found["ports"] == [
        {
            "port": "source.out",
            "events": 2,
            "records": 3,
            "unknown": 0,
            "doubts": [],
            "columns": ["shop", "at", "amount"],
            "rows": [
                {"event": 1, "place": 0, "source_row": 0, "values": ["a", "0", "1"]},
                {"event": 1, "place": 2, "source_row": 2, "values": ["a", "2", "3"]},
                {"event": 2, "place": 2, "source_row": 5, "values": ["a", "5", "6"]},
            ],
            "problem": None,
        }
    ]
    answer = client.get(f"{where}4", headers=OWNER)
    assert answer.status_code == 404 and "op.out 1 has 4 records; there is no record 4 among them" in answer.text
    assert client.get(f"{where}-1", headers=OWNER).status_code == 422


def test_a_step_from_a_record_is_bounded_and_nothing_is_left_out_silently(
    client: TestClient, store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = logged(shop(), store=store).run
    where = f"/api/runs/{run.uid}/lineage/behind?port=op.out&event=1&place=0"
    monkeypatch.setattr(record_lineage, "MOST_STEP_RECORDS", 9)
    answer = client.get(where, headers=OWNER)
    assert answer.status_code == 404 and "has 10 records, too many to be searched at once" in answer.text
    monkeypatch.setattr(record_lineage, "MOST_STEP_EVENTS", 1)
    answer = client.get(where, headers=OWNER)
    assert answer.status_code == 404 and "has more than 1 events, too many" in answer.text
    monkeypatch.undo()
    monkeypatch.setattr(record_lineage, "MOST_STEP_BYTES", 1_000)
    answer = client.get(where, headers=OWNER)
    assert answer.status_code == 404 and "has records of more than 1,000 bytes, too many" in answer.text
    monkeypatch.setattr(record_lineage, "MOST_STEP_EVENTS", 2)
    monkeypatch.setattr(record_lineage, "MOST_STEP_RECORDS", 10)
    monkeypatch.setattr(record_lineage, "MOST_STEP_BYTES", 2**20)
    assert client.get(where, headers=OWNER).status_code == 200, "as many as there may be"


@pytest.mark.parametrize("dependence", [Dependence(Uses.SAME), None])
def test_records_of_a_step_that_are_too_large_are_counted_and_not_opened(
    dependence: Dependence | None, client: TestClient, store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of these dependencies no record is read to find which ones count; all columns are, to show them."""
    run = logged(dependence, taken=TAKEN[:1], made=TAKEN[:1], store=store).run
    where = f"/api/runs/{run.uid}/lineage/behind?port=op.out&event=1&place=0"
    (port,) = client.get(where, headers=OWNER).json()["ports"]
    assert port["rows"] and port["problem"] is None
    monkeypatch.setattr(record_documents, "MOST_STEP_BYTES", 100)
    (refused,) = client.get(where, headers=OWNER).json()["ports"]
    assert refused == {
        **port,
        "columns": [],
        "rows": [],
        "problem": "they are too large to be opened together: ask `logio lineage ... --records`",
    }


def test_what_was_read_for_a_record(client: TestClient, sales: Sales, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hourly` says nothing of its records: all of its Input Set, and the rows of the read with their keys."""
    found = asked(client, sales, "lineage/behind", "port=hourly.out&event=2&place=0")
    assert set(found["ports"][0]["doubts"]) == {
        "hourly does not say how its records depend on those it gets (depends=...)",
        "it is not known which records of an event an Input Set of hourly has",
    }
    (read,) = found["reads"]
    assert read["by_key"] and sorted(row[0] for row in read["rows"]) == ["3", "4"]
    monkeypatch.setattr(record_documents, "MOST_STEP_RECORDS", read_rows := 100)
    assert asked(client, sales, "lineage/behind", "port=hourly.out&event=2&place=0")["reads"] == [read]
    monkeypatch.setattr(record_documents, "MOST_STEP_RECORDS", read_rows - 1)
    (read,) = asked(client, sales, "lineage/behind", "port=hourly.out&event=2&place=0")["reads"]
    assert read["problem"].startswith("too many to be searched at once")
    assert (read["rows"], read["rows_in_all"]) == ([], read_rows)
    monkeypatch.undo()
    monkeypatch.setattr(record_documents, "MOST_STEP_BYTES", 100)
    (read,) = asked(client, sales, "lineage/behind", "port=hourly.out&event=2&place=0")["reads"]
    assert read["problem"].startswith("too many to be searched at once"), "wide rows"


def test_records_that_are_too_large_are_not_opened(
    client: TestClient, sales: Sales, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = ("lineage/records", "port=ingest.out&event=3")
    size = len(encode(sold(3)))
    monkeypatch.setattr(lineage_documents, "MOST_OPENED_BYTES", size)
    assert asked(client, sales, *event)["rows"], "as many as there may be"
    monkeypatch.setattr(lineage_documents, "MOST_OPENED_BYTES", size - 1)
    refused = client.get(f"/api/runs/{sales.run.uid}/{event[0]}?{event[1]}", headers=OWNER)
    assert refused.status_code == 404
    assert f"of {size:,} bytes, too many to be opened at once: ask `logio lineage ... --records`" in refused.text


# --- records that are not there ------------------------------------------------------------------------------------------


def why_not(client: TestClient, run: Run, reader: dict[str, str] = OWNER, **wanted: Any) -> Any:
    return client.post(f"/api/runs/{run.uid}/lineage/why_not", json={"port": "hourly.out", **wanted}, headers=reader)


def last(answer: Any, name: str = "answer") -> Any:
    """The data of the last event of a stream, which is of that name."""
    assert answer.status_code == 200, answer.text
    *_, (found, data) = events(answer.text.splitlines())
    assert found == name, data
    return data


@pytest.fixture
def missing(store: LogStore) -> Run:
    """source → clean → hourly, in which records got lost in every way."""
    return written(store).run


def test_why_a_record_is_not_there_is_data_and_its_error_what_a_task_logs(client: TestClient, missing: Run) -> None:
    aside = {"shop": "aside"}
    assert why_not(client, missing, {}, where=aside).status_code == 401
    assert why_not(client, missing, STRANGER, where=aside).status_code == 403
    assert why_not(client, missing, QUIET, where=aside).status_code == 403
    assert "it is quarantined: ValueError: no price" in why_not(client, missing, where=aside).text
    silent = why_not(client, missing, SILENT, where=aside)
    assert silent.status_code == 200 and "no price" not in silent.text and HIDDEN in silent.text


def test_why_a_record_is_not_there_in_the_sentences_of_the_terminal(client: TestClient, missing: Run) -> None:
    found = last(why_not(client, missing, where={"shop": "left_out", "hour": "2024-01-01T10:00"}))
    asked_for, before = found["searches"]
    assert (found["is_there"], found["notes"]) == (False, [])
    assert asked_for["said"] == "hourly.out: no record has shop=left_out and hour=2024-01-01T10:00 (1 event searched)"
    assert before["events"] == [{"port": "clean.out", "event": 1}]
    assert before["met"] == [
        {
            "port": "clean.out",
            "event": 1,
            "said": ", Input Set 2024-01-01T10:00 of hourly: it was generated and made event 1, without such a record: "
            "hourly has left it out",
            "made": [{"port": "hourly.out", "event": 1}],
        }
    ]
    there = last(why_not(client, missing, where={"shop": "x"}))
    assert there["is_there"] and there["searches"][0]["events"] == [{"port": "hourly.out", "event": 1}]


def test_a_search_for_what_is_missing_ends_and_says_where(
    client: TestClient, missing: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage_documents, "MOST_MET", 0)
    none = last(why_not(client, missing, where={"shop": "waiting"}))["searches"][1]
    assert (none["met"], none["met_in_all"]) == ([], 1)
    monkeypatch.setattr(lineage_routes, "LIMITS", SearchLimits(seconds=0))
    found = last(why_not(client, missing, where={"shop": "waiting"}))
    assert len(found["searches"]) == 1
    assert found["notes"] == ["clean.out was not searched: the limits of this search are reached"]
    cut = last(why_not(client, missing, port="clean.out", where={"shop_id": "left_out"}))
    assert not cut["is_there"] and "only the newest 1 of 5 events searched" in cut["searches"][0]["said"]
    assert cut["notes"] == ["of clean.out only the newest events were searched: earlier ones may have such a record"]


def test_what_is_missing_is_asked_for_by_values(client: TestClient, missing: Run) -> None:
    wrong: list[dict[str, Any]] = [{}, {"where": {}}, {"where": {"shop": 1}}, {"where": {"shop": "x"}, "before": [1]}]
    for wanted in wrong:
        assert why_not(client, missing, **wanted).status_code == 422, wanted
    unknown = why_not(client, missing, port="nowhere.out", where={"order": "1"})
    assert (unknown.status_code, "'nowhere.out'" in unknown.json()["detail"]) == (404, True), (
        "before anything is searched"
    )
    refused = last(why_not(client, missing, where={"order": "1"}), "refused")
    assert (refused["status"], "have no column 'order'" in refused["detail"]) == (404, True)
