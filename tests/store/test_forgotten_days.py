"""One day is deleted on request, from a table and a lake, with all that the log knows of it; wherever the process dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from airflow_logio import Days, ParquetSource, Pipeline, published_files
from airflow_logio.dataflow import DatasetWriter, TableWriter
from airflow_logio.dataflow.writers.action_writers import BEGIN, WriteAction
from airflow_logio.errors import ConfigurationError, Fenced, ProtocolViolation, WriteRefused
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.run_writers import Repeats, Together, WriterShape
from airflow_logio.protocol.states import RunState
from airflow_logio.protocol.writes import CLOSE
from airflow_logio.spark.publishing import DayTarget
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.supervision.forgetting import DAG_ID, Forgetting
from airflow_logio.supervision.keeping import Places
from airflow_logio.systems.connections import WriterIdentity
from airflow_logio.systems.payloads import Payloads
from airflow_logio.systems.warehouse import Warehouse
from tests.support.datasets import dataset_of
from tests.support.logs import sent, spec, start_driver
from tests.support.table_days import COLUMNS, D1, D2, execute, params_of, records, rows
from tests.support.table_days import Run as TableRun
from tests.support.table_runs import Superseding

BY_DAY = (Together.BY_PARTITION, Repeats.REPLACED)


def pipeline_of(*, late: bool = False) -> Pipeline:
    days = Days("day", due="08:00")
    made = Pipeline("clicks", partition=days, connections=["wh", "lake"], keep_runs="90d")
    read = made.source("read", ParquetSource("day.parquet"))
    made.writer("save", TableWriter("wh", "t", COLUMNS, on_new_run="overwrite", by=("day",)), read)
    lake = DatasetWriter("lake", "clicks", partition_by=("day",), on_new_run="overwrite", by=("day",))
    made.writer("keep", lake, read)
    if late:
        made.writer("late", TableWriter("wh", "late", COLUMNS, on_new_run="append"), read)
    return made


@dataclass
class Work:
    store: SqlLogStore
    warehouse: Warehouse
    url: str
    root: Path

    @property
    def payloads(self) -> Payloads:
        return Payloads(str(self.root / "payloads"))

    def begin(self, day: str, name: str = "nightly", writers: tuple[WriterShape, ...] | None = ()) -> Run:
        plain = spec(dag_run=f"{name} {day}")
        key, connections = replace(plain.key, pipeline="clicks"), {"wh": "warehouse_default", "lake": "lake_default"}
        return self.store.start_run(
            replace(plain, key=key, partition=day, params=params_of(day), connections=connections, writers=writers)
        )

    def finished(self, day: str, *numbers: int, name: str = "nightly") -> Run:
        """A run of the day, which has written these numbers to both places."""
        run = self.begin(day, name)
        driver = start_driver(self.store, run=run)
        driver.session.commit([sent(1), sent(2), fx.FinishGroup()])
        driver.session.close()
        self.table(run).all(self.warehouse, *numbers)
        self.publish(run, numbers)
        assert self.store.finish_run(run.run_id)
        return run

    def table(self, run: Run) -> TableRun:
        where = (run.ordinal, str(run.partition), run.uid)
        return TableRun(*where, log_uid=self.store.log_uid(), started_at=run.created_at)

    def publish(self, run: Run, numbers: tuple[int, ...]) -> None:
        day = str(run.partition)
        lake = DatasetWriter("lake", "clicks", partition_by=("day",), on_new_run="overwrite", by=("day",))
        place = {"pipeline": "clicks", "log_uid": self.store.log_uid(), "ordinal": run.ordinal}
        identity = WriterIdentity(run.uid, 1, run.created_at, **place)  # type: ignore[arg-type]
        table = pa.table({"a": list(numbers), "day": pa.array([date.fromisoformat(day)] * len(numbers))})
        made = dataset_of(self.payloads.epoch(run.uid, "g", 1, 1), table, partition_by=("day",))
        where = (run.uid, "keep", "lake")
        insert = WriteAction(*where, 2, 1, pa.table({}), dataset=str(made.reference))
        copied = lambda _, copies, task: pa.Table.from_batches(  # noqa: E731
            task.run(pa.Table.from_pylist([one._asdict() for one in copies]).to_batches())
        ).to_pylist()
        target = DayTarget(lake.for_run(params_of(day)), identity, self.payloads.dataset, copied, lambda *_: "")
        with target.connect(str(self.root / "lake")) as claim:
            target.write_group(claim, [WriteAction(*where, 1, 1, pa.table({}), {"action": BEGIN})])
            closing = WriteAction(*where, 3, 1, pa.table({}), {"action": CLOSE})
            target.close_group(claim, closing, len(numbers), [[insert]])

    def forgetting(self, day: str = D1, pipeline: Pipeline | None = None) -> Forgetting:
        urls = {"wh": self.url, "lake": str(self.root / "lake")}
        places = Places(str(self.root / "payloads"), {"warehouse_default": self.url}.get)
        made = pipeline or pipeline_of()
        return Forgetting(self.store, made, Days("day").key_of(day), urls, places)

    def lake(self, day: str) -> list[int]:
        """Numbers of a day, as readers by receipts see them; those who list the folder see no others."""
        folder = self.root / "lake" / "clicks"
        counted = [file.path for file in published_files(folder) if f"day={day}" in file.path]
        listed = [str(path) for path in folder.rglob("*.parquet") if f"day={day}" in str(path)]
        assert sorted(listed) == sorted(counted)
        return sorted(n for path in counted for n in pq.ParquetFile(path).read().column("a").to_pylist())

    def logged(self) -> set[str]:
        """Names of runs of which the log has rows."""
        with self.store.engine.connect() as connection:
            ids = set(connection.execute(sa.select(schema.event_data.c.run_id)).scalars())
            found = connection.execute(sa.select(schema.run.c.run_id, schema.run.c.partition))
            return {row.partition for row in found if row.run_id in ids}


@pytest.fixture
def work(sql_store: SqlLogStore, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Work]:
    if sql_store.engine.dialect.name == "sqlite":
        url = f"sqlite:///{tmp_path}/warehouse.db"
    else:
        server = request.getfixturevalue("postgres_server")
        url = server.new_database(migrated=False)
        request.addfinalizer(lambda: server.drop_database(url))
    for name in ("payloads", "lake"):
        (tmp_path / name).mkdir()
    warehouse = Warehouse("wh", url)
    yield Work(sql_store, warehouse, url, tmp_path)
    warehouse.close()


def test_the_day_goes_from_table_lake_and_log_and_no_other_day(work: Work) -> None:
    first = work.finished(D1, 1, 2)
    work.store.supersede(first.run_id)
    again = work.finished(D1, 3, name="again")
    work.finished(D2, 20, 21)
    forgetting = work.forgetting()
    forgetting.check(rest_by_hand=False)
    said = forgetting.empty()
    places = (("save", "wh"), ("keep", "lake"))
    assert said == [f"{D1} is empty where writer {name!r}, connection {place!r}, puts it" for name, place in places]
    assert forgetting.remove() == (2, [])
    assert work.store.pipelines_due()["clicks"]["due"] == "08:00", "what its author says now: old runs said nothing"
    assert work.store.take_turns(0.0) == {"clicks": 90 * 86_400.0}
    assert [row[1] for row in rows(work.warehouse)] == [20, 21]
    assert (work.lake(D1), work.lake(D2)) == ([], [20, 21])
    assert work.logged() == {D2}
    assert not list((work.root / "payloads").rglob(f"*{again.uid}*/*.parquet"))
    removed = work.store.removed_runs(pipeline="clicks", partitions=(D1, D1))
    assert {one.reason for one in removed} == {"by `logio forget`"} and len(removed) == 3


def test_it_is_computed_again_when_its_input_is_there_again(work: Work) -> None:
    work.finished(D1, 1, 2)
    forgetting = work.forgetting()
    forgetting.empty()
    forgetting.remove()
    work.finished(D1, 5, name="from new input")
    assert ([row[1] for row in rows(work.warehouse)], work.lake(D1)) == ([5], [5])


def test_a_driver_of_the_day_that_comes_back_fills_nothing(work: Work) -> None:
    run = work.finished(D1, 1, 2)
    zombie = work.begin(D1, "slow")
    work.table(zombie).open(work.warehouse)
    work.store.supersede(zombie.run_id)
    forgetting = work.forgetting()
    forgetting.empty()
    forgetting.remove()
    with pytest.raises(Fenced):
        work.table(zombie).close(work.warehouse, 7)
    with pytest.raises(WriteRefused):
        work.table(replace(run, uid="f" * 32)).open(work.warehouse)
    with pytest.raises(WriteRefused):
        work.publish(zombie, (7,))
    assert (rows(work.warehouse), work.lake(D1)) == ([], [])


def test_what_cannot_be_deleted_here_is_named_before_anything_is(work: Work) -> None:
    work.finished(D1, 1)
    late = work.forgetting(pipeline=pipeline_of(late=True))
    with pytest.raises(
        ConfigurationError, match=r"writer 'late' .TableWriter of table 'late'.* wrote .*--rest-by-hand"
    ):
        late.check(rest_by_hand=False)
    late.check(rest_by_hand=True)
    shape = WriterShape("save", "TableWriter of table 'old'", ("warehouse_default", "old"), *BY_DAY, closes=True)
    before = [work.begin(D1, "another table", (shape,)), work.begin(D1, "an earlier version", None)]
    for run in before:
        work.store.supersede(run.run_id)
    told = rf"run {before[1].uid[:8]} .the version.*, writer 'save' .TableWriter of table 'old'. wrote for {D1} is not owned"
    with pytest.raises(ConfigurationError, match=told):
        work.forgetting().check(rest_by_hand=False)
    for run in before:
        while work.store.remove_run(run.run_id, 100).more:
            pass
    unfinished = work.begin(D1, "unfinished")
    with pytest.raises(
        ProtocolViolation, match=f"uid {unfinished.uid[:8]}, of {D1} has not ended: it could fill the day"
    ):
        work.forgetting().check(rest_by_hand=False)
    with pytest.raises(ConfigurationError, match="the log has had no run of 2026-03-09 of pipeline 'clicks'"):
        work.forgetting("2026-03-09").check(rest_by_hand=False)
    assert [row[1] for row in rows(work.warehouse)] == [1]


def test_a_day_whose_runs_were_removed_before_is_emptied(work: Work) -> None:
    """Old runs leave the log by themselves, and what they wrote stays: until it is asked for."""
    run = work.finished(D1, 1)
    work.finished(D2, 20)
    while work.store.remove_run(run.run_id, 100).more:
        pass
    forgetting = work.forgetting()
    forgetting.check(rest_by_hand=False)
    forgetting.empty()
    assert forgetting.remove() == (0, [])
    assert ([row[1] for row in rows(work.warehouse)], work.lake(D1), work.lake(D2)) == ([20], [], [20])


def test_a_run_that_begins_meanwhile_stays_and_is_named(work: Work) -> None:
    work.finished(D1, 1)
    forgetting = work.forgetting()
    forgetting.empty()
    begun = work.begin(D1, "begun meanwhile")
    removed, (staying,) = forgetting.remove()
    assert removed == 1 and f"uid {begun.uid[:8]}, has begun meanwhile" in staying
    assert work.store.find_run(begun.uid).state is RunState.RUNNING


def test_a_place_that_refuses_leaves_all_as_they_are(work: Work) -> None:
    """The lake's day belongs to another pipeline by now: nothing of the table is deleted before that is known."""
    work.finished(D1, 1, 2)
    folder = work.root / "lake" / "clicks" / "_logio" / "days" / f"day={D1}"
    (folder / f"000000000009.{'a' * 12}.{'f' * 32}.claim").touch()
    with pytest.raises(WriteRefused, match="of another pipeline or another log"):
        work.forgetting().empty()
    assert [row[1] for row in rows(work.warehouse)] == [1, 2]


class Dies(BaseException):
    pass


@pytest.mark.parametrize("number", [1, 3, 5, 8, 11, 14, 20])
def test_a_process_that_dies_is_followed_by_one_that_deletes_the_rest(
    work: Work, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At commits of the log and of the warehouse; the lake's steps are those of any run of a day."""
    work.finished(D1, 1, 2)
    work.finished(D2, 20)
    steps = 0

    def step(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == number:
            raise Dies

    forgetting = work.forgetting()
    sa.event.listen(sa.Engine, "commit", step)
    try:
        with suppress(Dies):
            forgetting.empty()
            forgetting.remove()
    finally:
        sa.event.remove(sa.Engine, "commit", step)
    again = work.forgetting()
    again.check(rest_by_hand=False)
    again.empty()
    assert again.remove()[1] == []
    assert ([row[1] for row in rows(work.warehouse)], work.lake(D1), work.lake(D2)) == ([20], [], [20])
    assert work.logged() == {D2}
    left = [one for one in work.store.list_runs(partition=D1) if one.state is not RunState.REMOVING]
    assert left == [] and not [
        one for one in work.store.list_runs(state=RunState.RUNNING) if one.spec.key.dag_id == DAG_ID
    ]


def test_rows_that_a_day_has_brought_for_other_days_are_deleted_with_it(work: Work) -> None:
    """Where runs own rows by their partition: and neither those of another day's run, nor of none."""

    def pipeline() -> Pipeline:
        made = Pipeline("clicks", partition=Days("day"), connections=["wh"], keep_runs="90d")
        late = TableWriter("wh", "late", COLUMNS, on_new_run="supersede")
        made.writer("save", late, made.source("read", ParquetSource("day.parquet")))
        return made

    def brought(day: str, number: int) -> Run:
        run = work.begin(day)
        driver = start_driver(work.store, run=run)
        driver.session.commit([sent(1), sent(2), fx.FinishGroup()])
        driver.session.close()
        log_uid = work.store.log_uid()
        own = Superseding(run.ordinal, day, run.uid, log_uid=log_uid, started_at=run.created_at, table="late")
        own.open(work.warehouse)
        own.close(work.warehouse, pages=[records(at, number, "late") for at in (D1, D2)])
        assert work.store.finish_run(run.run_id)
        return run

    brought(D1, 1)
    brought(D2, 2)
    execute(work.warehouse, f"INSERT INTO late (day, a, who) VALUES ('{D1}', 3, 'script')")
    forgetting = work.forgetting(pipeline=pipeline())
    forgetting.check(rest_by_hand=False)
    forgetting.empty()
    removed, staying = forgetting.remove()
    assert removed == 1 and not staying
    assert rows(work.warehouse, "late") == [(D1, 2, "late"), (D1, 3, "script"), (D2, 2, "late")]
