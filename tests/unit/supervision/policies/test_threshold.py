"""`Threshold`: its limits, and that a constant load brings it to rest."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_logio.errors import ConfigurationError
from airflow_logio.supervision.policies import Change, Figures, Threshold
from tests.unit.supervision.policies.linear import LinearGroup, load

POLICY = Threshold(up_lag_seconds=30, down_lag_seconds=5, up_busy=0.8, down_busy=0.5, cool_down_seconds=60)


def figures(busy: float, *, replicas: int = 2, backlog: int = 0, records_in: float = 1000, **other: Any) -> Figures:
    """`records_in` are those of one replica within ten seconds."""
    given_ = {"least": 0, "most": 4, "at": 1000.0, "arrivals": 1.0, **other}
    loads = {f"work.{n}": load(busy, records_in) for n in range(1, replicas + 1)}
    return Figures(group="work", replicas=replicas, loads=loads, backlog=backlog, events=backlog, **given_)


@pytest.mark.parametrize(
    ("seen", "replicas", "why"),
    [
        (figures(0.9), 3, "busy above 80%"),
        (figures(0.9, replicas=4), 4, "because the bounds are 1 to 4"),
        (figures(0.6), 2, "within the limits"),
        (figures(0.6, backlog=8000), 3, "lag 40.0 s (8,000 records), busy 60%: lag above 30 s"),
        (figures(0.1, backlog=8000), 2, "wait for something else"),
        (figures(0.1, backlog=8000, records_in=0), 2, "lag inf s"),
        (figures(0.3), 1, "busy below 50%"),
        (figures(0.45), 2, "fewer replicas would be too busy"),
        (figures(0.3, backlog=2000), 2, "within the limits"),
        (figures(0.9, last=Change(2, 990.0)), 2, "changed 10 s ago"),
        (figures(0.9, last=Change(2, 900.0)), 3, "busy above"),
        (figures(0.0, replicas=1, records_in=0, arrivals=0.0), 0, "nothing arrives"),
        (figures(0.0, replicas=1, records_in=0, arrivals=None), 1, "leave work without one"),
        (figures(0.0, replicas=1, records_in=0, arrivals=0.0, least=1), 1, "bounds are 1 to 4"),
        (figures(0.0, replicas=0), 1, "one replica because"),
        (figures(0.0, replicas=0, arrivals=0.0), 0, "no replica is in use"),
        (figures(0.0, replicas=0, arrivals=0.0, ended=True), 1, "the stream has ended"),
    ],
)
def test_what_it_decides(seen: Figures, replicas: int, why: str) -> None:
    decision = POLICY.decide(seen)
    assert (decision.replicas, why in decision.sentence) == (replicas, True), decision.sentence


def test_a_replica_of_which_nothing_is_known_yet_is_waited_for() -> None:
    seen = Figures("work", 1000.0, 2, 0, 4, {"work.1": load(0.99, 100), "work.2": None}, arrivals=10.0)
    assert POLICY.decide(seen).sentence == "nothing is known yet of the load of work.2"


@given(
    rate=st.floats(1, 1e4),
    share=st.floats(0, 20),
    replicas=st.integers(1, 16),
    backlog=st.floats(0, 1e6),
    step=st.integers(1, 5),
    up_busy=st.floats(0.3, 0.95),
    gap=st.floats(0.01, 0.9),
)
@example(rate=675.6854061109143, share=0.9, replicas=4, backlog=0.0, step=1, up_busy=0.3, gap=0.125)  # 3 at the limit
def test_a_constant_load_brings_it_to_rest(
    rate: float, share: float, replicas: int, backlog: float, step: int, up_busy: float, gap: float
) -> None:
    """It may go up for a backlog and come down when that is worked off; then it stays."""
    group = LinearGroup(rate, rate * share, replicas, backlog=min(backlog, rate * 2000))
    policy = Threshold(step=step, up_busy=up_busy, down_busy=up_busy * (1 - gap))
    group.follow(policy, looks=100)
    ways = [later > earlier for earlier, later in pairwise([replicas, *group.history]) if later != earlier]
    assert len(set(group.history[-40:])) == 1, group.history
    assert sum(a != b for a, b in pairwise(ways)) <= 2, group.history
    assert all(group.least <= many <= group.most for many in group.history)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"up_busy": 1.0}, "below 1"),
        ({"up_busy": 0.3, "down_busy": 0.3}, "above down_busy"),
        ({"up_lag_seconds": 5, "down_lag_seconds": 5}, "not below"),
        ({"step": 0}, "at least 1"),
        ({"cool_down_seconds": -1}, "from 0 on"),
        ({"up_lag_seconds": float("nan")}, "above 0"),
        ({"minimum": 3, "maximum": 2}, "more than maximum"),
        ({"minimum": -1}, "from 0 on"),
    ],
)
def test_parameters_that_make_no_sense(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Threshold(**wrong)
