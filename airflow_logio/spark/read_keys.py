"""The keys of declared reads of mode ``dataframe``: distinct values of a column of the Input Sets of a job (ADR-94)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import pyarrow as pa

from airflow_logio.dataflow.event_stream import uniform
from airflow_logio.dataflow.function_operators import keys_of, no_key
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.dataflow.reads import DeclaredRead
from airflow_logio.errors import OperatorFailed

MOST_ASKED = 50_000
"""Keys with which the driver asks, before it knows whether the answer is small."""
MOST_IN_DRIVER = 1_000_000
"""Keys that a driver takes, where nobody else can ask."""


def distinct_keys(frames: Mapping[str, SparkFrame], read: DeclaredRead) -> SparkFrame:
    """The distinct keys of Input Sets as a lazy DataFrame of one column, without nulls; `frames` has those of each port.

    Raises `OperatorFailed` if no port has the column, or if ports have it in different types.
    """
    key = str(read.key)
    having = {port: frame for port, frame in frames.items() if key in frame.columns}
    if not having:
        raise no_key(read)
    kinds = {port: frame.schema[key].dataType.simpleString() for port, frame in having.items()}
    if len(set(kinds.values())) > 1:
        found = ", ".join(f"{kind} on port {port!r}" for port, kind in kinds.items())
        raise OperatorFailed(
            f"the read of {read} is restricted by {key!r}, which is {found}: cast it to one type before"
        )
    columns = [frame.select(frame[f"`{key}`"].alias(key)) for frame in having.values()]
    column = reduce(lambda some, more: some.unionByName(more), columns)
    return column.where(column[f"`{key}`"].isNotNull()).distinct()


def asked_keys(keys: SparkFrame, read: DeclaredRead, most: int) -> pa.Array | None:
    """The keys, sorted; None if there are more than `most`. One job, which returns no more than that.

    They are of the types that records have in the other modes.
    """
    few = uniform(keys.limit(most + 1).toArrow())
    return None if few.num_rows > most else keys_of(few, read)


def too_many(read: DeclaredRead, most: int) -> OperatorFailed:
    """A job that is halved has fewer."""
    return OperatorFailed(
        f"the read of {read} is restricted by {read.key!r}, which has more than {most:,} distinct values in one "
        "Input Set: the driver would have to ask for each of them. Make smaller Input Sets, read without a key, or keep the "
        "table in PostgreSQL, where executors ask"
    )
