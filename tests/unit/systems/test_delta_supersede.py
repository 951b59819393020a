"""A run that supersedes replaces what earlier runs of its partition, of its pipeline, have written in a Delta table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError, WriteRefused
from tests.support.delta_tables import COLUMNS, STARTED, DeltaRun, day_params, orders, rows_of, version_of

KEY = "day=2026-03-01@shop"


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path)


def late(day: str = "2026-03-01", **more: Any) -> DeltaWriter:
    """Late rows of a day: their own values are of any day."""
    writer = DeltaWriter("lake", "orders", COLUMNS, partition_by=["day"], on_new_run="supersede", **more)
    return writer.in_pipeline_by("day").for_run(day_params(day))


def written(run: DeltaRun, *tables: pa.Table) -> None:
    run.open()
    run.close(*tables)


def rows(lake: str) -> list[tuple[Any, ...]]:
    return rows_of(f"{lake}/orders", "logio_run", "id")


def test_a_run_replaces_what_its_partition_has_written_wherever_its_values_lie(lake: str) -> None:
    old = DeltaRun(late(), lake)
    written(old, orders(1, day="2026-02-27"), orders(2, day="2026-02-28"))
    written(DeltaRun(late("2026-03-02"), lake, "run2", ordinal=2), orders(3, day="2026-02-27"))
    written(DeltaRun(late(), lake, "run9", pipeline="till"), orders(4, day="2026-02-27"))
    others = [("day=2026-03-01@till", 4), ("day=2026-03-02@shop", 3)]
    assert rows(lake) == sorted([(KEY, 1), (KEY, 2), *others], key=repr)
    begun = DeltaRun(late(), lake, "run3", ordinal=3)
    again = DeltaRun(late(), lake, "run4", ordinal=4)
    begun.open()
    again.open()
    assert (KEY, 1) in rows(lake), "old rows stay until all new ones are there"
    with pytest.raises(WriteRefused, match="was claimed by run run4"):
        begun.close(orders(9))
    version = version_of(f"{lake}/orders")
    for _ in range(2):
        again.close(orders(10, day="2026-02-20"), orders(11))
    assert rows(lake) == sorted([(KEY, 10), (KEY, 11), *others], key=repr)
    assert version_of(f"{lake}/orders") == version + 1, "one commit"
    read = deltalake.DeltaTable(f"{lake}/orders").to_pyarrow_table()
    assert sorted(read.column("id").to_pylist()) == [3, 4, 10, 11]


def test_rows_of_no_run_stay_and_a_run_without_rows_needs_a_word(lake: str) -> None:
    """The table is there, and says its columns."""
    before = orders(1).append_column("logio_run", pa.nulls(1, pa.string()))
    deltalake.write_deltalake(f"{lake}/orders", before, partition_by=["logio_run"])
    writer = (
        DeltaWriter("lake", "orders", on_new_run="supersede").in_pipeline_by("day").for_run(day_params("2026-03-01"))
    )
    written(DeltaRun(writer, lake), orders(2))
    assert rows(lake) == sorted([(None, 1), (KEY, 2)], key=repr)
    with pytest.raises(WriteRefused, match="has rows, and run run2 has none"):
        written(DeltaRun(writer, lake, "run2", ordinal=2))
    writer.empty = "replace"
    written(DeltaRun(writer, lake, "run3", ordinal=3))
    assert rows(lake) == [(None, 1)]


def test_an_audit_sees_the_rows_of_the_run(lake: str) -> None:
    seen: list[int] = []

    def even(records: Any) -> str | None:
        seen.extend(one for table in records for one in table.column("id").to_pylist())
        return "odd" if any(one % 2 for one in seen) else None

    run = DeltaRun(late(audit=even), lake)
    run.open()
    with pytest.raises(WriteRefused, match="audit 'even' refuses the rows of run run1: odd"):
        run.close(orders(2), orders(3))
    assert (rows(lake), seen) == ([], [2, 3])


def test_writers_of_other_kinds_are_refused_there(lake: str) -> None:
    written(DeltaRun(late(), lake), orders(1))
    columns = {**COLUMNS, "logio_run": "text"}
    by = ["day", "logio_run"]
    adding = DeltaWriter("lake", "orders", columns, partition_by=by, on_new_run="append")
    owning = DeltaWriter("lake", "orders", columns, partition_by=by, on_new_run="overwrite", by=["day"])
    for writer in (adding, owning.for_run(day_params("2026-03-01"))):
        with pytest.raises(WriteRefused, match="must not write to it"):
            DeltaRun(writer, lake, "run2", started=STARTED + 9, ordinal=2).open()
    begun = DeltaRun(late(), lake, "run4", ordinal=4)
    begun.open()
    replacing = DeltaRun(DeltaWriter("lake", "orders", columns, partition_by=by, on_new_run="replace"), lake, "run3")
    replacing.begin(orders(7).append_column("logio_run", pa.array(["x"])))
    assert rows(lake) == [("x", 7)]
    with pytest.raises(WriteRefused, match="belongs to run run3"):
        begun.close(orders(1))
    assert rows(lake) == [("x", 7)]


def test_what_tells_no_runs_is_refused(lake: str) -> None:
    deltalake.write_deltalake(f"{lake}/orders", orders(1), partition_by=["day"])
    writer = (
        DeltaWriter("lake", "orders", on_new_run="supersede").in_pipeline_by("day").for_run(day_params("2026-03-01"))
    )
    with pytest.raises(WriteRefused, match="runs are told by the column 'logio_run'"):
        DeltaRun(writer, lake).open()
    with pytest.raises(OperatorFailed, match="have a column 'logio_run' themselves"):
        late().records(InputEvent("in", 1, orders(1).append_column("logio_run", pa.array(["x"]))))
    for more, said in (
        ({"by": ["day"]}, "'supersede' with by"),
        ({"switch": "at once"}, "at once"),
        ({"sends_after_writes": True}, "sends_after_writes"),
        ({"run_column": "id"}, "is another one of its columns"),
    ):
        with pytest.raises(PipelineDefinitionError, match=said):
            DeltaWriter("lake", "orders", COLUMNS, partition_by=["day"], on_new_run="supersede", **more)
    with pytest.raises(PipelineDefinitionError, match="run_column is for"):
        DeltaWriter("lake", "orders", COLUMNS, run_column="x")
    assert "run_column" not in DeltaWriter("lake", "orders", COLUMNS).settings()
