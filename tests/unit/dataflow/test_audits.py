"""`audit=` of writers that own a day: what it is, and what is refused when a pipeline is defined."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio import DatasetWriter, Days, FolderSource, ParquetSource, Pipeline, TableWriter
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError

DAY = Days("day", zone="Europe/Berlin")
NEGATIVE = "SELECT * FROM top WHERE day = :day AND clicks < 0"


def writer(audit: Any, **changed: Any) -> TableWriter:
    columns = {"day": "date", "clicks": "bigint"}
    return TableWriter("wh", "top", columns, **{"on_new_run": "overwrite", "by": ("day",), "audit": audit, **changed})


def of_lake(audit: Any, **changed: Any) -> DatasetWriter:
    owns = {"on_new_run": "overwrite", "by": ("day",), "audit": audit}
    return DatasetWriter("wh", "top", partition_by=("day",), **{**owns, **changed})


WRITERS = pytest.mark.parametrize("writer", [writer, of_lake])


def pipeline(audit: Any, writer: Callable[[Any], TableWriter | DatasetWriter] = writer) -> Pipeline:
    made = Pipeline("clicks", partition=DAY, params={"least": int}, connections=["wh"])
    source = ParquetSource("/data/{day}/*.parquet") if writer is not of_lake else FolderSource("/data/{day}")
    made.writer("save", writer(audit), made.source("web", source))
    return made


def enough(records: Iterator[pa.Table], params: Any) -> str | None:
    rows = sum(table.num_rows for table in records)
    return f"only {rows} rows" if rows < params["least"] else None


def rows_at_fault(records: Iterator[pa.Table]) -> None: ...


def generated(records: Iterator[pa.Table]) -> Iterator[str]:
    yield "wrong"


async def later(records: Iterator[pa.Table]) -> AsyncIterator[str]:
    raise NotImplementedError


def test_audits_have_names() -> None:
    assert [audit.name for audit in writer(NEGATIVE).audits] == ["audit"]
    assert [audit.name for audit in writer(enough).audits] == ["enough"]
    named = writer({"not negative": NEGATIVE, "enough": enough}).audits
    assert [(audit.name, audit.query, audit.function) for audit in named] == [
        ("not negative", NEGATIVE, None),
        ("enough", None, enough),
    ]
    assert writer(None).audits == ()


@WRITERS
def test_a_run_asks_with_its_parameters(writer: Any) -> None:
    made = pipeline({"new": "SELECT 1 WHERE :day_start > now() AND :least > 0", "enough": enough}, writer)
    params = made.check_params({"least": 3}, DAY.key_of("2026-03-01"))
    found = made.for_run(params).operators["save"]
    assert isinstance(found, TableWriter | DatasetWriter)
    start = datetime(2026, 2, 28, 23, tzinfo=UTC)
    assert found.audits[0].params == {"day_start": start, "least": 3}
    table = pa.table({"day": ["2026-03-01"]})
    assert found.audits[1].asked(iter([table, table])) == "only 2 rows"
    assert found.audits[1].asked(iter([table] * 3)) == ""


@WRITERS
def test_an_audit_is_code_and_not_what_a_run_is_compared_by(writer: Any) -> None:
    """So one that is wrong is corrected, and the run that waits asks again."""
    one, other, none = pipeline(NEGATIVE, writer), pipeline(enough, writer), pipeline(None, writer)
    assert one.fingerprint()["graph"] == other.fingerprint()["graph"] == none.fingerprint()["graph"]
    assert len({made.fingerprint()["code"] for made in (one, other, none)}) == 3


@pytest.mark.parametrize(
    ("answer", "faults"), [(None, ""), ("", ""), ("no rows", "no rows"), (pa.table({"a": [1]}), "1 row: (a=1)")]
)
def test_what_a_function_returns(answer: Any, faults: str) -> None:
    assert writer(lambda records: answer).audits[0].asked(iter([])) == faults


@pytest.mark.parametrize("answer", [True, 0, ["wrong"], {"a": 1}])
def test_what_a_function_must_not_return(answer: Any) -> None:
    with pytest.raises(OperatorFailed, match="return None or an empty text if nothing is wrong"):
        writer(lambda records: answer).audits[0].asked(iter([]))


@pytest.mark.parametrize(
    ("audit", "says"),
    [
        ("DELETE FROM top", r"audit is one SELECT, and 'DELETE FROM top' is none"),
        ("WITH gone AS (DELETE FROM top RETURNING *) SELECT * FROM gone", "audit is one SELECT"),
        ("SELECT 1; SELECT 2", "is one SELECT, and .* is several"),
        ("", "is one SELECT, and '' is none"),
        ("SELECT * FROM top WHERE day = '{{ ds }}'", "which Airflow fills"),
        ({"a": "UPDATE top SET clicks = 0"}, "audit 'a' is one SELECT"),
        ({"a": 3}, "audit 'a' is 3; give a SELECT"),
        ({}, "audit is an empty mapping"),
        ({"": NEGATIVE}, "audit has the name ''"),
        ([NEGATIVE], "give a SELECT whose rows are faults, a function, or a mapping"),
        (str, "give a SELECT"),
        (lambda: None, r"called with the records of the day.* it takes \(\)"),
        (lambda records, table: None, r"it takes \(records, table\)"),
        (generated, "no generator"),
        (later, "not asynchronous"),
    ],
)
@WRITERS
def test_what_is_no_audit_is_refused(audit: Any, says: str, writer: Any) -> None:
    with pytest.raises(PipelineDefinitionError, match=f"(?s)^writer of (table|folder) 'top'.*{says}|{says}"):
        writer(audit)


@pytest.mark.parametrize("on_new_run", ["append", "replace", "error"])
@WRITERS
def test_an_audit_needs_a_day(on_new_run: str, writer: Any) -> None:
    with pytest.raises(PipelineDefinitionError, match="audit is asked before a day is replaced, so it needs"):
        writer(NEGATIVE, on_new_run=on_new_run, by=())


@pytest.mark.parametrize(
    ("audit", "says"),
    [
        ("SELECT * FROM top WHERE day = :dya", "operator 'save' refers to parameter 'dya'.*Did you mean 'day'"),
        ("SELECT * FROM top WHERE day = '{day}'", "a query names it :day, without quotes"),
    ],
)
@WRITERS
def test_parameters_that_there_are_not_are_refused(audit: str, says: str, writer: Any) -> None:
    with pytest.raises(PipelineDefinitionError, match=says):
        pipeline(audit, writer)


def test_functions_may_be_objects() -> None:
    class Most:
        def __call__(self, records: Iterator[pa.Table]) -> str | None:
            return None

    given: Callable[..., Any] = Most()
    assert writer({"most": given}).audits[0].asked(iter([])) == ""
    assert writer(rows_at_fault).audits[0].name == "rows_at_fault"
