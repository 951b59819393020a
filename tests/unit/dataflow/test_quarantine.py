"""Quarantine is for operators whose order does not matter, and for nothing behind them that minds."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_logio.dataflow import Count, EveryEvents, ParquetSource, Pipeline, generate, stateless
from airflow_logio.errors import PipelineDefinitionError


@stateless(on_error="quarantine")
def checked(records: pa.Table) -> pa.Table:
    return records


@generate(on_error="quarantine")
def ordered(records: pa.Table) -> pa.Table:
    return records


@generate(on_error="quarantine", order_insensitive=True)
def unordered(records: pa.Table) -> pa.Table:
    return records


class Minding(Count):
    """A sink that looks at the order of its events."""

    order_insensitive = False


def pipeline() -> Pipeline:
    made = Pipeline("p")
    made.source("ingest", ParquetSource("x.parquet"))
    return made


def test_a_stateless_operator_may_set_events_aside() -> None:
    made = pipeline()
    made.operator("checked", checked, "ingest")
    made.sink("done", Count(), "checked")
    assert made.operators["checked"].on_error == "quarantine"
    assert made.validate().operators["checked"].order_insensitive


def test_a_stateful_one_if_its_author_says_so() -> None:
    made = pipeline()
    made.operator("unordered", unordered, "ingest", window=EveryEvents(2))
    made.sink("done", Count(), "unordered")
    assert made.validate().operators["unordered"].on_error == "quarantine"


def test_not_without_the_authors_word() -> None:
    made = pipeline()
    made.operator("ordered", ordered, "ingest", window=EveryEvents(2))
    made.sink("done", Count(), "ordered")
    with pytest.raises(PipelineDefinitionError, match=r"'ordered' sets Input Sets aside on errors, which is stateful"):
        made.validate()


def test_not_before_an_operator_that_minds() -> None:
    made = pipeline()
    made.operator("checked", checked, "ingest")
    made.operator("passing", stateless(lambda records: records), "checked")
    made.sink("minding", Minding(), "passing")
    with pytest.raises(PipelineDefinitionError, match=r"'checked' .* but 'minding' behind it is stateful"):
        made.validate()


def test_not_before_a_window_even_if_its_author_does_not_mind() -> None:
    """Its windows close at the end of the stream at the latest, behind which a retried Input Set would come."""
    made = pipeline()
    made.operator("checked", checked, "ingest")
    made.operator("total", generate(order_insensitive=True)(lambda records: records), "checked", window=EveryEvents(2))
    made.sink("done", Count(), "total")
    with pytest.raises(PipelineDefinitionError, match=r"'checked' .* but 'total' behind it collects events in windows"):
        made.validate()


def test_only_known_choices() -> None:
    made = pipeline()
    with pytest.raises(PipelineDefinitionError, match=r"on_error='quarantin' is none of .*Did you mean 'quarantine'"):
        made.operator("typo", stateless(on_error="quarantin")(lambda records: records), "ingest")
