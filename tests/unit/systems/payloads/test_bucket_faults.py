"""A payload store in a bucket that refuses, loses answers, or gets credentials that have expired; and what it costs."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from airflow_logio.errors import ConfigurationError, LogInconsistent, LogUnavailable
from airflow_logio.systems.payloads import Payloads, task_files
from airflow_logio.systems.payloads.bucket_files import BucketFiles
from tests.support.datasets import dataset_of
from tests.support.faulty_payloads import FaultyPayloads, faulty_payloads
from tests.support.faulty_store import DENIED, EXPIRED_403, SLOW_DOWN, LostAnswer, named
from tests.support.object_store import ObjectStore

ORDERS = pa.table({"id": list(range(1000))})
FILES = 4


@pytest.fixture
def store(objects: ObjectStore) -> Iterator[FaultyPayloads]:
    with faulty_payloads(objects) as made:
        yield made


def test_what_is_done_costs_these_requests(store: FaultyPayloads) -> None:
    """As docs/how-to/buckets.md says. None asks whether a name is free, or for a folder."""
    epoch = store.epoch()
    ref = str(epoch.store("bodies/a.out/1", b"x" * 1000))
    assert store.cost() == {"PutObject": 1}
    epoch.load("event 1", ref)
    assert store.cost() == {"HeadObject": 1, "GetObject": 1}
    made = dataset_of(epoch, *[ORDERS] * FILES)
    assert store.cost() == {"PutObject": FILES + 1}
    made.check()
    assert store.cost() == {"HeadObject": FILES, "GetObject": FILES}
    own = epoch.own("write action 1", "own/1", made)
    assert store.cost() == {"HeadObject": FILES, "CopyObject": FILES, "PutObject": 1}
    epoch.remove([ref, str(made.reference), str(own.reference)])
    assert store.cost() == {"HeadObject": 2, "GetObject": 2, "DeleteObjects": 2}, (
        "manifests say what is removed, before they are"
    )
    assert Payloads(store.root).find("run") == []
    assert store.cost() == {"ListObjectsV2": 1}


def test_a_busy_store_is_asked_again_and_a_lost_answer_makes_no_second_object(store: FaultyPayloads) -> None:
    epoch = store.epoch()
    for effect in (SLOW_DOWN, LostAnswer()):
        store.way.fail(named("PutObject"), effect, times=2)
        ref = str(epoch.store("bodies/a.out/1", b"body"))
        assert epoch.load("event 1", ref) == b"body"
        store.way.heal()
    store.way.fail(named("PutObject"), SLOW_DOWN, times=1)
    store.way.fail(named("PutObject"), LostAnswer(), times=1)
    made = dataset_of(epoch, ORDERS)
    made.check()
    found = Payloads(store.root).find("run")
    assert len(found) == 4, found


@pytest.mark.parametrize(
    ("effect", "kind", "says"),
    [
        (EXPIRED_403, LogUnavailable, "Renew the credentials"),
        (DENIED, ConfigurationError, "credentials that may list the bucket"),
    ],
    ids=["expired", "denied"],
)
def test_credentials_are_said_by_driver_and_tasks(
    store: FaultyPayloads, effect: object, kind: type[Exception], says: str
) -> None:
    """A task says it in its line: the driver raises it."""
    epoch, made = store.epoch(), dataset_of(store.epoch(), ORDERS)
    store.way.fail(named("PutObject", "GetObject", "HeadObject", "DeleteObjects", "ListObjectsV2"), effect)  # type: ignore[arg-type]
    [found] = task_files.written(store.root, "run/g/1/0/d.9", (), ORDERS.to_batches())
    [line] = found.to_pylist()
    assert (line["error"], line["path"]) == (kind.__name__, "")
    assert says in line["said"] and "geheim" not in line["said"]
    epoch.stop()
    with pytest.raises(kind, match=says):
        epoch.store("bodies/a.out/2", b"body")
    with pytest.raises(kind, match=says):
        Payloads(store.root).find("run")
    with pytest.raises(kind, match=says):
        Payloads(store.root).discard([made.reference.path], "run")


def test_what_cannot_be_read_for_a_while_is_not_taken_for_damage(store: FaultyPayloads) -> None:
    made = dataset_of(store.epoch(), ORDERS)
    store.way.fail(named("GetObject"), DENIED)
    with pytest.raises(ConfigurationError):
        made.check()
    store.way.heal()
    files = made.files
    assert isinstance(files, BucketFiles)
    for said in (
        "When reading: AWS Error SLOW_DOWN during GetObject operation",
        "AWS Error NETWORK_CONNECTION: curlCode: 56",
    ):
        assert not files.is_of_content(OSError(said))
        assert isinstance(files.told(OSError(said)), LogUnavailable)
    assert files.is_of_content(OSError("could not verify page integrity, CRC checksum verification failed"))
    assert made.table.num_rows == 1000
    store.way.fail(named("HeadObject"), LostAnswer(), times=1)
    made.check()
    with pytest.raises(LogInconsistent):
        Payloads(store.root).dataset("event 1", "run/g/1/0/none.manifest#00000000-1")
