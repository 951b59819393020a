"""`start_run` waits, deferred, for the input of its run: before there is a run in the log, and without a driver."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_logio import _compat
from airflow_logio.dataflow.sources.arrival import Awaited
from airflow_logio.errors import ConfigurationError, ExternalUnavailable
from airflow_logio.launch.surroundings import machine_of_this_process
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.store.port import LogStore
from airflow_logio.triggers import input_arrival
from airflow_logio.triggers.input_arrival import LogioInputTrigger
from tests.unit.airflow.support import RUN_ID, context, deferred, fired

FILE, MARKER = "in.parquet", "_SUCCESS"


PIPELINES = f"""
from airflow_logio import Count, ParquetSource, Pipeline

def made(**said):
    pipeline = Pipeline("late", params={{"data": str}})
    pipeline.sink("done", Count(), pipeline.source("read", ParquetSource("{{data}}/{FILE}"), **said))
    return pipeline

PLAIN, LATE = made(), made(wait="6h")
MARKED = made(wait="6h", ready="{{data}}/{MARKER}")
NEEDS_ROWS = made(wait="6h", on_empty="fail")
"""


@pytest.fixture(autouse=True)
def pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "late_inputs.py").write_text(PIPELINES)
    monkeypatch.syspath_prepend(str(tmp_path / "dags"))
    yield
    sys.modules.pop("late_inputs", None)


@pytest.fixture(autouse=True)
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Airflow was asked to store for the page."""
    said: list[str] = []
    monkeypatch.setattr(_compat, "note_waiting", lambda task_instance, text: said.append(text))
    monkeypatch.setattr(input_arrival, "LOOK_SECONDS", 0.01)
    return said


class Begun:
    """A DAG run whose task starts a run of a pipeline of this module, in try after try."""

    def __init__(self, name: str, folder: Path, log: LogStore) -> None:
        self.task = LogioStartRunOperator(task_id="start_run", pipeline=f"late_inputs:{name}")
        self.folder, self.log, self.attempt = folder, log, 1

    def context(self) -> dict[str, Any]:
        return context(params={"data": str(self.folder)}, attempt=self.attempt)

    def execute(self) -> str:
        return self.task.execute(self.context())

    def resume(self, waits: TaskDeferred, event: Any) -> str:
        assert waits.method_name == "resume"
        return self.task.resume(self.context(), event=event, **(waits.kwargs or {}))

    def arrives(self, *numbers: int, name: str = FILE) -> None:
        if name == FILE:
            pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), self.folder / name)
        else:
            (self.folder / name).touch()

    @property
    def runs(self) -> int:
        return len(self.log.list_runs())


@pytest.fixture
def begun(log: LogStore, tmp_path: Path) -> Callable[[str], Begun]:
    return lambda name: Begun(name, tmp_path, log)


def test_the_run_begins_when_its_file_has_come_and_there_is_none_before(
    begun: Callable[[str], Begun], notes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    one = begun("LATE")
    waits = deferred(one.execute)
    said = f"waits for its input since .* UTC, until .* UTC at most: source 'read': {one.folder}/{FILE} is not there"
    told = capsys.readouterr().out
    assert re.search(said, told) and "There is no run and no driver yet" in told
    (note,) = notes
    assert re.fullmatch(said, note)
    assert one.runs == 0
    path, arguments = waits.trigger.serialize()
    assert path == "airflow_logio.triggers.input_arrival.LogioInputTrigger"
    assert arguments["places"] == [["parquet", f"{one.folder}/{FILE}"]]
    event = fired(LogioInputTrigger(**arguments), lambda: one.arrives(1, 2))
    assert event == {"why": "it is there"}
    assert one.runs == 0, "the triggerer starts nothing"
    run = one.log.find_run(one.resume(waits, event))
    assert run.spec.key.dag_run_id == RUN_ID and run.spec.actions["read"]["rows"] == 2


@pytest.mark.parametrize("name", ["PLAIN", "LATE", "MARKED", "NEEDS_ROWS"])
def test_input_that_is_there_is_not_waited_for(begun: Callable[[str], Begun], notes: list[str], name: str) -> None:
    one = begun(name)
    one.arrives(1)
    one.arrives(name=MARKER)
    one.execute()
    assert one.runs == 1 and not notes


def test_a_file_that_is_still_written_is_waited_for(begun: Callable[[str], Begun]) -> None:
    one = begun("LATE")
    one.arrives(1, 2, 3)
    whole = (one.folder / FILE).read_bytes()
    (one.folder / FILE).write_bytes(whole[: len(whole) // 2])
    waits = deferred(one.execute)
    event = fired(waits.trigger, lambda: (one.folder / FILE).write_bytes(whole))
    assert one.log.find_run(one.resume(waits, event)).spec.actions["read"]["rows"] == 3


def test_a_marker_decides_where_the_author_names_one(begun: Callable[[str], Begun]) -> None:
    one = begun("MARKED")
    one.arrives(1)
    waits = deferred(one.execute)

    def more() -> None:
        one.arrives(1, 2)
        time.sleep(0.1)
        one.arrives(name=MARKER)

    event = fired(waits.trigger, more)
    assert one.log.find_run(one.resume(waits, event)).spec.actions["read"]["rows"] == 2


def test_without_a_wait_input_that_is_not_there_is_refused_as_ever(begun: Callable[[str], Begun]) -> None:
    one = begun("PLAIN")
    with pytest.raises(ConfigurationError, match="source 'read': cannot read Parquet file"):
        one.execute()


# --- the time is over -------------------------------------------------------------------------------------------------


def over(one: Begun, waits: TaskDeferred) -> None:
    """The event comes when the six hours are over."""
    since = datetime.now(UTC) - timedelta(hours=6, seconds=1)
    assert waits.kwargs is not None
    waits.kwargs["since"] = since.isoformat()


def test_after_its_time_the_wait_fails_by_source_path_and_time_and_a_retry_waits_anew(
    begun: Callable[[str], Begun],
) -> None:
    one = begun("LATE")
    waits = deferred(one.execute)
    over(one, waits)
    with pytest.raises(ConfigurationError) as failed:
        one.resume(waits, {"why": "the time is over"})
    said = str(failed.value)
    assert f"the input of source 'read' of pipeline 'late' is not there: {one.folder}/{FILE} is not there" in said
    assert "6 h 0 min, and wait='6h' of the source is over. Nothing was started." in said
    assert "The retries of the task wait as long again" in said and "clear the task" in said
    assert one.runs == 0, "nothing is in the log, so no budget of recoveries is spent"

    one.attempt = 2
    again = deferred(one.execute)
    assert again.kwargs is not None
    assert datetime.now(UTC) - datetime.fromisoformat(again.kwargs["since"]) < timedelta(hours=1)
    one.arrives(1)
    one.resume(again, {"why": "it is there"})
    assert one.runs == 1


def test_what_comes_with_the_end_of_the_time_is_seen(begun: Callable[[str], Begun]) -> None:
    one = begun("LATE")
    waits = deferred(one.execute)
    over(one, waits)
    one.arrives(1)
    one.resume(waits, {"why": "the time is over"})
    assert one.runs == 1


def test_the_trigger_ends_with_the_time(tmp_path: Path) -> None:
    now = time.time()
    places = [["path", f"{tmp_path}/{MARKER}"]]
    made = LogioInputTrigger(places=places, machine=machine_of_this_process(), since=now, until=now + 0.05)
    assert fired(made) == {"why": "the time is over"}


# --- a triggerer that does not see what the worker sees ---------------------------------------------------------------


def elsewhere(place: Path, since: float | None = None) -> LogioInputTrigger:
    now = time.time()
    since = now if since is None else since
    places = [["path", str(place)]]
    return LogioInputTrigger(places=places, machine=["another", "boot", "0"], since=since, until=now + 3600)


def test_elsewhere_the_task_looks_itself_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_arrival, "LEAST_SECONDS", 0.05)
    assert fired(elsewhere(tmp_path / MARKER)) == {"why": "the task looks itself"}
    (tmp_path / MARKER).touch()
    assert fired(elsewhere(tmp_path / MARKER)) == {"why": "the task looks itself"}, "it may be another file system"
    in_a_database = LogioInputTrigger(
        places=None, machine=machine_of_this_process(), since=time.time(), until=time.time() + 3600
    )
    assert fired(in_a_database) == {"why": "the task looks itself"}


def test_elsewhere_what_appears_there_wakes_the_task_too(tmp_path: Path) -> None:
    event = fired(elsewhere(tmp_path / MARKER), (tmp_path / MARKER).touch)
    assert event == {"why": "it is there"}, "folders may be shared"


def test_the_longer_the_wait_the_less_often_the_task_is_woken(tmp_path: Path) -> None:
    now = time.time()
    pauses = [elsewhere(tmp_path, since=now - hours * 3600)._next_look() - now for hours in (0, 0.1, 0.5, 1, 48)]
    assert [round(pause) for pause in pauses] == [60, 60, 90, 180, 300]


def test_what_the_triggerer_cannot_look_at_is_left_to_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_arrival, "LEAST_SECONDS", 0.05)

    def failing(place: Awaited) -> None:
        raise ExternalUnavailable("stale file handle")

    monkeypatch.setattr(Awaited, "missing", failing)
    now = time.time()
    places = [["path", str(tmp_path / MARKER)]]
    made = LogioInputTrigger(places=places, machine=machine_of_this_process(), since=now, until=now + 3600)
    assert fired(made) == {"why": "the task looks itself"}


def test_a_file_system_that_hangs_does_not_hold_the_triggerer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_arrival, "LEAST_SECONDS", 0.05)
    monkeypatch.setattr(input_arrival, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(Awaited, "missing", lambda place: time.sleep(2))
    now = time.time()
    places = [["path", str(tmp_path / MARKER)]]
    made = LogioInputTrigger(places=places, machine=machine_of_this_process(), since=now, until=now + 3600)
    assert fired(made) == {"why": "the task looks itself"}


def test_a_task_that_may_not_defer_waits_on_its_worker(
    begun: Callable[[str], Begun], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = begun("LATE")
    monkeypatch.setattr(_compat, "default_deferrable", lambda: False)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            one.arrives(1)

    # The module's own name, as other threads of this process sleep, too.
    clock = SimpleNamespace(sleep=sleep, time=time.time)
    monkeypatch.setattr("airflow_logio.operators._task.input_wait.time", clock)
    one.execute()
    assert one.runs == 1 and len(slept) == 3 and "The input is there, after" in capsys.readouterr().out


# --- runs that are there, and rows that are not -----------------------------------------------------------------------


def test_a_run_that_resumes_waits_for_nothing(begun: Callable[[str], Begun]) -> None:
    """It has noted what it reads. That its file is gone is found as ever."""
    one = begun("MARKED")
    one.arrives(1)
    one.arrives(name=MARKER)
    uid = one.execute()
    (one.folder / MARKER).unlink()
    assert one.execute() == uid


def test_a_retry_of_one_that_was_killed_while_it_waited_waits(begun: Callable[[str], Begun]) -> None:
    one = begun("LATE")
    deferred(one.execute)
    one.attempt = 2
    waits = deferred(one.execute)
    one.arrives(1)
    assert one.resume(waits, {"why": "it is there"}) and one.runs == 1


def test_input_without_a_row_fails_where_the_author_says_so_and_else_not(begun: Callable[[str], Begun]) -> None:
    one = begun("NEEDS_ROWS")
    waits = deferred(one.execute)
    one.arrives()
    with pytest.raises(ConfigurationError) as failed:
        one.resume(waits, {"why": "it is there"})
    assert f"is there, and has no row: {one.folder}/{FILE}" in str(failed.value) and one.runs == 0
    assert "on_empty='fail'" in str(failed.value)
    other = begun("LATE")
    assert other.execute() and one.runs == 1


def test_wrong_parameters_are_refused_before_the_wait(begun: Callable[[str], Begun]) -> None:
    one = begun("LATE")
    with pytest.raises(ConfigurationError, match="parameter 'data'"):
        one.task.execute(context(params={}))
