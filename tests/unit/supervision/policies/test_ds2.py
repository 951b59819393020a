"""`DS2`: one step to what the true rates ask for."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_logio.errors import ConfigurationError
from airflow_logio.store.records.driver_records import Load
from airflow_logio.supervision.policies import DS2, Change, Figures
from tests.unit.supervision.policies.linear import LinearGroup, load

POLICY = DS2(work_off_seconds=60)


def figures(*loads: Load | None, arrivals: float | None = 100.0, backlog: int = 0, **other: Any) -> Figures:
    given_ = {"replicas": len(loads), "least": 0, "most": 8, "at": 1000.0, **other}
    told = {f"work.{n}": one for n, one in enumerate(loads, start=1)}
    return Figures(group="work", loads=told, arrivals=arrivals, backlog=backlog, events=backlog, **given_)


@pytest.mark.parametrize(
    ("seen", "replicas", "why"),
    [
        # 500 records in 5 busy seconds: 100 records/s each.
        (figures(load(0.5, 500), arrivals=350.0), 4, "a busy replica processes 100.0 records/s, so 3.50 replica(s)"),
        (figures(load(0.5, 500), arrivals=0.0, backlog=12_000), 2, "target 200.0 records/s"),
        # Time for which it was held up does not count.
        (figures(load(0.5, 500, blocked=0.5), arrivals=90.0), 1, "so 0.90"),
        # A replica that was hardly busy tells nothing, and one that is not there yet neither.
        (figures(load(0.5, 500), load(0.001, 900), None, arrivals=100.0), 2, "and 5% to spare"),
        (figures(load(0.0, 0), arrivals=500.0, backlog=9), 1, "no replica was busy for long enough"),
        (figures(load(0.01, 9), load(0.01, 9), arrivals=2.0), 1, "together they are busy for 2.0%"),
        (figures(load(0.9, 0), arrivals=500.0), 1, "no replica was busy for long enough"),
        (figures(load(0.5, 500), arrivals=None), 1, "not known yet how many records arrive"),
        (figures(load(0.5, 500), load(0.5, 500), last=Change(2, 985.0)), 2, "changed 15 s ago"),
        (figures(load(0.5, 500), arrivals=1e9), 8, "bounds are 1 to 8"),
        (figures(load(0.0), load(0.0), arrivals=0.0), 0, "nothing to do"),
        (figures(load(0.0), arrivals=0.0, least=1), 1, "bounds are 1 to 8"),
        (figures(arrivals=0.0), 0, "no replica is in use"),
        (figures(arrivals=0.0, ended=True), 1, "because the stream has ended"),
        (figures(arrivals=5.0), 1, "5.0 record(s)/s arrive"),
    ],
)
def test_what_it_decides(seen: Figures, replicas: int, why: str) -> None:
    decision = POLICY.decide(seen)
    assert (decision.replicas, why in decision.sentence) == (replicas, True), decision.sentence


@given(rate=st.floats(1, 1e4), share=st.floats(0.05, 14), replicas=st.integers(1, 16), backlog_share=st.floats(0, 5))
def test_it_converges_in_one_step(rate: float, share: float, replicas: int, backlog_share: float) -> None:
    """A linear group gets at its first look what it needs for arrivals and backlog, and when that is gone stays at rest."""
    group = LinearGroup(rate, rate * share, replicas, backlog=rate * backlog_share)
    seen = group.after(10)
    group.obey(POLICY.decide(seen))
    exact = (seen.arrivals or 0) / rate + seen.backlog / POLICY.work_off_seconds / rate
    # Counts are whole numbers; close to a whole number of replicas either neighbour is right.
    assume(rate * min(share, 1) > 20 and all(abs(exact * by - round(exact * by)) > 0.01 * exact for by in (1, 1.05)))
    best = math.ceil(exact)
    spare = min(math.ceil(exact * 1.05), replicas) if best < replicas else best
    assert group.replicas == min(max(1, best, spare), group.most)
    rest = group.follow(POLICY, looks=6)[-4:]
    # At the bound it works off what it can; elsewhere nothing is left to change.
    assert len(set(rest)) == 1
    assert share <= rest[0] or rest[0] == group.most


@given(
    loads=st.lists(
        st.builds(
            load,
            st.floats(0, 1),
            st.floats(0, 1e7),
            seconds=st.floats(0, 20),
        )
        | st.none(),
        max_size=6,
    ),
    arrivals=st.none() | st.floats(0, 1e12),
    backlog=st.integers(0, 10**15),
    least=st.integers(0, 3),
    more=st.integers(0, 5),
    minimum=st.none() | st.integers(0, 3),
    maximum=st.none() | st.integers(3, 20),
)
def test_whatever_it_is_told_it_stays_within_bounds(
    loads: list[Load | None],
    arrivals: float | None,
    backlog: int,
    least: int,
    more: int,
    minimum: int | None,
    maximum: int | None,
) -> None:
    """No division by zero either, and work is never left without a replica."""
    most = max(1, least + more)
    seen = figures(*loads, arrivals=arrivals, backlog=backlog, least=least, most=most)
    decision = DS2(minimum=minimum, maximum=maximum).decide(seen)
    assert least <= decision.replicas <= most
    assert decision.replicas >= 1 or not seen.has_work


@pytest.mark.parametrize("wrong", [{"work_off_seconds": 0}, {"minimum_busy_seconds": 0}, {"tolerance": -0.1}])
def test_parameters_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        DS2(**wrong)
