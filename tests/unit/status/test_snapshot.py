"""The figures of a run, from the log's counters and the graph in its description."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_logio.status.snapshot import Amount, Observer
from airflow_logio.store.port import LogStore
from tests.support.logs import start_driver
from tests.support.two_groups import INTO, READ, SAVED, SUMS, TwoGroups


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lag_of_a_connection_is_what_was_sent_and_not_acknowledged(log_store: LogStore) -> None:
    flow = TwoGroups(log_store)
    flow.send(10, 500)
    flow.use(7, 350, output_sets=2)
    connections = {one.receiver: one for one in Observer(log_store, flow.run).take().connections}
    assert set(connections) == {INTO, SAVED}
    feed = connections[INTO]
    assert (feed.sender, feed.from_group, feed.to_group, feed.inside_group) == (READ, "ingest", "totals", False)
    assert (feed.sent, feed.acknowledged, feed.lag) == (Amount(10, 500), Amount(7, 350), Amount(3, 150))
    fused = connections[SAVED]
    assert (fused.sender, fused.inside_group, fused.lag) == (SUMS, True, Amount())


def test_groups_are_measured_by_what_they_have_read_or_acknowledged(log_store: LogStore) -> None:
    flow = TwoGroups(log_store)
    flow.send(10, 500)
    flow.use(7, 350, output_sets=2)
    snapshot = Observer(log_store, flow.run).take()
    ingest, totals = snapshot.groups
    assert snapshot.done == totals.done, "the slowest group says how far the run is"
    assert (ingest.is_source, ingest.measured, ingest.total_records, ingest.done) == (True, Amount(10, 500), 1_000, 0.5)
    assert (ingest.sent, ingest.received, ingest.lag, ingest.writes) == (Amount(10, 500), Amount(), Amount(), 0)
    assert (totals.is_source, totals.measured, totals.total_records) == (False, Amount(7, 350), None)
    assert totals.done == pytest.approx(0.5 * 0.7), "of the whole input, not of what was sent so far"
    assert (totals.sent, totals.received, totals.lag, totals.writes) == (Amount(), Amount(7, 350), Amount(3, 150), 2)
    assert (ingest.status.commits, totals.status.commits) == (1, 1)


def test_rates_are_taken_since_the_last_look(log_store: LogStore) -> None:
    flow, clock = TwoGroups(log_store), Clock()
    flow.send(10, 500)
    observer = Observer(log_store, flow.run, clock=clock)
    first = observer.take()
    assert [view.rate for view in first.groups] == [0.0, 0.0], "one look tells no rate"
    assert first.groups[1].lag_seconds is None
    flow.use(4, 200)
    clock.now += 10
    second = observer.take()
    assert [view.rate for view in second.groups] == [0.0, 20.0]
    assert second.connections[0].rate == 20.0
    assert second.groups[1].lag_seconds == pytest.approx(300 / 20)
    assert second.seconds == 10


def test_ports_of_a_group(log_store: LogStore) -> None:
    flow = TwoGroups(log_store)
    flow.send(1, 1)
    flow.use(1, 1, output_sets=1)
    snapshot = Observer(log_store, flow.run).take()
    assert [str(row.port) for row in snapshot.ports_of("ingest")] == ["read.out"]
    ports = [(str(row.port), row.direction) for row in snapshot.ports_of("totals")]
    assert ports == [("save.in", "in"), ("save.warehouse", "write"), ("total.in", "in"), ("total.out", "out")]
    assert snapshot.group("nobody") is None


def test_commits_are_counted_over_incarnations(log_store: LogStore) -> None:
    flow = TwoGroups(log_store)
    for _ in range(3):
        flow.send(1, 1)
    flow.recover("ingest")
    flow.send(1, 1)
    view = Observer(log_store, flow.run).take().groups[0]
    assert (view.status.incarnation, view.status.commits) == (2, 4)


def test_a_run_whose_description_has_no_graph_has_groups_without_figures(log_store: LogStore) -> None:
    """Such runs were begun under the first revision of the log's schema."""
    driver = start_driver(log_store)
    snapshot = Observer(log_store, driver.run).take()
    assert [view.name for view in snapshot.groups] == ["g"]
    assert (snapshot.connections, snapshot.groups[0].done, snapshot.groups[0].total_records) == ((), None, None)


def test_a_source_that_could_not_tell_its_size_has_no_share(log_store: LogStore) -> None:
    flow = TwoGroups(log_store)
    run = replace(flow.run, spec=replace(flow.run.spec, actions={"read": {}}))
    flow.send(1, 1)
    snapshot = Observer(log_store, run).take()
    assert ([view.done for view in snapshot.groups], snapshot.done) == ([None, None], None)
