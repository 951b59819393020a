"""A payload store in a bucket, as drivers use it: what is written is whole or not there, and nothing is left."""

from __future__ import annotations

import gc
import re
import urllib.request
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyarrow import fs

from airflow_logio.errors import ConfigurationError, LogInconsistent, LogUnavailable
from airflow_logio.store.port import LogStore
from airflow_logio.systems.bucket_roots import BucketRoot
from airflow_logio.systems.payloads import EpochPayloads, Payloads, s3_storage, sweep_group
from airflow_logio.systems.payloads.dataset import Borrowed, dataset_at
from airflow_logio.systems.payloads.manifests import in_order
from tests.support.datasets import dataset_of
from tests.support.lakes import reached
from tests.support.logs import replace_driver, start_driver
from tests.support.object_store import ObjectStore

ORDERS = pa.table({"id": list(range(1000)), "store": [number % 3 for number in range(1000)]})


@pytest.fixture
def root(objects: ObjectStore) -> Iterator[str]:
    with reached(objects):
        yield objects.new_url("lake/payloads")


@pytest.fixture
def payloads(root: str) -> Payloads:
    return Payloads(root)


@pytest.fixture
def epoch(payloads: Payloads) -> EpochPayloads:
    return payloads.epoch("run", "g", 1, 0)


def keys(objects: ObjectStore, root: str) -> list[str]:
    """Of all objects in the bucket, the empty ones that stand for folders included."""
    found = objects.files().get_file_info(fs.FileSelector(BucketRoot.of(root).authority, recursive=True))
    return sorted(info.path.partition("/")[2] for info in found if info.is_file)


def put(objects: ObjectStore, root: str, name: str) -> None:
    """An empty object below the root."""
    url = f"{objects.endpoint}/{BucketRoot.of(root).authority}/lake/payloads/{name}"
    urllib.request.urlopen(urllib.request.Request(url, data=b"", method="PUT")).close()


def uploads(objects: ObjectStore, root: str) -> str:
    """What the store says of uploads that nothing has completed."""
    with urllib.request.urlopen(f"{objects.endpoint}/{BucketRoot.of(root).authority}?uploads") as answer:
        return str(answer.read().decode())


def test_bodies_are_read_as_they_were_written_and_removed_without_a_trace(
    payloads: Payloads, epoch: EpochPayloads, objects: ObjectStore, root: str
) -> None:
    bodies = [bytes([number]) * 5000 for number in range(3)]
    refs = [str(epoch.store(f"bodies/a.out/{number}", body)) for number, body in enumerate(bodies)]
    assert [payloads.load("event", ref) for ref in refs] == bodies
    with payloads.opened("event", refs[2]) as file:
        assert file.read(3) == bodies[2][:3]
    assert sorted(payloads.find("run")) == sorted(ref.partition("#")[0] for ref in refs)
    assert payloads.runs() == ["run"]
    payloads.remove(refs)
    payloads.remove(refs)
    assert payloads.find("run") == [] and payloads.runs() == []
    assert keys(objects, root) == []
    with pytest.raises(LogInconsistent, match="is missing"):
        payloads.load("event", refs[0])


def test_what_is_broken_off_is_no_object_and_no_upload(epoch: EpochPayloads, objects: ObjectStore, root: str) -> None:
    """A body of several parts, and a small one, which a handle would complete when it is collected."""
    for size in (100, 60 * 2**20):
        with pytest.raises(ValueError, match="of the reader"), epoch.created("effects/s/1") as file:
            file.write(bytes(size))
            raise ValueError("of the reader")
    gc.collect()
    assert keys(objects, root) == []
    assert "<UploadId>" not in uploads(objects, root)


def test_pages_of_names_and_removal_of_many(
    payloads: Payloads, objects: ObjectStore, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one answer lists, and more than one request removes; also the empty objects that other programs make."""
    monkeypatch.setattr(s3_storage, "_LISTED_AT_ONCE", 3)
    monkeypatch.setattr(s3_storage, "_REMOVED_AT_ONCE", 4)
    many = [f"run/g/1/0/{number}" for number in range(10)]
    for name in [*many, "run/g/1/0/", "run2/g/1/0/other", "run3/x"]:
        put(objects, root, name)
    assert sorted(payloads.find("run")) == sorted([*many, "run/g/1/0/"])
    assert sorted(payloads.runs()) == ["run", "run2", "run3"]
    payloads.discard(payloads.find("run"), "run")
    assert keys(objects, root) == ["lake/payloads/run2/g/1/0/other", "lake/payloads/run3/x"]


def test_a_dataset_is_written_owned_copied_and_removed(
    payloads: Payloads, epoch: EpochPayloads, objects: ObjectStore, root: str
) -> None:
    made = dataset_of(epoch, ORDERS.slice(0, 500), ORDERS.slice(500), partition_by=("store",))
    own = epoch.own("write action 1", "own/1", made)
    assert {file.footer for file in own.manifest.files} == {file.footer for file in made.manifest.files}
    assert not set(own.file_paths()) & set(made.file_paths())
    payloads.remove([str(made.reference)])
    with pytest.raises(LogInconsistent, match="has lost a file"):
        made.check()
    for found in (
        own,
        dataset_at(root, "write action 1", str(own.reference)),
        payloads.dataset("w", str(own.reference)),
    ):
        assert sorted(found.table.column("id").to_pylist()) == list(range(1000))
        assert sum(table.num_rows for _, table in found.batches()) == 1000
    assert Borrowed(own).num_rows == 1000
    with pytest.raises(LogInconsistent, match="has lost a file"):
        epoch.own("write action 2", "own/2", made)
    payloads.remove([str(own.reference)])
    assert not [key for key in keys(objects, root) if "/own.2" not in key and "/own/2" not in key]


def test_a_damaged_object_is_no_dataset(epoch: EpochPayloads, objects: ObjectStore, root: str) -> None:
    made = dataset_of(epoch, ORDERS)
    (file,) = made.manifest.files
    key = f"{BucketRoot.of(root).authority}/lake/payloads/{file.path}"
    with objects.files().open_input_file(key) as source:
        whole = source.read()
    for damaged, says in (
        (whole[:-1], "is not the file that its manifest names"),
        (whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:], "is not the file that its manifest names"),
        (whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], "the dataset of event 1 of s.out is damaged"),
    ):
        with objects.files().open_output_stream(key) as stream:
            stream.write(damaged)
        with pytest.raises(LogInconsistent, match=re.escape(says)):
            list(made.batches())
    assert in_order(made.manifest.files) == made.manifest.files


def test_only_what_a_fenced_incarnation_did_not_commit_is_swept(
    log_store: LogStore, payloads: Payloads, objects: ObjectStore, root: str
) -> None:
    driver = start_driver(log_store)
    old, new = (payloads.epoch(driver.run.uid, "g", incarnation, 0) for incarnation in (1, 2))
    dataset_of(old, ORDERS)
    replace_driver(driver)
    kept = new.store("bodies/a.out/1", b"of the living")
    assert sweep_group(payloads, log_store, driver.run, "g", below=2) == 2
    assert keys(objects, root) == [f"lake/payloads/{kept.path}"]


@pytest.mark.parametrize("does", ["write", "list", "remove"])
def test_a_bucket_that_is_not_there_is_said_and_not_waited_for(root: str, does: str) -> None:
    nowhere = Payloads(root.replace("s3://", "s3://none"))
    with pytest.raises(ConfigurationError, match="Make the bucket"):
        match does:
            case "write":
                nowhere.epoch("run", "g", 1, 0).store("bodies/a", b"x")
            case "list":
                nowhere.find("run")
            case "remove":
                nowhere.discard(["run/g/1/0/a"], "run")


def test_a_store_that_does_not_answer_is_unavailable(root: str) -> None:
    away = Payloads(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", root))
    with pytest.raises(LogUnavailable, match="payload store s3://"):
        away.load("event 1", "run/g/1/0/a#00000000-1")
