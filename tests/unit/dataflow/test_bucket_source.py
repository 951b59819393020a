"""`FolderSource` on a bucket: what is listed, in pages; what has changed, by ETags; what went wrong, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio import FolderSource, published_files
from airflow_logio.dataflow.sources import bucket_listing
from airflow_logio.dataflow.sources.arrival import Awaited
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, SourceChanged
from airflow_logio.systems.payloads import Payloads
from tests.support.faulty_store import DENIED, EXPIRED, SLOW_DOWN, FaultyStore, faulty_store, named
from tests.support.lakes import reached
from tests.support.object_store import ObjectStore
from tests.support.publishers import Publisher

pytestmark = pytest.mark.slow


@pytest.fixture(params=["objects", "proxied_objects"])
def store(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    found: ObjectStore = request.getfixturevalue(request.param)
    with reached(found):
        yield found


@pytest.fixture
def way(store: ObjectStore) -> Iterator[FaultyStore]:
    with faulty_store(store.port) as made:
        yield made


class Folder:
    """Of a new bucket, by a way on which things go wrong."""

    def __init__(self, store: ObjectStore, way: FaultyStore) -> None:
        self._client = store.client()
        self.bucket = store.new_bucket()
        query = f"scheme=http&endpoint_override=127.0.0.1:{way.port}&region=us-east-1&consistent=yes"
        self.url = f"s3://{self.bucket}/in é/orders?{query}"

    def put(self, *names: str, values: tuple[int, ...] = (1, 2), column: str = "id") -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({column: pa.array(values, pa.int64())}), sink)
        for name in names:
            self.put_bytes(name, sink.getvalue().to_pybytes())

    def put_bytes(self, name: str, data: bytes) -> None:
        self._client.put_object(Bucket=self.bucket, Key=f"in é/orders/{name}", Body=data)

    def remove(self, name: str) -> None:
        self._client.delete_object(Bucket=self.bucket, Key=f"in é/orders/{name}")


@pytest.fixture
def folder(store: ObjectStore, way: FaultyStore) -> Folder:
    return Folder(store, way)


def ranges(of: FolderSource) -> list[tuple[int, int, str]]:
    action: dict[str, Any] | None = of.action({})
    plan = {"plan": action["plan"]} if action is not None and "plan" in action else {}
    found = []
    while action is not None and action["start"] != action["end"]:
        found.append((action["start"]["files"], action["end"]["files"], action["end"]["after"]))
        action = of.next_action({}, {**action, **plan})
    return found


def test_objects_are_read_by_name_page_by_page_and_hidden_ones_are_not(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_listing, "PAGE", 2)
    folder.put("b.parquet", "a.parquet", "ö.parquet", "Z.parquet", "_x.parquet", ".d.parquet", "b.parquet._COPYING_")
    folder.put_bytes("_SUCCESS", b"")
    folder.put_bytes("_logio/x.json", b"{}")
    names = ["Z.parquet", "a.parquet", "b.parquet", "ö.parquet"]
    assert ranges(FolderSource(folder.url)) == [(at, at + 1, name) for at, name in enumerate(names)]
    assert ranges(FolderSource(folder.url, files_per_event=3)) == [(0, 3, "b.parquet"), (3, 4, "ö.parquet")]


def test_what_is_below_a_folder_of_the_folder_is_refused(folder: Folder) -> None:
    folder.put("a.parquet", "day=1/b.parquet")
    with pytest.raises(ConfigurationError, match="has the folder 'day=1', whose files a FolderSource does not read"):
        FolderSource(folder.url).action({})


def _late(folder: Folder) -> None:
    folder.put("a2.parquet")


def _removed(folder: Folder) -> None:
    folder.remove("a.parquet")


def _replaced(folder: Folder) -> None:
    """With as many bytes, which no sum shows."""
    folder.put("a.parquet", values=(7, 8))


@pytest.mark.parametrize("change", [_late, _removed, _replaced])
def test_a_change_behind_what_was_read_is_seen(folder: Folder, change: Any) -> None:
    folder.put("a.parquet", "b.parquet", "c.parquet")
    one = FolderSource(folder.url, files_per_event=2)
    action = one.action({})
    before = one.observed({}, action["start"], action["end"])
    assert list(before) == ["a.parquet", "b.parquet"]
    folder.put("b.parquet")  # put again, the same bytes are the same object
    assert one.observed({}, action["start"], action["end"]) == before
    assert one.next_action({}, action) is not None
    change(folder)
    assert one.observed({}, action["start"], action["end"]) != before
    for ask in (lambda: one.next_action({}, action), lambda: one.frame(None, {}, action["start"], action["end"])):
        with pytest.raises(SourceChanged, match=r"up to 'b\.parquet'.*it had 2 of") as caught:
            ask()
        assert ("and others of them" in str(caught.value)) is (change is _replaced)


def test_a_change_ahead_in_a_bounded_run_is_seen_before_it_is_logged(folder: Folder) -> None:
    folder.put("a.parquet", "b.parquet")
    one = FolderSource(folder.url)
    action = one.action({})
    folder.put("b.parquet", values=(7, 8))
    with pytest.raises(SourceChanged, match=r"up to 'b\.parquet', and others of them"):
        one.next_action({}, action)


def test_an_unbounded_run_waits_where_nothing_is_yet(folder: Folder) -> None:
    with pytest.raises(
        ConfigurationError, match=r"nothing is below .*: correct the path; or say unbounded=True, or wait="
    ):
        FolderSource(folder.url).action({})
    one = FolderSource(folder.url, unbounded=True)
    waiting = one.action({})
    assert waiting["start"] == waiting["end"]
    folder.put("a.parquet")
    following = one.next_action({}, waiting)
    assert following is not None
    assert following["end"]["after"] == "a.parquet"


def test_what_is_awaited_may_be_in_a_bucket(folder: Folder) -> None:
    awaited = Awaited("folder", folder.url)
    assert awaited.missing() == f"the folder {folder.url} has no file yet"
    folder.put_bytes("a.parquet", b"PAR1 and no more")
    assert "is not there as a whole" in (awaited.missing() or "")
    folder.put("a.parquet")
    assert awaited.missing() is None
    assert awaited.has_rows()


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (SLOW_DOWN, ExternalUnavailable, "cannot be listed"),
        (EXPIRED, ExternalUnavailable, "Renew the credentials"),
        (DENIED, ConfigurationError, "Give drivers credentials that may list"),
    ],
)
def test_what_goes_wrong_is_said(folder: Folder, way: FaultyStore, answer: Any, kind: Any, says: str) -> None:
    folder.put("a.parquet")
    way.fail(named("ListObjectsV2"), answer)
    with pytest.raises(kind, match=says):
        FolderSource(folder.url).action({})


def test_no_bucket_other_columns_and_what_is_no_parquet(folder: Folder) -> None:
    with pytest.raises(ConfigurationError, match="Make the bucket, or correct the path"):
        FolderSource(folder.url.replace(folder.bucket, "nowhere-at-all")).action({})
    with pytest.raises(ConfigurationError, match="say so in the URL: consistent=yes"):
        FolderSource(folder.url.replace("&consistent=yes", "")).action({})
    folder.put("a.parquet")
    folder.put("b.parquet", column="other")
    with pytest.raises(ConfigurationError, match=r"b\.parquet has the columns other int64"):
        FolderSource(folder.url).action({})
    folder.put_bytes("b.parquet", b"no parquet")
    with pytest.raises(ConfigurationError, match=r"b\.parquet is no Parquet file that can be read"):
        FolderSource(folder.url).action({})


# --- what runs have published -----------------------------------------------------------------------------------------


def test_only_what_counts_is_read_and_receipts_are_read_once(
    folder: Folder, way: FaultyStore, store: ObjectStore, tmp_path: Path
) -> None:
    query = folder.url.partition("?")[2]
    driver = Publisher(f"s3://{folder.bucket}/lake?{query}", Payloads(str(tmp_path / "payloads")), 7)
    driver.publish(driver.action(3, [(1, 1), (2, 1), (3, 0)]), driver.action(4, [(4, 1)]))
    stray = f"lake/orders/store=1/run8.save.{3:012}.00000.parquet"
    store.client().put_object(Bucket=folder.bucket, Key=stray, Body=b"no receipt names it")
    day = f"s3://{folder.bucket}/lake/orders/store=1?{query}"
    one = FolderSource(day, published=True)
    first = one.action({})
    names = [Path(file.path).name for file in published_files(day)]
    assert (len(names), first["plan"]["limit"]["files"]) == (2, 2)
    way.forget()
    before = one.observed({}, first["start"], first["plan"]["limit"])
    assert sorted(before) == sorted(names)
    assert way.counted() == {"ListObjectsV2": 2}, "no receipt is read again"
    store.client().delete_object(Bucket=folder.bucket, Key=f"lake/orders/store=1/{names[0]}")
    with pytest.raises(SourceChanged, match="counts, and is not there"):
        one.next_action({}, first)


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_what_an_event_of_a_folder_costs(folder: Folder, way: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a listing for each thousand objects (ten here, of 40), and one look at each file's columns."""
    monkeypatch.setattr(bucket_listing, "PAGE", 10)
    folder.put(*(f"{number:03}.parquet" for number in range(40)))
    one = FolderSource(folder.url, files_per_event=4)
    way.forget()
    action = one.action({})
    assert way.counted()["ListObjectsV2"] == 3 * 4, "first, last and the first range look at all pages"
    way.forget()
    following = one.next_action({}, {**action, "end": {**action["end"]}})
    assert following is not None
    assert way.counted() == {"ListObjectsV2": 4}, "one look at all pages"
    way.forget()
    one.observed({}, following["start"], following["end"])
    assert way.counted() == {"ListObjectsV2": 1}, "a page that begins with the range"
    way.forget()
    one._range_of(one._at(folder.url), following["start"], following["end"])
    assert way.counted() == {"ListObjectsV2": 2}, "and one with the first file"
