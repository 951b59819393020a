"""Markers of runs that were removed from their log: one row stands for all of them, and their drivers stay shut out."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import pytest

from airflow_logio.errors import Fenced, WriteRefused
from airflow_logio.systems.warehouse import Warehouse
from tests.support.appending import LOG, MARKERS, append, marker, rows
from tests.support.faults import STANDS_SECONDS, Pause, place


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def warehouse(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Warehouse]:
    is_sqlite = request.param == "sqlite"
    opened = Warehouse("wh", f"sqlite:///{tmp_path}/wh.db" if is_sqlite else request.getfixturevalue("postgres_url"))
    yield opened
    opened.close()


def test_one_row_takes_their_place(warehouse: Warehouse) -> None:
    assert warehouse.removed_up_to(LOG, "clicks") is None, "nothing has written there"
    for ordinal in (1, 2, 3):
        append(warehouse, marker(ordinal))
    append(warehouse, marker(1, pipeline="other"))
    assert warehouse.removed_up_to(LOG, "clicks") == 0
    assert warehouse.remove_markers(LOG, "clicks", 2, ["clicks1", "clicks2"]) == 2
    assert warehouse.removed_up_to(LOG, "clicks") == 2
    assert rows(warehouse, MARKERS) == ["clicks3", "other1"]
    assert warehouse.remove_markers(LOG, "clicks", 1, ["clicks1"]) == 0
    assert warehouse.removed_up_to(LOG, "clicks") == 2, "it never falls"
    assert warehouse.removed_up_to(LOG, "other") == 0


@pytest.mark.parametrize("token", [1, 2**40])
def test_a_driver_of_a_removed_run_that_comes_back_appends_nothing(warehouse: Warehouse, token: int) -> None:
    """It was stopped before its transaction; a successor has done its work, and the run was removed. Without a marker, all
    that it has in hand would look as if it was still to be applied."""
    append(warehouse, marker(1, token=2))
    with pytest.raises(Fenced):
        append(warehouse, marker(1, token=1))
    warehouse.remove_markers(LOG, "clicks", 1, ["clicks1"])
    with pytest.raises(WriteRefused, match=r"run clicks1, number 1 of its pipeline, was removed.*--above 1"):
        append(warehouse, marker(1, token=token))
    assert rows(warehouse) == [1]
    assert rows(warehouse, MARKERS) == [], "what it tried is rolled back"


def test_others_begin_as_ever(warehouse: Warehouse) -> None:
    """Younger runs, those of other pipelines and of other logs, and writers that an earlier version has described."""
    append(warehouse, marker(5))
    warehouse.remove_markers(LOG, "clicks", 5, ["clicks5"])
    append(warehouse, marker(6))
    append(warehouse, marker(4, pipeline="other"))
    append(warehouse, replace(marker(3, log=LOG[::-1]), run_uid="another log's"))
    append(warehouse, replace(marker(2), run_uid="earlier version", line=None))
    assert rows(warehouse) == [0, 3, 4, 5, 6]


@pytest.mark.postgres
@pytest.mark.parametrize("slow", ["the removal", "the driver"])
def test_wherever_one_stands_the_other_lets_nothing_twice(postgres_url: str, slow: str) -> None:
    """A driver that was stopped for months, and the removal of its marker, at each of the other's statements."""
    first, second = Warehouse("wh", postgres_url), Warehouse("wh", postgres_url)
    append(second, marker(1, pipeline="warm"))
    begin = 0 if slow == "the removal" else 2  # what is refused does not commit
    index, reached = begin, True
    while reached:
        name, pause = f"p{index}", Pause()
        append(first, marker(1, token=2, pipeline=name))

        def remove(name: str = name) -> object:
            return (first if slow == "the removal" else second).remove_markers(LOG, name, 1, [f"{name}1"])

        def come_back(name: str = name) -> None:
            append(second if slow == "the removal" else first, marker(1, token=1, pipeline=name))

        where, standing = place(first, index, pause)
        with ThreadPoolExecutor(2) as pool, standing:
            one = pool.submit(remove if slow == "the removal" else come_back)
            reached = pause.is_reached_before(one)
            other = pool.submit(come_back if slow == "the removal" else remove)
            wait([other], STANDS_SECONDS)
            pause.release()
            removed, back = (one, other) if slow == "the removal" else (other, one)
            assert removed.result(90) == 1, where
            assert isinstance(back.exception(90), Fenced | WriteRefused), where
        assert rows(first) == [1] * (index - begin + 2), f"{slow} stood {where}"
        index += 1
    assert index > 4, "there are more statements than that"
    first.close()
    second.close()
