"""What displays say of a replicated group: its replicas, their slots and load, and the requests to scale it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow_logio.protocol.replicas import Slot
from airflow_logio.protocol.states import CONCLUDED, GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import ReplicatedShape, Run
from airflow_logio.store.records.status_records import GroupStatus, ScalingRequest


@dataclass(frozen=True, slots=True)
class Replicas:
    """A replicated group at one moment."""

    group: str
    shape: ReplicatedShape
    slots: Sequence[Slot]
    requests: Sequence[ScalingRequest]
    """The newest first."""
    statuses: Mapping[str, GroupStatus]
    """The states of all replicas, in their order."""

    @property
    def in_use(self) -> list[GroupStatus]:
        return [status for status in self.statuses.values() if status.state not in CONCLUDED]

    @property
    def shown(self) -> list[GroupStatus]:
        """Replicas worth showing: in use, or finished while owning slots."""
        return [status for status in self.statuses.values() if status.state is not GroupState.RETIRED]

    def owned_by(self, replica: str) -> list[int]:
        """Numbers of the slots that a replica owns, including finished ones."""
        return [slot.number for slot in self.slots if slot.owner == replica]

    @property
    def done(self) -> int:
        return sum(slot.done for slot in self.slots)


def replicas_of(store: LogStore, run: Run, groups: Sequence[GroupStatus]) -> Sequence[Replicas]:
    """All replicated groups of a run; `groups` are the states of its groups. Raises `LogUnavailable`."""
    if not run.spec.replicated:
        return ()
    requests = store.scalings(run.run_id)
    slots = store.slots_of_run(run.run_id)
    statuses = {status.group: status for status in groups}
    return [
        Replicas(
            group,
            shape,
            slots.get(group, ()),
            [one for one in requests if one.group == group],
            {name: statuses[name] for name in shape.replicas if name in statuses},
        )
        for group, shape in run.spec.replicated.items()
    ]


def document(one: Replicas) -> dict[str, Any]:
    """For programs. In the load, fractions are shares of the window's time, and counts are totals within it."""
    return {
        "replicas_in_use": len(one.in_use),
        "least": one.shape.least,
        "most": len(one.shape.replicas),
        "slots": [asdict(slot) for slot in one.slots],
        "replicas": {
            name: {
                "state": status.state.value,
                "slots": one.owned_by(name),
                "load": None if status.load is None else asdict(status.load),
            }
            for name, status in one.statuses.items()
        },
        "requests": [request_document(request) for request in one.requests],
    }


def request_document(one: ScalingRequest) -> dict[str, Any]:
    return {
        "request": one.request_id,
        "replicas": one.replicas,
        "state": one.state.value,
        "by": one.by,
        "reason": one.reason,
        "note": one.note,
        "requested_at": one.requested_at,
        "accepted_at": one.accepted_at,
        "ended_at": one.ended_at,
    }
