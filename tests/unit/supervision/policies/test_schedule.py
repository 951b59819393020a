"""`Schedule`: which entry holds at which time."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_logio.errors import ConfigurationError
from airflow_logio.supervision.policies import Figures, Schedule

OFFICE = Schedule({"0 8 * * 1-5": 4, "0 20 * * *": 0})
"""2026-11-23 is a Monday."""


def at(text: str, **other: Any) -> Figures:
    when = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    return Figures(**{"group": "work", "at": when, "replicas": 0, "least": 0, "most": 8, **other})


@pytest.mark.parametrize(
    ("when", "replicas"),
    [
        ("2026-11-23 07:59:59", 0),
        ("2026-11-23 08:00:00", 4),
        ("2026-11-23 08:00:00.5", 4),
        ("2026-11-23 19:59:59", 4),
        ("2026-11-23 20:00:00", 0),
        ("2026-11-28 12:00:00", 0),
        ("2026-11-30 08:00:01", 4),
    ],
)
def test_the_latest_entry_that_has_passed_holds(when: str, replicas: int) -> None:
    assert OFFICE.decide(at(when)).replicas == replicas


def test_it_says_which() -> None:
    sentence = OFFICE.decide(at("2026-11-23 09:30:00")).sentence
    assert sentence == "entry '0 8 * * 1-5' of 2026-11-23 08:00 UTC holds, which says 4"


def test_of_entries_with_the_same_time_the_last_one_counts() -> None:
    assert Schedule({"0 8 * * *": 4, "0 8 * * MON": 6}).decide(at("2026-11-23 08:30:00")).replicas == 6
    assert Schedule({"0 8 * * MON": 6, "0 8 * * *": 4}).decide(at("2026-11-23 08:30:00")).replicas == 4


def test_a_group_with_work_keeps_one_replica() -> None:
    decision = OFFICE.decide(at("2026-11-23 21:00:00", replicas=4, backlog=10, events=2))
    assert decision.replicas == 1
    assert decision.sentence.endswith("one replica because 2 event(s) wait")


def test_bounds() -> None:
    assert Schedule({"0 8 * * *": 9}, maximum=5).decide(at("2026-11-23 08:30:00")).replicas == 5
    assert Schedule({"0 8 * * *": 9}).decide(at("2026-11-23 08:30:00")).replicas == 8


@pytest.mark.parametrize(
    "entries",
    [
        {},
        {"": 1},
        {"0 25 * * *": 1},
        {"* * * * * *": 1},
        {"R * * * *": 1},
        {"H * * * *": 1},
        {"0 0 30 2 *": 1},
        {"0 8 * * *": -1},
        {"0 8 * * *": True},
        {8: 1},
    ],
)
def test_entries_that_make_no_sense(entries: Any) -> None:
    with pytest.raises(ConfigurationError):
        Schedule(entries)


def test_policies_need_neither_airflow_nor_spark() -> None:
    program = "import sys, airflow_logio.supervision.policies; print(sorted({'airflow', 'pyspark'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
