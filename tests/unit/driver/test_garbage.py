"""When a group collects, and which group sweeps what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from airflow_logio.dataflow import Count, ParquetSource, Pipeline, stateless
from airflow_logio.driver import garbage as timing
from airflow_logio.driver.garbage import Collection, Sweep, done_rows, sweeps_of
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.effects import Kept
from airflow_logio.protocol.values import Event, Port, Status
from airflow_logio.store.records.upkeep_records import Collected
from tests.support.waiting import eventually

MANY = fx.MarkDone("op", "A", timing.COLLECT_ROWS)
FEW = fx.MarkDone("op", "A", 1)


@dataclass
class Group:
    """A collection with a clock that stands still."""

    sweeps: Sequence[Sweep] = ()
    now: float = 1_000.0
    discarded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.collection = Collection(["op"], self.sweeps, self.discarded.extend, lambda: self.now)
        self.later(timing.COLLECT_SECONDS)
        self.end(self.step(), Collected())

    def step(self, *effects: fx.Effect) -> fx.Effects:
        return self.collection.due(list(effects))

    def end(self, effects: fx.Effects, *results: Collected) -> None:
        self.collection.committed(effects, results)

    def later(self, seconds: float) -> None:
        self.now += seconds


def test_nothing_is_collected_where_nothing_is_done() -> None:
    group = Group()
    group.later(100)
    assert group.step(fx.StoreState("op", b"")) == []
    assert not group.collection.is_overdue()


def test_a_little_is_collected_after_a_second() -> None:
    group = Group()
    assert group.step(FEW) == []
    group.later(timing.COLLECT_SECONDS)
    assert group.collection.is_overdue(), "also if no step follows"
    assert group.step() == [fx.Collect(("op",), timing.BATCH_ROWS)]
    assert group.step(FEW) == [], "one batch at a time"


def test_much_is_collected_at_once_in_larger_batches() -> None:
    group = Group()
    (first,) = group.step(MANY)
    assert isinstance(first, fx.Collect) and first.limit == 2 * timing.COLLECT_ROWS
    for _ in range(100):
        assert group.step(MANY) == []
    group.end([first], Collected(1, 1))
    (second,) = group.step()
    assert isinstance(second, fx.Collect) and second.limit == timing.MAX_BATCH_ROWS


def test_a_full_batch_is_followed_by_another() -> None:
    group = Group()
    (effect,) = group.step(MANY)
    group.end([effect], Collected(2_000, 2_000, more=True))
    assert group.collection.is_overdue()
    (effect,) = group.step()
    group.end([effect], Collected(3, 3))
    assert group.step() == []


def test_an_unknown_outcome_is_followed_by_another() -> None:
    group = Group()
    effects = group.step(MANY)
    group.end(effects)
    assert len(group.step()) == 1


def test_a_sweep_goes_round_and_rests() -> None:
    group = Group([Sweep("last", Kept.EVENTS, "out", retention_seconds=100.0), Sweep("first", None, "out")])
    assert group.step() == []
    group.later(100 / timing.PASSES_PER_RETENTION)
    effects = group.step()
    assert effects == [fx.ExpireLineage("last", Kept.EVENTS, 100.0, 0, timing.SWEEP_ROWS, "out")]
    assert group.step() == []
    group.end(effects, Collected(9, 1_000, more=True, after=77))
    assert group.step() == [], "in between others commit"
    group.later(timing.SWEEP_PAUSE_SECONDS)
    effects = group.step()
    assert effects == [fx.ExpireLineage("last", Kept.EVENTS, 100.0, 77, timing.SWEEP_ROWS, "out")]
    group.end(effects, Collected(9, 29_000))
    group.later(timing.SWEEP_PAUSE_SECONDS)
    effects = group.step()
    assert effects == [fx.SweepShared(Port("first", "out"), 0, timing.SWEEP_ROWS)]
    group.end(effects, Collected())
    group.later(30_000 / timing.EXAMINED_PER_SECOND - 1)
    assert group.step() == [], "what it has looked at is looked at again only after a while"
    group.later(1)
    assert group.collection.is_overdue()
    assert len(group.step()) == 1


def test_payloads_are_removed_when_their_rows_have_gone() -> None:
    group = Group()
    (effect,) = group.step(MANY)
    group.end([effect], Collected(1, 1, refs=("a/1", "a/2")))
    eventually(lambda: group.discarded == ["a/1", "a/2"], what="the payloads are removed")
    group.collection.stop()


def test_a_payload_that_cannot_be_removed_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(refs: Sequence[str]) -> None:
        raise OSError("no such bucket")

    collection = Collection(["op"], [], refuse)
    collection.committed([fx.Collect(("op",), 1)], [Collected(1, 1, refs=("a/1",))])
    eventually(lambda: "no such bucket" in caplog.text, what="it is logged")
    collection.stop()


@pytest.mark.parametrize(
    ("effect", "rows"),
    [
        (fx.MarkDone("op", "A", 3), 3),
        (fx.WritesDone("op", "wh", 4, 6), 3),
        (fx.Acknowledge(Port("s", "out"), Port("op", "in"), 1, ()), 1),
        (fx.Acknowledge(Port("s", "out"), Port("op", "in"), 1, (("A", Status.DONE), ("B", Status.UNDONE))), 1),
        (fx.LogEvent(Event(Port("s", "out"), 1), (fx.Delivery(Port("op", "in")),)), 0),
        (fx.LogEvent(Event(Port("s", "out"), 1), (fx.Delivery(Port("op", "in"), fused=True),)), 1),
        (fx.LogEvent(Event(Port("s", "out"), 1), (fx.Delivery(Port("op", "in"), (("A", Status.UNDONE),), True),)), 0),
        (fx.StoreState("op", b""), 0),
    ],
)
def test_what_counts_as_done(effect: fx.Effect, rows: int) -> None:
    assert done_rows(effect) == rows


# --- who sweeps what ----------------------------------------------------------------------------------------------------


@stateless
def same(records: pa.Table) -> pa.Table:
    return records


def chain(*scopes: tuple[str, str, str | None]) -> Pipeline:
    """source → first → second → done in a group each, and source → aside."""
    pipeline = Pipeline("chain", fuse=False)
    source = pipeline.source("source", ParquetSource("/numbers.parquet", ordered_by="n"))
    first = pipeline.operator("first", same, source)
    second = pipeline.operator("second", same, first)
    pipeline.sink("done", Count(), second)
    pipeline.sink("aside", Count(), source)
    for start, target, retention in scopes:
        pipeline.lineage(start, target, retention=retention)
    return pipeline.freeze()


def swept(pipeline: Pipeline) -> dict[str, list[tuple[str, str | None, str, float]]]:
    return {
        group: [(s.operator, s.kept, s.name, s.retention_seconds) for s in found]
        for group in pipeline.groups
        if (found := sweeps_of(pipeline, group))
    }


def test_without_lineage_only_shared_bodies_are_swept() -> None:
    assert swept(chain()) == {"aside": [("source", None, "out", 0.0)]}


def test_the_owner_of_the_target_sweeps_a_scope_from_its_end() -> None:
    found = swept(chain(("source.out", "second.out", "1h")))
    assert found == {
        "second": [
            ("second", Kept.EVENTS, "out", 3600.0),
            ("first", Kept.EVENTS, "out", 3600.0),
            ("source", Kept.EVENTS, "out", 3600.0),
            ("source", Kept.SOURCE_READS, "", 0.0),
        ]
    }


def test_of_two_scopes_the_longer_retention_and_the_later_target_count() -> None:
    found = swept(chain(("source.out", "first.out", "2h"), ("first.out", "second.out", "1h")))
    assert found == {
        "second": [("second", Kept.EVENTS, "out", 3600.0), ("first", Kept.EVENTS, "out", 7200.0)],
        "first": [("source", Kept.EVENTS, "out", 7200.0), ("source", Kept.SOURCE_READS, "", 0.0)],
    }


def test_what_a_scope_without_retention_needs_is_never_swept() -> None:
    found = swept(chain(("source.out", "second.out", "1h"), ("source.out", "first.out", None)))
    assert found == {"second": [("second", Kept.EVENTS, "out", 3600.0)]}
