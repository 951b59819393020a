"""Slots of replicated groups and requests to scale, in memory (a database: `store/sql/slots.py`, `scaling_requests.py`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from airflow_logio.errors import LogInconsistent, ProtocolViolation, UnknownRun
from airflow_logio.protocol.replicas import Placement, Slot, SlotsSight, balanced, replicated_group
from airflow_logio.protocol.states import OPEN_SCALING, GroupState, ScalingState
from airflow_logio.protocol.values import Status, storable
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run, RunSpec
from airflow_logio.store.records.status_records import ScalingRequest
from airflow_logio.store.rules.scaling_rules import (
    came_from,
    check_going_on,
    check_name,
    check_open,
    check_request,
    check_states,
    has_left,
    plan,
    shape_of,
    slots_sight,
    superseded_by,
)
from airflow_logio.testing.memory_log.tables import GroupKey, Tables


def create(tables: Tables, run_id: int, spec: RunSpec) -> None:
    for group, shape in spec.replicated.items():
        homeless = [Slot(number, None) for number in range(shape.slots)]
        for number, owner in balanced(homeless, shape.replicas[: shape.initial]).items():
            tables.add(tables.slots, (run_id, group, number), Slot(number, owner))


def of_group(tables: Tables, run_id: int, group: str) -> list[Slot]:
    shape_of(found_run(tables, run_id), group)
    found = [slot for (run, name, _), slot in tables.slots.items() if (run, name) == (run_id, group)]
    return sorted(found, key=lambda slot: slot.number)


def owned(tables: Tables, ref: GroupRef) -> Mapping[int, int]:
    """Slot → number of moves, for the slots that a replica owns and that are not done."""
    mine = [tables.slots[key] for key in _open_of(tables, ref)]
    return {slot.number: slot.moves for slot in sorted(mine, key=lambda one: one.number)}


def finish(tables: Tables, ref: GroupRef) -> None:
    """Mark the slots of a replica done, because its group has finished."""
    base = replicated_group(ref.group)
    mine = _open_of(tables, ref)
    for key in mine:
        tables.put(tables.slots, key, replace(tables.slots[key], done=True))
    if not mine and base != ref.group and any(key[:2] == (ref.run_id, base) for key in tables.slots):
        raise LogInconsistent(f"replica {ref.group!r} owns no slot that is not done: it has nothing to finish")


def open_slots(tables: Tables, run_id: int) -> dict[str, int]:
    """Replicated group → how many of its slots are not done."""
    found: dict[str, int] = {}
    for (run, group, _), slot in sorted(tables.slots.items(), key=lambda item: item[0]):
        if run == run_id and not slot.done:
            found[group] = found.get(group, 0) + 1
    return found


def sight(tables: Tables, groups: Collection[tuple[int, str]]) -> dict[tuple[int, str], SlotsSight]:
    found = {}
    for run_id, group in groups:
        if run_id in tables.runs and group in found_run(tables, run_id).spec.replicated:
            slots = of_group(tables, run_id, group)
            found[run_id, group] = slots_sight(slots, has_work=_has_work(tables, run_id, group))
    return found


def _has_work(tables: Tables, run_id: int, group: str) -> bool:
    spec = found_run(tables, run_id).spec
    operators = {name for name, shape in spec.operators.items() if shape.group == group}
    waits = any(
        row.body.run_id == run_id and row.status is Status.UNDONE and row.inset_id is None and row.receiver in operators
        for row in tables.events.rows.values()
    )
    over = {number for name, number in done(tables, run_id) if name == group}
    states = {name: tables.states[run_id, name, 0] for name in operators if (run_id, name, 0) in tables.states}
    return waits or has_left(spec, group, over, states)


def done(tables: Tables, run_id: int) -> frozenset[tuple[str, int]]:
    return frozenset(
        (group, number) for (run, group, number), slot in tables.slots.items() if run == run_id and slot.done
    )


def reopen(tables: Tables, run_id: int, reopened: Mapping[str, Sequence[int]]) -> frozenset[str]:
    """Reopen slots of each replicated group. Returns the replicas that own them."""
    owners: set[str] = set()
    for group, numbers in reopened.items():
        for number in numbers:
            slot = tables.slots[run_id, group, number]
            if slot.done:
                tables.put(tables.slots, (run_id, group, number), replace(slot, done=False))
            if slot.owner is not None:
                owners.add(slot.owner)
    return frozenset(owners)


def rescale(
    tables: Tables,
    run_id: int,
    group: str,
    placement: Placement,
    retire: Collection[str],
    request_id: int | None,
) -> int:
    """Runs in an open transaction; for a request, only while it is open."""
    if request_id is not None:
        check_is_open(tables, request_id)
    run = found_run(tables, run_id)
    rescaling = plan(run, group, of_group(tables, run_id, group), placement, retire)
    if not rescaling.concerned:
        return 0
    keys = {name: GroupKey(run_id, name) for name in sorted(rescaling.concerned)}
    if any(key not in tables.groups for key in keys.values()):
        raise UnknownRun(f"run {run.spec.key} is being removed from the log; it cannot be scaled")
    check_going_on(run, run.state)
    rows = {name: tables.groups[key] for name, key in keys.items()}
    retiring = check_states(rescaling, {name: (row.state, row.desired) for name, row in rows.items()})
    for owner, numbers in rescaling.moved.items():
        for number in numbers:
            slot = tables.slots[run_id, group, number]
            tables.put(tables.slots, (run_id, group, number), replace(slot, owner=owner, moves=slot.moves + 1))
    for name in retiring:
        _retire(tables, keys[name])
    for name in retiring | rescaling.voided:
        fence = tables.fences[keys[name]]
        tables.put(tables.fences, keys[name], replace(fence, epoch=fence.epoch + 1))
    return rescaling.count


def _retire(tables: Tables, key: GroupKey) -> None:
    clock = tables.now()
    retired = replace(tables.groups[key], state=GroupState.RETIRED, desired=GroupState.HALTED, since=clock, error=None)
    tables.put(tables.groups, key, retired)
    of_driver = (key, tables.fences[key].incarnation)
    driver = tables.drivers.get(of_driver)
    if driver is not None and driver.ended_at is None:
        tables.put(tables.drivers, of_driver, replace(driver, ended_at=clock))


def found_run(tables: Tables, run_id: int) -> Run:
    if run_id not in tables.runs:
        raise UnknownRun(f"no run {run_id} is in the log")
    return tables.runs[run_id].as_run()


def _open_of(tables: Tables, ref: GroupRef) -> list[tuple[int, str, int]]:
    return [
        key for key, slot in tables.slots.items() if key[0] == ref.run_id and slot.owner == ref.group and not slot.done
    ]


# --- requests to scale ------------------------------------------------------------------------------------------------


def request(
    tables: Tables, run_id: int, group: str, replicas: int, *, by: str, reason: str, key: str | None
) -> ScalingRequest:
    """Runs in an open transaction, like the others."""
    run = found_run(tables, run_id)
    shape_of(run, group)
    of_group = requests(tables, run_id, group)
    if key is not None:
        check_name("the key of a request to scale", key)
        if same := [one for one in of_group if one.key == key]:
            return same[0]
    check_request(run, run.state, group, replicas, by)
    number, clock = next(tables.request_ids), tables.now()
    for older in of_group:
        if older.state in OPEN_SCALING:
            note = superseded_by(number)
            refused = replace(older, state=ScalingState.REFUSED, note=note, ended_at=clock)
            tables.put(tables.scalings, (run_id, older.request_id), refused)
    made = ScalingRequest(
        number, run_id, group, replicas, ScalingState.REQUESTED, by, storable(reason) or "", "", key, clock
    )
    tables.add(tables.scalings, (run_id, number), made)
    return made


def requests(tables: Tables, run_id: int, group: str | None) -> Sequence[ScalingRequest]:
    """Requests, the newest first."""
    found = [one for one in tables.scalings.values() if one.run_id == run_id and group in (None, one.group)]
    return sorted(found, key=lambda one: -one.request_id)


def latest_requests(tables: Tables, run_id: int) -> list[ScalingRequest]:
    """The latest request of each group, the oldest first."""
    latest: dict[str, ScalingRequest] = {}
    for one in reversed(requests(tables, run_id, None)):
        latest.pop(one.group, None)
        latest[one.group] = one
    return list(latest.values())


def check_is_open(tables: Tables, request_id: int) -> None:
    check_open(request_id, next((one.state for one in tables.scalings.values() if one.request_id == request_id), None))


def settle(tables: Tables, request_id: int, state: ScalingState, note: str) -> bool:
    sources = came_from(state)
    found = next((one for one in tables.scalings.values() if one.request_id == request_id), None)
    if found is None:
        raise ProtocolViolation(f"no request {request_id} to scale a group is in the log")
    if found.state not in sources:
        return found.state is state
    settled = replace(found, state=state, note=storable(note) or "")
    if state is ScalingState.ACCEPTED:
        settled = replace(settled, accepted_at=tables.now())
    else:
        settled = replace(settled, ended_at=tables.now())
    tables.put(tables.scalings, (found.run_id, request_id), settled)
    return True
