"""A DAG that runs each hour has 1,000 runs after 41 days: all are found, and what supervises them reads only what runs.

The statements of each look are explained by the database, in a log with 2,400 runs that have finished. Only a start reads the
states of all runs of its pipeline, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.driver.incarnation import given_up
from airflow_logio.protocol.states import RunState
from airflow_logio.store.records.run_records import Run, RunSpec
from airflow_logio.store.records.start_records import Attempt
from airflow_logio.store.rules.described_runs import encode_spec, sealed_spec
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.supervision.findings import FailureFinder
from airflow_logio.ui.run_list import MOST_RUNS, listed_runs
from tests.support.logs import spec
from tests.support.statements import explained

HOURS = 1_200


def of(dag: str, number: int) -> RunSpec:
    plain = spec(dag_run=f"hour {number:04}")
    key = replace(plain.key, pipeline="clicks", dag_id=dag)
    return replace(plain, key=key, partition=f"hour-{number:04}", keep_seconds=90 * 86_400.0)


@pytest.fixture
def many(sql_store: SqlLogStore) -> SqlLogStore:
    """1,200 finished runs of each of two DAGs of one pipeline, and their groups, and what other 100 have left."""
    runs, groups, removed = [], [], []
    for number in range(2 * HOURS):
        uid, ordinal = f"{number:032x}", number + 1
        described = of(f"dag {number % 2}", number // 2)
        key = described.key
        where = {"pipeline": key.pipeline, "dag_id": key.dag_id, "dag_run_id": key.dag_run_id, "generation": 1}
        times = {"created_at": 1.0 + number, "ended_at": 2e9 + number}
        row = {"uid": uid, **where, "partition": described.partition, "ordinal": ordinal, "state": "finished", **times}
        runs.append({**row, "run_id": ordinal, "spec": sealed_spec(encode_spec(described), uid, ordinal)})
        groups.append({"run_id": ordinal, "group_name": "g", "state": "finished", "desired": "running", "since": 1.0})
        removed.append({**row, "uid": f"{number:031x}f", "removed_at": 1.0, "reason": "a test", "dag_id": "another"})
    fences = [
        {"run_id": one["run_id"], "group_name": "g", "incarnation": 1, "epoch": 1, "commit_no": 1} for one in groups
    ]
    with sql_store.engine.begin() as connection:
        connection.execute(sa.insert(schema.run), runs)
        connection.execute(sa.insert(schema.group), groups)
        connection.execute(sa.insert(schema.fence), fences)
        connection.execute(sa.insert(schema.removed_run), removed)
        pipeline = {"name": "clicks", "ordinal": 2 * HOURS, "keep_seconds": 90 * 86_400.0}
        connection.execute(sa.insert(schema.pipeline), [pipeline])
        if sql_store.engine.dialect.name == "postgresql":
            follow = "SELECT setval(pg_get_serial_sequence('logio_run', 'run_id'), max(run_id)) FROM logio_run"
            connection.execute(sa.text(follow))
    with sql_store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")
    return sql_store


def test_the_oldest_is_found_like_the_youngest(many: SqlLogStore) -> None:
    """By its DAG run, its partition, its uid, a part of its name; and in the list of the page."""
    for number in (0, HOURS - 1):
        described = of("dag 0", number)
        name, uid = described.key.dag_run_id, f"{2 * number:032x}"
        by_name = many.list_runs(pipeline="clicks", dag_ids=["dag 0"], dag_run_id=name, limit=1)
        by_partition = many.list_runs(pipeline="clicks", partition=described.partition, limit=10)
        listed = listed_runs(many, None, ["dag 0"], dag_run_id=name).runs
        searched = listed_runs(many, None, ["dag 0"], named=f"{number:04}")
        assert [run.uid for run in by_name] == [one["uid"] for one in listed] == [uid]
        assert {run.uid for run in by_partition} == {uid, f"{2 * number + 1:032x}"}
        assert ([one["uid"] for one in searched.runs], searched.older) == ([uid], False)
        assert many.find_run(uid).uid == uid
    assert len(many.list_runs(pipeline="clicks", limit=10_000)) == 2 * HOURS
    whole = listed_runs(many, None, None)
    assert (len(whole.runs), whole.older) == (MOST_RUNS, True), (
        "the page says that there are more, and searches for them"
    )
    assert many.start_run(of("dag 0", 0)).uid == f"{0:032x}"


def test_an_unfinished_one_is_listed_before_younger_ones(many: SqlLogStore) -> None:
    uid = f"{2:032x}"
    with many.engine.begin() as connection:
        connection.execute(sa.update(schema.run).where(schema.run.c.uid == uid).values(state="running", ended_at=None))
    assert listed_runs(many, None, None).runs[0]["uid"] == uid
    assert [one.run.uid for one in many.sight(None)] == [uid]


def fresh(run: Run) -> Run:
    return replace(run, spec=replace(run.spec, key=replace(run.spec.key, generation=2)))


LOOKS: dict[str, Callable[[SqlLogStore, Run], Any]] = {
    "a supervisor": lambda store, run: store.sight(None),
    "a finder of all failures": lambda store, run: FailureFinder(store).look(),
    "a look at one run": lambda store, run: store.sight([run.uid]),
    "old runs": lambda store, run: [store.take_turns(0.0), store.expired("clicks", 50)],
    "markers of removed runs": lambda store, run: [
        store.removed_up_to("clicks"),
        store.removed_runs(pipeline="clicks", ordinals=(1, 5), oldest_first=True, limit=5),
    ],
    "a run by its name": lambda store, run: store.list_runs(
        pipeline="clicks", dag_ids=["dag 0"], dag_run_id="hour 0007", limit=1
    ),
    "a DAG run of the page": lambda store, run: store.list_runs(dag_ids=["dag 0"], dag_run_id="hour 0007"),
    "the last of a DAG": lambda store, run: store.list_runs(dag_ids=["dag 0"], limit=101),
    "unfinished ones of a DAG": lambda store, run: store.list_runs(
        dag_ids=["dag 0"], state=RunState.RUNNING, limit=101
    ),
    "a partition": lambda store, run: store.list_runs(pipeline="clicks", partition="hour-0007"),
    "who was given up": lambda store, run: given_up(store, fresh(run)),
    "an attempt": lambda store, run: store.start_attempt(of("dag 0", HOURS + 1), Attempt(1, 1)),
    "the end of a run": lambda store, run: store.finish_run(run.run_id),
    "a removed run": lambda store, run: store.removed_runs(pipeline="clicks", dag_run_id="hour 0007"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_look_reads_none_of_the_runs_that_have_finished(many: SqlLogStore, name: str) -> None:
    run = many.find_run(f"{0:032x}")
    with explained(many.engine, "logio_run", "logio_group", "logio_removed_run", "logio_start") as plans:
        LOOKS[name](many, run)
    assert plans
    for statement, plan in plans:
        for scan in ("Seq Scan on logio_run", "Seq Scan on logio_group", "Seq Scan on logio_removed", "SCAN logio_"):
            assert scan not in plan, f"{name}:\n{statement}\n{plan}"
