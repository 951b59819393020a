"""Replicas of a group and the slots between which its events are split (Section 7.1, design D11).

A replicated group is cut into a fixed number of *slots*. Each slot has operators of its own, ``enrich[3]``: their ports,
event ids, marks, Input Sets, states and write actions belong to the slot, whichever replica works on it. A replica is a
group of the log, ``enrich.2``, that works on the slots it owns. Scaling changes owners and nothing else: no event gets
another id, and no state is split. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MAX_SLOTS = 1024
MAX_REPLICAS = 256

PROGRESS = "progress"
"""Key in `Event.about` of a Dispatcher's event: how far the windows of the whole stream have come."""
PLACE = "place"
"""Key in `Event.about`, if a Merger keeps the order: the number of the Dispatcher's event, and whether it is the last one."""

Placement = Mapping[int, str | None]
"""Slot → the replica that owns it; None while the group is scaled to zero."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of a replicated group, as the log has it."""

    number: int
    owner: str | None
    moves: int = 0
    """How often it has changed owners: part of the fencing token of its write actions."""
    done: bool = False
    """Its operators have all ended, and no write action is pending."""


@dataclass(frozen=True, slots=True)
class SlotsSight:
    """What the log knows of a replicated group that seems to have no working replica."""

    all_done: bool
    is_owned: bool
    """A replica owns a slot that is not done."""
    has_work: bool
    """There is work for a replica: an event, an end of stream, a write action, an Input Set that is triggered (or was
    quarantined, and is retried), or an Output Set that is not sent. Input Sets that wait for more events are no such work: a
    group may sleep with windows open."""


def replica_name(group: str, number: int) -> str:
    """The name in the log of replica `number`, from 1: it is a group of its own, claimed and recovered like any other."""
    return f"{group}.{number}"


def replicated_group(name: str) -> str:
    """The group that `name` is a replica of; `name` itself if it is not a replica. Authors' names have no dot."""
    return name.partition(".")[0]


def slot_operator(operator: str, slot: int) -> str:
    """The operator of one slot."""
    return f"{operator}[{slot}]"


def base_operator(name: str) -> str:
    """The operator as its author named it. Authors' names have no bracket."""
    return name.partition("[")[0]


def slot_of(name: str) -> int | None:
    """The slot of an operator, None for one that is not replicated."""
    _, bracket, rest = name.partition("[")
    return int(rest[:-1]) if bracket else None


def dispatcher_name(receiver: str) -> str:
    """The Dispatcher in front of an input port of a replicated group."""
    return f"dispatch({receiver})"


def merger_name(sender: str) -> str:
    """The Merger behind an output port of a replicated group."""
    return f"merge({sender})"


def is_dispatcher(name: str) -> bool:
    """Whether an operator of the log is a Dispatcher that a pipeline has put in. Authors' names have no parenthesis."""
    return name.startswith("dispatch(")


def is_merger(name: str) -> bool:
    """Whether an operator of the log is a Merger that a pipeline has put in."""
    return name.startswith("merge(")


def balanced(slots: Iterable[Slot], replicas: Sequence[str]) -> dict[int, str | None]:
    """Owners of all slots that are not done, spread evenly over `replicas` (in this order) with the fewest moves.

    Shares differ by at most one; the first replicas get the larger ones, unless that would move a slot. Slots that are done
    keep their owners and are not in the result. Without replicas, no slot has an owner.
    """
    open_slots = [slot for slot in slots if not slot.done]
    if not replicas:
        return {slot.number: None for slot in open_slots}
    homeless: list[int] = []
    owned: dict[str | None, list[int]] = {name: [] for name in replicas}
    for slot in sorted(open_slots, key=lambda one: one.number):
        owned.get(slot.owner, homeless).append(slot.number)
    share, larger = divmod(len(open_slots), len(replicas))
    by_size = sorted(replicas, key=lambda name: (-len(owned[name]), replicas.index(name)))
    quota: dict[str | None, int] = {name: share + (place < larger) for place, name in enumerate(by_size)}
    for name, mine in owned.items():
        homeless += mine[quota[name] :]
        del mine[quota[name] :]
    homeless.sort()
    for name in replicas:
        missing = quota[name] - len(owned[name])
        owned[name] += homeless[:missing]
        del homeless[:missing]
    return {number: name for name, mine in owned.items() for number in mine}
