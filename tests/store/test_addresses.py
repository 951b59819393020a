"""Where drivers hand over bodies directly, as the log keeps it: the same in memory, in SQLite and in PostgreSQL."""

from __future__ import annotations

from airflow_logio.store.port import LogStore
from airflow_logio.store.port.unfenced_port import DirectAddress
from airflow_logio.store.records.driver_records import GroupRef
from tests.support.logs import start_driver


def address(incarnation: int, port: int = 1) -> DirectAddress:
    return DirectAddress(incarnation, f"grpc+tls://host:{port}", "server", "client", f"key {port}", f"token {port}")


def test_the_latest_incarnation_of_a_group_is_asked(log_store: LogStore) -> None:
    ref = start_driver(log_store).ref
    book = log_store.addresses
    assert book.of_group(ref.run_id, ref.group) is None
    later = GroupRef(ref.run_id, ref.group, 2)
    book.put(ref, address(1, 1))
    book.put(later, address(2, 2))
    book.put(ref, address(1, 3))  # of one that was replaced
    assert book.of_group(ref.run_id, ref.group) == address(2, 2)
    book.put(later, address(2, 4))
    assert book.of_group(ref.run_id, ref.group) == address(2, 4)
    assert book.of_group(ref.run_id, "another") is None


def test_a_token_is_not_shown() -> None:
    assert "token 1" not in repr(address(1))
    assert "key 1" not in repr(address(1))


def test_it_goes_with_its_run(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    log_store.addresses.put(driver.ref, address(1))
    log_store.declare_dead(driver.ref, "it has died")
    log_store.park(driver.ref, "for good")
    while log_store.remove_run(driver.run.run_id, limit=10, unfinished=True).more:
        pass
    assert log_store.addresses.of_group(driver.run.run_id, driver.ref.group) is None
