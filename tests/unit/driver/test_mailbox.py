"""The inbox of a group's loop: what ends a wait for news."""

from __future__ import annotations

import threading
import time

import pytest

from airflow_logio.driver.mailbox import Bound, Mailbox

SOON, LATE = 0.05, 60.0


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox(Bound())


def test_one_who_awaits_the_committer_is_woken(mailbox: Mailbox) -> None:
    threading.Timer(SOON, mailbox.wake).start()
    began = time.monotonic()
    assert mailbox.get(LATE, inputs=True, wakes=True) is None
    assert time.monotonic() - began < LATE / 2


def test_a_wake_that_comes_first_is_kept(mailbox: Mailbox) -> None:
    """Between the look at the committer and the wait it may have become free."""
    mailbox.wake()
    began = time.monotonic()
    assert mailbox.get(LATE, inputs=True, wakes=True) is None
    assert time.monotonic() - began < LATE / 2
    assert mailbox.get(SOON, inputs=True, wakes=True) is None
    assert time.monotonic() - began >= SOON, "once"


def test_others_wait_for_news_alone(mailbox: Mailbox) -> None:
    mailbox.wake()
    threading.Timer(SOON, mailbox.put, ["news"]).start()
    assert mailbox.get(LATE, inputs=False) == "news"


def test_news_come_before_a_wake(mailbox: Mailbox) -> None:
    mailbox.wake()
    mailbox.put_input("input", 1)
    mailbox.put("completion")
    taken = [mailbox.get(LATE, inputs=True, wakes=True) for _ in range(3)]
    assert taken == ["completion", "input", None]
