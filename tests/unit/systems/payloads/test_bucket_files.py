"""The files of datasets in a bucket, as tasks write and read them: a server that speaks S3, and no JVM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio import FolderSource, Pipeline
from airflow_logio.dataflow.writers.bucket_clients import s3a_settings, s3fs_options
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.start_run import _check_storable
from airflow_logio.systems import bucket_roots
from airflow_logio.systems.bucket_roots import BucketRoot
from airflow_logio.systems.payloads import Payloads, task_files
from airflow_logio.systems.payloads.bucket_files import BucketFiles
from airflow_logio.systems.payloads.file_roots import data_files, located
from tests.support.lakes import reached
from tests.support.object_store import ObjectStore

ORDERS = pa.table({"id": list(range(1000)), "store": [number % 3 for number in range(1000)]})


@pytest.fixture
def root(objects: ObjectStore) -> Iterator[str]:
    with reached(objects):
        yield objects.new_url("lake/payloads")


def names(objects: ObjectStore, root: str) -> list[str]:
    """Keys of all objects in the bucket of a root."""
    bucket = BucketRoot.of(root).authority
    from pyarrow import fs

    found = objects.files().get_file_info(fs.FileSelector(bucket, recursive=True))
    return sorted(info.path.partition("/")[2] for info in found if info.is_file)


def lines(root: str, *tables: pa.Table, **how: Any) -> list[dict[str, Any]]:
    """What a task says of each file."""
    batches = [batch for table in tables for batch in table.to_batches(100)]
    found = task_files.written(root, "run/g/1/0/d.1", how.pop("partition_by", ()), batches, **how)
    return [line for batch in found for line in batch.to_pylist()]


def test_a_line_says_of_an_object_what_every_reader_finds(root: str, objects: ObjectStore) -> None:
    """Path, size, footer and records; without another request for what has just been written."""
    found, files = lines(root, ORDERS, partition_by=("store",)), data_files(root)
    assert sorted(line["partition"] for line in found) == ["store=0", "store=1", "store=2"]
    assert names(objects, root) == sorted(f"lake/payloads/{line['path']}" for line in found)
    for line in found:
        assert not line["error"]
        assert files.size(line["path"]) == line["size"]
        assert files.footer(line["path"], line["size"]) == line["footer"]
        assert files.footer(line["path"], line["size"] - 1) is None
        again, path = located(files.location(line["path"]))
        with again.open(path) as file:
            assert pq.read_table(file).num_rows == line["records"]
    with pytest.raises(FileNotFoundError):
        files.footer("run/none", 1)
    with pytest.raises(FileNotFoundError):
        files.size("run/none")
    with pytest.raises(FileNotFoundError):
        files.open("run/none")


def test_a_footer_that_is_longer_than_what_is_kept_of_a_file_is_read_again(root: str) -> None:
    wide = pa.table({f"column {number:05d} of many": [number] for number in range(9000)})
    (line,) = lines(root, wide)
    files = data_files(root)
    with files.open(line["path"]) as file:
        assert file.size() == line["size"]
        file.seek(line["size"] - 8)
        assert int.from_bytes(file.read(4), "little") > 2**20
    assert files.footer(line["path"], line["size"]) == line["footer"]


def test_a_task_that_fails_puts_no_object(root: str, objects: ObjectStore) -> None:
    """Neither a small one, which would be put when it is closed, nor one of which parts were sent: they are no objects."""
    noise = pa.table({"noise": [bytes([number % 256, number // 256 % 256]) * 2**13 for number in range(3000)]})

    def failing(table: pa.Table) -> Iterator[pa.RecordBatch]:
        yield from table.to_batches(100)
        raise ValueError("of the author")

    for table in (ORDERS, noise):
        with pytest.raises(ValueError, match="of the author"):
            list(task_files.written(root, "d", (), failing(table), most_bytes=8 * 2**20))
    left = [name for name in names(objects, root) if re.fullmatch(r"lake/payloads/d/\w{32}\.parquet", name)]
    files = data_files(root)
    for name in left:  # those that were whole before it failed
        with files.open(name.removeprefix("lake/payloads/")) as file:
            assert pq.read_metadata(file).num_rows > 0


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        (("s3://", "s3://none"), "ConfigurationError", "Make the bucket, or correct the URL of the payload store"),
        (("127.0.0.1:", "127.0.0.1:1?"), "LogUnavailable", "NETWORK_CONNECTION|curlCode|[Cc]onnect"),
    ],
    ids=["no such bucket", "nothing listens"],
)
def test_what_a_store_says_is_in_a_line_and_all_records_are_taken(
    root: str, changed: tuple[str, str], error: str, says: str
) -> None:
    """Spark would try a task that raises again at once, and waits for a task that does not read."""
    other = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", root) if error == "LogUnavailable" else root.replace(*changed)
    taken = []

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in ORDERS.to_batches(100):
            taken.append(batch.num_rows)
            yield batch

    (found,) = task_files.written(other, "d", (), watched())
    (line,) = found.to_pylist()
    assert (line["error"], line["path"]) == (error, "")
    assert re.search(says, line["said"]), line["said"]
    assert sum(taken) == 1000


@pytest.mark.parametrize(
    ("root", "says"),
    [
        ("s3a://bucket/path", "write s3://bucket/path"),
        ("s3n://bucket/path", "write s3://bucket/path"),
        ("wasbs://c@account.blob.core.windows.net/p", "write abfss://"),
        ("swift://bucket/path", "Hadoop has no client for it"),
        ("memory://x", "is no place for datasets"),
        ("s3://anna:geheim@bucket/path", "environment"),
        ("s3://bucket:9000/path", "a port goes into endpoint_override"),
        ("s3://bucket/path?access_key=geheim", "takes region, endpoint_override, scheme"),
        ("s3://bucket/path?endpoint_override=anna:geheim@host", "nothing else"),
        ("s3://bucket/path?endpoint_override=http://host:1", "endpoint_override=HOST:PORT"),
        ("s3://bucket/pa*th", "pattern"),
        ("s3://bucket/a%20b", "pattern"),
        ("s3://bucket/a//b", "an empty name"),
        ("s3://bucket/../b", "an empty name"),
        ("s3:///path", "has no bucket"),
        ("abfss://account.dfs.core.windows.net/path", "has no bucket"),
        ("abfss://c@account.dfs.core.windows.net/path?sas=geheim", "takes no parameters"),
    ],
)
def test_a_root_that_not_all_clients_understand_is_refused_without_its_secret(root: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)) as refused:
        BucketFiles(root)
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    ("root", "library", "says"),
    [
        ("s3://bucket/path", "s3fs", "pip install s3fs"),
        ("gs://bucket/path", "gcsfs", "pip install 'airflow-logio[gcs]'"),
        ("abfss://c@account.dfs.core.windows.net/path", "adlfs", "pip install 'airflow-logio[azure]'"),
    ],
)
def test_a_library_that_is_missing_is_named_before_a_run(
    root: str, library: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_roots, "find_spec", lambda name: None if name == library else find_spec(name))
    pipeline = Pipeline("p")
    pipeline.source("raw", FolderSource("/orders"))
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        _check_storable(pipeline, {}, root)
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        Payloads(root)


def test_each_client_is_told_of_the_same_store() -> None:
    at = BucketRoot.of("s3://bucket/a/b/?region=eu-west-1&endpoint_override=store:9000&scheme=http")
    assert at.arrow_url() == "s3://bucket?region=eu-west-1&endpoint_override=store:9000&scheme=http"
    assert at.hadoop_options() == s3a_settings(at.url())
    assert at.fsspec_options() == s3fs_options(at.url())
    assert at.hadoop_url("run/1.parquet") == "s3a://bucket/a/b/run/1.parquet"
    assert at.hadoop_url("run/1.parquet", "s3") == "s3://bucket/a/b/run/1.parquet"
    google = BucketRoot.of("gs://bucket/a?endpoint_override=store:9000&scheme=http")
    assert google.fsspec_options() == {"endpoint_url": "http://store:9000"}
    assert google.hadoop_options() == {"fs.gs.storage.root.url": "http://store:9000/"}
    assert google.hadoop_url("b") == "gs://bucket/a/b"
    azure = BucketRoot.of("abfss://c@account.dfs.core.windows.net/a")
    assert azure.hadoop_url("b") == "abfss://c@account.dfs.core.windows.net/a/b"
