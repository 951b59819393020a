"""Records in the payload store on the page: they are shown, or it is said what keeps this server from them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_logio.errors import ConfigurationError, LogUnavailable
from airflow_logio.lineage.lineage_records import Elsewhere
from airflow_logio.store.port import LogStore
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.systems.payloads import Payloads, dataset
from airflow_logio.ui.looks import LogSource
from airflow_logio.ui.web_app import create_app
from tests.support.page_readers import Readers, Retries
from tests.support.stored_bodies import store_body, store_dataset
from tests.unit.lineage.test_records import EVENTS, PRODUCTS, Sales, filled, sold
from tests.unit.ui.conftest import OWNER

BODY, DATASET = 3, 4
RECORDS = "lineage/records?port=ingest.out&event={event}"
BEHIND = "lineage/behind?port=hourly.out&event=2&place=0"


class Stored:
    """Events 3 and 4 of `ingest.out` are in a payload store: a body, and a dataset."""

    def __init__(self, store: LogStore, root: Path, readers: Readers) -> None:
        assert isinstance(store, SqlLogStore)
        self.log, self.readers = store, readers
        self.sales: Sales = filled(store)
        self.root = root
        payloads = Payloads(str(root))
        self.body = root / store_body(store, self.sales.run, "ingest.out", BODY, sold(BODY), payloads)
        self.file = root / store_dataset(store, self.sales.run, "ingest.out", DATASET, sold(DATASET), payloads)

    def client(self, payloads: Callable[[], Elsewhere | None] | None = None, *, owner: bool = False) -> TestClient:
        opening = payloads or (lambda: Payloads(str(self.root)))
        source = LogSource(lambda: self.log, "logio_default")
        retrying = Retries().retrying()
        return TestClient(create_app(source, self.readers, retrying, payloads=opening, is_of_one_person=owner))

    def asked(self, client: TestClient, query: str) -> Any:
        return client.get(f"/api/runs/{self.sales.run.uid}/{query}", headers=OWNER)


@pytest.fixture
def stored(store: LogStore, tmp_path: Path, readers: Readers) -> Stored:
    return Stored(store, tmp_path / "payloads", readers)


def test_records_in_the_payload_store_are_shown_and_searched(stored: Stored) -> None:
    client = stored.client()
    for event in (BODY, DATASET):
        found = stored.asked(client, RECORDS.format(event=event)).json()
        assert found["rows"] == [[str(event), "1"], [str(event + 1000), "2"]]
    (port,) = stored.asked(client, BEHIND).json()["ports"]
    assert [row["values"][0] for row in port["rows"]] == ["3", "1003", "4", "1004"]
    where = {"port": "ingest.out", "where": {"product_id": "1004"}}
    found = client.post(f"/api/runs/{stored.sales.run.uid}/lineage/find", json=where, headers=OWNER).json()
    assert [one["event"] for one in found["events"]] == [DATASET]


def refused(stored: Stored, client: TestClient, status: int, event: int, *queries: str) -> str:
    """The one sentence that all of these get."""
    answers = [stored.asked(client, query) for query in (RECORDS.format(event=event), *queries)]
    assert {answer.status_code for answer in answers} == {status}
    said = {str(answer.json()["detail"]) for answer in answers}
    assert len(said) == 1, said
    return said.pop()


def test_a_server_without_payload_store_says_what_to_configure(
    stored: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    client = stored.client(lambda: None)
    said = refused(stored, client, 503, BODY, BEHIND)
    assert said == (
        "the records of ingest.out 3 are in the payload store, which this server does not know: name it as `payloads` in the "
        "extra of the connection with which the page opens the log"
    )
    assert stored.asked(client, RECORDS.format(event=5)).status_code == 200, "those in the log are shown"
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_why_it_cannot_be_opened_or_reached_is_for_the_log_of_the_server(
    stored: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(error: Exception) -> Callable[[], Elsewhere | None]:
        def opening() -> Elsewhere | None:
            raise error

        return opening

    for error, said in (
        (ConfigurationError("/secret is no folder"), "which this server cannot open: look at `payloads`"),
        (PermissionError("/secret"), "which this server cannot open: look at `payloads`"),
        (ImportError("no s3fs for /secret"), "which this server cannot open: look at `payloads`"),
        (LogUnavailable("/secret hangs"), "which does not answer this server: try again in a moment"),
    ):
        caplog.clear()
        answer = refused(stored, stored.client(refuses(error)), 503, BODY)
        assert said in answer and "secret" not in answer and answer.endswith("is in the log of this server"), answer
        assert [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR] == [
            f"The page of LOG.io cannot read the payload store: {error}"
        ]
        assert f"({error})" in refused(stored, stored.client(refuses(error), owner=True), 503, BODY)


@pytest.mark.parametrize("event", [BODY, DATASET])
@pytest.mark.parametrize("is_there", [False, True])
def test_missing_and_damaged_files_name_the_event_and_no_path(
    stored: Stored, caplog: pytest.LogCaptureFixture, event: int, *, is_there: bool
) -> None:
    file = stored.body if event == BODY else stored.file
    if is_there:
        data = bytearray(file.read_bytes())
        data[-9] ^= 0xFF
        file.write_bytes(data)
    else:
        file.unlink()
    answer = refused(stored, stored.client(), 500, event)
    assert answer.startswith(
        f"the records of ingest.out {event} are missing in the payload store that this server knows"
    )
    assert str(stored.root) not in answer and file.name not in answer and file.name in caplog.text
    assert file.name in refused(stored, stored.client(owner=True), 500, event)


def test_a_search_passes_over_what_is_missing_and_says_so(stored: Stored) -> None:
    stored.body.unlink()
    client = stored.client()
    where = {"port": "ingest.out", "where": {"quantity": "2"}}
    found = client.post(f"/api/runs/{stored.sales.run.uid}/lineage/find", json=where, headers=OWNER).json()
    others = [number for number in range(EVENTS, 0, -1) if number != BODY]
    assert [one["event"] for one in found["events"]] == others and found["before"] is None
    assert (found["damaged"], found["searched"], found["sent"]) == (1, EVENTS - 1, EVENTS)
    assert "the records of event 3 of ingest.out are missing in the payload store" in found["damaged_first"]
    assert str(stored.root) not in found["damaged_first"]


def test_a_dataset_that_is_too_large_for_a_table_is_no_trouble_of_the_store(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "MAX_TABLE_BYTES", 0)
    payloads = Payloads(str(stored.root))
    assert isinstance(stored.log, SqlLogStore)
    store_dataset(stored.log, stored.sales.run, "hourly.read:warehouse", 1, PRODUCTS, payloads)
    found = stored.asked(stored.client(), BEHIND).json()
    assert found["ports"][0]["records"] == 4, "the records of events need no rows of a read"
    (read,) = found["reads"]
    assert "too large to be taken as one table" in read["problem"] and str(stored.root) not in read["problem"]
    assert (read["rows"], read["rows_in_all"], read["by_key"]) == ([], PRODUCTS.num_rows, False)
