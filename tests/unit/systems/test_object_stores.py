"""The object stores that tests use, and the way to them on which things go wrong: as real clients see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError

from tests.support.faulty_store import (
    BROKEN,
    EXPIRED,
    NO_CONDITIONS,
    SLOW_DOWN,
    Cut,
    FaultyStore,
    Ignored,
    LostAnswer,
    Wait,
    conditional,
    faulty_store,
    named,
)
from tests.support.lakes import reached
from tests.support.object_store import ObjectStore
from tests.support.waiting import eventually

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


def test_a_way_without_faults_is_the_store_and_counts_what_is_asked(store: ObjectStore, way: FaultyStore) -> None:
    bucket = store.new_bucket()
    client, files = store.through(way.port).client(), store.through(way.port).files()
    with files.open_output_stream(f"{bucket}/a b/ü+1.bin") as stream:
        stream.write(b"x" * (11 * 2**20))
    assert client.head_object(Bucket=bucket, Key="a b/ü+1.bin")["ContentLength"] == 11 * 2**20
    client.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "a b/ü+1.bin"})
    with files.open_input_file(f"{bucket}/copy") as file:
        file.seek(11 * 2**20 - 3)
        assert file.read() == b"xxx"
    found = {one["Key"] for one in client.list_objects_v2(Bucket=bucket)["Contents"]}
    assert found == {"a b/ü+1.bin", "copy"}
    client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": name} for name in found]})
    counted = way.counted()
    assert {name: counted[name] for name in ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")} == {
        "CreateMultipartUpload": 1,
        "UploadPart": 2,
        "CompleteMultipartUpload": 1,
    }
    assert (counted["CopyObject"], counted["ListObjectsV2"], counted["DeleteObjects"]) == (1, 1, 1)
    assert counted["GetObject"] >= 1
    assert all(request.bucket == bucket for request in way.requests)
    assert "Contents" not in client.list_objects_v2(Bucket=bucket)


def test_a_second_conditional_put_is_refused_by_the_store_itself(store: ObjectStore, way: FaultyStore) -> None:
    client, bucket = store.through(way.port).client(), store.new_bucket()
    client.put_object(Bucket=bucket, Key="one", Body=b"1", IfNoneMatch="*")
    with pytest.raises(ClientError) as caught:
        client.put_object(Bucket=bucket, Key="one", Body=b"2", IfNoneMatch="*")
    assert caught.value.response["Error"]["Code"] == "PreconditionFailed"
    assert client.get_object(Bucket=bucket, Key="one")["Body"].read() == b"1"
    way.fail(conditional, NO_CONDITIONS)
    with pytest.raises(ClientError, match="NotImplemented"):
        client.put_object(Bucket=bucket, Key="two", Body=b"1", IfNoneMatch="*")
    client.put_object(Bucket=bucket, Key="two", Body=b"1")


def test_errors_are_those_of_s3_for_as_many_requests_as_is_said(store: ObjectStore, way: FaultyStore) -> None:
    client, bucket = store.through(way.port).client(), store.new_bucket()
    for effect in (SLOW_DOWN, BROKEN, EXPIRED):
        fault = way.fail(named("PutObject", key="one"), effect, times=1)
        client.put_object(Bucket=bucket, Key="two", Body=b"")
        with pytest.raises(ClientError) as caught:
            client.put_object(Bucket=bucket, Key="one", Body=b"")
        assert caught.value.response["Error"]["Code"] == effect.code
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == effect.status
        client.put_object(Bucket=bucket, Key="one", Body=b"")
        assert fault.met == 1


def test_an_answer_is_lost_when_the_store_has_done_it(store: ObjectStore, way: FaultyStore) -> None:
    client, bucket = store.through(way.port).client(), store.new_bucket()
    way.fail(named("PutObject"), LostAnswer(), times=1)
    with pytest.raises(ConnectionClosedError):
        client.put_object(Bucket=bucket, Key="one", Body=b"1")
    assert client.get_object(Bucket=bucket, Key="one")["Body"].read() == b"1"
    way.fail(named("PutObject"), Cut(), times=1)
    with pytest.raises(ConnectionClosedError):
        client.put_object(Bucket=bucket, Key="two", Body=b"1")
    with pytest.raises(ClientError):
        client.head_object(Bucket=bucket, Key="two")


def test_a_put_that_is_tried_again_meets_its_own_first_one(store: ObjectStore, way: FaultyStore) -> None:
    """So a client that takes 412 for another writer is wrong."""
    bucket = store.new_bucket()
    variables = store.variables
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{way.port}",
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
        config=Config(request_checksum_calculation="when_required", retries={"total_max_attempts": 2}),
    )
    way.fail(conditional, LostAnswer(), times=1)
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=bucket, Key="one", Body=b"1", IfNoneMatch="*")
    assert way.counted()["PutObject"] == 2


@pytest.mark.parametrize("ends", [FaultyStore.heal, FaultyStore.close])
def test_what_waits_is_let_go(store: ObjectStore, way: FaultyStore, ends: Callable[[FaultyStore], None]) -> None:
    bucket, client = store.new_bucket(), store.through(way.port).client()
    fault = way.fail(named("PutObject"), Wait())
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(client.put_object, Bucket=bucket, Key="late", Body=b"1")
        eventually(lambda: fault.met, what="it waits")
        assert "Contents" not in store.client().list_objects_v2(Bucket=bucket)
        ends(way)
        with suppress(ConnectionClosedError):
            putting.result(60)
            assert store.client().get_object(Bucket=bucket, Key="late")["Body"].read() == b"1"


def test_a_store_that_passes_over_conditions(objects: ObjectStore) -> None:
    """One that checks signatures would notice what is left out on the way."""
    with faulty_store(objects.port) as way:
        client, bucket = objects.through(way.port).client(), objects.new_bucket()
        way.fail(conditional, Ignored("if-none-match"))
        for text in (b"1", b"2"):
            client.put_object(Bucket=bucket, Key="one", Body=text, IfNoneMatch="*")
        assert client.get_object(Bucket=bucket, Key="one")["Body"].read() == b"2"
