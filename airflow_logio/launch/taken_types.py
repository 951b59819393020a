"""A person resumes a run whose pipeline has other types of columns by now: taken, if nothing is in these columns (ADR-73)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.table_writer import TableWriter
from airflow_logio.dataflow.write_actions import Marker
from airflow_logio.errors import IncompatibleRun, WriteRefused
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import Run
from airflow_logio.store.rules.type_rules import ChangedTypes, TypeChange, changed_types, check_at_rest
from airflow_logio.systems.warehouse import Warehouse

log = logging.getLogger(__name__)


def take_types(
    store: LogStore,
    run: Run,
    pipeline: Pipeline,
    url_of: Callable[[str], str],
    say: Callable[[str], None] = log.info,
) -> Run:
    """The run, with the types of columns that `pipeline` has; as it is, if these are no difference, or not the only one.

    The groups of the writers must be parked, halted or new. First the warehouses: no row of the run is in the tables, and
    earlier drivers are fenced there. Then the log, in one transaction; a driver that is launched later gives an empty
    table its types. Whoever dies in between has changed nothing that a later attempt does not do again.

    `url_of` gives the URL of a connection, `say` tells the person what was taken. Raises `IncompatibleRun` with the reason if
    the types cannot be taken, `Fenced`, `ExternalUnavailable`, and what the log raises.
    """
    graph, fingerprint = pipeline.describe(), pipeline.fingerprint()["graph"]
    if fingerprint == run.spec.graph_fingerprint:
        return run
    writers = {name: one for name, one in pipeline.operators.items() if isinstance(one, TableWriter)}
    types = changed_types(run.spec.graph, graph, writers)
    if not types:
        return run
    incarnations = _at_rest(store, run, types)
    for name in types:
        _check_unwritten(run, name, writers[name], url_of, incarnations[run.spec.operators[name].group] + 1)
    change = TypeChange(types, graph, fingerprint, run.spec.graph_fingerprint, incarnations)
    changed = store.change_types(run.run_id, change)
    say(f"run {run.spec.key} takes other types of columns: {told(types)}")
    return changed


def told(types: ChangedTypes) -> str:
    """In words: writer, column, from, to."""
    return "; ".join(
        f"{writer}.{column} was {was}, is {now}"
        for writer, columns in types.items()
        for column, (was, now) in columns.items()
    )


def _at_rest(store: LogStore, run: Run, types: ChangedTypes) -> Mapping[str, int]:
    incarnations = {}
    for writer in types:
        group = run.spec.operators[writer].group
        if group in run.spec.replicated:
            raise IncompatibleRun(
                f"types of columns have changed ({told(types)}), and writer {writer!r} is in a replicated group, whose slots "
                f"write each for itself: restore the types, or start a fresh run (`logio fresh {run.uid[:8]}`)"
            )
        status = store.group(run.run_id, group)
        check_at_rest(run, group, status.state)
        incarnations[group] = status.incarnation
    return incarnations


def _check_unwritten(run: Run, operator: str, writer: TableWriter, url_of: Callable[[str], str], token: int) -> None:
    marker = Marker(run.uid, operator, writer.connection, 0, token, run.created_at)
    with closing(Warehouse(writer.connection, url_of(writer.connection))) as warehouse:
        try:
            warehouse.fence_unwritten(marker, writer)
        except WriteRefused as error:
            raise IncompatibleRun(
                f"types of columns of writer {operator!r} have changed, and it is too late for this run: {error}. Restore "
                f"the types and `logio retry {run.uid[:8]}`, or start a fresh run (`logio fresh {run.uid[:8]}`)"
            ) from error
