"""Events that are datasets in Delta tables: their records come from files of the payload store, in batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.errors import ExternalUnavailable, LogInconsistent, WriteRefused
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.spark import delta_files
from airflow_logio.systems.payloads import EpochPayloads, Payloads, dataset
from airflow_logio.systems.payloads.dataset import Dataset
from tests.support.datasets import dataset_of
from tests.support.delta_files import ByExecutors
from tests.support.delta_tables import COLUMNS, DeltaRun, day_params, files_of, orders, rows_of


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small dataset has many batches."""
    monkeypatch.setattr(dataset, "BATCH_RECORDS", 7)


class FromFiles(DeltaRun):
    """A run whose write actions are datasets of a payload store."""

    def store(self, folder: Path) -> EpochPayloads:
        self.datasets: dict[str, Dataset] = {}
        return Payloads(str(folder)).epoch("run", "g", 1, 0)

    def of(self, number: int, made: Dataset) -> WriteAction:
        reference = str(made.reference)
        self.datasets[reference] = made
        return replace(self.action(number, pa.table({})), dataset=reference)

    @property
    def target(self) -> Any:
        return replace(super().target, datasets=lambda where, reference: self.datasets[reference])


def appending() -> DeltaWriter:
    return DeltaWriter("lake", "orders", COLUMNS, partition_by=["day"], on_new_run="append")


def ids(lake: str, table: str = "orders") -> list[Any]:
    return sorted(row[0] for row in rows_of(f"{lake}/{table}", "id"))


def test_records_in_files_are_written_with_those_that_are_not(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    run = FromFiles(appending(), str(lake))
    epoch = run.store(tmp_path / "payloads")
    made = dataset_of(epoch, orders(*range(20)), orders(*range(20, 30), day="2026-03-02"))
    run.apply(run.action(1), run.of(2, made), run.action(3, orders(99)))
    run.apply(run.action(1), run.of(2, made), run.action(3, orders(99)))
    assert ids(str(lake)) == [*range(30), 99]
    assert {row[0] for row in rows_of(lake / "orders", "day")} == {"2026-03-01", "2026-03-02"}


def test_a_file_that_is_damaged_or_away_changes_nothing(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    run = FromFiles(appending(), str(lake))
    made = dataset_of(run.store(tmp_path / "payloads"), orders(1), orders(2))
    run.open()
    (path,) = list(made.file_paths())[1:]
    kept = Path(path).read_bytes()
    Path(path).write_bytes(kept[:-1])
    with pytest.raises((LogInconsistent, ExternalUnavailable)):
        run.apply(run.of(2, made))
    assert ids(str(lake)) == []
    Path(path).write_bytes(kept)
    run.apply(run.of(2, made))
    assert ids(str(lake)) == [1, 2]


class InThisProcess:
    """A session that works off tasks one after the other."""

    def range(self, first: int, last: int, step: int, tasks: int) -> InThisProcess:
        self.numbers = range(first, last, step)
        assert len(self.numbers) == tasks
        return self

    def mapInArrow(self, task: Any, schema: str) -> InThisProcess:
        given = [pa.record_batch({"id": pa.array([number], pa.int64())}) for number in self.numbers]
        self.lines = [line for one in given for line in task([one])]
        assert [pair.split()[0] for pair in schema.split(", ")] == self.lines[0].schema.names
        return self

    def toArrow(self) -> pa.Table:
        return pa.Table.from_batches(self.lines)


@pytest.mark.parametrize("partition_by", [("day",), ()])
def test_tasks_write_the_rows_that_the_driver_writes(
    partition_by: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With partitions they decode, without any they copy; no job's files are named but those of the lines it gives."""
    monkeypatch.setattr(delta_files, "TASK_BYTES", 1)
    monkeypatch.setattr(delta_files, "COPIED_BYTES", 1)
    lake, epoch = tmp_path / "lake", Payloads(str(tmp_path / "payloads")).epoch("run", "g", 1, 0)
    lake.mkdir()
    made = dataset_of(epoch, orders(*range(20)), orders(*range(20, 30), day="2026-03-02"), orders())
    files, numbers = {}, {}
    for way in ("tasks", "driver"):
        writer = DeltaWriter("lake", way, COLUMNS, partition_by=partition_by, on_new_run="append")
        run = ByExecutors(writer, str(lake)).ready(InThisProcess(), epoch.root, way)
        run.around = lambda start, session: start(session) and start(session)  # the first one's lines are lost
        run.apply(run.action(1), run.of(2, made), run.action(3, orders(99)))
        run.apply(run.action(1), run.of(2, made), run.action(3, orders(99)))
        assert len(run.jobs) == (way == "tasks")
        files[way], numbers[way] = files_of(lake / way), ids(str(lake), way)
    assert numbers["tasks"] == numbers["driver"] == [*range(30), 99]
    assert len(files["tasks"]) == 3
    there = {str(path.relative_to(lake / "tasks")) for path in (lake / "tasks").rglob("*.parquet")}
    assert len(there - set(files["tasks"])) == 2
    copies = {Path(path).read_bytes() for path in made.file_paths()}
    found = [(lake / "tasks" / path).read_bytes() in copies for path in files["tasks"]]
    assert sum(found) == (0 if partition_by else 2)


def test_a_day_of_datasets_is_replaced_in_one_commit(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    writer = DeltaWriter("lake", "orders", COLUMNS, partition_by=["day"], on_new_run="overwrite", by=["day"])
    run = FromFiles(writer.for_run(day_params("2026-03-01")), str(lake))
    epoch = run.store(tmp_path / "payloads")
    run.open()
    first, second = dataset_of(epoch, orders(*range(10))), dataset_of(epoch, orders(*range(10, 15)), purpose="d/2")
    held = [run.of(2, first), run.of(3, second)]
    group, closing = HeldGroup(2, 4, 15, 2), run.action(4, pa.table({}))
    target = run.target
    with target.connect(run.url) as log:
        target.apply_held(log, run.marker(), group, closing, [held[:1], held[1:]])
        target.apply_held(log, run.marker(), group, closing, [held[:1], held[1:]])
    assert ids(str(lake)) == list(range(15))
    other = FromFiles(writer.for_run(day_params("2026-03-01")), str(lake), "run2", ordinal=2)
    epoch = other.store(tmp_path / "others")
    other.open()
    wrong = other.of(2, dataset_of(epoch, orders(1, day="2026-03-02")))
    with other.target.connect(other.url) as log, pytest.raises(WriteRefused, match="are not of day=2026-03-01"):
        other.target.apply_held(log, other.marker(), HeldGroup(2, 3, 1, 1), other.action(3, pa.table({})), [[wrong]])
    assert ids(str(lake)) == list(range(15))


def test_keys_of_datasets_are_updated(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    run = FromFiles(DeltaWriter("lake", "orders", COLUMNS, mode="upsert", primary_key=["id"]), str(lake))
    epoch = run.store(tmp_path / "payloads")
    run.open()
    run.apply(run.of(2, dataset_of(epoch, orders(*range(20)))))
    run.apply(run.of(3, dataset_of(epoch, orders(3, 4, amount=7), orders(50, amount=7), purpose="d/2")))
    found = dict(rows_of(lake / "orders", "id", "amount"))
    assert found == dict.fromkeys(range(20), 1) | {3: 7, 4: 7, 50: 7}
