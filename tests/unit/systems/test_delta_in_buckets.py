"""Delta tables in an object store: commits are conditional puts, and a store that does not refuse a second one is refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import deltalake
import pyarrow as pa
import pytest
from pyarrow import fs

from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, Fenced
from airflow_logio.systems.delta import table_place
from tests.support.delta_tables import COLUMNS, DeltaRun, orders, rows_of
from tests.support.object_store import ObjectStore
from tests.support.relay import Relay, relay
from tests.support.waiting import eventually

_REQUEST = re.compile(rb"^(GET|PUT|POST|HEAD|DELETE) /(\S*)", re.MULTILINE)
APPENDING = DeltaWriter("lake", "orders", COLUMNS, partition_by=["day"], on_new_run="append")


@pytest.fixture
def way(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    """The way to the object store. Every table is asked for anew whether its store refuses a second put."""
    for name, value in objects.variables.items():
        if name != "AWS_ENDPOINT_URL":
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(table_place, "_PROVEN", set())
    port = urlsplit(objects.endpoint).port
    assert port is not None
    with relay(port) as found:
        yield found


def url_by(way: Relay, objects: ObjectStore) -> str:
    return f"s3://{objects.new_bucket()}/lake?scheme=http&endpoint_override=127.0.0.1:{way.port}&region=us-east-1"


def brought(objects: ObjectStore, url: str, folder: Path) -> str:
    """The table in a folder, for the reader of the tests."""
    fs.copy_files(f"{urlsplit(url).netloc}/lake/orders", str(folder), source_filesystem=objects.files())
    return str(folder)


def test_a_commit_whose_answer_is_lost_is_found_and_a_replaced_driver_refused(
    way: Relay, objects: ObjectStore, tmp_path: Path
) -> None:
    """The client sends the put again, and hears that the version is there: its own."""
    url = url_by(way, objects)
    run = DeltaRun(APPENDING, url)
    run.begin(orders(1))
    way.unanswered = re.compile(rb"PUT /\S*/_delta_log/0+2\.json")
    run.write(3, orders(2))
    assert not vars(way)["unanswered"], "no such put was seen"
    DeltaRun(APPENDING, url, token=2).write(4, pa.concat_tables([orders(3), orders(4, day="2026-03-02")]))
    with pytest.raises(Fenced):
        run.write(5, orders(5))
    folder = brought(objects, url, tmp_path / "orders")
    assert rows_of(folder, "id") == [(1,), (2,), (3,), (4,)]
    assert not [path for path in Path(folder).rglob("*probe*")]


def test_what_a_write_action_asks_of_the_store_is_counted(way: Relay, objects: ObjectStore) -> None:
    """As docs/how-to/lakes.md has it: requests cost money."""
    run = DeltaRun(APPENDING, url_by(way, objects))
    run.begin(orders(1))
    asked: Counter[str] = Counter()

    def count(data: bytes) -> bytes:
        asked.update(found[1].decode() for found in _REQUEST.finditer(data))
        return data

    way.edit = count
    run.write(3, orders(2))
    assert asked["PUT"] == 2, "a data file, and the commit"
    assert sum(asked.values()) <= 45, asked
    one = asked.copy()
    asked.clear()
    run.write(4, pa.concat_tables([orders(number, day=f"2026-03-{number:02}") for number in range(1, 11)]))
    more = asked - one
    assert (more["PUT"], more["HEAD"]) == (9, 18), (
        "nine files more: each is put, and looked for before and after the commit"
    )
    assert more["GET"] <= 10, "the log has one commit more, which is read at each opening"


def test_a_store_that_puts_a_second_file_over_a_version_is_refused(way: Relay, objects: ObjectStore) -> None:
    """It is asked before anything is written where the table is to be."""
    way.edit = lambda data: data.replace(b"if-none-match", b"x-none-match1")
    url = url_by(way, objects)
    with pytest.raises(ConfigurationError, match="puts a second file over one that is there"):
        DeltaRun(APPENDING, url).begin(orders(1))
    left = objects.files().get_file_info(fs.FileSelector(urlsplit(url).netloc, recursive=True))
    assert [info.path for info in left if info.is_file] == []


def test_without_conditional_puts_a_commit_would_be_lost(way: Relay, objects: ObjectStore, tmp_path: Path) -> None:
    """Two drivers commit one version, and both hear that it is theirs."""
    url = url_by(way, objects)
    DeltaRun(APPENDING, url).begin(orders(1))
    way.edit = lambda data: data.replace(b"if-none-match", b"x-none-match1")
    options = dict(table_place._options(url))
    uri = f"{url.partition('?')[0]}/orders"
    tables = [deltalake.DeltaTable(uri, storage_options=options) for _ in range(2)]
    properties = deltalake.CommitProperties(max_commit_retries=0)
    way.slow = re.compile(rb"PUT /\S*/_delta_log/0+2\.json")
    with ThreadPoolExecutor(2) as pool:
        writing = [
            pool.submit(deltalake.write_deltalake, table, orders(number), mode="append", commit_properties=properties)
            for number, table in enumerate(tables, 2)
        ]
        eventually(lambda: way.slowed == 2, what="both have looked, and are about to put")
        way.slow = None
        way.quick.release(2)
        assert [one.result() for one in writing] == [None, None]
    assert len(rows_of(brought(objects, url, tmp_path / "orders"), "id")) == 2, "one of three rows is lost"


def test_a_store_that_does_not_answer_is_unavailable(way: Relay, objects: ObjectStore) -> None:
    url = url_by(way, objects)
    run = DeltaRun(APPENDING, url)
    run.begin(orders(1))
    way.cut = re.compile(rb"_delta_log")
    with pytest.raises(ExternalUnavailable, match="'lake'"):
        run.write(3, orders(2))
    way.cut = None
    run.write(3, orders(2))


def test_variables_that_make_commits_weaker_are_refused(
    way: Relay, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(ConfigurationError, match="AWS_S3_ALLOW_UNSAFE_RENAME is set"):
        DeltaRun(APPENDING, url_by(way, objects)).open()
