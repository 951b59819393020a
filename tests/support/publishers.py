"""Drivers that publish into one folder, without Spark: each has a run and a token, and copies in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_logio import DatasetWriter, published_files
from airflow_logio.dataflow.writers.action_writers import BEGIN, WriteAction
from airflow_logio.protocol.external_rules import Owner
from airflow_logio.protocol.writes import CLOSE
from airflow_logio.spark.day_claims import DayClaim, day_run
from airflow_logio.spark.lake_audits import Ask
from airflow_logio.spark.published_places import Copies, CopyTask, Lines
from airflow_logio.spark.publishing import DatasetTarget, DayTarget, check_not_replaced
from airflow_logio.systems.connections import WriterIdentity
from airflow_logio.systems.payloads import Payloads
from tests.support.datasets import dataset_of

Row = tuple[int, int]
"""Id and store, which is the partition."""


class Publisher:
    """A driver of run `run`, started at second `run` of time, that publishes into `folder` below the lake's URL."""

    def __init__(
        self,
        lake: str | Path,
        payloads: Payloads,
        run: int,
        on_new_run: str = "append",
        token: int = 1,
        folder: str = "orders",
    ) -> None:
        self.run_uid = f"run{run}"
        self.copied = 0
        self.fails: Exception | None = None
        self.is_shared = True
        self.before_copies: Callable[[], object] = lambda: None
        self.after_copies: Callable[[], object] = lambda: None
        self._lake = str(lake)
        self._payloads = payloads
        self._token = token
        self._owner = Owner(self.run_uid, float(run))
        self._writer = DatasetWriter("lake", folder, partition_by=("store",), on_new_run=on_new_run)

    def publish(self, *actions: WriteAction, url: str = "", given_up: tuple[str, ...] = ()) -> None:
        """Execute the actions as one driver does: over one connection."""
        target = DatasetTarget(self._writer, self._owner, self._payloads.dataset, self._copy, given_up=given_up)
        with target.connect(url or self._lake) as place:
            target.write_group(place, actions)

    def opening(self) -> Sequence[WriteAction]:
        """The write action that the run begins with, if it has one."""
        said = self._writer.opening()
        about = ("lake", 1, self._token, pa.table({}))
        return () if said is None else (WriteAction(self.run_uid, "save", *about, {**said, "action": BEGIN}),)

    def action(self, number: int, *parts: Iterable[Row]) -> WriteAction:
        """A write action whose dataset has a file for each store in each of the parts."""
        epoch = self._payloads.epoch(self.run_uid, "g", self._token, number)
        tables = [
            pa.table({"id": [one for one, _ in part], "store": [two for _, two in part]}) for part in map(list, parts)
        ]
        made = dataset_of(epoch, *tables, partition_by=("store",))
        return WriteAction(self.run_uid, "save", "lake", number, self._token, pa.table({}), dataset=str(made.reference))

    def _copy(self, what: str, copies: Copies, task: CopyTask) -> Lines:
        self.copied += len(copies)
        if not self.is_shared:
            return [{"error": ""}]
        self.before_copies()
        batches = task.run(pa.Table.from_pylist([copy._asdict() for copy in copies]).to_batches())
        done: Lines = pa.Table.from_batches(batches).to_pylist()
        self.after_copies()
        if self.fails is not None:
            raise self.fails
        return done


class DayPublisher(Publisher):
    """One whose run owns a day, which is a store here. Its ordinal is its number, in a line of its own for each `log`."""

    owns: Mapping[str, Any] = {"on_new_run": "overwrite", "by": ("store",)}

    def __init__(
        self,
        lake: str | Path,
        payloads: Payloads,
        run: int,
        token: int = 1,
        *,
        log: str = "a",
        store: int = 1,
        takes_over: bool = False,
        may_be_empty: bool = False,
        word: bool = False,
        pipeline: str = "orders",
        ask: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(lake, payloads, run, token=token)
        self.run_uid = f"{log}{run}"
        line = (pipeline, log.strip("'"), run)
        self._run = WriterIdentity(self.run_uid, token, float(run), (), *line, takes_over, may_be_empty=word)
        self.mine = day_run(self._run)
        owns = {**self.owns, "empty": "replace" if may_be_empty else "refuse"}
        audit = None if ask is None else {"asked": "SELECT * FROM records"}
        writer = DatasetWriter("lake", "orders", partition_by=("store",), **owns, audit=audit).in_pipeline_by("store")
        self.ask: Ask = lambda *_: "" if ask is None else ask()
        self._writer = writer.for_run({"store": store, "store_start": "2026-03-01T00:00:00+00:00"})

    @property
    def nothing(self) -> pa.Table:
        """The records of an action that has a dataset."""
        return pa.table({})

    @contextmanager
    def connected(self) -> Iterator[tuple[DayTarget, DayClaim]]:
        target = DayTarget(self._writer, self._run, self._payloads.dataset, self._copy, self.ask)
        with target.connect(self._lake) as claim:
            yield target, claim

    def open_day(self) -> None:
        with self.connected() as (target, claim):
            target.write_group(claim, (self._action(1, BEGIN),))

    def check_retry(self) -> None:
        """As before a person resumes the run."""
        check_not_replaced(self._writer, self._lake, self._run)

    def close_day(self, *actions: WriteAction, then: Callable[[], object] = lambda: None) -> None:
        """With these actions, from number 2 on. `then` is done when their files are there."""
        rows = sum(
            file.records for one in actions for file in self._payloads.dataset("", one.dataset or "").manifest.files
        )
        with self.connected() as (target, claim):
            target.close_group(claim, self._action(len(actions) + 2, CLOSE), rows, _Held(actions, then))

    def _action(self, number: int, what: str) -> WriteAction:
        about = (self.run_uid, "save", "lake", number, self._token)
        return WriteAction(*about, pa.table({}), {"action": what})


@dataclass(frozen=True)
class _Held:
    """Pages of one write action each."""

    actions: Sequence[WriteAction]
    then: Callable[[], object]

    def __iter__(self) -> Iterator[Sequence[WriteAction]]:
        yield from ([one] for one in self.actions)
        self.then()


class FillingPublisher(DayPublisher):
    """One whose run fills its day at once."""

    owns: Mapping[str, Any] = {"on_new_run": "overwrite", "by": ("store",), "switch": "at once"}

    def fill(self, *actions: WriteAction) -> None:
        """The day is opened, and the actions are published as they come."""
        with self.connected() as (target, claim):
            target.write_group(claim, (self._action(1, BEGIN), *actions))


class RunsPublisher(DayPublisher):
    """One whose run owns what runs of its partition have published, in whichever store."""

    owns: Mapping[str, Any] = {"on_new_run": "supersede"}


def counted(lake: Path) -> list[Row]:
    """The rows of the files that count, by Arrow."""
    folder = lake / "orders"
    if not folder.is_dir():
        return []
    rows = []
    for file in published_files(folder):
        store = int(Path(file.path).parent.name.removeprefix("store="))
        rows += [(one, store) for one in pq.ParquetFile(file.path).read().column("id").to_pylist()]
    return sorted(rows)


def listed(lake: Path) -> list[Row]:
    """The rows that a reader finds who lists the folder, by DuckDB."""
    if not any((lake / "orders").rglob("*.parquet")):
        return []
    files = f"read_parquet('{lake}/orders/**/*.parquet', hive_partitioning=true)"
    return _database().execute(f"SELECT id, store::INTEGER FROM {files} ORDER BY ALL").fetchall()


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """One for hundreds of questions."""
    return duckdb.connect(config={"threads": 1})
