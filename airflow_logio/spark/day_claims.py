"""What a run may do in the part of a folder that it owns: claim THEN look, files, look, receipt (design, "Days").

It is `folder_claims` for writers with ``by=``, and for those that supersede. Their runs put no record into the folder of
runs: by the clocks there, a slow run could be taken for younger than the one that has replaced it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.writers.folder_days import (
    DAYS,
    RECEIPTS,
    SIGN,
    DayReceipt,
    DayRun,
    FolderDay,
    day_of,
    is_claimed,
    line_of,
    scope_of_runs,
    scopes_of,
)
from airflow_logio.dataflow.writers.published_folder import counted_in, runs_of, visible_files
from airflow_logio.errors import ConfigurationError, WriteRefused
from airflow_logio.protocol.folder_rules import NamedFile
from airflow_logio.protocol.scope_rules import again, found_at_fault
from airflow_logio.spark.published_places import ClosingNames, FillingNames, PublishedPlace
from airflow_logio.systems.connections import WriterIdentity

_ELSEWHERE = "let one of them write to another folder"


def day_run(run: WriterIdentity) -> DayRun:
    """A run, as others of its line and of other lines compare it."""
    return DayRun(run.ordinal, line_of(run.log_uid, run.pipeline), run.run_uid)


class DayClaim:
    """The claim of a run at the day `scope` of a folder, which is the folder of that name in it.

    Nothing is removed but what the rule hides for ever, so that it does not matter who removes, when, or how often. All
    methods raise OSError.
    """

    def __init__(self, place: PublishedPlace, connection: str, run: WriterIdentity, scope: str) -> None:
        self.place = place
        self.scope = scope
        self.mine = day_run(run)
        self._files = place.files
        self._records = f"{DAYS}/{scope}"
        self._folder = f"folder {place.files.where} of connection {connection!r}"
        self._named = f"{scope} of {self._folder}"
        self._run = run

    def look(self) -> FolderDay:
        """The records of the day. Raises `WriteRefused` if the run may not publish into it; its files that can never count
        are gone then."""
        try:
            return self.check_not_replaced()
        except WriteRefused:
            if day_of(self._files, self.scope).is_hidden(self.mine):
                self._remove({self.mine.run_uid})
            raise

    def check_not_replaced(self) -> FolderDay:
        """As `look`, and nothing is changed."""
        day = day_of(self._files, self.scope)
        if (other := day.in_the_way(self.mine, takes_over=self._run.takes_over)) is not None:
            raise self._refused(day, other)
        return day

    # --- the opening action -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Claim the day. Raises `WriteRefused`; then nothing of the run is left there that keeps another one away.

        Only an opening withdraws its claim: behind it, another driver of this run may be about to put the receipt.
        """
        try:
            self.look()
            self._check_kind()
            self._check_found()
            self.place.put_records((SIGN,), RECEIPTS)
            self.place.put_records((self.mine.claim,), self._records)
            self.look()  # of two that claim at the same time, one at least sees the other
            self._check_kind()
        except WriteRefused:
            if not self._is_known_for_good():
                self.place.remove((f"{self._records}/{self.mine.claim}",))
            raise

    def _is_known_for_good(self) -> bool:
        """Whether the claim stays, by which the next run of the day knows that files of this one are older, and removes them:
        where another driver of it has put some, or where only a younger run of its line keeps it away, which no claim of an
        older one keeps away."""
        day, mine = day_of(self._files, self.scope), self.mine
        younger = any(run.line == mine.line and run.ordinal > mine.ordinal for run in day.runs)
        equal = any(run.line == mine.line and run.ordinal == mine.ordinal and run != mine for run in day.runs)
        if younger and not equal and not day.other_lines(mine):
            return True
        return any(run == mine.run_uid for _, run in self._found())

    # --- the closing action, or each one of a run that fills its day at once -----------------------------------------

    def is_closed(self) -> bool:
        """Whether the run has put its receipt."""
        return any(receipt.run == self.mine for receipt in day_of(self._files, self.scope).receipts)

    def has_put(self, names: ClosingNames) -> bool:
        """Whether the run has put that receipt."""
        return self._files.is_there(f"{self._records}/{names.receipt_name}")

    def check_files(self, *, has_records: bool) -> None:
        """Before files are put. Raises `WriteRefused` for what would stand beside them, or go with nothing in its place."""
        self.look()
        self._check_found()
        if not has_records and self._has_records():
            raise self._replaced_by_nothing()

    def _replaced_by_nothing(self) -> WriteRefused:
        return WriteRefused(
            f"{self._named} has records, and run {self.mine.run_uid} has none to put in their place: was its input "
            f"there? The day stays as it is. A retry reads nothing again. When the input is there: {self._again()}. If "
            f"this day is to become empty: {self._again('--empty')}. If all may, let the writer say empty='replace'"
        )

    def found_at_fault(self, audit: str, faults: str) -> WriteRefused:
        """For an audit that has found something in the records of the run."""
        stays = "The day stays as it is"
        return WriteRefused(found_at_fault(self._named, self.mine.run_uid, audit, faults, stays, self._again()))

    def put_receipt(self, names: ClosingNames, files: Iterable[NamedFile], *, has_records: bool) -> None:
        """Look once more, then switch the day. Raises `WriteRefused`, as `look`, and without records for those that another
        run has put there since `check_files`: a zombie, or one of a line that is taken over."""
        self.place.prepare((self._records,), names)
        day = self.look()
        if not has_records and self._has_put_records(day):
            raise self._replaced_by_nothing()
        hides = day.to_hide(self.mine)
        fills = isinstance(names, FillingNames)
        receipt = DayReceipt(self.mine, names.operator, names.number, self.scope, tuple(files), hides, fills)
        crash_here(CrashPoint.BEFORE_RECEIPT)
        self.place.put_receipt(names, msgspec.json.encode(receipt.says()), self._records)

    def clear(self) -> None:
        """Behind the receipt: remove the files of runs that are known to be older. Those with a record of their start own no
        day, so theirs do not count in one that was closed.

        Raises `WriteRefused` for a day that is in doubt.
        """
        self._remove(self._older() | runs_of(self._files).ages.keys(), CrashPoint.IN_CLEARING)

    def _older(self) -> frozenset[str]:
        try:
            return frozenset(run.run_uid for run in day_of(self._files, self.scope).known_older())
        except ConfigurationError as error:
            raise WriteRefused(f"{self._named}: {error}") from error

    # --- what is found ------------------------------------------------------------------------------------------------

    def _check_kind(self) -> None:
        """Raises `WriteRefused` if others own parts of the folder in another way, so that parts of both would have files in
        common."""
        if is_claimed(self._files, scopes_of(self._files, of_runs=True)):
            raise WriteRefused(
                f"{self._folder} has files that pipelines own by their runs (on_new_run='supersede'), and run "
                f"{self.mine.run_uid} owns {self.scope} there, with all that is in it: {_ELSEWHERE}"
            )

    def _check_found(self) -> None:
        """Raises `WriteRefused` for files that are not the run's to replace."""
        for path, run in self._found():
            folder = os.path.dirname(path)
            if run is None:
                raise WriteRefused(
                    f"{self._named} has {path}, which no run has published, and which readers would take for a part of the "
                    "day; move that elsewhere, or choose another folder"
                )
            self._check_removable(folder)

    def _check_removable(self, folder: str) -> None:
        if not self.place.may_remove(folder):
            raise WriteRefused(
                f"files in {self._files.name(folder)} are to be replaced, and this user cannot remove them: allow it to "
                "write there, or choose another folder"
            )

    def _remove(self, runs: Iterable[str], point: CrashPoint | None = None) -> None:
        gone = frozenset(runs)

        def paths() -> Iterator[str]:
            for path in [path for path, run in self._found() if run in gone]:
                if point is not None:
                    crash_here(point)
                yield path

        self.place.remove(paths())

    def _found(self) -> list[tuple[str, str | None]]:
        with suppress(FileNotFoundError):
            return list(visible_files(self._files, self.scope))
        return []

    def _has_records(self) -> bool:
        try:
            return any(file.records for file in counted_in(self._files, self.scope))
        except ConfigurationError:
            return True  # it is in doubt whose they are

    def _has_put_records(self, day: FolderDay) -> bool:
        """Whether records of another run count there by the receipts."""
        try:
            live = day.live()
        except ConfigurationError:
            return True  # it is in doubt whose they are
        return live is not None and live.run != self.mine and live.records > 0

    def _refused(self, day: FolderDay, other: DayRun) -> WriteRefused:
        mine = self.mine
        if other.line != mine.line:
            taken = day.is_hidden(mine)
            return WriteRefused(
                f"{self._named} {'was taken over by' if taken else 'belongs to'} run {other.run_uid} of another pipeline or "
                f"another log, and run {mine.run_uid} must not replace it. The day stays as it is. If pipeline "
                f"{self._run.pipeline!r} is to replace it, {self._again('--take-over')} lets its next run do so, and says "
                "how that begins"
            )
        if other.ordinal == mine.ordinal:
            return WriteRefused(
                f"{self._named}: run {other.run_uid} has the same ordinal {mine.ordinal} as run {mine.run_uid}: the log "
                f"was restored from an older copy. Begin the day anew above it: {self._again(f'--above {other.ordinal}')}"
            )
        return WriteRefused(
            f"{self._named} belongs to run {other.run_uid}, a younger one of this pipeline (ordinal {other.ordinal}), and "
            f"run {mine.run_uid} (ordinal {mine.ordinal}) must not write to it any more. If the log was restored from an "
            f"older copy: {self._again(f'--above {other.ordinal}')}"
        )

    def _again(self, *options: str) -> str:
        return again(self._run.pipeline, self.scope, *options)


class RunsClaim(DayClaim):
    """The claim of a run at what the runs of its partition, of its pipeline, have published in a folder, wherever it lies.

    What others have published there is not looked at.
    """

    def __init__(self, place: PublishedPlace, connection: str, run: WriterIdentity, partition: str) -> None:
        super().__init__(place, connection, run, scope_of_runs(run.pipeline, partition))
        self._named = f"the part of pipeline {run.pipeline!r} for {partition} in {self._folder}"

    def clear(self) -> None:
        self._remove(self._older(), CrashPoint.IN_CLEARING)

    def _check_kind(self) -> None:
        if is_claimed(self._files, scopes_of(self._files, of_runs=False)):
            raise WriteRefused(
                f"{self._folder} has days that pipelines own with all that is in them (a writer with by=), and run "
                f"{self.mine.run_uid} owns what its pipeline has published (on_new_run='supersede'): {_ELSEWHERE}"
            )

    def _check_found(self) -> None:
        """Raises `WriteRefused` for files that are to be replaced and cannot be removed."""
        ours = {run.run_uid for run in day_of(self._files, self.scope).runs}
        for folder in sorted({os.path.dirname(path) for path, run in self._found() if run in ours}) if ours else ():
            self._check_removable(folder)

    def _found(self) -> list[tuple[str, str | None]]:
        with suppress(FileNotFoundError):
            return list(visible_files(self._files))
        return []

    def _has_records(self) -> bool:
        return self._has_put_records(day_of(self._files, self.scope))
