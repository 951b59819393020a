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
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.record_rules import WHOLE, Dependence, Part, RecordRules, Uses
from airflow_logio.protocol.values import Event, Kind, MadeOf, Port, Status
from airflow_logio.runtime.figures.record_lineage import TracedRecords, records_behind
from airflow_logio.runtime.systems.arrow import encode
from airflow_logio.store import open_store
from airflow_logio.store.memory import MemoryLogStore
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import OperatorShape, Run, ScopeShape
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
            "depends=... of op names 'shop' and 'store', which the records do not have",
        ),
        ("at", pa.table({"shop": ["a"]}), "'shop' of op cannot be compared with 'at' before it: their types differ"),
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
    assert doubts(run.behind()) == {"'y' of op and 'x' before it are floating point numbers"}


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


def test_one_sender_at_two_ports() -> None:
    """Event 1 came on port a, event 2 on port b: each port has a column of its own for the shop."""
    columns = {"a": {"shop": "shop"}, "b": {"shop": "other"}}
    rules = RecordRules({"out": Dependence(Uses.EVERY, columns)}, {"": WHOLE})
    shapes = {
        "source": OperatorShape("g", {}, ("out",), (), ("out",), ("out",)),
        "op": OperatorShape("g", {"a": "source.out", "b": "source.out"}, ("out",), ("a", "b"), ("out",), (), rules),
    }
    store = MemoryLogStore()
    named = replace(spec("g"), operators=shapes, scopes=(ScopeShape("source.out", "op.out"),))
    driver = start_driver(store, run=store.start_run(named))
    taken = {"a": pa.table({"shop": ["x"], "other": ["y"]}), "b": pa.table({"shop": ["y", "x"], "other": ["x", "z"]})}
    commit: fx.Effects = []
    for number, (port, table) in enumerate(taken.items(), start=1):
        delivery = fx.Delivery(Port("op", port), (("1", Status.DONE),), fused=True, kept=True)
        event = Event(SOURCE, number, Kind.DATA, table.num_rows, None, encode(table))
        commit += [fx.LogEvent(event, (delivery,), kept=True), fx.CountEvents(SOURCE, "out", 1, table.num_rows)]
    made = Event(OP, 1, Kind.DATA, 1, None, encode(pa.table({"shop": ["x"]})))
    commit += [fx.LogEvent(made, (), kept=True), fx.RecordLineage(OP, 1, "1"), fx.CountEvents(OP, "out", 1, 1)]
    driver.session.commit(commit)
    answer = Logged(store, driver.run).behind()
    assert answer.is_exact and places(answer) == {1: [0], 2: [0]}


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


# --- the command --------------------------------------------------------------------------------------------------------


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
