"""`logio run --lookback`: a finished run has the partition before its own computed again, once.

The run before is given up with a reason that names the one that looks back. That is one transaction of the log, so of two
commands one does it, and a command that is repeated finds it done, or what is left of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from airflow_logio.cli.preparation import CLI_DAG_ID, Wanted
from airflow_logio.dataflow.pipeline.days import PartitionKey
from airflow_logio.protocol.states import RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.lookback import Left, left_alone, own_params

MOST_RUNS = 1_000
"""Of one partition."""


def look_back(store: LogStore, run: Run, key: PartitionKey) -> Run | Left:
    """The run of partition `key` in whose place another one is to be begun, or which is to be resumed, because `run` has
    finished. It is given up here, unless that was done before. Raises `LogUnavailable`."""
    runs = store.list_runs(pipeline=run.spec.key.pipeline, partition=key.text, limit=MOST_RUNS)
    if (mine := next((one for one in runs if one.because == _reason(run)), None)) is not None:
        return _begun_before(runs, mine, key)
    if not runs:
        return Left(f"no run of {key.text} is there, so none is computed again")
    newest = runs[0]
    if why := _why_not(newest):
        return Left(f"{key.text} is not computed again: {why}")
    if not store.supersede(newest.run_id, because=_reason(run)):
        return Left(f"{key.text} is computed again by another command, which gave run {newest.uid[:8]} up just now")
    return newest


def wanted_again(wanted: Wanted, before: Run, key: PartitionKey, declared: Collection[str]) -> Wanted:
    """The run that takes the place of another one: with its connections, and those of its parameters that are `declared`."""
    own = {name: str(value) for name, value in own_params(before, declared).items()}
    return replace(
        wanted,
        params={**wanted.params, **own},
        connection_ids=before.spec.connections,
        run_id=before.spec.key.dag_run_id,
        partition=key.text,
        allowed=frozenset(),
    )


def _reason(run: Run) -> str:
    return f"lookback of {run.partition}, run {run.uid}"


def _begun_before(runs: Sequence[Run], given_up: Run, key: PartitionKey) -> Run | Left:
    """What an earlier command has left of it."""
    newest = runs[0]
    if newest.state is RunState.FINISHED:
        return Left(f"{key.text} was computed again before")
    behind = runs[: runs.index(given_up)]
    if len(behind) > 1 or (behind and behind[0].state is RunState.SUPERSEDED):
        return Left(f"{key.text} was begun again before, and run {newest.uid[:8]} has it by now")
    return newest


def _why_not(newest: Run) -> str | None:
    """Why its newest run is left as it is; None if it is not."""
    if newest.state not in (RunState.FINISHED, RunState.SUPERSEDED):
        uid = newest.uid[:8]
        return f"its run {uid} has not finished ({newest.state}): `logio retry {uid}` resumes it"
    return left_alone(newest, CLI_DAG_ID)
