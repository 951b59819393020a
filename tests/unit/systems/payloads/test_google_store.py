"""A payload store in a bucket of Google Cloud Storage, by drivers and tasks: an emulator, and a way with faults."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.errors import ConfigurationError, LogInconsistent, LogUnavailable
from airflow_logio.systems.payloads import EpochPayloads, Payloads, google_storage, task_files
from airflow_logio.systems.payloads.dataset import Borrowed, dataset_at
from airflow_logio.systems.payloads.file_roots import data_files, located
from tests.support.datasets import dataset_of
from tests.support.faulty_store import Cut, Effect, FaultyStore, LostAnswer, Request, Torn, faulty_store
from tests.support.google_store import (
    BUSY,
    DENIED,
    EXPIRED,
    TOO_MANY,
    GoogleStore,
    google_store,
    reached,
    why_no_google_store,
)

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
"""By gcsfs, of parts of an upload."""
ORDERS = pa.table({"id": list(range(1000)), "store": [number % 3 for number in range(1000)]})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleStore]:
    if why := why_no_google_store():
        pytest.skip(why)
    with google_store(tmp_path_factory.mktemp("google")) as store:
        yield store


@dataclass
class Bucket:
    server: GoogleStore
    way: FaultyStore
    name: str
    root: str

    @property
    def payloads(self) -> Payloads:
        return Payloads(self.root)

    @property
    def epoch(self) -> EpochPayloads:
        return self.payloads.epoch("run", "g", 1, 0)

    def names(self) -> list[str]:
        return self.server.names(self.name)

    def lines(self, table: pa.Table, folder: str = "run/g/1/0/d.9", **how: Any) -> list[dict[str, Any]]:
        """What a task says that has written."""
        written = task_files.written(self.root, folder, how.pop("partition_by", ()), table.to_batches(100), **how)
        return [line for found in written for line in found.to_pylist()]


@pytest.fixture
def bucket(server: GoogleStore) -> Iterator[Bucket]:
    with reached(server), faulty_store(server.port) as way:
        name = server.new_bucket()
        yield Bucket(server, way, name, server.through(way.port).url(name, "lake/payloads"))


def of_uploads(request: Request) -> bool:
    return request.bucket == "upload" or "upload" in request.parameters.get("uploadType", "")


def writes(request: Request) -> bool:
    return request.method in ("POST", "PUT")


def noise(mebibytes: int) -> pa.Table:
    rng = np.random.default_rng(1)
    return pa.table({"noise": pa.array([rng.bytes(2**16) for _ in range(mebibytes * 16)], pa.binary())})


# --- what a store must do ---------------------------------------------------------------------------------------------


def test_bodies_are_read_as_they_were_written_and_removed_without_a_trace(bucket: Bucket) -> None:
    payloads, epoch = bucket.payloads, bucket.epoch
    rng = np.random.default_rng(1)
    bodies = [b"", b"x", rng.bytes(5_000), rng.bytes(12 * 2**20)]
    refs = [str(epoch.store(f"bodies/a.out/{number}", body)) for number, body in enumerate(bodies)]
    assert [payloads.load("event", ref) for ref in refs] == bodies
    with payloads.opened("event", refs[3]) as file:
        assert file.read(3) == bodies[3][:3]
    assert sorted(payloads.find("run")) == sorted(ref.partition("#")[0] for ref in refs)
    assert payloads.runs() == ["run"]
    payloads.remove(refs)
    payloads.remove(refs)
    assert payloads.find("run") == [] and payloads.runs() == [] and bucket.names() == []
    with pytest.raises(LogInconsistent, match="is missing"):
        payloads.load("event", refs[0])
    assert all("authorization" in request.headers for request in bucket.way.requests)


def test_what_is_broken_off_is_no_object(bucket: Bucket) -> None:
    """By a driver, and by a task: a small one, which would be put when it is closed, and one of which parts were sent."""
    epoch = bucket.epoch
    for size in (100, 20 * 2**20):
        with pytest.raises(ValueError, match="of the reader"), epoch.created("effects/s/1") as file:
            file.write(bytes(size))
            raise ValueError("of the reader")

    def failing(table: pa.Table) -> Iterator[pa.RecordBatch]:
        yield from table.to_batches(100)
        raise ValueError("of the author")

    for table in (ORDERS, noise(20)):
        with pytest.raises(ValueError, match="of the author"):
            list(task_files.written(bucket.root, "d", (), failing(table)))
    gc.collect()
    assert sum(map(of_uploads, bucket.way.requests)) >= 4, "parts were sent"
    assert bucket.names() == []


def test_pages_of_names_and_removal_of_many(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one answer lists; also the empty objects that other programs make."""
    monkeypatch.setattr(google_storage, "_LISTED_AT_ONCE", 3)
    payloads = bucket.payloads
    many = [f"run/g/1/0/{number}" for number in range(10)]
    for name in [*many, "run/g/1/0/", "run2/g/1/0/other", "run3/x"]:
        bucket.server.put(bucket.name, f"lake/payloads/{name}")
    assert sorted(payloads.find("run")) == sorted([*many, "run/g/1/0/"])
    assert sorted(payloads.runs()) == ["run", "run2", "run3"]
    payloads.discard(payloads.find("run"), "run")
    assert bucket.names() == ["lake/payloads/run2/g/1/0/other", "lake/payloads/run3/x"]


@pytest.mark.parametrize("path", ["lake/payloads", "", "é x/a+b=c&d'e"])
def test_a_dataset_is_written_owned_copied_and_removed(bucket: Bucket, path: str) -> None:
    """By names that both clients understand in the same way."""
    root = bucket.server.through(bucket.way.port).url(bucket.name, path)
    payloads = Payloads(root)
    epoch = payloads.epoch("run", "g", 1, 0)
    made = dataset_of(epoch, ORDERS.slice(0, 500), ORDERS.slice(500), partition_by=("store",))
    assert all(name.startswith(f"{path}/run/" if path else "run/") for name in bucket.names())
    for file in made.manifest.files:
        again, found = located(made.files.location(file.path))
        with again.open(found) as opened:
            assert pq.read_table(opened).num_rows == file.records
        assert made.files.footer(file.path, file.size) == file.footer
        assert made.files.footer(file.path, file.size - 1) is None
    own = epoch.own("write action 1", "own/1", made)
    payloads.remove([str(made.reference)])
    with pytest.raises(LogInconsistent, match="has lost a file"):
        made.check()
    for one in (own, dataset_at(root, "w", str(own.reference)), payloads.dataset("w", str(own.reference))):
        assert sorted(one.table.column("id").to_pylist()) == list(range(1000))
        assert sum(table.num_rows for _, table in one.batches()) == 1000
    assert Borrowed(own).num_rows == 1000
    with pytest.raises(LogInconsistent, match="has lost a file"):
        epoch.own("write action 2", "own/2", made)
    payloads.discard(payloads.find("run"), "run")
    assert bucket.names() == []


def test_what_is_not_there_is_not_taken_for_a_store_that_is_not(bucket: Bucket) -> None:
    files = data_files(bucket.root)
    for ask in (lambda: files.size("run/none"), lambda: files.footer("run/none", 1), lambda: files.open("run/none")):
        with pytest.raises(FileNotFoundError):
            ask()


def test_a_damaged_object_is_no_dataset(bucket: Bucket) -> None:
    made = dataset_of(bucket.epoch, ORDERS)
    (file,) = made.manifest.files
    name = f"lake/payloads/{file.path}"
    whole = bucket.server.get(bucket.name, name)
    for damaged in (whole[:-1], whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:], whole[:100] + b"?" + whole[101:]):
        bucket.server.put(bucket.name, name, damaged)
        with pytest.raises(LogInconsistent):
            list(made.batches())


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_bucket_that_is_not_there_is_said_and_not_waited_for(bucket: Bucket) -> None:
    nowhere = Bucket(bucket.server, bucket.way, "", bucket.root.replace("gs://", "gs://none"))
    with pytest.raises(ConfigurationError, match="Make the bucket"):
        nowhere.epoch.store("bodies/a", b"x")
    with pytest.raises(ConfigurationError, match="Make the bucket"):
        nowhere.payloads.find("run")
    with pytest.raises(ConfigurationError, match="Make the bucket"):
        nowhere.payloads.discard(["run/g/1/0/a"], "run")
    [line] = nowhere.lines(ORDERS)
    assert line["error"] == "ConfigurationError" and "Make the bucket" in line["said"]


def test_a_store_that_does_not_answer_is_unavailable(bucket: Bucket) -> None:
    away = Bucket(bucket.server, bucket.way, "", bucket.server.through(1).url(bucket.name, "p"))
    [line] = away.lines(ORDERS)
    assert (line["error"], line["path"]) == ("LogUnavailable", "")
    with pytest.raises(LogUnavailable, match="payload store gs://"):
        away.payloads.load("event 1", "run/g/1/0/a#00000000-1")


@pytest.mark.parametrize("effect", [BUSY, TOO_MANY, LostAnswer()], ids=["busy", "too many", "lost"])
def test_a_busy_store_is_asked_again_and_a_lost_answer_makes_no_second_object(bucket: Bucket, effect: Effect) -> None:
    epoch = bucket.epoch
    put = bucket.way.fail(writes, effect, times=1)
    ref = str(epoch.store("bodies/a.out/1", b"body"))
    bucket.way.heal()
    written = bucket.way.fail(writes, effect, times=1)
    made = dataset_of(epoch, ORDERS)
    bucket.way.heal()
    copied = bucket.way.fail(lambda request: "rewriteTo" in request.key, effect, times=1)
    own = epoch.own("write action 1", "own/1", made)
    bucket.way.heal()
    read = bucket.way.fail(lambda request: request.method == "GET", effect, times=1)
    assert epoch.load("event 1", ref) == b"body"
    bucket.way.heal()
    assert (put.met, written.met, copied.met, read.met) == (1, 1, 1, 1)
    own.check()
    assert own.table == made.table and len(bucket.names()) == 5


@pytest.mark.parametrize("effect", [LostAnswer(), Cut(), BUSY], ids=["lost", "cut", "busy"])
def test_an_upload_in_parts_is_whole_or_said_to_have_failed(bucket: Bucket, effect: Effect) -> None:
    """Whatever is asked again, and whichever answer was lost: of a task, and of a driver."""
    table, body = noise(20), np.random.default_rng(2).bytes(12 * 2**20)
    before = len(bucket.way.requests)
    bucket.lines(table, "run/g/1/0/before")
    requests = sum(map(writes, bucket.way.requests[before:]))
    assert requests > 2
    for number in range(requests):
        fault = bucket.way.fail(_number(number), effect, times=1)
        for line in bucket.lines(table, f"run/g/1/0/{number}"):
            assert line["error"] in ("", "LogUnavailable"), line
            if not line["error"]:
                with data_files(bucket.root).open(line["path"]) as file:
                    assert pq.read_table(file) == table
        assert fault.met == 1
        bucket.way.heal()
    for number in range(3):
        fault = bucket.way.fail(_number(number), effect, times=1)
        assert bucket.payloads.load("event", str(bucket.epoch.store(f"bodies/{number}", body))) == body
        assert fault.met == 1
        bucket.way.heal()


def _number(number: int) -> Callable[[Request], bool]:
    """The write of that number, from now on."""
    before = [0]

    def wanted(request: Request) -> bool:
        before[0] += writes(request)
        return writes(request) and before[0] == number + 1

    return wanted


def test_a_torn_answer_is_no_damage(bucket: Bucket) -> None:
    made = dataset_of(bucket.epoch, ORDERS)
    for effect in (Cut(), Torn()):
        fault = bucket.way.fail(lambda request: request.method == "GET", effect)
        for ask in (made.check, lambda: list(made.spans("id"))):
            with pytest.raises(LogUnavailable):
                ask()
        assert fault.met > 0
        bucket.way.heal()
    assert made.table.num_rows == 1000


@pytest.mark.parametrize(
    ("effect", "kind", "says"),
    [
        (EXPIRED, LogUnavailable, "[Rr]enew the credentials"),
        (DENIED, ConfigurationError, "credentials that may list the bucket"),
    ],
    ids=["expired", "denied"],
)
def test_credentials_are_said_by_driver_and_tasks(bucket: Bucket, effect: Effect, kind: type, says: str) -> None:
    epoch, made = bucket.epoch, dataset_of(bucket.epoch, ORDERS)
    bucket.way.fail(lambda request: True, effect)
    [line] = bucket.lines(ORDERS)
    assert (line["error"], line["path"]) == (kind.__name__, "")
    assert says.strip("[Rr]") in line["said"] and "geheim" not in line["said"]
    with pytest.raises(kind, match=says):
        made.check()
    epoch.stop()
    for ask in (
        lambda: epoch.store("bodies/a.out/2", b"body"),
        lambda: bucket.payloads.find("run"),
        lambda: bucket.payloads.discard([made.reference.path], "run"),
        lambda: bucket.payloads.load("event 1", str(made.reference)),
    ):
        with pytest.raises(kind, match=says):
            ask()


def test_a_driver_without_credentials_is_not_nobody(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("HOME", str(tmp_path))
    from gcsfs.core import GCSFileSystem

    GCSFileSystem.clear_instance_cache()
    with pytest.raises(ConfigurationError, match="GOOGLE_APPLICATION_CREDENTIALS names"):
        Payloads(bucket.root)
