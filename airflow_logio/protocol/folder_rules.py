"""What counts in a folder that runs publish into: a rule over names that only appear (ADR-91).

A file system has no transaction and no fence. So each run puts records of itself into the folder before its first file, each
write action a receipt after its last one, and readers and writers decide by these, with the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from airflow_logio.protocol.warehouse_rules import Owner

_MICROSECONDS = 1_000_000


class Effect(StrEnum):
    """What a run does to older runs of the folder."""

    JOINS = "joins"
    """Nothing."""
    CLOSES = "closes"
    """They may add nothing."""
    REPLACES = "replaces"
    """Their files do not count, and they may add none."""
    OVERWRITES = "overwrites"
    """Their files do not count in the partitions of its receipts, and they may add none there."""


class Age(NamedTuple):
    """Where a run stands among the others; a greater one is younger."""

    started: int
    """Microseconds since 1970, by the clock of the run's log."""
    run_uid: str

    @classmethod
    def of(cls, run: Owner) -> Age:
        return cls(round(run.started_at * _MICROSECONDS), run.run_uid)


class RunRecord(NamedTuple):
    """What a run has said of itself: the name of an empty file."""

    age: Age
    effect: Effect

    @property
    def name(self) -> str:
        """Names in the order of texts are in the order of ages."""
        return f"{self.age.started:017d}.{self.age.run_uid}.{self.effect}"


def record_of(name: str) -> RunRecord | None:
    """The record of that name; None for anything else."""
    started, _, rest = name.partition(".")
    run_uid, _, effect = rest.rpartition(".")
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
    """Of the write action that a run begins with: its `on_new_run`."""


@dataclass(frozen=True)
class FolderRuns:
    """The runs of a folder, by their records. A run without one does not count, and is nobody's to remove: a file system may
    show a file before it shows the record that was there first."""

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
        """The record because of which the run of that age may add nothing; rather of one that replaces what it has added."""
        closing = (record for record in self.records if record.effect in (Effect.CLOSES, Effect.REPLACES))
        younger = (record for record in closing if record.age > mine)
        return max(younger, key=lambda record: (record.effect is Effect.REPLACES, record.age), default=None)

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
