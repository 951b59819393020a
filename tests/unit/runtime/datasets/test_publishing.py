"""Write actions of a `DatasetWriter`: whole files under names of the action, the same whoever executes it and how often."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio import DatasetWriter
from airflow_logio.dataflow.write_actions import WriteAction
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogInconsistent
from airflow_logio.runtime.datasets.publishing import Copies, DatasetTarget
from airflow_logio.runtime.payloads import Payloads, task_files
from tests.support.datasets import dataset_of

ORDERS = pa.table({"id": list(range(100)), "store": [number % 2 for number in range(100)]})
STEM = "run7.save.000000000003"


class Lake:
    """A folder that is published into, and what its files are copied from."""

    def __init__(self, root: Path) -> None:
        self.payloads = Payloads(str(root / "payloads"))
        self.folder = root / "lake"
        self.folder.mkdir()
        self.copies = 0
        self.fails: Exception | None = None
        self.is_shared = True

    def action(self, partition_by: tuple[str, ...] = ("store",), token: int = 2) -> WriteAction:
        epoch = self.payloads.epoch("run7", "g", 1, 0)
        made = dataset_of(epoch, ORDERS.slice(0, 50), ORDERS.slice(50), partition_by=partition_by)
        return WriteAction("run7", "save", "lake", 3, token, None, dataset=str(made.reference))

    def publish(self, action: WriteAction, url: str = "") -> None:
        writer = DatasetWriter("lake", "orders", partition_by=("store",))
        target = DatasetTarget(writer, self.payloads.dataset, self._copy)
        with target.connect(url or str(self.folder)) as place:
            target.write_group(place, [action])

    def _copy(self, what: str, copies: Copies) -> None:
        self.copies += 1
        if not self.is_shared:
            return
        list(task_files.copied(pa.Table.from_pylist([copy._asdict() for copy in copies]).to_batches()))
        if self.fails is not None:
            raise self.fails

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()
        }


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_readers_of_the_folder_find_the_records_and_a_receipt_names_the_files(lake: Lake) -> None:
    lake.publish(lake.action())
    found = pq.read_table(lake.folder / "orders").select(["id", "store"]).sort_by("id")
    assert found.column("id").to_pylist() == ORDERS.column("id").to_pylist()
    assert [int(str(store)) for store in found.column("store").to_pylist()] == ORDERS.column("store").to_pylist()
    receipt = json.loads((lake.folder / "orders" / "_logio" / f"{STEM}.json").read_text())
    named = {f"orders/{file['path']}" for file in receipt["files"]}
    assert named == {name for name in lake.files() if name.endswith(".parquet")}
    assert sum(file["records"] for file in receipt["files"]) == 100
    assert (receipt["run"], receipt["operator"], receipt["number"]) == ("run7", "save", 3)


def test_doing_it_again_makes_the_same_files(lake: Lake) -> None:
    action = lake.action()
    lake.publish(action)
    before = lake.files()
    lake.publish(action)
    assert lake.files() == before
    assert lake.copies == 2


def test_what_was_cut_short_is_completed_and_leaves_nothing_hidden(lake: Lake) -> None:
    action = lake.action()
    lake.fails = OSError("cut")
    with pytest.raises(ExternalUnavailable, match="connection 'lake': cut"):
        lake.publish(action)
    assert not list(lake.folder.rglob("*.json")), "no receipt before the files are there"
    half = lake.folder / "orders" / "store=0" / f".{STEM}.00000.parquet.1.beef"
    kept = [
        half.with_name(".run8.save.000000000001.00000.parquet.1.beef"),  # of another run
        half.with_name(f".{STEM}.00000.parquet.2.beef"),  # of a task of this driver
        half.with_name(f".{STEM}.00000.parquet.3.beef"),  # of a successor: then this driver is the replaced one
    ]
    for path in (half, *kept):
        path.write_bytes(b"half of a file")
    lake.fails = None
    lake.publish(action)
    assert not half.exists()
    assert all(path.exists() for path in kept)
    assert pq.read_table(lake.folder / "orders").num_rows == 100


def test_an_action_without_records_leaves_a_receipt_only(lake: Lake) -> None:
    epoch = lake.payloads.epoch("run7", "g", 1, 0)
    made = dataset_of(epoch, ORDERS.slice(0, 0))
    lake.publish(WriteAction("run7", "save", "lake", 3, 1, None, {}, dataset=str(made.reference)))
    assert list(lake.files()) == [f"orders/_logio/{STEM}.json"]
    assert lake.copies == 0


def test_executors_that_copy_to_where_nobody_looks_are_noticed(lake: Lake) -> None:
    lake.is_shared = False
    with pytest.raises(ConfigurationError, match=r"and the driver does not see them; driver and all executors need"):
        lake.publish(lake.action())
    assert not list(lake.folder.rglob("*.json")), "no receipt of what is not there"


def test_a_folder_that_is_not_there_is_not_made(lake: Lake, tmp_path: Path) -> None:
    """Else records would go to the disk below a mount that has failed."""
    with pytest.raises(ConfigurationError, match=r"connection 'lake': there is no folder .*nowhere; make or mount it"):
        lake.publish(lake.action(), str(tmp_path / "nowhere"))


@pytest.mark.parametrize("url", ["s3://bucket/x", "relative/path", "postgresql://h/d"])
def test_a_connection_that_is_no_folder_is_refused(lake: Lake, url: str) -> None:
    with pytest.raises(ConfigurationError, match="connection 'lake' is no folder"):
        lake.publish(lake.action(), url)


def test_a_dataset_that_is_damaged_is_not_published(lake: Lake) -> None:
    action = lake.action()
    next((Path(str(lake.folder.parent)) / "payloads").rglob("*.parquet")).unlink()
    with pytest.raises(LogInconsistent, match="write action 3 of 'save' has lost a file"):
        lake.publish(action)
    assert not lake.copies


def test_a_file_that_is_in_the_way_is_named(lake: Lake) -> None:
    (lake.folder / "orders").write_text("a file")
    with pytest.raises(ConfigurationError, match=r"write action 3 of 'save' cannot be written: .*orders"):
        lake.publish(lake.action())
