"""Several events of a chain at once, in a real Spark session: in order, so many and no more, and ended with their epoch."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio import DatasetWriter, stateless
from airflow_logio.driver.spark_jobs import job_gate
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import OperatorFailed
from airflow_logio.spark import store_probe
from tests.support.waiting import eventually
from tests.unit.spark.test_chains import Work

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

EVENTS, SIZE = 6, 10
WAIT_SECONDS = 40


def of_events(work: Work, folder: str) -> list[list[int]]:
    """The ids in each published event, in the order of write actions."""
    receipts = [json.loads(path.read_text()) for path in (work.lake / folder / "_logio").glob("*.json")]
    receipts.sort(key=lambda receipt: int(receipt["number"]))
    files = [[work.lake / folder / file["path"] for file in receipt["files"]] for receipt in receipts]
    return [
        sorted(found for file in event for found in pq.read_table(file).column("id").to_pylist()) for event in files
    ]


def by_hand(many: int) -> list[list[int]]:
    return [list(range(number * SIZE, number * SIZE + SIZE)) for number in range(many)]


class Steered:
    """A function whose tasks note which event they work for, and do with it as a test says, by files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[float] = []
        folder.mkdir()

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def put(self, name: str) -> None:
        (self.folder / name).touch()

    def steer(self, rows: Any) -> Any:
        """By way of a view, whose name all events share."""
        self.calls.append(time.monotonic())
        folder, session = self.folder, rows.sparkSession

        def noted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                event = batch.column("id")[0].as_py() // SIZE
                (folder / f"begun-{event}").touch()
                until = time.monotonic() + WAIT_SECONDS
                while (folder / f"hold-{event}").exists() and time.monotonic() < until:
                    time.sleep(0.02)
                if (folder / f"fail-{event}").exists():
                    raise ValueError(f"event {event} is none")
                (folder / f"done-{event}").touch()
                yield batch

        rows.createOrReplaceTempView("rows")
        time.sleep(0.05)  # for another event to make it another view
        return session.sql("SELECT id FROM rows").coalesce(1).mapInArrow(noted, "id long")


def steered(tmp_path: Path, sessions: SparkSessions, at_once: int) -> tuple[Work, Steered]:
    """Events reach the chain through the log: an operator of the driver stands before it."""
    work = Work(tmp_path, sessions)
    work.jobs_at_once = at_once
    for path in work.orders.iterdir():
        path.unlink()
    for number, ids in enumerate(by_hand(EVENTS)):
        pq.write_table(pa.table({"id": ids}), work.orders / f"{number}.parquet")
    function = Steered(tmp_path / "steered")
    same = work.pipeline.operator("same", stateless(lambda orders: orders), work.raw)
    made = work.pipeline.operator("steered", stateless(mode="dataframe")(function.steer), same)
    work.pipeline.writer("save", DatasetWriter("lake", "out"), made)
    return work, function


NAMES = ("same", "steered", "save")


def test_two_events_are_evaluated_at_once_and_leave_in_order(
    tmp_path: Path, sessions: SparkSessions, event_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is held until the second is done: the third is not begun, however long that lasts."""
    work, function = steered(tmp_path, sessions, 2)
    function.put("hold-0")
    probing: list[str] = []
    real = store_probe.probe

    def probe(*arguments: Any) -> None:
        probing.append(work.calls.longest()[0])
        real(*arguments)

    monkeypatch.setattr(job_gate, "probe", probe)
    found: list[Any] = []

    def release() -> None:
        eventually(lambda: function.has("done-1"), what="the second event is evaluated", timeout=60)
        time.sleep(1.0)
        found.extend([len(function.calls), sorted(path.name for path in function.folder.glob("begun-*"))])
        found.append((work.lake / "out").exists())
        (function.folder / "hold-0").unlink()

    releasing = threading.Thread(target=release, daemon=True)
    releasing.start()
    assert work.run(*NAMES)
    releasing.join()
    assert found == [2, ["begun-0", "begun-1"], False]
    assert of_events(work, "out") == by_hand(EVENTS), "each event has its own records, though views have one name"
    assert probing == ["`probe of the payload store` of read action 1 of operator 'raw'"]
    assert sessions.get().sparkContext.getConf().get("spark.scheduler.mode") == "FAIR"
    said = "".join(path.read_text() for path in event_log.rglob("events*") if path.is_file())
    assert {f'"spark.scheduler.pool":"logio-channel-{number}"' in said for number in (1, 2)} == {True}


def test_an_error_is_told_of_its_event_when_those_before_it_are_delivered(
    tmp_path: Path, sessions: SparkSessions
) -> None:
    """The third fails at once, while the first is still at work. Then it is mended, and everything comes once."""
    work, function = steered(tmp_path, sessions, 3)
    function.put("hold-0")
    function.put("fail-2")

    def release() -> None:
        eventually(lambda: function.has("begun-2"), what="the third event is at work", timeout=60)
        time.sleep(0.5)
        (function.folder / "hold-0").unlink()

    releasing = threading.Thread(target=release, daemon=True)
    releasing.start()
    with pytest.raises(OperatorFailed, match=r"(?s)port steered\.in, event 3 of same\.out: .*event 2 is none") as bad:
        work.run(*NAMES)
    releasing.join()
    assert not bad.value.is_first, "two events were delivered before"
    (function.folder / "fail-2").unlink()
    assert work.run(*NAMES)
    assert of_events(work, "out") == by_hand(EVENTS)


def test_jobs_that_run_side_by_side_end_with_their_epoch(tmp_path: Path, sessions: SparkSessions, spark: Any) -> None:
    work, function = steered(tmp_path, sessions, 2)
    for event in range(EVENTS):
        function.put(f"hold-{event}")
    tracker = spark.sparkContext.statusTracker()
    asked: list[float] = []

    def stop_when_they_run() -> None:
        eventually(lambda: function.has("begun-0") and function.has("begun-1"), what="two jobs run", timeout=60)
        asked.append(time.monotonic())
        work.stop.set()

    stopping = threading.Thread(target=stop_when_they_run, daemon=True)
    stopping.start()
    assert not work.run(*NAMES)
    stopping.join()
    assert time.monotonic() - asked[0] < 30, "no job waits for them"
    assert not tracker.getActiveJobsIds(), "they were cancelled"
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("logio-channel")]
    for path in function.folder.iterdir():
        path.unlink()
    work.stop.clear()
    assert work.run(*NAMES)
    assert of_events(work, "out") == by_hand(EVENTS)
