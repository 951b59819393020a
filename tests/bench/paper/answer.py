"""What must come out of a run, by arithmetic: event n of OP1 adds n and n squared, and each row says what it has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.bench.paper.scaled import OP3_WINDOW, Scaled
from tests.bench.paper.series import Shape

Row = tuple[int, int, int, int, int]
"""Batch, events, the first number (from 0), sum, sum of squares."""


def flaw(scaled: Scaled, rows: Sequence[Row]) -> str:
    """What is wrong with the rows that were written; "" if they are those of a run without failures."""
    ordered = scaled.shape in (Shape.LINEAR, Shape.SYNCHRONIZED)
    wanted, found = _expected(scaled) if ordered else _whole(scaled), sorted(rows) if ordered else _summed(rows)
    return "" if found == wanted else f"rows are {found}, not {wanted}"


def _row(batch: int, events: int, numbers: Iterable[int]) -> Row:
    every = list(numbers)
    return batch, events, min(every), sum(n + 1 for n in every), sum((n + 1) ** 2 for n in every)


def _expected(scaled: Scaled) -> list[Row]:
    """Where the order of events decides nothing: each row."""
    rows = []
    for batch in range(scaled.end):
        paired = OP3_WINDOW * scaled.trigger
        numbers = [*range(batch * paired, (batch + 1) * paired)]
        numbers += range(batch * scaled.op2_trigger, (batch + 1) * scaled.op2_trigger)
        rows.append(_row(batch + 1, scaled.trigger + scaled.op2_trigger, numbers))
    return rows


def _whole(scaled: Scaled) -> list[Row]:
    """Where events of two paths come in any order: what all rows have together, and that each has as many events."""
    paths = 2 if scaled.shape == Shape.UNSYNCHRONIZED else 1
    whole = _row(scaled.end, scaled.end * scaled.trigger, range(scaled.events))
    return [(*whole[:3], paths * whole[3], paths * whole[4])]


def _summed(rows: Sequence[Row]) -> list[Row]:
    if len({row[1] for row in rows}) > 1 or [row[0] for row in sorted(rows)] != [*range(1, len(rows) + 1)]:
        return sorted(rows)
    batch, events, first, total, squares = zip(*rows, strict=True)
    return [(len(batch), sum(events), min(first), sum(total), sum(squares))]
