"""Attempts of a task that starts runs of partitions, and what the log keeps of their decisions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_logio.store.records.run_records import Run


class Decision(StrEnum):
    """What was decided for a clear, or for the first attempt of a DAG run."""

    BEGUN = "begun"
    """There was no run."""
    AGAIN = "again"
    """The run before was given up, by a clear or a person, and the next generation has begun."""
    RESUMED = "resumed"
    """The run that is there continues."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a task that starts runs, as Airflow counts it."""

    number: int
    """From 1; it rises with each attempt, over clears as well."""
    first: int
    """The number of the first attempt since the task was cleared last: ``max_tries - retries + 1``."""
    clear: int = 0
    """How often tasks of the DAG run were cleared."""
    began: float | None = None
    """When the DAG run began, in seconds since 1970; it begins anew when it is cleared."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision that the log keeps: which attempt has made it, about which run."""

    attempt: Attempt
    run_uid: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class Start:
    """The run of an attempt."""

    run: Run
    decision: Decision
    is_new: bool
    """This attempt has decided; otherwise an earlier one of the same clear had."""
    replaced: str | None = None
    """The uid of the run in whose place this one has begun, by this attempt or before."""
