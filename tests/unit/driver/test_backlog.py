"""Which connections hold their sender up: none that could keep back what the receiver waits for."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import count

import pyarrow as pa
import pytest

from airflow_logio.dataflow import (
    Count,
    External,
    InputEvent,
    ParquetSource,
    Pipeline,
    PortTable,
    StatelessOperator,
    Synchronized,
    TableWriter,
    generate,
)
from airflow_logio.driver.back_pressure import Backlog, bounded, waiting_bytes
from airflow_logio.protocol.recovery import PortOrder
from airflow_logio.protocol.values import Event, Port
from airflow_logio.spark.chains import Evaluated
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.store.rules.row_forms import Reference
from airflow_logio.systems.arrow import SMALL_BYTES, bytes_shown
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.manifests import DataFile, Manifest


class Pass(StatelessOperator):
    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        yield "out", event.table


class Two(Pass):
    inputs = ("a", "b")


class InTurn(Two):
    port_order = ("a", "a", "b")


def diamond(operator: Two, *, sources: int = 1) -> Pipeline:
    """A source, or two of them, two branches, and an operator that joins them."""
    p = Pipeline("p", fuse=False)
    first = p.source("src", ParquetSource("x"))
    second = p.source("src2", ParquetSource("x")) if sources == 2 else first
    left = p.operator("left", Pass(), first)
    right = p.operator("right", Pass(), second)
    join = p.operator("join", operator, a=left, b=right)
    p.sink("done", Count(), join)
    return p


def held_by(pipeline: Pipeline, group: str) -> list[str]:
    return [str(port) for ports in bounded(pipeline, pipeline.groups[group].operators).values() for port in ports]


def test_every_other_group_is_waited_for() -> None:
    p = diamond(Two())
    assert held_by(p, "src") == ["left.in", "right.in"]
    assert held_by(p, "left") == ["join.a"]
    assert held_by(p, "done") == []


def test_branches_of_one_source_that_meet_in_order_do_not_wait_there() -> None:
    """Holding up `left` would hold up the source, and so `right`, for which the operator waits."""
    p = diamond(InTurn())
    assert held_by(p, "left") == held_by(p, "right") == []
    assert held_by(p, "src") == ["left.in", "right.in"]
    assert held_by(p, "join") == ["done.in"]


def test_streams_that_meet_in_order_and_have_nothing_else_in_common_do_wait() -> None:
    p = diamond(InTurn(), sources=2)
    assert held_by(p, "left") == ["join.a"]
    p = diamond(InTurn(), sources=2)
    p.group("both", "left", "src2")
    assert held_by(p, "both") == ["right.in"], "the group that is held would feed what is waited for"
    p = diamond(InTurn(), sources=2)
    p.group("sources", "src", "src2")
    assert held_by(p, "left") == held_by(p, "right") == [], "so would the group before it"


def test_ends_that_were_taken_back_are_acknowledged() -> None:
    """They have ids, and no counter of data events counts them."""
    receiver = Port("op", "in")
    sent, acknowledged, ends = 12, 10, 2
    bound = BacklogBound(events=1)
    for taken_back, full in ((ends, False), (0, True)):
        backlog = Backlog((receiver,), lambda _: {receiver: (acknowledged, 0)}, bound, lambda: sent, taken_back)
        backlog.note_size(sent, bound.bytes)
        assert backlog.is_full() is full


def test_two_operators_that_take_the_same_streams_in_different_orders_do_not_starve_each_other() -> None:
    """Each holds up one of the two sources, for which the other one waits."""
    p = Pipeline("p", fuse=False)
    for source in ("s1", "s2"):
        p.source(source, ParquetSource("x"))
    join = generate(inputs=("a", "b"))(lambda a, b: a)
    p.operator("a_first", join, window=Synchronized({"a": 100, "b": 100}, ordered=True), a="s1", b="s2")
    p.operator("b_first", join, window=Synchronized({"b": 100, "a": 100}, ordered=True), a="s1", b="s2")
    p.sink("done", Count(), "a_first")
    p.sink("also", Count(), "b_first")
    p.freeze()
    total, bound, now = 500, BacklogBound(events=50), count()
    sent = {"s1": 0, "s2": 0}
    marks: dict[Port, int] = {}
    backlogs = {
        source: Backlog(
            receivers,
            lambda ports: {port: (marks.get(port, 0), 0) for port in ports},
            bound,
            partial(sent.__getitem__, source),
            clock=lambda: next(now),
        )
        for source in sent
        for receivers in bounded(p, p.groups[source].operators).values()
    }
    moved = True
    while moved:
        moved = False
        for source, number in sent.items():
            if number < total and not (source in backlogs and backlogs[source].is_full()):
                sent[source] = number + 1
                moved = True
        for name in ("a_first", "b_first"):
            used = {port: marks.get(Port(name, port), 0) for port in "ab"}
            port = PortOrder(tuple(p.operators[name].port_order)).next_port(used, ())
            assert port is not None
            if used[port] < sent[{"a": "s1", "b": "s2"}[port]]:
                marks[Port(name, port)] = used[port] + 1
                moved = True
    assert sent == {"s1": total, "s2": total}


@pytest.mark.parametrize("operator", [Two(), InTurn()])
def test_a_connection_inside_a_group_never_holds_it_up(operator: Two) -> None:
    p = diamond(operator)
    p.group("all", "src", "left", "right", "join")
    assert bounded(p, p.groups["all"].operators) == {Port("join", "out"): (Port("done", "in"),)}


def test_neither_does_one_behind_a_writer_that_sends_after_its_writes() -> None:
    p = Pipeline("p", connections=["w"], fuse=False)
    save = p.writer("save", TableWriter("w", "t", sends_after_writes=True), p.source("src", ParquetSource("x")))
    p.sink("here", Count(), save)
    p.sink("there", Count(), save)
    p.group("one", "src", "save", "here")
    assert held_by(p, "one") == ["there.in"]


def test_files_of_an_event_count_as_well_though_less_than_what_is_in_the_log() -> None:
    """A source that is faster than what is behind it would fill the payload store."""
    files = (DataFile("a/1.parquet", 300 * 2**20, 10, 0), DataFile("a/2.parquet", 212 * 2**20, 10, 0))
    dataset = Dataset("event 1", "/payloads", Reference("a", 1, 0), Manifest("{}", "", files))
    sender = Port("op", "out")

    def event(payload: object, body: bytes | None = None) -> Event:
        return Event(sender=sender, event_id=1, payload=payload, records=20, body=body)

    assert waiting_bytes(event(Evaluated(dataset))) == 2 * 2**20
    assert waiting_bytes(event(dataset)) == 2 * 2**20
    assert waiting_bytes(event(Evaluated(None))) == 0, "it was only part of a plan"
    assert waiting_bytes(event(pa.table({"id": pa.array([1, 2], pa.int64())}))) == 16
    assert waiting_bytes(event(None, b"abc")) == 3


def test_a_slice_counts_with_its_own_share() -> None:
    """Batches of a source are slices of what it reads at once: counted with all of it each, a few would fill the bound."""
    whole = pa.table({"id": pa.array(range(100_000), pa.int64())})
    assert bytes_shown(whole) == whole.nbytes == 800_000
    assert bytes_shown(whole.slice(50_000, 100)) == 800
    few = pa.table({"id": pa.array(range(100), pa.int64())})
    assert few.slice(90).nbytes <= bytes_shown(few.slice(90)) <= SMALL_BYTES, "near enough"


def test_what_a_table_shows_many_times_counts_many_times() -> None:
    """It is written so many times: compressed, and held against the bound, by what it is in the log."""
    one = pa.table({"text": ["x" * 2000]})
    assert bytes_shown(pa.concat_tables([one] * 1000)) > 2_000_000
    column = pa.array(range(400), pa.int64())
    assert bytes_shown(pa.table({f"c{number}": column for number in range(100)})) == 320_000
