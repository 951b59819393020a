"""The Airflow assets that a pipeline writes, and what an event of one says (ADR-99)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from airflow.sdk import Asset

from airflow_logio.asset_uris import create_asset
from airflow_logio.dataflow.operators import WriterOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol.replicas import base_operator
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run

WRITE = "write"


def assets_of(
    pipeline: Pipeline, connections: Mapping[str, str], named: Mapping[str, str | Asset] | None = None
) -> dict[str, Asset]:
    """Writer → the asset that it writes: ``logio://<connection id>/<table or folder>``, or as `named` by writer.

    These are the writers of tables and of datasets; others only if they are named. Raises `ConfigurationError`.
    """
    operators = pipeline.operators.items()
    writers = {base_operator(name): one for name, one in operators if isinstance(one, WriterOperator)}
    ready_made = [one for one in writers.values() if isinstance(one, TableWriter | DatasetWriter)]
    if missing := sorted({one.connection for one in ready_made} - connections.keys()):
        raise ConfigurationError(
            f"assets: pipeline {pipeline.name!r} needs a connection id for {', '.join(missing)}: "
            f'connections={{"{missing[0]}": "<Airflow connection id>"}}'
        )
    found = {
        name: create_asset(connection_id=connections[operator.connection], place=_place(operator))
        for name, operator in writers.items()
        if isinstance(operator, TableWriter | DatasetWriter) and name not in (named or {})
    }
    for name, given in (named or {}).items():
        if name not in writers:
            raise ConfigurationError(
                f"assets: pipeline {pipeline.name!r} has no writer {name!r}; it has {sorted(writers)}"
            )
        found[name] = given if isinstance(given, Asset) else Asset(_without_password(given))
    if not found:
        raise ConfigurationError(
            f"assets: pipeline {pipeline.name!r} writes no table and no dataset; name what its writers write: "
            'assets={"<writer>": "<URI>"}'
        )
    return found


def extras(store: LogStore, run: Run, assets: Mapping[str, Asset], state: str) -> dict[str, dict[str, Any]]:
    """Writer → what an event says: which run, and how much of it has been applied at the destination."""
    records, last = dict.fromkeys(assets, 0), {name: dict[str, int]() for name in assets}
    for row in store.progress(run.run_id):
        name = base_operator(row.port.operator)
        if row.direction == WRITE and name in assets:
            records[name] += row.records
            last[name][row.port.operator] = row.events
    key = run.spec.key
    return {
        name: {
            "pipeline": key.pipeline,
            "dag_id": key.dag_id,
            "dag_run_id": key.dag_run_id,
            "run": run.uid,
            "state": state,
            "records": records[name],
            "last_write_action": last[name],
        }
        for name in assets
    }


def _place(operator: TableWriter | DatasetWriter) -> str:
    return operator.table if isinstance(operator, TableWriter) else operator.folder


def _without_password(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.password or any("password" in name.lower() for name, _ in parse_qsl(parts.query)):
        raise ConfigurationError("assets: a URI has a password in it; everyone who sees the asset would see it, too")
    return uri
