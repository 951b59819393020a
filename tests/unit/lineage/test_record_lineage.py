"""What lineage of records says where it does not know everything, and how it is shown; on logs written by hand.

That it finds what a run has used is shown by `tests/acceptance/test_record_lineage.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.cli.app import main
from airflow_logio.errors import LineageUnknown
from airflow_logio.lineage.lineage_records import rows_at, together
from airflow_logio.lineage.record_lineage import TracedRead, TracedRecords, records_behind
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.record_rules import WHOLE, Dependence, Part, RecordRules, Uses
from airflow_logio.protocol.values import Event, Kind, MadeOf, Port, Status
from airflow_logio.store import open_store
from airflow_logio.store.lineage.result import ReadNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import OperatorShape, Run, ScopeShape
from airflow_logio.systems.arrow import encode
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import spec, start_driver

SOURCE, OP = Port("source", "out"), Port("op", "out")
TAKEN = (
    pa.table({"shop": ["a", "b", "a"], "at": [0, 1, 2], "amount": [1, 2, 3]}),
    pa.table({"shop": ["c", None, "a"], "at": [3, 4, 5], "amount": [4, 5, 6]}),
)
BY_SHOP = pa.table({"shop": ["a", "b", "c", None], "total": [10, 2, 4, 5]})


@dataclass
class Logged:
    store: LogStore
    run: Run

    def behind(self, values: Mapping[str, str] | None = None, event: int = 1) -> TracedRecords:
        return records_behind(self.store, self.run, "op.out", event, values)


def logged(
    dependence: Dependence | None,
    *,
    made: Sequence[pa.Table] = (BY_SHOP,),
    taken: Sequence[pa.Table] = TAKEN,
    parts: Mapping[str, Part] | None = None,
    store: LogStore | None = None,
    replayed: bool = False,
) -> Logged:
    """Input Set ``1`` of `op`: all events of the source, and all that was made of them. `replayed`: the events of the
    source's operator are those of a replay operator, whose records are not in the log."""
    rules = RecordRules({} if dependence is None else {"out": dependence}, {"": WHOLE} if parts is None else parts)
    shapes = {
        "source": OperatorShape("g", {}, ("out",), (), ("out",), ("out",)),
        "op": OperatorShape("g", {"in": "source.out"}, ("out",), ("in",), ("out",), (), rules),
    }
    store = store or MemoryLogStore()
    named = replace(spec("g"), operators=shapes, scopes=(ScopeShape("source.out", "op.out"),))
    driver = start_driver(store, run=store.start_run(named))
    commit: fx.Effects = []
    row = 0
    for number, table in enumerate(taken, start=1):
        about = {"first": row, "last": row + table.num_rows - 1}
        row += table.num_rows
        made_of = MadeOf("x", 0, b"digest", 9) if replayed else None
        event = Event(SOURCE, number, Kind.DATA, table.num_rows, None, encode(table), about, made_of=made_of)
        delivery = fx.Delivery(Port("op", "in"), (("1", Status.DONE),), fused=True, kept=True)
        commit += [fx.LogEvent(event, (delivery,), kept=True), fx.CountEvents(SOURCE, "out", 1, table.num_rows)]
    for number, table in enumerate(made, start=1):
        event = Event(OP, number, Kind.DATA, table.num_rows, None, encode(table))
        commit += [fx.LogEvent(event, (), kept=True), fx.RecordLineage(OP, number, "1")]
        commit.append(fx.CountEvents(OP, "out", 1, table.num_rows))
    driver.session.commit(commit)
    return Logged(store, driver.run)


def shop(uses: Uses = Uses.EVERY, column: str = "shop") -> Dependence:
    return Dependence(uses, {"in": {"shop": column}})


def places(answer: TracedRecords) -> dict[int, list[int] | None]:
    return {one.event.event_id: None if one.places is None else one.places.tolist() for one in answer.origins}


def doubts(answer: TracedRecords) -> set[str]:
    return {doubt for one in answer.origins for doubt in one.doubts}


def test_every_record_with_the_value_nulls_among_them() -> None:
    run = logged(shop())
    answer = run.behind({"shop": "a"})
    assert answer.is_exact and places(answer) == {1: [0, 2], 2: [2]}
    answer = run.behind({"total": "5"})
    assert answer.is_exact and places(answer) == {2: [1]}, "a null equals a null, as in a grouping"
    assert [one.places.tolist() for one in answer.roots if one.places is not None] == [[3]]
    assert places(run.behind()) == {1: [0, 1, 2], 2: [0, 1, 2]}


def test_nothing_declared_is_all_of_the_input_set() -> None:
    answer = logged(None).behind({"shop": "a"})
    assert places(answer) == {1: [0, 1, 2], 2: [0, 1, 2]}
    assert doubts(answer) == {"op does not say how its records depend on those it gets (depends=...)"}


def test_it_is_not_known_which_part_of_an_event_an_input_set_has() -> None:
    answer = logged(shop(), parts={}).behind({"shop": "a"})
    assert places(answer) == {1: [0, 2], 2: [2]}
    assert doubts(answer) == {"it is not known which records of an event an Input Set of op has"}


def test_a_declaration_that_cannot_be_true_leaves_nothing_out() -> None:
    answer = logged(shop(), made=[pa.table({"shop": ["A", "b"]})]).behind({"shop": "A"})
    assert places(answer) == {1: [0, 1, 2], 2: [0, 1, 2]}
    assert [doubt.split(":")[0] for doubt in doubts(answer)] == [
        "op has made records with values that no record of its Input Set has, against its depends=..."
    ]


@pytest.mark.parametrize(
    ("column", "made", "said"),
    [
        (
            "store",
            pa.table({"shop": ["a"]}),
            "depends=... of op names 'store', which the records do not have once",
        ),
        (
            "at",
            pa.table({"shop": ["a"]}),
            "values of 'shop' of op and of those before it are not compared: string and int64",
        ),
    ],
)
def test_columns_that_cannot_be_compared_leave_nothing_out(column: str, made: pa.Table, said: str) -> None:
    answer = logged(shop(column=column), made=[made]).behind()
    assert places(answer) == {1: [0, 1, 2], 2: [0, 1, 2]} and doubts(answer) == {said}


def test_a_narrower_type_finds_no_less() -> None:
    """A float of 32 bits was made of 64: compared as such, two values are one."""
    taken = [pa.table({"x": pa.array([0.1, 0.1 + 1e-12, -0.0, 0.0, float("nan"), 7.0])})]
    made = [pa.table({"y": pa.array([0.1, 0.0, float("nan")], pa.float32())})]
    run = logged(Dependence(Uses.EVERY, {"in": {"y": "x"}}), taken=taken, made=made)
    assert places(run.behind()) == {1: [0, 1, 2, 3, 4]}
    assert doubts(run.behind()) == {"'y' of op has floating point numbers, and several of them count as one"}


def test_times_of_another_unit_or_zone_leave_nothing_out() -> None:
    times = pa.array([0, 1_000_000], pa.timestamp("us"))
    for kind in (pa.timestamp("ms"), pa.timestamp("us", "UTC")):
        made = [pa.table({"t": times.slice(1).cast(kind)})]
        run = logged(Dependence(Uses.EVERY, {"in": {"t": "at"}}), taken=[pa.table({"at": times})], made=made)
        assert places(run.behind()) == {1: [0, 1]} and not run.behind().is_exact


def test_of_one_record_each_it_counts_them() -> None:
    """A filter by `amount`, which it does not hand on: of b and c every record was used, of a some."""
    kept = [pa.table({"shop": ["a", "b"]}), pa.table({"shop": ["c", "a"]})]
    run = logged(shop(Uses.ONE), made=kept)
    assert run.behind({"shop": "b"}).is_exact and places(run.behind({"shop": "b"})) == {1: [1]}
    assert places(run.behind({"shop": "c"}, event=2)) == {2: [0]}
    answer = run.behind({"shop": "a"})
    assert places(answer) == {1: [0, 2], 2: [2]}
    assert doubts(answer) == {"op may have left out some of the records with these values"}


def test_an_event_that_is_not_what_came_in_is_compared_by_values() -> None:
    """An operator that says that it sends on what it gets, and has made one event of two."""
    both = pa.concat_tables(TAKEN)
    run = logged(Dependence(Uses.SAME), made=[both])
    answer = run.behind({"amount": "6"})
    assert answer.is_exact and places(answer) == {2: [2]}


def of_two_ports(
    dependence: Dependence, at_a: pa.Table, at_b: pa.Table, made: pa.Table, *, senders: tuple[str, str] = ("x", "y")
) -> Logged:
    """Input Set ``1`` of `op`: event 1 on port a, event 2 of the same sender or event 1 of another one on port b."""
    rules = RecordRules({"out": dependence}, {"": WHOLE})
    inputs = {port: f"{sender}.out" for port, sender in zip("ab", senders, strict=True)}
    sources = {sender: OperatorShape("g", {}, ("out",), (), ("out",), ("out",)) for sender in senders}
    shapes = {**sources, "op": OperatorShape("g", inputs, ("out",), ("a", "b"), ("out",), (), rules)}
    store = MemoryLogStore()
    named = replace(spec("g"), operators=shapes, scopes=(ScopeShape(f"{senders[0]}.out", "op.out"),))
    driver = start_driver(store, run=store.start_run(named))
    commit: fx.Effects = []
    sent = dict.fromkeys(senders, 0)
    for port, sender, table in zip("ab", senders, (at_a, at_b), strict=True):
        sent[sender] += 1
        delivery = fx.Delivery(Port("op", port), (("1", Status.DONE),), fused=True, kept=True)
        event = Event(Port(sender, "out"), sent[sender], Kind.DATA, table.num_rows, None, encode(table))
        commit += [fx.LogEvent(event, (delivery,), kept=True)]
        commit.append(fx.CountEvents(Port(sender, "out"), "out", 1, table.num_rows))
    event = Event(OP, 1, Kind.DATA, made.num_rows, None, encode(made))
    commit += [fx.LogEvent(event, (), kept=True), fx.RecordLineage(OP, 1, "1")]
    commit.append(fx.CountEvents(OP, "out", 1, made.num_rows))
    driver.session.commit(commit)
    return Logged(store, driver.run)


def by_sender(answer: TracedRecords) -> dict[str, list[int] | None]:
    return {str(one.event): None if one.places is None else one.places.tolist() for one in answer.origins}


def test_one_sender_at_two_ports() -> None:
    """Each port has a column of its own for the shop, and an event is on one of them."""
    columns = {"a": {"shop": "shop"}, "b": {"shop": "other"}}
    at_a, at_b = pa.table({"shop": ["x"], "other": ["y"]}), pa.table({"shop": ["y", "x"], "other": ["x", "z"]})
    run = of_two_ports(Dependence(Uses.EVERY, columns), at_a, at_b, pa.table({"shop": ["x"]}), senders=("x", "x"))
    assert run.behind().is_exact and places(run.behind()) == {1: [0], 2: [0]}


def test_the_keys_of_a_read_are_those_of_an_event_at_all_its_ports() -> None:
    """One event on two ports that each take another record: a row was read for both."""
    dependence = Dependence(Uses.EVERY, {"a": {"shop": "shop"}, "b": {"shop": "other"}})
    inputs = {"a": "source.out", "b": "source.out"}
    shapes = {
        "source": OperatorShape("g", {}, ("out",), (), ("out",), ("out",)),
        "op": OperatorShape(
            "g", inputs, ("out",), ("a", "b"), ("out",), (), RecordRules({"out": dependence}, {"": WHOLE})
        ),
    }
    store = MemoryLogStore()
    named = replace(spec("g"), operators=shapes, scopes=(ScopeShape("source.out", "op.out"),))
    driver = start_driver(store, run=store.start_run(named))
    came = pa.table({"shop": ["x", "y", "z"], "other": ["z", "x", "z"]})
    read = pa.table({"shop": ["x", "y", "z"], "rate": [1, 2, 3]})
    at_both = tuple(fx.Delivery(Port("op", port), (("1", Status.DONE),), fused=True, kept=True) for port in "ab")
    driver.session.commit(
        [
            fx.LogEvent(Event(SOURCE, 1, Kind.DATA, 3, None, encode(came)), at_both, kept=True),
            fx.CountEvents(SOURCE, "out", 1, 3),
            fx.LogRead("op", "db", 1, {"key": "shop"}, ("1",), 3, None, encode(read)),
            fx.LogEvent(Event(OP, 1, Kind.DATA, 1, None, encode(pa.table({"shop": ["x"]}))), (), kept=True),
            fx.RecordLineage(OP, 1, "1"),
            fx.CountEvents(OP, "out", 1, 1),
        ]
    )
    answer = Logged(store, driver.run).behind()
    assert places(answer) == {1: [0, 1]}
    (traced,) = answer.reads
    rows, is_by_key = traced.rows(read)
    assert is_by_key and rows["shop"].to_pylist() == ["x", "y"]


def test_values_that_no_port_has_leave_nothing_out() -> None:
    columns = {"a": {"k": "k"}, "b": {"k": "k"}}
    x, y, z = (pa.table({"k": list(keys)}) for keys in ("xy", "xz", "X"))
    wrong = of_two_ports(Dependence(Uses.EVERY, columns), x, y, z).behind()
    assert by_sender(wrong) == {"x.out 1": [0, 1], "y.out 1": [0, 1]} and not wrong.is_exact
    right = of_two_ports(Dependence(Uses.EVERY, columns), x, y, pa.table({"k": ["y"]})).behind()
    assert by_sender(right) == {"x.out 1": [1]} and right.is_exact, "of one port alone"


@pytest.mark.parametrize("columns", [None, {"a": {"k": "k"}, "b": {"k": "k"}}])
def test_of_one_record_each_over_several_ports(columns: Any) -> None:
    """They are counted over all ports: a union of both is exact, and one of two alike is not."""
    x, y = pa.table({"k": ["x", "y"]}), pa.table({"k": ["x", "z"]})
    union = of_two_ports(Dependence(Uses.ONE, columns), x, y, pa.table({"k": ["x", "y", "x", "z"]}))
    assert union.behind().is_exact
    assert by_sender(union.behind({"k": "x"})) == {"x.out 1": [0], "y.out 1": [0]} and union.behind({"k": "x"}).is_exact
    filtered = of_two_ports(Dependence(Uses.ONE, columns), x, y, pa.table({"k": ["x", "y"]}))
    assert filtered.behind({"k": "y"}).is_exact
    assert doubts(filtered.behind({"k": "x"})) == {"op may have left out some of the records with these values"}
    part = records_behind(union.store, union.run, "op.out", 1, {"k": "x"}, to="x.out")
    assert by_sender(part) == {"x.out 1": [0]} and not part.is_exact, "the other port was not looked at"


def test_what_a_source_has_made_is_from_nothing_in_the_log() -> None:
    run = logged(shop())
    answer = records_behind(run.store, run.run, "source.out", 1)
    assert not answer.origins and not answer.is_exact


def test_columns_that_cannot_be_compared_do_not_matter_where_records_are_counted() -> None:
    table = pa.table({"k": ["x", "y"], "price": [0.5, 0.25], "tags": [["a"], []]})
    run = logged(Dependence(Uses.ONE), taken=[table], made=[table.slice(1)])
    assert run.behind().is_exact and places(run.behind()) == {1: [1]}


def test_columns_of_one_name_and_types_that_have_nothing_in_common() -> None:
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["shop", "shop"])
    run = logged(shop(), taken=[twice], made=[pa.table({"shop": ["a"]})])
    assert doubts(run.behind()) == {"depends=... of op names 'shop', which the records do not have once"}
    with pytest.raises(LineageUnknown, match="the records have several columns 'shop'"):
        logged(shop(), made=[twice]).behind({"shop": "a"})
    texts = together([pa.table({"a": [1]}), pa.table({"a": ["x"]}), pa.table({"a": pa.array([None], pa.float64())})])
    assert texts["a"].to_pylist() == ["1", "x", None]
    assert together([pa.table({"a": [1]}), pa.table({"a": [1.5]})])["a"].to_pylist() == [1.0, 1.5]


def test_records_of_any_type_and_name_are_shown() -> None:
    views = pa.table({"s": pa.array(["a", "b", "c"], pa.string_view()), "l": [[1], [2], [3]]})
    assert rows_at(views, [2, 0]).to_pylist() == [{"s": "c", "l": [3]}, {"s": "a", "l": [1]}]
    assert rows_at(views, []).num_rows == 0
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    assert together([twice, twice]).to_pylist() == [{"n": 1, "n (2)": 2}] * 2


@pytest.mark.parametrize(
    ("keys", "effect", "expected"),
    [
        (pa.array([7], pa.int64()), pa.table({"k": pa.array([7, 8], pa.int32())}), ([7], True)),
        (pa.array([2**40], pa.int64()), pa.table({"k": pa.array([7, 8], pa.int32())}), ([], True)),
        (pa.array([7]), pa.table({"k": ["07", "08"]}), (["07", "08"], False)),
        (pa.array([7]), pa.table({"other": [1]}), ([1], False)),
        (pa.array(["a"]), pa.table({"k": pa.array(["a", "b"]).dictionary_encode()}), (["a"], True)),
        (pa.array([[7]]), pa.table({"k": [[7], [8]]}), ([[7], [8]], False)),
        (None, pa.table({"k": [7]}), ([7], False)),
    ],
)
def test_rows_of_a_read_by_keys_of_any_type(keys: Any, effect: pa.Table, expected: Any) -> None:
    rows, is_by_key = TracedRead(ReadNode("op", "db", 1, description={"key": "k"}), keys).rows(effect)
    assert (rows.column(0).to_pylist(), is_by_key) == expected


def test_records_of_a_replay_operator_are_perhaps_all() -> None:
    answer = logged(shop(), replayed=True).behind({"shop": "a"})
    assert places(answer) == {1: None, 2: None}
    assert doubts(answer) == {"records of source.out are not in the log"}


def test_what_was_not_made() -> None:
    run = logged(shop())
    with pytest.raises(LineageUnknown, match=r"no record of op\.out 1 has shop=d, total=4"):
        run.behind({"shop": "d", "total": "4"})
    with pytest.raises(LineageUnknown, match=r"the records of op\.out 1 have no column 'store'"):
        run.behind({"store": "d"})


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def on_sqlite(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    store = open_store(sqlite_url)
    logged(shop(), store=store)
    store.dispose()


def logio(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["logio", "lineage", "run-1", "op.out", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.usefixtures("on_sqlite")
def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert logio(monkeypatch, "--where", "shop=a", "--records", "--most", "2") == 0
    tree, asked, behind = capsys.readouterr().out.strip().split("\n\n")
    assert tree.startswith("op.out 1   4 records")
    assert [line.split() for line in asked.splitlines()][1:] == [
        ["(event)", "(record)", "shop", "total"],
        ["1", "0", "a", "10"],
    ]
    title, *rows = behind.splitlines()
    assert title == "source.out: 3 records of 2 events, exactly those that it was made from"
    assert [row.split() for row in rows] == [
        ["(event)", "(row)", "shop", "at", "amount"],
        ["1", "0", "a", "0", "1"],
        ["1", "2", "a", "2", "3"],
    ]
    assert logio(monkeypatch, "1", "--where", "shop=c", "--records", "--json") == 0
    traced: dict[str, Any] = json.loads(capsys.readouterr().out)["traced"]
    assert traced["exact"] and [(one["event_id"], one["places"]) for one in traced["made_from"]] == [(2, [0])]


@pytest.mark.usefixtures("on_sqlite")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("1", "--where", "shop=a"), "add --records"),
        (("--where", "shop=a", "--records", "--forward"), "records are followed backward only"),
        ((), "give the number of an event"),
    ],
)
def test_what_the_command_refuses(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert logio(monkeypatch, *arguments) == 2
    assert said in " ".join(capsys.readouterr().err.split())
