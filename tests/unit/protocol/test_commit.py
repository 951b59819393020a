"""The order of a commit: its data covers every effect, and rows come before what is done to them."""

from __future__ import annotations

from typing import get_args

import pytest

from airflow_logio.protocol import commit
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import BEHIND_FENCE, ORDER, TRANSACTION, CommitStep, LogPart, parts_of
from airflow_logio.protocol.values import Port


def test_every_effect_has_its_place_in_the_transaction() -> None:
    assert set(commit._PARTS) == set(get_args(fx.Effect))


@pytest.mark.parametrize("effect", get_args(fx.Effect), ids=lambda effect: effect.__name__)
def test_an_effect_adds_its_rows_before_it_changes_any(effect: type) -> None:
    parts = commit._PARTS[effect]
    assert list(parts) == [part for part in TRANSACTION if part in parts]
    assert LogPart.FENCE not in parts


def test_the_fence_decides_before_anything_is_written_and_states_agree_with_what_was() -> None:
    assert TRANSACTION[0] is LogPart.FENCE and TRANSACTION[1:] == BEHIND_FENCE
    written = [LogPart.ROWS, LogPart.ASSIGN, LogPart.DONE, LogPart.ASIDE, LogPart.CONCLUDE]
    assert all(BEHIND_FENCE.index(part) < BEHIND_FENCE.index(LogPart.STATES) for part in written)


def test_bodies_are_durable_before_the_transaction_and_nothing_leaves_before_it() -> None:
    assert ORDER == (CommitStep.ENCODE, CommitStep.COMMIT, CommitStep.HAND_OVER)


def test_a_received_event_gets_further_rows_first_and_then_its_own_input_set() -> None:
    received = fx.Acknowledge(Port("a", "out"), Port("b", "in"), 1, ())
    assert parts_of(received) == (LogPart.ROWS, LogPart.ASSIGN)
