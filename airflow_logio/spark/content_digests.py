"""Whether two DataFrames have the same records, whatever their order: compared by what one row says of each.

Sums of floating-point numbers differ in their last digits with the order of records, and so do lists that a shuffle has
collected in their order: neither makes records different here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from airflow_logio.dataflow.operators import SparkFrame

CLOSE = 1e-9
"""Two sums of floating-point numbers are the same if they differ by no more than this, relative to the sum of amounts."""
_WEIGHTS = 1021
"""A number is weighted by the other columns of its record, so that numbers which have changed places make another sum."""
_FLOATS = ("float", "double")
_UNHASHED = ("variant", "geometry", "geography", "void")


def have_same_records(one: SparkFrame | None, other: SparkFrame | None) -> bool:
    """Runs a job for each; None is a DataFrame without records."""
    found = [None if frame is None else _digest(frame) for frame in (one, other)]
    if None in found:
        return all(digest is None or digest["records"] == 0 for digest in found)
    first, second = found
    assert first is not None and second is not None
    return first.keys() == second.keys() and all(_are_close(name, first, second) for name in first)


def _are_close(name: str, one: dict[str, Any], other: dict[str, Any]) -> bool:
    if not name.startswith("sum ") or one[name] is None or other[name] is None:
        return name.startswith("amount ") or bool(one[name] == other[name])
    amount = name.replace("sum ", "amount ", 1)
    return math.isclose(one[name], other[name], rel_tol=0.0, abs_tol=CLOSE * (one[amount] + other[amount]))


def _digest(frame: SparkFrame) -> dict[str, Any]:
    from pyspark.sql import functions as F

    exact: list[Any] = []
    numbers: list[Any] = []
    for field in frame.schema.fields:
        column = F.col("`{}`".format(field.name.replace("`", "``")))
        for is_number, part in _parts(column, field.dataType):
            (numbers if is_number else exact).append(part)
    hashed = F.xxhash64(*exact) if exact else F.lit(0).cast("long")
    row = frame.select(hashed.alias("h"), *(number.cast("double").alias(f"n{at}") for at, number in enumerate(numbers)))
    told = [
        F.count(F.lit(1)).alias("records"),
        F.sum(F.col("h").cast("decimal(38,0)")).alias("hashes"),
        F.bit_xor("h").alias("xor"),
    ]
    weight = F.pmod(F.col("h"), F.lit(_WEIGHTS)) + 1
    for at in range(len(numbers)):
        number = F.col(f"n{at}")
        is_finite = ~F.isnan(number) & (F.abs(number) != F.lit(math.inf))
        finite = F.when(is_finite, number * weight)
        told += [
            F.sum(finite).alias(f"sum {at}"),
            F.sum(F.abs(finite)).alias(f"amount {at}"),
            F.count_if(number.isNull()).alias(f"nulls {at}"),
            F.count_if(F.isnan(number)).alias(f"nan {at}"),
            F.count_if(number == F.lit(math.inf)).alias(f"above {at}"),
            F.count_if(number == F.lit(-math.inf)).alias(f"below {at}"),
        ]
    (found,) = row.agg(*told).toArrow().to_pylist()
    return dict(found)


def _parts(column: Any, kind: Any) -> Iterator[tuple[bool, Any]]:
    """What is compared of a column: numbers that may differ in their last digits (True), and values that are hashed."""
    from pyspark.sql import functions as F

    name = kind.typeName()
    if name in _FLOATS:
        yield True, column
        return
    if name == "struct":
        yield False, column.isNull()
        for field in kind.fields:
            yield from _parts(column.getField(field.name), field.dataType)
        return
    inner = str(kind.json())
    if any(f'"{unhashed}"' in inner for unhashed in _UNHASHED):
        yield False, column.isNull()
    elif name not in ("array", "map"):
        yield False, column
    elif any(f'"{number}"' in inner for number in _FLOATS) or inner.count('"map"') > (name == "map"):  # no order
        yield False, F.size(column)
    else:
        yield False, F.sort_array(column if name == "array" else F.map_entries(column))
