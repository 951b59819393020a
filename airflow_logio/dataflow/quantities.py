"""Durations (``"30s"``, ``"1h"``, ``"7d"``, ``"2w"``) and sizes (``"256 MB"``, ``"1.5 GiB"``) as an author writes them."""

from __future__ import annotations

import re

from airflow_logio.errors import PipelineDefinitionError

_DURATION = re.compile(r"([1-9][0-9]{0,8})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
DAY = _SECONDS["d"]
_FIRST_MONDAY = 4 * DAY
"""1970-01-05."""


def retention_seconds(text: object) -> float:
    """A period in seconds. Raises PipelineDefinitionError."""
    return period_seconds("retention", text, "'30m', '12h', '7d' or '2w'")


def period_seconds(what: str, text: object, examples: str) -> float:
    """A period in seconds. Raises PipelineDefinitionError, beginning with `what`."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise PipelineDefinitionError(f"{what} {text!r} is not understood: write {examples}")
    return float(int(match[1]) * _SECONDS[match[2]])


LEAST_KEPT = _SECONDS["h"]
"""The tasks behind the end of a run, and those of other DAGs that wait for it, still ask the log about it."""


def kept_seconds(text: object) -> float:
    """How long ended runs stay, in seconds. Raises PipelineDefinitionError."""
    seconds = period_seconds("keep_runs", text, "'90d', '12h' or '26w'")
    if seconds < LEAST_KEPT:
        raise PipelineDefinitionError(
            f"keep_runs is {text!r}: give at least '1h', as tasks behind a run still ask about it"
        )
    return seconds


def period_text(seconds: float) -> str:
    """As an author writes a period of so many whole seconds, in its largest unit: ``90d``."""
    unit = next(unit for unit in ("d", "h", "m", "s") if seconds % _SECONDS[unit] == 0)
    return f"{int(seconds) // _SECONDS[unit]}{unit}"


def window_seconds(text: object) -> int:
    """Length of a window in seconds.

    It must divide a day or be whole days, so that windows begin at the same times every day; windows of several days
    are counted from 1970-01-01, weeks from the Monday after it (`window_origin`). Raises PipelineDefinitionError.
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise PipelineDefinitionError(
            f"window length {text!r} is not understood: write '30s', '15m', '1h', '1d' or '1w'"
        )
    seconds = int(match[1]) * _SECONDS[match[2]]
    if DAY % seconds and seconds % DAY:
        raise PipelineDefinitionError(
            f"window length {text!r} neither divides a day nor is a number of whole days, so that windows would begin "
            "at other times every day"
        )
    return seconds


def window_origin(text: str) -> int:
    """Where a window begins, in seconds since the epoch: a length in weeks begins on a Monday, any other at 1970-01-01."""
    return _FIRST_MONDAY if text.endswith("w") else 0


_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*([kKMGT]i?B|B)")
_FACTORS: dict[str, int] = {"B": 1} | {
    f"{letter}{binary}B": (1024 if binary else 1000) ** power
    for power, letters in enumerate(("kK", "M", "G", "T"), start=1)
    for letter in letters
    for binary in ("", "i")
}
LEAST_BYTES = 1_000


def byte_size(what: str, value: object) -> int:
    """A size in bytes, at least `LEAST_BYTES`. Raises PipelineDefinitionError, beginning with `what`."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None:
        size = int(float(match[1]) * _FACTORS[match[2]])
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        raise PipelineDefinitionError(
            f"{what} is {value!r}; write '256 MB' (a million bytes each), '256 MiB', or a number of bytes"
        )
    if size < LEAST_BYTES:
        raise PipelineDefinitionError(f"{what} is {value!r}; give at least {LEAST_BYTES:,} bytes")
    return size
