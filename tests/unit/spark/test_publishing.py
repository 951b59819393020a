"""Write actions of a `DatasetWriter`: whole files under names of the action, however often it is executed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio import published_files
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogInconsistent, SparkLost
from airflow_logio.systems.payloads import Payloads
from tests.store.small_disk import small_folder
from tests.support.datasets import dataset_of
from tests.support.publishers import Publisher, counted, listed

ROWS = [(number, number % 2) for number in range(100)]
STEM = "run7.save.000000000003"


class Lake:
    """A folder that is published into, and what its files come from: of the same file system, or of another one."""

    def __init__(self, root: Path, payloads: Path | None = None) -> None:
        self.folder = root / "lake"
        self.folder.mkdir()
        self.payloads = payloads or root / "payloads"
        self.driver = Publisher(self.folder, Payloads(str(self.payloads)), 7, token=2)

    def action(self) -> WriteAction:
        return self.driver.action(3, ROWS[:50], ROWS[50:])

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()
        }

    def published(self) -> list[Path]:
        return sorted(self.folder.rglob("*.parquet"))

    def receipts(self) -> list[Path]:
        return list(self.folder.rglob("*.json"))

    def inodes(self) -> tuple[set[int], set[int]]:
        """Of published files, and of those of the payload store."""
        return {path.stat().st_ino for path in self.published()}, {
            path.stat().st_ino for path in self.payloads.rglob("*.parquet")
        }


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Lake]:
    """Its payload store is on another file system, so that there are no links."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    assert folder.stat().st_dev != tmp_path.stat().st_dev
    yield Lake(tmp_path, folder)
    shutil.rmtree(folder)


def test_readers_of_the_folder_find_the_records_and_a_receipt_names_the_files(lake: Lake) -> None:
    lake.driver.publish(lake.action())
    assert listed(lake.folder) == counted(lake.folder) == sorted(ROWS)
    receipt = json.loads((lake.folder / "orders" / "_logio" / f"{STEM}.json").read_text())
    named = {f"orders/{file['path']}" for file in receipt["files"]}
    assert named == {name for name in lake.files() if name.endswith(".parquet")}
    assert sum(file["records"] for file in receipt["files"]) == 100
    assert (receipt["run"], receipt["operator"], receipt["number"]) == ("run7", "save", 3)
    assert {name for name in lake.files() if "/runs/" in name} == {"orders/_logio/runs/00000000007000000.run7.joins"}


def test_on_one_file_system_no_byte_is_written_twice(lake: Lake) -> None:
    lake.driver.publish(lake.action())
    published, stored = lake.inodes()
    assert published == stored
    assert not lake.driver.copied
    shutil.rmtree(lake.payloads)  # retention
    assert listed(lake.folder) == counted(lake.folder) == sorted(ROWS)


def test_on_another_file_system_executors_copy(far: Lake) -> None:
    far.driver.publish(far.action())
    published, stored = far.inodes()
    assert published.isdisjoint(stored)
    assert far.driver.copied == 4
    assert listed(far.folder) == counted(far.folder) == sorted(ROWS)


@pytest.mark.parametrize("where", ["lake", "far"])
def test_doing_it_again_makes_the_same_files(where: str, request: pytest.FixtureRequest) -> None:
    one: Lake = request.getfixturevalue(where)
    action = one.action()
    one.driver.publish(action)
    before, copied = one.files(), one.driver.copied
    one.driver.publish(action)
    assert one.files() == before
    assert one.driver.copied == copied, "what is there is whole"
    for number, path in enumerate(one.published()):
        path.unlink()
        if number % 2:
            path.write_bytes(b"half of a file")
    one.driver.publish(action)
    assert one.files() == before
    assert published_files(one.folder / "orders"), "and it counts"


# --- how published files look -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_a_link_has_the_mode_of_a_new_file(lake: Lake, umask: int, mode: int) -> None:
    """The payload store's folders are for their owner only, whatever is published."""
    action = lake.action()
    before = os.umask(umask)
    try:
        lake.driver.publish(action)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in lake.published()} == {mode}
    assert len(set.union(*lake.inodes())) == 4, "linked"
    assert stat.S_IMODE(lake.payloads.stat().st_mode) == 0o700


def test_a_link_has_the_group_that_the_folder_gives(lake: Lake) -> None:
    groups = {0, *os.getgroups()} if os.geteuid() else {0, 54321}
    for number, group in enumerate(sorted(groups)):
        folder = lake.folder / "orders" / f"store={number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, -1, group)
        folder.chmod(0o2775)
    lake.driver.publish(lake.action())
    assert all(path.stat().st_gid == path.parent.stat().st_gid for path in lake.published())
    assert len(set.union(*lake.inodes())) == 4, "linked"


def test_what_a_link_cannot_look_like_is_copied(lake: Lake) -> None:
    """A folder with a default access list, which new files in it inherit."""
    entries = ((0x01, 7, 2**32 - 1), (0x02, 4, 4711), (0x04, 5, 2**32 - 1), (0x10, 5, 2**32 - 1), (0x20, 0, 2**32 - 1))
    listing = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    folder = lake.folder / "orders" / "store=1"
    folder.mkdir(parents=True)
    os.setxattr(folder, "system.posix_acl_default", listing)
    lake.driver.publish(lake.action())
    assert lake.driver.copied == 2, "the other partition is linked"
    assert all("system.posix_acl_access" in os.listxattr(path) for path in folder.iterdir())
    assert listed(lake.folder) == counted(lake.folder) == sorted(ROWS)


def test_a_file_that_was_edited_in_place_is_noticed_before_its_receipt(lake: Lake) -> None:
    """Of a link the payload store's file is another name: it is no longer what the log refers to."""
    action = lake.action()
    lake.driver.publish(action)
    for path in lake.receipts():
        path.unlink()
    with lake.published()[0].open("ab") as file:
        file.write(b"more")
    with pytest.raises(LogInconsistent, match=r"is damaged: .* is not the file that its manifest names"):
        lake.driver.publish(action)
    assert not lake.receipts()


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_what_was_cut_short_is_completed_and_leaves_nothing_hidden(far: Lake) -> None:
    action = far.action()
    far.driver.fails = OSError("cut")
    with pytest.raises(ExternalUnavailable, match="connection 'lake': cut"):
        far.driver.publish(action)
    assert not far.receipts(), "no receipt before the files are there"
    half = far.folder / "orders" / "store=0" / f".{STEM}.00000.parquet.1.beef"
    kept = [
        half.with_name(".run8.save.000000000001.00000.parquet.1.beef"),  # of another run
        half.with_name(".run7.load.000000000001.00000.parquet.2.beef"),  # of another operator
        half.with_name(f".{STEM}.00000.parquet.3.beef"),  # of a successor: then this driver is the replaced one
    ]
    for path in (half, *kept):
        path.write_bytes(b"half of a file")
    far.driver.fails = None
    far.driver.publish(action)
    assert not half.exists()
    assert all(path.exists() for path in kept)
    assert pq.read_table(far.folder / "orders").num_rows == 100


@pytest.mark.parametrize("error", [None, OSError("no space left")])
def test_what_a_killed_task_has_left_goes_with_the_connection(far: Lake, error: Exception | None) -> None:
    """Another attempt has copied the file, or the job has failed: no driver may ever look into the folder again."""
    half = far.folder / "orders" / "store=0" / f".{STEM}.00000.parquet.2.beef"
    far.driver.before_copies = lambda: half.write_bytes(b"half of a file")
    far.driver.fails = error
    with pytest.raises(ExternalUnavailable) if error else nullcontext():
        far.driver.publish(far.action())
    assert [path.name for path in half.parent.iterdir() if path.name.startswith(".")] == []
    assert len(far.published()) == 4


def test_what_a_killed_task_has_left_hides_no_error(far: Lake) -> None:
    """A folder that is gone would be a misconfiguration, and Spark's end is not."""
    far.driver.fails = SparkLost("the executor")
    far.driver.after_copies = lambda: shutil.rmtree(far.folder / "orders")
    with pytest.raises(SparkLost, match="the executor"):
        far.driver.publish(far.action())


def test_an_action_without_records_leaves_a_receipt_only(lake: Lake) -> None:
    epoch = Payloads(str(lake.payloads)).epoch("run7", "g", 1, 0)
    made = dataset_of(epoch, pa.table({"id": [1], "store": [1]}).slice(1))
    lake.driver.publish(WriteAction("run7", "save", "lake", 3, 1, pa.table({}), dataset=str(made.reference)))
    assert sorted(lake.files()) == [
        f"orders/_logio/{STEM}.json",
        "orders/_logio/runs/00000000007000000.run7.joins",
    ]


def test_executors_that_copy_to_where_nobody_looks_are_noticed(far: Lake) -> None:
    far.driver.is_shared = False
    with pytest.raises(ConfigurationError, match=r"and the driver does not see them; driver and all executors need"):
        far.driver.publish(far.action())
    assert not far.receipts(), "no receipt of what is not there"


def test_a_folder_that_is_not_there_is_not_made(lake: Lake, tmp_path: Path) -> None:
    """Else records would go to the disk below a mount that has failed."""
    with pytest.raises(ConfigurationError, match=r"connection 'lake': there is no folder .*nowhere; make or mount it"):
        lake.driver.publish(lake.action(), url=str(tmp_path / "nowhere"))


@pytest.mark.parametrize("url", ["gs://bucket/x", "relative/path", "postgresql://h/d"])
def test_a_connection_that_is_no_folder_is_refused(lake: Lake, url: str) -> None:
    with pytest.raises(ConfigurationError, match="connection 'lake' is no folder"):
        lake.driver.publish(lake.action(), url=url)


def test_a_dataset_that_is_damaged_is_not_published(lake: Lake) -> None:
    action = lake.action()
    next(lake.payloads.rglob("*.parquet")).unlink()
    with pytest.raises(LogInconsistent, match="write action 3 of 'save' has lost a file"):
        lake.driver.publish(action)
    assert not lake.published()


def test_a_file_that_is_in_the_way_is_named(lake: Lake) -> None:
    (lake.folder / "orders").write_text("a file")
    with pytest.raises(ConfigurationError, match=r"write action 3 of 'save' cannot be written: .*orders"):
        lake.driver.publish(lake.action())


def test_a_full_disk_is_waited_for_and_one_that_is_read_only_is_not(tmp_path: Path) -> None:
    with small_folder(tmp_path / "disk") as disk:
        disk.path.mkdir(exist_ok=True)
        linking = Lake(disk.path)
        (tmp_path / "other").mkdir()
        copying = Lake(tmp_path / "other")
        copying.folder = disk.path / "copies"
        copying.folder.mkdir()
        copying.driver = Publisher(copying.folder, Payloads(str(copying.payloads)), 7, token=2)
        for one in (linking, copying):
            action = one.action()
            disk.fill()
            with pytest.raises(ExternalUnavailable, match=r"connection 'lake': .*(No space left|File too large)"):
                one.driver.publish(action)
            assert not [path for path in one.receipts() if path.stat().st_size]
            assert counted(one.folder) == []
            disk.make_room()
            one.driver.publish(action)
            assert listed(one.folder) == counted(one.folder) == sorted(ROWS)
        action = copying.driver.action(4, ROWS)
        if disk.is_mounted:
            subprocess.run(["mount", "-o", "remount,ro", str(disk.path)], check=True)
        else:
            (copying.folder / "orders" / "_logio").chmod(0o500)
        with pytest.raises(
            ConfigurationError, match=r"write action 4 of 'save' cannot be written: .*(Read-only|denied)"
        ):
            copying.driver.publish(action)
        if not disk.is_mounted:
            (copying.folder / "orders" / "_logio").chmod(0o700)
