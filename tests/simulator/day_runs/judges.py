"""What must be seen of days, at every instant: decided from who has claimed and closed each day, and when.

Nothing here asks the product which run counts. It asks it, as a reader does, what is there, and compares.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_logio.dataflow.writers.published_folder import PublishedFile, counted_in, visible_files
from airflow_logio.errors import ConfigurationError
from airflow_logio.testing.simulator.stepwise import Paused, Questions
from airflow_logio.testing.simulator.violation import Violation
from tests.simulator.day_runs.folder import BEFORE, FolderPlace, SteppedFiles, Tree, Watch, content_of, rows_before
from tests.simulator.day_runs.runs import Driver, End, Rows, Run
from tests.simulator.day_runs.table import TableWatch

WHOLE = "a_day_is_the_old_one_or_the_whole_new_one"
OLDER = "an_older_run_does_not_replace_the_day_of_a_younger_one"
LINES = "another_line_replaces_a_day_only_at_the_word_of_a_person"
EMPTY = "rows_are_not_replaced_by_nothing"
STAYS = "nothing_goes_that_may_count"
ONE_INSTANT = "a_reader_sees_one_instant"
LISTED = "who_lists_a_day_sees_it_after_the_clear"
GETS = "who_is_to_have_a_day_gets_it"
FILLS = "a_day_that_fills_has_what_its_run_has_applied"
ONCE = "a_write_action_is_applied_once"
TOKEN = "a_lower_token_writes_nothing"


@dataclass
class Meeting:
    """The runs that have met at a day."""

    claims: dict[str, int] = field(default_factory=dict)
    """Run → when its claim was put that is there, in that order."""
    withdrawn: list[tuple[str, int, int]] = field(default_factory=list)
    """Run, when its claim was put, and when it was removed."""
    closed: dict[str, int] = field(default_factory=dict)
    """Run → when it has closed the day, or begun to fill it, in that order."""
    latest: dict[str, int] = field(default_factory=dict)
    """Run → when it has put its last receipt: one that fills its day says anew with each what it was put in the place of."""


class Judge:
    """Of all days of a place."""

    def __init__(self, days: Iterable[str]) -> None:
        self.runs: dict[str, Run] = {}
        self.days = {day: Meeting() for day in days}

    def begun(self, run: Run) -> None:
        """A log has begun a run, or one of its writers."""
        self.runs.setdefault(run.uid, run)

    def look(self) -> None:
        """After a call. Raises `Violation`."""

    def ended(self, driver: Driver) -> None:
        """A driver has ended by itself. Raises `Violation`."""

    def conclude(self, run: Run) -> None:
        """Nothing else is at work, and this run is to have had its day. Raises `Violation`."""

    def heir(self, day: str) -> str | None:
        """The log whose next run is to have the day, if nothing else is at work; None if a person has to say."""

    def _line(self, uids: Iterable[str]) -> set[str]:
        return {self.runs[uid].log for uid in uids}

    def _youngest(self, uids: Collection[str], log: str) -> list[str]:
        own = [uid for uid in uids if self.runs[uid].log == log]
        most = max(self.runs[uid].ordinal for uid in own)
        return [uid for uid in own if self.runs[uid].ordinal == most]


# --- a folder ---------------------------------------------------------------------------------------------------------


class FolderJudge(Judge, Watch):
    """Of a folder. If names may be shown `late`, two lines may each not know of the other; then the day is in doubt."""

    def __init__(self, place: FolderPlace, days: Iterable[str], *, late: bool) -> None:
        super().__init__(days)
        self._place = place
        self._late = late
        self._dirty: set[str] = set()
        self._filled: dict[str, set[int]] = {}
        """Run that fills its day at once → the write actions whose receipts are there."""
        self.readers: list[SlowReader] = []
        place.tree.watch = self

    def put(self, path: str, content: bytes, driver: Driver | None) -> None:
        day, name = _day_of(path)
        if name.endswith(".parquet") and content != self._content(day, name):
            raise Violation("what_is_published_never_changes", f"{path} has another content than before")
        self._dirty.add(day)
        if driver is not None and name.endswith(".claim"):
            self.days[day].claims[driver.run.uid] = self._place.now
        elif driver is not None and name.endswith(".json") and path.startswith("_logio/days/"):
            self._closes(driver, json.loads(content))

    def removed(self, path: str, content: bytes, driver: Driver | None) -> None:
        day, name = _day_of(path)
        self._dirty.add(day)
        if name.endswith(".claim"):
            uid = name.split(".")[2]
            self.days[day].withdrawn.append((uid, self.days[day].claims.pop(uid), self._place.now))
        elif not name.endswith(".parquet"):
            raise Violation(STAYS, f"{path} is removed")
        elif not self._is_gone(day, uid := name.partition(".")[0]):
            raise Violation(STAYS, f"{path} is removed, and the day is, or may become, that of {uid}")

    def _content(self, day: str, name: str) -> bytes:
        """What a file of that name must have."""
        uid, _, number, index, _ = name.split(".")
        return content_of(self.runs[uid].actions[int(number) - 2][int(index)])

    def _is_gone(self, day: str, uid: str) -> bool:
        """Whether the files of a run can never count again."""
        closed = self.days[day].closed
        if uid == BEFORE:
            return bool(closed)
        mine = self.runs[uid]
        if any(self.runs[one].log == mine.log and self.runs[one].ordinal > mine.ordinal for one in closed):
            return True
        return (self._late and len(self._line(closed)) > 1) or uid in self._perhaps_taken(day)

    def _closes(self, driver: Driver, receipt: Mapping[str, Any]) -> None:
        run, meeting, since = driver.run, self.days[driver.run.day], driver.since or 0
        named, expected = sorted(file["path"] for file in receipt["files"]), self.paths(run.day, run.uid)
        if run.fills:
            expected = self._paths_of(run, [number := int(receipt["number"])])
            self._filled.setdefault(run.uid, set()).add(number)
        is_there = self._is_gone(run.day, run.uid) or all(path in self._place.tree.files for path in named)
        if named != expected or not is_there:
            raise Violation(WHOLE, f"run {run.uid} closes {run.day} with {named}, or not all of them are there")
        taken = self._perhaps_taken(run.day)
        meeting.closed.setdefault(run.uid, self._place.now)
        meeting.latest[run.uid] = self._place.now
        if self._late:
            return
        for uid, at in meeting.claims.items():
            other = self.runs[uid]
            if at < since and other.log == run.log and uid != run.uid and other.ordinal >= run.ordinal:
                raise Violation(OLDER, f"run {run.uid} closes {run.day} after run {uid} has claimed it")
            if at < since and other.log != run.log and not run.takes_over and uid not in taken:
                raise Violation(LINES, f"run {run.uid} closes {run.day}, which run {uid} of another log has claimed")
        is_said = run.fills or run.may_be_empty
        if not run.rows and not is_said and self._had_rows(run, since):
            raise Violation(EMPTY, f"run {run.uid} empties {run.day}")

    def _had_rows(self, run: Run, since: int) -> bool:
        """Whether every run that may have counted since then has rows."""
        closed = [uid for uid in self.days[run.day].closed if uid != run.uid]
        if any(self.days[run.day].closed[uid] >= since for uid in closed):
            return False
        return all(self._has_rows(uid) for uid in closed) if closed else bool(rows_before(run.day))

    def _has_rows(self, uid: str) -> bool:
        run = self.runs[uid]
        return bool(run.rows) and not (run.fills and len(self._filled[uid]) < run.last)

    # --- what counts --------------------------------------------------------------------------------------------------

    def _taken(self, day: str) -> set[str]:
        """Runs that were certainly taken over: a claim of their line was there when the run that has done so looked."""
        found = set[str]()
        for by in self.days[day].closed:
            begun = self.days[day].claims.get(by, 0)
            found |= self._hidden(day, by, [uid for uid, put, gone in self._claims(day) if put < begun and not gone])
        return found

    def _perhaps_taken(self, day: str) -> set[str]:
        found = set[str]()
        for by, at in self.days[day].latest.items():
            found |= self._hidden(day, by, [uid for uid, put, _ in self._claims(day) if put < at])
        return found

    def _claims(self, day: str) -> Iterator[tuple[str, int, int]]:
        meeting = self.days[day]
        yield from meeting.withdrawn
        yield from ((uid, at, 0) for uid, at in (*meeting.claims.items(), *meeting.closed.items()))

    def _hidden(self, day: str, by: str, seen: Iterable[str]) -> set[str]:
        """The runs of other lines that are not younger than what was seen of theirs."""
        most: dict[str, int] = {}
        for run in (self.runs[uid] for uid in seen):
            most[run.log] = max(run.ordinal, most.get(run.log, 0))
        most.pop(self.runs[by].log, None)
        return {uid for uid, run in self.runs.items() if run.day == day and run.ordinal <= most.get(run.log, 0)}

    def counts(self, day: str) -> tuple[set[str], bool]:
        """The runs one of which must count, and whether the day may be in doubt: also where one of them, which has taken the
        line of another one over, may have been taken over by that before it closed."""
        closed = self.days[day].closed
        if not closed:
            return {BEFORE}, False
        left = [uid for uid in closed if self._late or uid not in self._taken(day)] or list(closed)
        lines = self._line(left)
        youngest = [self._youngest(left, log) for log in sorted(lines)]
        wanted = {uid for found in youngest for uid in found}
        have_met = not wanted.isdisjoint(self._perhaps_taken(day))
        return wanted, have_met or len(lines) > 1 or any(len(one) > 1 for one in youngest)

    def look(self) -> None:
        for day in sorted(self._dirty - {""}):
            self._look(day)
        if self._dirty:
            for reader in self.readers:
                reader.saw(self)
        self._dirty.clear()

    def _look(self, day: str) -> None:
        files = SteppedFiles(self._place.tree, lambda question: question(), None)
        wanted, may_doubt = self.counts(day)
        try:
            found = counted_in(files, f"day={day}")
        except ConfigurationError as error:
            if not may_doubt:
                raise Violation(WHOLE, f"{day} is in doubt, and is that of {sorted(wanted)}: {error}") from error
            return
        missing = [file.path for file in found if file.path not in self._place.tree.files]
        if missing:
            raise Violation(WHOLE, f"{missing[0]} counts in {day}, and is not there")
        self.check(day, found, wanted)

    def check(self, day: str, found: Sequence[PublishedFile], wanted: Collection[str]) -> None:
        """Whether files are exactly those of one of these runs."""
        names = sorted(file.path for file in found)
        if not any(names == self.paths(day, uid) for uid in wanted):
            fills = any(uid in self.runs and self.runs[uid].fills for uid in wanted)
            raise Violation(FILLS if fills else WHOLE, f"{day} must be that of {sorted(wanted)}, and is {names}")

    def states(self, day: str, uids: Iterable[str]) -> set[tuple[str, ...]]:
        """What a reader may see of a day that is that of one of these runs."""
        return {tuple(self.paths(day, uid)) for uid in uids}

    def is_part(self, day: str, names: Sequence[str]) -> bool:
        """Whether it may be what a folder shows of a run that fills its day: some receipts are shown late."""
        filling = (run for run in self.runs.values() if run.day == day and run.fills)
        return self._late and any(set(names) <= set(self.paths(day, run.uid)) for run in filling)

    def paths(self, day: str, uid: str) -> list[str]:
        """The files of a run."""
        if uid == BEFORE:
            number = 2 + sorted(self.days).index(day)
            return [f"day={day}/{BEFORE}.keep.{number:012d}.00000.parquet"]
        run = self.runs[uid]
        return self._paths_of(run, sorted(self._filled.get(uid, ())) if run.fills else range(2, run.last))

    def _paths_of(self, run: Run, numbers: Iterable[int]) -> list[str]:
        """The files of write actions. The opening one has none."""
        return [
            f"day={run.day}/{run.uid}.keep.{number:012d}.{index:05d}.parquet"
            for number in numbers
            if number > 1
            for index in range(len(run.actions[number - 2]))
        ]

    def ended(self, driver: Driver) -> None:
        run = driver.run
        if driver.end is End.DONE and run.fills and self._filled.get(run.uid, set()) != set(range(1, run.last + 1)):
            raise Violation(GETS, f"{run.uid} is done, and has put {self._filled.get(run.uid)} of {run.last}")

    def heir(self, day: str) -> str | None:
        meeting = self.days[day]
        claims = set(meeting.claims) if self._late else meeting.claims.keys() - self._perhaps_taken(day)
        lines = self._line(claims)
        if len(lines) > 1 and not self._late and not any(self.runs[uid].takes_over for uid in claims):
            raise Violation(GETS, f"{sorted(meeting.claims)} of several logs all keep {day} from each other")
        fills = any(self.runs[uid].fills for uid in meeting.closed)
        if fills and lines != self._line(meeting.claims.keys() - self._taken(day)):
            return None  # whether it was taken over is known to the receipts alone
        return lines.pop() if len(lines) == 1 else None

    def conclude(self, run: Run) -> None:
        files = SteppedFiles(self._place.tree, lambda question: question(), None)
        self.check(run.day, counted_in(files, run.scope), {run.uid})
        if (listed := sorted(path for path, _ in visible_files(files, run.scope))) != self.paths(run.day, run.uid):
            raise Violation(LISTED, f"{listed} are there after run {run.uid}")


def _day_of(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder.rpartition("day=")[2] if "day=" in folder else "", name


class SlowReader:
    """A reader of one day, whose calls come with others between them."""

    def __init__(self, judge: FolderJudge, tree: Tree, day: str) -> None:
        self._judge = judge
        self._day = day
        self._questions = Questions()
        self._files = SteppedFiles(tree, self._questions.ask, tree.view(), tree.page)
        self._seen: set[tuple[str, ...]] = set()
        self._may_doubt = False
        self.is_done = False
        judge.readers.append(self)
        self.saw(judge)

    def saw(self, judge: FolderJudge) -> None:
        """Something has changed."""
        wanted, may_doubt = judge.counts(self._day)
        self._seen |= judge.states(self._day, wanted)
        self._may_doubt |= may_doubt

    def advance(self, calls: int) -> None:
        """A few calls. Raises `Violation`."""
        self._questions.begin(calls)
        try:
            found = counted_in(self._files, f"day={self._day}")
        except Paused:
            return
        except OSError:
            pass  # it is to list again
        except ConfigurationError as error:
            if not self._may_doubt:
                raise Violation(ONE_INSTANT, f"{self._day} was never in doubt: {error}") from error
        else:
            self._check(found)
        self._judge.readers.remove(self)
        self.is_done = True

    def _check(self, found: Sequence[PublishedFile]) -> None:
        names = tuple(sorted(file.path for file in found))
        if names not in self._seen and not self._judge.is_part(self._day, names):
            raise Violation(ONE_INSTANT, f"{self._day} was never {names}, but {sorted(self._seen)}")


# --- a table ----------------------------------------------------------------------------------------------------------


class SeenTable(Protocol):
    """What its judge sees of a table."""

    now: int
    watch: TableWatch

    @property
    def rows(self) -> Sequence[Any]:
        """Another object whenever something has changed."""

    def day(self, day: str) -> Sequence[tuple[str, int]]:
        """Run and row of each row that belongs to a day."""


class TableJudge(Judge, TableWatch):
    """Of a table, whose transactions come one after the other."""

    def __init__(self, place: SeenTable, days: Iterable[str]) -> None:
        super().__init__(days)
        self._place = place
        self._live: dict[str, str] = {}
        """Day → the run that has closed it last."""
        self._seen: Sequence[Any] = ()
        place.watch = self

    def claimed(self, run: Run) -> None:
        last = self._last(run.day)
        if last is not None and last.log == run.log and last.ordinal >= run.ordinal:
            raise Violation(OLDER, f"run {run.uid} claims {run.day} after run {last.uid}")
        if last is not None and last.log != run.log and not run.takes_over:
            raise Violation(LINES, f"run {run.uid} claims {run.day}, which run {last.uid} of another log has claimed")
        self.days[run.day].claims.setdefault(run.uid, self._place.now)

    def closed(self, run: Run, driver: Driver) -> None:
        meeting, last = self.days[run.day], self._last(run.day)
        if last is None or last.uid != run.uid:
            raise Violation(OLDER, f"run {run.uid} closes {run.day}, which {last and last.uid} has claimed last")
        if run.uid in meeting.closed:
            raise Violation("a_closing_is_applied_once", f"run {run.uid} closes {run.day} a second time")
        if not run.rows and not run.may_be_empty and self._is_filled(run.day):
            raise Violation(EMPTY, f"run {run.uid} empties {run.day}")
        meeting.closed[run.uid] = self._place.now
        self._live[run.day] = run.uid

    def look(self) -> None:
        if self._seen is self._place.rows:
            return
        self._seen = self._place.rows
        for day in self.days:
            found = sorted(row for _, row in self._place.day(day))
            if found != sorted(self.rows_of(day)):
                raise Violation(
                    self._rule(day), f"{day} must be that of {self._live.get(day, BEFORE)}, and has {found}"
                )

    def _rule(self, day: str) -> str:
        """What a day must fulfil that has other rows."""
        return WHOLE

    def heir(self, day: str) -> str | None:
        last = self._last(day)
        return None if last is None else last.log

    def conclude(self, run: Run) -> None:
        if self._live.get(run.day) != run.uid:
            raise Violation(GETS, f"{run.day} is that of {self._live.get(run.day, BEFORE)} after run {run.uid}")

    def _is_filled(self, day: str) -> bool:
        """Whether there is something that a run would replace."""
        return bool(self.rows_of(day))

    def rows_of(self, day: str) -> Rows:
        """What a day must have."""
        return self.runs[self._live[day]].rows if day in self._live else rows_before(day)

    def _last(self, day: str) -> Run | None:
        claims = self.days[day].claims
        return self.runs[list(claims)[-1]] if claims else None
