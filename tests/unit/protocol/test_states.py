"""The transition table of a group, move by move."""

from __future__ import annotations

import itertools

import pytest

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol.states import (
    ALIVE,
    CONCLUDED,
    ENDED,
    GROUP_TRANSITIONS,
    LAUNCHING,
    STOPPED,
    WAITING,
    GroupState,
    allowed_from,
    check_transition,
)

PAIRS = list(itertools.product(GroupState, GroupState))
EXPECTED = {
    "new": "claimed halted parked retired",
    "claimed": "submitted restarted running dead parked halted retired",
    "submitted": "running dead parked halted retired",
    "restarted": "running dead parked halted retired",
    "running": "draining finished dead parked halted retired",
    "draining": "finished dead parked halted",
    "dead": "claimed finished parked halted retired",
    "parked": "claimed halted retired",
    "halted": "claimed retired",
    "finished": "",
    "retired": "claimed",
}


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda state: str(state.value))
def test_every_move(source: GroupState, target: GroupState) -> None:
    if target.value in EXPECTED[source.value].split():
        check_transition(source, target)
        assert source in allowed_from(target)
    else:
        with pytest.raises(ProtocolViolation, match=f"{source.value!r} to {target.value!r}"):
            check_transition(source, target)
        assert source not in allowed_from(target)


def test_the_table_is_whole() -> None:
    assert set(GROUP_TRANSITIONS) == set(GroupState)


def test_nothing_leaves_the_end_and_everything_can_reach_it() -> None:
    assert GROUP_TRANSITIONS[GroupState.FINISHED] == frozenset()
    reached = {GroupState.FINISHED}
    for _ in GroupState:
        reached |= {state for state, targets in GROUP_TRANSITIONS.items() if targets & reached}
    assert reached == set(GroupState)


def test_kinds_of_states() -> None:
    assert not ALIVE & ENDED
    assert LAUNCHING < ALIVE
    assert STOPPED < ENDED and CONCLUDED < ENDED
    assert WAITING == STOPPED - CONCLUDED == ENDED - CONCLUDED, "what a person continues with"
    assert set(GroupState) - ALIVE - ENDED == {GroupState.NEW, GroupState.DEAD}
    assert all(GroupState.DEAD in GROUP_TRANSITIONS[state] for state in ALIVE), "whatever lives can die"
