"""Datasets: a manifest names what is durable and whole, whatever becomes of its files later; nothing else is kept."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.errors import ConfigurationError, LogInconsistent, LogUnavailable, OperatorFailed
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind
from airflow_logio.store.port import LogStore
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.payloads import EpochPayloads, Payloads, dataset, sweep_group, task_files
from airflow_logio.systems.payloads.manifests import DataFile, Manifest, manifest_of
from tests.store.small_disk import small_folder
from tests.support.datasets import dataset_of
from tests.support.logs import IN, OUT, replace_driver, start_driver
from tests.support.own_calls import replace_call

ORDERS = pa.table({"id": list(range(1000)), "store": [number % 3 for number in range(1000)]})


@pytest.fixture
def payloads(tmp_path: Path) -> Payloads:
    return Payloads(str(tmp_path))


@pytest.fixture
def epoch(payloads: Payloads) -> EpochPayloads:
    return payloads.epoch("run", "g", 1, 0)


# --- what comes back --------------------------------------------------------------------------------------------------


def test_a_dataset_is_found_by_its_reference_whole(payloads: Payloads, epoch: EpochPayloads) -> None:
    made = dataset_of(epoch, ORDERS.slice(0, 600), ORDERS.slice(600))
    found = payloads.dataset("event 1 of s.out", str(made.reference))
    assert found.num_rows == 1000
    assert len(found.paths()) == 2
    assert payloads.table("event 1", str(made.reference)).sort_by("id").equals(ORDERS)


def test_no_records_are_no_files_and_a_schema(payloads: Payloads, epoch: EpochPayloads) -> None:
    made = dataset_of(epoch, ORDERS.slice(0, 0))
    assert made.paths() == []
    assert payloads.table("event 1", str(made.reference)).equals(ORDERS.slice(0, 0))


def test_a_table_that_is_too_large_for_a_driver_is_refused(
    epoch: EpochPayloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "MAX_TABLE_BYTES", 100)
    with pytest.raises(OperatorFailed, match=r"event 1 of s\.out is a dataset of .* or let the operator run in mode"):
        _ = dataset_of(epoch, ORDERS).table


@pytest.mark.parametrize("most", [1, 7, 400, 10_000])
def test_batches_are_the_records_in_the_same_order_with_their_numbers(
    epoch: EpochPayloads, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(dataset, "BATCH_RECORDS", most)
    at = pa.array([dt.datetime(2024, 3, 31, 2, 30, tzinfo=dt.UTC)] * 1000, pa.timestamp("us", "UTC"))
    orders = ORDERS.append_column("at", at)
    made = dataset_of(epoch, orders.slice(0, 600), orders.slice(600, 1), orders.slice(601))
    seen = 0
    for first, batch in made.batches():
        assert (first, batch.schema) == (seen, made.table.schema)
        assert 0 < batch.num_rows <= most
        assert batch.equals(made.table.slice(first, batch.num_rows))
        seen += batch.num_rows
    assert seen == 1000
    last = [batch for _, batch in made.batches(2)]
    assert sum(batch.num_rows for batch in last) == made.counts()[2]
    assert made.empty().equals(made.table.slice(0, 0))


def test_wide_records_come_a_few_at_a_time(epoch: EpochPayloads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "BATCH_BYTES", 100_000)
    wide = pa.table({"noise": [os.urandom(10_000) for _ in range(100)]})
    sizes = [batch.num_rows for _, batch in dataset_of(epoch, wide).batches()]
    assert sum(sizes) == 100
    assert max(sizes) <= 10


# --- damage -----------------------------------------------------------------------------------------------------------


def _file(of: dataset.Dataset) -> Path:
    return Path(of.paths()[0])


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _other(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)


def _gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("damage", "says"), [(_cut, "is not the file"), (_other, "is not the file"), (_gone, "has lost a file")]
)
def test_damage_is_noticed_before_a_plan_is_made(
    epoch: EpochPayloads, damage: Callable[[Path], None], says: str
) -> None:
    made = dataset_of(epoch, ORDERS)
    damage(_file(made))
    with pytest.raises(
        LogInconsistent, match=rf"the dataset of event 1 of s\.out .*{says}|{says}.*or start a fresh run"
    ):
        made.paths()


def test_no_flipped_bit_of_a_page_changes_a_value_without_a_word(epoch: EpochPayloads) -> None:
    made = dataset_of(epoch, ORDERS)
    path = _file(made)
    whole = path.read_bytes()
    noticed, pages = 0, len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for place in range(4, pages, max(1, pages // 60)):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        again = dataset.Dataset(made.where, made.root, made.reference, made.manifest)
        try:
            assert again.table.equals(ORDERS), f"another value, without a word: byte {place}"
        except LogInconsistent as error:
            noticed += 1
            assert "the dataset of event 1 of s.out is damaged" in str(error)
            with pytest.raises(LogInconsistent, match=r"the dataset of event 1 of s\.out is damaged"):
                list(again.batches())
    assert noticed > 50


def test_no_flipped_bit_around_a_page_changes_a_value_either(epoch: EpochPayloads) -> None:
    """Checksums of Parquet are over pages without their headers. One bit of every byte, headers included: a refusal,
    or the same values, so few that headers are most of the file."""
    table = pa.table({"a": [1, 2, 3, None], "s": ["a", "b", None, "dd"], "f": [1.5, 2.5, None, 0.0]})
    made = dataset_of(epoch, table)
    path = _file(made)
    whole = path.read_bytes()
    for place in range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            assert dataset.Dataset(made.where, made.root, made.reference, made.manifest).table.equals(table), place
        except LogInconsistent as error:
            assert "the dataset of event 1 of s.out is damaged" in str(error)


def test_a_damaged_manifest_is_noticed(payloads: Payloads, epoch: EpochPayloads, tmp_path: Path) -> None:
    made = dataset_of(epoch, ORDERS)
    path = tmp_path / made.reference.path
    path.write_bytes(path.read_bytes().replace(b"1000", b"1001"))
    with pytest.raises(LogInconsistent, match="is damaged"):
        payloads.dataset("event 1", str(made.reference))


@pytest.mark.parametrize("path", ["/etc/passwd", "run/../../x"])
def test_a_manifest_names_nothing_outside_the_store(path: str) -> None:
    manifest = Manifest("{}", "", (DataFile(path, 1, 1, 1),))
    with pytest.raises(LogInconsistent, match="is not in the payload store"):
        manifest_of("event 1", manifest.encoded())


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_a_task_that_fails_leaves_no_file(epoch: EpochPayloads, tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from ORDERS.to_batches()
        raise ValueError("of the author")

    with pytest.raises(ValueError, match="of the author"):
        list(task_files.written(str(tmp_path), epoch.new_folder("d"), ("store",), failing()))
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_full_disk_is_told_and_leaves_no_file(tmp_path: Path) -> None:
    with small_folder(tmp_path / "otherwise") as small:
        (small.path / "d").mkdir(parents=True)
        small.fill()
        wide = pa.table({"noise": [bytes(range(256)) * 64] * 500, "id": list(range(500))})
        try:
            with pytest.raises(OSError, match=r"Errno 28|Errno 27"):
                list(task_files.written(str(small.path), "d", (), wide.to_batches()))
        finally:
            small.make_room()
        assert not list(small.path.rglob("*.parquet"))


VALUES: dict[str, tuple[Any, str]] = {
    "text": ("Köln am Rhein", "Köln am Rhein"),
    "slash": ("a/b=c%d", "a%2Fb%3Dc%25d"),
    "dots": ("..", ".."),
    "none": (None, "__HIVE_DEFAULT_PARTITION__"),
    "control": ("a\tb", "a%09b"),
    "true": (True, "true"),
    "number": (-7, "-7"),
    "date": (dt.date(2017, 8, 3), "2017-08-03"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_of_partitions_are_names_of_folders(epoch: EpochPayloads, name: str) -> None:
    value, folder = VALUES[name]
    table = pa.table({"id": [1, 2], "of": [value, value]})
    made = dataset_of(epoch, table, partition_by=("of",))
    assert [file.partition for file in made.manifest.files] == [(f"of={folder}",)]
    assert made.table.column_names == ["id"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "has the text '', which readers take for null"),
        ("__HIVE_DEFAULT_PARTITION__", "which readers take for null"),
        ("ж" * 130, r"partition column 'of' has the value '.*longer than 255 bytes"),
    ],
)
def test_values_that_readers_would_not_get_back_are_refused_by_the_task(
    epoch: EpochPayloads, value: str, says: str
) -> None:
    with pytest.raises(task_files.NoPartition, match=says):
        dataset_of(epoch, pa.table({"id": [1], "of": [value]}), partition_by=("of",))


@pytest.mark.parametrize(
    "value",
    [
        pa.array([10_000_000], pa.int32()).cast(pa.date32()),
        pa.array([2**62], pa.int64()).cast(pa.timestamp("us")),
    ],
    ids=["date", "timestamp"],
)
def test_values_that_have_no_name_are_refused_by_the_task(epoch: EpochPayloads, value: pa.Array) -> None:
    with pytest.raises(
        task_files.NoPartition,
        match=r"partition column 'of' has a value that no folder can be named by \(.*; filter or fill",
    ):
        dataset_of(epoch, pa.table({"id": [1], "of": value}), partition_by=("of",))


def test_text_that_is_none_is_refused_before_a_folder_is_named_by_it(epoch: EpochPayloads) -> None:
    text = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(task_files.NotText, match="of"):
        dataset_of(epoch, pa.table({"id": [1], "of": text}), partition_by=("of",))


def test_every_record_is_in_the_file_of_its_partition(epoch: EpochPayloads) -> None:
    made = dataset_of(epoch, ORDERS.slice(0, 500), ORDERS.slice(500), partition_by=("store",))
    found: dict[str, list[int]] = {}
    for path, file in zip(made.paths(), made.manifest.files, strict=True):
        found.setdefault(file.partition[0], []).extend(
            pa.parquet.read_table(path, partitioning=None).column("id").to_pylist()
        )
    assert {name: sorted(ids) for name, ids in found.items()} == {
        f"store={store}": list(range(store, 1000, 3)) for store in range(3)
    }


def test_too_many_partitions_of_one_task_are_refused_with_the_way_out(epoch: EpochPayloads) -> None:
    with pytest.raises(task_files.TooManyPartitions, match=r"more than 256 values of id: .*\.repartition\('id'\)"):
        dataset_of(epoch, ORDERS, partition_by=("id",))


def test_a_copy_is_whole_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"12345")
    rows = pa.record_batch(
        {"source": [str(tmp_path / "source")], "target": [str(tmp_path / "target")], "size": [6], "hidden": [".x."]}
    )
    with pytest.raises(OSError, match="has 5 bytes, its manifest says 6"):
        list(task_files.copied([rows]))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


# --- removal and the sweep --------------------------------------------------------------------------------------------


def with_dataset(event_id: int, ref: Reference) -> fx.LogEvent:
    """An event for a receiver in another group."""
    return fx.LogEvent(Event(OUT, event_id, Kind.DATA, 3, None, None, ref=str(ref)), (fx.Delivery(IN),))


def test_a_removal_that_was_cut_short_is_repeated(
    payloads: Payloads, epoch: EpochPayloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = dataset_of(epoch, ORDERS, ORDERS)
    removed: list[str] = []
    folder = Path(made.paths()[0]).parent

    def interrupted(path: Any, *_: Any, **__: Any) -> None:
        if removed:
            raise OSError("interrupted")
        removed.append(str(path))
        real(path)

    real = Path.unlink
    with monkeypatch.context() as patch:
        replace_call(patch, Path, "unlink", interrupted)
        with pytest.raises(LogUnavailable):
            payloads.remove([str(made.reference)])
    left = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert ".manifest" in left, "it says what is still to be removed"
    payloads.remove([str(made.reference)])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not folder.exists(), "an empty folder per event would be left"
    payloads.remove([str(made.reference)])


def test_the_sweep_keeps_what_a_row_names_and_its_files(
    log_store: LogStore, payloads: Payloads, tmp_path: Path
) -> None:
    driver = start_driver(log_store)
    old = payloads.epoch(driver.run.uid, "g", 1, 0)
    kept, lost = dataset_of(old, ORDERS, purpose="d/1"), dataset_of(old, ORDERS, purpose="d/2")
    partly = old.new_folder("d/3")
    list(task_files.written(str(tmp_path), partly, (), ORDERS.to_batches()))
    driver.session.commit([with_dataset(1, kept.reference)])
    replace_driver(driver)
    assert sweep_group(payloads, log_store, driver.run, "g", below=2) == 3
    assert payloads.table("event 1", str(kept.reference)).num_rows == 1000
    with pytest.raises(LogInconsistent):
        payloads.dataset("event 2", str(lost.reference))


def test_a_sweep_that_cannot_read_a_manifest_removes_nothing(
    log_store: LogStore, payloads: Payloads, tmp_path: Path
) -> None:
    driver = start_driver(log_store)
    old = payloads.epoch(driver.run.uid, "g", 1, 0)
    kept = dataset_of(old, ORDERS)
    driver.session.commit([with_dataset(1, kept.reference)])
    (tmp_path / kept.reference.path).unlink()
    replace_driver(driver)
    with pytest.raises(LogInconsistent, match="nothing is swept beside it"):
        sweep_group(payloads, log_store, driver.run, "g", below=2)
    assert kept.paths()


def test_a_store_of_objects_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigurationError, match="dataframe"):
        _ = Payloads("memory://x").epoch("run", "g", 1, 0).root


def test_exact_values(epoch: EpochPayloads) -> None:
    table = pa.table(
        {
            "price": pa.array([Decimal("1.10"), None], pa.decimal128(12, 2)),
            "at": pa.array([dt.datetime.fromisoformat("2024-02-29T23:59:59.999999"), None], pa.timestamp("us")),
            "share": [0.1, float("nan")],
            "list": [[1, None], None],
            "struct": [{"a": "ü", "b": None}, None],
            "raw": [b"\x00\xff", None],
        }
    )
    assert str(dataset_of(epoch, table).table.to_pylist()) == str(table.to_pylist())
