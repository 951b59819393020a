"""The bench of Delta tables and of stores, as far as it is arithmetic: what must come of orders, commits, requests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.dataflow import DeltaWriter
from airflow_logio.launch import bundle
from tests.bench.delta import CLEANSED, PIPELINES, SHAPES, Table, work_of
from tests.bench.pipelines.into_delta import COLUMNS, cleansed
from tests.bench.spark_stores import asked
from tests.bench.throughput import WrongResult
from tests.support.delta_tables import DeltaRun, files_of

FILES, RECORDS = 3, 2_000


def in_a_table(folder: Path, *tables: pa.Table) -> Path:
    """A commit for each."""
    run = DeltaRun(DeltaWriter("lake", "orders", COLUMNS, on_new_run="append"), str(folder))
    run.open()
    for number, table in enumerate(tables, start=2):
        run.write(number, table)
    return folder / "orders"


def test_what_is_written_without_spark_is_what_duckdb_makes_of_the_orders(tmp_path: Path) -> None:
    """Orders without a quantity, or with none, are left out on both sides."""
    work = work_of(tmp_path / "work", FILES, RECORDS)
    made = [cleansed(pq.read_table(file)) for file in sorted(work.orders.iterdir())]
    table = Table(lambda: in_a_table(tmp_path, *made), FILES)
    found = list(table.published())
    work.check(found, CLEANSED, "Arrow")
    records, _ = work.wanted[CLEANSED]
    assert (len(found), table.commits) == (FILES, FILES)
    assert sum(one.num_rows for one in made) == records < FILES * RECORDS
    with pytest.raises(WrongResult, match="are records and hash"):
        work.check(found[1:], CLEANSED, "a part of it")


@pytest.mark.parametrize(("files", "may_be_fewer"), [(3, False), (1, False), (1, True)], ids=["few", "many", "more"])
def test_a_table_in_another_number_of_commits_makes_no_figure(files: int, may_be_fewer: bool, tmp_path: Path) -> None:
    work = work_of(tmp_path / "work", 2, 100)
    folder = in_a_table(tmp_path, *(cleansed(pq.read_table(file)) for file in sorted(work.orders.iterdir())))
    with pytest.raises(WrongResult, match=f"in 2 commits with data, not {files}"):
        Table(lambda: folder, files, may_be_fewer).published()
    fewer = Table(lambda: folder, 3, may_be_fewer=True)
    assert list(fewer.published()) == [folder / unquote(path) for path in files_of(folder)]
    assert fewer.commits == 2


def test_only_the_side_that_says_so_commits_several_files_at_once() -> None:
    writers = [bundle.load(bundle.parse_ref(f"{PIPELINES}:{shape.attr}")).operators["save"] for shape in SHAPES]
    assert [vars(writer).get("actions_at_once", DeltaWriter.actions_at_once) for writer in writers] == [1, 256, 1]


def test_requests_are_counted_by_what_they_cost() -> None:
    figure = asked(
        "sqlite", "bucket: chain", Counter(HeadObject=7, PutObject=3, GetBucketLocation=2, AbortMultipartUpload=1), 4
    )
    assert (figure.value, figure.unit) == (13, "requests")
    assert figure.details == "4 events; 3 PutObject, 7 HeadObject, 3 others"
