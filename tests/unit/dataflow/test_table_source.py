"""What a `TableSource` refuses, and how it goes from range to range, on a column of a test's own making."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_logio import Pipeline, TableSource
from airflow_logio.dataflow.sources.connected import Settled
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError, SourceChanged


class Table:
    """A connection, a column of it, and its numbers. `settled` answers None `slow` times."""

    def __init__(self, *numbers: int, slow: int = 0) -> None:
        self.numbers = list(numbers)
        self.slow = slow

    def rising(self, table: str, by: str, *, append_only: bool) -> Table:
        return self

    def settled(self, after: int | None) -> Settled | None:
        self.slow -= 1
        return None if self.slow >= 0 else Settled(max(self.numbers, default=None))

    def behind(self, after: int | None, until: int, rows: int) -> tuple[int, int] | None:
        wanted = sorted(one for one in self.numbers if one <= until and (after is None or one > after))[:rows]
        return (wanted[-1], len(wanted)) if wanted else None


def asked(table: Any, **how: Any) -> Any:
    return TableSource("wh", "t", rows_per_event=2, **{"append_only": True, **how}).connected(lambda _: table)


def ranges(source: Any, most: int = 20) -> list[tuple[Any, Any, int]]:
    """(behind, up to, rows) of the ranges that have come, in at most so many questions."""
    action: Any = TableSource("wh", "t", store=True).action({})
    found: list[tuple[Any, Any, int]] = []
    for _ in range(most):
        following = source.next_action({}, action)
        if following is None:
            return found
        if following["start"] != following["end"]:
            action = following
            found.append((action["start"]["after"], action["end"]["after"], action["end"]["rows"]))
    return [*found, ("waits", None, 0)]


def test_a_bounded_run_ends_at_what_is_there_when_it_is_known() -> None:
    table = Table(3, 5, 6, 9, 12, slow=4)
    assert ranges(asked(table)) == [(None, 5, 2), (5, 9, 2), (9, 12, 1)]
    assert ranges(asked(Table())) == []
    source = asked(table)
    first = source.next_action({}, {"start": None, "end": None})
    table.numbers += [13, 14]
    assert first["limit"] == 12
    again = asked(table)  # of a driver that recovers the run
    second = again.next_action({}, first)
    assert again.next_action({}, again.next_action({}, second)) is None


def test_an_unbounded_run_waits_for_more() -> None:
    table = Table()
    source = asked(table, unbounded=True)
    assert ranges(source, 3) == [("waits", None, 0)]
    table.numbers += [1, 2, 3]
    assert ranges(source, 5) == [(None, 2, 2), (2, 3, 1), ("waits", None, 0)]


def test_rows_that_have_gone_end_a_run_of_stored_ranges_and_park_others() -> None:
    for how, ends in (({"store": True, "append_only": False}, True), ({}, False)):
        table = Table(1, 2, 3)
        source = asked(table, **how)
        first = source.next_action({}, {"start": None, "end": None})
        table.numbers = [1, 2]
        if ends:
            assert source.next_action({}, first) is None
            continue
        with pytest.raises(SourceChanged, match=r"ends at id = 2, and it had 3 when the run began: rows were deleted"):
            source.next_action({}, first)


def test_what_a_definition_says() -> None:
    with pytest.raises(PipelineDefinitionError, match=r"needs append_only=True, your word .* or store=True"):
        TableSource("wh", "t")
    for wrong in ({"by": "a\n"}, {"rows_per_event": 0}, {"columns": "id"}):
        with pytest.raises(PipelineDefinitionError):
            TableSource("wh", "t", append_only=True, **wrong)
    source = TableSource("wh", "t", store=True)
    assert not source.replayable
    assert source.settings()["replayable"] is False
    assert source.action({}) == {"start": None, "end": None}, "no database is asked where a run is started"
    with pytest.raises(OperatorFailed, match="reads connection 'wh': ask what connected"):
        source.latest({}, None, None)
    made = Pipeline("p", connections=["other"])
    with pytest.raises(PipelineDefinitionError, match="uses connection 'wh', which the pipeline does not name"):
        made.source("raw", source)
        made.freeze()
