"""What the owner of a bucket has set: rules that end uploads, versions, locks; and what is said where it cannot be read."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from airflow_logio.cli.upkeep import _say_what_is_kept
from airflow_logio.spark import object_place
from airflow_logio.spark.object_place import ObjectPlace
from airflow_logio.systems.payloads.bucket_settings import kept_versions, warnings_of
from tests.support.faulty_store import DENIED, FaultyStore, faulty_store, named
from tests.support.lakes import reached
from tests.support.object_store import ObjectStore

pytestmark = pytest.mark.slow


@pytest.fixture
def way(objects: ObjectStore) -> Iterator[FaultyStore]:
    with reached(objects), faulty_store(objects.port) as made:
        yield made


@pytest.fixture
def bucket(objects: ObjectStore) -> str:
    return objects.new_bucket()


def url_of(bucket: str, way: FaultyStore) -> str:
    query = f"scheme=http&endpoint_override=127.0.0.1:{way.port}&region=us-east-1&consistent=yes"
    return f"s3://{bucket}/lake?{query}"


def rule(prefix: str = "", status: str = "Enabled", **more: object) -> dict[str, object]:
    ends = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}
    return {"ID": f"rule-{prefix}", "Status": status, "Filter": {"Prefix": prefix}, **(more or ends)}


@pytest.mark.parametrize(
    ("rules", "ends"),
    [
        ([], False),
        ([rule()], True),
        ([rule("la")], True),
        ([rule("other/")], False),
        ([rule(status="Disabled")], False),
        ([rule(Expiration={"Days": 7})], False),
        ([rule(Expiration={"Days": 7}), rule("lake")], True),
    ],
)
def test_a_rule_that_ends_uploads_is_looked_for(
    objects: ObjectStore, way: FaultyStore, bucket: str, rules: list[dict[str, object]], ends: bool
) -> None:
    if rules:
        objects.client().put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": rules})
    said = list(warnings_of(url_of(bucket, way)))
    assert (said == []) is ends
    if not ends:
        (text,) = said
        assert text.startswith(f"no lifecycle rule of the bucket {bucket} ends incomplete uploads")
        assert "`aws s3api put-bucket-lifecycle-configuration" in text
        assert "AbortIncompleteMultipartUpload" in text


def test_what_may_not_be_read_is_said_once_and_stops_nothing(
    way: FaultyStore, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    way.fail(named("GetBucketLifecycleConfiguration", "GetObjectLockConfiguration"), DENIED)
    object_place._warn_of_settings.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ObjectPlace("lake", url_of(bucket, way), "orders")
    (record,) = caplog.records
    assert "ends incomplete uploads cannot be read (AccessDenied)" in record.getMessage()


def test_a_store_that_does_not_know_the_question(proxied_objects: ObjectStore) -> None:
    with reached(proxied_objects), faulty_store(proxied_objects.port) as way:
        url = url_of(proxied_objects.new_bucket(), way)
        (said,) = warnings_of(url)
        assert "cannot be read (NotImplemented)" in said
        assert kept_versions(url) is None
        assert sum(way.counted().values()) <= 3, "it is asked once"


def test_versions_that_stay_are_counted_and_gc_says_so(
    objects: ObjectStore, way: FaultyStore, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client, url = objects.client(), url_of(bucket, way)
    assert kept_versions(url) is None
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert kept_versions(url) == (0, 0, 0, True)
    for key, sizes in (("lake/a", (3, 5)), ("lake/b", (7,)), ("lake2/c", (100, 100))):
        for size in sizes:
            client.put_object(Bucket=bucket, Key=key, Body=b"x" * size)
    client.delete_object(Bucket=bucket, Key="lake/b")
    assert kept_versions(url) == (2, 1, 10, True)
    _say_what_is_kept(url.replace("&consistent=yes", ""), "the payload store")
    said = " ".join(capsys.readouterr().out.split())
    assert f"2 of 10 bytes, and 1 marks of removals, stay in s3://{bucket}/lake. A lifecycle rule" in said


def test_locks_are_told(objects: ObjectStore, way: FaultyStore) -> None:
    client, bucket = objects.client(), objects.new_bucket()
    locked = f"{bucket}-locked"
    client.create_bucket(Bucket=locked, ObjectLockEnabledForBucket=True)
    retention = {"Mode": "GOVERNANCE", "Days": 30}
    client.put_object_lock_configuration(
        Bucket=locked,
        ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": retention}},
    )
    client.put_bucket_lifecycle_configuration(Bucket=locked, LifecycleConfiguration={"Rules": [rule()]})
    assert list(warnings_of(url_of(locked, way))) == [
        f"the bucket {locked} locks objects for 30 days: what is removed or replaced stays that long, as a version"
    ]
