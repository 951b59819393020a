"""How records depend on records (Section 7.3): attribute dependencies, and the parts of events that Input Sets have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Uses(StrEnum):
    """Which of the input records with the same values an output record is made from."""

    SOME = "some"
    """Some of them: the dependencies say no more."""
    EVERY = "every"
    """Every one in the Input Set."""
    ONE = "one"
    """One, by its values alone; of every input record, at most one output record is made."""
    SAME = "same"
    """The output event has the records of the input event, in their order."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which records of its events an Input Set has: all, or with `on` those of one window of time."""

    on: str = ""
    """A column of timestamps or dates."""
    seconds: int = 0
    """The length of the windows."""
    origin: int = 0
    """Where window 0 starts, in seconds since 1970-01-01 UTC."""


WHOLE = Part()


@dataclass(frozen=True, slots=True)
class Dependence:
    """How the records of one output port depend on input records: dependencies S_in.A ↔ S_out.B."""

    uses: Uses = Uses.SOME
    columns: Mapping[str, Mapping[str, str]] | None = None
    """Input port → {B: A}: the output records with x in B are unaffected by all but the input records with x in A. None:
    every column that both have."""
    window_starts: tuple[str, ...] = ()
    """Output columns with the start of the window of time that the Input Set is."""
    window: Part | None = None
    """Which window of time that is, of an operator with `window_starts`."""


@dataclass(frozen=True, slots=True)
class RecordRules:
    """What an operator says of its records; of what is missing here, nothing is known."""

    outputs: Mapping[str, Dependence] = field(default_factory=dict)
    """By output port."""
    parts: Mapping[str, Part] = field(default_factory=dict)
    """By generative function; the name is empty if the operator has one alone."""
