"""What one run may do in a folder that others publish into as well: its records, its look at theirs, and removal (ADR-91)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.folder_days import RECEIPTS, SIGN, is_claimed, scopes_of
from airflow_logio.dataflow.writers.published_folder import (
    is_visible,
    receipts_of,
    run_of,
    runs_of,
    visible_files,
)
from airflow_logio.errors import WriteRefused
from airflow_logio.protocol.external_rules import Owner, started_later
from airflow_logio.protocol.folder_rules import Age, Effect, FolderRuns, Receipt, RunRecord
from airflow_logio.spark.published_places import PublishedPlace

_EFFECTS = {
    "append": Effect.JOINS,
    "replace": Effect.REPLACES,
    "error": Effect.CLOSES,
    "overwrite": Effect.OVERWRITES,
}
_CLOSED = {
    Effect.SHUTS_OUT: "it was started in the place of this one, which was given up",
    Effect.REPLACES: "a newer run has taken it over, and replaced what older ones had published",
    Effect.CLOSES: "a newer run has taken it over, and older ones may add nothing to it",
}


class FolderClaim:
    """The claim of a run at the folder of one of its writers. `given_up` are the uids of runs in whose place it has begun.

    Nothing is removed but what the rule hides for ever, so that it does not matter who removes, when, or how often. All
    methods raise OSError.
    """

    def __init__(
        self, place: PublishedPlace, writer: DatasetWriter, run: Owner, given_up: tuple[str, ...] = ()
    ) -> None:
        self.place = place
        self._files = place.files
        self._named = f"folder {place.files.where} of connection {writer.connection!r}"
        self._writer = writer
        self._mine = Age.of(run)
        self._effect = _EFFECTS[writer.on_new_run]
        shut_out = (RunRecord(self._mine, Effect.SHUTS_OUT, run_uid) for run_uid in given_up)
        self._records = sorted((RunRecord(self._mine, self._effect), *shut_out))
        self._is_put = False
        self._cleared: set[str] = set()
        self._removable: set[str] = set()
        self._seen: dict[str, frozenset[str]] = {}

    # --- before files are there ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The first half of the write action that the run begins with: what is there is judged, and older runs end.

        Raises `WriteRefused`.
        """
        self.check_begin()
        self.put()
        if (
            self._writer.on_new_run == "error"
        ):  # a run that has linked a file before it could see the record is seen now
            self._check_found()

    def check_begin(self) -> None:
        """Whether the run may begin. Nothing is changed. Raises `WriteRefused`."""
        self.check(())
        if self._writer.on_new_run in ("replace", "error"):
            self._check_found()

    def put(self) -> None:
        """The run's records, durable. Before any of its files."""
        if self._is_put:
            return
        self.place.put_records(record.name for record in self._records)
        self._is_put = True

    def check(self, partitions: Collection[str]) -> Collection[str]:
        """Which of the partitions a younger run has overwritten; before files are put, there must be none.

        Raises `WriteRefused` if a younger run has taken the folder over, or if pipelines own days of it.
        """
        runs = self._runs()
        if self._files.is_there(f"{RECEIPTS}/{SIGN}"):
            self._check_owned()
        if (closing := runs.closed_by(self._mine)) is not None:
            way_out = "" if closing.effect is Effect.SHUTS_OUT else f". {self._way_out()}"
            raise WriteRefused(
                f"{self._named} belongs to run {closing.age.run_uid}: {_CLOSED[closing.effect]}, and run "
                f"{self._mine.run_uid} must not write to it any more{way_out}"
            )
        younger = runs.overwriting(self._mine)
        return self._overwritten(younger, partitions) if younger and partitions else ()

    def _check_owned(self) -> None:
        """Files that are appended stand beside those that runs own, wherever these lie, and not in days that are owned."""
        mode, run = self._writer.on_new_run, self._mine.run_uid
        if is_claimed(self._files, scopes_of(self._files, of_runs=False)):
            raise WriteRefused(
                f"{self._named} has days that pipelines own (a writer with by=), and {mode!r} does not know which: its files "
                f"would not count there. Let the writer of run {run} own its day as well, or write to another folder"
            )
        if mode != "append" and is_claimed(self._files, scopes_of(self._files, of_runs=True)):
            raise WriteRefused(
                f"{self._named} has files that pipelines own by their runs (on_new_run='supersede'), and {mode!r} would take "
                f"them. Let the writer of run {run} supersede, or append, or write to another folder"
            )

    def check_retry(self) -> None:
        """Whether records of the run may still come, for partitions that are not known yet. Raises `WriteRefused`."""
        self.check(())
        if younger := self._runs().overwriting(self._mine):
            raise WriteRefused(
                f"run {min(younger)}, a newer one, overwrites partitions of folder {self._files.where} of connection "
                f"{self._writer.connection!r}, and run {self._mine.run_uid} must not write to those any more"
            )

    def _runs(self) -> FolderRuns:
        return runs_of(self._files)

    def check_partitions(self, partitions: Collection[str]) -> None:
        """Before files are put into them. Raises `WriteRefused` if a younger run has overwritten one, or taken the folder
        over, or if one cannot be overwritten because of what is in it."""
        if overwritten := self.check(partitions):
            raise self._refused(overwritten)
        if self._writer.on_new_run != "overwrite":
            return
        new = sorted(set(partitions) - self._removable)
        if not new:
            return
        found = list(zip(new, self._files.each(self._found_in, new), strict=True))
        runs = self._runs()  # after the files: a run with a file there has its record
        begun = self._begun(new)
        for partition, paths in found:
            self._check_removable(partition, paths, {self._mine.run_uid, *runs.ages})
            if partition not in begun:
                for path, run in paths:
                    self._check_not_younger(path, runs.younger(run, self._mine))
        self._removable.update(new)

    def _begun(self, partitions: Collection[str]) -> Collection[str]:
        """The partitions that this run has overwritten before: what younger ones have added since is theirs."""
        mine = receipts_of(self._files, lambda name: name.partition(".")[0] == self._mine.run_uid)
        return {file.partition for receipt in mine for file in receipt.files}.intersection(partitions)

    def _check_not_younger(self, path: str, younger: Age | None) -> None:
        """Raises `WriteRefused` for a file of a run that was started later, by its clock: this run would leave it there,
        beside its own files, without a word."""
        if younger is not None:
            raise WriteRefused(
                f"{self._named} has {path} of {younger}, which is later than this {self._mine}, which says "
                f"on_new_run={self._writer.on_new_run!r} and replaces older runs only. "
                f"{started_later(self._mine.run_uid)}; if the clock of that log was wrong, move away the files of that run, "
                f"whose names begin with {younger.run_uid}, there and in {RECEIPTS}"
            )

    def _found_in(self, partition: str) -> list[tuple[str, str | None]]:
        """What readers of the partition may see. Folders without files are what is left of other columns of
        `partition_by`."""
        with suppress(FileNotFoundError):
            return list(visible_files(self._files, partition))
        return []

    def _check_removable(
        self, partition: str, found: Iterable[tuple[str, str | None]], known: Collection[str | None]
    ) -> None:
        """Whether all of that is what an overwriting run removes."""
        for path, run in found:
            if run not in known:
                raise self._not_ours(path, f"overwrite partition {partition}")
            if os.path.dirname(path) != partition:
                raise WriteRefused(
                    f"{self._named} has {path}, which run {run} has published by other columns of partition_by; partition "
                    f"{partition} can only be overwritten together with it: choose on_new_run='replace', or another folder"
                )

    # --- while files are there, and no receipt ------------------------------------------------------------------------

    def confirm(self, files: Mapping[str, str]) -> None:
        """Look once more for runs that have come meanwhile, before the receipt of files (path → partition) that are there.

        Raises `WriteRefused`, as before they were put; then those that are hidden for ever are gone.
        """
        try:
            overwritten = self.check(set(files.values()))
        except WriteRefused:
            runs = runs_of(self._files)
            if runs.is_older(self._mine.run_uid, runs.replacing()):
                self.place.remove(files)
            raise
        if overwritten:
            self.place.remove(path for path, partition in files.items() if partition in overwritten)
            raise self._refused(overwritten)

    def _refused(self, overwritten: Collection[str]) -> WriteRefused:
        return WriteRefused(
            f"partition {min(overwritten)} of {self._named} was "
            f"overwritten by a newer run, and run {self._mine.run_uid} must not write to it any more. {self._way_out()}"
        )

    # --- after the receipt is durable ---------------------------------------------------------------------------------

    def clear(self, partitions: Iterable[str] = ()) -> None:
        """Remove what the run hides; after its record, or its receipt for a file in each of the partitions."""
        if self._writer.on_new_run == "replace" and "" not in self._cleared:
            self._clear_folder()
            self._cleared.add("")
        if self._writer.on_new_run == "overwrite" and (new := sorted(set(partitions) - self._cleared)):
            self._clear_partitions(new)
            self._cleared.update(new)

    def _clear_folder(self) -> None:
        names = [(path, run) for path, run in visible_files(self._files) if run is not None]
        names += [
            (os.path.join(RECEIPTS, name), name.partition(".")[0])
            for name in self._files.names(RECEIPTS)
            if name.endswith(".json") and not name.startswith(".")
        ]
        runs = runs_of(self._files)
        self.place.remove(path for path, run in names if runs.is_older(run, self._mine))

    def _clear_partitions(self, partitions: Sequence[str]) -> None:
        found = list(zip(partitions, self._files.each(self._names, partitions), strict=True))
        runs = runs_of(self._files)
        self.place.remove(
            os.path.join(partition, name)
            for partition, names in found
            for name in names
            if (run := run_of(name)) is not None and runs.is_older(run, self._mine)
        )

    # --- what is found ------------------------------------------------------------------------------------------------

    def _check_found(self) -> None:
        """Raises `WriteRefused` for files that `on_new_run` does not allow."""
        try:
            found = list(visible_files(self._files))
        except FileNotFoundError:
            return
        runs = self._runs()  # after the files: a run with a file there has its record
        known = {self._mine.run_uid, *runs.ages}
        for path, run in found:
            if self._writer.on_new_run == "error" and run != self._mine.run_uid:
                raise self._not_empty(path)
            if run not in known:
                raise self._not_ours(path, "replace what is in the folder")
            folder = os.path.dirname(path)
            if not self.place.may_remove(folder):  # before the record, which hides what could not be removed
                raise WriteRefused(
                    f"files in {self._files.name(folder)} are to be replaced, and this user cannot remove them: allow it to "
                    "write there, or choose another folder"
                )
        if self._writer.on_new_run == "replace":
            self._check_no_younger(runs, found)
            return
        for receipt in receipts_of(self._files):
            if receipt.files and receipt.run_uid != self._mine.run_uid:
                raise self._not_empty(_name_of(receipt))

    def _check_no_younger(self, runs: FolderRuns, found: Iterable[tuple[str, str | None]]) -> None:
        """As `_check_not_younger`, of the whole folder; until the record of this run is there. What comes after that is of
        runs that begin after this one, whatever their clocks say."""
        if runs.has_record(self._mine.run_uid, Effect.REPLACES):
            return
        for path, run in found:
            self._check_not_younger(path, runs.younger(run, self._mine))
        for receipt in receipts_of(
            self._files, lambda name: runs.younger(name.partition(".")[0], self._mine) is not None
        ):
            if receipt.files:
                self._check_not_younger(_name_of(receipt), runs.younger(receipt.run_uid, self._mine))

    def _way_out(self) -> str:
        """A fresh run writes all of its records: those that this one has published may count still."""
        run = self._mine.run_uid
        advice = f"What is still to be written belongs into a new run, or into this one anew (`logio fresh {run[:8]}`)"
        if self._writer.on_new_run != "append":
            return advice
        return (
            f"{advice}. That appends all of its records: before it begins, move away what this run has published, the files "
            f"whose names begin with {run}, in the folders and in {RECEIPTS}"
        )

    def _not_empty(self, path: str) -> WriteRefused:
        return WriteRefused(
            f"{self._named} is not empty ({path}), and its writer says "
            "on_new_run='error'; empty it, or choose 'append', 'replace' or 'overwrite'"
        )

    def _not_ours(self, path: str, what: str) -> WriteRefused:
        return WriteRefused(
            f"{self._named} has {path}, which no run of this folder has "
            f"published, and its writer is to {what}; move that elsewhere, or choose another folder"
        )

    def _overwritten(self, younger: Collection[str], partitions: Collection[str]) -> Collection[str]:
        """Partitions that younger runs have overwritten, by their receipts; each receipt is read once."""

        def is_new(name: str) -> bool:
            return name.partition(".")[0] in younger and name not in self._seen

        for receipt in receipts_of(self._files, is_new):
            name = f"{receipt.run_uid}.{receipt.operator}.{receipt.number:012d}.json"
            self._seen[name] = frozenset(file.partition for file in receipt.files)
        found: frozenset[str] = frozenset()
        return found.union(*self._seen.values()).intersection(partitions)

    def _names(self, partition: str) -> list[str]:
        """Visible names in a partition."""
        return list(filter(is_visible, self._files.names(partition)))


def _name_of(receipt: Receipt) -> str:
    return os.path.join(RECEIPTS, f"{receipt.run_uid}.{receipt.operator}.{receipt.number:012d}.json")
