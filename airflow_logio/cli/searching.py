"""How far a search through records is, for the person who waits at the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from airflow_logio.cli.common import err
from airflow_logio.lineage.search_limits import SearchedSoFar
from airflow_logio.lineage.why_not import AnswerWatch
from airflow_logio.run_report.why_not_text import searched_said

EVERY_SECONDS = 0.1


@contextmanager
def shown_search() -> Iterator[AnswerWatch]:
    """Shows it on standard error, if that is a terminal, and leaves nothing there at the end."""
    columns = (SpinnerColumn(), TextColumn("searching {task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        yield _Shown(bars, bars.add_task("...", total=None))


class _Shown(AnswerWatch):
    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars = bars
        self._task = task
        self._shown_at = 0.0

    def looks(self, so_far: SearchedSoFar) -> None:
        now = time.monotonic()
        if now - self._shown_at >= EVERY_SECONDS:
            self._shown_at = now
            self._bars.update(self._task, description=searched_said(so_far))
