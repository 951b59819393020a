"""`DeltaSource` on a table in a bucket: what it asks the store for, which errors are waited for, and what Spark is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_logio import DeltaSource
from airflow_logio.dataflow.sources.delta_log import log_of
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, SourceChanged
from tests.support.faulty_store import (
    BROKEN,
    DENIED,
    EXPIRED,
    EXPIRED_403,
    SLOW_DOWN,
    Answer,
    FaultyStore,
    faulty_store,
    named,
)
from tests.support.lakes import reached
from tests.support.object_store import ObjectStore
from tests.unit.dataflow.test_delta_source import FEED, ranges, versions

DAYS = ["x y", "50%", "é", "a/b"]
NO_COMMIT = Answer(404, "NoSuchKey")


@pytest.fixture(scope="module")
def way(objects: ObjectStore) -> Iterator[FaultyStore]:
    """To the store; URLs name it, and this process has credentials."""
    with faulty_store(objects.port) as made, reached(objects.through(made.port)):
        yield made


@pytest.fixture(scope="module")
def written(way: FaultyStore, objects: ObjectStore) -> str:
    """A table of three versions of two files each, in a folder with a space."""
    url = f"s3://{objects.new_bucket()}/a lake/orders"
    for version in range(3):
        append(url, version, way.port)
    return f"{url}?region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{way.port}"


@pytest.fixture
def orders(way: FaultyStore, written: str) -> Iterator[str]:
    way.forget()
    yield written
    way.heal()


def append(url: str, version: int, port: int) -> None:
    rows = pa.table(
        {"id": pa.array([2 * version, 2 * version + 1], pa.int64()), "day": DAYS[version % 3 : version % 3 + 2]}
    )
    options = {"aws_endpoint_url": f"http://127.0.0.1:{port}", "aws_allow_http": "true", "aws_region": "us-east-1"}
    write_deltalake(url, rows, mode="append", partition_by=["day"], configuration=FEED, storage_options=options)


def asked(way: FaultyStore) -> Counter[str]:
    found = way.counted()
    way.forget()
    return found


def test_what_each_range_asks_of_the_store_is_counted(way: FaultyStore, orders: str) -> None:
    """As docs/how-to/lakes.md has it: requests cost money."""
    action: Any = DeltaSource(orders).action({})
    begun = asked(way)
    assert sum(begun.values()) <= 36, begun
    source, plan = DeltaSource(orders), action["plan"]  # of a driver that has not seen the table
    first: Any = source.next_action({}, action)
    source.observed({}, first["start"], first["end"])
    opened = asked(way)
    assert opened["ListObjectsV2"] == 2, "the table is opened for what it was, each time"
    second: Any = source.next_action({}, {**first, "plan": plan})
    assert asked(way) == {"HeadObject": 2, "GetObject": 2}, "the last commit, and the next"
    for _ in range(2):
        source.observed({}, second["start"], second["end"])
    assert asked(way) == {"HeadObject": 2 + 2 * 2, "GetObject": 2}, "both once more, and two files twice"


def test_a_run_without_end_asks_for_two_commits_each_second(way: FaultyStore, orders: str) -> None:
    source = DeltaSource(orders, unbounded=True, from_version=2)
    action = source.action({})
    waiting = source.next_action({}, action)
    assert waiting == {"start": action["end"], "end": action["end"]}
    way.forget()
    assert source.next_action({}, waiting) == waiting
    found = [request.key.rpartition("/")[2] for request in way.requests]
    assert set(found) == {f"{2:020}.json", f"{3:020}.json"}
    assert len(found) <= 3, "one that is not there is looked for once more"


@pytest.mark.parametrize("fault", [SLOW_DOWN, BROKEN, EXPIRED, EXPIRED_403], ids=lambda one: f"{one.status} {one.code}")
def test_a_store_that_will_answer_later_is_waited_for(way: FaultyStore, orders: str, fault: Answer) -> None:
    """No group is parked for it, and no table is taken for another one, or for none."""
    source = DeltaSource(orders, unbounded=True)
    action = source.action({})
    way.fail(lambda request: True, fault)
    asking: list[Callable[[], object]] = [
        lambda: source.next_action({}, action),
        lambda: DeltaSource(orders).observed({}, action["start"], action["end"]),
        lambda: DeltaSource(orders, snapshot=True).action({}),
    ]
    for asks in asking:
        with pytest.raises(ExternalUnavailable):
            asks()
    way.heal()
    assert source.next_action({}, action) is not None
    DeltaSource(orders).observed({}, action["start"], action["end"])


def test_a_store_that_denies_asks_for_a_person(way: FaultyStore, orders: str) -> None:
    source = DeltaSource(orders, unbounded=True)
    action = source.action({})
    way.fail(named("GetObject", "HeadObject"), DENIED)
    with pytest.raises(ConfigurationError, match=r"cannot be read.*credentials that may list the bucket"):
        source.next_action({}, action)


def test_errors_in_the_middle_pass_without_a_word(way: FaultyStore, orders: str) -> None:
    """Each client tries again by itself."""
    fault = way.fail(named("GetObject", "HeadObject"), SLOW_DOWN, times=3)
    assert versions(DeltaSource(orders)) == [(-1, 0), (0, 1), (1, 2)]
    assert fault.met == 3


def test_a_commit_that_is_seen_late_is_read_late(way: FaultyStore, objects: ObjectStore) -> None:
    """Of a run that waits; nothing is passed over, for each commit is asked for by its name."""
    url = f"s3://{objects.new_bucket()}/orders"
    at = f"{url}?region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{way.port}"
    append(url, 0, way.port)
    source = DeltaSource(at, unbounded=True)
    action = source.action({})
    for version in (1, 2):
        append(url, version, way.port)
    way.fail(named("GetObject", "HeadObject", key=f"{1:020}.json"), NO_COMMIT)
    waiting = source.next_action({}, action)
    assert waiting is not None
    assert waiting["start"] == waiting["end"] == action["end"]
    way.heal()
    following = source.next_action({}, waiting)
    assert following is not None
    assert (following["start"]["version"], following["end"]["version"]) == (0, 1)


def test_files_that_are_gone_are_named(way: FaultyStore, objects: ObjectStore) -> None:
    url = f"s3://{objects.new_bucket()}/orders"
    at = f"{url}?region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{way.port}"
    append(url, 0, way.port)
    ((start, end),) = ranges(DeltaSource(at))
    commit = log_of(at).commit(0)
    assert commit is not None
    objects.files().delete_file(f"{url.removeprefix('s3://')}/{commit.added[0].path}")
    with pytest.raises(SourceChanged, match=r"version 0 of .*1 of 2 files are gone"):
        DeltaSource(at).observed({}, start, end)


def test_spark_goes_where_arrow_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the store of the URL, or else to that of the environment; a table may fill its bucket."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    log = log_of("s3://bucket?region=eu-west-1")
    assert log.root == "s3a://bucket"
    assert log.settings["fs.s3a.bucket.bucket.endpoint"] == log.options["aws_endpoint_url"] == "http://store:9000"
    assert log.settings["fs.s3a.bucket.bucket.endpoint.region"] == log.options["aws_region"] == "eu-west-1"
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert log_of("s3://bucket/x?region=eu-west-1").options == {"aws_region": "eu-west-1"}
