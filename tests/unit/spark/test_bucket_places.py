"""Which buckets are published into; copies that the store makes itself; a store that is busy, and credentials that expire."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_logio import DatasetWriter, FolderSource, Pipeline
from airflow_logio.dataflow.writers.bucket_urls import check_place, for_clients
from airflow_logio.errors import ConfigurationError, ExternalUnavailable
from airflow_logio.launch.start_run import check_published_places
from airflow_logio.spark import object_place
from airflow_logio.spark.object_place import ObjectPlace, same_store
from airflow_logio.spark.published_places import Publication
from airflow_logio.spark.publishing import inspect_folders
from airflow_logio.systems.payloads import Payloads
from airflow_logio.systems.payloads.data_files import footer_of
from airflow_logio.systems.payloads.manifests import DataFile, Manifest
from tests.support.faulty_store import (
    DENIED,
    EXPIRED,
    EXPIRED_403,
    SLOW_DOWN,
    Answer,
    FaultyStore,
    faulty_store,
    named,
)
from tests.support.lakes import BucketLake, reached
from tests.support.object_store import ObjectStore
from tests.support.publishers import Publisher

pytestmark = pytest.mark.slow
ROWS = [(number, number % 2) for number in range(100)]


@pytest.fixture(params=["objects", "proxied_objects"])
def store(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    found: ObjectStore = request.getfixturevalue(request.param)
    with reached(found):
        yield found


@pytest.fixture
def way(store: ObjectStore) -> Iterator[FaultyStore]:
    with faulty_store(store.port) as made:
        yield made


class Bucket(BucketLake):
    """And a driver that publishes into it by a way on which things go wrong."""

    def __init__(self, store: ObjectStore, way: FaultyStore, folder: Path) -> None:
        super().__init__(store, store.new_bucket())
        self.url = (
            f"s3://{self.root}?scheme=http&endpoint_override=127.0.0.1:{way.port}&region=us-east-1&consistent=yes"
        )
        self.driver = Publisher(self.url, Payloads(str(folder / "payloads")), 7, token=2)


@pytest.fixture
def bucket(store: ObjectStore, way: FaultyStore, tmp_path: Path) -> Bucket:
    return Bucket(store, way, tmp_path)


# --- what is refused before anything starts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3a://bucket/lake", "write s3://bucket/path"),
        ("s3n://bucket/lake", "write s3://bucket/path"),
        ("swift://container.provider/lake", "may be old"),
        ("wasb://c@a.blob.core.windows.net/x", "retired"),
        ("wasbs://c@a.blob.core.windows.net/x", "retired"),
        ("abfss://c@a.dfs.core.windows.net/x", "see a file while it is written"),
        ("hdfs://namenode:8020/lake", "see a file while it is written"),
        ("gs://bucket/lake", "endpoint_override=storage.googleapis.com"),
        ("s3://bucket/lake?endpoint_override=minio:9000", "say so in the URL: consistent=yes"),
        ("s3://bucket/lake?endpoint_override=minio", "goes to minio, which is not Amazon's"),
        ("s3://bucket/lake?endpoint_override=s3.amazonaws.com.example.org", "which is not Amazon's"),
        ("s3://bucket/lake?endpoint_override=minio:9000&consistent=no", "says yes or nothing"),
        ("s3://bucket/lake?endpoint_override=d1.cloudfront.net&consistent=yes", "a cache"),
    ],
)
def test_where_what_counts_could_not_be_told_is_refused_before_a_run(url: str, says: str) -> None:
    pipeline = Pipeline("p", connections=["lake"])
    pipeline.writer("save", DatasetWriter("lake", "orders"), pipeline.source("raw", FolderSource("/orders")))
    with pytest.raises(ConfigurationError, match=says) as caught:
        check_published_places(pipeline, {"lake": url}.__getitem__)
    assert str(caught.value).startswith("writer 'save': connection 'lake' ")
    (found,) = inspect_folders(pipeline, {"lake": url})
    assert says in (found.problem or "")


@pytest.mark.parametrize(
    "url",
    [
        "/data/lake",
        "file:///data/lake",
        "s3://bucket/lake",
        "s3://bucket/lake?region=eu-west-1",
        "s3://bucket/lake?endpoint_override=s3.dualstack.eu-west-1.amazonaws.com",
        "s3://bucket/lake?endpoint_override=https://vpce-1.s3.eu-west-1.vpce.amazonaws.com:443",
        "s3://bucket/lake?endpoint_override=minio:9000&scheme=http&consistent=yes",
    ],
)
def test_folders_amazons_own_endpoints_and_those_vouched_for_are_taken(url: str) -> None:
    check_place("it", url, {})
    check_place("it", url, {"AWS_ENDPOINT_URL": "https://s3.eu-west-1.amazonaws.com"})


def test_an_endpoint_of_the_environment_needs_the_word_as_well() -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        with pytest.raises(ConfigurationError, match="goes to minio:9000, which is not Amazon's"):
            check_place("it", "s3://bucket/lake", {name: "http://minio:9000/"})
        check_place("it", "s3://bucket/lake?consistent=yes", {name: "http://minio:9000/"})


def test_the_word_is_for_no_client() -> None:
    assert for_clients("s3://b/p?consistent=yes") == "s3://b/p"
    assert for_clients("s3://b/p?region=x&consistent=yes&scheme=http") == "s3://b/p?region=x&scheme=http"


def test_a_run_that_has_begun_before_is_warned_of_and_goes_on(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    """A recovery after an upgrade parks no group for a word that was not asked for when its run was started."""
    object_place._warn_once.cache_clear()
    url = bucket.url.replace("&consistent=yes", "")
    action = bucket.driver.action(3, ROWS)
    with caplog.at_level(logging.WARNING):
        bucket.driver.publish(action, url=url)
        bucket.driver.publish(action, url=url)
    assert sum("consistent=yes" in record.getMessage() for record in caplog.records) == 1
    assert bucket.counted() == sorted(ROWS)


# --- copies of the store's own ----------------------------------------------------------------------------------------


def test_payloads_in_the_same_store_are_copied_there_and_pass_no_process(
    bucket: Bucket, way: FaultyStore, store: ObjectStore
) -> None:
    other = store.new_bucket()
    contents = {"runs/1.parquet": b"PAR1" + b"a" * 1_000, "runs/2.parquet": b"PAR1" + b"b" * 10}
    for name, data in contents.items():
        store.client().put_object(Bucket=other, Key=name, Body=data)
    files = tuple(
        DataFile(name, len(data), 1, footer_of(pa.BufferReader(data), len(data)), (f"store=a%2Fb é+{number}",))
        for number, (name, data) in enumerate(contents.items())
    )
    plan = Publication("run7", "save", 3, 2, Manifest("{}", "[]", files))
    place = ObjectPlace("lake", bucket.url, "orders")
    query = bucket.url.partition("?")[2].replace("&consistent=yes", "")
    sources = [f"s3://{other}/{name}?{query}" for name in contents]

    def no_job(*_: object) -> None:
        raise AssertionError("no task is needed")

    way.forget()
    place.put_files("it", plan, sources, no_job)  # type: ignore[arg-type]
    assert way.counted() == {"HeadObject": 4, "CopyObject": 2}
    assert [bucket.get(f"orders/{name}") for name in plan.names()] == list(contents.values())
    way.forget()
    place.put_files("it", plan, sources, no_job)  # type: ignore[arg-type]
    assert way.counted() == {"HeadObject": 4, "GetObject": 4}, "what is there is left alone"


def test_datasets_of_a_payload_store_in_the_same_store_are_published_by_it(
    bucket: Bucket, way: FaultyStore, store: ObjectStore
) -> None:
    query = bucket.url.partition("?")[2].replace("&consistent=yes", "")
    driver = Publisher(bucket.url, Payloads(f"s3://{store.new_bucket()}/payloads?{query}"), 7)
    action = driver.action(3, ROWS[:50], ROWS[50:])
    way.forget()
    driver.publish(action)
    assert (driver.copied, way.counted()["CopyObject"]) == (0, 4)
    assert bucket.counted() == sorted(ROWS)


@pytest.mark.parametrize(
    ("source", "is_same"),
    [
        ("s3://payloads/a?endpoint_override=minio:9000&scheme=http", True),
        ("s3://payloads/a?endpoint_override=http://minio:9000", True),
        ("s3://payloads/a?endpoint_override=other:9000", False),
        ("s3://payloads/a?endpoint_override=minio:9000&region=eu-west-1", False),
        ("s3://payloads/a", False),
        ("/payloads/a", False),
        ("gs://payloads/a", False),
    ],
)
def test_which_stores_are_the_same(source: str, is_same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    assert same_store(source, "s3://lake/x?endpoint_override=minio:9000&consistent=yes") is is_same


# --- a store that is busy, and credentials that expire ----------------------------------------------------------------


def test_a_job_asks_a_busy_store_less_and_less_and_then_no_more(
    bucket: Bucket, way: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow asks 31 times for a file; a job of a hundred files would ask 3,100 times, over and over."""
    waited: list[float] = []
    monkeypatch.setattr(object_place, "_sleep", waited.append)
    monkeypatch.setattr(object_place, "BUSY_SECONDS", 1.0)
    action = bucket.driver.action(3, *([row] for row in ROWS))
    fault = way.fail(named("PutObject", "CreateMultipartUpload", key=".parquet"), SLOW_DOWN)
    with pytest.raises(ExternalUnavailable, match="SLOW_DOWN"):
        bucket.driver.publish(action)
    assert fault.met <= 2 * 31, "one file was tried while there was patience"
    assert waited
    assert bucket.counted() == []
    way.heal()
    bucket.driver.publish(action)
    assert bucket.counted() == sorted(ROWS)


def test_a_store_that_is_busy_for_a_moment_is_waited_for_in_the_task(bucket: Bucket, way: FaultyStore) -> None:
    fault = way.fail(named("PutObject", key=".parquet"), SLOW_DOWN, times=40)
    bucket.driver.publish(bucket.driver.action(3, ROWS))
    assert fault.met == 40
    assert bucket.counted() == sorted(ROWS)


@pytest.mark.parametrize("answer", [EXPIRED, EXPIRED_403])
def test_credentials_that_expire_are_a_line_and_are_waited_for(
    bucket: Bucket, way: FaultyStore, answer: Answer
) -> None:
    """Whatever is asked first: an answer to HEAD does not say what is wrong."""
    action = bucket.driver.action(3, ROWS)
    bucket.driver.before_copies = lambda: way.fail(lambda _: True, answer)
    with pytest.raises(ExternalUnavailable, match=r"an executor cannot put .*ExpiredToken.*: renew those of drivers"):
        bucket.driver.publish(action)
    bucket.driver.before_copies = lambda: None
    with pytest.raises(ExternalUnavailable, match="ExpiredToken"):
        bucket.driver.publish(action)
    way.heal()
    bucket.driver.publish(action)
    assert bucket.counted() == sorted(ROWS)


def test_a_new_client_may_have_newer_credentials(bucket: Bucket, way: FaultyStore) -> None:
    bucket.driver.before_copies = lambda: way.fail(named("PutObject"), EXPIRED, times=1)
    bucket.driver.publish(bucket.driver.action(3, ROWS))
    assert bucket.counted() == sorted(ROWS)


def test_rights_that_are_missing_are_not_waited_for(bucket: Bucket, way: FaultyStore) -> None:
    bucket.driver.before_copies = lambda: way.fail(lambda _: True, DENIED)
    with pytest.raises(ConfigurationError, match=r"ACCESS_DENIED.*Give drivers and executors credentials"):
        bucket.driver.publish(bucket.driver.action(3, ROWS))


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_what_a_write_action_costs(bucket: Bucket, way: FaultyStore) -> None:
    """docs/datasets.md has the figures. A put and a list cost about twelve times what a look costs."""
    few, many = (bucket.driver.action(number, *([row] for row in ROWS[:files])) for number, files in ((3, 4), (4, 20)))
    bucket.driver.publish(bucket.driver.action(2, ROWS[:1]))  # with the records of the run
    costs = []
    for action in (few, many):
        way.forget()
        bucket.driver.publish(action)
        costs.append(way.counted())
    each = {name: (costs[1][name] - costs[0][name]) / 16 for name in costs[1]}
    once = {name: costs[0][name] - 4 * each[name] for name in costs[0]}
    assert each == {"HeadObject": 2, "PutObject": 1, "ListObjectsV2": 0}
    assert once == {"HeadObject": 2, "PutObject": 2, "ListObjectsV2": 4}
    way.forget()
    bucket.driver.publish(many)
    assert way.counted()["PutObject"] == 2, "executed again, it puts its records and its receipt alone"
