"""Parsing of ``key=value`` options."""

from __future__ import annotations

from collections.abc import Sequence

import typer


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """``["a=1", "b=2"]`` as a mapping; a usage error for anything else."""
    result: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{text!r} is not of the form name=value", param_hint=option)
        if name in result:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
        result[name] = value
    return result
