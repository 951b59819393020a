"""What is acknowledged or logged and not done yet: counters that commits keep, on all stores."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.status_records import UnderWay
from tests.support.logs import DONE, IN, OUT, UNDONE, Driver, assigned, sent, start_driver

OTHER, WRITTEN = Port("receiver", "other"), Port("receiver", "warehouse")


def check(driver: Driver, opened: Mapping[Port, int], pending: int = 0) -> None:
    found = driver.store.under_way(driver.run.run_id)
    assert found == UnderWay(dict(opened), {WRITTEN: pending} if pending else {})


def test_an_event_is_under_way_from_its_acknowledgement_until_its_input_sets_are_done(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    commit = driver.session.commit
    commit([sent(1), sent(2), sent(3), sent(1, receiver=OTHER, sender=Port("sender", "else"))])
    check(driver, {})  # that they lag is told by the counters of what was sent and acknowledged
    commit([assigned(1, "A", "B"), assigned(2, "B"), assigned(3, "C", status=DONE)])
    check(driver, {IN: 3})
    commit([fx.Acknowledge(Port("sender", "else"), OTHER, 1, (("B", UNDONE),)), fx.MarkDone("receiver", "A", 1)])
    check(driver, {IN: 2, OTHER: 1})
    commit([fx.LogStateEvent("receiver", 1, "B", b"state"), fx.MarkDone("receiver", "B", 4)])
    check(driver, {})


def test_an_event_of_a_fused_operator_is_under_way_if_it_outlives_its_step(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    event = Event(OUT, 1, Kind.DATA, 3, None, b"body")
    driver.session.commit([fx.LogEvent(event, (fx.Delivery(IN, (("A", UNDONE), ("B", DONE)), fused=True),))])
    check(driver, {IN: 1})


def test_quarantined_events_are_not_under_way(log_store: LogStore) -> None:
    """That they are again when they are retried, `log_store` checks behind every test of quarantine."""
    driver = start_driver(log_store)
    commit = driver.session.commit
    commit([sent(1), assigned(1, "A")])
    check(driver, {IN: 1})
    commit([fx.SetAside("receiver", "A", 1, "it raised")])
    check(driver, {})


def test_write_actions_are_pending_until_they_are_applied(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    writes = [fx.LogWrite("receiver", "warehouse", number, {}, 1, body=b"body") for number in (1, 2, 3)]
    driver.session.commit([*writes])
    check(driver, {}, pending=3)
    driver.session.commit([fx.WritesDone("receiver", "warehouse", 1, 2)])
    check(driver, {}, pending=1)
    driver.session.commit([fx.WritesDone("receiver", "warehouse", 3, 3)])
    check(driver, {})
