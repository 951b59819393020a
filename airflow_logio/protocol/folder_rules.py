"""Which files of a folder count, and what a run may add, decided from the names in it (ADR-91).

A folder of files has no transaction and no fence. So each run puts records of itself into the folder before its first file,
and each write action a receipt after its last one. What counts is a rule over these names, which only appear; readers and
writers decide with the same functions (`FolderRuns`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from airflow_logio.protocol.external_rules import Owner

_MICROSECONDS = 1_000_000


class Effect(StrEnum):
    """What a run does to other runs of the folder: to older ones, but for the last one."""

    JOINS = "joins"
    """Nothing."""
    CLOSES = "closes"
    """They may add nothing."""
    REPLACES = "replaces"
    """Their files do not count, and they may add none."""
    OVERWRITES = "overwrites"
    """Their files do not count in the partitions of its receipts, and they may add none there."""
    SHUTS_OUT = "shuts-out"
    """The run `RunRecord.of`, which was given up for it, may add nothing, whatever its age."""


class Age(NamedTuple):
    """Where a run stands among the others; a greater one is younger."""

    started: int
    """Microseconds since 1970, by the clock of the run's log."""
    run_uid: str

    @classmethod
    def of(cls, run: Owner) -> Age:
        return cls(round(run.started_at * _MICROSECONDS), run.run_uid)

    def __str__(self) -> str:
        return f"run {self.run_uid}, started {Owner(self.run_uid, self.started / _MICROSECONDS).began}"


class RunRecord(NamedTuple):
    """What a run has said of itself: the name of an empty file."""

    age: Age
    effect: Effect
    of: str = ""
    """The uid of the run that is shut out."""

    @property
    def name(self) -> str:
        """Names in the order of texts are in the order of ages. Earlier versions pass over those that shut a run out."""
        shut_out = f".{self.of}" if self.effect is Effect.SHUTS_OUT else ""
        return f"{self.age.started:017d}.{self.age.run_uid}.{self.effect}{shut_out}"


def record_of(name: str) -> RunRecord | None:
    """The record of that name; None for anything else."""
    started, _, rest = name.partition(".")
    run_uid, _, shut_out = rest.partition(f".{Effect.SHUTS_OUT}.")
    if started.isdecimal() and run_uid and shut_out:
        return RunRecord(Age(int(started), run_uid), Effect.SHUTS_OUT, shut_out)
    run_uid, _, effect = rest.rpartition(".")
    if effect == Effect.SHUTS_OUT:
        return None
    if not (started.isdecimal() and run_uid and effect in set(Effect)):
        return None
    return RunRecord(Age(int(started), run_uid), Effect(effect))


class NamedFile(NamedTuple):
    """A file that a receipt names."""

    path: str
    """Below the folder, with ``/``."""
    bytes: int
    records: int

    @property
    def partition(self) -> str:
        """The folder that it is in, below the published one; empty for none."""
        return self.path.rpartition("/")[0]


class Receipt(NamedTuple):
    """What a write action has published."""

    run_uid: str
    operator: str
    number: int
    files: tuple[NamedFile, ...]
    begins: str = ""
    """`on_new_run`, in the receipt of the write action that a run begins with."""


@dataclass(frozen=True)
class FolderRuns:
    """The runs of a folder, by their records.

    A run without one does not count, and nothing of it is removed: a file system may show a file before it shows the record
    that was there first.
    """

    records: frozenset[RunRecord]

    @cached_property
    def ages(self) -> Mapping[str, Age]:
        """By the uid of the run."""
        return {record.age.run_uid: record.age for record in self.records}

    def is_older(self, run_uid: str, than: Age | None) -> bool:
        """Whether the run is known to be older than the one of that age."""
        age = self.ages.get(run_uid)
        return age is not None and than is not None and age < than

    def replacing(self) -> Age | None:
        """The youngest run that replaces what older ones have published."""
        return max((record.age for record in self.records if record.effect is Effect.REPLACES), default=None)

    def closed_by(self, mine: Age) -> RunRecord | None:
        """The record that lets the run of that age add nothing; rather of one that replaces what it has added.

        A fresh run of an earlier version closed the folder to all older ones, though it joined them, or overwrote
        partitions: that counts no more, because the run that was given up for it has no driver of this version.
        """
        joining = {record.age for record in self.records if record.effect in (Effect.JOINS, Effect.OVERWRITES)}
        closing = (
            record
            for record in self.records
            if (record.effect is Effect.REPLACES or (record.effect is Effect.CLOSES and record.age not in joining))
            and record.age > mine
        )
        shutting = (
            record for record in self.records if record.effect is Effect.SHUTS_OUT and record.of == mine.run_uid
        )
        found = (*closing, *shutting)
        return max(found, key=lambda record: (record.effect is Effect.REPLACES, record.age), default=None)

    def has_record(self, run_uid: str, effect: Effect) -> bool:
        """Whether a run has said that of itself."""
        return any(record.age.run_uid == run_uid and record.effect is effect for record in self.records)

    def younger(self, run_uid: str | None, than: Age) -> Age | None:
        """The age of a run that is known to be younger than that age; None for any other."""
        age = self.ages.get(run_uid or "")
        return age if age is not None and age > than else None

    def overwriting(self, than: Age | None = None) -> frozenset[str]:
        """The runs that overwrite partitions; those younger than that age, if one is given."""
        found = (record.age for record in self.records if record.effect is Effect.OVERWRITES)
        return frozenset(age.run_uid for age in found if than is None or age > than)

    def counted(self, receipts: Iterable[Receipt]) -> list[tuple[Receipt, NamedFile]]:
        """The files that count, those of older runs first, then by write action.

        `receipts` must have been read before the records: who has a receipt there has its record.
        """
        known = [receipt for receipt in receipts if receipt.run_uid in self.ages]
        known.sort(key=lambda one: (self.ages[one.run_uid], one.operator, one.number))
        overwritten, replacing = self._overwritten(known), self.replacing()
        return [
            (receipt, file)
            for receipt in known
            if not self.is_older(receipt.run_uid, replacing)
            for file in receipt.files
            if not self.is_older(receipt.run_uid, overwritten.get(file.partition))
        ]

    def _overwritten(self, receipts: Iterable[Receipt]) -> Mapping[str, Age]:
        """Partition → the youngest run that has overwritten it."""
        overwriting = self.overwriting()
        found: dict[str, Age] = {}
        for receipt in receipts:
            if receipt.run_uid in overwriting:
                age = self.ages[receipt.run_uid]
                for file in receipt.files:
                    found[file.partition] = max(age, found.get(file.partition, age))
        return found
