"""What a random pipeline is made of, as plain data: the pipeline and its oracle are built from it, each in its own way."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")

FIRST_IDS = {"left": 0, "right": 1_000_000}
"""Source → the id of its first record; the others count on from there."""
COLUMNS = {"id": "bigint", "key": "bigint", "amount": "bigint", "second": "bigint"}
"""`second` is when the record was made; it never falls within a stream."""
KEYS = 5
MODULUS = 10_007
WEIGHTS = tuple(3 * key + 1 for key in range(KEYS))
"""Key → what the table `atlas` of the warehouse says of it."""

LEAST_RESULTS = 4
"""Events for the writers, roughly."""


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


@dataclass(frozen=True, slots=True)
class Minutes:
    """One record per key, of so many minutes."""

    length: int


Step = Scale | Thin | Double | Sums | Minutes


class Kind(StrEnum):
    """Of a source."""

    FILE = "a Parquet file"
    TABLE = "a table of the warehouse"
    POLLS = "polls that cannot be repeated: their effects are stored"


class Outlet(StrEnum):
    """Where the results go beside the table."""

    FILES = "a ParquetWriter"
    LEDGER = "an author's CheckableWriter"
    JOURNAL = "an author's ConditionalWriter"
    SHELF = "an author's IdempotentWriter"


class Terminal(StrEnum):
    """Who supervises."""

    HERE = "LocalRun in the test's process"
    COMMAND = "the command `logio`, with drivers that are forked"
    SPARK = "the command `logio`, with drivers that spark-submit starts"


@dataclass(frozen=True, slots=True)
class Chain:
    """A source and the operators behind it, one after the other. Some events come with each poll of a source."""

    source: str
    kind: Kind
    events: int
    records_per_event: int
    gap: int
    """Seconds from record to record."""
    events_per_poll: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """How the results are written."""

    on_new_run: str
    sends_after_writes: bool
    lineage_column: bool


@dataclass(frozen=True, slots=True)
class Spread:
    """A replicated operator behind all others: by key, or whole events, in turn or where the least waits."""

    step: Scale | Minutes
    by_key: bool
    slots: int
    ordered: bool = False
    least_loaded: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """One or two chains that meet; then records get noise; then writers, a replicated operator, one that fails at first."""

    seed: int
    terminal: Terminal
    chains: tuple[Chain, ...]
    meet: tuple[int, int] | None
    """How many events of the left and of the right chain make one Input Set."""
    in_order: bool
    table: Table
    outlet: Outlet
    noise: bool
    spread: Spread | None
    picky: bool
    """Whether an operator sets events aside until a person mends the cause."""
    together: float
    """How likely two neighbours are in one group."""
    drained: bool
    """Its sources would never end: a person asks them to."""


def turn(seed: int, what: str, options: Sequence[T]) -> T:
    """One of the options: in a row of as many seeds from 0 on, each has its turn."""
    block, place = divmod(seed, len(options))
    return random.Random(f"turns {what} {block}").sample(options, len(options))[place]


def drawn(seed: int) -> Shape:
    """A shape whose data flow all the time: where nothing comes out before the sources end, no group misses a warehouse."""
    for attempt in itertools.count():
        shape = _attempt(seed, random.Random(f"shape {seed}" if attempt == 0 else f"shape {seed}, attempt {attempt}"))
        if _results(shape) >= LEAST_RESULTS:
            return shape
    raise AssertionError


def _results(shape: Shape) -> int:
    """How many events the writers get, roughly."""
    ends = [_passed_on(chain) for chain in shape.chains]
    return ends[0] if shape.meet is None else min(count // taken for count, taken in zip(ends, shape.meet, strict=True))


def _passed_on(chain: Chain) -> int:
    """How many events come out of a chain, roughly."""
    count, seconds = chain.events, chain.events * chain.records_per_event * chain.gap
    for step in chain.steps:
        match step:
            case Sums(events):
                count //= events
            case Minutes(length):
                count = min(count, seconds // (60 * length))
    return count


def _attempt(seed: int, dice: random.Random) -> Shape:
    terminal = {3: Terminal.COMMAND, 7: Terminal.SPARK}.get(seed % 10, Terminal.HERE)
    is_small = terminal is Terminal.SPARK
    names = list(FIRST_IDS)[: 1 if is_small else dice.choice((1, 1, 2))]
    return Shape(
        seed,
        terminal,
        tuple(_chain(dice, seed, name) for name in names),
        (dice.randint(1, 4), dice.randint(1, 4)) if len(names) == 2 else None,
        in_order=dice.random() < 0.5,
        table=Table(turn(seed, "on_new_run", ("replace", "append", "error")), dice.random() < 0.5, dice.random() < 0.5),
        outlet=turn(seed, "outlets", tuple(Outlet)),
        noise=not is_small and dice.random() < 0.5,
        spread=None if is_small else turn(seed, "spreads", _spreads(dice)),
        picky=not is_small and dice.random() < 0.4,
        together=1.0 if is_small else dice.choice((0.0, 0.3, 0.6)),
        drained=not is_small and turn(seed, "drains", (True, False, False)),
    )


def _chain(dice: random.Random, seed: int, source: str) -> Chain:
    steps: list[Step] = [
        dice.choice((_scale(dice), Thin(), Double(), Sums(dice.randint(2, 5)))) for _ in range(dice.randint(0, 2))
    ]
    windows: tuple[Step, ...] = (Sums(dice.randint(2, 5)), Minutes(dice.choice((1, 2))))
    steps.insert(dice.randint(0, len(steps)), turn(seed, f"windows {source}", windows))
    return Chain(
        source,
        turn(seed, f"sources {source}", tuple(Kind)),
        dice.randint(50, 120),
        dice.randint(2, 8),
        dice.randint(2, 6),
        dice.randint(3, 8),
        tuple(steps),
    )


def _spreads(dice: random.Random) -> tuple[Spread | None, ...]:
    """By key, operators may have state; parts of events have no order of their own."""
    scale, slots, least = _scale(dice), dice.randint(2, 6), dice.random() < 0.5
    return (
        None,
        Spread(scale, by_key=False, slots=slots, least_loaded=least),
        Spread(scale, by_key=False, slots=slots, ordered=True, least_loaded=not least),
        Spread(scale, by_key=True, slots=slots),
        Spread(Minutes(dice.choice((1, 2))), by_key=True, slots=slots),
    )


def _scale(dice: random.Random) -> Scale:
    return Scale(dice.randint(2, 99), dice.randint(0, 99))
