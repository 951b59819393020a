"""A pipeline that has been checked and no longer changes, and its fingerprint (design D13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_logio.dataflow.definition import Definition
from airflow_logio.dataflow.describing import digest
from airflow_logio.dataflow.expansion import expanded
from airflow_logio.dataflow.graph import Graph
from airflow_logio.dataflow.lineage_scopes import LineagePorts, LineageScope, lineage_ports, lineage_starts
from airflow_logio.dataflow.operator_groups import Group
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.replication.replicated import Replicated
from airflow_logio.dataflow.replication_conditions import check_replicated
from airflow_logio.dataflow.validation import check_whole


@dataclass(frozen=True)
class Frozen:
    """What runs. Operators in topological order; groups in the order of their first operator; (IN, OUT) of each operator.

    Operators of replicated groups are there once per slot, with their Dispatchers and Mergers.
    """

    authored: Definition
    """As the author wrote it, every operator in a group."""
    graph: Graph
    operators: dict[str, Operator]
    groups: dict[str, Group]
    homes: dict[str, str]
    """Operator → group."""
    replicated: dict[str, Replicated]
    scopes: tuple[LineageScope, ...]
    lineage: dict[str, LineagePorts]
    lineage_starts: dict[str, frozenset[str]]

    @classmethod
    def of(cls, definition: Definition) -> Frozen:
        """Check a definition and freeze it; raises PipelineDefinitionError."""
        authored, written = check_whole(definition)
        for one in definition.replicated:
            check_replicated(authored, written, one)
        runs = expanded(authored, written)
        graph = runs.graph()
        order = graph.topological()
        scopes = tuple(runs.scopes)
        return cls(
            authored,
            graph,
            {name: runs.operators[name] for name in order},
            runs.groups,
            {name: group.name for group in runs.groups.values() for name in group.operators},
            {one.group: one for one in definition.replicated},
            scopes,
            lineage_ports(graph, scopes),
            lineage_starts(graph, scopes),
        )

    def describe(self) -> dict[str, Any]:
        """JSON-able structure. Spark settings are left out: more memory must not make it another pipeline.

        The numbers of replicas are left out, too, but for the largest one: it is part of the graph.
        """
        authored = self.authored
        graph = authored.graph()
        described = {
            "pipeline": authored.name,
            "params": {name: kind.__name__ for name, kind in sorted(authored.params.items())},
            "connections": sorted(authored.connections),
            "operators": {name: self._described(name) for name in graph.topological()},
            "senders": {str(receiver): str(sender) for receiver, sender in graph.senders.items()},
            "groups": {name: list(group.operators) for name, group in authored.groups.items()},
            "lineage": sorted([str(scope.start), str(scope.target)] for scope in authored.scopes),
        }
        if self.replicated:
            described["replicated"] = {
                name: {**one.partition.describe(), "slots": one.slots, "max": one.most, "ordered": one.ordered}
                for name, one in self.replicated.items()
            }
        return described

    def _described(self, operator: str) -> dict[str, Any]:
        described = self.authored.operators[operator].describe()
        return described | {"replay": True} if operator in self.authored.replays else described

    def fingerprint(self) -> dict[str, str]:
        """Hashes ``graph`` (of `describe`) and ``code`` (of the authors' source text)."""
        code = {name: operator.code() for name, operator in self.authored.operators.items()}
        return {"graph": digest(self.describe()), "code": digest(code)}
