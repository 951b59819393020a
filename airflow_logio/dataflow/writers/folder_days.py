"""Which run's files count in a day of a published folder, decided from names that only appear (design, "A day in a lake").

A run that owns a day by its value puts a *claim* into the folder of that day's records, then its files, then one *closing
receipt* that names them. In a day that has a closing receipt, only files of the greatest ordinal count. Ordinals are compared
within a *line*, one pipeline of one log; a run that takes a day over from another line hides that line in its receipt.
Clocks play no part. A run that *supersedes* owns what the runs of its partition, of its pipeline, have published anywhere in
the folder: by the same records and rules, in a scope of their own. Claims and receipts stay when files are removed: their
names only appear, so that two listings that show the same ones are exact. Readers and writers decide with the same functions
(`FolderDay`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from airflow_logio.dataflow.writers.folder_files import FolderFiles
from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol.folder_rules import NamedFile

RECEIPTS = "_logio"
"""The folder of receipts. Readers of Parquet folders pass over names that begin so."""
DAYS = f"{RECEIPTS}/days"
"""The folder of the records of days, with a folder for each."""
SIGN = "needs-a-newer-airflow_logio.json"
"""An empty receipt beside the others: earlier versions, which do not know `DAYS`, cannot read it, and say its name."""
_RECORD = re.compile(r"(\d{12,})\.([0-9a-f]{12})\.([^.]+)\.(claim|[^.]+\.json)")
_MOST_LISTINGS = 100
"""Of one day, where each shows more receipts than the one before."""


def scope_of_runs(pipeline: str, partition: str) -> str:
    """The scope of what runs of a partition of a pipeline own, as ``clicks@day=2026-03-01``. No folder has such a name, since
    no column has."""
    return f"{pipeline}@{partition}"


def is_of_runs(scope: str) -> bool:
    """Whether a scope is no folder, but what runs have published, wherever it lies."""
    return "@" in scope.partition("=")[0]


def line_of(log_uid: str, pipeline: str) -> str:
    """The line of runs that one pipeline of one log begins, within which ordinals are compared."""
    return blake2b(f"{log_uid}/{pipeline}".encode(), digest_size=6).hexdigest()


class DayRun(NamedTuple):
    """A run that owns days by their value, or what runs of its partition have published. Within a line, one with a greater
    ordinal is younger."""

    ordinal: int
    line: str
    run_uid: str

    @property
    def claim(self) -> str:
        """The name of an empty file: the run is about to publish there."""
        return f"{self._name}.claim"

    def receipt(self, operator: str, number: int | None = None) -> str:
        """The name of its closing receipt; or of that of write action `number`, where a run fills its day at once."""
        which = operator if number is None else f"{operator}-{number:012d}"
        return f"{self._name}.{which}.json"

    @property
    def _name(self) -> str:
        return f"{self.ordinal:012d}.{self.line}.{self.run_uid}"


def day_run_of(name: str) -> DayRun | None:
    """The run that a claim or closing receipt of that name is of; None for anything else."""
    found = _RECORD.fullmatch(name)
    return None if found is None else DayRun(int(found[1]), found[2], found[3])


class DayReceipt(NamedTuple):
    """What a run has put in the place of a day."""

    run: DayRun
    operator: str
    number: int
    """Of its closing write action."""
    scope: str
    """The day, as ``day=2026-03-01``: the folder that its files are in. Or a scope of runs, whose files are anywhere."""
    files: tuple[NamedFile, ...]
    hides: frozenset[DayRun]
    """Runs of other lines that it was put in the place of. It hides each, and all older ones of its line."""
    fills: bool = False
    """The run fills its day at once: it has a receipt for each write action, and none says that all are there."""

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    def says(self) -> dict[str, Any]:
        """JSON-able; `day_receipt` reads it."""
        return {
            "ordinal": self.run.ordinal,
            "line": self.run.line,
            "run": self.run.run_uid,
            "operator": self.operator,
            "number": self.number,
            "scope": self.scope,
            "files": [file._asdict() for file in self.files],
            "hides": [[one.line, one.ordinal, one.run_uid] for one in sorted(self.hides)],
            **({"fills": True} if self.fills else {}),
        }


def day_receipt(where: str, text: bytes) -> DayReceipt:
    """A closing receipt, as it was put. Raises ValueError, which says `where` it is, for one that is damaged."""
    try:
        read = json.loads(text)
        return DayReceipt(
            DayRun(read["ordinal"], read["line"], read["run"]),
            read["operator"],
            read["number"],
            read["scope"],
            tuple(NamedFile(one["path"], one["bytes"], one["records"]) for one in read["files"]),
            frozenset(DayRun(ordinal, line, run_uid) for line, ordinal, run_uid in read["hides"]),
            read.get("fills", False),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{where} is no closing receipt of a DatasetWriter ({type(error).__name__}: {error}); restore it from a copy, "
            "or let the pipeline compute that day again: without it, the files that it names do not count"
        ) from error


def _as_one(receipts: Sequence[DayReceipt]) -> DayReceipt | None:
    """What the receipts of one writer of a run say together; None if they are of several."""
    if len(receipts) == 1:
        return receipts[0]
    if len({(one.run, one.operator) for one in receipts}) > 1 or not all(one.fills for one in receipts):
        return None
    last = max(receipts, key=lambda one: one.number)
    files = tuple(file for one in receipts for file in one.files)
    return last._replace(files=files, hides=frozenset().union(*(one.hides for one in receipts)))


def _hides(hidden: Iterable[DayRun], run: DayRun) -> bool:
    return any(one.line == run.line and run.ordinal <= one.ordinal for one in hidden)


@dataclass(frozen=True)
class FolderDay:
    """The records of one day, or those of them that are shown yet.

    Runs without a claim or receipt that is shown do not count, and nothing of them is removed.
    """

    scope: str
    runs: frozenset[DayRun] = frozenset()
    """Those that have a claim or a receipt."""
    receipts: tuple[DayReceipt, ...] = ()

    @property
    def hidden(self) -> frozenset[DayRun]:
        """Runs that were taken over. A receipt that is hidden itself still hides others."""
        return frozenset().union(*(receipt.hides for receipt in self.receipts))

    def live(self) -> DayReceipt | None:
        """The receipt whose files count; None for a day that no run has closed, or begun to fill.

        Raises ConfigurationError if the receipts do not say which: two lines, or two runs of one ordinal.
        """
        if not self.receipts:
            return None
        hidden = self.hidden
        left = [receipt for receipt in self.receipts if not _hides(hidden, receipt.run)]
        lines = {receipt.run.line for receipt in left}
        if len(lines) == 1:
            youngest = max(receipt.run.ordinal for receipt in left)
            found = [receipt for receipt in left if receipt.run.ordinal == youngest]
            if (whole := _as_one(found)) is not None:
                return whole
            left = found
        raise self._in_doubt(left or list(self.receipts))

    def _in_doubt(self, receipts: Iterable[DayReceipt]) -> ConfigurationError:
        runs = sorted({receipt.run for receipt in receipts})
        named = " and ".join(f"run {run.run_uid} (ordinal {run.ordinal} of line {run.line})" for run in runs)
        return ConfigurationError(
            f"{self.scope} was closed by {named}, and none of them is known to replace the other: two runs that were both "
            "told to take it over have met, and each may have removed files of the other one, or a log was restored. So a "
            f"person decides whose it is: `logio again --partition {self.scope.partition('=')[2]} --take-over`, with the "
            "--pipeline that is to have it, and its next run; other days can be read"
        )

    def in_the_way(self, mine: DayRun, *, takes_over: bool) -> DayRun | None:
        """A run that keeps that one from publishing into the day: a younger one of its line, one of its ordinal, one that
        has taken its line over; and one of another line, unless it `takes_over` itself."""
        taken_over = (receipt.run for receipt in self.receipts if _hides(receipt.hides, mine))
        line = (
            run
            for run in self.runs
            if run.line == mine.line and (run.ordinal > mine.ordinal or (run.ordinal == mine.ordinal and run != mine))
        )
        others = () if takes_over else self.other_lines(mine)
        return max((*taken_over, *line, *others), default=None)

    def is_hidden(self, mine: DayRun) -> bool:
        """Whether files of that run can never count here again."""
        receipts = (one for one in self.receipts if one.run.line == mine.line)
        return _hides(self.hidden, mine) or any(one.run.ordinal > mine.ordinal for one in receipts)

    def other_lines(self, mine: DayRun) -> frozenset[DayRun]:
        """The runs of other lines that no receipt hides."""
        hidden = self.hidden
        return frozenset(run for run in self.runs if run.line != mine.line and not _hides(hidden, run))

    def to_hide(self, mine: DayRun) -> frozenset[DayRun]:
        """What the closing receipt of a run has to hide: what it takes over, and what was taken over before."""
        return self.hidden | self.other_lines(mine)

    def known_older(self) -> frozenset[DayRun]:
        """Runs whose files can never count here again. Raises ConfigurationError, as `live`."""
        live = self.live()
        if live is None:
            return frozenset()
        return frozenset(
            run
            for run in self.runs | live.hides
            if _hides(live.hides, run) or (run.line == live.run.line and run.ordinal < live.run.ordinal)
        )


# --- what a folder shows ----------------------------------------------------------------------------------------------


def day_of(files: FolderFiles, scope: str) -> FolderDay:
    """One day of a folder, at one instant. Raises OSError, and ValueError for a receipt that is damaged."""
    return _settled(files, scope, _names(files, scope), _names(files, scope))


def scopes_of(files: FolderFiles, *, of_runs: bool) -> Sequence[str]:
    """The days of a folder, or the scopes of runs in it. Raises OSError."""
    return sorted(name for name in files.names(DAYS) if "=" in name and is_of_runs(name) == of_runs)


def is_claimed(files: FolderFiles, scopes: Iterable[str]) -> bool:
    """Whether a run has claimed one of the scopes: one that was refused has withdrawn its claim. Raises OSError."""
    return any(_names(files, scope) for scope in scopes)


def days_of(files: FolderFiles) -> Mapping[str, FolderDay]:
    """All days of a folder, and all scopes of runs, each at one instant. Raises as `day_of`."""
    none, before, now = frozenset[str](), _all_names(files), _all_names(files)
    both = {scope: (before.get(scope, none), now.get(scope, none)) for scope in sorted(before.keys() | now.keys())}
    found = _read(files, {scope: two for scope, (one, two) in both.items() if _is_settled(one, two)})
    return {scope: found.get(scope) or _settled(files, scope, *names) for scope, names in both.items()}


def _settled(files: FolderFiles, scope: str, before: frozenset[str], now: frozenset[str]) -> FolderDay:
    """Lists again until two listings, one after the other, show the same receipts, which can all be read.

    A listing may come in pages, and show a receipt but not one that was put before it. Receipts only appear, so what two
    listings show is what was there between them.
    """
    for _ in range(_MOST_LISTINGS):
        if _is_settled(before, now) and (found := _read(files, {scope: now}).get(scope)) is not None:
            return found
        before, now = now, _names(files, scope)
    raise OSError(f"{files.where}: the receipts of {scope} change all the time; list again")


def _is_settled(before: frozenset[str], now: frozenset[str]) -> bool:
    return all(name.endswith(".claim") for name in before ^ now)


def _read(files: FolderFiles, days: Mapping[str, frozenset[str]]) -> Mapping[str, FolderDay]:
    """The days whose receipts are all still there."""
    names = {scope: {name for name in found if name.endswith(".json")} for scope, found in days.items()}
    receipts: dict[str, list[DayReceipt]] = {scope: [] for scope in days}
    for path, text in files.read_each(f"{DAYS}/{scope}/{name}" for scope, found in names.items() for name in found):
        receipts[path.split("/")[-2]].append(day_receipt(files.name(path), text))
    return {
        scope: FolderDay(scope, frozenset(filter(None, map(day_run_of, found))), tuple(sorted(receipts[scope])))
        for scope, found in days.items()
        if len(receipts[scope]) == len(names[scope])
    }


def _names(files: FolderFiles, scope: str) -> frozenset[str]:
    return frozenset(name for name in files.names(f"{DAYS}/{scope}") if day_run_of(name) is not None)


def _all_names(files: FolderFiles) -> Mapping[str, frozenset[str]]:
    """Day → its records, from one listing."""
    try:
        found = {folder: names for folder, _, names in files.walk(DAYS)}
    except FileNotFoundError:
        return {}
    return {
        folder.removeprefix(f"{DAYS}/"): frozenset(name for name in names if day_run_of(name) is not None)
        for folder, names in found.items()
        if folder != DAYS
    }
