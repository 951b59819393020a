"""`ManualOperator`: its author drives the protocol by hand (Section 6.3), with `airflow_logio.contrib.paper_api`."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from airflow_logio.dataflow.definition import Definition
from airflow_logio.dataflow.operators import Operator

if TYPE_CHECKING:
    from airflow_logio.contrib.paper_api import Logio


class ManualOperator(Operator):
    """Declares ports and connections like every operator; its one method is executed in place of the group's loop.

    It is alone in its group. Without input ports it is a source; add it with `Pipeline.operator` in any case. Connections
    that it only reads are named by `connections`, those it writes to by `writes`, with the guarantee that its author makes.
    """

    @abstractmethod
    def run(self, logio: Logio) -> None:
        """Recover, then process until every input has ended; on return the end of the stream is logged.

        Called by the driver at every start, the first and every recovery alike. Keep what changes in local objects: a
        rebuild in place calls it again on the same operator. Do not catch errors of `logio`. Any other error ends the
        driver, which is recovered within the budget.
        """


_OF_THE_LOOP = ("mode", "reads_state", "port_order", "sends_after_writes", "on_error")
"""Declarations that the group's loop obeys; a hand-written operator has no loop."""


def check_manual(definition: Definition, name: str, operator: Operator) -> None:
    """Refuse declarations of a hand-written operator that would have no effect; raises PipelineDefinitionError."""
    if not isinstance(operator, ManualOperator):
        return
    for declared in _OF_THE_LOOP:
        if getattr(operator, declared) != getattr(Operator, declared):
            definition.refuse(
                f"operator {name!r} is written by hand and declares {declared}={getattr(operator, declared)!r}, which only "
                "the loop of a group obeys; do it in run(), and leave the declaration out"
            )


def check_alone(definition: Definition) -> None:
    """A hand-written operator drives its group, so the group has no other; raises PipelineDefinitionError."""
    for group in definition.groups.values():
        manual = [name for name in group.operators if isinstance(definition.operators[name], ManualOperator)]
        if manual and len(group.operators) > 1:
            definition.refuse(
                f"group {group.name!r} contains {manual[0]!r}, which is written by hand and drives its group alone; give it "
                "a group of its own"
            )
