"""What an author says of rows that are updated by their keys: ``TableWriter(..., mode="upsert", version="updated_at")``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_logio.dataflow.column_types import DECIMAL
from airflow_logio.dataflow.names import did_you_mean, quoted
from airflow_logio.errors import PipelineDefinitionError

INSERT, UPSERT = "insert", "upsert"
UPDATE = "update"
"""What a new run does to the rows of earlier ones: it leaves them, and updates those whose keys come again."""
ON_NEW_RUN_OF_UPSERTS = (UPDATE, "replace", "error")
VERSION_TYPES = ("bigint", "int", "double", DECIMAL, "timestamp", "timestamptz", "date")
"""Types whose order is the same in each database. That of texts is a matter of collations."""


def check_mode(where: str, mode: str, on_new_run: str | None, version: str | None) -> str:
    """What a new run does to old rows, in a mode. Raises PipelineDefinitionError for what is no mode, and for a word on
    upserts without one."""
    if mode not in (INSERT, UPSERT):
        raise PipelineDefinitionError(
            f"{where}: mode={mode!r} is none of {quoted((INSERT, UPSERT))}.{did_you_mean(mode, (INSERT, UPSERT))}"
        )
    if mode == INSERT:
        if version is not None:
            raise PipelineDefinitionError(
                f"{where}: version={version!r} is for mode='upsert': write that, or leave it out"
            )
        return "error" if on_new_run is None else on_new_run
    found = UPDATE if on_new_run is None else on_new_run
    if found not in ON_NEW_RUN_OF_UPSERTS:
        raise PipelineDefinitionError(
            f"{where}: on_new_run={found!r} with mode='upsert' is none of {quoted(ON_NEW_RUN_OF_UPSERTS)}. Leave it out, and "
            "rows of earlier runs stay until their keys come again"
        )
    return found


def check_key(
    where: str,
    primary_key: Sequence[str],
    version: str | None,
    columns: Mapping[str, str] | None,
    lineage_column: str | None,
) -> None:
    """Raises PipelineDefinitionError for an upsert that has no key, or a version that decides nothing."""
    if not primary_key:
        raise PipelineDefinitionError(
            f"{where}: mode='upsert' updates rows by their key: write primary_key=('id',) with its columns"
        )
    if version is None:
        return
    if version in primary_key:
        raise PipelineDefinitionError(
            f"{where}: version {version!r} is a column of the primary key, so each version would be a row of its own: leave "
            "it out of primary_key"
        )
    if version == lineage_column:
        raise PipelineDefinitionError(
            f"{where}: version {version!r} is the lineage column, which is no version of a row"
        )
    if columns is None:
        return
    if version not in columns:
        raise PipelineDefinitionError(
            f"{where}: version {version!r} is not among its columns.{did_you_mean(version, columns)}"
        )
    kind = columns[version]
    if kind.partition("(")[0] not in VERSION_TYPES:
        raise PipelineDefinitionError(f"{where}: {no_version(version, kind)}")


def no_version(column: str, kind: object) -> str:
    """Why a column of a type says no version, and what to do."""
    return (
        f"column {column!r} is {kind}, and a version is of a type that each database orders alike: "
        f"{', '.join(VERSION_TYPES)}. Cast it to one of these before the writer"
    )
