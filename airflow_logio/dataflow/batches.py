"""Many Input Sets in one table, and back (mode ``executors``, design D7).

A batch is thousands of small tables; all work here is per column or per Input Set, none of it per record in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow.event_stream import uniform
from airflow_logio.errors import OperatorFailed

INSET_ID = "inset_id"
"""The column that says which Input Set of the batch a record belongs to; its type is int64, counted from 0."""


def tagged(held: Sequence[Sequence[pa.Table]], tags: Mapping[str, pa.Array] | None = None) -> pa.Table:
    """All records of the Input Sets, in order, with column ``inset_id`` and one column per tag put in front.

    `held` has the tables of each Input Set, `tags` one value per Input Set. The result has one chunk per column.
    Raises OperatorFailed if the records already have a column of such a name; ValueError if there is no table at all.
    """
    tables = [table for part in held for table in part]
    if not tables:
        raise ValueError("a batch needs at least one Input Set with a table")
    records = pa.concat_tables(tables).combine_chunks()
    counts = [sum(table.num_rows for table in part) for part in held]
    ordinals = np.repeat(np.arange(len(held), dtype=np.int64), counts)
    front = {INSET_ID: pa.array(ordinals)} | {name: tag.take(pa.array(ordinals)) for name, tag in (tags or {}).items()}
    check_free(front, records.column_names)
    return pa.table(front | dict(zip(records.column_names, records.columns, strict=True)))


def check_free(tags: Iterable[str], names: Iterable[str]) -> None:
    """Raises OperatorFailed if the records already have a column of the name of a tag, which Spark reads in any case."""
    taken = {name.lower(): name for name in names}
    for tag in tags:
        if tag in taken:
            raise OperatorFailed(
                f"the records have a column {taken[tag]!r}, which the batch needs for itself: rename it"
            )


def split(result: pa.Table, count: int) -> list[pa.Table | None]:
    """The rows of each of the `count` Input Sets, without column ``inset_id``; None where there are none.

    Rows are ordered by all columns, in their order, so that two runs of one job give equal tables although Spark
    returns rows in any order (columns of nested types cannot be compared and do not take part); times are `uniform`,
    although Spark returns them in the zone of its session. Slices share memory.
    Raises OperatorFailed if ``inset_id`` is missing, null, no integer or out of range.
    """
    _check_ordinals(result, count)
    names = [name for name in result.column_names if name != INSET_ID]
    keys = [name for name in names if not pa.types.is_nested(result.schema.field(name).type)]
    ordered = uniform(result).combine_chunks()
    ordered = ordered.take(_order(ordered, [INSET_ID, *keys])).combine_chunks()
    ordinals = ordered.column(INSET_ID).to_numpy()
    bounds = np.searchsorted(ordinals, np.arange(count + 1)).tolist()
    rows = ordered.select(names)
    return [rows.slice(begin, end - begin) if end > begin else None for begin, end in pairwise(bounds)]


def _order(table: pa.Table, keys: Sequence[str]) -> pa.Array:
    return pc.sort_indices(table, sort_keys=[(key, "ascending") for key in keys])


def check_kept(names: Sequence[str]) -> None:
    """Raises OperatorFailed if the columns of a result are without ``inset_id``."""
    if INSET_ID not in names:
        raise OperatorFailed(
            f"the result of the Spark function has columns {list(names)}, but not {INSET_ID!r}: keep it "
            f"(group by it), it says which Input Set a row belongs to"
        )


def _check_ordinals(result: pa.Table, count: int) -> None:
    check_kept(result.column_names)
    column = result.column(INSET_ID)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise OperatorFailed(
            f"column {INSET_ID!r} of the Spark function's result is {column.type} with {column.null_count} nulls; "
            "it must be passed on unchanged"
        )
    if result.num_rows:
        low, high = pc.min_max(column).as_py().values()
        if low < 0 or high >= count:
            raise OperatorFailed(
                f"column {INSET_ID!r} of the Spark function's result goes from {low} to {high}, but the batch has "
                f"{count} Input Sets, counted from 0; it must be passed on unchanged"
            )
