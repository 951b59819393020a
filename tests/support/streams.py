"""Server-sent events of the page, as a client takes them apart, and the ends of searches that send them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from airflow_logio.ui.searches import WatchedSearch


def events(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """(name, data) of each event, as soon as its lines are there."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
        else:
            assert not line, line


def ends(patch: pytest.MonkeyPatch) -> list[WatchedSearch]:
    """The searches that have been told to end, from now on: a client has gone, or got its answer."""
    stop, told = WatchedSearch.stop, []

    def noted(one: WatchedSearch) -> None:
        stop(one)
        told.append(one)

    patch.setattr(WatchedSearch, "stop", noted)
    return told
