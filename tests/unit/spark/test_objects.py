"""Publishing into an object store: whole objects, the same whichever process puts them, and errors that say what to do."""

from __future__ import annotations

import errno
import gc
import re
import subprocess
import sys
import threading
import urllib.request
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from airflow_logio import DatasetWriter, FolderSource, ParquetWriter, Pipeline, published_files
from airflow_logio.dataflow.writers import folder_files
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.dataflow.writers.arrow_files import is_lasting, next_step, whole_object
from airflow_logio.dataflow.writers.folder_files import ObjectFiles, open_bucket
from airflow_logio.dataflow.writers.published_folder import visible_files
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogInconsistent
from airflow_logio.protocol.external_rules import Owner
from airflow_logio.spark import object_place
from airflow_logio.spark.folder_claims import FolderClaim
from airflow_logio.spark.object_place import ObjectPlace
from airflow_logio.spark.published_places import Copy
from airflow_logio.spark.publishing import check_not_replaced, inspect_folders
from airflow_logio.systems.connections import WriterIdentity
from airflow_logio.systems.payloads import Payloads
from tests.support.datasets import dataset_of
from tests.support.lakes import BucketLake, reached
from tests.support.object_store import ObjectStore
from tests.support.publishers import Publisher
from tests.support.relay import Relay, relay

pytestmark = pytest.mark.slow

ROWS = [(number, number % 2) for number in range(100)]
WRITER = DatasetWriter("lake", "orders", partition_by=("store",))
PART = 10 * 2**20
"""Arrow puts what is larger in several parts."""


class Bucket(BucketLake):
    """And a driver that publishes into it."""

    def __init__(self, objects: ObjectStore, folder: Path) -> None:
        super().__init__(objects, objects.new_bucket())
        self.payloads = folder / "payloads"
        self.driver = self.driven(self.url)

    def driven(self, url: str) -> Publisher:
        return Publisher(url, Payloads(str(self.payloads)), 7, token=2)

    def action(self) -> WriteAction:
        return self.driver.action(3, ROWS[:50], ROWS[50:])

    def through(self, way: Relay) -> str:
        """Its URL by another way."""
        return f"s3://{self.root}?scheme=http&endpoint_override=127.0.0.1:{way.port}"

    def put(self, name: str, data: bytes = b"") -> None:
        super().put(f"orders/{name}", data)


def put_by_task(url: str, row: dict[str, object]) -> dict[str, str]:
    """The line of a task that has one file to put."""
    lines: list[dict[str, str]] = pa.Table.from_batches(
        object_place.put("lake", url, [pa.RecordBatch.from_pylist([row])])
    ).to_pylist()
    return lines[0]


@pytest.fixture
def bucket(objects: ObjectStore, tmp_path: Path) -> Iterator[Bucket]:
    with reached(objects):
        yield Bucket(objects, tmp_path)


@pytest.fixture
def way(objects: ObjectStore) -> Iterator[Relay]:
    port = urlsplit(objects.endpoint).port
    assert port is not None
    with relay(port) as made:
        yield made


# --- what is there ----------------------------------------------------------------------------------------------------


def test_readers_find_the_records_and_nothing_else(bucket: Bucket) -> None:
    bucket.driver.publish(bucket.action())
    assert bucket.listed() == bucket.counted() == sorted(ROWS)
    stem = "orders/_logio/run7.save.000000000003.json"
    assert [name for name in bucket.names() if "/store=" not in name] == [
        stem,
        "orders/_logio/runs/00000000007000000.run7.joins",
    ]
    (first, *_) = published_files(f"s3://{bucket.root}/orders")
    assert (first.run_uid, first.operator, first.number) == ("run7", "save", 3)
    with bucket.files.open_input_file(first.path.removeprefix("s3://")) as file:
        assert pq.ParquetFile(file).metadata.num_rows == first.records


def test_doing_it_again_leaves_objects_alone_and_mends_what_is_no_copy(bucket: Bucket, way: Relay) -> None:
    """Who reads an object would notice that it was put again: with another ETag, for example."""
    action = bucket.action()
    bucket.driver.publish(action)
    before = bucket.contents()
    way.cut = re.compile(rb"(PUT|POST) \S+\.parquet")
    bucket.driven(bucket.through(way)).publish(action)
    assert (bucket.contents(), way.cuts) == (before, 0)
    names = [name.removeprefix("orders/") for name in before if name.endswith(".parquet")]
    bucket.put(names[0], b"half of a file")
    bucket.put(names[1], b"x" * len(before[f"orders/{names[1]}"]))  # of the same size
    bucket.remove(f"orders/{names[2]}")
    bucket.driver.publish(action)
    assert bucket.contents() == before


def test_an_action_without_records_leaves_a_receipt_only(bucket: Bucket) -> None:
    epoch = Payloads(str(bucket.payloads)).epoch("run7", "g", 1, 0)
    made = dataset_of(epoch, pa.table({"id": [1], "store": [1]}).slice(1))
    bucket.driver.publish(WriteAction("run7", "save", "lake", 3, 1, pa.table({}), dataset=str(made.reference)))
    assert [name for name in bucket.names() if name.endswith(".json")] == ["orders/_logio/run7.save.000000000003.json"]
    assert bucket.counted() == []


def test_the_whole_bucket_may_be_the_folder(objects: ObjectStore, tmp_path: Path) -> None:
    with reached(objects):
        one = Bucket(objects, tmp_path)
        one.driven(f"s3://{one.root.partition('/')[0]}").publish(one.action())
        assert len(published_files(f"s3://{one.root.partition('/')[0]}/orders")) == 4


def test_names_of_partitions_are_kept_as_they_are(bucket: Bucket, tmp_path: Path) -> None:
    """Spark and Hive write ``%2F`` for a slash in a value: no URL is made of it, or read from it."""
    (tmp_path / "file").write_bytes(b"whole")
    name = "store=a%2Fb é+c/1.parquet"
    row = {"source": str(tmp_path / "file"), "target": f"{bucket.root}/orders/{name}", "size": 5, "footer": 0}
    assert put_by_task(bucket.url, row)["error"] == ""
    files = ObjectFiles.of("it", bucket.url, "orders")
    assert files.names("store=a%2Fb é+c") == ["1.parquet"]
    assert list(visible_files(files)) == [(name, None)]
    assert files.read(name) == b"whole"
    assert files.name(name) == f"s3://{bucket.root}/orders/{name}"


def test_receipts_are_read_several_at_once_and_come_in_their_order(bucket: Bucket) -> None:
    together = threading.Barrier(3)

    class Meeting(ObjectFiles):
        """Three reads meet, or none gets anything."""

        def read(self, path: str) -> bytes:
            together.wait(60)
            return super().read(path)

    files = Meeting.of("it", bucket.url, "orders")
    names = [f"_logio/{number}.json" for number in range(9)]
    for name in names[:4] + names[5:]:
        with files.system.open_output_stream(files.key(name)) as stream:
            stream.write(name.encode())
    assert list(files.read_each(names)) == [(name, name.encode()) for name in names if name != names[4]]


def test_partitions_are_looked_at_side_by_side(bucket: Bucket) -> None:
    """Thousands of round trips, one after the other, would take minutes."""
    partitions = [f"store={store}" for store in range(6)]
    together, meetings = threading.Barrier(len(partitions)), list[str]()

    class Meeting(ObjectFiles):
        """Looks at all partitions meet, or none is answered."""

        def walk(self, below: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
            together.wait(60)
            meetings.append("walk")
            return super().walk(below)

        def names(self, folder: str) -> list[str]:
            if folder in partitions:
                together.wait(60)
                meetings.append("names")
            return super().names(folder)

    writer = DatasetWriter("lake", "orders", partition_by=("store",), on_new_run="overwrite")
    for run in (1, 2):
        place = ObjectPlace("lake", bucket.url, "orders")
        place.files = Meeting.of("it", bucket.url, "orders")
        claim = FolderClaim(place, writer, Owner(f"run{run}", float(run)))
        claim.put()
        for partition in partitions:
            bucket.put(f"{partition}/run{run}.save.000000000001.00000.parquet")
    claim.check_partitions(partitions)
    claim.clear(partitions)
    assert Counter(meetings) == {"walk": 6, "names": 6}
    left = {path for path, _ in visible_files(ObjectFiles.of("it", bucket.url, "orders"))}
    assert left == {f"{partition}/run2.save.000000000001.00000.parquet" for partition in partitions}
    claim.check_partitions(partitions)
    claim.clear(partitions)
    assert Counter(meetings) == {"walk": 6, "names": 6}, "what was looked at is not looked at again"


def test_an_object_that_is_removed_between_the_requests_of_a_read_is_not_there(bucket: Bucket) -> None:
    """Arrow asks for its size, and then for its bytes; of the second it says only what S3 says."""
    files = ObjectFiles.of("it", bucket.url, "orders")
    with files.system.open_output_stream(files.key("_logio/1.json")) as stream:
        stream.write(b"{}")

    class Removed:
        """Of a store, after the first request."""

        def open_input_stream(self, key: str) -> Any:
            opened = files.system.open_input_file(key)
            opened.size()
            files.system.delete_file(key)
            return opened

        def get_file_info(self, key: str) -> Any:
            return files.system.get_file_info(key)

    racing = ObjectFiles(Removed(), files.root)
    with pytest.raises(FileNotFoundError, match=r"s3://.*/orders/_logio/1\.json"):
        racing.read("_logio/1.json")


def test_an_object_that_s3_would_not_take_is_refused_before_it_is_put(bucket: Bucket) -> None:
    place = ObjectPlace("lake", bucket.url, "orders")
    copies = [Copy("payloads/large.parquet", f"{bucket.root}/orders/1.parquet", 10_000 * 10 * 2**20 + 1, 0)]
    with pytest.raises(ConfigurationError, match=r"payloads/large\.parquet has 104,857,600,001 bytes.* repartition"):
        place._check_keys(copies)


@pytest.mark.parametrize("folder", ["größe", "my orders", "a%2Fb"])
def test_a_folder_of_any_name_is_found_by_its_name(bucket: Bucket, folder: str) -> None:
    """The connection's path is quoted, or not, as Airflow makes URLs; a reader gives what the writer was given."""
    driver = Publisher(bucket.url, Payloads(str(bucket.payloads)), 7, folder=folder)
    action = driver.action(3, ROWS[:50], ROWS[50:])
    for path in ("é x", "%C3%A9%20x"):
        driver.publish(action, url=f"{bucket.url}/{path}")
    found = published_files(f"s3://{bucket.root}/é x/{folder}")
    there = [f"s3://{bucket.root}/{name}" for name in bucket.names() if name.endswith(".parquet")]
    assert sorted(file.path for file in found) == there
    assert len(found) == 4


@pytest.mark.parametrize("folder", ["what?", "no#1"])
def test_a_folder_that_no_url_can_name_is_refused(bucket: Bucket, folder: str) -> None:
    driver = Publisher(bucket.url, Payloads(str(bucket.payloads)), 7, folder=folder)
    with pytest.raises(ConfigurationError, match=r"connection 'lake', folder '.*': no reader could ask for a name"):
        driver.publish(driver.action(3, ROWS))
    assert bucket.names() == []


def test_a_small_object_is_one_request(bucket: Bucket, way: Relay) -> None:
    """Larger ones are begun by a POST."""
    way.cut = re.compile(rb"POST ")
    bucket.driven(bucket.through(way)).publish(bucket.action())
    assert (bucket.counted(), way.cuts) == (sorted(ROWS), 0)


@pytest.mark.parametrize(
    ("url", "knows", "asked"),
    [
        ("s3://b/l", True, "s3://b/l?allow_delayed_open=true"),
        ("s3://b/l?region=x", True, "s3://b/l?region=x&allow_delayed_open=true"),
        ("s3://b/l?allow_delayed_open=false", True, "s3://b/l?allow_delayed_open=false"),
        ("s3://b/l?region=x", False, "s3://b/l?region=x"),
        ("s3://b/l", False, "s3://b/l"),
    ],
)
def test_what_arrow_is_asked_for(url: str, knows: bool, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow 18 refuses a parameter that it does not know."""

    class Arrow:
        @staticmethod
        def from_uri(given: str) -> tuple[str, str]:
            if "delayed" in given and not knows:
                raise pa.ArrowInvalid("Unexpected query parameter in S3 URI")
            return given, ""

    monkeypatch.setattr(fs, "FileSystem", Arrow)
    monkeypatch.setattr(folder_files, "_takes_delayed_open", folder_files._takes_delayed_open.__wrapped__)
    assert open_bucket("it", url)[0] == asked


def test_tasks_of_a_process_share_a_client(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def opens(named: str, url: str) -> tuple[object, str]:
        made.append((named, url))
        return open_bucket(named, url)

    monkeypatch.setattr(object_place, "open_bucket", opens)
    for name in "ab":
        (tmp_path / name).write_bytes(b"whole")
        row = {"source": str(tmp_path / name), "target": f"{bucket.root}/{name}", "size": 5, "footer": 0}
        assert put_by_task(bucket.url, row)["error"] == ""
    assert made == [("connection 'lake'", bucket.url)]


def test_objects_are_removed_side_by_side(bucket: Bucket) -> None:
    """Each of them is three requests, which wait for nothing but the store."""
    place = ObjectPlace("lake", bucket.url, "orders")
    both, gone = threading.Barrier(2, timeout=30), []

    class System:
        @staticmethod
        def delete_file(key: str) -> None:
            both.wait()
            gone.append(key)
            if key.endswith("b"):
                raise FileNotFoundError

    place.files.system = System()
    place.remove(iter(["a", "b"]))
    assert sorted(gone) == [f"{bucket.root}/orders/a", f"{bucket.root}/orders/b"]


# --- an upload that ends early ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1_000, 2 * PART])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_is_not_whole_is_never_seen(bucket: Bucket, size: int, error: type[BaseException]) -> None:
    """Arrow completes an upload when its stream is closed, and closes it when it is held no more."""

    def put() -> None:
        with whole_object(bucket.files, f"{bucket.root}/half") as stream:
            stream.write(b"x" * size)
            raise error

    with pytest.raises(error):
        put()
    assert bucket.names() == []


def test_a_process_that_ends_after_an_error_completes_nothing(bucket: Bucket) -> None:
    program = f"""
from airflow_logio.dataflow.writers.arrow_files import opened, whole_object
system, path = opened("it", "s3://{bucket.root}")
with whole_object(system, path + "/half") as stream:
    stream.write(b"x" * 1_000)
    raise OSError
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "OSError")
    assert bucket.names() == []


def test_an_upload_whose_end_fails_is_not_completed_later(bucket: Bucket, way: Relay) -> None:
    """Arrow keeps the error: the stream may be collected."""
    system, root = open_bucket("it", bucket.through(way))
    with pytest.raises(OSError, match="NETWORK_CONNECTION") as caught, whole_object(system, f"{root}/small") as stream:
        stream.write(b"x" * 1_000)
        way.cut = re.compile(rb"PUT ")
    way.cut = None
    del stream, caught
    gc.collect()
    assert bucket.names() == []


@pytest.mark.parametrize("fails", [True, False])
def test_a_stream_is_kept_for_ever_only_where_its_block_fails(fails: bool) -> None:
    class Stream:
        def close(self) -> None:
            raise OSError

    class System:
        @staticmethod
        def open_output_stream(_: str) -> Stream:
            return Stream()

    def put() -> weakref.ref[Stream]:
        with pytest.raises(OSError), whole_object(System, "a") as stream:
            made = weakref.ref(stream)
            if fails:
                raise OSError
        return made

    made = put()
    gc.collect()
    assert (made() is not None) is fails


def test_a_writer_of_single_files_leaves_no_half_of_one(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: pa.Table, stream: pa.NativeFile, **__: object) -> None:
        stream.write(b"half")
        raise OSError("no memory left")

    writer, action = ParquetWriter("lake"), WriteAction("run1", "save", "lake", 1, 1, pa.table({"a": [1]}))
    with writer.connect(f"s3://{bucket.root}") as place:
        monkeypatch.setattr(pq, "write_table", fails)
        with pytest.raises(ExternalUnavailable, match="no memory left"):
            writer.write(place, action)
        assert bucket.names() == []
        monkeypatch.undo()
        writer.write(place, action)
    assert bucket.names() == ["run1/save/000000000001.parquet"]


def test_a_file_that_is_not_what_its_manifest_says_is_not_put(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a stream opened, which could not be closed."""
    action = bucket.action()
    next(bucket.payloads.rglob("*.parquet")).unlink()
    with pytest.raises(LogInconsistent, match="write action 3 of 'save' has lost a file"):
        bucket.driver.publish(action)
    (tmp_path / "short").write_bytes(b"short")
    row = {"source": str(tmp_path / "short"), "target": f"{bucket.root}/short", "size": 6, "footer": 0}
    monkeypatch.delattr(object_place, "whole_object")
    line = put_by_task(bucket.url, row)
    assert line["error"] == "ConfigurationError"
    assert (
        "has 5 bytes, its manifest says 6: driver and executors need the payload store under one path" in line["said"]
    )
    assert not [name for name in bucket.names() if "_logio" not in name]


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_an_upload_that_is_cut_is_waited_for(bucket: Bucket, way: Relay, tmp_path: Path) -> None:
    """One of its parts does not arrive; then it does."""
    source = tmp_path / "large"
    source.write_bytes(b"x" * (2 * PART + 1))
    url = bucket.through(way)
    row = {"source": str(source), "target": f"{bucket.root}/large", "size": source.stat().st_size, "footer": 0}

    way.cut = re.compile(rb"PUT \S+partNumber=2&")
    line = put_by_task(url, row)
    assert way.cuts > 0
    assert line["error"] == "ExternalUnavailable"
    assert line["said"].startswith(f"connection 'lake': an executor cannot put {source} into the object store: ")
    assert bucket.names() == []
    way.cut = None
    assert put_by_task(url, row)["error"] == ""
    assert len(bucket.get("large")) == row["size"]


def test_a_store_that_is_away_is_waited_for(bucket: Bucket, way: Relay) -> None:
    """It goes when the first objects are there, and comes back."""
    action = bucket.action()
    driver = bucket.driven(bucket.through(way))
    way.cut = re.compile(rb"(POST|PUT) \S+save\S+json")
    with pytest.raises(ExternalUnavailable, match=r"connection 'lake': .*AWS Error NETWORK_CONNECTION"):
        driver.publish(action)
    assert bucket.counted() == [], "no receipt"
    way.cut = None
    driver.publish(action)
    assert bucket.counted() == bucket.listed() == sorted(ROWS)


def test_a_bucket_that_is_not_there_is_not_made(bucket: Bucket) -> None:
    url = "s3://nowhere/lake?consistent=yes"
    says = r"connection 'lake': .*NO_SUCH_BUCKET.*\. Make the bucket, or correct the URL of the connection"
    with pytest.raises(ConfigurationError, match=says):
        bucket.driven(url).publish(bucket.action())
    with pytest.raises(ConfigurationError, match=says):
        check_not_replaced(WRITER, url, WriterIdentity("run7", 1, 7.0))
    pipeline = Pipeline("p", connections=["lake"])
    pipeline.writer("save", WRITER, pipeline.source("raw", FolderSource("/orders")))
    (found,) = inspect_folders(pipeline, {"lake": url})
    assert found.problem is not None
    assert re.search(says, found.problem)
    with pytest.raises(OSError, match="NO_SUCH_BUCKET"):
        published_files(url)


@pytest.fixture
def lock(objects: ObjectStore) -> Iterator[Callable[[], None]]:
    """From then on no credentials are good enough."""

    def allowed(actions: str) -> None:
        about = {"Content-Type": "text/plain"}
        asked = urllib.request.Request(
            f"{objects.endpoint}/moto-api/reset-auth", data=actions.encode(), headers=about, method="POST"
        )
        urllib.request.urlopen(asked).close()

    yield lambda: allowed("0")
    allowed("inf")


def test_credentials_that_are_refused_are_said_and_not_shown(bucket: Bucket, lock: Callable[[], None]) -> None:
    action = bucket.action()
    lock()
    with pytest.raises(
        ConfigurationError, match=r"connection 'lake': .*INVALID_ACCESS_KEY_ID.*\. Give drivers"
    ) as caught:
        bucket.driver.publish(action)
    assert "may list the bucket, and read, write and delete objects there" in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_what_an_executor_is_refused_is_said(bucket: Bucket, lock: Callable[[], None]) -> None:
    bucket.driver.before_copies = lock
    with pytest.raises(
        ConfigurationError,
        match=r"an executor cannot put /.* into the object store: .*INVALID_ACCESS_KEY_ID.*\. Give drivers and executors",
    ):
        bucket.driver.publish(bucket.action())


def test_an_executor_that_puts_objects_where_nobody_looks_is_noticed(bucket: Bucket) -> None:
    bucket.driver.is_shared = False
    with pytest.raises(ConfigurationError, match="and the driver does not see them; driver and all executors need"):
        bucket.driver.publish(bucket.action())
    assert not [name for name in bucket.names() if name.endswith(".json")]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://anna:gehe!m@bucket/lake", "has a user, a password or a port in its URL"),
        ("s3://anna@bucket/lake", "has a user, a password or a port in its URL"),
        ("s3://anna:gehe!m/x@bucket/lake", "has a user, a password or a port in its URL"),
        ("s3://bucket/lake?session_token=gehe!m", "has other parameters in its URL than region, scheme"),
        ("s3://bucket/lake?gehe!m", "has other parameters in its URL than region, scheme"),
        ("s3://bucket/lake?endpoint_override=user:gehe!m@minio:9000", "has @ in a parameter of its URL"),
        ("s3://bucket/lake?endpoint_override=user:gehe!m%40minio:9000", "has @ in a parameter of its URL"),
        ("s3://bucket/lake?endpoint_override=http://u:gehe!m@h:1", "has @ in a parameter of its URL"),
        ("s3://bucket/lake#gehe!m", "has # or an empty name in its URL"),
        ("s3://bucket/lake?region=x#secret_key=gehe!m", "has # or an empty name in its URL"),
        ("s3://bucket//lake", "has # or an empty name in its URL"),
        ("s3://bucket/lake//orders", "has # or an empty name in its URL"),
        ("s3://[gehe!m/lake", "is no URL of a bucket"),
        ("s3://", "is no URL of a bucket"),
        ("s3:///lake", "is no URL of a bucket"),
    ],
)
def test_a_url_in_which_a_secret_may_be_is_refused(bucket: Bucket, url: str, says: str) -> None:
    """It would be in the plans of jobs."""
    action = replace(bucket.action(), dataset="none")
    for ask in (
        lambda: bucket.driven(url).publish(action),
        lambda: check_not_replaced(WRITER, url, WriterIdentity("run7", 1, 7.0)),
        lambda: published_files(url),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(says)) as caught:
            ask()
        assert "gehe!m" not in str(caught.value)
        assert caught.value.__cause__ is None


_NAMELESS = "UNKNOWN (HTTP status 400) during PutObject operation: Unable to parse ExceptionName: "


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("SLOW_DOWN", None),
        ("NETWORK_CONNECTION", None),
        ("UNKNOWN (HTTP status 400) during HeadObject operation: No response body.", None),
        (f"{_NAMELESS}RequestTimeTooSkewed Message: later", None),
        ("ACCESS_DENIED during ListObjectsV2 operation: no", "Give drivers and executors credentials"),
        (f"{_NAMELESS}InvalidToken Message: no", "Give drivers and executors credentials"),
        (f"{_NAMELESS}KeyTooLongError Message: Your key is too long", "Choose a shorter path"),
        (f"{_NAMELESS}PermanentRedirect Message: use another endpoint", "Correct the region"),
        (f"{_NAMELESS}AuthorizationHeaderMalformed Message: the region", "Correct the region"),
        ("UNKNOWN (HTTP status 301) during HeadObject operation: No response body.", "Correct the region"),
        (f"{_NAMELESS}InvalidBucketName Message: no", "Correct the bucket"),
        (f"{_NAMELESS}AllAccessDisabled Message: no", "Ask who owns the bucket"),
        (f"{_NAMELESS}AccountProblem Message: no", "Ask who owns the account"),
    ],
)
def test_what_waiting_does_not_mend(said: str, step: str | None) -> None:
    """Arrow has the names that it does not know in the text alone."""
    error = OSError(f"When uploading object with key 'k' in bucket 'b': AWS Error {said}")
    assert is_lasting(error) is (step is not None)
    assert next_step(error).startswith(f". {step}" if step else "")
    assert bool(next_step(error)) is (step is not None)


def test_names_that_are_too_long_for_s3_are_refused_before_any_job(bucket: Bucket) -> None:
    action = bucket.action()
    bucket.driver.publish(action)
    below = bucket.root.partition("/")[2]
    longest = max(len(f"{below}//{name}") for name in bucket.names())
    just, one_more = (bucket.driven(f"s3://{bucket.root}/{'x' * (more - longest)}") for more in (1024, 1025))
    just.publish(action)
    with pytest.raises(
        ConfigurationError, match=r"have a name of 1,025 bytes \(.*S3 takes 1,024: choose a shorter path"
    ):
        one_more.publish(action)
    assert (just.copied, one_more.copied) == (4, 0)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, "ExternalUnavailable"),
        (errno.ESTALE, "ExternalUnavailable"),
        (errno.EIO, "ExternalUnavailable"),
        (errno.EACCES, "ConfigurationError"),
    ],
)
def test_a_payload_file_that_cannot_be_read_is_no_fault_of_the_object_store(
    bucket: Bucket, tmp_path: Path, number: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, "no")

    (tmp_path / "a").write_bytes(b"whole")
    row = {"source": str(tmp_path / "a"), "target": f"{bucket.root}/a", "size": 5, "footer": 0}
    monkeypatch.setattr(object_place, "blocks", fails)
    missing = row | {"source": str(tmp_path / "missing")}
    assert put_by_task(bucket.url, missing)["error"] == "ExternalUnavailable"
    line = put_by_task(bucket.url, row)
    assert line["error"] == kind
    says = (
        f"an executor cannot read {tmp_path}/a: driver and executors need the payload store under one path, as one user"
    )
    assert line["said"].startswith(says)
    assert bucket.names() == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [(pa.ArrowInvalid("no"), "ConfigurationError"), (pa.lib.ArrowMemoryError("no"), "ExternalUnavailable")],
)
def test_what_arrow_says_itself_is_said(
    bucket: Bucket, error: Exception, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(object_place, "_put", fails)
    line = put_by_task(bucket.url, {"source": "s", "target": "t", "size": 5, "footer": 0})
    assert line["error"] == kind
    assert line["said"] == "connection 'lake': an executor cannot put s into the object store: no"


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("AWS Error NETWORK_CONNECTION during", ExternalUnavailable, "cannot be opened: S3 says NETWORK_CONNECTION"),
        ("AWS Error ACCESS_DENIED during", ConfigurationError, "cannot be opened: S3 says ACCESS_DENIED. Give drivers"),
        ("Bucket 'gehe!m' not found", ConfigurationError, "S3 says NO_SUCH_BUCKET. Make the bucket"),
    ],
)
def test_a_bucket_whose_region_cannot_be_found_out(
    said: str, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow asks Amazon for it where the URL does not say it."""

    class Away:
        @staticmethod
        def from_uri(_: str) -> None:
            raise OSError(said)

    monkeypatch.setattr(folder_files, "_takes_delayed_open", lambda: False)
    monkeypatch.setattr(fs, "FileSystem", Away)
    with pytest.raises(kind, match=re.escape(f"the folder {words}" if "cannot" in words else words)) as caught:
        published_files("s3://gehe!m/lake")
    assert "gehe!m" not in str(caught.value)
