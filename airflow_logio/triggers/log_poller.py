"""One poller per log and process, for all triggers that watch this log: one look at the log for all of them (ADR-65).

A triggerer may watch hundreds of groups. Its poller asks the log once per poll interval, in one statement for all runs
that are watched, and shows the answer to each trigger in a thread. A trigger that has nothing to say costs the event loop
nothing. Nothing here uses the default executor of the event loop: it has few threads, other triggers want them, and
Airflow's own logging does. However many triggers there are, a poller has `CONNECTIONS` connections, and one that listens.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.launch.driver_log import LATE_SECONDS, most_parts
from airflow_logio.protocol.replicas import SlotsSight
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.unfenced_port import OutputPart
from airflow_logio.store.port.watch_port import Hearing
from airflow_logio.store.records.status_records import RunFigures, RunSight, SupervisorNote, SupervisorRecord
from airflow_logio.supervision.clusters.left_drivers import LeftDrivers
from airflow_logio.supervision.clusters.manager_answers import shared_answers
from airflow_logio.supervision.scaling import in_question

log = logging.getLogger(__name__)

CONNECTIONS = 4
LOOKING, ACTING, LAUNCHING = 3, 8, 2
"""Threads in which triggers see what a look has found, in which they act otherwise, and in which they launch drivers. The
first takes no time, but where a dead driver is ended or a lock is waited for; a halt takes as long as its driver; a launch
takes a fraction of a second."""
FIGURES_SECONDS = 10.0
NOTE_SECONDS = 5.0
"""How often the log is told that supervisors are looking, and asked which ones do."""
SLOTS_SECONDS = 5.0
"""How often the log is asked whether groups that sleep have work: of all of them at once."""
PLACE_SECONDS = 2.0
"""How often the log is asked whether runs that wait for a place may begin: of all of them at once."""
LEAST_SECONDS = 0.5
"""Between two looks, unless the poll interval is shorter: triggers that begin one after the other are looked for together."""
RUNG_SECONDS = 0.1
"""Between two looks, where a failure was announced."""
AT_ONCE_SECONDS = 2.0
"""Between two questions for figures, or two notes, of triggers that have just begun."""
REOPEN_SECONDS = 30.0
"""A log that has been unavailable for so long, or lacks a run, is opened anew: its connection may have been changed."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LogLook:
    """What one look has found. `error` says why the log could not be asked: then nothing is known."""

    asked_at: float
    """Monotonic seconds of this process, before the question."""
    store: LogStore | None = None
    runs: Mapping[str, RunSight] = field(default_factory=dict)
    """uid → run; runs that the log does not have are missing."""
    going_on: Sequence[RunSight] = ()
    """All unfinished runs, if a trigger asks for all."""
    figures: Mapping[int, RunFigures] = field(default_factory=dict)
    """run id → figures, now and then."""
    supervisors: Sequence[SupervisorRecord] = ()
    slots: Mapping[tuple[int, str], SlotsSight] = field(default_factory=dict)
    """(run id, group) → slots and work of replicated groups in which no replica seems to work, now and then."""
    output: Mapping[int, Sequence[OutputPart]] = field(default_factory=dict)
    """run id → what its drivers have sent of what they print, at least what is new."""
    ahead: Mapping[int, int | None] = field(default_factory=dict)
    """run id → what `GroupPort.runs_ahead` says of a run that waits for a place, now and then."""
    error: LogUnavailable | None = None


@dataclass(eq=False, slots=True)
class Watch:
    """What one trigger wants to see. `see` is called in a thread with each look, never twice at a time, until it answers."""

    see: Callable[[LogLook], Any]
    """Returns None, or the answer. What it raises is the answer, too."""
    interval: float
    """Seconds between two looks."""
    uid: str | None = None
    """The run to look at."""
    all_runs: bool = False
    """Look at all unfinished runs."""
    figures: bool = False
    note: SupervisorNote | None = None
    """What the log is told while this trigger looks for failed groups; such a trigger also hears of failures."""
    answer: Future[Any] = field(default_factory=Future)
    next_at: float = 0.0
    is_busy: bool = False
    is_unnoted: bool = True
    has_no_figures: bool = True
    place: bool = False
    """The run waits for a place for its drivers."""
    output: bool = False
    """Show what the drivers of the run print."""
    output_at: float = 0.0
    """When the last part was written that it was shown, by the clock of the log."""
    slots_asked: float = -1.0
    """In which part of time, `SLOTS_SECONDS` long, its groups that sleep were last asked about."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """The context of the trigger, by which Airflow tells to which task's log a line belongs."""

    def show(self, look: LogLook) -> None:
        try:
            found = self.context.run(self.see, look)
        except BaseException as error:
            self.fail(error)
        else:
            if found is not None:
                with suppress(InvalidStateError):  # the trigger was cancelled
                    self.answer.set_result(found)
        finally:
            self.is_busy = False

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.answer.set_exception(error)


class Share:
    """A trigger's part in the poller of its log, until it is left. The last one that leaves ends the poller."""

    def __init__(self, poller: _LogPoller) -> None:
        self._poller = poller
        self._watches: list[Watch] = []

    def watch(self, watch: Watch) -> Future[Any]:
        """The answer of `watch.see`, or what it has raised. Raises what opening the log raises."""
        self._watches.append(watch)
        self._poller.add(watch)
        return watch.answer

    def act(self, act: Callable[[LogStore], _T]) -> Future[_T]:
        """Do something else with the log, in a thread. Raises what opening the log raises, and what `act` does."""
        return self._poller.act(act)

    def launch(self, act: Callable[[LogStore], _T]) -> Future[_T]:
        """The same, for what may start a driver: few threads, which nothing else keeps busy. Raises RuntimeError if the
        poller has ended."""
        return self._poller.launch(act)

    def leave(self) -> None:
        """Waits for nothing, not even for what is under way; harmless when repeated."""
        self._poller.leave(self, self._watches)


def join(logio_conn_id: str) -> Share:
    """A share in the one poller of this log. Costs no question, neither to the log nor to Airflow."""
    with _pollers_lock:
        poller = _pollers.get(logio_conn_id)
        if poller is None:
            poller = _pollers[logio_conn_id] = _LogPoller(logio_conn_id)
        return poller.join()


_pollers_lock = threading.Lock()
"""Guards `_pollers`, and who has a share in them."""
_pollers: dict[str, _LogPoller] = {}


class _LogPoller:
    """Joined and left under `_pollers_lock`; `_news` guards watches and times. No lock is held while the log is asked."""

    def __init__(self, logio_conn_id: str) -> None:
        self._conn_id = logio_conn_id
        self._shares: set[Share] = set()
        self._watches: dict[Watch, None] = {}
        self._news = threading.Condition()
        self._is_over = False
        self._is_rung = False
        self._looked_at = self._asked_at = self._opened_at = float("-inf")
        self._figures, self._notes, self._places = map(_Cadence, (FIGURES_SECONDS, NOTE_SECONDS, PLACE_SECONDS))
        self._away_since: float | None = None
        self._supervisors: Sequence[SupervisorRecord] = ()
        self._opening = threading.Lock()
        self._store: LogStore | None = None
        self._left: LeftDrivers
        """Of the store; drivers on clusters that are asked to end."""
        self._hearing: Hearing | None = None
        self._looking = ThreadPoolExecutor(LOOKING, thread_name_prefix="logio look")
        self._acting = ThreadPoolExecutor(ACTING, thread_name_prefix="logio act")
        self._launching = ThreadPoolExecutor(LAUNCHING, thread_name_prefix="logio launch")
        threading.Thread(target=self._run, name="logio poller", daemon=True).start()

    # --- in any thread ------------------------------------------------------------------------------------------------

    def join(self) -> Share:
        share = Share(self)
        self._shares.add(share)
        return share

    def leave(self, share: Share, watches: Sequence[Watch]) -> None:
        with self._news:
            for watch in watches:
                watch.answer.cancel()
                self._watches.pop(watch, None)
        with _pollers_lock:
            self._shares.discard(share)
            if self._shares or self._is_over:
                return
            self._is_over = True
            del _pollers[self._conn_id]  # a trigger that comes now starts another one
        with self._news:
            self._news.notify()

    def add(self, watch: Watch) -> None:
        with self._news:
            self._watches[watch] = None
            self._news.notify()

    def act(self, act: Callable[[LogStore], _T]) -> Future[_T]:
        return self._submit(self._acting, act)

    def launch(self, act: Callable[[LogStore], _T]) -> Future[_T]:
        return self._submit(self._launching, act)

    def _submit(self, threads: ThreadPoolExecutor, act: Callable[[LogStore], _T]) -> Future[_T]:
        context = contextvars.copy_context()
        return threads.submit(lambda: context.run(lambda: act(self._opened())))

    def _ring(self) -> None:
        """A failure was announced: all that look for failures look at once."""
        with self._news:
            self._is_rung = True
            self._news.notify()

    def _opened(self) -> LogStore:
        with self._opening:
            if self._store is None:
                self._opened_at = time.monotonic()
                self._store = LogioHook(self._conn_id).get_store(connections=CONNECTIONS)
                self._left = LeftDrivers(self._store, shared_answers().managers)
            return self._store

    # --- in the poller's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (due := self._wait()) is not None:
                self._poll(due)
        except BaseException as error:  # never silently: a trigger that fails is tried again by its task
            self._give_up(error)
            raise
        finally:
            self._looking.shutdown()
            self._acting.shutdown()
            self._launching.shutdown()
            self._close()

    def _wait(self) -> list[Watch] | None:
        """Wait until a look is due; the watches that it is for, or None at the end."""
        with self._news:
            while not self._is_over:
                now = time.monotonic()
                at = self._next_look()
                if at is not None and at <= now:
                    return self._due(now)
                self._news.wait(None if at is None else at - now)
        return None

    def _next_look(self) -> float | None:
        waiting = [watch for watch in self._watches if not watch.answer.done()]
        if not waiting:
            return None
        shortest = min(watch.interval for watch in waiting)
        if self._is_rung and any(watch.note for watch in waiting):
            return self._looked_at + min(RUNG_SECONDS, shortest)
        return max(min(watch.next_at for watch in waiting), self._looked_at + min(LEAST_SECONDS, shortest))

    def _due(self, now: float) -> list[Watch]:
        """Watches of one interval are due together, whenever they began."""
        due = [
            watch
            for watch in self._watches
            if not watch.answer.done() and (watch.next_at <= now or (self._is_rung and watch.note))
        ]
        self._is_rung, self._looked_at = False, now
        for watch in due:
            watch.next_at = (now // watch.interval + 1) * watch.interval
        return due

    def _poll(self, due: Sequence[Watch]) -> None:
        try:
            look = self._look(due)
        except Exception as error:  # a wrong connection, another schema, damage: each trigger says so
            self._close()
            for watch in due:
                watch.fail(error)
            return
        for watch in due:
            if not watch.is_busy:
                watch.is_busy = True
                self._looking.submit(watch.show, look)

    def _look(self, due: Sequence[Watch]) -> LogLook:
        asked_at = time.monotonic()
        try:
            look = self._ask(self._opened(), due, asked_at)
            if self._is_elsewhere(due, look) and asked_at - self._opened_at >= REOPEN_SECONDS:
                self._close()
                look = self._ask(self._opened(), due, asked_at)
        except LogUnavailable as error:
            self._away_since = asked_at if self._away_since is None else self._away_since
            if asked_at - self._away_since >= REOPEN_SECONDS:
                self._away_since = None
                self._close()
            return LogLook(asked_at, error=error)
        self._away_since = None
        if self._hearing is None and look.store is not None and any(watch.note for watch in due):
            self._hearing = look.store.listen(self._ring)
        return look

    def _is_elsewhere(self, due: Sequence[Watch], look: LogLook) -> bool:
        """Whether a run is not in this log: its connection may name another database by now."""
        return any(watch.uid is not None and watch.uid not in look.runs for watch in due)

    def _ask(self, store: LogStore, due: Sequence[Watch], asked_at: float) -> LogLook:
        going_on = store.sight(None) if any(watch.all_runs for watch in due) else ()
        runs = {one.run.uid: one for one in going_on}
        wanted = {watch.uid for watch in due if watch.uid is not None}
        if missing := wanted - runs.keys():
            runs |= {one.run.uid: one for one in store.sight(sorted(missing))}
        figures = self._ask_for_figures(store, due, runs, asked_at)
        slots = self._ask_for_slots(store, due, runs, asked_at)
        output = self._ask_for_output(store, due, runs)
        ahead = self._ask_for_places(store, due, runs, asked_at)
        self._note(store, due, asked_at)
        if any(watch.note for watch in due):
            self._left.begin()
        if any(watch.figures for watch in due) and asked_at - self._asked_at >= NOTE_SECONDS:
            self._asked_at = asked_at
            self._supervisors = store.supervisors()
        return LogLook(asked_at, store, runs, going_on, figures, self._supervisors, slots, output, ahead)

    def _ask_for_figures(
        self, store: LogStore, due: Sequence[Watch], runs: Mapping[str, RunSight], now: float
    ) -> Mapping[int, RunFigures]:
        """Figures of all runs that triggers report; in between, of those that have just begun."""
        reported = [watch for watch in due if watch.figures]
        chosen = self._figures.of(reported, [watch for watch in reported if watch.has_no_figures], now)
        seen = [one for watch in chosen if (one := runs.get(watch.uid or "")) is not None]
        found = store.figures(sorted({one.run.run_id for one in seen if one.run.damage is None}))
        for watch in chosen:
            watch.has_no_figures = False
        return found

    def _ask_for_slots(
        self, store: LogStore, due: Sequence[Watch], runs: Mapping[str, RunSight], now: float
    ) -> Mapping[tuple[int, str], SlotsSight]:
        part = now // SLOTS_SECONDS
        looking = [watch for watch in due if watch.note and not watch.is_busy and watch.slots_asked != part]
        for watch in looking:
            watch.slots_asked = part
        if any(watch.all_runs for watch in looking):
            sights = list(runs.values())
        else:
            sights = [runs[uid] for uid in {watch.uid for watch in looking} if uid is not None and uid in runs]
        asked = [one for sight in sights for one in in_question(sight)]
        return store.slots_sight(asked) if asked else {}

    def _ask_for_places(
        self, store: LogStore, due: Sequence[Watch], runs: Mapping[str, RunSight], now: float
    ) -> Mapping[int, int | None]:
        waiting = self._places.of([watch for watch in due if watch.place and not watch.is_busy], (), now)
        seen = {one.run.run_id for watch in waiting if (one := runs.get(watch.uid or "")) is not None}
        try:
            return store.runs_ahead(sorted(seen)) if seen else {}
        except LogUnavailable:
            raise
        except (
            LogioError
        ) as error:  # their tasks meet it, too, and say it: the other triggers have nothing to do with it
            log.debug("whether there are places is not known: %s", error)
            return dict.fromkeys(seen, 0)

    def _ask_for_output(
        self, store: LogStore, due: Sequence[Watch], runs: Mapping[str, RunSight]
    ) -> Mapping[int, Sequence[OutputPart]]:
        """Nothing if that is refused: what the look has found holds all the same."""
        try:
            return _output(store, due, runs)
        except LogioError as error:
            log.debug("what drivers print is not known: %s", error)
            return {}

    def _note(self, store: LogStore, due: Sequence[Watch], now: float) -> None:
        """Tell the log which supervisors look: all at once; in between, those that have just begun."""
        looking = [watch for watch in due if watch.note is not None]
        chosen = self._notes.of(looking, [watch for watch in looking if watch.is_unnoted], now)
        try:
            store.note_supervisors([watch.note for watch in chosen if watch.note is not None])
        except LogUnavailable as error:  # what was seen holds all the same: a driver may be stopped with the lock
            log.debug("the looks are not noted: %s", error)
            return
        for watch in chosen:
            watch.is_unnoted = False

    def _give_up(self, error: BaseException) -> None:
        with _pollers_lock:
            self._is_over = True
            if _pollers.get(self._conn_id) is self:
                del _pollers[self._conn_id]
        with self._news:
            for watch in self._watches:
                watch.fail(error)

    def _close(self) -> None:
        """Close the connections; the next question makes others."""
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            hearing.close()
        with self._opening:
            store, self._store = self._store, None
        if store is not None:
            store.dispose()


def _output(store: LogStore, due: Sequence[Watch], runs: Mapping[str, RunSight]) -> Mapping[int, Sequence[OutputPart]]:
    """One question for all that were shown something before, and one for those that have just begun."""
    found: dict[int, Sequence[OutputPart]] = {}
    shown = [watch for watch in due if watch.output and not watch.is_busy and watch.uid in runs]
    for asking in ([one for one in shown if one.output_at], [one for one in shown if not one.output_at]):
        since = min((watch.output_at for watch in asking), default=0.0) - LATE_SECONDS
        run_ids = {runs[watch.uid].run.run_id for watch in asking if watch.uid is not None}
        most = most_parts(max((watch.interval for watch in asking), default=0.0))
        found |= store.output.written_since(sorted(run_ids), since, most=most)
    latest = max((part.at for parts in found.values() for part in parts), default=0.0)
    for watch in shown:
        watch.output_at = max(watch.output_at, latest)
    return found


class _Cadence:
    """When what is asked for now and then is asked for: of all together, and of those that have just begun soon."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._all_at = self._last = float("-inf")

    def of(self, watches: Sequence[Watch], begun: Sequence[Watch], now: float) -> Sequence[Watch]:
        """The watches that are served now."""
        if watches and now - self._all_at >= self._seconds:
            self._all_at = self._last = now
            return watches
        if begun and now - self._last >= AT_ONCE_SECONDS:
            self._last = now
            return begun
        return ()
