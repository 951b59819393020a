"""Upkeep of a simulated run beside its drivers' work: retries of Input Sets, retention of lineage, shared bodies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from airflow_logio.protocol.effects import ExpireLineage, Kept, SweepShared
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.run_records import OperatorShape
from airflow_logio.testing.simulator.plan import GroupPlan, Scenario, Sweep


def shapes(plans: Mapping[str, GroupPlan]) -> dict[str, OperatorShape]:
    """The graph as the log keeps it. A retry looks up the ends of streams behind an Input Set in it."""
    senders = senders_of(plans)
    return {
        spec.name: OperatorShape(
            plan.name, {port: str(senders[Port(spec.name, port)]) for port in spec.inputs}, spec.outputs
        )
        for plan in plans.values()
        for spec in plan.operators
    }


def senders_of(plans: Mapping[str, GroupPlan]) -> dict[Port, Port]:
    """Input port → output port."""
    return {
        receiver: sender for plan in plans.values() for sender, ports in plan.receivers.items() for receiver in ports
    }


def sweeps_of(scenario: Scenario, plans: Mapping[str, GroupPlan]) -> Sequence[Sweep]:
    """As `driver/garbage.py`, but without an order: every batch must be harmless at any time."""
    if scenario.retention is None:
        return ()
    if scenario.sweeps is not None:
        return scenario.sweeps
    return [*_expiring(plans, scenario.retention), *_shared(plans)]


def _expiring(plans: Mapping[str, GroupPlan], retention: float) -> Iterator[Sweep]:
    def expiry(operator: str, kept: Kept, name: str = "", ports: tuple[str, ...] = ()) -> Sweep:
        return lambda limit: ExpireLineage(operator, kept, retention, 0, limit, name, ports)

    for plan in plans.values():
        for spec in plan.operators:
            ports = tuple(sorted(spec.lineage_out))
            for port in ports:
                yield expiry(spec.name, Kept.EVENTS, port)
            if ports and not spec.inputs:
                yield expiry(spec.name, Kept.SOURCE_READS, ports=ports)
            if ports and spec.reads_state:
                yield expiry(spec.name, Kept.STATES)


def _shared(plans: Mapping[str, GroupPlan]) -> Iterator[Sweep]:
    group_of = {spec.name: plan.name for plan in plans.values() for spec in plan.operators}
    kept = {Port(spec.name, port) for plan in plans.values() for spec in plan.operators for port in spec.lineage_out}

    def sweep(sender: Port) -> Sweep:
        return lambda limit: SweepShared(sender, 0, limit)

    for plan in plans.values():
        for sender, receivers in plan.receivers.items():
            if sender not in kept and len({group_of[receiver.operator] for receiver in receivers}) > 1:
                yield sweep(sender)


def from_log(plans: Mapping[str, GroupPlan]) -> frozenset[tuple[str, str]]:
    """Input ports whose events come from the log."""
    return frozenset(
        (port.operator, port.name)
        for plan in plans.values()
        for port in GroupProtocol(plan.operators, plan.receivers, plan.lineage_in).inputs_from_log()
    )
