"""The functions of a storm's pipelines, in Arrow and as an author would write them."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow import EveryEvents, FunctionRead, TableRead, Tumbling, Window, generate, stateless
from tests.support.storm.shape import COLUMNS, MODULUS, Double, Minutes, Scale, Step, Sums, Thin

SECONDS_PER_EVENT = 0.005
"""So that a driver can die between two events."""


def function_of(step: Step) -> tuple[Any, Window | None]:
    """The function, and its window if it has one."""
    match step:
        case Scale(factor, term):
            return scaled(factor, term), None
        case Thin():
            return thinned, None
        case Double():
            return doubled, None
        case Sums(events):
            return summed, EveryEvents(events)
        case Minutes(length):
            return by_minutes(length), Tumbling(f"{length}m", on="at")


def scaled(factor: int, term: int) -> Any:
    @stateless
    def scaled(records: pa.Table) -> pa.Table:
        time.sleep(SECONDS_PER_EVENT)
        return _with(records, amount=[(one * factor + term) % MODULUS for one in records["amount"].to_pylist()])

    return scaled


@stateless
def thinned(records: pa.Table) -> pa.Table:
    time.sleep(SECONDS_PER_EVENT)
    keep = [place == 0 or number % 3 != 0 for place, number in enumerate(records["id"].to_pylist())]
    return records.filter(pa.array(keep))


@stateless
def doubled(records: pa.Table) -> pa.Table:
    time.sleep(SECONDS_PER_EVENT)
    first = _with(records, id=[2 * number for number in records["id"].to_pylist()])
    second = _with(first, id=pc.add(first["id"], 1), amount=pc.add(first["amount"], 1))
    return pa.concat_tables([first, second])


@stateless
def timed(records: pa.Table) -> pa.Table:
    """With the column that windows of time need."""
    return records.append_column("at", records["second"].cast(pa.timestamp("s")))


def by_minutes(length: int) -> Any:
    @generate
    def by_minutes(records: pa.Table, window_start: datetime) -> pa.Table:
        second = int(window_start.replace(tzinfo=UTC).timestamp())
        return _sums(records, second // (60 * length), second)

    return by_minutes


@generate
def summed(records: pa.Table, inset_id: str) -> pa.Table:
    return _sums(records, int(inset_id), pc.min(records["second"]).as_py())


@generate(inputs=("left", "right"))
def met(left: pa.Table, right: pa.Table, inset_id: str) -> pa.Table:
    records = pa.concat_tables([table.select(list(COLUMNS)) for table in (left, right) if table.num_rows])
    return _sums(records, int(inset_id), pc.min(records["second"]).as_py())


def throw(_url: str, _keys: pa.Array | None) -> pa.Table:
    """Another answer at every call: every call must have got the same."""
    return pa.table({"thrown": pa.array([random.SystemRandom().randrange(1 << 40)], pa.int64())})


@generate(
    reads={
        "dice": FunctionRead("outlet", throw, {"what": "dice"}),
        "atlas": TableRead("warehouse", "atlas", columns=("key", "weight"), key="key"),
    }
)
def noisy(records: pa.Table, dice: pa.Table, atlas: pa.Table) -> pa.Table:
    """What the dice have said of the event, and what the warehouse says of the key."""
    weights: dict[int, int] = dict(zip(atlas["key"].to_pylist(), atlas["weight"].to_pylist(), strict=True))
    thrown = dice["thrown"][0].as_py()
    noise = [(thrown << 8) + weights[key] for key in records["key"].to_pylist()]
    return records.append_column("noise", pa.array(noise, pa.int64()))


@stateless(on_error="quarantine")
def picky(records: pa.Table, params: Mapping[str, Any]) -> pa.Table:
    if records["id"][0].as_py() % 2 == 0 and Path(params["trouble"]).exists():
        raise ValueError("there is trouble")
    return records


def _sums(records: pa.Table, number: int, second: int) -> pa.Table:
    amounts: dict[int, int] = {}
    for key, amount in zip(records["key"].to_pylist(), records["amount"].to_pylist(), strict=True):
        amounts[key] = amounts.get(key, 0) + amount
    keys = sorted(amounts)
    columns = ([number * 10 + key for key in keys], keys, [amounts[key] for key in keys], [second] * len(keys))
    return pa.table(dict(zip(COLUMNS, (pa.array(one, pa.int64()) for one in columns), strict=True)))


def _with(records: pa.Table, **columns: Any) -> pa.Table:
    for name, values in columns.items():
        array = values if isinstance(values, pa.ChunkedArray) else pa.array(values, pa.int64())
        records = records.set_column(records.schema.get_field_index(name), name, array)
    return records
