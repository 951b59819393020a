"""Carrying out a scaling request (Algorithms 12 and 13, design D11), one step at a time.

Every step is found from what the log says, so a process that carries a request out may die anywhere, and the next one
continues. Two at once do no harm: launches are compare-and-set, and slots move in one transaction under the locks of
all replicas concerned. The Dispatcher and the Merger need not be asked: a slot keeps its ports under any owner
(protocol/replicas.py).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol

from airflow_logio.errors import Fenced, ProtocolViolation, ReplicaBusy
from airflow_logio.protocol.replicas import Slot, balanced
from airflow_logio.protocol.states import ALIVE, CONCLUDED, OPEN_SCALING, WAITING, GroupState, RunState, ScalingState
from airflow_logio.runtime.launch.launcher import LaunchContext, launch_group
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import GroupStatus, Run, RunSight, ScalingRequest

log = logging.getLogger(__name__)

_PREFERENCE = (GroupState.RUNNING, GroupState.RESTARTED, GroupState.SUBMITTED, GroupState.CLAIMED, GroupState.DEAD)
"""Replicas that stay, the best first: those that work. After these come retired ones, which are launched."""


class Stage(StrEnum):
    """How far a request has come."""

    LAUNCHING = "launching"
    """Drivers are on their way; nothing has moved yet."""
    BUSY = "busy"
    """A replica is stopped inside a transaction: slots move when it has been recovered."""
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Step:
    """What a step found or did, as a sentence for a task log."""

    stage: Stage
    sentence: str
    launched: tuple[str, ...] = ()
    moved: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Which replicas are to work."""

    wanted: tuple[str, ...]
    to_launch: tuple[str, ...]
    to_retire: tuple[str, ...]


class Launch(Protocol):
    """Claims a replica and starts its driver; `launch_group`, on some log and some cluster."""

    def __call__(
        self, group: str, *, expected: int, reason: str, by_user: bool = False, request_id: int | None = None
    ) -> object:
        """Raises `Fenced` and `ProtocolViolation` if it is not to be had."""


def plan(statuses: Sequence[GroupStatus], replicas: int) -> Plan:
    """`statuses` are those of all replicas of the group, in their order; as many as are asked for, as few new ones as can be.

    A replica that has finished keeps what it has; one that is parked or halted works no more, and gives up its slots.
    """
    order = [status.group for status in statuses]
    states = {status.group: status.state for status in statuses}
    working = sorted(
        (name for name in order if states[name] in _PREFERENCE),
        key=lambda name: (_PREFERENCE.index(states[name]), order.index(name)),
    )
    idle = [name for name in order if states[name] in (GroupState.RETIRED, GroupState.NEW)]
    chosen = [*working, *idle][:replicas]
    keep = (GroupState.RETIRED, GroupState.FINISHED)
    return Plan(
        tuple(name for name in order if name in chosen),
        tuple(name for name in idle if name in chosen),
        tuple(name for name in order if name not in chosen and states[name] not in keep),
    )


def carry_out(context: LaunchContext, request: ScalingRequest) -> Step:
    """The next step of a request. Call it about once per second until it is done or refused.

    Raises `ConfigurationError` if a driver cannot be launched, and `LogUnavailable`.
    """
    return next_step(context.store, context.run, request, partial(launch_group, context))


def next_step(store: LogStore, run: Run, request: ScalingRequest, launch: Launch) -> Step:
    """As `carry_out`, for any launcher. Between any two of its transactions anything may happen, or nothing follow."""
    request = _as_it_is(store, request)  # it may have been carried out, or superseded, since it was read
    if request.state not in OPEN_SCALING:
        return Step(Stage(request.state.value), request.note)
    slots = store.slots(run.run_id, request.group)
    run = store.find_run(run.uid)
    statuses = _replicas(store, run, request.group)
    plan_ = plan(list(statuses.values()), request.replicas)
    refusal = why_not(run, slots, request) or _too_few(plan_, statuses, request)
    if refusal is not None:
        return _settled(store, request, ScalingState.REFUSED, Step(Stage.REFUSED, refusal))
    if request.state is ScalingState.REQUESTED:
        store.settle_scaling(request.request_id, ScalingState.ACCEPTED)
    launched = tuple(name for name in plan_.to_launch if _launch(launch, statuses[name], request))
    waiting = [name for name in plan_.wanted if not _works(statuses[name])]
    if waiting or launched:
        return Step(Stage.LAUNCHING, f"waiting for {', '.join(waiting)} to be ready", launched)
    if request.replicas and not plan_.wanted:
        # A retry may have given them work again since: nothing may take it from them.
        return Step(Stage.LAUNCHING, f"all replicas of {request.group} had finished; looking again")
    return _move(store, run, request, slots, plan_)


def _move(store: LogStore, run: Run, request: ScalingRequest, slots: Sequence[Slot], plan_: Plan) -> Step:
    """The replicas that are wanted are ready: they get the slots, the others retire."""
    try:
        moved = store.rescale(
            run.run_id,
            request.group,
            balanced(slots, plan_.wanted),
            retire=plan_.to_retire,
            request_id=request.request_id,
        )
    except ReplicaBusy as error:
        return Step(Stage.BUSY, str(error))
    except ProtocolViolation as error:
        # A replica has died, finished or been stopped since it was looked at: the next look sees it.
        return Step(Stage.LAUNCHING, str(error))
    retired = f", {', '.join(plan_.to_retire)} retired" if plan_.to_retire else ""
    sentence = f"{len(plan_.wanted)} replica(s) of {request.group}: {moved} slot(s) moved{retired}"
    return _settled(store, request, ScalingState.DONE, Step(Stage.DONE, sentence, moved=moved))


def why_not(run: Run, slots: Sequence[Slot], request: ScalingRequest) -> str | None:
    """Why a request cannot be met, as a sentence; None if it can."""
    shape = run.spec.replicated[request.group]
    if run.state is not RunState.RUNNING:
        return f"run {run.spec.key} has ended, it is {run.state.value}"
    if not shape.least <= request.replicas <= len(shape.replicas):
        return f"group {request.group} has between {shape.least} and {len(shape.replicas)} replicas, not {request.replicas}"
    if all(slot.done for slot in slots):
        return f"group {request.group} has finished all its work"
    return None


def _too_few(chosen: Plan, statuses: Mapping[str, GroupStatus], request: ScalingRequest) -> str | None:
    """Replicas that a person must see to first are never left out silently."""
    stopped = [f"{name} is {status.state.value}" for name, status in statuses.items() if status.state in WAITING]
    if len(chosen.wanted) >= request.replicas or not stopped:
        return None
    return (
        f"group {request.group} cannot have {request.replicas} replicas, only {len(chosen.wanted)}: {', '.join(stopped)}. "
        "Mend the cause and `logio retry`, or ask for fewer"
    )


def _as_it_is(store: LogStore, request: ScalingRequest) -> ScalingRequest:
    found = store.scalings(request.run_id, request.group)
    return next((one for one in found if one.request_id == request.request_id), request)


def _replicas(store: LogStore, run: Run, group: str) -> Mapping[str, GroupStatus]:
    found = {status.group: status for status in store.groups(run.run_id)}
    return {name: found[name] for name in run.spec.replicated[group].replicas}


def _works(status: GroupStatus) -> bool:
    return status.state is GroupState.RUNNING and status.ready


def _launch(launch: Launch, status: GroupStatus, request: ScalingRequest) -> bool:
    """False if another process was faster: then it is on its way. Or another number of replicas has been asked for since."""
    reason = f"scaling to {request.replicas} (request {request.request_id})"
    try:
        launch(status.group, expected=status.incarnation, reason=reason, by_user=True, request_id=request.request_id)
    except (Fenced, ProtocolViolation) as error:
        log.info("replica %s was not launched: %s", status.group, error)
        return False
    return True


def _settled(store: LogStore, request: ScalingRequest, state: ScalingState, step: Step) -> Step:
    if store.settle_scaling(request.request_id, state, step.sentence):
        return step
    settled = _as_it_is(store, request)
    log.info("scaling request %d was settled by another process: %s", request.request_id, settled.note)
    return Step(Stage(settled.state.value), settled.note)


def is_due(store: LogStore, request: ScalingRequest, statuses: Sequence[GroupStatus]) -> bool:
    """Whether the next step of an open request can be taken now, by a process that launches what the log says how to
    launch.

    `statuses` are those of all replicas of the group. Not while drivers are on their way: nothing but time is needed then.
    """
    plan_ = plan(statuses, request.replicas)
    states = {status.group: status for status in statuses}
    if not plan_.to_launch and not all(_works(states[name]) for name in plan_.wanted):
        return False
    return store.launch_recipe(request.run_id, statuses[0].group) is not None


def look_after(store: LogStore, sight: RunSight) -> list[ScalingRequest]:
    """What the supervisor of a run has to do: requests that are open, the oldest first.

    A group that sleeps and has work gets a request; replicas that are left when all work of their group is done are retired.
    Launches nothing. It asks the log only where a group sleeps or is at its end.
    """
    run, statuses = sight.run, sight.groups
    requests = [one for one in sight.requests if one.state in OPEN_SCALING]
    for group, shape in run.spec.replicated.items():
        replicas = [status for status in statuses if status.group in shape.replicas]
        if any(status.state is GroupState.FINISHED for status in replicas):
            _retire_idle(store, run, group, replicas)
        asked = any(one.group == group for one in requests)
        sleeps = all(status.state in CONCLUDED for status in replicas) or _was_refused(sight, group)
        if not asked and sleeps and not any(map(_is_halted, statuses)):
            requests += _wake_up(store, run, group, replicas)
    return requests


def _was_refused(sight: RunSight, group: str) -> bool:
    """Whether the latest request was refused. It may have superseded one whose replica lives and never got a slot."""
    return any(one.group == group and one.state is ScalingState.REFUSED for one in sight.requests)


def _retire_idle(store: LogStore, run: Run, group: str, replicas: Sequence[GroupStatus]) -> None:
    """Replicas without a driver, of a group that has finished its work: they need none. One that lives retires itself."""
    idle = [status.group for status in replicas if status.state not in CONCLUDED | ALIVE]
    if not idle or not all(slot.done for slot in store.slots(run.run_id, group)):
        return
    try:
        store.rescale(run.run_id, group, {}, retire=idle)
    except (ReplicaBusy, ProtocolViolation) as error:
        log.info("replicas %s are not retired yet: %s", ", ".join(idle), error)  # they are looked at again


def _wake_up(store: LogStore, run: Run, group: str, replicas: Sequence[GroupStatus]) -> list[ScalingRequest]:
    """Ask for a replica of a group in which no replica owns a slot, and that has work (`LogStore.has_work`).

    Not for more than there are: each look would ask again, and be refused again.
    """
    least = max(1, run.spec.replicated[group].least)
    if len(plan(replicas, least).wanted) < least:
        return []
    slots = [slot for slot in store.slots(run.run_id, group) if not slot.done]
    if not slots or any(slot.owner is not None for slot in slots):
        return []
    if not store.has_work(run.run_id, group):
        return []
    return [
        store.request_scaling(run.run_id, group, least, by="dispatcher", reason="work waits, and there is no replica")
    ]


def _is_halted(status: GroupStatus) -> bool:
    """Whether a person has stopped it: then no more of the run is launched."""
    return status.state not in CONCLUDED and GroupState.HALTED in (status.state, status.desired)
