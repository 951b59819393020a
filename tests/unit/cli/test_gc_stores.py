"""`logio gc`, as a person types it, where the payload store is a bucket or on HDFS."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.systems.payloads import Payloads
from airflow_logio.systems.payloads.file_roots import data_files
from airflow_logio.systems.payloads.hdfs_client import Hdfs as Client
from airflow_logio.systems.payloads.hdfs_streams import Writing
from airflow_logio.systems.payloads.task_files import new_files
from tests.store.test_maintenance import finish
from tests.support.hdfs import Hdfs, hdfs
from tests.support.lakes import reached
from tests.support.logs import open_sql_store
from tests.support.object_store import ObjectStore
from tests.support.yarn_cluster import why_no_yarn
from tests.unit.cli.test_gc import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    pytest.importorskip("hdfs_native")
    if (why := why_no_yarn()) is not None:
        pytest.skip(why)
    with hdfs(tmp_path_factory.mktemp("hdfs")) as found:
        yield found


Listed = Callable[[], list[str]]


@pytest.fixture(params=["bucket", "hdfs"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, Listed]]:
    """The root of a payload store, and what lists all that is below it: objects, or files and folders."""
    if request.param == "hdfs":
        root = f"{request.getfixturevalue('cluster').url}/lake/payloads"
        yield root, lambda: sorted(path for path, _ in Client(root).listed("", is_deep=True))
        return
    objects: ObjectStore = request.getfixturevalue("objects")
    with reached(objects):
        url = objects.new_url("lake")
        yield url, lambda: [key.removeprefix("lake/") for key in current(objects, url)]


def current(objects: ObjectStore, url: str) -> list[str]:
    bucket = url.partition("://")[2].partition("/")[0]
    pages = objects.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return sorted(item["Key"] for page in pages for item in page.get("Contents", ()))


def terminal_at(
    root: str, sqlite_url: str, tmp_path: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    patch.chdir(tmp_path)
    patch.setenv("HOME", str(tmp_path))
    patch.setenv("LOGIO_URL", sqlite_url)
    patch.setenv("LOGIO_PAYLOADS_LOGIO_DEFAULT", root)
    patch.setattr(sys, "argv", ["logio"])
    return Terminal(open_sql_store(sqlite_url), Payloads(root), patch, capsys)


def aged(terminal: Terminal) -> None:
    """Runs that have ended did so two hours earlier."""
    with terminal.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE logio_run SET ended_at = ended_at - 7200")


def uploaded(root: str, *epochs: str) -> set[str]:
    """What tasks write, and no row names: a file for each epoch."""
    batches = pa.table({"n": [1, 2, 3]}).to_batches()
    folders = [f"{epoch}/datasets/a.1" for epoch in epochs]
    return {name for folder in folders for name, *_ in new_files(data_files(root), folder, (), batches)}


def test_only_what_nothing_names_of_runs_that_have_ended_goes(
    place: tuple[str, Listed],
    sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run has ended, one is removed, one lives; zombies of each write late; another log has files here, too."""
    root, listed = place
    terminal = terminal_at(root, sqlite_url, tmp_path, monkeypatch, capsys)
    try:
        gone, _ = terminal.run("gone")
        open_file = Writing(Client(root), f"{gone.uid}/b/1/0/bodies/open") if root.startswith("hdfs") else None
        uploaded(root, f"{gone.uid}/b/1/0")
        aged(terminal)
        code, said = terminal.logio("gc", "--older-than", "1h")
        assert code == 0 and "removed run gone" in said
        assert listed() == []
        if open_file is not None:
            with pytest.raises(FileNotFoundError):
                open_file.write(b"late")

        ended, _ = terminal.run("ended")
        living, drivers = terminal.run("living", ended=False)
        uploaded(root, f"{gone.uid}/b/1/0", f"{ended.uid}/b/1/0")
        other = uploaded(root, f"{'0' * 32}/a/1/0")
        kept = other | uploaded(root, f"{living.uid}/a/1/0", f"{living.uid}/b/1/0")
        before = set(terminal.files(living))
        assert len(before) == 3, "one body is named, two files are not yet"
        code, said = terminal.logio("gc")
        assert code == 0 and "1 files of removed runs" in said
        assert {path for path in listed() if path.endswith(".parquet")} == kept
        assert set(terminal.files(living)) == before
        assert terminal.files(ended) == terminal.files(gone) == []

        finish(drivers, "a", "b", "c")
        assert terminal.store.finish_run(living.run_id)
        aged(terminal)
        assert terminal.logio("gc", "--older-than", "1h")[0] == 0
        assert {path for path in listed() if path.endswith(".parquet")} == other
        Payloads(root).discard(other, "0" * 32)
        assert listed() == []
    finally:
        terminal.store.dispose()


def test_versions_keep_what_is_removed_and_that_is_said(
    objects: ObjectStore,
    sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of the payload store, and of a bucket that an ended run has published into."""
    client: Any = objects.client()
    with reached(objects):
        root, published = objects.new_url("lake"), objects.new_url("orders")
        buckets = [url.partition("://")[2].partition("/")[0] for url in (root, published)]
        for bucket in buckets:
            client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        for content in (b"old", b"newer"):
            client.put_object(Bucket=bucket, Key="orders/part", Body=content)
        monkeypatch.setenv("LOGIO_CONN_WAREHOUSE_DEFAULT", f"{published}&consistent=yes")
        terminal = terminal_at(root, sqlite_url, tmp_path, monkeypatch, capsys)
        try:
            terminal.run("run-1")
            aged(terminal)
            code, said = terminal.logio("gc", "--older-than", "1h")
        finally:
            terminal.store.dispose()
        said = " ".join(said.split())
        assert code == 0 and "removed run run-1" in said
        assert current(objects, root) == []
        assert f"1 of 5 bytes, and 1 marks of removals, stay in s3://{buckets[0]}/lake." in said
        assert f"1 of 3 bytes, and 0 marks of removals, stay in s3://{buckets[1]}/orders." in said
        assert "geheim" not in said
