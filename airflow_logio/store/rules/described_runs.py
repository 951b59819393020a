"""The description of a run as its row holds it: JSON with a checksum at its end, by which no flipped bit is another run.

The checksum covers what never changes in a row: the description, the uid and the ordinal. It is the last key of the JSON,
which versions before it leave out of account; a description without it is one of theirs. Pipeline, DAG, DAG run, generation
and partition have columns of their own, which must say what the description says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from airflow_logio.errors import ConfigurationError, LogInconsistent
from airflow_logio.protocol.states import RunState
from airflow_logio.protocol.values import storable, unstorable
from airflow_logio.store.records.run_records import Allowed, Run, RunKey, RunSpec
from airflow_logio.store.rules.row_forms import seal_json, unseal_json

TABLE = "logio_run"


def encode_spec(spec: RunSpec) -> str:
    """The stored form of a description. Raises `ConfigurationError` for what would not come back as it was given."""
    names = {"pipeline": spec.key.pipeline, "dag_id": spec.key.dag_id, "dag_run_id": spec.key.dag_run_id}
    if spec.partition is not None:
        names["partition"] = spec.partition
    for what, name in [*names.items(), *(("group", group) for group in spec.groups)]:
        if (reason := unstorable(name)) is not None:
            raise ConfigurationError(f"the {what} of a run cannot be {ascii(name)[:60]}: {reason}")
    try:
        text = msgspec.json.encode(spec).decode()
        same = msgspec.json.decode(text, type=RunSpec).params == dict(spec.params)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigurationError(f"the description of run {str(spec.key)!a} cannot be stored: {error}") from error
    if not same:
        raise ConfigurationError(
            f"the parameters of run {spec.key} cannot be stored as they are (a number such as nan or inf?): "
            f"{dict(spec.params)}"
        )
    return text


def sealed_spec(text: str, uid: str, ordinal: int) -> str:
    """A description, as `encode_spec` gives it, with its checksum, for the row of that uid and ordinal."""
    return seal_json(text, uid, ordinal)


def described(row: Any) -> Run:
    """The run of a row of `logio_run`, by the names of its columns. What is damaged in it is said in `Run.damage`.

    Then its `spec` has only what columns say, as of an unknown run: it names no group and no writer.
    """
    key = RunKey(_text(row.pipeline), _text(row.dag_id), _text(row.dag_run_id), row.generation)
    partition = None if row.partition is None else _text(row.partition)
    spec, damage = _checked(row, key, partition)
    state, unknown = run_state(row.state)
    allowed, misread = _next_allowed(row.next_allowed)
    ended = (row.ended_at, storable(row.superseded_by), storable(row.because), allowed)
    run = Run(row.run_id, _text(row.uid), spec, state, row.created_at, row.ordinal, *ended)
    if damage is not None:
        return marked(run, damage, or_else=f"give this run up (`logio fresh {run.uid[:8]}`) and start it anew")
    return marked(run, unknown or misread)


def _next_allowed(stored: str | None) -> tuple[frozenset[Allowed], str | None]:
    """What is stored, or nothing, and what is wrong with it: nothing is allowed that cannot be read."""
    try:
        return msgspec.json.decode(stored or "[]", type=frozenset[Allowed]), None
    except (msgspec.MsgspecError, ValueError) as error:
        return frozenset(), f"what its next run is allowed cannot be read: {storable(str(error))}"


def _checked(row: Any, key: RunKey, partition: str | None) -> tuple[RunSpec, str | None]:
    unknown = RunSpec(key, "", "", (), {}, {}, "", "", partition=partition)
    try:
        spec = msgspec.json.decode(unseal_json(row.spec, row.uid, row.ordinal), type=RunSpec)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return unknown, f"its description cannot be read: {storable(str(error))}"
    told = spec.key if row.state != RunState.REMOVING.value else replace(spec.key, dag_run_id=key.dag_run_id)
    if told != key or spec.partition != partition:
        return (
            unknown,
            f"its columns say {key}, partition {partition}, its description {told}, partition {spec.partition}",
        )
    return spec, None


def _text(stored: str) -> str:
    return storable(stored) or ""


def run_state(stored: str) -> tuple[RunState, str | None]:
    """A stored state, and what is wrong with it.

    One that is none counts as a state of a run that has not ended: nothing begins beside it unasked.
    """
    try:
        return RunState(stored), None
    except ValueError:
        return RunState.RUNNING, f"its state is {_text(stored)!r}, which this version of airflow_logio does not know"


def marked(run: Run, cause: str | None, *, or_else: str = "use the version that has written it") -> Run:
    """The run, with this damage in words that name its row and what to do; itself if there is none, or is one already."""
    if cause is None or run.damage is not None:
        return run
    return replace(
        run,
        damage=f"run {run.spec.key}, uid {run.uid}, is damaged in the log (table {TABLE}, run_id {run.run_id}): {cause}. "
        f"Restore the log from a backup, or {or_else}. Other runs are as they were",
    )


def check_whole(run: Run) -> Run:
    """The run. Raises `LogInconsistent`, which says what to do, if its row is damaged."""
    if run.damage is not None:
        raise LogInconsistent(run.damage)
    return run
