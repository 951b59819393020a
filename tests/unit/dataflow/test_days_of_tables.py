"""Which days of tables a source reads, as its author says it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_logio import Count, Days, FolderSource, Hours, Pipeline, QuerySource, TableSource
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError


def pipeline(days: Any, **other: Any) -> Pipeline:
    made = Pipeline("weekly", connections=["wh"], **{"partition": Days("day", zone="Europe/Berlin"), **other})
    made.source("top", QuerySource("wh", "SELECT 1 AS n", columns={"n": "bigint"}), days=days)
    return made


def scopes(days: Any, **params: str) -> tuple[str, ...]:
    (one,) = pipeline(days, params=dict.fromkeys(params, str)).days_read["top"]
    return one.scopes({"day": "2026-03-08", **params})


def last_three(params: Any) -> list[str]:
    return [f"day=2026-03-0{int(params['day'][-1]) - before}" for before in range(3)]


def test_days_are_texts_with_parameters_ranges_or_what_a_function_makes() -> None:
    assert scopes({"top": "day={day}"}) == ("day=2026-03-08",)
    assert scopes({"top": "day={first}..{day}"}, first="2026-03-07") == ("day=2026-03-07", "day=2026-03-08")
    assert scopes({"top": ["day={day}", "day=2026-02-28..2026-03-01", "day=2026-03-01"]}) == (
        "day=2026-03-08",
        "day=2026-02-28",
        "day=2026-03-01",
    )
    assert scopes({"top": last_three}) == ("day=2026-03-08", "day=2026-03-07", "day=2026-03-06")
    assert scopes({"top": lambda params: "day=" + params["day"]}) == ("day=2026-03-08",)
    assert scopes({"top": "hour=2026-03-08T22Z..2026-03-09T00Z"}) == (
        "hour=2026-03-08T22Z",
        "hour=2026-03-08T23Z",
        "hour=2026-03-09T00Z",
    )
    assert scopes({"top": "hour=2026-03-08T2230Z"}) == ("hour=2026-03-08T2230Z",)
    assert scopes({"top": lambda _: []}) == ()


def test_several_tables_of_one_connection_have_days_of_their_own() -> None:
    found = pipeline({"top": "day={day}", "dwh.all": "hour={hour}"}, partition=Hours("hour"), params={"day": str})
    assert [one.table for one in found.days_read["top"]] == ["top", "dwh.all"]


def test_it_changes_nothing_that_a_run_resumes_with() -> None:
    with_days, without = pipeline({"top": "day={day}"}), pipeline(None)
    for one in (with_days, without):
        one.sink("count", Count(), "top")
    assert with_days.fingerprint() == without.fingerprint()


@pytest.mark.parametrize(
    ("days", "refusal"),
    [
        ({}, r"days is \{\}; write days=\{'top': 'day=\{day\}'\}"),
        ("day={day}", "days is 'day={day}'"),
        ({"top": "{day}"}, "without the name of the column"),
        ({"top": "day={dya}"}, r"parameter 'dya', which the pipeline does not have.*Did you mean 'day'"),
        ({"top": "Day of={day}"}, "days of"),
        ({"top": 7}, "days are 7"),
        ({"top": []}, r"days are \[\]"),
        ({"a.b.c": "day={day}"}, "table name"),
    ],
)
def test_what_names_no_days_is_refused_where_it_is_written(days: Any, refusal: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=f"source 'top'.*{refusal}|{refusal}"):
        pipeline(days)


@pytest.mark.parametrize(
    ("days", "refusal"),
    [
        (lambda _: ["2026-03-08"], "'2026-03-08' are without the name"),
        (lambda _: 7, "the function gave 7"),
        (lambda params: params["dya"], r"cannot be told: KeyError: 'dya'"),
        (lambda _: "day=2026-03-32", "day=2026-03-32.*no day"),
        ("day=2026-03-09..{day}", "ends before it begins"),
        ("day=2000-01-01..{day}", "at most 1,000 are noted"),
    ],
)
def test_what_names_no_days_in_a_run_is_refused_before_it(days: Any, refusal: str) -> None:
    with pytest.raises(ConfigurationError, match=refusal):
        scopes({"top": days})


def test_a_source_of_no_sql_connection_reads_no_table() -> None:
    made = Pipeline("weekly", partition=Days("day"), connections=["wh"])
    with pytest.raises(PipelineDefinitionError, match=r"has no SQL connection.*FolderSource\(published=True\)"):
        made.source("lake", FolderSource("/lake/day={day}"), days={"top": "day={day}"})
    made.source("rows", TableSource("wh", "events", append_only=True), days={"events": "day={day}"})
    assert made.days_read["rows"][0].scopes({"day": "2026-03-08"}) == ("day=2026-03-08",)
