"""The Controller of Section 7.2: reads the figures of a replicated group from the log, and asks for what a policy wants.

It only asks (`LogStore.request_scaling`); `airflow_logio.supervision.scaling` carries requests out. Two Controllers at
once are harmless: the newer request supersedes the older one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import CONCLUDED, OPEN_SCALING, GroupState, RunState, ScalingState
from airflow_logio.protocol.values import Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import LOAD_SECONDS
from airflow_logio.store.records.run_records import Run, RunSpec, senders_of
from airflow_logio.store.records.status_records import GroupStatus, ScalingRequest
from airflow_logio.supervision.policies import Change, Decision, Figures, Policy

CONTROLLER = "controller"
"""The name under which the Controller asks."""
LOOK_SECONDS = LOAD_SECONDS
"""Time between two looks at counters: as long as the window of the drivers' own figures."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of the connections into a group, at one moment."""

    at: float
    """Seconds since the epoch, by this machine's clock: the second look may be made by another process, or machine."""
    sent_records: int
    taken_records: int
    sent_events: int
    taken_events: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one look at a group."""

    group: str
    replicas: int
    """Replicas in use now."""
    decision: Decision
    request: ScalingRequest | None = None
    """The request that was made, or was already open."""

    def __str__(self) -> str:
        if self.decision.replicas == self.replicas:
            return f"{self.group} stays at {self.replicas} replica(s): {self.decision.sentence}"
        return f"{self.group}: {self.replicas} → {self.decision.replicas} replica(s): {self.decision.sentence}"


def read_counters(store: LogStore, run: Run, group: str, clock: Callable[[], float] = time.time) -> Counters:
    """The first of the two looks that rates need. Raises `LogUnavailable`."""
    counted = {(row.port, row.direction): row for row in store.progress(run.run_id)}
    entries = _entries(run.spec, group)
    sent = [row for sender in entries.values() if (row := counted.get((sender, "out"))) is not None]
    taken = [row for receiver in entries if (row := counted.get((receiver, "in"))) is not None]
    return Counters(
        clock(),
        sent_records=sum(row.records for row in sent),
        taken_records=sum(row.records for row in taken),
        sent_events=sum(row.events for row in sent),
        taken_events=sum(row.events for row in taken),
    )


def observe(
    store: LogStore, run: Run, group: str, earlier: Counters, clock: Callable[[], float] = time.time
) -> Figures:
    """The figures for a policy: the drivers' own windows, and how the counters have changed since `earlier`.

    Raises `LogUnavailable`.
    """
    statuses = {status.group: status for status in store.groups(run.run_id)}
    now, shape = read_counters(store, run, group, clock), run.spec.replicated[group]
    used = _in_use([statuses[name] for name in shape.replicas])
    seconds = now.at - earlier.at
    return Figures(
        group=group,
        at=_now(statuses.values()),
        replicas=len(used),
        least=shape.least,
        most=len(shape.replicas),
        loads={one.group: one.load if one.state is GroupState.RUNNING else None for one in used},
        arrivals=max(0, now.sent_records - earlier.sent_records) / seconds if seconds > 0 else None,
        backlog=max(0, now.sent_records - now.taken_records),
        events=max(0, now.sent_events - now.taken_events),
        ended=_has_ended(run.spec, group, statuses),
        last=_last_change(store.scalings(run.run_id, group)),
    )


def decide(store: LogStore, run: Run, group: str, policy: Policy, earlier: Counters) -> Verdict:
    """Ask for another number of replicas if the policy wants one and no request is open.

    Where a person is at work nothing is asked for: a run that is stopped, or a replica that is halted or parked. Raises
    `LogUnavailable`, and `ProtocolViolation` if the run has ended meanwhile.
    """
    replicas = run.spec.replicated[group].replicas
    used = _in_use([status for status in store.groups(run.run_id) if status.group in replicas])
    asked = next((one for one in store.scalings(run.run_id, group) if one.state in OPEN_SCALING), None)
    if asked is not None:
        by = f"request {asked.request_id} by {asked.by} for {asked.replicas} replica(s) is open"
        return Verdict(group, len(used), Decision(len(used), by), asked)
    if (reason := _why_no_policy_is_asked(store, run, group, used)) is not None:
        return Verdict(group, len(used), Decision(len(used), reason))
    figures = observe(store, run, group, earlier)
    decision = policy.decide(figures)
    if decision.replicas == figures.replicas:
        return Verdict(group, figures.replicas, decision)
    request = store.request_scaling(
        run.run_id, group, decision.replicas, by=CONTROLLER, reason=f"{type(policy).__name__}: {decision.sentence}"
    )
    return Verdict(group, figures.replicas, decision, request)


# --- inside ----------------------------------------------------------------------------------------------------------


def _entries(spec: RunSpec, group: str) -> Mapping[Port, Port]:
    """Input port → output port, of the connections into the slots of a group."""
    homes = {name: shape.group for name, shape in spec.operators.items()}
    return {
        receiver: sender
        for receiver, sender in senders_of(spec).items()
        if homes[receiver.operator] == group != homes[sender.operator]
    }


def _in_use(statuses: Sequence[GroupStatus]) -> list[GroupStatus]:
    """Replicas that own slots or will get some; one that has finished has nothing left to do."""
    return [status for status in statuses if status.state not in CONCLUDED]


def _now(statuses: Collection[GroupStatus]) -> float:
    """The time by the clock of the log's database, which stamps requests, while a driver reports it; else this machine's."""
    beats = [status.beat_at for status in statuses if status.state is GroupState.RUNNING and status.beat_at]
    return max(beats, default=time.time())


def _has_ended(spec: RunSpec, group: str, statuses: Mapping[str, GroupStatus]) -> bool:
    """Whether every group that sends to this one has finished."""
    senders = {spec.operators[sender.operator].group for sender in _entries(spec, group).values()}
    finished = {replicated_group(name) for name, status in statuses.items() if status.state is GroupState.FINISHED}
    going_on = {replicated_group(name) for name, status in statuses.items() if status.state not in CONCLUDED}
    return senders <= finished - going_on


def _last_change(requests: Sequence[ScalingRequest]) -> Change | None:
    for one in requests:
        if one.state is ScalingState.DONE and one.ended_at is not None:
            return Change(one.replicas, one.ended_at)
    return None


def _why_no_policy_is_asked(store: LogStore, run: Run, group: str, used: Sequence[GroupStatus]) -> str | None:
    """Why no policy is asked, as a sentence; None if one is asked."""
    if (state := store.find_run(run.uid).state) is not RunState.RUNNING:
        return f"the run is {state.value}"
    if all(slot.done for slot in store.slots(run.run_id, group)):
        return "all its work is done"
    for status in used:
        if status.state in (GroupState.PARKED, GroupState.HALTED):
            return f"replica {status.group} is {status.state.value}: a person must fix that"
        if status.desired is GroupState.HALTED:
            return f"replica {status.group} was asked to halt"
        if status.state is GroupState.NEW:
            return f"replica {status.group} has not been launched yet"
    return None
