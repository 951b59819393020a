"""Clicks for the pipeline that runs every day: what households bought in three days, as if they had clicked on it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from demo.data import parquet_file

ZONE = ZoneInfo("Europe/Berlin")
DAYS = (date(2017, 3, 25), date(2017, 3, 26), date(2017, 3, 27))
"""The second one has 23 hours in this zone."""
FILES = 4
"""Of each day, in the order in which its clicks came."""
LATE = 50
"""One click in so many comes with those of the day after."""
MISSED = 7
"""One click in so many of the first day comes in a file of its own, behind all others."""


def clicks_folder(folder: Path, say: Callable[[str], object]) -> Path:
    """Write ``web/dt=<day>/<n>.parquet`` below `folder` unless they are there. Raises `ConfigurationError`.

    A click has its instant `ts`. With the clicks of a day come late ones of the day before. Those that `late_file` adds
    are left out.
    """
    if not _day_folder(folder, DAYS[-1]).is_dir():
        say(f"making clicks of {', '.join(map(str, DAYS))} in {folder}")
        shares = {day: _shares(day) for day in (DAYS[0] - timedelta(days=1), *DAYS)}
        for day in DAYS:
            made = pa.concat_tables([shares[day - timedelta(days=1)][1], shares[day][0]]).sort_by("id")
            bounds = np.linspace(0, made.num_rows, FILES + 1).astype(int)
            _write(_day_folder(folder, day), [made.slice(begin, end - begin) for begin, end in pairwise(bounds)])
    return folder


def late_file(folder: Path) -> Path:
    """A file of the first day that its sender held back. Returns its path."""
    where = _day_folder(folder, DAYS[0])
    path = where / f"part-{FILES}.parquet"
    unfinished = where / f"_{path.name}"
    pq.write_table(_shares(DAYS[0])[2], unfinished)
    return unfinished.rename(path)


def _day_folder(folder: Path, day: date) -> Path:
    return folder / "web" / f"dt={day}"


def _write(where: Path, parts: list[pa.Table]) -> None:
    unfinished = where.with_name(f"_{where.name}")
    unfinished.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(parts):
        pq.write_table(part, unfinished / f"part-{number}.parquet")
    unfinished.rename(where)


def _shares(day: date) -> tuple[pa.Table, pa.Table, pa.Table]:
    """The clicks of a day: those that come with it, those that come with the day after, those that are held back."""
    clicks = _clicks(day)
    number = clicks["id"].to_numpy()
    late = number % LATE == 0
    missed = ~late & (number % MISSED == 0) & (day == DAYS[0])
    return tuple(clicks.filter(pa.array(mask)) for mask in (~late & ~missed, late, missed))


def _clicks(day: date) -> pa.Table:
    begin, end = (datetime(one.year, one.month, one.day, tzinfo=ZONE) for one in (day, day + timedelta(days=1)))
    bought = pq.read_table(
        parquet_file("transactions"), columns=["household_id", "product_id", "transaction_timestamp"]
    ).append_column("id", pa.array(np.arange(pq.read_metadata(parquet_file("transactions")).num_rows)))
    moments = pc.assume_timezone(bought["transaction_timestamp"].cast(pa.timestamp("us")), "UTC")
    bought = bought.set_column(2, "ts", moments)
    bought = bought.filter((pc.field("ts") >= pa.scalar(begin)) & (pc.field("ts") < pa.scalar(end)))
    products = pq.read_table(parquet_file("products"), columns=["product_id", "product_category"])
    named = bought.join(products, "product_id", join_type="left outer")
    words = pc.replace_substring_regex(pc.utf8_lower(pc.fill_null(named["product_category"], "other")), "[^a-z]+", "-")
    pages = pc.binary_join_element_wise("", words, named["product_id"].cast(pa.string()), "/")
    columns = {"id": named["id"], "ts": named["ts"], "visitor": named["household_id"], "page": pages}
    return pa.table(columns).sort_by("id")
