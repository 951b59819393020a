"""What a random pipeline of DataFrames is made of, as plain data: the pipeline and what it must make are built from it."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from zoneinfo import ZoneInfo

from tests.support.frame_storm.keys import KEYS, Keys
from tests.support.storm.shape import turn

CHANGES = {
    "Europe/Berlin": ("2024-03-31", "2024-10-27"),
    "America/New_York": ("2024-03-10", "2024-11-03"),
    "America/Havana": ("2024-03-10", "2024-11-03"),
    "America/Sao_Paulo": ("2018-11-04", "2019-02-17"),
    "Australia/Lord_Howe": ("2024-04-07", "2024-10-06"),
    "Asia/Kolkata": ("2024-03-31",),
    "Pacific/Apia": ("2011-12-30",),
    "": ("2024-02-29", "1969-12-31", "1900-01-01"),
}
"""Zone → days on which something happens to its clock: at midnight in Havana and Sao Paulo, half an hour in Lord Howe, and
Apia has left out a whole day. No zone is UTC."""
NAMES = ("user", "current_date", "localtime", "all", "Größe", "order by", "名前")
"""Of the column with the key."""
AMOUNT, DECOY = "Total", "total"
"""The table has both; only the first is read."""
NOTES = (
    "",
    " ",
    "null",
    "NULL",
    "'; DROP TABLE shops; --",
    'a"b',
    "a\\b",
    "a\tb\r\nc",
    "🤷🏽‍♀️",
    "e\u0301",
    "é",
    "%s :x {y} ?",
    "ﷺ" * 40,
)
BIG = (9007199254740993, -9007199254740993, 2**63 - 1, -(2**63), 0, 1)
AMOUNTS = tuple(
    map(Decimal, ("123456789012345678901234567.123456789", "-0.000000001", "9007199254740993", "0", "-7.5", "1e-9"))
)
RATIOS = (float("inf"), float("-inf"), -0.0, 0.0, 5e-324, 1.7976931348623157e308, 0.1, -1.5)
BORN = tuple(
    map(dt.date.fromisoformat, ("0001-01-01", "1000-02-28", "1582-10-04", "1582-10-15", "1969-12-31", "9999-12-31"))
)
KINDS = ("tea", "Tea", "tea ", "té", "")
PLACES = ("plain", "Zürich 1", "a=b", "名前", "it's", "100%", "q?x#y")
"""What the parameter of the folders is."""


class Kind(StrEnum):
    """Of a source; the last two give tables of Arrow, to functions of mode ``executors``."""

    FOLDER = "a FolderSource"
    TABLE = "a TableSource"
    PARQUET = "a ParquetSource"
    QUERY = "a QuerySource"


class Files(StrEnum):
    """Who has written a file."""

    ARROW = "pyarrow"
    PANDAS = "pandas"
    POLARS = "polars"
    LEGACY = "a Spark of the Julian calendar"


@dataclass(frozen=True, slots=True)
class Record:
    id: int
    at: dt.datetime
    kind: str
    key: object
    amount: Decimal | None
    big: int | None
    ratio: float | None
    born: dt.date | None
    note: str | None


@dataclass(frozen=True, slots=True)
class Shape:
    seed: int
    source: Kind
    on_server: tuple[bool, bool]
    """Whether the shop, from which is read, and the warehouse are a PostgreSQL; the others are SQLite."""
    zone: str
    keys: Keys
    name: str
    """Of the column with the key."""
    place: str
    first: dt.date
    days: int
    files: tuple[Files, ...]
    per_event: int
    """Files, or rows."""
    top: int
    """So many records of each day and kind are the best."""
    apart: bool
    """Whether the source has a driver of its own."""

    @property
    def mode(self) -> str:
        return "dataframe" if self.source in (Kind.FOLDER, Kind.TABLE) else "executors"

    @property
    def keeps_floats(self) -> bool:
        """Whether the source does: SQLite has 0.0 for -0.0, and null for NaN."""
        return self.source in (Kind.FOLDER, Kind.PARQUET) or self.on_server[0]

    @property
    def records(self) -> list[Record]:
        """In the order of their times; each is by itself in a place of its own, so that ids are no places."""
        dice = random.Random(f"records {self.seed}")
        zone = ZoneInfo(self.zone or "UTC")
        begin = dt.datetime.combine(self.first, dt.time(), zone).astimezone(dt.UTC)
        seconds = self.days * 86_400
        near = [begin + dt.timedelta(days=day, microseconds=shift) for day in range(self.days) for shift in (-1, 0, 1)]
        times = [*near, *(begin + dt.timedelta(microseconds=dice.randrange(seconds * 10**6)) for _ in range(60))]
        ratios = RATIOS if self.keeps_floats else tuple(one or 0.0 for one in RATIOS)
        # SQLite has null for NaN, so a writer refuses it.
        nan = (float("nan"),) if self.on_server[1] and self.keeps_floats else ()
        return [
            Record(
                number,
                at,
                dice.choice(KINDS),
                dice.choice((None, *self.keys.asked)),
                dice.choice((None, *AMOUNTS)),
                dice.choice((None, *BIG)),
                dice.choice((None, *ratios, *nan)),
                dice.choice((None, *BORN)),
                dice.choice((None, *NOTES)),
            )
            for number, at in enumerate(sorted(times), start=1)
        ]


def drawn(seed: int) -> Shape:
    dice = random.Random(f"frames {seed}")
    source = turn(seed, "frame sources", tuple(Kind))
    keys = turn(seed, "frame keys", KEYS)
    zone = turn(seed, "frame zones", tuple(CHANGES))
    change = dt.date.fromisoformat(dice.choice(CHANGES[zone]))
    return Shape(
        seed,
        source,
        (keys.on_server, keys.has_nan or dice.random() < 0.5),
        zone,
        keys,
        turn(seed, "frame names", NAMES),
        turn(seed, "frame places", PLACES),
        change - dt.timedelta(days=dice.randint(1, 2)),
        4,
        tuple(dice.choice(tuple(Files)) for _ in range(4)),
        dice.randint(1, 3) if source in (Kind.FOLDER, Kind.PARQUET) else dice.randint(15, 50),
        dice.randint(1, 3),
        dice.random() < 0.3,
    )
