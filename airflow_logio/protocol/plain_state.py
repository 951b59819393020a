"""Which states come back from the log as they were stored: equal, and of equal types.

msgpack knows fewer types than Python, and silently changes those that it does not know: tuples and sets come back as
lists, a date as text, a `defaultdict` without its default. The operator would behave differently, but only after a recovery.
So such a state is refused when it is first stored. The contents of containers are checked by type, in C; values are not.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from enum import Enum
from itertools import chain
from typing import Any

KEPT = (
    "A state holds text, bytes, numbers of 64 bits, booleans, None, datetimes in UTC, lists, and dicts with text keys"
)
MAX_DEPTH = 100

_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})
_CONTAINERS = frozenset({dict, list})
_PLAIN = _SCALARS | _CONTAINERS | {dt.datetime}
_TEXT = frozenset({str})

_INSTEAD: tuple[tuple[tuple[type, ...], str], ...] = (
    ((Enum,), "keep its value"),
    ((tuple, list), "keep a list"),
    ((set, frozenset), "keep a sorted list"),
    ((dict,), "keep a dict, made by dict(...)"),
    ((dt.datetime,), "keep it in datetime.UTC, or its isoformat()"),
    ((dt.date, dt.time), "keep its isoformat()"),
    ((dt.timedelta,), "keep a number of microseconds"),
    ((bytearray, memoryview), "keep bytes"),
    ((Decimal,), "keep its text"),
    ((bool, int), "keep an int"),
    ((float,), "keep a float"),
    ((str,), "keep a str"),
)
"""Types, including subclasses → what to keep instead; the first match counts."""


def is_plain(state: Any) -> bool:
    """Whether the state consists of types that come back unchanged. Does not check for numbers and text that do not fit.

    Goes level by level, so that no container costs a call. Looks at each container of a level once.
    """
    level: list[Any] = [state]
    for _ in range(MAX_DEPTH + 2):
        kinds = set(map(type, level))
        if not kinds <= _PLAIN:
            return False
        if dt.datetime in kinds and any(type(one) is dt.datetime and one.tzinfo is not dt.UTC for one in level):
            return False
        if kinds <= _SCALARS:
            return True
        held = {id(one): one for one in level if type(one) in _CONTAINERS}.values()
        dicts = [one for one in held if type(one) is dict]
        if not _TEXT.issuperset(map(type, chain.from_iterable(dicts))):
            return False
        level = list(chain.from_iterable(map(dict.values, dicts)))
        level.extend(chain.from_iterable(one for one in held if type(one) is list))
    return False


def fault(value: Any, path: str = "state", depth: int = MAX_DEPTH) -> str | None:
    """The first value in the state that does not come back unchanged: where it is, what it is, and what to keep instead."""
    if depth < 0:
        return f"it is nested more than {MAX_DEPTH} levels deep, or holds itself"
    kind = type(value)
    if kind is dict:
        for key in value:
            if type(key) is not str:
                return f"{path} has the key {_shown(key)} of type {type(key).__name__}: keep keys as text"
            if (found := fault(key, f"a key of {path}", depth)) is not None:
                return found
        inside: Iterable[tuple[Any, Any]] = value.items()
    elif kind is list:
        inside = enumerate(value)
    else:
        return _fault_of_one(value, path)
    found_inside = (fault(one, f"{path}[{key!r}]", depth - 1) for key, one in inside)
    return next((found for found in found_inside if found is not None), None)


def _fault_of_one(value: Any, path: str) -> str | None:
    kind = type(value)
    if kind is int and not -(1 << 63) <= value < 1 << 64:
        return f"{path} is a number of {value.bit_length()} bits: keep its text"
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"{path} is a text with half a surrogate pair, {_shown(value)}"
    if is_plain(value):
        return None
    instead = next((words for types, words in _INSTEAD if isinstance(value, types)), "keep what it is made of")
    return f"{path} is {_shown(value)} of type {kind.__name__}, which would not come back as that: {instead}"


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
