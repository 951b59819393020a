"""`logio run --partition A..B`, and `logio retry`: a run for each partition of a range, some of them at a time.

Each is a run as any other, with its own supervisor (`LocalRun`) in a thread of its own; the main thread begins them in
order, shows what they do, and gets the signals. Nothing that happens to one run ends another: what it raises is what became
of its partition.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from airflow_logio.cli.display import Progress
from airflow_logio.cli.input_wait import LOOK_SECONDS as INPUT_SECONDS
from airflow_logio.cli.run_tables import add_row, new_table
from airflow_logio.errors import ConfigurationError, LogioError
from airflow_logio.launch.input_arrival import Waiting
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.protocol.states import RunState
from airflow_logio.status.run_summary import Outcome, RunSummary
from airflow_logio.status.snapshot import Snapshot
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.upkeep_records import RemovedRun
from airflow_logio.supervision.local_run import LocalRun

LOOK_SECONDS = 0.25
MOST_RUNS = 100_000
"""Of the days or hours that are to be computed again: a range has 10,000 at most, and each may have had several."""
WAITING, NOT_BEGUN, REFUSED, FAILED = "waiting for input", "not begun", "refused", "failed"


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that is to be supervised: all its groups, unless some are named."""

    context: LaunchContext
    groups: Sequence[str] | None = None
    is_launched: bool = False
    """Whether drivers of it may run already: then it is supervised in any case, and a halt ends them."""


@dataclass(slots=True)
class OnePartition:
    """What became of a partition so far. Only its own thread writes `summary` and `error` while that is alive."""

    key: str
    run: Run | None = None
    supervisor: LocalRun | None = None
    thread: threading.Thread | None = None
    snapshot: Snapshot | None = None
    summary: RunSummary | None = None
    error: Exception | None = None
    was_finished: bool = False
    """Whether an earlier command has finished its run."""
    waiting: Waiting | None = None
    """What its run, which has not begun, waits for."""

    @property
    def is_running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    @property
    def is_finished(self) -> bool:
        return self.summary is not None and self.summary.outcome is Outcome.FINISHED

    @property
    def waits_for_a_person(self) -> bool:
        """Whether a group of its run is parked, or Input Sets are set aside."""
        return self.summary is not None and self.summary.outcome in (Outcome.PARKED, Outcome.QUARANTINED)

    @property
    def state(self) -> str:
        """In a word or two."""
        if self.error is not None:
            return REFUSED if self.supervisor is None else FAILED
        if self.summary is None:
            return NOT_BEGUN if self.waiting is None else WAITING
        return f"{self.summary.outcome.value}{' before' if self.was_finished else ''}"

    @property
    def why(self) -> str:
        """The error that has ended it here; nothing if none did."""
        if self.error is None or isinstance(self.error, LogioError):
            return str(self.error or "")
        return f"{type(self.error).__name__}: {self.error}"

    def supervise(self) -> None:
        assert self.supervisor is not None
        try:
            self.summary = self.supervisor.run(self._keep)
        except Exception as error:
            self.error = error

    def _keep(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def as_json(self) -> dict[str, Any]:
        return {
            "partition": self.key,
            "state": self.state,
            "error": self.why or None,
            "run": None if self.run is None else self.run.uid,
            "summary": None if self.summary is None else self.summary.as_json(),
        }


class Partitions:
    """The runs of partitions, at most `at_once` of them alive. `begin` gets or creates the run of one, or says what that
    waits for: it is asked again, and those behind it begin."""

    def __init__(self, keys: Sequence[str], begin: Callable[[str], Begun | Waiting], at_once: int) -> None:
        self.all = [OnePartition(key) for key in keys]
        self._begin = begin
        self._at_once = at_once
        self._halts = 0

    def halt(self) -> None:
        """End all of them, and begin no further one: the first call halts the drivers, the second kills them. Safe in a
        signal handler."""
        self._halts += 1
        for one in self.all:
            if one.supervisor is not None:
                one.supervisor.halt()

    def run(self, show: Callable[[Sequence[OnePartition]], None]) -> None:
        """Blocks until all have ended, or `halt` was called; then no driver is left."""
        left, later, look_at = deque(self.all), deque[OnePartition](), 0.0
        try:
            while True:
                running = sum(one.is_running for one in self.all)
                if left and not self._halts and running < self._at_once:
                    one = left.popleft()
                    self._start(one)
                    if one.waiting is not None:
                        later.append(one)
                    continue
                show(self.all)
                if not running and (self._halts or not (left or later)):
                    return
                if later and time.monotonic() >= look_at:  # those that have never been looked at come first
                    left, later, look_at = left + later, deque(), time.monotonic() + INPUT_SECONDS
                time.sleep(LOOK_SECONDS)
        except BaseException:
            self.halt()
            raise
        finally:
            for one in self.all:
                if one.thread is not None:
                    one.thread.join()

    def _start(self, one: OnePartition) -> None:
        try:
            begun, one.waiting = self._begin(one.key), None
            if isinstance(begun, Waiting):
                one.waiting = begun
                return
            one.run = begun.context.run
            one.was_finished = one.run.state in (RunState.FINISHED, RunState.QUARANTINED)
            if self._halts and not begun.is_launched:
                return
            supervisor = LocalRun(begun.context, begun.groups)
        except Exception as error:
            one.waiting, one.error = None, error
            return
        one.supervisor = supervisor
        for _ in range(self._halts):  # one that comes from here on reaches the supervisor
            supervisor.halt()
        if begun.is_launched or not self._halts:
            thread = threading.Thread(target=one.supervise, name=f"run of {one.key}")
            thread.start()
            one.thread = thread


class RangeProgress:
    """Use as a context. `show` tells of those that run, and once of each that has ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(console)
        self._told: set[str] = set()
        self._waits: dict[str, str] = {}

    def __enter__(self) -> RangeProgress:
        self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)

    def show(self, partitions: Sequence[OnePartition]) -> None:
        for one in partitions:
            has_ended = not one.is_running and (one.summary is not None or one.error is not None)
            if has_ended and one.key not in self._told:
                self._told.add(one.key)
                self._progress.say(f"{one.key}: {one.state}")
            if one.waiting is not None and self._waits.get(one.key) != one.waiting.what:
                self._waits[one.key] = one.waiting.what
                self._progress.say(f"{one.key} {one.waiting}")
        alive = {one.key: one.snapshot for one in partitions if one.is_running and one.snapshot is not None}
        self._progress.show_each(alive, f"{len(self._told):,} of {len(partitions):,}")


def table_of(what: str, partitions: Sequence[OnePartition]) -> Table:
    """Partition, state, records read, seconds, and which run it is; `what` a partition is called."""
    table = new_table(what, "state", "records", "seconds", "uid")
    for column in table.columns[2:4]:
        column.justify = "right"
    for one in partitions:
        made = one.summary
        add_row(
            table,
            one.key,
            one.state,
            "" if made is None else f"{made.records:,}",
            "" if made is None else f"{made.seconds:.1f}",
            "" if one.run is None else one.run.uid[:8],
        )
    return table


def newest_of(store: LogStore, written: str, pipeline: str | None) -> list[Run | RemovedRun]:
    """The newest run of each partition, in order, also if it was removed. Raises `ConfigurationError` if there is none, or of
    several pipelines."""
    first, _, last = written.partition("..")
    keys = (first, last or first)
    newest: dict[tuple[str, str], Run | RemovedRun] = {}
    found: list[Run | RemovedRun] = [*store.removed_runs(pipeline=pipeline, partitions=keys, limit=MOST_RUNS)]
    found += store.list_runs(pipeline=pipeline, partitions=keys, limit=MOST_RUNS)
    for run in found:
        key = run.key if isinstance(run, RemovedRun) else run.spec.key
        place = (key.pipeline, str(run.partition))
        is_gone = isinstance(run, Run) and run.state is RunState.REMOVING  # there is one of the other kind, too
        if not is_gone and (place not in newest or run.ordinal > newest[place].ordinal):
            newest[place] = run
    if not newest:
        raise ConfigurationError(f"no run of partition {written} is in the log: `logio run --partition` begins one")
    if len(names := sorted({name for name, _ in newest})) > 1:
        raise ConfigurationError(
            f"pipelines {', '.join(names)} have runs of partition {written}: say which one with --pipeline"
        )
    return [newest[place] for place in sorted(newest)]
