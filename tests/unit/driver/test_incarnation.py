"""Which runs a driver shuts out because it has begun in their place."""

from __future__ import annotations

from dataclasses import replace

from airflow_logio.driver.incarnation import given_up
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from tests.support.logs import spec

DAY, NEXT_DAY = "2026-03-01", "2026-03-02"


def start(store: LogStore, dag_run: str, partition: str | None, *, dag: str = "daily", pipeline: str = "clicks") -> Run:
    plain = spec(dag_run=dag_run)
    key = replace(plain.key, pipeline=pipeline, dag_id=dag)
    return store.start_run(replace(plain, key=key, partition=partition))


def superseded(store: LogStore, *names: str | None, **more: str) -> Run:
    run = start(store, *names, **more)  # type: ignore[arg-type]
    assert store.supersede(run.run_id)
    return store.find_run(run.uid)


def uids(*runs: Run) -> tuple[str, ...]:
    return tuple(sorted(run.uid for run in runs))


def test_a_run_that_was_given_up_by_another_dag_run_of_the_day_is_shut_out(log_store: LogStore) -> None:
    backfilled = superseded(log_store, "backfill", DAY)
    by_hand = superseded(log_store, "by hand", DAY, dag="clicks by hand")
    manual = start(log_store, "manual", DAY)
    assert manual.spec.key.generation == 1
    assert given_up(log_store, manual) == uids(backfilled, by_hand)
    again = start(log_store, "backfill", DAY)
    assert again.spec.key.generation == 2
    assert given_up(log_store, again) == uids(backfilled, by_hand), "each once, by its key and by its day"


def test_no_other_run_is_shut_out(log_store: LogStore) -> None:
    """Not one of the day that lives or has finished, of another day, of another pipeline, nor without a partition."""
    superseded(log_store, "next day", NEXT_DAY)
    superseded(log_store, "other", DAY, pipeline="other")
    superseded(log_store, "plain", None)
    alive = start(log_store, "alive", DAY)
    manual = start(log_store, "manual", DAY)
    assert given_up(log_store, manual) == given_up(log_store, alive) == ()
    assert given_up(log_store, start(log_store, "plainer", None)) == ()


def test_without_a_partition_the_earlier_generations_are_shut_out(log_store: LogStore) -> None:
    earlier = [superseded(log_store, "a", None) for _ in range(2)]
    superseded(log_store, "b", None)
    assert given_up(log_store, start(log_store, "a", None)) == uids(*earlier)


def test_a_driver_of_a_run_that_was_given_up_shuts_out_no_run_that_lives(log_store: LogStore) -> None:
    """It may come back late, and read who was given up."""
    zombie = superseded(log_store, "backfill", DAY)
    start(log_store, "backfill", DAY)
    start(log_store, "manual", DAY)
    assert given_up(log_store, zombie) == ()


def test_a_run_that_was_removed_stays_shut_out(log_store: LogStore) -> None:
    """Its drivers may live all the same: those of the same day, and of the same DAG run. One that had finished is none."""
    gone, twice = superseded(log_store, "backfill", DAY), superseded(log_store, "plain", None)
    assert log_store.remove_run(gone.run_id, 100).more
    while log_store.remove_run(twice.run_id, 100).more:
        pass
    assert given_up(log_store, start(log_store, "manual", DAY)) == (gone.uid,)
    assert given_up(log_store, start(log_store, "plain", None)) == (twice.uid,)
    assert given_up(log_store, start(log_store, "another", "2026-03-02")) == ()
