"""Stored effects of Spark: files of a size, and who removes which of them, in whatever order drivers die."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind
from airflow_logio.spark.spark_effects import _cut, stored_events
from airflow_logio.store.port import LogStore
from airflow_logio.systems.payloads import EpochPayloads, Payloads, sweep_group, task_files
from airflow_logio.systems.payloads.manifests import (
    EFFECT_SUFFIX,
    DataFile,
    FramePart,
    Manifest,
    StoredFrame,
    stored_frame_of,
)
from tests.support.datasets import dataset_of
from tests.support.logs import IN, OUT, replace_driver, start_driver

NOISE = pa.table({"id": list(range(2_000)), "noise": [os.urandom(100) for _ in range(2_000)]})
READ = ("sender", "source")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "payloads"


@pytest.fixture
def payloads(root: Path) -> Payloads:
    return Payloads(str(root))


def left(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition_by", [(), ("shop",)])
def test_a_task_begins_another_file_where_one_is_full(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    """210 KB of noise that cannot be compressed, in batches of half of it."""
    table = NOISE.append_column("shop", pa.array([number % 2 for number in range(2_000)]))
    (batch,) = task_files.written(str(tmp_path), "d", partition_by, table.to_batches(1_000), most_bytes=50_000)
    lines = batch.to_pylist()
    whole = sum(line["size"] for line in lines)
    assert all(line["size"] <= 60_000 for line in lines), "a tenth of such small files is their footers"
    assert 5 <= len(lines) <= whole // 50_000 + 4, "files are full, but for the last ones"
    read = pa.concat_tables(pa.parquet.read_table(tmp_path / line["path"]) for line in lines)
    assert sorted(read.column("id").to_pylist()) == list(range(2_000))
    if not partition_by:
        assert read.column("id").to_pylist() == list(range(2_000)), "and in the order in which records came"
    assert left(tmp_path) == {line["path"] for line in lines}


def test_a_record_that_is_larger_than_a_file_may_be_has_one_of_its_own(tmp_path: Path) -> None:
    table = pa.table({"noise": [os.urandom(20_000) for _ in range(4)]})
    (batch,) = task_files.written(str(tmp_path), "d", (), table.to_batches(), most_bytes=5_000)
    assert [line["records"] for line in batch.to_pylist()] == [1, 1, 1, 1]


def test_a_task_that_fails_late_leaves_no_file_either(tmp_path: Path) -> None:
    def failing() -> object:
        yield from NOISE.to_batches(1_000)
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        list(task_files.written(str(tmp_path), "d", (), failing(), most_bytes=20_000))  # type: ignore[arg-type]
    assert left(tmp_path) == set()


def test_events_are_whole_files_in_sequence() -> None:
    files = [DataFile(str(number), size, 1, 0) for number, size in enumerate([40, 40, 30, 100, 130, 10, 90])]
    assert [[file.size for file in part] for part in _cut(files, 100)] == [[40, 40], [30], [100], [130], [10, 90]]
    assert list(_cut([], 100)) == []


# --- who removes what -------------------------------------------------------------------------------------------------


class Effect:
    """The effect of a read action, five events of one file each, as a driver has stored it; `named` as in `store_frame`."""

    def __init__(self, epoch: EpochPayloads, *, named: bool) -> None:
        self.epoch = epoch
        folder = epoch.new_folder("datasets/sender.out/1")
        made = []
        for number in range(5):
            [line] = task_files.new_files(epoch.files, folder, (), NOISE.slice(number * 10, 10).to_batches())
            made.append((DataFile(*line[:4]),))
        schema = dataset_of(epoch, NOISE.slice(0, 1), purpose="d/other").manifest
        self.other = {file.path for file in schema.files} | {f"{epoch._folder}/d/other.1.manifest"}
        manifests = [Manifest(schema.schema, schema.arrow, files) for files in made]
        self.manifests = [
            str(epoch.put("it", f"datasets/sender.out/1-{number}", one).reference) if named else ""
            for number, one in enumerate(manifests, start=1)
        ]
        self.files = [{file.path for file in files} for files in made]
        parts = tuple(FramePart(files, own) for files, own in zip(made, self.manifests, strict=True))
        stored = StoredFrame(schema.schema, schema.arrow, parts)
        self.ref = str(epoch.store("effects/sender/1", stored.encoded(), suffix=EFFECT_SUFFIX))

    def of(self, *numbers: int) -> set[str]:
        """What belongs to these events, from 1."""
        return {
            path
            for number in numbers
            for path in (*self.files[number - 1], self.manifests[number - 1].partition("#")[0])
            if path
        }

    @property
    def path(self) -> str:
        return self.ref.partition("#")[0]

    def log(self, number: int) -> fx.LogEvent:
        event = Event(OUT, number, Kind.DATA, 10, None, None, ref=self.manifests[number - 1])
        return fx.LogEvent(event, (fx.Delivery(IN),))


STORED = (fx.StartReadAction(*READ, 1, {"read": "orders"}), fx.CompleteReadAction(*READ, 1, "", 50))


def test_half_of_the_events_are_logged_and_some_of_them_gone_when_a_sweep_comes(
    log_store: LogStore, payloads: Payloads, root: Path
) -> None:
    """Two logged events are used up, one of them removed in part; two are not logged yet. Then the effect goes."""
    driver = start_driver(log_store)
    effect = Effect(payloads.epoch(driver.run.uid, "g", 1, 0), named=True)
    started, complete = STORED
    driver.session.commit([started, fx.CompleteReadAction(*READ, 1, effect.ref, complete.records)])
    driver.session.commit([effect.log(number) for number in (1, 2, 3)])
    driver.session.commit([fx.Acknowledge(OUT, IN, 1, ()), fx.Acknowledge(OUT, IN, 2, ())])
    (collected,) = driver.session.commit([fx.Collect((IN.operator,), 10)])
    assert sorted(collected.refs) == sorted(effect.manifests[:2])
    payloads.remove(effect.manifests[:1])
    (file,) = effect.files[1]
    (root / file).unlink()  # the removal of event 2 dies here

    second = replace_driver(driver)
    swept = sweep_group(payloads, log_store, driver.run, "g", below=2)
    assert swept == len(effect.other), "what no row has ever named, and nothing else"
    assert left(root) == {effect.path} | (effect.of(2) - effect.files[1]) | effect.of(3, 4, 5)

    events = list(stored_events(payloads.epoch(driver.run.uid, "g", 2, 0), "it", effect.ref, 30))
    assert [(event.number, event.first, event.next_offset) for event in events] == [(4, 30, 40), (5, 40, 50)]
    assert [event.dataset.table.column("id").to_pylist()[0] for event in events] == [30, 40]
    second.session.commit([effect.log(4), effect.log(5), fx.ReadDone(*READ, 1)])
    payloads.remove([effect.ref])
    assert left(root) == (effect.of(2) - effect.files[1]) | effect.of(3, 4, 5), "the list alone"
    payloads.remove([effect.ref])

    third = replace_driver(second)
    with pytest.raises(LogInconsistent, match="nothing is swept beside it"):
        sweep_group(payloads, log_store, driver.run, "g", below=3)  # the log names the effect still
    third.session.commit([fx.DropRead(*READ, 1)])
    sweep_group(payloads, log_store, driver.run, "g", below=3)
    assert left(root) == effect.of(3, 4, 5), "what rows name"


def test_events_that_no_row_names_go_with_the_effect(log_store: LogStore, payloads: Payloads, root: Path) -> None:
    """Whether it dies before the commit, after it, or in the middle of the removal."""
    driver = start_driver(log_store)
    lost = Effect(payloads.epoch(driver.run.uid, "g", 1, 0), named=False)
    effect = Effect(payloads.epoch(driver.run.uid, "g", 1, 1), named=False)
    started, complete = STORED
    driver.session.commit([started, fx.CompleteReadAction(*READ, 1, effect.ref, complete.records)])
    replace_driver(driver)
    swept = sweep_group(payloads, log_store, driver.run, "g", below=2)
    assert swept == len(lost.other) + len(effect.other) + len(lost.of(1, 2, 3, 4, 5)) + 1
    assert left(root) == {effect.path} | effect.of(1, 2, 3, 4, 5)
    later = payloads.epoch(driver.run.uid, "g", 2, 0)
    assert not any(event.is_named for event in stored_events(later, "it", effect.ref, 0))
    (root / next(iter(effect.files[2]))).unlink()  # a removal that was cut short
    payloads.remove([effect.ref])
    assert left(root) == set()
    payloads.remove([effect.ref])


# --- damage -----------------------------------------------------------------------------------------------------------


def test_an_effect_that_is_damaged_missing_or_another_one_is_refused(payloads: Payloads, root: Path) -> None:
    epoch = payloads.epoch("run", "g", 1, 0)
    effect = Effect(epoch, named=True)
    with pytest.raises(LogInconsistent, match="no event of it ends at record 15, where the log says that one does"):
        list(stored_events(epoch, "it", effect.ref, 15))
    assert list(stored_events(epoch, "it", effect.ref, 50)) == []
    path = root / effect.path
    path.write_bytes(path.read_bytes().replace(b'"records":10', b'"records":11', 1))
    with pytest.raises(LogInconsistent, match="the payload of it is damaged"):
        list(stored_events(epoch, "it", effect.ref, 0))
    path.unlink()
    with pytest.raises(LogInconsistent, match="the payload of it is missing"):
        list(stored_events(epoch, "it", effect.ref, 0))
    with pytest.raises(LogInconsistent, match="it is no stored effect"):
        stored_frame_of("it", b"{}")
    outside = StoredFrame("{}", "", (FramePart((DataFile("../x", 1, 1, 1),)),))
    with pytest.raises(LogInconsistent, match=r"it names '\.\./x', which is not in the payload store"):
        stored_frame_of("it", outside.encoded())
