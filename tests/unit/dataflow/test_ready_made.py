"""Ready-made operators against the same in plain Python, and what they refuse."""

from __future__ import annotations

import datetime as dt
import pickle
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_logio.dataflow import (
    Count,
    EveryEvents,
    FunctionRead,
    InputEvent,
    InputSet,
    Pipeline,
    RoundRobin,
    TableRead,
    Tumbling,
    filtered,
    joined,
    selected,
    summed,
)
from airflow_logio.dataflow.functions.function_operators import FunctionOperator
from airflow_logio.dataflow.functions.windowed_operators import windowed
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError
from airflow_logio.protocol.record_rules import Dependence, Part, Uses
from airflow_logio.testing import ScriptedSource, Simulator, pipeline_scenario
from tests.unit.dataflow.conftest import FakeExternal

CHANCE = random.Random(5)
RECORDS: list[dict[str, Any]] = [
    {
        "shop": CHANCE.choice(["a", "b", None]),
        "item": CHANCE.choice([1, 2, 3, 4, None]),
        "amount": CHANCE.choice([*range(-3, 8), None]),
        "at": dt.datetime(2025, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None) + dt.timedelta(minutes=CHANCE.randrange(180)),
    }
    for _ in range(200)
]
RECORDS.sort(key=lambda one: one["at"])
TABLE = pa.concat_tables([pa.Table.from_pylist(RECORDS[:50]), pa.Table.from_pylist(RECORDS[50:])])
ITEMS: list[dict[str, Any]] = [
    {"item": key, "name": name, "price": price}
    for key, name, price in ((3, "three", 30), (None, "none", 0), (1, "one", 10), (9, "nine", 90), (2, None, 20))
]
READ = TableRead("warehouse", "items", key="item")
AMOUNT = pc.field("amount")


def made(function: Any, *tables: pa.Table, window: Any = None, items: Any = ()) -> list[dict[str, Any]]:
    """The records that an operator makes of one event each."""
    external = FakeExternal(items=pa.Table.from_pylist(list(items)) if isinstance(items, list | tuple) else items)
    found: list[dict[str, Any]] = []
    if window is None:
        operator = FunctionOperator(function)
        for number, table in enumerate(tables, start=1):
            for _, out in operator.process(InputEvent("in", number, table), external):
                found += out.to_pylist()
        return found
    stateful = windowed(function, window)
    state, held = stateful.initial_state(), dict[str, Any]()
    for number, table in enumerate(tables, start=1):
        for inset, part in stateful.assign(InputEvent("in", number, table), state).items():
            held[inset] = stateful.accumulate(held.get(inset), part)
    for inset in stateful.flush(state, list(held)):
        for _, out in stateful.generate(InputSet(inset, held[inset]), state, external):
            found += out.to_pylist()
    return found


@pytest.mark.parametrize(
    ("condition", "plain"),
    [
        (AMOUNT > 0, lambda one: one["amount"] is not None and one["amount"] > 0),
        (pc.invert(AMOUNT > 0), lambda one: one["amount"] is not None and one["amount"] <= 0),
        ((pc.field("shop") == "a") | AMOUNT.is_null(), lambda one: one["shop"] == "a" or one["amount"] is None),
        (pc.field("item").isin([1, 4]), lambda one: one["item"] in (1, 4)),
        (pc.scalar(False), lambda one: False),
    ],
)
def test_a_filter_keeps_what_is_true(condition: Any, plain: Callable[[Any], bool]) -> None:
    assert made(filtered(condition), TABLE) == [one for one in RECORDS if plain(one)]
    assert filtered(condition).depends == {"out": Dependence(Uses.ONE)}


def test_a_filter_of_many_records_keeps_their_order() -> None:
    table = pa.concat_tables([pa.table({"n": range(start, start + 10)}) for start in range(0, 200_000, 10)])
    assert made(filtered(pc.field("n") >= 7), table) == [{"n": n} for n in range(7, 200_000)]


def test_some_columns_under_other_names() -> None:
    renamed = selected({"product": "item", "shop": "shop", "again": "item"})
    wanted = [{"product": one["item"], "shop": one["shop"], "again": one["item"]} for one in RECORDS]
    assert made(renamed, TABLE) == wanted
    assert list(renamed(TABLE).column_names) == ["product", "shop", "again"]
    columns = {"in": {"product": "item", "shop": "shop", "again": "item"}}
    assert renamed.depends == {"out": Dependence(Uses.ONE, columns)}
    assert made(selected(["shop"]), TABLE) == [{"shop": one["shop"]} for one in RECORDS]


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (None, {"name": "name", "price": "price"}),
        (["price"], {"price": "price"}),
        ({"cost": "price", "key": "item"}, {"cost": "price", "key": "item"}),
        ((), {}),
    ],
)
def test_each_record_with_the_row_of_its_key(columns: Any, names: Mapping[str, str]) -> None:
    by_key = {one["item"]: one for one in ITEMS}
    wanted = [
        one | {name: by_key[one["item"]][column] for name, column in names.items()}
        for one in RECORDS
        if one["item"] in by_key and one["item"] is not None
    ]
    join = joined("items", READ, columns=columns)
    assert made(join, TABLE, window=EveryEvents(1), items=ITEMS) == wanted
    halves = [TABLE.slice(0, 70), TABLE.slice(70)]
    assert made(join, *halves, window=EveryEvents(2), items=ITEMS) == wanted
    whole = joined("items", TableRead("warehouse", "items"), on="item", columns=columns)
    assert made(whole, TABLE, window=EveryEvents(1), items=ITEMS) == wanted
    assert join.depends == {"out": Dependence(Uses.ONE)}
    assert made(joined("records", READ, columns=columns), TABLE, window=EveryEvents(1), items=ITEMS) == wanted


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float64(), pa.decimal128(20, 2)])
def test_keys_may_be_of_another_type_of_number(kind: Any) -> None:
    rows = pa.table({"item": pa.array([4, 2], kind), "price": [1, 5]})
    found = made(joined("items", READ), TABLE, window=EveryEvents(1), items=rows)
    assert found == [one | {"price": {4: 1, 2: 5}[one["item"]]} for one in RECORDS if one["item"] in (4, 2)]
    assert made(joined("items", READ), TABLE, window=EveryEvents(1), items=pa.table({})) == []


def sums(by: list[str], of: list[str], hours: bool) -> list[dict[str, Any]]:
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for one in RECORDS:
        groups[(one["at"].replace(minute=0) if hours else None, *(one[name] for name in by))].append(one)
    found = []
    for start, *key in sorted(groups, key=lambda group: [(part is None, part) for part in group]):
        members = groups[start, *key]
        values = {name: [one[name] for one in members if one[name] is not None] for name in of}
        total = {name: sum(some) if some else None for name, some in values.items()}
        found.append(({"hour": start} if hours else {}) | dict(zip(by, key, strict=True)) | total)
    return found


def test_sums_of_windows() -> None:
    hourly = summed(by=["shop", "item"], of=["amount"], start="hour")
    parts = [TABLE.slice(0, 30), TABLE.slice(30, 99), TABLE.slice(129)]
    assert made(hourly, *parts, window=Tumbling("1h", on="at")) == sums(["shop", "item"], ["amount"], hours=True)
    assert made(summed(["shop"], ["amount"]), TABLE, window=EveryEvents(1)) == sums(["shop"], ["amount"], hours=False)
    columns = {"in": {"shop": "shop", "item": "item"}}
    rules = windowed(hourly, Tumbling("1h", on="at")).record_rules()
    assert rules.outputs == {"out": Dependence(Uses.EVERY, columns, ("hour",), Part("at", 3600))}
    assert summed(["shop"], ["amount"]).depends == {"out": Dependence(Uses.EVERY, {"in": {"shop": "shop"}})}


@pytest.mark.parametrize(
    ("define", "words"),
    [
        (lambda: filtered(True), "filtered: condition is True; give an expression of pyarrow.compute, e.g. pc.field("),
        (lambda: selected("a"), "selected: columns is 'a'; give names of columns"),
        (lambda: selected(7), "selected: columns is 7; give names of columns"),  # type: ignore[arg-type]
        (lambda: selected([]), "selected: columns is empty; name the columns to keep"),
        (lambda: selected(["a", "a"]), "selected: columns: column 'a' is named twice"),
        (lambda: selected({"a": "b;"}), "selected: columns: column name 'b;' is not allowed"),
        (lambda: joined("items", "items"), "joined: read is 'items'; give a TableRead or a FunctionRead"),  # type: ignore[arg-type]
        (lambda: joined("items", TableRead("w", "t")), "joined: read 'items' has no key; say on="),
        (
            lambda: joined("items", READ, on="id"),
            "on is 'id', and read 'items' is restricted by key 'item': leave on= out",
        ),
        (lambda: joined("Items", READ), "read name 'Items' is not allowed"),
        (lambda: joined("state", READ), "read 'state' must be a TableRead or FunctionRead, and no word of"),
        (lambda: joined("class", READ), "joined: name is 'class', a word of Python; give the read another name"),
        (lambda: joined("items", READ, columns=["item"]), "columns={'other_item': 'item'}"),
        (lambda: joined("items", READ, columns="price"), "joined: columns is 'price'; give names"),
        (
            lambda: joined("items", TableRead("w", "t", ("item", "price"), "item"), columns=["prise"]),
            "column 'prise' is not among the columns ('item', 'price') that the read of table 't' fetches: add it to them. "
            "Did you mean 'price'?",
        ),
        (lambda: summed([], ["a"]), "summed: by is empty; name columns in both by and of"),
        (lambda: summed(["a"], []), "summed: of is empty"),
        (lambda: summed({"a": "b"}, ["c"]), "summed: by is {'a': 'b'}; give names of columns"),
        (lambda: summed("a", ["b"]), "summed: by is 'a'; give names of columns"),
        (lambda: summed(["a"], ["b", "a"]), "summed: 'a' is named twice in by, of and start"),
        (lambda: summed(["a"], ["b"], start="b"), "summed: 'b' is named twice in by, of and start"),
        (lambda: summed(["a"], ["b"], start="a;"), "column name 'a;' is not allowed"),
        (lambda: windowed(summed(["a"], ["b"], start="c"), EveryEvents(3)), "'summed' depends on 'window_start'"),
    ],
)
def test_what_is_refused_at_once(define: Callable[[], object], words: str) -> None:
    with pytest.raises(PipelineDefinitionError) as caught:
        define()
    assert words in str(caught.value)


TWICE = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["item", "item"])


@pytest.mark.parametrize(
    ("function", "items", "words"),
    [
        (filtered(pc.field("amonut") > 0), (), "cannot be computed: No match for FieldRef.Name(amonut)"),
        (filtered(pc.field("shop") > 0), (), "cannot be computed: Function 'greater' has no kernel"),
        (filtered(AMOUNT + 1), (), "is of type int64, and must be true or false: compare it with something"),
        (selected(["itme"]), (), "selected: column 'itme' is needed, once; the records have"),
        (joined("items", READ), [{"item": 1, "amount": 2}], "both have column 'amount': say which columns to add"),
        (joined("items", READ), [{"item": 1}, {"item": 2}, {"item": 2}], "table 'items' has several rows with item 2,"),
        (joined("items", READ), [{"item": "1"}], "column 'item' is int64 in the records and string in read 'items' of"),
        (
            joined("items", READ, columns=["prise"]),
            ITEMS,
            "column 'prise' is needed, once; read 'items' of table 'items'",
        ),
        (
            joined("items", READ),
            TWICE,
            "column 'item' is needed, once; read 'items' of table 'items' has ['item', 'item']",
        ),
        (joined("items", TableRead("w", "items"), on="it"), ITEMS, "column 'it' is needed, once; the records have"),
    ],
)
def test_what_a_run_refuses(function: Any, items: Any, words: str) -> None:
    with pytest.raises(OperatorFailed) as caught:
        made(function, TABLE, window=EveryEvents(1) if function.__name__ == "joined" else None, items=items)
    assert words in str(caught.value)


def test_a_sum_of_what_is_no_number_or_is_missing() -> None:
    with pytest.raises(OperatorFailed, match="sums need column 'it', once"):
        made(summed(["shop"], ["it"]), TABLE, window=EveryEvents(1))
    with pytest.raises(OperatorFailed, match=r"the sums of \['shop'\] by \['item'\] cannot be made"):
        made(summed(["item"], ["shop"]), TABLE, window=EveryEvents(1))


ALIKE: list[list[Callable[[], Any]]] = [
    [
        lambda: filtered(AMOUNT > 0),
        lambda: filtered(AMOUNT > 1),
        lambda: filtered(pc.scalar(pa.scalar(0, pa.int8())) < AMOUNT),
        lambda: filtered(AMOUNT.isin(list(range(100)))),
        lambda: filtered(AMOUNT.isin([*range(40), 1000, *range(41, 100)])),
    ],
    [
        lambda: selected(["a", "b"]),
        lambda: selected(["b", "a"]),
        lambda: selected({"a": "b", "b": "a"}),
    ],
    [
        lambda: joined("items", READ),
        lambda: joined("items", READ, columns=["price"]),
        lambda: joined("items", READ, columns={"cost": "price"}),
        lambda: joined("items", TableRead("warehouse", "items"), on="item"),
        lambda: joined("items", TableRead("warehouse", "items"), on="name"),
    ],
    [
        lambda: summed(["a"], ["b"]),
        lambda: summed(["a"], ["b"], start="c"),
        lambda: summed(["a"], ["b"], start="d"),
        lambda: summed(["a"], ["c"]),
        lambda: summed(["a", "b"], ["c"]),
    ],
]


def fingerprint(function: Any) -> tuple[str, ...]:
    one = Pipeline("p", connections=["warehouse"])
    source = one.source("source", ScriptedSource(TABLE, 9))
    window = None if function.__name__ in ("filtered", "selected") else Tumbling("1h", on="at")
    one.sink("end", Count(), one.operator("work", function, source, window=window))
    return tuple(one.freeze().fingerprint().values())


@pytest.mark.parametrize("definitions", ALIKE, ids=["filtered", "selected", "joined", "summed"])
def test_other_arguments_are_other_code(definitions: list[Callable[[], Any]]) -> None:
    found = [fingerprint(define()) for define in definitions]
    assert len(set(found)) == len(found)
    assert found == [fingerprint(define()) for define in definitions], "built again, it is the same"
    again = [pickle.loads(pickle.dumps(define())) for define in definitions]  # noqa: S301  # our own
    assert [one.fn for one in again] == [define().fn for define in definitions]
    assert found == [fingerprint(one) for one in again]


def test_a_changed_condition_is_a_change_of_the_code_alone() -> None:
    """As a change of an author's function: a run that continues warns of it."""
    (graph, code), (same, other) = fingerprint(filtered(AMOUNT > 0)), fingerprint(filtered(AMOUNT > 1))
    assert graph == same and code != other


def prices(url: str, keys: pa.Array) -> pa.Table:
    return pa.table({"item": keys, "price": pc.multiply(keys, 10)})


def pipeline(*, replicas: bool) -> Pipeline:
    one = Pipeline("all_of_them", connections=["warehouse"])
    source = one.source("source", ScriptedSource(TABLE, 9))
    kept = one.operator("kept", filtered(AMOUNT > 0), source, replay=not replicas)
    names = selected({"shop": "shop", "item": "item", "n": "amount", "at": "at"})
    renamed = one.operator("renamed", names, kept, replay=not replicas)
    join = joined("prices", FunctionRead("warehouse", prices, key="item"))
    priced = one.operator("priced", join, renamed, window=EveryEvents(2))
    hourly = summed(["shop", "item"], ["n", "price"], start="hour")
    one.operator("hourly", hourly, priced, window=Tumbling("1h", on="at"), replay=not replicas)
    one.sink("end", Count(), "hourly")
    if replicas:
        one.group("work", "kept", "renamed")
        one.replicate("work", partition=RoundRobin(), max=2, ordered=True)
    one.lineage("source.out", "hourly.out")
    return one.freeze()


@pytest.mark.parametrize("replicas", [False, True])
def test_no_crash_changes_what_comes_out(replicas: bool) -> None:
    made_again = pipeline(replicas=replicas)
    scenario = pipeline_scenario(made_again, tables={"warehouse": lambda read, keys: prices("", keys)})
    simulator = Simulator(scenario)
    for seed in range(3):
        _, failure = simulator.run(seed)
        assert failure is None, failure
