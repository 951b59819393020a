"""Whether files follow each other in the order of a column, as their footers say (ADR-85)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from airflow_logio.dataflow.names import did_you_mean
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.errors import OperatorFailed
from airflow_logio.systems.payloads.dataset import metadata_of
from airflow_logio.systems.payloads.manifests import DataFile

ORDERED_TYPES = ("timestamp", "timestamp_ntz", "date", "long", "integer", "short", "byte")
"""Types of columns, as Spark names them, that footers have as whole numbers: they are compared as these."""
_PHYSICAL = ("INT32", "INT64")

Bounds = tuple[int, int]
"""The least and the largest value."""


def check_order_column(frame: SparkFrame, column: str) -> None:
    """Raises `OperatorFailed` if a DataFrame cannot be ordered by a column, as far as its schema says."""
    types = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    if column not in types:
        raise OperatorFailed(
            f"ordered_by names {column!r}; the DataFrame has the columns {', '.join(types)}.{did_you_mean(column, types)}"
        )
    if types[column] not in ORDERED_TYPES:
        raise OperatorFailed(
            f"ordered_by names {column!r}, which is {types[column]}: make it a timestamp, a date or a whole number"
        )


def in_proven_order(root: str, files: Iterable[DataFile], column: str) -> list[DataFile]:
    """The files in the order of `column`. Raises `OperatorFailed` for nulls, and if files overlap in more than a bound.

    If there is an order in which no file begins before the one before it ends, it is that of their bounds.
    """
    found = sorted((_bounds(os.path.join(root, file.path), column), file.path, file) for file in files)
    _check_follow([bounds for bounds, _, _ in found], column, "files")
    return [file for _, _, file in found]


def _bounds(path: str, column: str) -> Bounds:
    """Of one file, whose row groups are in order."""
    metadata = metadata_of(path, "a stored DataFrame")
    (place,) = (number for number in range(metadata.num_columns) if metadata.schema.column(number).path == column)
    groups = [metadata.row_group(number).column(place).statistics for number in range(metadata.num_row_groups)]
    if nulls := sum(group.null_count for group in groups if group is not None and group.has_null_count):
        raise OperatorFailed(
            f"column {column!r}, by which the source is ordered, is null in {nulls:,} records of one file alone: fill it, or "
            f'leave these records out, as in .where("{column} IS NOT NULL")'
        )
    bounds = [_bounds_of(group, column) for group in groups]
    _check_follow(bounds, column, "parts of a file")
    return bounds[0][0], bounds[-1][1]


def _bounds_of(statistics: Any, column: str) -> Bounds:
    known = statistics is not None and statistics.has_null_count and statistics.has_min_max
    if not known or statistics.physical_type not in _PHYSICAL:
        raise OperatorFailed(
            f"a file does not say between which values its column {column!r} is, so that its order cannot be proved"
        )
    return statistics.min_raw, statistics.max_raw


def _check_follow(bounds: Sequence[Bounds], column: str, what: str) -> None:
    for (_, last), (first, _) in pairwise(bounds):
        if first < last:
            raise OperatorFailed(
                f"{what} are not in the order of column {column!r}, by which Spark was to sort: one ends at {last}, the next "
                f"begins at {first}. The read is repeated; if this comes again, leave out ordered_by, and sort in `read`"
            )
