"""Moving slots between replicas, and requests to do so: what is allowed, the same for every adapter of the log (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_logio.errors import ConfigurationError, LogInconsistent, ProtocolViolation, UnknownRun
from airflow_logio.protocol.context import Context, decode_context
from airflow_logio.protocol.replicas import Placement, Slot, SlotsSight, replicated_group, slot_of
from airflow_logio.protocol.states import (
    OPEN_SCALING,
    SCALING_TRANSITIONS,
    GroupState,
    RunState,
    ScalingState,
    allowed_from,
)
from airflow_logio.protocol.values import unstorable
from airflow_logio.store.records.run_records import ReplicatedShape, Run, RunSpec
from airflow_logio.store.rules.run_rules import superseded


def shape_of(run: Run, group: str) -> ReplicatedShape:
    """Raises `UnknownRun` for a group that the run does not have, `ProtocolViolation` for one that is not replicated."""
    if group in run.spec.replicated:
        return run.spec.replicated[group]
    if group in run.spec.groups:
        which = replicated_group(group)
        hint = f"; it is a replica: name {which!r}" if which in run.spec.replicated else ""
        raise ProtocolViolation(f"group {group!r} of run {run.spec.key} is not replicated{hint}")
    have = ", ".join(run.spec.replicated) or "none"
    raise UnknownRun(f"run {run.spec.key} has no replicated group {group!r}; it has {have}")


def check_going_on(run: Run, state: RunState) -> None:
    """Raises `ProtocolViolation` for a run, now in `state`, that has ended, and `UnknownRun` for one that is removed."""
    if state is RunState.SUPERSEDED:
        raise ProtocolViolation(superseded(run))
    if state is RunState.REMOVING:
        raise UnknownRun(f"run {run.spec.key} is being removed from the log; it cannot be scaled")
    if state is not RunState.RUNNING:
        raise ProtocolViolation(f"run {run.spec.key} has ended, it is {state.value}: it cannot be scaled")


def check_request(run: Run, state: RunState, group: str, replicas: int, by: str) -> None:
    """Raises `ProtocolViolation` for a request that could never be carried out."""
    shape = shape_of(run, group)
    check_name("the name of the requester", by)
    check_going_on(run, state)
    if not shape.least <= replicas <= len(shape.replicas):
        raise ProtocolViolation(
            f"group {group!r} of run {run.spec.key} cannot have {replicas} replicas: its author allows {shape.least} to "
            f"{len(shape.replicas)}"
        )


def check_name(what: str, name: str) -> None:
    """Raises `ConfigurationError` for what the log cannot hold in a column of names."""
    if (reason := unstorable(name)) is not None:
        raise ConfigurationError(f"{what} cannot be {ascii(name)[:60]}: {reason}")


@dataclass(frozen=True, slots=True)
class Rescaling:
    """What one transaction changes."""

    group: str
    moved: Mapping[str | None, Sequence[int]]
    """New owner → slots that it gets."""
    losing: frozenset[str]
    retire: frozenset[str]

    @property
    def gaining(self) -> frozenset[str]:
        return frozenset(owner for owner in self.moved if owner is not None)

    @property
    def voided(self) -> frozenset[str]:
        """Replicas whose slots change: their epochs are raised."""
        return self.gaining | self.losing

    @property
    def concerned(self) -> frozenset[str]:
        """Replicas whose drivers must not keep using what they have in memory."""
        return self.gaining | self.losing | self.retire

    @property
    def count(self) -> int:
        return sum(len(slots) for slots in self.moved.values())


def plan(run: Run, group: str, slots: Sequence[Slot], placement: Placement, retire: Collection[str]) -> Rescaling:
    """What has to change so that slots are where `placement` says. Raises `ProtocolViolation`."""
    shape = shape_of(run, group)
    by_number = {slot.number: slot for slot in slots}
    _check_names(group, shape, by_number, placement, retire)
    moved: dict[str | None, list[int]] = {}
    losing: set[str] = set()
    for number, owner in sorted(placement.items()):
        slot = by_number[number]
        if slot.owner == owner:
            continue
        if slot.done:
            raise ProtocolViolation(f"slot {number} of group {group!r} is done: it stays with {slot.owner!r}")
        moved.setdefault(owner, []).append(number)
        if slot.owner is not None:
            losing.add(slot.owner)
    for slot in slots:
        owner = placement.get(slot.number, slot.owner)
        if owner in retire and not slot.done:
            raise ProtocolViolation(
                f"replica {owner!r} cannot retire while it owns slot {slot.number}, which is not done"
            )
    return Rescaling(group, moved, frozenset(losing), frozenset(retire))


def _check_names(
    group: str,
    shape: ReplicatedShape,
    slots: Collection[int],
    placement: Placement,
    retire: Iterable[str],
) -> None:
    if unknown := sorted(set(placement) - set(slots)):
        raise ProtocolViolation(f"group {group!r} has no slot {unknown[0]}; it has {len(slots)}, from 0")
    named = {owner for owner in placement.values() if owner is not None} | set(retire)
    if strangers := sorted(named - set(shape.replicas)):
        raise ProtocolViolation(f"group {group!r} has no replica {strangers[0]!r}; it has {', '.join(shape.replicas)}")


def has_left(spec: RunSpec, group: str, over: Collection[int], states: Mapping[str, bytes]) -> bool:
    """Whether a replicated group has something to do before its next event; `over` are its slots that are done.

    `states` are the stored states of its operators. It has something to do if an operator has Input Sets to generate,
    Output Sets to send when their writes are done, or its end to pass on when all its streams have ended. It also has
    if all operators of a slot have ended, which ends the slot. A state that cannot be read counts as well: its replica
    reports that when it recovers, and is parked.
    """
    contexts: dict[int | None, list[Context | None]] = {}
    for name, shape in spec.operators.items():
        if shape.group != group or (slot := slot_of(name)) in over:
            continue
        try:
            context = decode_context(name, states[name]) if name in states else None
        except LogInconsistent:
            return True
        if context is not None and _goes_on_alone(context, shape.inputs):
            return True
        contexts.setdefault(slot, []).append(context)
    return any(all(one is not None and one.finished for one in of_slot) for of_slot in contexts.values())


def slots_sight(slots: Sequence[Slot], *, has_work: bool) -> SlotsSight:
    """What the slots of one group are: all done, owned by a replica, with work left."""
    left = [slot for slot in slots if not slot.done]
    return SlotsSight(not left, any(slot.owner is not None for slot in left), has_work)


def _goes_on_alone(context: Context, ports: Collection[str]) -> bool:
    has_to_end = not context.finished and ports and context.ended.issuperset(ports)
    return bool(context.triggered or context.outbox or has_to_end)


_CAN_RETIRE = allowed_from(GroupState.RETIRED) | {GroupState.RETIRED}


def check_states(rescaling: Rescaling, states: Mapping[str, tuple[GroupState, GroupState]]) -> frozenset[str]:
    """`states` are (state, desired) of all affected replicas, as they are under their locks.

    Returns those of `retire` that are not retired yet. Raises `ProtocolViolation` for a slot that would go to a replica
    that does not run or was asked to halt, and for a replica to retire that has finished.
    """
    for name in sorted(rescaling.gaining):
        state, desired = states[name]
        if state is not GroupState.RUNNING or desired is GroupState.HALTED:
            how = state.value if state is not GroupState.RUNNING else "asked to halt"
            raise ProtocolViolation(f"replica {name!r} is {how}: it cannot be given slots; launch it first")
    for name in sorted(rescaling.retire):
        if (state := states[name][0]) not in _CAN_RETIRE:
            raise ProtocolViolation(f"replica {name!r} is {state.value}: it cannot retire")
    return frozenset(name for name in rescaling.retire if states[name][0] is not GroupState.RETIRED)


def check_open(request_id: int, state: ScalingState | None) -> None:
    """Raises `ProtocolViolation` for a request that is settled, or not in the log any more (`state` is None)."""
    if state not in OPEN_SCALING:
        became = "no longer in the log" if state is None else state.value
        raise ProtocolViolation(f"request {request_id} to scale a group is {became}: nothing is done for it any more")


def came_from(state: ScalingState) -> frozenset[ScalingState]:
    """The states from which a request may be settled as `state`. Raises `ProtocolViolation` if there are none."""
    sources = frozenset(source for source, targets in SCALING_TRANSITIONS.items() if state in targets)
    if not sources:
        raise ProtocolViolation(f"a request to scale a group is accepted, done or refused, not {state.value!r}")
    return sources


def superseded_by(request_id: int) -> str:
    """The note of a request that gave way to a newer one."""
    return f"superseded by request {request_id}"
