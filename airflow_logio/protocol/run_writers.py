"""What the writers of two runs of a pipeline do to each other: whether the runs may live at once (design, "Days").

A run that claims a table or a folder for itself shuts earlier ones out. What those have still to write, they never can. So
the shapes of the writers of both are compared before the second one begins. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Together(StrEnum):
    """When two runs may write to one place at once."""

    ALWAYS = "always"
    """What it writes stands beside what others write."""
    BY_PARTITION = "by partition"
    """It owns what it writes for its partition: together with runs of other partitions."""
    NEVER = "never"
    """The run claims the place, and earlier ones may write there no more; or nothing is known of it."""


class Repeats(StrEnum):
    """What becomes of what a run has written when the run is computed again."""

    REPLACED = "replaced"
    """A new run of the same partition removes it, all of it and nothing else."""
    ADDED = "added"
    """It stays, and what the new run writes comes beside it; or the new run is refused; or it removes more."""


@dataclass(frozen=True, slots=True)
class WriterShape:
    """A writer of a run, as other runs of its pipeline see it."""

    writer: str
    """The operator, as its author named it."""
    what: str
    """What it is and where it writes, for sentences."""
    place: tuple[str, ...]
    """Where it writes: the connection id, and then names from the general to the particular. A place contains those that
    begin with it."""
    together: Together
    repeats: Repeats
    is_of_author: bool = False
    """A class of the author's own, which may say more of itself."""
    closes: bool = False
    """Its write actions wait in the log until all of them are there: then the last one closes."""


def in_conflict(
    mine: Iterable[WriterShape], theirs: Iterable[WriterShape], *, apart: bool
) -> tuple[WriterShape, WriterShape] | None:
    """Two writers, one of each run, that must not live at once; None if there are no such two.

    `apart` says that the runs are of different partitions, which have nothing in common.
    """
    theirs = tuple(theirs)
    for one in mine:
        for other in theirs:
            if not _may_meet(one, other, apart=apart):
                return one, other
    return None


def _may_meet(one: WriterShape, other: WriterShape, *, apart: bool) -> bool:
    shorter, longer = sorted((one.place, other.place), key=len)
    if longer[: len(shorter)] != shorter:
        return True
    kinds = {one.together, other.together}
    if Together.ALWAYS in kinds and shorter != longer:
        return True  # a claim is for one place, and not for what only adds files or tables within it, or around it
    if kinds == {Together.BY_PARTITION}:
        return apart
    return kinds == {Together.ALWAYS}  # what owns by partition takes a place over from what appends
