"""Names of replicas and slots, and the planning of moves: by hand, and by properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_logio.protocol.replicas import (
    Slot,
    balanced,
    base_operator,
    replica_name,
    replicated_group,
    slot_of,
    slot_operator,
)


def test_names_lead_back_to_what_the_author_named() -> None:
    assert replicated_group(replica_name("enrich", 2)) == "enrich"
    assert replicated_group("totals") == "totals"
    assert (base_operator(slot_operator("hourly", 15)), slot_of(slot_operator("hourly", 15))) == ("hourly", 15)
    assert (base_operator("hourly"), slot_of("hourly")) == ("hourly", None)


def owners(*names: str | None) -> list[Slot]:
    return [Slot(number, name) for number, name in enumerate(names)]


@pytest.mark.parametrize(
    ("before", "replicas", "after"),
    [
        (owners("a", "a", "a", "a"), ["a", "b"], ["a", "a", "b", "b"]),
        (owners("a", "a", "b", "b"), ["a"], ["a", "a", "a", "a"]),
        (owners("a", "a", "b"), ["b", "a"], ["a", "a", "b"]),  # nothing moves for the sake of the order
        (owners(None, None, None), ["a", "b"], ["a", "a", "b"]),
        (owners("a", "b"), [], [None, None]),
        (owners("a", "b"), ["a", "b", "c"], ["a", "b"]),  # fewer slots than replicas
    ],
)
def test_slots_are_balanced(before: list[Slot], replicas: list[str], after: list[str | None]) -> None:
    assert balanced(before, replicas) == dict(enumerate(after))


def test_slots_that_are_done_stay_where_they_are() -> None:
    slots = [Slot(0, "a", done=True), Slot(1, "a"), Slot(2, "a")]
    assert balanced(slots, ["b"]) == {1: "b", 2: "b"}


NAMES = [f"g.{number}" for number in range(1, 7)]


@given(
    slots=st.lists(st.sampled_from([*NAMES, None]), min_size=1, max_size=40),
    replicas=st.lists(st.sampled_from(NAMES), unique=True, min_size=1),
)
def test_shares_are_even_and_moves_are_few(slots: list[str | None], replicas: list[str]) -> None:
    before = owners(*slots)
    after = balanced(before, replicas)
    assert sorted(after) == list(range(len(slots)))
    shares = [list(after.values()).count(name) for name in replicas]
    assert max(shares) - min(shares) <= 1
    stayed = sum(after[slot.number] == slot.owner for slot in before)
    # What a replica has beyond the largest share must go; no plan can leave more where it is, but for the last ones over.
    share, larger = divmod(len(slots), len(replicas))
    held = sorted((slots.count(name) for name in replicas), reverse=True)
    best = sum(min(mine, share + (place < larger)) for place, mine in enumerate(held))
    assert stayed == best
    assert balanced([Slot(number, name) for number, name in after.items()], replicas) == after
