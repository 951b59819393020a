"""What a random pipeline is made of, as plain data: the pipeline and its oracle are built from it, each in its own way."""

from __future__ import annotations

import random
from dataclasses import dataclass

FIRST_IDS = {"left": 0, "right": 1_000_000}
"""Source → the id of its first record; the others count on from there."""
KEYS = 5
MODULUS = 10_007


@dataclass(frozen=True, slots=True)
class Scale:
    """Each record with another amount."""

    factor: int
    term: int


@dataclass(frozen=True, slots=True)
class Thin:
    """The first record of each event, and of the others those whose id is no multiple of three."""


@dataclass(frozen=True, slots=True)
class Double:
    """Each record as two."""


@dataclass(frozen=True, slots=True)
class Sums:
    """One record per key, of so many events."""

    events: int


Step = Scale | Thin | Double | Sums


@dataclass(frozen=True, slots=True)
class Chain:
    """A source and the operators behind it, one after the other."""

    source: str
    events: int
    records_per_event: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """A replicated operator behind all others: by key, or whole events in turn."""

    step: Scale
    by_key: bool
    slots: int
    ordered: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """One or two chains that meet; then records get noise; then writers, a replicated operator, one that fails at first."""

    seed: int
    chains: tuple[Chain, ...]
    meet: tuple[int, int] | None
    """How many events of the left and of the right chain make one Input Set."""
    in_order: bool
    noise: bool
    spread: Spread | None
    picky: bool
    """Whether an operator sets events aside until somebody mends the cause."""
    together: float
    """How likely two neighbours are in one group."""


def drawn(seed: int) -> Shape:
    dice = random.Random(f"shape {seed}")
    names = list(FIRST_IDS)[: dice.choice((1, 1, 2))]
    spread = Spread(_scale(dice), dice.random() < 0.5, dice.randint(2, 6), dice.random() < 0.3)
    return Shape(
        seed,
        tuple(_chain(dice, name) for name in names),
        (dice.randint(1, 4), dice.randint(1, 4)) if len(names) == 2 else None,
        in_order=dice.random() < 0.5,
        noise=dice.random() < 0.5,
        spread=_possible(spread) if dice.random() < 0.6 else None,
        picky=dice.random() < 0.4,
        together=dice.choice((0.0, 0.3, 0.6)),
    )


def _chain(dice: random.Random, source: str) -> Chain:
    steps = [dice.choice((_scale(dice), Thin(), Double(), Sums(dice.randint(2, 5)))) for _ in range(dice.randint(0, 3))]
    return Chain(source, dice.randint(50, 200), dice.randint(2, 8), tuple(steps))


def _scale(dice: random.Random) -> Scale:
    return Scale(dice.randint(2, 99), dice.randint(0, 99))


def _possible(spread: Spread) -> Spread:
    """Parts of events have no order of their own."""
    return Spread(spread.step, spread.by_key, spread.slots, spread.ordered and not spread.by_key)
