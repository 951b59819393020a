"""What becomes of an incarnation that ends with an error: parked, replaced, or recovered."""

from __future__ import annotations

import inspect

import pytest

from airflow_logio import errors
from airflow_logio.driver.endings import EXIT_CODES, Ending, ending_of, lost_commits
from airflow_logio.errors import (
    BudgetSpent,
    ConfigurationError,
    ExternalUnavailable,
    Fenced,
    HeartbeatsHeld,
    LogInconsistent,
    LogioError,
    LogUnavailable,
    OperatorFailed,
    SparkLost,
    UnknownRun,
)
from airflow_logio.launch.driver_config import FAILED, FINISHED, PARKED, REPLACED
from airflow_logio.store.records.driver_records import GroupRef


@pytest.mark.parametrize(
    ("kind", "ending", "code"),
    [
        (Fenced, Ending.REPLACED, REPLACED),
        (LogInconsistent, Ending.PARKED, PARKED),
        (BudgetSpent, Ending.PARKED, PARKED),
        (ExternalUnavailable, Ending.PARKED, PARKED),
        (UnknownRun, Ending.PARKED, PARKED),
        (ConfigurationError, Ending.PARKED, PARKED),
        (OperatorFailed, Ending.DEAD, FAILED),
        (SparkLost, Ending.DEAD, FAILED),
        (ZeroDivisionError, Ending.DEAD, FAILED),
        (LogUnavailable, Ending.SILENT, FAILED),
        (HeartbeatsHeld, Ending.SILENT, FAILED),
    ],
)
def test_an_error_says_how_its_incarnation_ends(kind: type[Exception], ending: Ending, code: int) -> None:
    assert ending_of(kind.__new__(kind)) is ending
    assert EXIT_CODES[ending] == code


def test_no_error_ends_a_driver_as_if_it_had_finished() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, LogioError)]
    assert len(kinds) > 20
    assert all(EXIT_CODES[ending_of(kind.__new__(kind))] != FINISHED for kind in kinds)


def test_a_driver_that_is_fenced_by_no_later_one_is_parked() -> None:
    """Else it would be recovered, and fenced again, until the budget is spent."""
    assert ending_of(lost_commits(GroupRef(1, "g", 2), Fenced("replaced"))) is Ending.PARKED
