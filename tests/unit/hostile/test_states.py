"""States of authors: what comes back from the log is what was stored, in value and type, or it was never stored."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import math
import uuid
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_logio.contrib.paper_api.accounts import pack, unpack
from airflow_logio.errors import ApiMisuse, OperatorFailed
from airflow_logio.protocol.context import MAX_DEPTH, decode_state
from airflow_logio.protocol.logic import OperatorSpec
from airflow_logio.protocol.operator import OperatorProtocol
from tests.support.logics import CountWindow


class Pair(NamedTuple):
    a: int
    b: int


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    ONE = "one"


class Name(str):
    __slots__ = ()


class Names(list[str]):
    pass


def viewed(data: bytes) -> Any:
    return memoryview(data)


def stored(state: Any) -> bytes:
    operator = OperatorProtocol(OperatorSpec("totals", ("in",), ("out",), CountWindow(3)))
    operator.state = state
    return operator.serialized()


def same(one: Any, other: Any) -> bool:
    """Equal, and of equal types all the way down; nan is nan."""
    if type(one) is not type(other):
        return False
    if type(one) is dict:
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if type(one) is list:
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) is float and math.isnan(one):
        return math.isnan(other)
    if type(one) is dt.datetime:
        return bool(one == other and one.tzinfo is other.tzinfo)
    return bool(one == other)


KEPT = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text()
    | st.binary()
    | st.datetimes(timezones=st.just(dt.UTC))
)
REFUSED = (
    st.integers(min_value=1 << 64)
    | st.datetimes()
    | st.datetimes(timezones=st.just(ZoneInfo("Asia/Kolkata")))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals()
    | st.fractions()
    | st.uuids()
    | st.complex_numbers()
    | st.binary().map(bytearray)
    | st.binary().map(viewed)
    | st.tuples()
    | st.tuples(st.integers(), st.text())
    | st.frozensets(st.integers())
    | st.sets(st.text())
    | st.sampled_from([Number.ONE, Word.ONE, Name("one"), Names(), Pair(1, 2), object(), int, ...])
    | st.just(collections.OrderedDict(a=1))
    | st.builds(collections.defaultdict, st.just(int), st.just({"a": 1}))
    | st.dictionaries(st.integers() | st.booleans() | st.none() | st.binary(), st.integers(), min_size=1)
    | st.text().map(lambda text: f"{text}\ud800")
)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
    )
    return st.dictionaries(st.text(), values, max_size=4)


@given(nested(KEPT))
def test_what_is_kept_is_never_refused(state: dict[str, Any]) -> None:
    assert same(decode_state("totals", stored(state)).state, state)
    assert same(unpack(pack("totals", state)), state)


@given(nested(KEPT | REFUSED))
@example({"a": [{"b": (1, 2)}]})
@example({"a": {1: 2}})
def test_any_state_comes_back_as_it_was_or_is_refused(state: dict[str, Any]) -> None:
    try:
        data = stored(state)
    except OperatorFailed as error:
        assert str(error).startswith("the state of operator 'totals' cannot be stored: ")
        with pytest.raises(ApiMisuse, match="'totals' cannot be stored"):
            pack("totals", state)
    else:
        assert same(decode_state("totals", data).state, state)
        assert same(unpack(pack("totals", state)), state)


NAIVE = dt.datetime(2026, 11, 21)  # noqa: DTZ001


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"seen": [[1, {"at": (1, 2)}]]}, r"state\['seen'\]\[0\]\[1\]\['at'\] is \(1, 2\) of type tuple.*keep a list"),
        ({"pair": Pair(1, 2)}, r"state\['pair'\] is Pair\(a=1, b=2\) of type Pair.*keep a list"),
        ({"names": Names()}, r"of type Names.*keep a list"),
        ({"seen": {1, 2}}, r"state\['seen'\] is \{1, 2\} of type set.*keep a sorted list"),
        ({"sums": collections.Counter("a")}, r"of type Counter.*keep a dict"),
        (collections.defaultdict(int), r"state is defaultdict\(.*of type defaultdict.*keep a dict"),
        ({"at": NAIVE}, r"of type datetime.*keep it in datetime\.UTC"),
        ({"at": NAIVE.replace(tzinfo=ZoneInfo("UTC"))}, r"of type datetime.*keep it in datetime\.UTC"),
        ({"day": dt.date(2026, 11, 21)}, r"of type date.*isoformat"),
        ({"for": dt.timedelta(1)}, r"of type timedelta.*number of microseconds"),
        ({"sum": Decimal("1.50")}, r"of type Decimal.*keep its text"),
        ({"kind": Number.ONE}, r"of type Number.*keep its value"),
        ({"kind": Word.ONE}, r"of type Word.*keep its value"),
        ({"id": uuid.UUID(int=1)}, r"of type UUID.*keep what it is made of"),
        ({"body": bytearray(b"x")}, r"of type bytearray.*keep bytes"),
        ({"of": {7: "a"}}, r"state\['of'\] has the key 7 of type int: keep keys as text"),
        ({"n": [1, 1 << 64]}, r"state\['n'\]\[1\] is a number of 65 bits: keep its text"),
        ({"t": ["a", "\ud800"]}, r"state\['t'\]\[1\] is a text with half a surrogate pair"),
        ({"\udfff": 1}, r"a key of state is a text with half a surrogate pair"),
        ({"long": ("x" * 1_000_000,)}, r"is \('xxxxxxxx[x]*\.\.\. of type tuple"),
    ],
)
def test_the_refusal_says_where_what_and_what_instead(state: Any, words: str) -> None:
    with pytest.raises(OperatorFailed, match=words) as caught:
        stored(state)
    assert len(str(caught.value)) < 500


def test_a_state_that_holds_itself_is_refused() -> None:
    state: dict[str, Any] = {"a": []}
    state["a"].append(state)
    with pytest.raises(OperatorFailed, match="or holds itself"):
        stored(state)

    state = {"a": [state, state], "b": [state, state]}
    with pytest.raises(OperatorFailed, match="or holds itself"):
        stored(state)


def test_as_deep_as_is_allowed() -> None:
    """A level more is refused, by the check and by the words for it."""
    state: dict[str, Any] = {"a": 1}
    for _ in range(MAX_DEPTH):
        state = {"a": state}
    assert same(decode_state("totals", stored(state)).state, state)
    with pytest.raises(OperatorFailed, match=f"nested more than {MAX_DEPTH} levels deep"):
        stored({"a": state})
