"""The DAG `logio_recovery` as Airflow's scheduler sees it."""

from __future__ import annotations

from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import DataInterval

from logio_recovery import dag


def test_each_of_its_runs_has_a_date_of_its_own() -> None:
    """Of two runs with one date Airflow creates the first only: a group that dies after that would stay dead."""
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    dates, last = [], None
    for _ in range(3):
        following = stored.timetable.next_dagrun_info(
            last_automated_data_interval=last, restriction=stored._time_restriction
        )
        assert following is not None
        dates.append(following.logical_date)
        last = DataInterval(following.data_interval.start, following.data_interval.end)
    assert len(set(dates)) == 3


def test_only_one_run_at_a_time_and_none_for_the_past() -> None:
    assert (dag.max_active_runs, dag.catchup) == (1, False)
