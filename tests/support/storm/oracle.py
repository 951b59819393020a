"""What a storm's pipeline must bring about, in plain Python: events as lists of records, each with where it came from."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.support.storm.shape import FIRST_IDS, KEYS, MODULUS, Chain, Double, Scale, Shape, Step, Sums

_T = TypeVar("_T")
Record = tuple[int, int, int]
"""id, key, amount."""
SourceEvent = tuple[str, int]
"""Source, and the event's number, from 1."""


@dataclass(frozen=True, slots=True)
class Made:
    """One event, and the events of the sources that it was made from."""

    records: tuple[Record, ...]
    origin: frozenset[SourceEvent]


def records_of(seed: int, chain: Chain) -> list[Record]:
    """All that a source gives."""
    dice = random.Random(f"records {seed} {chain.source}")
    first = FIRST_IDS[chain.source]
    count = chain.events * chain.records_per_event
    return [(first + n, dice.randrange(KEYS), dice.randrange(MODULUS)) for n in range(count)]


def results(shape: Shape, read: Mapping[str, int]) -> list[Made]:
    """The events of the operator where the chains have met; `read` is source → how many events it has read."""
    ends = [_through(_read(shape.seed, chain, read[chain.source]), chain.steps) for chain in shape.chains]
    if shape.meet is None:
        return ends[0]
    sets, shares = list[Made](), [_cut(events, size) for events, size in zip(ends, shape.meet, strict=True)]
    for number in range(max(map(len, shares))):
        sets.append(_summed([made for share in shares if number < len(share) for made in share[number]], number + 1))
    return sets


def after(step: Step, events: Iterable[Made]) -> list[Made]:
    """What a step makes of events."""
    if isinstance(step, Sums):
        return [_summed(part, n) for n, part in enumerate(_cut(list(events), step.events), 1)]
    return [Made(tuple(_each(step, made.records)), made.origin) for made in events]


def _read(seed: int, chain: Chain, count: int) -> list[Made]:
    parts = _cut(records_of(seed, chain), chain.records_per_event)[:count]
    return [Made(tuple(part), frozenset({(chain.source, n)})) for n, part in enumerate(parts, 1)]


def _through(events: list[Made], steps: Iterable[Step]) -> list[Made]:
    for step in steps:
        events = after(step, events)
    return events


def _each(step: Step, records: Sequence[Record]) -> Iterable[Record]:
    if isinstance(step, Scale):
        return [(number, key, (amount * step.factor + step.term) % MODULUS) for number, key, amount in records]
    if isinstance(step, Double):
        firsts = [(2 * number, key, amount) for number, key, amount in records]
        return firsts + [(number + 1, key, amount + 1) for number, key, amount in firsts]
    return [record for place, record in enumerate(records) if place == 0 or record[0] % 3]


def _summed(events: Sequence[Made], number: int) -> Made:
    amounts: dict[int, int] = {}
    for _, key, amount in (record for made in events for record in made.records):
        amounts[key] = amounts.get(key, 0) + amount
    records = tuple((number * 10 + key, key, amounts[key]) for key in sorted(amounts))
    return Made(records, frozenset[SourceEvent]().union(*(made.origin for made in events)))


def _cut(items: Sequence[_T], size: int) -> list[Sequence[_T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
