"""Writers that update rows by their keys: what is refused when a pipeline is defined."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_logio.dataflow import ByKey, ParquetSource, Pipeline, RoundRobin, StatelessOperator, TableWriter
from airflow_logio.dataflow.replication.partition import Partition
from airflow_logio.errors import PipelineDefinitionError

COLUMNS = {"id": "bigint", "at": "timestamp", "who": "text"}


def writer(**given: Any) -> TableWriter:
    made = {"columns": COLUMNS, "primary_key": ("id",), "mode": "upsert", "version": "at", **given}
    return TableWriter("wh", made.pop("table", "t"), **made)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"mode": "upsrt"}, r"mode='upsrt' is none of 'insert' and 'upsert'. Did you mean 'upsert'"),
        ({"mode": "insert"}, "version='at' is for mode='upsert'"),
        ({"primary_key": ()}, r"write primary_key=\('id',\)"),
        ({"version": "att"}, "version 'att' is not among its columns. Did you mean 'at'"),
        ({"version": "id"}, "version 'id' is a column of the primary key"),
        ({"version": "who"}, "column 'who' is text, and a version is of a type that each database orders alike"),
        ({"version": "event", "lineage_column": "event"}, "is the lineage column"),
        (
            {"on_new_run": "append"},
            r"on_new_run='append' with mode='upsert' is none of 'update', 'replace' and 'error'",
        ),
        ({"on_new_run": "overwrite", "by": ("id",)}, "on_new_run='overwrite' with mode='upsert'"),
        ({"by": ("id",)}, "by="),
        ({"mode": "insert", "version": None, "on_new_run": "update"}, "on_new_run='update' is none of"),
        ({"primary_key": ("id", "x")}, "primary key column 'x' is not among its columns"),
    ],
)
def test_what_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=why):
        writer(**given)


@pytest.mark.parametrize("kind", ["bigint", "int", "double", "decimal(9,2)", "timestamp", "timestamptz", "date"])
def test_what_may_be_a_version(kind: str) -> None:
    assert writer(columns={"id": "text", "at": kind}).version == "at"


def test_a_writer_that_inserts_is_described_as_in_earlier_versions() -> None:
    inserts = TableWriter("wh", "t", COLUMNS, ("id",)).settings()
    assert not {"upserts", "version", "mode", "order_insensitive"} & inserts.keys()
    assert inserts["on_new_run"] == "error"
    settings = writer(version=None).settings()
    assert (settings["upserts"], settings["version"], settings["on_new_run"]) == (True, None, "update")


class Same(StatelessOperator):
    def process(self, event: Any, external: Any) -> Any:
        raise NotImplementedError


class Checked(Same):
    on_error = "quarantine"


def pipeline(
    one: TableWriter, by: Partition | None = None, *, alone: bool = True, before: StatelessOperator | None = None
) -> Pipeline:
    made = Pipeline("p", connections=["wh"])
    source = made.source("numbers", ParquetSource("/nowhere"))
    same = made.operator("same", before or Same(), source)
    made.writer("save", one, same)
    made.group("reading", *(("numbers", "same") if alone else ("numbers",)))
    made.group("writing", *(("save",) if alone else ("same", "save")))
    if by is not None:
        made.replicate("writing", partition=by, max=2)
    return made


@pytest.mark.parametrize(
    ("by", "alone", "is_right"),
    [
        (ByKey("id"), True, True),
        (ByKey("id"), False, False),
        (ByKey("who"), True, False),
        (ByKey("id", "who"), True, False),
        (RoundRobin(), True, False),
    ],
)
def test_without_a_version_each_key_has_one_slot(by: Partition, alone: bool, is_right: bool) -> None:
    pipeline(writer(), by, alone=alone).freeze()
    last_wins = pipeline(writer(version=None), by, alone=alone)
    if is_right:
        last_wins.freeze()
        return
    with pytest.raises(PipelineDefinitionError, match=r"updates rows without a version: slots.*ByKey\('id'\)"):
        last_wins.freeze()


def test_without_a_version_nothing_comes_late() -> None:
    pipeline(writer(), before=Checked()).freeze()
    with pytest.raises(
        PipelineDefinitionError, match=r"sets Input Sets aside.*'save' behind it updates rows without a version"
    ):
        pipeline(writer(version=None), before=Checked()).freeze()


def test_two_writers_of_one_table_agree() -> None:
    def both(one: TableWriter, other: TableWriter) -> Pipeline:
        made = pipeline(one)
        made.writer("also", other, "same")
        return made

    both(writer(), writer()).freeze()
    for other in (writer(version=None), writer(primary_key=("id", "who")), writer(table="s.t", version=None)):
        with pytest.raises(PipelineDefinitionError, match="let both have the same primary_key, and the same version"):
            both(writer(), other).freeze()
    with pytest.raises(PipelineDefinitionError, match="let both have the same primary_key"):
        both(writer(version=None), writer(version=None)).freeze()
    with pytest.raises(PipelineDefinitionError, match="both write table"):
        both(writer(), writer(on_new_run="replace")).freeze()
    with pytest.raises(PipelineDefinitionError, match="A database may take both names for one table"):
        both(writer(), writer(table="s.t", on_new_run="replace")).freeze()
