"""The log that the page reads, and looks at it that many viewers share: a run costs the log one look per second.

`LogSource` opens the log for the first request, waits a moment after a refusal, and lets few requests ask at a time.
"""

from __future__ import annotations

import re
import threading
import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from airflow_logio.errors import LogioError, LogUnavailable, RunRemoved, UnknownRun
from airflow_logio.run_report.calendar import Calendar, CalendarReader
from airflow_logio.run_report.causes import HIDDEN
from airflow_logio.run_report.report import IsPaused, Report, Reporter, not_known
from airflow_logio.status.authored_figures import AuthoredConnections
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.described_runs import check_whole
from airflow_logio.store.rules.removed_rules import said_of, when_and_why
from airflow_logio.ui.run_list import ListedRuns, listed_runs
from airflow_logio.ui.run_look import (
    MOST_QUARANTINED,
    LagAges,
    common_parts,
    has_ids,
    operators_document,
    parts_with_errors,
)

REFUSED_SECONDS = 2.0
"""For so long a refusal holds for everyone: an unavailable database must not hold all threads of a server."""
MOST_ASKING = 4
"""Threads that may wait for the log. The page shares them with all of Airflow's API: a log that hangs takes no more."""


class TooManyAsk(LogUnavailable):
    """As many requests as may wait for the log wait for it."""


@dataclass(frozen=True, slots=True)
class OpenLog:
    """What is known of the log, once it is open."""

    store: LogStore
    looks: Looks
    lists: SharedLists
    calendars: SharedCalendars


class LogSource:
    """`opening` opens the log; `log` is its connection id, for commands in sentences; `is_paused` asks Airflow about a DAG.
    Thread-safe."""

    def __init__(self, opening: Callable[[], LogStore], log: str | None, is_paused: IsPaused = not_known) -> None:
        self._opening = opening
        self._log = log
        self._is_paused = is_paused
        self._lock = threading.Lock()
        self._refused: tuple[float, str] | None = None
        self._places = threading.BoundedSemaphore(MOST_ASKING)
        self._opened: OpenLog | None = None

    def look(self, uid: str) -> RunLook:
        """As `Looks.at`; one that still holds takes no place. Raises as `asking`, and `UnknownRun`."""
        held = None if self._opened is None else self._opened.looks.fresh(uid)
        if held is not None:
            return held
        with self.asking() as log:
            return log.looks.at(uid)

    def listed(self, asked: ListAsked) -> ListedRuns:
        """As `SharedLists.of`; one that still holds takes no place. Raises as `asking`."""
        held = None if self._opened is None else self._opened.lists.fresh(asked)
        if held is not None:
            return held
        with self.asking() as log:
            return log.lists.of(asked)

    def calendar(self, asked: CalendarAsked) -> Calendar:
        """As `SharedCalendars.of`; one that still holds takes no place. Raises as `asking`."""
        held = None if self._opened is None else self._opened.calendars.fresh(asked)
        if held is not None:
            return held
        with self.asking() as log:
            return log.calendars.of(asked)

    @contextmanager
    def asking(self) -> Iterator[OpenLog]:
        """The log, for one request. Raises `TooManyAsk` at once while too many others wait for the log, and `LogUnavailable`
        for every log that cannot be opened, with the reason."""
        if not self._places.acquire(blocking=False):
            raise TooManyAsk(f"{MOST_ASKING} requests wait for the log: try again in a moment")
        try:
            yield self._open()
        finally:
            self._places.release()

    def opened(self) -> OpenLog:
        """The log for a long search, which takes no place: `searches.MOST_STREAMS` bounds those. Raises as `asking`."""
        return self._open()

    def _open(self) -> OpenLog:
        with self._lock:
            if self._opened is None:
                if self._refused is not None and time.monotonic() - self._refused[0] < REFUSED_SECONDS:
                    raise LogUnavailable(self._refused[1])
                store = self._asked()
                looks = Looks(store, self._log, is_paused=self._is_paused)
                lists = SharedLists(store, self._log, is_paused=self._is_paused)
                calendars = SharedCalendars(store, self._log, is_paused=self._is_paused)
                self._opened = OpenLog(store, looks, lists, calendars)
            return self._opened

    def _asked(self) -> LogStore:
        try:
            return self._opening()
        except Exception as error:  # whatever a connection's lookup raises: it must not end a web server's request
            text = str(error) if isinstance(error, LogioError) else f"{type(error).__name__} when the log was opened"
            self._refused = time.monotonic(), text
            raise LogUnavailable(text) from error


# --- one run ----------------------------------------------------------------------------------------------------------

FRESH_SECONDS = 1.0
MOST_RUNS = 64
"""Runs whose looks are kept: each keeps what rates need."""
_UID = re.compile(r"[0-9a-f]{32}", re.ASCII)


class RunLook:
    """One look at one run, encoded once for all viewers: of its thousands of parts, only the bytes stay."""

    def __init__(self, report: Report, common: dict[str, Any]) -> None:
        """`common` as `common_parts` has them."""
        self.report = report
        self.has_ids = has_ids(report)
        """Whether it names Input Sets: if not, the right to read their ids need not be asked for."""
        self._common = common
        self._encoded: dict[tuple[bool, bool], bytes] = {}
        self.encoded(errors=True, ids=True)

    def encoded(self, *, errors: bool, ids: bool) -> bytes:
        """The look for readers with or without the right to read error texts, and ids of Input Sets."""
        found = self._encoded.get((errors, ids))
        if found is None:
            parts = parts_with_errors(self.report, shown=errors, ids_shown=ids)
            found = self._encoded[errors, ids] = msgspec.json.encode({**self._common, **parts})
        return found

    @property
    def dag_id(self) -> str:
        return self.report.run.spec.key.dag_id

    @property
    def at(self) -> float:
        """When it was taken, by this machine's clock, in seconds since the epoch."""
        return self.report.at


Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class _OfOneLog(Generic[Asked, Answer]):
    """What many viewers share of one log. `log` is its connection id, for commands in sentences; `is_paused` asks Airflow
    about a DAG. Thread-safe."""

    def __init__(
        self,
        store: LogStore,
        log: str | None,
        clock: Callable[[], float] = time.monotonic,
        is_paused: IsPaused = not_known,
    ) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._is_paused = is_paused
        self._lock = threading.Lock()
        self._shared: OrderedDict[Asked, SharedValue[Answer]] = OrderedDict()
        """The one that was asked for last is the last one."""


class Looks(_OfOneLog[str, RunLook]):
    """Looks at the runs of a log, by uid."""

    def fresh(self, uid: str) -> RunLook | None:
        """A look that still holds; None where the log must be asked."""
        known = self._known(uid)
        return None if known is None else known.fresh()

    def at(self, uid: str) -> RunLook:
        """A look at the run of that uid, at most a second old, or some seconds if looks at it cost much.

        Raises `UnknownRun`, `LogUnavailable`. Only a whole uid names a run here: beginnings of others could be tried.
        """
        known = self._known(uid)
        if known is None:
            seen = self._store.sight([uid]) if _UID.fullmatch(uid) else ()
            if not seen:
                removed = self._store.removed_run(uid) if _UID.fullmatch(uid) else None
                if removed is not None:
                    raise RunRemoved(said_of(removed), when_and_why(removed))
                raise UnknownRun("no such run is in the log")
            known = self._watched(check_whole(seen[0].run))
        return known.get()

    def _known(self, uid: str) -> SharedValue[RunLook] | None:
        with self._lock:
            known = self._shared.get(uid)
            if known is not None:
                self._shared.move_to_end(uid)
        return known

    def _watched(self, run: Run) -> SharedValue[RunLook]:
        with self._lock:
            known = self._shared.get(run.uid)
            if known is None:
                # The run itself, not its name: a DAG run may be named as the uid of another one is.
                reporter = Reporter(
                    self._store, run, log=self._log, most_quarantined=MOST_QUARANTINED, is_paused=self._is_paused
                )
                known = self._shared[run.uid] = SharedValue(_Watch(reporter, run).look, FRESH_SECONDS, self._clock)
            while len(self._shared) > MOST_RUNS:
                self._shared.popitem(last=False)
        return known


class _Watch:
    """One run, and what is kept between looks at it. For one thread at a time."""

    def __init__(self, reporter: Reporter, run: Run) -> None:
        self._reporter = reporter
        self._operators = operators_document(run.spec)
        self._authored = AuthoredConnections(run)
        self._ages = LagAges()

    def look(self) -> RunLook:
        report = self._reporter.look()
        if not report.snapshot.groups:
            raise UnknownRun("the run is being removed from the log")
        return RunLook(report, common_parts(report, self._operators, self._authored, self._ages))


# --- lists of runs ----------------------------------------------------------------------------------------------------

LIST_FRESH_SECONDS = 2.0
MOST_LISTS = 64


class ListAsked(NamedTuple):
    """Which runs are listed; None for all."""

    dag_ids: frozenset[str] | None
    dag_run_id: str | None = None
    named: str | None = None
    """A part of the name of the pipeline, the DAG or the DAG run."""
    pipeline: str | None = None
    partition: str | None = None
    """The key of a day or hour."""


class _SharedAnswers(_OfOneLog[Asked, Answer]):
    """Answers to the questions that were asked last."""

    @abstractmethod
    def _find(self, asked: Asked) -> Answer: ...

    def fresh(self, asked: Asked) -> Answer | None:
        """An answer that still holds; None where the log must be asked."""
        return self._answer(asked).fresh()

    def of(self, asked: Asked) -> Answer:
        """At most two seconds old, or more where it costs much. Raises what finding it raises, such as `LogUnavailable`."""
        return self._answer(asked).get()

    def _answer(self, asked: Asked) -> SharedValue[Answer]:
        with self._lock:
            found = self._shared.pop(asked, None)
            if found is None:
                found = SharedValue(partial(self._find, asked), LIST_FRESH_SECONDS, self._clock)
            self._shared[asked] = found
            while len(self._shared) > MOST_LISTS:
                self._shared.popitem(last=False)
        return found


class SharedLists(_SharedAnswers[ListAsked, ListedRuns]):
    """The lists of one log, as `listed_runs`."""

    def _find(self, asked: ListAsked) -> ListedRuns:
        return listed_runs(
            self._store,
            self._log,
            asked.dag_ids,
            dag_run_id=asked.dag_run_id,
            named=asked.named,
            pipeline=asked.pipeline,
            partition=asked.partition,
            is_paused=self._is_paused,
        )


def list_document(found: ListedRuns, may_read_errors: Callable[[str], bool]) -> dict[str, Any]:
    """The list for one reader; `may_read_errors` says it for a DAG."""
    with_reasons = {one["dag_id"] for one in found.runs if any(group["is_error"] for group in one["stopped"])}
    hidden = {dag_id for dag_id in with_reasons if not may_read_errors(dag_id)}
    return {
        "at": found.at,
        "runs": [_without_reasons(one) if one["dag_id"] in hidden else one for one in found.runs],
        "older": found.older,
    }


def _without_reasons(one: dict[str, Any]) -> dict[str, Any]:
    hidden = {"reason": HIDDEN, "place": ""}
    return {**one, "stopped": [{**group, **(hidden if group["is_error"] else {})} for group in one["stopped"]]}


# --- calendars --------------------------------------------------------------------------------------------------------


class CalendarAsked(NamedTuple):
    """Whose days, and up to which one; None for the last one."""

    pipeline: str
    last: str | None = None


class SharedCalendars(_SharedAnswers[CalendarAsked, Calendar]):
    """The calendars of one log, as `CalendarReader` reads them: of all DAGs, so each reader gets its part."""

    def _find(self, asked: CalendarAsked) -> Calendar:
        return CalendarReader(self._store, self._log, self._is_paused).read(asked.pipeline, last=asked.last)


# --- shared by threads ------------------------------------------------------------------------------------------------

SHARE = 0.1
"""Share of the time that finding one value may take: what costs more holds for longer, as far as that is allowed."""
MEANWHILE_SECONDS = 2.0
"""For so long a value holds more, while the next one is being found."""
OLDEST_SECONDS = 5.0
"""So old a value may become before those who want it wait for the next one: a page must not stand still on an old state."""
T = TypeVar("T")


class SharedValue(Generic[T]):
    """`find` finds the value, which holds for `seconds` at least, and `OLDEST_SECONDS` at most. Thread-safe."""

    def __init__(self, find: Callable[[], T], seconds: float, clock: Callable[[], float]) -> None:
        self._find = find
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._last: tuple[float, T] | None = None
        """Until when it holds, and the value."""

    def fresh(self) -> T | None:
        """The value if it still holds, also for a moment more while another thread finds the next one; None if not.

        It waits for nothing: of many viewers, one asks the log.
        """
        last = self._last
        if last is None:
            return None
        more = MEANWHILE_SECONDS if self._lock.locked() else 0.0
        return last[1] if self._clock() < last[0] + more else None

    def get(self) -> T:
        """Raises what `find` raises, and keeps the last value then."""
        with self._lock:
            began = self._clock()
            if self._last is None or began >= self._last[0]:
                value = self._find()
                ended = self._clock()
                holds = max(self._seconds, (ended - began) / SHARE)
                self._last = ended + min(holds, OLDEST_SECONDS - MEANWHILE_SECONDS), value
            return self._last[1]
