"""`switch=` of a `TableWriter`: when the old rows of a day go, and what cannot be said beside it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_logio import Count, Days, ParquetSource, Pipeline, RoundRobin, TableWriter
from airflow_logio.dataflow.writers.run_shapes import writer_shapes
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.protocol.run_writers import Repeats, Together

DAY = Days("day")
OWNS: dict[str, Any] = {"columns": {"day": "date", "a": "bigint"}, "on_new_run": "overwrite", "by": ("day",)}


def writer(**changed: Any) -> TableWriter:
    return TableWriter("wh", "t", **{**OWNS, **changed})


def pipeline(one: TableWriter) -> Pipeline:
    made = Pipeline("clicks", partition=DAY, connections=["wh"])
    made.writer("save", one, made.source("web", ParquetSource("/data/{day}.parquet")))
    return made


def test_at_the_end_is_the_default_and_is_described_as_before() -> None:
    plain = writer()
    assert plain.closes and plain.outputs == () and "switch" not in plain.settings()
    assert plain.describe() == writer(switch="at the end").describe()
    assert "switch" not in TableWriter("wh", "t").settings()


def test_at_once_nothing_is_held_and_events_are_sent_on() -> None:
    at_once = writer(switch="at once", sends_after_writes=True)
    made = pipeline(at_once)
    made.sink("seen", Count(), "save")
    made.freeze()
    assert not at_once.closes and at_once.settings()["switch"] == "at once"
    run = made.for_run(made.check_params({}, DAY.key_of("2026-03-01"))).operators["save"]
    assert isinstance(run, TableWriter)
    assert run.opening() == {"table": "t", "mode": "overwrite", "scope": "day=2026-03-01", "switch": "at once"}
    assert run.describe() == at_once.describe()


def test_slots_fill_a_day_together() -> None:
    made = pipeline(writer(switch="at once"))
    made.group("work", "save")
    made.replicate("work", partition=RoundRobin(), max=2)
    made.freeze()
    closing = pipeline(writer())
    closing.group("work", "save")
    closing.replicate("work", partition=RoundRobin(), max=2)
    with pytest.raises(PipelineDefinitionError, match="'work' is replicated, but its operator 'save' closes"):
        closing.freeze()


def test_its_shape_is_that_of_a_writer_that_owns_days() -> None:
    (shape,) = writer_shapes({"save": writer(switch="at once")}, {"wh": "id"}, ("day",))
    assert (shape.together, shape.repeats, shape.closes) == (Together.BY_PARTITION, Repeats.REPLACED, False)
    assert "by=('day',), switch='at once'" in shape.what


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"switch": "now"}, "switch='now' is none of 'at the end' and 'at once'"),
        ({"switch": "at once", "audit": "SELECT 1"}, "with an audit: readers see the rows before"),
        ({"switch": "at once", "empty": "replace"}, "with empty='replace': the old day goes before it is known"),
        ({"switch": "at once", "by": (), "on_new_run": "append"}, "for writers that own their run's day"),
        ({"sends_after_writes": True}, "or say switch='at once'"),
    ],
)
def test_what_contradicts_it_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=says):
        writer(**changed)
