"""Sizes as an author writes them: ``"256 MB"``, ``"1.5 GiB"``, or a number of bytes."""

from __future__ import annotations

import re

from airflow_logio.errors import PipelineDefinitionError

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
