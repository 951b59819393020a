"""Jobs of an epoch that has ended are cancelled until their threads have ended; a Spark that stands still holds up no one."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from airflow_logio.driver.spark_jobs import job_groups
from airflow_logio.driver.spark_jobs.job_groups import JobCancel
from airflow_logio.driver.spark_session import SparkSessions


class Sessions(SparkSessions):
    """`answers` is set when Spark answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.asked = threading.Event()
        self.cancelled: list[str] = []

    def is_ready(self) -> bool:
        return True

    def cancel(self, job_groups: Sequence[str]) -> None:
        self.asked.set()
        self.answers.wait(60)
        self.cancelled += job_groups


def test_jobs_are_cancelled_once_more_at_the_end() -> None:
    sessions = Sessions()
    sessions.answers.set()
    cancel = JobCancel(sessions, lambda: ["epoch 1"])
    cancel.begin()
    assert sessions.asked.wait(60)
    assert cancel.end() == []
    assert set(sessions.cancelled) == {"epoch 1"}


def test_a_spark_that_does_not_answer_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_groups, "ANSWER_SECONDS", 0.2)
    sessions = Sessions()
    cancel = JobCancel(sessions, lambda: ["epoch 1"])
    cancel.begin()
    assert sessions.asked.wait(60)
    (left,) = cancel.end()
    assert left.name == "logio-cancel"
    sessions.answers.set()
    left.join(60)
    assert not left.is_alive()


def test_nothing_is_left_of_what_never_began() -> None:
    assert JobCancel(Sessions(), lambda: []).end() == []
