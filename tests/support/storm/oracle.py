"""What a storm's pipeline must bring about, in plain Python: events as lists of records, each with where it came from."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.support.storm.shape import (
    FIRST_IDS,
    KEYS,
    MODULUS,
    Chain,
    Double,
    Minutes,
    Scale,
    Shape,
    Spread,
    Step,
    Sums,
)

_T = TypeVar("_T")
Record = tuple[int, int, int, int]
"""id, key, amount, second."""
SourceEvent = tuple[str, int]
"""Source, and the event's number, from 1."""


@dataclass(frozen=True, slots=True)
class Made:
    """One event, and the events of the sources that it was made from."""

    records: tuple[Record, ...]
    origin: frozenset[SourceEvent]


def records_of(seed: int, chain: Chain) -> list[Record]:
    """All that a source gives. The amounts of a poll are shifted, by as much as its one look says."""
    dice = random.Random(f"records {seed} {chain.source}")
    first = FIRST_IDS[chain.source]
    count = chain.events * chain.records_per_event
    return [(first + n, dice.randrange(KEYS), dice.randrange(MODULUS), n * chain.gap) for n in range(count)]


def results(shape: Shape, read: Mapping[str, Sequence[Record]]) -> list[Made]:
    """The events of the operator where the chains have met, in their order; `read` is source → the records that it read."""
    ends = [_through(_events(chain, read[chain.source]), chain.steps) for chain in shape.chains]
    if shape.meet is None:
        return ends[0]
    sets, shares = list[Made](), [_cut(events, size) for events, size in zip(ends, shape.meet, strict=True)]
    for number in range(max(map(len, shares))):
        sets.append(_summed([made for share in shares if number < len(share) for made in share[number]], number + 1))
    return sets


def spread_out(spread: Spread, events: Sequence[Made]) -> list[Made]:
    """What the replicated operator makes of events. By key in minutes: one record each, as the slots of keys are unknown."""
    if isinstance(spread.step, Minutes):
        return [Made((record,), _behind(record, spread.step, events)) for record in _by_minutes(spread.step, events)]
    return _after(spread.step, events)


def _behind(record: Record, step: Minutes, events: Sequence[Made]) -> frozenset[SourceEvent]:
    """The origin of the sum of one key in one window."""
    used = (
        one
        for one in events
        if any(r[1] == record[1] and _window(r, step) == _window(record, step) for r in one.records)
    )
    return frozenset[SourceEvent]().union(*(one.origin for one in used))


def _by_minutes(step: Minutes, events: Sequence[Made]) -> list[Record]:
    return [record for made in _in_minutes(step, events) for record in made.records]


def _after(step: Step, events: Sequence[Made]) -> list[Made]:
    if isinstance(step, Sums):
        return [_summed(part, n) for n, part in enumerate(_cut(events, step.events), 1)]
    if isinstance(step, Minutes):
        return _in_minutes(step, events)
    return [Made(tuple(_each(step, made.records)), made.origin) for made in events]


def _in_minutes(step: Minutes, events: Sequence[Made]) -> list[Made]:
    windows: dict[int, list[Made]] = {}
    for made in events:
        for number in dict.fromkeys(_window(record, step) for record in made.records):
            mine = tuple(record for record in made.records if _window(record, step) == number)
            windows.setdefault(number, []).append(Made(mine, made.origin))
    return [_summed(windows[number], number, number * step.length * 60) for number in sorted(windows)]


def _window(record: Record, step: Minutes) -> int:
    return record[3] // (step.length * 60)


def _events(chain: Chain, records: Sequence[Record]) -> list[Made]:
    parts = _cut(records, chain.records_per_event)
    return [Made(tuple(part), frozenset({(chain.source, n)})) for n, part in enumerate(parts, 1)]


def _through(events: list[Made], steps: Iterable[Step]) -> list[Made]:
    for step in steps:
        events = _after(step, events)
    return events


def _each(step: Step, records: Sequence[Record]) -> Iterable[Record]:
    if isinstance(step, Scale):
        return [(n, key, (amount * step.factor + step.term) % MODULUS, at) for n, key, amount, at in records]
    if isinstance(step, Double):
        firsts = [(2 * number, key, amount, at) for number, key, amount, at in records]
        return [*firsts, *((number + 1, key, amount + 1, at) for number, key, amount, at in firsts)]
    return [record for place, record in enumerate(records) if place == 0 or record[0] % 3]


def _summed(events: Sequence[Made], number: int, second: int | None = None) -> Made:
    every = [record for made in events for record in made.records]
    amounts: dict[int, int] = {}
    for _, key, amount, _ in every:
        amounts[key] = amounts.get(key, 0) + amount
    at = min(record[3] for record in every) if second is None else second
    records = tuple((number * 10 + key, key, amounts[key], at) for key in sorted(amounts))
    return Made(records, frozenset[SourceEvent]().union(*(made.origin for made in events)))


def _cut(items: Sequence[_T], size: int) -> list[Sequence[_T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
