"""What is acknowledged is on the disk: the order of calls that make it so, since a test cannot cut the power."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.dataflow import ParquetWriter, WriteAction
from airflow_logio.dataflow.writers import parquet_writer
from airflow_logio.dataflow.writers.folder_days import DAYS, RECEIPTS
from airflow_logio.dataflow.writers.published_folder import RUNS
from airflow_logio.systems.payloads import Payloads, task_files
from tests.support.datasets import dataset_of
from tests.support.lakes import FolderLake
from tests.support.own_calls import as_seen, replace_call
from tests.support.publishers import DayPublisher, Publisher

Call = tuple[str, str]
"""A call and the path that it is about; of a name that is given to a file, the new one."""


@contextmanager
def recorded() -> Iterator[list[Call]]:
    calls: list[Call] = []

    def watched(name: str, real: Any) -> Any:
        def call(*arguments: Any, **settings: Any) -> Any:
            about = arguments[1] if name in ("link", "replace") else arguments[0]
            path = os.readlink(f"/proc/self/fd/{about}") if isinstance(about, int) else os.fspath(about)
            done = real(*arguments, **settings)
            calls.append((name, path))
            return done

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("link", "replace", "chmod", "fchmod", "fsync"):
            replace_call(patch, os, name, watched(name, getattr(os, name)))
        yield calls


@pytest.fixture
def root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def test_files_are_on_the_disk_before_the_receipt_that_names_them(root: Path) -> None:
    """Link, sync of the folder, the receipt synced under a hidden name, its own name, sync of that folder."""
    lake = FolderLake(root)
    driver = Publisher(lake.url, Payloads(str(root / "payloads")), 1, "append", 1)
    made = driver.action(2, ((1, 0), (2, 1)))
    with recorded() as calls:
        driver.publish(*driver.opening(), made)
    links = [(at, path) for at, (call, path) in enumerate(calls) if call == "link"]
    receipts = [(at, path) for at, (call, path) in enumerate(calls) if call == "replace" and f"/{RECEIPTS}/" in path]
    assert links and receipts
    named, receipt = receipts[-1]
    for at, path in links:
        assert ("fsync", os.path.dirname(path)) in calls[at + 1 : named], "a crash would take the name of the file away"
    before = [path for call, path in calls[:named] if call == "fsync"]
    assert os.path.dirname(before[-1]) == os.path.dirname(receipt), "the receipt's content comes before its name"
    assert os.path.isfile(receipt) and os.path.basename(before[-1]).startswith(".")
    assert ("fsync", os.path.dirname(receipt)) in calls[named + 1 :], "or it would be acknowledged and gone"
    assert any(call == "fsync" and path.endswith(RUNS) for call, path in calls[: links[0][0]]), (
        "its run is known by then"
    )


def test_a_day_is_on_the_disk_in_the_order_claim_files_receipt(root: Path) -> None:
    """The sign comes before the claim: an earlier version must not read a folder that has a day."""
    lake = FolderLake(root)
    driver = DayPublisher(lake.url, Payloads(str(root / "payloads")), 4)
    made = driver.action(2, ((1, 1), (2, 1)))
    with recorded() as calls:
        driver.open_day()
        driver.close_day(made)
    folder = os.path.join(lake.root, "orders")
    day, records = os.path.join(folder, "store=1"), os.path.join(folder, DAYS, "store=1")
    order = [
        ("fsync", os.path.join(folder, RECEIPTS)),
        ("fsync", records),
        ("link", os.path.join(day, "a4.save.000000000002.00000.parquet")),
        ("fsync", day),
        ("replace", os.path.join(records, driver.mine.receipt("save"))),
        ("fsync", records),
    ]
    left = iter(calls)
    assert all(one in left for one in order), [one for one in calls if one in order]


def test_the_mode_of_a_file_is_on_the_disk_before_it_has_a_name_there(root: Path) -> None:
    """The payload store's files are their owner's only; published ones are what new files of this process are."""
    lake = FolderLake(root)
    driver = Publisher(lake.url, Payloads(str(root / "payloads")), 1, "append", 1)
    made = driver.action(2, ((1, 0), (2, 1)))
    with recorded() as calls:
        driver.publish(*driver.opening(), made)
    changed = [(at, path) for at, (call, path) in enumerate(calls) if call == "chmod"]
    first_link = next(at for at, (call, _) in enumerate(calls) if call == "link")
    assert changed
    for at, path in changed:
        assert ("fsync", path) in calls[at + 1 : first_link]


def test_a_file_of_sparks_writer_has_its_mode_before_it_is_synced(root: Path) -> None:
    (root / "job").mkdir()
    pq.write_table(pa.table({"n": [1]}), root / "job" / "a.parquet")
    with recorded() as calls:
        assert len(task_files.sealed_files(str(root), 0o640, ["job/a.parquet"])) == 1
    path = str(root / "job" / "a.parquet")
    assert [call for call in calls if call[1] == path] == [("fchmod", path), ("fsync", path)]


def test_a_payload_is_on_the_disk_with_every_folder_above_it(root: Path) -> None:
    store = Payloads(str(root / "payloads"))
    with recorded() as calls:
        reference = store.epoch("run", "g", 1, 0).store("bodies/a.out/1", b"body")
    path = root / "payloads" / reference.path
    synced = [path for call, path in calls if call == "fsync"]
    assert synced[-2:] == [str(path), str(path.parent)], "its content, then its name"
    above = [str(folder) for folder in path.parent.parents if folder.is_relative_to(root)]
    assert set(above) <= set(synced), "a new folder is an entry of the one above it"


def test_a_copy_is_on_the_disk_before_it_has_its_name_and_so_is_the_name(root: Path) -> None:
    source, target = root / "a", root / "b"
    source.write_bytes(b"12345")
    with recorded() as calls:
        task_files.copied_file(str(source), str(target), 5, ".half-")
    (_, hidden), renamed, last = calls
    assert [call for call, _ in calls] == ["fsync", "replace", "fsync"]
    assert Path(hidden).name.startswith(".half-") or hidden == str(target)
    assert (renamed[1], last[1]) == (str(target), str(root))


def test_a_file_of_a_dataset_is_on_the_disk_before_its_line_is_told(root: Path) -> None:
    epoch = Payloads(str(root / "payloads")).epoch("run", "g", 1, 0)
    with recorded() as calls:
        made = dataset_of(epoch, pa.table({"n": [1, 2]}))
    (path,) = made.paths()
    synced = [path for call, path in calls if call == "fsync"]
    assert path in synced and os.path.dirname(path) in synced[synced.index(path) :]
    manifest = str(root / "payloads" / made.reference.path)
    assert synced.index(manifest) > synced.index(path), "what names it comes behind it"


def test_a_file_of_a_parquet_writer_is_on_the_disk_before_it_has_its_name(root: Path) -> None:
    writer = ParquetWriter("lake")
    action = WriteAction("run1", "save", "lake", 1, 1, pa.table({"n": [1]}), {"action": "insert"})
    target, had_its_name = root / "run1" / "save" / "000000000001.parquet", {}
    real = os.fsync

    def fsync(descriptor: int) -> None:
        had_its_name[os.readlink(f"/proc/self/fd/{descriptor}")] = target.exists()
        real(descriptor)

    with pytest.MonkeyPatch.context() as patch, writer.connect(str(root)) as place:
        patch.setattr(parquet_writer, "os", as_seen(os, fsync=fsync))
        writer.write(place, action)
    assert had_its_name[str(target.with_name(f".{target.name}.1.tmp"))] is False
    assert had_its_name[str(target.parent)] is True, "the name, too, before the action is done"
    assert {str(root), str(root / "run1")} <= set(had_its_name)
