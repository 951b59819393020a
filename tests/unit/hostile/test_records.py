"""Records an author did not think of: no rows, no columns, null keys, numbers at the edge, through windows and sums."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_logio.dataflow.functions.ready_made import Sums
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.windows import EveryEvents, Tumbling
from airflow_logio.errors import OperatorFailed, ProtocolViolation
from airflow_logio.protocol.ledger import Ledger
from airflow_logio.protocol.logic import OperatorSpec
from airflow_logio.protocol.operator import OperatorProtocol
from airflow_logio.protocol.values import MAX_NAME, Event, Port, unstorable
from tests.support.logics import CountWindow

BY_KEY = Sums(by=("k",), of=("v",))
I64 = st.integers(-(2**63), 2**63 - 1)


def sums(*tables: pa.Table) -> dict[str, Any]:
    held = None
    for table in tables:
        held = BY_KEY(held, table)
    assert held is not None
    result: dict[str, Any] = BY_KEY.finish(held).to_pydict()
    return result


def keyed(keys: list[str | None], values: list[int | None], kind: Any = None) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.string()), "v": pa.array(values, kind or pa.int64())})


def rows_of(values: st.SearchStrategy[int]) -> st.SearchStrategy[list[tuple[str | None, int | None]]]:
    return st.lists(st.tuples(st.none() | st.sampled_from(["a", "b", ""]), st.none() | values), max_size=12)


@given(parts=st.lists(rows_of(I64), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_sums_are_exact_or_refused(parts: list[list[tuple[str | None, int | None]]]) -> None:
    """Null keys are a group, null values add nothing; a sum of more than 64 bits does not start again at the other end."""
    expected: dict[str | None, int | None] = {}
    for key, value in (row for part in parts for row in part):
        before = expected.setdefault(key, None)
        if value is not None:
            expected[key] = (before or 0) + value
    tables = [keyed([key for key, _ in part], [value for _, value in part]) for part in parts]
    if any(value is not None and not -(2**63) <= value < 2**63 for value in expected.values()):
        with pytest.raises(OperatorFailed, match=r"sums of \['v'\] by \['k'\]"):
            sums(*tables)
    else:
        found = sums(*tables)
        assert dict(zip(found["k"], found["v"], strict=True)) == expected


@given(values=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_sums_of_unsigned_numbers_are_exact_or_refused(values: list[int]) -> None:
    table = keyed(["a"] * len(values), list(values), pa.uint64())
    if sum(values) >= 2**64:
        with pytest.raises(OperatorFailed):
            sums(table)
    else:
        assert sums(table) == {"k": ["a"], "v": [sum(values)]}


def test_sums_settled_on_the_way_are_exact_too() -> None:
    """More rows than are held unsummed, near the edge, so that sums of sums are made."""
    near = 2**62
    expected: defaultdict[str, int] = defaultdict(int)
    tables = []
    for number in range(5):
        value = near if number % 2 == 0 else -near
        tables.append(keyed(["a", *["b"] * 20_000], [value, *[number] * 20_000]))
        expected["a"] += value
        expected["b"] += number * 20_000
    assert sums(*tables) == {"k": ["a", "b"], "v": [expected["a"], expected["b"]]}


@pytest.mark.parametrize(
    "table",
    [
        pa.table({}),
        pa.table({"k": ["a"]}),
        pa.table({"k": ["a"], "v": ["x"]}),
        pa.table({"k": [{"x": 1}], "v": [1]}),
        pa.table([pa.array(["a"]), pa.array([1]), pa.array([2])], names=["k", "v", "v"]),
    ],
    ids=["no columns", "no values", "text", "nested keys", "a column twice"],
)
def test_sums_of_what_cannot_be_summed_are_refused(table: pa.Table) -> None:
    with pytest.raises(OperatorFailed, match=r"sums|column"):
        sums(table)


def test_sums_of_two_kinds_of_records_are_refused() -> None:
    with pytest.raises(OperatorFailed, match=r"sums of \['v'\]"):
        sums(keyed(["a"], [1]), pa.table({"k": ["a"], "v": [1.5]}))


@pytest.mark.parametrize(
    "table", [pa.table({}), keyed([], []), keyed([None], [None])], ids=["no columns", "no rows", "null"]
)
def test_a_count_window_takes_any_event(table: pa.Table) -> None:
    window = EveryEvents(2)
    state = window.initial_state()
    for number in (1, 2, 3):
        event = InputEvent("in", number, table)
        (inset,) = window.assign(event, state)
        assert window.part(event, inset) is table
    assert state == {"events": 3}
    assert window.triggered(state, ["1", "2"]) == ["1"]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (pa.table({}), "needs column 't'"),
        (pa.table({"T": pa.array([0], pa.timestamp("s"))}), "Did you mean 't'|needs column 't'"),
        (pa.table({"t": ["2020-01-01"]}), "which is string"),
        (pa.table({"t": [0]}), "which is int64"),
        (pa.table({"t": pa.array([0, None], pa.timestamp("s"))}), r"1 null\(s\) in event 5"),
        (pa.table({"t": pa.nulls(2)}), "which is null"),
        (pa.table([pa.array([0], pa.timestamp("s"))] * 2, names=["t", "t"]), "have 2"),
    ],
)
def test_a_window_of_time_refuses_records_without_one(table: pa.Table, reason: str) -> None:
    window = Tumbling("1h", "t")
    state = window.initial_state()
    with pytest.raises(OperatorFailed, match=reason):
        window.assign(InputEvent("in", 5, table), state)
    assert state == window.initial_state()


def test_an_event_without_rows_opens_no_window() -> None:
    window = Tumbling("1h", "t")
    state = window.initial_state()
    assert window.assign(InputEvent("in", 1, pa.table({"t": pa.array([], pa.timestamp("ns"))})), state) == {}
    assert state == window.initial_state()


# --- Input Sets that the log cannot name ------------------------------------------------------------------------------


class Naming(CountWindow):
    """Assigns every event to the Input Set it was told."""

    def __init__(self, name: Any) -> None:
        super().__init__(1)
        self.name = name

    def windows(self, event: Event, state: Any) -> list[Any]:
        return [self.name]

    def order(self, inset_id: str) -> int | str | None:
        return None


UNNAMED = {
    "empty": "",
    "too long": "x" * (MAX_NAME + 1),
    "much too long": "é" * 100_000,
    "with NUL": "a\0b",
    "half a surrogate pair": "a\ud800",
    "a number": 5,
    "nothing": None,
    "bytes": b"a",
}


@pytest.mark.parametrize("what", UNNAMED)
def test_an_input_set_that_the_log_cannot_name_is_refused_before_a_commit(what: str) -> None:
    """PostgreSQL would refuse the commit, SQLite would take it: both get it refused with port and event."""
    operator = OperatorProtocol(OperatorSpec("window", ("in",), ("out",), Naming(UNNAMED[what])))
    event = Event(Port("source", "out"), 1, records=1, payload=[1])
    with pytest.raises(ProtocolViolation, match=r"window\.in event 1 was assigned to Input Set") as refused:
        operator.state_update("in", event, Ledger(), in_log=True)
    assert len(str(refused.value)) < 300
    assert not operator.open


@pytest.mark.parametrize("name", ["x", "x" * MAX_NAME, "é" * MAX_NAME, 'it\'s "q" \n\t\\ %s {x}', "日本", "😀", " "])
def test_any_other_name_is_fine(name: str) -> None:
    assert unstorable(name) is None
    operator = OperatorProtocol(OperatorSpec("window", ("in",), ("out",), Naming(name)))
    operator.state_update("in", Event(Port("source", "out"), 1, records=1, payload=[1]), Ledger(), in_log=True)
    assert list(operator.open) == [name]
