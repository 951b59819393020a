"""Looks at a run: what they cost the log, and what is known only from several of them."""

from __future__ import annotations

import pytest

from airflow_logio.errors import UnknownRun
from airflow_logio.protocol.values import Port
from airflow_logio.runtime.figures.snapshot import Amount, ConnectionView
from airflow_logio.store.port import LogStore
from airflow_logio.ui.lag_ages import MOST_LOOKS, LagAges
from airflow_logio.ui.looks import FRESH_SECONDS, MOST_RUNS, Looks
from airflow_logio.ui.run_list import listed_runs
from tests.support.large_runs import large_run
from tests.support.logs import spec
from tests.support.statements import counted_statements
from tests.support.two_groups import TwoGroups


def statements(store: LogStore, uid: str) -> tuple[int, int]:
    """Of the first look at a run, and of the next one."""
    clock = [0.0]
    looks = Looks(store, None, lambda: clock[0])
    with counted_statements() as first:
        looks.at(uid)
    clock[0] += FRESH_SECONDS
    with counted_statements() as second:
        looks.at(uid)
    return _asked(first), _asked(second)


def _asked(sent: list[str]) -> int:
    return sum(not one.startswith("BEGIN") for one in sent)


def test_a_look_has_the_same_statements_however_large_the_run_is(store: LogStore) -> None:
    small = large_run(store, 2, 1, 2, 2, dag_run="small")
    large = large_run(store, 10, 3, 5, 8, dag_run="large")
    of_small = statements(store, small.uid)
    assert of_small[1] <= 12
    assert statements(store, large.uid) == of_small


def test_viewers_share_a_look_for_a_second(store: LogStore, flow: TwoGroups) -> None:
    clock = [0.0]
    looks = Looks(store, None, lambda: clock[0])
    first = looks.at(flow.run.uid)
    with counted_statements() as asked:
        assert looks.at(flow.run.uid) is first
    assert asked == []
    flow.use(1, 50)
    clock[0] += FRESH_SECONDS
    assert looks.at(flow.run.uid).document["connections"][0]["acknowledged"]["events"] == 8


def test_what_is_kept_of_runs_is_bounded(store: LogStore) -> None:
    looks = Looks(store, None)
    uids = [store.start_run(spec("g", dag_run=f"run-{number}")).uid for number in range(MOST_RUNS + 3)]
    for uid in uids:
        looks.at(uid)
    assert len(looks._runs) == MOST_RUNS
    assert looks.at(uids[0]).report.run.uid == uids[0]


def test_a_run_that_is_not_there_leaves_nothing(store: LogStore) -> None:
    looks = Looks(store, None)
    for uid in ("0" * 32, "x", ""):
        with pytest.raises(UnknownRun):
            looks.at(uid)
    assert not looks._runs


def test_the_list_has_the_same_statements_however_many_runs_there_are(store: LogStore) -> None:
    counts = []
    for number in range(3):
        for one in range(5):
            store.start_run(spec("a", "b", dag_run=f"run-{number}-{one}"))
        listed_runs(store, None, None)
        with counted_statements() as asked:
            assert len(listed_runs(store, None, None)) == 5 * (number + 1)
        counts.append(len(asked))
    assert len(set(counts)) == 1


def connection(sent: int, acknowledged: int) -> ConnectionView:
    amounts = Amount(sent, sent), Amount(acknowledged, acknowledged)
    return ConnectionView(Port("a", "out"), Port("b", "in"), "a", "b", *amounts, 0.0, 0)


def test_the_age_of_a_lag_is_that_of_its_oldest_event() -> None:
    ages = LagAges()
    assert ages.seen(connection(0, 0), 100.0) is None
    assert ages.seen(connection(5, 0), 101.0) == 0.0
    assert ages.seen(connection(9, 2), 103.0) == 2.0, "of the first five, some wait"
    assert ages.seen(connection(9, 5), 104.0) == 1.0, "the others were sent between 101 and 103"
    assert ages.seen(connection(9, 9), 105.0) is None
    assert ages.seen(connection(12, 9), 107.0) == 0.0


def test_an_age_is_known_at_least_as_long_as_looks_are_kept() -> None:
    ages = LagAges()
    for second in range(2 * MOST_LOOKS):
        age = ages.seen(connection(second + 1, 0), float(second))
    assert age == MOST_LOOKS - 1
