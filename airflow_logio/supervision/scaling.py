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

from airflow_logio.commands import counted
from airflow_logio.errors import Fenced, ProtocolViolation, ReplicaBusy
from airflow_logio.launch.launcher import LaunchContext, launch_group
from airflow_logio.protocol.replicas import Slot, SlotsSight, balanced
from airflow_logio.protocol.states import ALIVE, CONCLUDED, OPEN_SCALING, WAITING, GroupState, RunState, ScalingState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, RunSight, ScalingRequest

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


def asked_for(request: ScalingRequest) -> str:
    """The sentence for a request that its maker leaves to the supervisor of the run."""
    return f"request {request.request_id}: {request.group} is to have {counted(request.replicas, 'replica')}"


def carry_out(context: LaunchContext, request: ScalingRequest) -> Step:
    """The next step of a request. Call it about once per second until it is done or refused.

    Raises `ConfigurationError` if a driver cannot be launched, `ManagerUnavailable` if not for now, and `LogUnavailable`.
    """
    return next_step(context.store, context.run, request, partial(launch_group, context))


def found_settled(store: LogStore, request: ScalingRequest) -> Step | None:
    """How a request has ended: it may have been carried out, or superseded, since it was read. None if it is open."""
    return settled_step(_as_it_is(store, request))


def settled_step(request: ScalingRequest) -> Step | None:
    return None if request.state in OPEN_SCALING else Step(Stage(request.state.value), request.note)


def next_step(store: LogStore, run: Run, request: ScalingRequest, launch: Launch) -> Step:
    """As `carry_out`, for any launcher. Between any two of its transactions anything may happen, or nothing follow."""
    request = _as_it_is(store, request)
    if (settled := settled_step(request)) is not None:
        return settled
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
    sentence = f"{counted(len(plan_.wanted), 'replica')} of {request.group}: {counted(moved, 'slot')} moved{retired}"
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
        "Fix the cause and `logio retry`, or ask for fewer"
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
    Where the group's own task has to launch them, only to refuse them once all work is done.
    """
    plan_ = plan(statuses, request.replicas)
    states = {status.group: status for status in statuses}
    if plan_.to_launch and any(status.own_place for status in statuses):
        ended = all(status.state in CONCLUDED for status in statuses)
        if ended and all(slot.done for slot in store.slots(request.run_id, request.group)):
            return True
        return any(launched_by_others(store, states[name], request.run_id) for name in plan_.to_launch)
    if not plan_.to_launch and not all(_works(states[name]) for name in plan_.wanted):
        return False
    return store.launch_recipe(request.run_id, statuses[0].group) is not None


def launched_by_others(store: LogStore, status: GroupStatus, run_id: int) -> bool:
    """Whether a replica is launched by whatever carries a request out, and not by a task of its own: that has said how to
    launch it, and has no place of its own, or has given it up."""
    return not status.own_place and store.launch_recipe(run_id, status.group) is not None


def launches_by_task(run: Run, groups: Sequence[GroupStatus], request: ScalingRequest) -> tuple[str, ...]:
    """The replicas with a place of their own whose launch is the next step of an open request.

    `groups` are those of the whole run.
    """
    found = {status.group: status for status in groups}
    statuses = [found[name] for name in run.spec.replicated[request.group].replicas]
    return tuple(name for name in plan(statuses, request.replicas).to_launch if found[name].own_place)


def look_after(
    store: LogStore, sight: RunSight, *, slots: Mapping[tuple[int, str], SlotsSight] | None = None
) -> list[ScalingRequest]:
    """What the supervisor of a run has to do: requests that are open, the oldest first.

    A group that sleeps and has work gets a request; replicas that are left when all work of their group is done are retired.
    Launches nothing. It asks the log only where a group sleeps or is at its end, unless `slots` say what the log has
    answered for those of several runs (`in_question`). Of a group that is not among them, nothing is known this time.
    """
    if slots is None:
        asked = in_question(sight)
        slots = store.slots_sight(asked) if asked else {}
    requests = _open_requests(sight)
    for group in sight.run.spec.replicated:
        found = slots.get((sight.run.run_id, group))
        if found is None:
            continue
        replicas = _replicas_in(sight, group)
        if found.all_done and (idle := _idle_at_the_end(replicas)):
            _retire(store, sight.run, group, idle)
        if _sleeps(sight, group, replicas) and not (found.all_done or found.is_owned) and found.has_work:
            requests.append(_wake_up(store, sight.run, group))
    return requests


def in_question(sight: RunSight) -> list[tuple[int, str]]:
    """(run id, group) of the replicated groups for which `look_after` must know more than a look at the run shows."""
    found = []
    for group in sight.run.spec.replicated:
        replicas = _replicas_in(sight, group)
        if _sleeps(sight, group, replicas) or _idle_at_the_end(replicas):
            found.append((sight.run.run_id, group))
    return found


def _open_requests(sight: RunSight) -> list[ScalingRequest]:
    return [one for one in sight.requests if one.state in OPEN_SCALING]


def _replicas_in(sight: RunSight, group: str) -> list[GroupStatus]:
    replicas = sight.run.spec.replicated[group].replicas
    return [status for status in sight.groups if status.group in replicas]


def _sleeps(sight: RunSight, group: str, replicas: Sequence[GroupStatus]) -> bool:
    """Whether no replica works for a group, none is asked for, and one may be had.

    Not for more than there are: each look would ask again, and be refused again.
    """
    if any(one.group == group for one in _open_requests(sight)) or any(map(_is_halted, sight.groups)):
        return False
    least = _least(sight.run, group)
    is_left = all(status.state in CONCLUDED for status in replicas) or _was_refused(sight, group)
    return is_left and len(plan(replicas, least).wanted) >= least


def _least(run: Run, group: str) -> int:
    return max(1, run.spec.replicated[group].least)


def _was_refused(sight: RunSight, group: str) -> bool:
    """Whether the latest request was refused. It may have superseded one whose replica lives and never got a slot."""
    return any(one.group == group and one.state is ScalingState.REFUSED for one in sight.requests)


def _idle_at_the_end(replicas: Sequence[GroupStatus]) -> list[str]:
    """Replicas without a driver, in a group where another replica has finished. If no work is left, they need none; a replica
    that lives retires itself."""
    if not any(status.state is GroupState.FINISHED for status in replicas):
        return []
    return [status.group for status in replicas if status.state not in CONCLUDED | ALIVE]


def _retire(store: LogStore, run: Run, group: str, idle: Sequence[str]) -> None:
    try:
        store.rescale(run.run_id, group, {}, retire=idle)
    except (ReplicaBusy, ProtocolViolation) as error:
        log.info("replicas %s are not retired yet: %s", ", ".join(idle), error)  # they are looked at again


def _wake_up(store: LogStore, run: Run, group: str) -> ScalingRequest:
    """Ask for a replica of a group in which no replica owns a slot, and that has work."""
    reason = "work waits, and there is no replica"
    return store.request_scaling(run.run_id, group, _least(run, group), by="dispatcher", reason=reason)


def _is_halted(status: GroupStatus) -> bool:
    """Whether a person has stopped it: then no more of the run is launched."""
    return status.state not in CONCLUDED and GroupState.HALTED in (status.state, status.desired)
