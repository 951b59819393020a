"""The bench beside Structured Streaming and Flink, as far as it is arithmetic: records, clock, bounds."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from airflow_logio.launch import bundle
from tests.bench.peers import evaluation, flink_run
from tests.bench.peers.logged_run import PIPELINES
from tests.bench.peers.strict_clock import Taken, latencies, marks_of
from tests.bench.peers.work import BATCHES, COLUMNS, KEY, TABLE, WINDOW_RECORDS, Work, prepared
from tests.bench.throughput import WrongResult
from tests.support.waiting import eventually

RECORDS = 250_000


def test_all_sides_read_the_same_records(tmp_path: Path) -> None:
    work = prepared(tmp_path, RECORDS)
    whole = pq.read_table(work.parquet)
    numbers = np.fromfile(work.binary, dtype=">i8").reshape(-1, 3)
    assert [column.to_numpy().astype("int64").tolist() for column in whole.columns] == numbers.T.tolist()
    for size in BATCHES:
        files = sorted(work.batches(size).iterdir(), key=lambda file: file.stat().st_mtime)
        assert [pq.read_metadata(file).num_rows for file in files][:-1] == [size] * (
            RECORDS // size - (RECORDS % size == 0)
        )
        assert pq.read_table(work.batches(size)).equals(whole)
    kept = numbers[numbers[:, 2] > 0]
    assert sum(row[2] for row in work.rows) == len(kept) < RECORDS
    assert sum(row[3] for row in work.rows) == int((kept[:, 2] + kept[:, 2] * 19 // 100).sum())
    assert len({row[0] for row in work.rows}) == 3


def test_a_latency_is_from_the_read_of_a_minute_s_last_record_to_its_rows() -> None:
    marks = [(0, 1.0), (60_000, 2.0), (120_000, 3.0), (180_000, 4.0), (210_000, 5.0)]
    assert latencies(210_000, marks, {0: 3.5, 1: 5.5, 2: 5.25}) == [0.5, 0.5, 0.25]
    assert WINDOW_RECORDS == 100_000


def test_a_steady_speed_leaves_out_how_a_run_begins_and_ends() -> None:
    commits = {minute: minute / 10 for minute in range(100)} | {0: -5.0, 9: -1.0, 91: 60.0, 99: 90.0}
    assert Taken(10_000_000, 90.0, (), commits).steady == pytest.approx(10 * WINDOW_RECORDS)


@pytest.mark.parametrize("counts", [(0, 10, 0, 10), (0, 10, 10), (10, 20)], ids=["again", "twice", "from the middle"])
def test_a_source_that_began_again_makes_no_figure(counts: tuple[int, ...], tmp_path: Path) -> None:
    reads = tmp_path / "reads"
    reads.write_text("".join(f"{count} {number}.0\n" for number, count in enumerate(counts)))
    with pytest.raises(WrongResult, match="ours: it has read records twice"):
        marks_of("ours", reads)


def test_a_source_with_a_pace_notes_when_records_were_due(tmp_path: Path) -> None:
    """Also if it is late: a group that keeps its source waiting would look quick otherwise."""
    work, reads, pace = prepared(tmp_path, RECORDS), tmp_path / "reads", 1e6
    source = bundle.load(bundle.parse_ref(f"{PIPELINES}:four_10000")).operators["read"]
    params = {"records": str(work.parquet), "reads": str(reads), "pace": pace}
    events = source.read(params, source.action(params), 0)  # type: ignore[attr-defined]
    next(events)
    due = time.time() + RECORDS / pace
    eventually(lambda: time.time() > due, what="all other events are due: what uses them is slow")
    assert [event.next_offset for event in events][-1] == RECORDS
    began, *marks = marks_of("ours", reads)
    assert began[0] == 0 and [count for count, _ in marks] == list(range(10_000, RECORDS + 1, 10_000))
    assert [at - began[1] for _, at in marks] == pytest.approx([count / pace for count, _ in marks], abs=1e-6)


def test_only_structured_streaming_is_given_fewer_records() -> None:
    given = {side.name: (side.records(2_000_000), side.records(10_000_000)) for side in evaluation.sides()}
    assert given.pop("Structured Streaming, 10,000 a batch") == (500_000, 500_000)
    assert given.pop("Structured Streaming, 100,000 a batch") == (2_000_000, 5_000_000)
    assert set(given.values()) == {(2_000_000, 10_000_000)}
    assert [side.target for side in evaluation.sides()] == ["1000", "2500", "600", "none", "none", "none", "none"]


def test_our_pipelines_write_the_table_of_all_sides_in_four_groups_or_one() -> None:
    for attr, groups in (("four_10000", 4), ("four_1000", 4), ("fused_10000", 1), ("fused_1000", 1)):
        pipeline = bundle.load(bundle.parse_ref(f"{PIPELINES}:{attr}"))
        writer = pipeline.operators["save"]
        assert len(pipeline.groups) == groups
        assert (writer.table, writer.columns, writer.primary_key) == (TABLE, COLUMNS, KEY)  # type: ignore[attr-defined]


def test_flink_is_compiled_well_and_told_what_it_reads(tmp_path: Path) -> None:
    assert not [one for one in flink_run.FAST if "Tiered" in one or "Serial" in one]
    settings = Path(flink_run.PROGRAM.sources, "peers", "Settings.java").read_text()
    job = flink_run.job(Work(5, tmp_path, ()), tmp_path / "reads", "postgresql://postgres@127.0.0.1:5/of_this_run")
    for line in job.splitlines():
        assert f'"{line.split(" = ")[0]}"' in settings
    assert "warehouse = jdbc:postgresql://127.0.0.1:5/of_this_run?user=postgres" in job
