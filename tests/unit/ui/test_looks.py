"""Looks at a run: what they cost the log, and what is known only from several of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from msgspec import structs

from airflow_logio.errors import UnknownRun
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Port
from airflow_logio.run_report.report import Reporter
from airflow_logio.status.authored_figures import AuthoredConnections
from airflow_logio.status.snapshot import Amount, ConnectionView, Observer
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import BacklogBound, Supervision
from airflow_logio.ui import looks as looks_module
from airflow_logio.ui import run_list
from airflow_logio.ui.looks import FRESH_SECONDS, MOST_RUNS, ListAsked, Looks, SharedLists
from airflow_logio.ui.run_list import listed_runs
from airflow_logio.ui.run_look import MOST_LOOKS, Fullness, LagAge, LagAges
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
    assert (
        json.loads(looks.at(flow.run.uid).encoded(errors=True, ids=True))["connections"][0]["acknowledged"]["events"]
        == 8
    )


def test_what_is_kept_of_runs_is_bounded(store: LogStore) -> None:
    looks = Looks(store, None)
    uids = [store.start_run(spec("g", dag_run=f"run-{number}")).uid for number in range(MOST_RUNS + 3)]
    for uid in uids:
        looks.at(uid)
    assert len(looks._shared) == MOST_RUNS
    assert looks.at(uids[0]).report.run.uid == uids[0]


def test_a_run_that_is_not_there_leaves_nothing(store: LogStore) -> None:
    looks = Looks(store, None)
    for uid in ("0" * 32, "x", ""):
        with pytest.raises(UnknownRun):
            looks.at(uid)
    assert not looks._shared


def test_the_list_has_the_same_statements_however_many_runs_there_are(store: LogStore) -> None:
    counts = []
    for number in range(3):
        for one in range(5):
            store.start_run(spec("a", "b", dag_run=f"run-{number}-{one}"))
        listed_runs(store, None, None)
        with counted_statements() as asked:
            assert len(listed_runs(store, None, None).runs) == 5 * (number + 1)
        counts.append(len(asked))
    assert len(set(counts)) == 1


def connection(sent: int, acknowledged: int, receiver: str = "b") -> ConnectionView:
    amounts = Amount(sent, sent), Amount(acknowledged, acknowledged)
    return ConnectionView(Port("a", "out"), Port(receiver, "in"), "a", "b", *amounts, 0.0, 0)


def test_the_age_of_a_lag_is_that_of_its_oldest_event() -> None:
    ages = LagAges()
    assert ages.oldest([connection(0, 0)], 100.0) is None
    assert ages.oldest([connection(5, 0)], 101.0) == LagAge(0.0, is_least=False)
    assert ages.oldest([connection(9, 2)], 103.0) == LagAge(2.0, is_least=False), "of the first five, some wait"
    assert ages.oldest([connection(9, 5)], 104.0) == LagAge(1.0, is_least=False), (
        "the others were sent between 101 and 103"
    )
    assert ages.oldest([connection(9, 9)], 105.0) is None
    assert ages.oldest([connection(12, 9)], 107.0) == LagAge(0.0, is_least=False)


def test_what_lags_at_the_first_look_is_at_least_so_old() -> None:
    ages = LagAges()
    assert ages.oldest([connection(5, 0)], 100.0) == LagAge(0.0, is_least=True)
    assert ages.oldest([connection(9, 2)], 130.0) == LagAge(30.0, is_least=True)
    assert ages.oldest([connection(9, 5)], 140.0) == LagAge(10.0, is_least=False)


def test_an_age_counts_from_the_first_look_however_many_follow() -> None:
    ages = LagAges()
    ages.oldest([connection(0, 0)], 0.0)
    for second in range(1, 50 * MOST_LOOKS):
        age = ages.oldest([connection(second, 0)], float(second))
        assert age == LagAge(second - 1.0, is_least=False)
    half = second // 2
    age = ages.oldest([connection(second, half)], float(second))
    assert age is not None
    assert 0.8 * half <= age.seconds <= half, "never older than it is"


def test_slots_that_acknowledge_for_themselves_hide_no_old_event() -> None:
    """Slot 1 stands still while slot 0 works on: of their sums, the oldest events would be acknowledged soon."""
    ages = LagAges()
    for second in range(100):
        parts = [connection(10 * second, 10 * second - 5, "b@0"), connection(min(second, 3), 0, "b@1")]
        age = ages.oldest(parts, float(second))
    assert age == LagAge(98.0, is_least=False)


def test_a_connection_of_a_replicated_group_has_those_of_its_slots(store: LogStore) -> None:
    run = large_run(store, 4, 1, 3, 2)
    report = Reporter(store, run).look()
    drawn = AuthoredConnections(run).with_parts(report.snapshot.connections)
    for one, parts in drawn:
        assert one.sent == sum((part.sent for part in parts), Amount())
    assert max(len(parts) for _, parts in drawn) > 1


def test_how_full_a_connection_is(store: LogStore, flow: TwoGroups) -> None:
    """By events, or by bytes where they are large; of slots the fullest; and nothing is held up inside a group."""
    run = replace(flow.run, spec=replace(flow.run.spec, backlog=BacklogBound(events=20, bytes=1_000)))

    def fullness(*connections: ConnectionView) -> float | None:
        return Fullness(Observer(store, run).take()).of(connections)

    one = connection(10, 5)
    assert fullness(one) == 0.25
    assert fullness(one, connection(9, 0)) == 0.45
    assert fullness(structs.replace(one, to_group="a")) is None
    flow.drivers["ingest"].session.commit([fx.CountEvents(Port("read", "out"), "out", 0, 0, 2_000)])
    (between,) = [view for view in Observer(store, run).take().connections if not view.inside_group]
    assert (between.lag.events, fullness(between)) == (3, 0.6), "its ten events have 200 bytes each"


def test_a_run_is_looked_at_by_its_uid_alone(store: LogStore, flow: TwoGroups) -> None:
    """A DAG run may be named by anyone who may trigger its DAG, as the uid of another run too."""
    looks, watched = Looks(store, None), Reporter(store, flow.run)
    other = spec("g", dag_run=flow.run.uid)
    taker = store.start_run(replace(other, key=replace(other.key, pipeline="another")))
    assert looks.at(flow.run.uid).report.run.uid == watched.look().run.uid == flow.run.uid
    for group in ("ingest", "totals"):
        assert store.park(GroupRef(flow.run.run_id, group, 1), "a test")
    assert store.supersede(flow.run.run_id)
    while store.remove_run(flow.run.run_id, 1000).more:
        pass
    assert store.find_run(flow.run.uid).uid == taker.uid
    with pytest.raises(UnknownRun, match="no longer in the log"):
        watched.look()


# --- lists -------------------------------------------------------------------------------------------------------------


def test_readers_of_the_same_dags_share_a_list(store: LogStore, flow: TwoGroups) -> None:
    clock = [0.0]
    lists = SharedLists(store, None, lambda: clock[0])
    first = lists.of(ListAsked(frozenset({"dag", "other"})))
    with counted_statements() as asked:
        assert lists.of(ListAsked(frozenset(["other", "dag"]))) is first
    assert asked == []
    assert [one["uid"] for one in first.runs] == [flow.run.uid]
    assert lists.of(ListAsked(frozenset({"other"}))).runs == [] == lists.of(ListAsked(frozenset())).runs
    clock[0] += looks_module.LIST_FRESH_SECONDS
    assert lists.of(ListAsked(frozenset({"dag", "other"}))) is not first
    for number in range(2 * looks_module.MOST_LISTS):
        lists.of(ListAsked(frozenset({f"dag-{number}"})))
    assert len(lists._shared) == looks_module.MOST_LISTS


def test_what_is_unfinished_is_listed_however_many_runs_are_newer(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "MOST_RUNS", 3)
    first = store.start_run(spec("g", dag_run="first"))
    for number in range(3):
        run = store.start_run(spec("g", dag_run=f"run-{number}"))
        if number == 0:
            assert not listed_runs(store, None, None).older
        assert store.request(run.run_id, "g", GroupState.HALTED) and store.supersede(run.run_id)
    found = listed_runs(store, None, None)
    assert [one["run_id"] for one in found.runs] == ["first", "run-2", "run-1"]
    assert found.runs[0]["uid"] == first.uid
    assert found.older


def test_the_list_says_whose_dag_is_paused_and_asks_once_for_each_dag(store: LogStore) -> None:
    for dag in ("dag", "dag", "other"):
        key = replace(spec("g", dag_run=f"run-{len(store.list_runs())}").key, dag_id=dag)
        store.start_run(replace(spec("g"), key=key, supervision=Supervision.TASK))
    asked: list[str] = []

    def is_paused(dag_id: str) -> bool:
        asked.append(dag_id)
        return dag_id == "dag"

    found = {one["run_id"]: one["next_step"] for one in listed_runs(store, None, None, is_paused=is_paused).runs}
    unpause = "unpause DAG dag: Airflow starts no task of it"
    assert found == {"run-0": unpause, "run-1": unpause, "run-2": ""}
    assert sorted(asked) == ["dag", "other"]


def test_the_list_of_a_dag_run_names_the_groups_of_its_runs(store: LogStore, flow: TwoGroups) -> None:
    (listed,) = listed_runs(store, None, ["dag"], dag_run_id="run-1").runs
    assert listed["groups"] == ["ingest", "totals"]
