"""A pipeline that has been checked and no longer changes, and its fingerprint (DESIGN decision 13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_logio.dataflow.definition import Definition, with_own_groups
from airflow_logio.dataflow.describing import digest
from airflow_logio.dataflow.graph import Graph
from airflow_logio.dataflow.groups import Group
from airflow_logio.dataflow.lineage import LineagePorts, LineageScope, lineage_ports, lineage_starts
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.validation import check_whole


@dataclass(frozen=True)
class Frozen:
    """Operators in topological order; groups in the order of their first operator; (IN, OUT) of each operator."""

    definition: Definition
    graph: Graph
    operators: dict[str, Operator]
    groups: dict[str, Group]
    scopes: tuple[LineageScope, ...]
    lineage: dict[str, LineagePorts]
    lineage_starts: dict[str, frozenset[str]]

    @classmethod
    def of(cls, definition: Definition) -> Frozen:
        """Check a definition and freeze it; raises PipelineDefinitionError."""
        graph = check_whole(definition)
        order = graph.topological()
        operators = {name: definition.operators[name] for name in order}
        groups = with_own_groups(definition.groups, order)
        scopes = tuple(definition.scopes)
        captured, starts = lineage_ports(graph, scopes), lineage_starts(graph, scopes)
        return cls(definition, graph, operators, groups, scopes, captured, starts)

    def describe(self) -> dict[str, Any]:
        """JSON-able structure. Spark settings are left out: more memory must not make it another pipeline."""
        return {
            "pipeline": self.definition.name,
            "params": {name: kind.__name__ for name, kind in sorted(self.definition.params.items())},
            "connections": sorted(self.definition.connections),
            "operators": {name: operator.describe() for name, operator in self.operators.items()},
            "senders": {str(receiver): str(sender) for receiver, sender in self.graph.senders.items()},
            "groups": {name: list(group.operators) for name, group in self.groups.items()},
            "lineage": sorted([str(scope.start), str(scope.target)] for scope in self.scopes),
        }

    def fingerprint(self) -> dict[str, str]:
        """Hashes ``graph`` (of `describe`) and ``code`` (of the authors' source text)."""
        code = {name: operator.code() for name, operator in self.operators.items()}
        return {"graph": digest(self.describe()), "code": digest(code)}
