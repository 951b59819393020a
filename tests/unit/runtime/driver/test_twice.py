"""What a replay operator makes is generated twice now and then, and what differs is refused before it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.logic import Emit, Output
from airflow_logio.runtime.driver.logics.twice import Twice
from airflow_logio.testing.simulator.plain_operators import PlainLogic


class Numbered(PlainLogic):
    """From a certain Output Set on, its results have a number of their own."""

    def __init__(self, first: int) -> None:
        self._first, self._calls = first, count(1)

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        call = next(self._calls)
        return (Emit("out", pa.table({"value": [call if int(inset_id) >= self._first else 0]}), 1),)


def test_some_output_sets_are_generated_twice_and_ever_fewer() -> None:
    numbered = Numbered(100)
    logic = Twice("op", numbered)
    for inset in range(1, 17):
        (output,) = logic.generate(str(inset), None, {})
        assert isinstance(output, Emit) and output.payload["value"].to_pylist() == [0]
    assert next(numbered._calls) == 16 + 5 + 1, "at 1, 2, 4, 8, 16"


def test_a_difference_in_the_first_one_is_an_error_of_the_code() -> None:
    with pytest.raises(
        OperatorFailed, match=r"'op', Input Set '1': it was generated twice, and the results differ"
    ) as one:
        list(Twice("op", Numbered(1)).generate("1", None, {}))
    assert one.value.is_first
    assert one.value.at is not None and one.value.at.inset_id == "1"


def test_a_difference_later_on_is_seen_at_the_next_look() -> None:
    logic = Twice("op", Numbered(3))
    for inset in ("1", "2", "3"):
        list(logic.generate(inset, None, {}))
    with pytest.raises(OperatorFailed) as refused:
        list(logic.generate("4", None, {}))
    assert not refused.value.is_first
