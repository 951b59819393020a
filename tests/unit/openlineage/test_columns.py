"""Column lineage: what is declared, what follows from ready-made operators, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio import (
    ByKey,
    EveryEvents,
    ParquetSource,
    Pipeline,
    QuerySource,
    TableRead,
    TableWriter,
    generate,
    stateless,
)
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.openlineage.external_datasets import ExternalDatasets
from airflow_logio.openlineage.group_datasets import GroupDatasets

LOG = "postgresql://me:s3cret@log/logio"
URLS = {"shop": "postgresql://me:s3cret@db/shop"}
PORTS, SHOP = "logio://log:5432/logio", "postgres://db:5432"
COLUMNS = {"store_id": "bigint", "revenue": "double"}


@generate(reads={"stores": TableRead("shop", "stores", ("store_id", "name"), key="store_id")})
def earned(sales: pa.Table, stores: pa.Table) -> pa.Table:
    return sales


@stateless
def cleaned(sales: pa.Table) -> pa.Table:
    return sales


def pipeline(declared: Mapping[str, Any] | None = None, *, replicated: bool = False) -> Pipeline:
    """A source of its own group, a function of the author, and a writer of its own group."""
    one = Pipeline("p", connections=["shop"], fuse=False)
    read = one.source("read", QuerySource("shop", table="sales", columns={"store_id": "bigint", "value": "double"}))
    sums = one.operator("sums", earned, read, window=EveryEvents(2))
    one.writer("save", TableWriter("shop", "totals", COLUMNS, lineage_column="event"), sums)
    if declared is not None:
        one.column_lineage("sums", declared)
    if replicated:
        one.replicate("sums", partition=ByKey("store_id"), max=2)
    return one.unreplicated()


def datasets_of(one: Pipeline, group: str | None) -> GroupDatasets:
    external = ExternalDatasets({}, URLS.__getitem__)
    return GroupDatasets(one, group, LOG, lambda _: external, None)


def facets_of(one: Pipeline, group: str | None, table: tuple[str, str]) -> dict[str, Any]:
    [output] = [found for found in datasets_of(one, group).outputs() if (found.namespace, found.name) == table]
    return output.facets or {}


def columns(one: Pipeline, group: str | None, table: tuple[str, str]) -> dict[str, list[tuple[str, str, str, bool]]]:
    """Column of an output → (namespace, name, column, values are handed on as they are)."""
    facets = facets_of(one, group, table)
    if "columnLineage" not in facets:
        return {}
    return {
        column: [(o.namespace, o.name, o.field, bool(o.transformations)) for o in fields.inputFields]
        for column, fields in facets["columnLineage"].fields.items()
    }


TOTALS = SHOP, "shop.public.totals"


def test_a_source_of_a_table_hands_its_columns_on() -> None:
    found = columns(pipeline(), "read", (PORTS, "p.read.out"))
    assert found == {
        "store_id": [(SHOP, "shop.public.sales", "store_id", True)],
        "value": [(SHOP, "shop.public.sales", "value", True)],
    }


def test_a_writer_writes_the_columns_that_it_gets_but_that_of_the_event() -> None:
    found = columns(pipeline(), "save", TOTALS)
    assert found == {
        "store_id": [(PORTS, "p.sums.out", "store_id", True)],
        "revenue": [(PORTS, "p.sums.out", "revenue", True)],
    }


def test_nothing_is_said_of_what_an_authors_function_does() -> None:
    assert columns(pipeline(), "sums", (PORTS, "p.sums.out")) == {}
    assert columns(pipeline(), None, TOTALS) == {}


@pytest.mark.parametrize("replicated", [False, True])
def test_what_the_author_declares_joins_what_is_derived(replicated: bool) -> None:
    one = pipeline({"store_id": "store_id", "revenue": ["value", "stores.name"]}, replicated=replicated)
    assert columns(one, "sums", (PORTS, "p.sums.out")) == {
        "store_id": [(PORTS, "p.read.out", "store_id", False)],
        "revenue": [(PORTS, "p.read.out", "value", False), (SHOP, "shop.public.stores", "name", False)],
    }
    assert columns(one, None, TOTALS) == {
        "store_id": [(SHOP, "shop.public.sales", "store_id", False)],
        "revenue": [(SHOP, "shop.public.sales", "value", False), (SHOP, "shop.public.stores", "name", False)],
    }


def test_a_column_with_one_unknown_origin_has_none() -> None:
    """Half of the truth would look like all of it."""
    one = Pipeline("p", connections=["shop"], fuse=False)
    read = one.source("read", ParquetSource("/data/a.parquet", columns=["a"], transform=lambda table: table))
    clean = one.operator("clean", cleaned, read)
    one.writer("save", TableWriter("shop", "totals", {"a": "bigint"}), clean)
    one.column_lineage("clean", {"a": "a"})
    one.group("all", "read", "clean", "save")
    assert columns(one.freeze(), "all", TOTALS) == {}


class Masked(TableWriter):
    """It writes what it likes."""


def totals(columns: Mapping[str, str] | None = None, kind: type[TableWriter] = TableWriter) -> TableWriter:
    return kind("shop", "totals", columns, on_new_run="append")


def two_writers(*writers: TableWriter, declared: bool = False) -> Pipeline:
    """One source of a table, a function of the author, and writers of one table: of the source, and of the function."""
    one = Pipeline("p", connections=["shop"], fuse=False)
    read = one.source("read", QuerySource("shop", table="sales", columns=COLUMNS))
    clean = one.operator("clean", cleaned, read)
    for number, (writer, sender) in enumerate(zip(writers, (read, clean), strict=False)):
        one.writer(f"save_{number}", writer, sender)
    if declared:
        one.column_lineage("clean", {"store_id": "store_id", "revenue": "store_id"})
    return one.freeze()


def test_a_class_derived_from_a_ready_made_writer_hands_on_nothing() -> None:
    one = Pipeline("p", connections=["shop"], fuse=False)
    read = one.source("read", QuerySource("shop", table="sales", columns=COLUMNS))
    one.writer("save", totals(COLUMNS, Masked), read)
    assert facets_of(one.freeze(), None, TOTALS) == {}


def test_what_one_of_two_writers_does_not_know_is_not_known() -> None:
    known = totals(COLUMNS)
    assert columns(two_writers(known, totals(COLUMNS)), None, TOTALS) == {}
    assert columns(two_writers(known, totals()), None, TOTALS) == {}
    assert columns(two_writers(known, totals(COLUMNS, Masked)), None, TOTALS) == {}
    assert "schema" not in facets_of(two_writers(known, totals()), None, TOTALS)


def test_two_writers_that_know_are_joined() -> None:
    store, revenue = (totals({name: COLUMNS[name]}) for name in COLUMNS)
    source = SHOP, "shop.public.sales"
    assert columns(two_writers(store, revenue, declared=True), None, TOTALS) == {
        "store_id": [(*source, "store_id", True)],
        "revenue": [(*source, "store_id", False)],
    }
    both = (totals(COLUMNS) for _ in range(2))
    assert columns(two_writers(*both, declared=True), None, TOTALS) == {
        "store_id": [(*source, "store_id", False)],
        "revenue": [(*source, "revenue", True), (*source, "store_id", False)],
    }


def test_a_schema_is_told_where_all_columns_are_known() -> None:
    """What is read, and what an author has declared, may be a part of the columns."""
    one = pipeline({"revenue": "value"})
    schema = facets_of(one, "save", TOTALS)["schema"]
    assert {field.name: field.type for field in schema.fields} == {**COLUMNS, "event": "bigint"}
    assert "schema" not in facets_of(one, "sums", (PORTS, "p.sums.out"))
    assert [found.facets for found in datasets_of(one, "read").inputs()] == [{}]


def test_a_declaration_is_no_part_of_what_a_run_resumes_with() -> None:
    assert pipeline({"revenue": "value"}).fingerprint() == pipeline().fingerprint()


@pytest.mark.parametrize(
    ("output", "declared", "said"),
    [
        ("sums", {"revenue": "store.name"}, r"no input port and no declared read 'store'. Did you mean 'stores'"),
        ("sums", {}, r"give column → input columns"),
        ("read", {"value": "value"}, r"'read' is a source"),
        ("sum", {"revenue": "value"}, r"column lineage names port 'sum'"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(output: str, declared: dict[str, str], said: str) -> None:
    one = Pipeline("p", connections=["shop"], fuse=False)
    read = one.source("read", QuerySource("shop", table="sales"))
    one.operator("sums", earned, read, window=EveryEvents(2))
    with pytest.raises(PipelineDefinitionError, match=said):
        one.column_lineage(output, declared)


def test_a_second_declaration_of_a_port_is_refused() -> None:
    one = Pipeline("p", connections=["shop"], fuse=False)
    one.operator("sums", earned, one.source("read", QuerySource("shop", table="sales")), window=EveryEvents(2))
    one.column_lineage("sums", {"revenue": "value"})
    with pytest.raises(PipelineDefinitionError, match="declared twice"):
        one.column_lineage("sums.out", {"revenue": "value"})
