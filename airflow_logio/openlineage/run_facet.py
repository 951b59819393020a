"""Run facet ``logio``: what the log knows of a run, or of one of its groups. Its schema is `LogioRunFacet.json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attr
from openlineage.client.generated.base import RunFacet

from airflow_logio import __version__
from airflow_logio.status.authored_figures import ports_seen
from airflow_logio.status.whole_group import members_of
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, RunFigures

NAME = "logio"
SCHEMA_URL = "urn:airflow-logio:openlineage:1-1-0:LogioRunFacet.json#/$defs/LogioRunFacet"
PRODUCER = f"urn:airflow-logio:{__version__}"
_DIRECTIONS = {"out": "sent", "in": "acknowledged", "write": "written"}


@attr.define
class LogioRunFacet(RunFacet):
    """As in the schema."""

    pipeline: str
    run: str
    generation: int
    group: str | None
    incarnations: int
    recoveries: int
    groups: list[dict[str, Any]]
    inputSets: dict[str, Any]
    ports: list[dict[str, Any]]
    pageUrl: str | None = None
    partition: str | None = None

    @staticmethod
    def _get_schema() -> str:
        return SCHEMA_URL


def run_facet(run: Run, group: str | None, statuses: Sequence[GroupStatus], figures: RunFigures) -> LogioRunFacet:
    """The facet of one group with its replicas, or of the whole run; the arguments may be those of the whole run."""

    def is_ours(operator: str) -> bool:
        shape = run.spec.operators.get(operator)
        return group is None or (shape is not None and shape.group == group)

    members = set(run.spec.groups) if group is None else set(members_of(run, group))
    ours = sorted((one for one in statuses if one.group in members), key=lambda one: one.group)
    aside = [found.input_sets for name, found in figures.quarantined.items() if group in (None, name)]
    rows = ports_seen(run, [row for row in figures.ports if is_ours(row.port.operator)])
    return LogioRunFacet(
        producer=PRODUCER,
        pipeline=run.spec.key.pipeline,
        run=run.uid,
        generation=run.spec.key.generation,
        group=group,
        incarnations=sum(one.incarnation for one in ours),
        recoveries=sum(one.recoveries for one in ours),
        groups=[
            {
                "group": one.group,
                "state": one.state.value,
                "incarnation": one.incarnation,
                "recoveries": one.recoveries,
            }
            for one in ours
        ],
        inputSets={
            "openEvents": sum(count for port, count in figures.under_way.open.items() if is_ours(port.operator)),
            "quarantined": sum(aside),
        },
        ports=[
            {
                "port": str(row.port),
                "direction": _DIRECTIONS[row.direction],
                "events": row.events,
                "records": row.records,
            }
            for row in sorted(rows, key=lambda row: (str(row.port), row.direction))
        ],
        partition=run.partition,
    )
