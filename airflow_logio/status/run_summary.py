"""How a run ended, as one value: from the log, under any supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.protocol.replicas import base_operator, slot_of
from airflow_logio.protocol.states import GroupState
from airflow_logio.status.authored_figures import ports_seen
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import DriverRecord
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, PortProgress
from airflow_logio.store.records.upkeep_records import QuarantinedInputSet


class Outcome(StrEnum):
    FINISHED = "finished"
    QUARANTINED = "finished with quarantine"
    PARKED = "parked"
    HALTED = "halted"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Times of ports and drivers are seconds by the log database's clock; `seconds` is the supervisor's."""

    outcome: Outcome
    run: Run
    seconds: float
    groups: tuple[GroupStatus, ...]
    ports: tuple[PortProgress, ...]
    drivers: tuple[DriverRecord, ...]
    records: int
    """Records sent by the sources."""
    quarantined: tuple[QuarantinedInputSet, ...]
    """Input Sets that are set aside."""
    peak_rss: Mapping[str, int]
    """Largest resident memory seen per group, Python and JVM together, in bytes."""

    @property
    def event_seconds(self) -> float | None:
        """Time from the first event sent to the last action on any event; None if there was no event."""
        sent = [row.first_at for row in self.ports if row.direction == "out" and row.events]
        return max(row.last_at for row in self.ports) - min(sent) if sent else None

    @property
    def records_per_second(self) -> float | None:
        return self.records / self.event_seconds if self.event_seconds else None

    @property
    def recoveries(self) -> int:
        """Drivers that replaced a dead one."""
        return sum(driver.is_recovery for driver in self.drivers)

    @property
    def parked(self) -> tuple[GroupStatus, ...]:
        return tuple(group for group in self.groups if group.state is GroupState.PARKED)

    def as_json(self) -> dict[str, Any]:
        """For ``--json`` and summary files."""
        return {
            "outcome": self.outcome.value,
            "run": self.run.uid,
            "run_id": self.run.spec.key.dag_run_id,
            "records": self.records,
            "seconds": {"total": _rounded(self.seconds), "first_to_last_event": _rounded(self.event_seconds)},
            "records_per_second": _rounded(self.records_per_second, 0),
            "ports": {f"{row.port} {row.direction}": {"events": row.events, "records": row.records, "bytes": row.bytes}
                      for row in ports_seen(self.run, self.ports)},
            "drivers_launched": len(self.drivers),
            "recoveries": self.recoveries,
            "rss_bytes": dict(self.peak_rss),
            "groups": {group.group: {"state": group.state.value, "incarnation": group.incarnation,
                                     "error": group.error, "log": group.log_path} for group in self.groups},
            "drivers": [driver_json(driver) for driver in self.drivers],
            "quarantined": [quarantined_json(one) for one in self.quarantined],
        }  # fmt: skip


def driver_json(driver: DriverRecord) -> dict[str, Any]:
    """One driver, with the seconds from its claim to each step of its start."""
    steps = {
        "submitted": driver.submitted_at,
        "registered": driver.registered_at,
        "first_commit": driver.first_commit_at,
        "ended": driver.ended_at,
    }
    return {
        "group": driver.group,
        "incarnation": driver.incarnation,
        "reason": driver.reason,
        "claimed_at": round(driver.claimed_at, 3),
        "seconds_after_claim": {step: round(at - driver.claimed_at, 3) for step, at in steps.items() if at is not None},
        "error": driver.error,
    }


def quarantined_json(one: QuarantinedInputSet) -> dict[str, Any]:
    """An Input Set that is set aside, under its author's names; of a replicated group each slot has Input Sets of its own."""
    return {
        "group": one.group,
        "operator": base_operator(one.operator),
        "slot": slot_of(one.operator),
        "input_set": one.inset_id,
        "error": one.error,
        "since": one.since,
    }


def summarize(
    store: LogStore, run: Run, pipeline: Pipeline, outcome: Outcome, seconds: float, peak_rss: Mapping[str, int]
) -> RunSummary:
    """Raises `LogUnavailable`."""
    ports = tuple(store.progress(run.run_id))
    sources = [operator for operator, inputs in pipeline.graph.inputs.items() if not inputs]
    return RunSummary(
        outcome=outcome,
        run=run,
        seconds=seconds,
        groups=tuple(store.groups(run.run_id)),
        ports=ports,
        drivers=tuple(store.drivers(run.run_id)),
        records=sum(row.records for row in ports if row.direction == "out" and row.port.operator in sources),
        quarantined=tuple(store.quarantined(run.run_id)),
        peak_rss=dict(peak_rss),
    )


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
