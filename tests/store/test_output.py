"""What drivers print, as the log keeps it: the same in memory, in SQLite and in PostgreSQL."""

from __future__ import annotations

from airflow_logio.store.port import LogStore
from airflow_logio.store.port.unfenced_port import OutputPart
from airflow_logio.store.records.driver_records import GroupRef
from tests.support.logs import Driver, replace_driver, spec, start_driver


def texts(parts: object) -> list[str]:
    assert isinstance(parts, list | tuple)
    return [part.text for part in parts]


def another_run(log: LogStore) -> Driver:
    return start_driver(log, run=log.start_run(spec("g", dag_run="another")))


def print_parts(log: LogStore, ref: GroupRef, *numbers: int) -> None:
    for number in numbers:
        log.output.add(ref, number, 10 * number, f"{ref.group} {ref.incarnation} {number}\n")


def other(driver: Driver, group: str, incarnation: int = 1) -> GroupRef:
    return GroupRef(driver.run.run_id, group, incarnation)


def test_parts_are_kept_in_order_once_and_the_oldest_are_removed(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    ref = driver.ref
    print_parts(log_store, ref, 1, 3, 2)
    log_store.output.add(ref, 3, 99, "another third\n")
    parts = log_store.output.parts(ref.run_id, ref.group, ref.incarnation)
    assert texts(parts) == ["g 1 1\n", "g 1 2\n", "g 1 3\n"]
    assert [(part.number, part.position) for part in parts] == [(1, 10), (2, 20), (3, 30)]
    assert texts(log_store.output.parts(ref.run_id, ref.group, ref.incarnation, after=2)) == ["g 1 3\n"]
    last = log_store.output.parts(ref.run_id, ref.group, ref.incarnation, most=2)
    assert texts(last) == ["g 1 2\n", "g 1 3\n"]
    log_store.output.add(ref, 4, 40, "\N{SNOWMAN}\n", oldest=3)
    assert texts(log_store.output.parts(ref.run_id, ref.group, ref.incarnation)) == ["g 1 3\n", "\N{SNOWMAN}\n"]
    assert log_store.output.parts(ref.run_id, "h", 1) == []


def test_what_is_new_is_found_for_many_runs_at_once(log_store: LogStore) -> None:
    one, two = start_driver(log_store), another_run(log_store)
    print_parts(log_store, one.ref, 1, 2, 3)
    print_parts(log_store, other(one, "h"), 1)
    print_parts(log_store, two.ref, 1)
    runs = [one.run.run_id, two.run.run_id]
    found = log_store.output.written_since(runs, 0.0, most=2)
    assert {run: texts(parts) for run, parts in found.items()} == {
        runs[0]: ["g 1 2\n", "g 1 3\n", "h 1 1\n"],
        runs[1]: ["g 1 1\n"],
    }
    last: OutputPart = found[runs[1]][-1]
    print_parts(log_store, two.ref, 2)
    since = log_store.output.written_since(runs, last.at, most=10)
    assert "g 1 2\n" in texts(since[runs[1]])
    assert "g 1 1\n" not in texts(since[runs[1]])
    assert log_store.output.written_since([], 0.0, most=2) == {}


def test_a_driver_that_was_replaced_may_still_say_why(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    replace_driver(driver)
    print_parts(log_store, driver.ref, 1)
    assert texts(log_store.output.parts(driver.run.run_id, "g", 1)) == ["g 1 1\n"]


def test_it_goes_with_its_run(log_store: LogStore) -> None:
    driver, kept = start_driver(log_store), another_run(log_store)
    print_parts(log_store, driver.ref, 1, 2)
    print_parts(log_store, kept.ref, 1)
    log_store.halted(driver.ref)
    while log_store.remove_run(driver.run.run_id, 100, unfinished=True).more:
        pass
    runs = [driver.run.run_id, kept.run.run_id]
    assert set(log_store.output.written_since(runs, 0.0, most=10)) == {kept.run.run_id}


def test_of_older_incarnations_the_last_are_kept(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    for incarnation in range(1, 7):
        print_parts(log_store, other(driver, "g", incarnation), 1, 2)
    print_parts(log_store, other(driver, "h", 6), 1)
    left = [one for one in range(1, 7) if log_store.output.parts(driver.run.run_id, "g", one)]
    assert left == [3, 4, 5, 6]
