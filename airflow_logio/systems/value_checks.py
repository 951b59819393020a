"""What a column changes without a word in some values only: such a value is refused, the others go in.

A check takes converted values and raises ValueError, or an error of Arrow, for one that would be changed.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

Check = Callable[[pa.ChunkedArray], None]

MICROSECONDS = 6
"""Digits of a second."""
BYTES_OF_A_NAME = 63

_SQLITE_BLANKS = r"[\t\n\v\f\r ]*"
_A_NUMBER = rf"\A{_SQLITE_BLANKS}[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?{_SQLITE_BLANKS}\z"


def nothing(_: pa.ChunkedArray) -> None:
    """Every value is kept."""


def no_nan(values: pa.ChunkedArray) -> None:
    if pa.types.is_floating(values.type) and _any(pc.is_nan(values)):
        raise ValueError("NaN, which SQLite would turn into NULL; fill it before the writer")


def no_number(found: str) -> Check:
    """A text that SQLite would take for a number."""

    def check(values: pa.ChunkedArray) -> None:
        if _any(pc.match_substring_regex(values, _A_NUMBER)):
            raise ValueError(f"a text that looks like a number, which a column of type {found} turns into one")

    return check


def at_most(length: int) -> Check:
    """Blanks behind the last character that there is room for are cut."""

    def check(values: pa.ChunkedArray) -> None:
        if _any(pc.greater(pc.utf8_length(values), length)):
            raise ValueError(f"a text of more than {length} characters")

    return check


def exactly(length: int) -> Check:
    """What is shorter is filled with blanks."""

    def check(values: pa.ChunkedArray) -> None:
        if _any(pc.not_equal(pc.utf8_length(values), length)):
            raise ValueError(f"a text that has not {length} characters, as character({length}) wants it; use varchar")

    return check


def bytes_at_most(length: int) -> Check:
    def check(values: pa.ChunkedArray) -> None:
        if _any(pc.greater(pc.binary_length(values), length)):
            raise ValueError(f"a text of more than {length} bytes, which would be cut")

    return check


def single_precision(values: pa.ChunkedArray) -> None:
    rounded = values.cast(pa.float32(), safe=False).cast(values.type)
    if _any(pc.and_(pc.not_equal(rounded, values), pc.invert(pc.is_nan(values)))):
        raise ValueError("a double that a real would round")


def second_digits(digits: int) -> Check:
    """For timestamps, times and durations."""

    def check(values: pa.ChunkedArray) -> None:
        step = 10 ** (MICROSECONDS - digits)
        numbers = values.cast(_in_microseconds(values.type)).cast(pa.int64())
        if _any(pc.not_equal(pc.multiply(pc.divide(numbers, step), step), numbers)):
            raise ValueError(f"a time with more than {digits} digits of a second, which would be rounded")

    return check


def multiples_of(step: int) -> Check:
    """For whole numbers."""

    def check(values: pa.ChunkedArray) -> None:
        if any(value is not None and value % step for value in values.to_pylist()):
            raise ValueError(f"a number that is no multiple of {step:,}, to which it would be rounded")

    return check


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_time(kind):
        return pa.time64("us")
    return pa.duration("us") if pa.types.is_duration(kind) else pa.timestamp("us", getattr(kind, "tz", None))


def _any(found: pa.ChunkedArray) -> bool:
    return bool(pc.any(found).as_py())
