"""What a replay operator makes is generated twice now and then; what differs is refused before it is sent.

What a driver makes again takes a bounded share of its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.driver.logics.replay_check import ReplayLogic, size
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.logic import Emit, Output
from airflow_logio.protocol.replay import MADE_BYTES
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.systems.arrow import decode, encode
from tests.simulator.plain_operators import PlainLogic

MOST_SETS = 20_000


class Numbered(PlainLogic):
    """From a certain Output Set on, its results have a number of their own."""

    def __init__(self, first: int) -> None:
        self._first, self._calls = first, count(1)

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        call = next(self._calls)
        return (Emit("out", pa.table({"value": [call if int(inset_id) >= self._first else 0]}), 1),)


def test_some_output_sets_are_generated_twice_and_ever_fewer() -> None:
    numbered = Numbered(100)
    logic = ReplayLogic("op", numbered)
    for inset in range(1, 17):
        (output,) = logic.generate(str(inset), None, {})
        assert isinstance(output, Emit) and output.payload["value"].to_pylist() == [0]
    assert next(numbered._calls) == 16 + 5 + 1, "at 1, 2, 4, 8, 16"


def test_a_difference_in_the_first_one_is_an_error_of_the_code() -> None:
    with pytest.raises(
        OperatorFailed, match=r"'op', Input Set '1': it was generated twice, and the results differ"
    ) as one:
        list(ReplayLogic("op", Numbered(1)).generate("1", None, {}))
    assert one.value.is_first
    assert one.value.at is not None and one.value.at.inset_id == "1"


def test_a_difference_later_on_is_seen_at_the_next_look() -> None:
    logic = ReplayLogic("op", Numbered(3))
    for inset in ("1", "2", "3"):
        list(logic.generate(inset, None, {}))
    with pytest.raises(OperatorFailed) as refused:
        list(logic.generate("4", None, {}))
    assert not refused.value.is_first


class Seen(PlainLogic):
    """Gives back how the table that it gets lies in memory, and a table in several chunks with metadata."""

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        return event.payload

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        chunks = [column.num_chunks for column in held.columns]
        table = pa.table({"chunks": pa.chunked_array([[chunk] for chunk in chunks])}, metadata={"of": "pandas"})
        yield Emit("out", table, table.num_rows)


def test_it_gets_and_gives_what_would_be_read_from_the_log() -> None:
    """What an operator in the same group hands over may lie otherwise in memory, and sums of it differ in the last bit."""
    handed = pa.table(
        {"a": pa.chunked_array([[1.0], [2.0, 3.0]]), "b": pa.chunked_array([[1, 2, 3]])}, metadata={"x": "y"}
    )
    read = decode("a body", encode(handed))
    logic = ReplayLogic("op", Seen())
    outputs = []
    for table in (handed, read):
        part = logic.part("in", Event(Port("before", "out"), 1, Kind.DATA, 3, table), "1")
        assert part.schema.metadata is None
        (output,) = logic.generate("1", part, {})
        assert isinstance(output, Emit)
        outputs.append(output.payload)
    assert outputs[0]["chunks"].to_pylist() == outputs[1]["chunks"].to_pylist() == [1, 1]
    assert outputs[0]["chunks"].num_chunks == 1 and outputs[0].schema.metadata is None


class Stateful(PlainLogic):
    def __init__(self, look: Callable[[Mapping[str, Any]], Any]) -> None:
        self._look = look

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        yield Emit("out", pa.table({"n": [self._look(state)]}), 1)


@pytest.mark.parametrize("look", [lambda state: state["n"], lambda state: state.get("n"), len, list, dict])
def test_a_generation_that_looks_at_the_state_is_refused(look: Callable[[Mapping[str, Any]], Any]) -> None:
    with pytest.raises(OperatorFailed, match="replay operator 'op': its generation looks at the global state"):
        list(ReplayLogic("op", Stateful(look)).generate("1", None, {"n": 1}))


@pytest.mark.parametrize("records", [0, 1])
def test_tables_of_next_to_nothing_take_what_a_table_takes(records: int) -> None:
    """A million of them, with no records at all, would be gigabytes."""
    table = pa.table({"a": pa.array(range(records), pa.int64())})
    assert MADE_BYTES / MOST_SETS < size(table) < 10_000


def test_a_slice_takes_what_it_was_cut_from() -> None:
    whole = pa.table({"a": pa.array(range(100_000), pa.int64())})
    assert size(whole.slice(5, 1)) >= 800_000
