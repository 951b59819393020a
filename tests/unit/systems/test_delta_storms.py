"""Storms over Delta tables: appends, days and upserts with zombies, other programs, vacuums and lost answers in between.

Each run's write actions are given out once, as a log does. Whatever driver executes them, how often and when, the table has
what a model in plain Python has made of them, each once and in order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.errors import ExternalUnavailable, Fenced, LockHeld
from airflow_logio.systems.delta.table_log import Commit, LoadedTable, TableLog
from tests.support.delta_tables import COLUMNS, DeltaRun, day_params, orders, rows_of

STEPS = 30
SEEDS = range(6)


class Storm:
    """One table, the drivers of one run at it, and what happens around each commit."""

    def __init__(self, seed: int, lake: str, writer: DeltaWriter) -> None:
        self.draw = random.Random(seed)
        self.lake = lake
        self.uri = f"{lake}/orders"
        self.writer = writer
        self.token = 1
        self.logged: list[pa.Table] = []
        self.applied = 0
        """How many the log knows to be applied."""
        self.strangers: list[int] = []
        self.zombies: list[DeltaRun] = []
        self._in_weather = False

    def driver(self) -> DeltaRun:
        return DeltaRun(self.writer, self.lake, token=self.token)

    def weather(self, loaded: LoadedTable) -> None:
        """Before a commit: another driver, or another program, commits; files that no commit names yet are removed."""
        if self._in_weather or not self.logged:
            return
        self._in_weather = True
        try:
            kinds: list[Callable[[], None]] = [self.stranger, self.zombie, self.vacuum, self.checkpoint, self.compact]
            if self.draw.random() < 0.5:
                self.draw.choice(kinds)()
        finally:
            self._in_weather = False

    def stranger(self) -> None:
        if self.writer.upserts or self.writer.owns:
            return
        number = 1_000_000 + len(self.strangers)
        deltalake.write_deltalake(self.uri, orders(number), mode="append")
        self.strangers.append(number)

    def zombie(self) -> None:
        if self.zombies and not self.writer.owns:
            with suppress(Fenced, LockHeld):
                self.execute(self.draw.choice(self.zombies))

    def vacuum(self) -> None:
        with suppress(deltalake.exceptions.DeltaError):
            table = deltalake.DeltaTable(self.uri)
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)

    def checkpoint(self) -> None:
        deltalake.DeltaTable(self.uri).create_checkpoint()

    def compact(self) -> None:
        with suppress(deltalake.exceptions.DeltaError):
            deltalake.DeltaTable(self.uri).optimize.compact()

    def execute(self, run: DeltaRun) -> None:
        """What is logged and not known to be applied, as a driver of that time executes it."""
        first = self.applied
        actions = [run.action(number + 2, self.logged[number]) for number in range(first, len(self.logged))]
        run.apply(*([run.action(1)] if first == 0 else []), *actions)

    def step(self) -> None:
        """A driver executes the next actions; it may be replaced, and may live on."""
        for _ in range(self.draw.randint(1, 3)):
            self.logged.append(self.next_records())
        run = self.driver()
        try:
            self.execute(run)
            if self.draw.random() < 0.6:
                self.applied = len(self.logged)
        except (LockHeld, ExternalUnavailable):
            pass
        if self.draw.random() < 0.3:
            self.zombies.append(run)
            self.token += 1

    def next_records(self) -> pa.Table:
        if self.writer.upserts:
            keys = self.draw.sample(range(20), self.draw.randint(0, 8))
            return orders(*keys, amount=len(self.logged) + 1)
        start = 100 * len(self.logged)
        return orders(*range(start, start + self.draw.randint(0, 4)), amount=len(self.logged) + 1)

    def end(self) -> None:
        self.token += 1
        while self.applied < len(self.logged):
            with suppress(LockHeld, ExternalUnavailable):
                self.execute(self.driver())
                self.applied = len(self.logged)


@pytest.fixture
def storms(monkeypatch: pytest.MonkeyPatch) -> Callable[[Storm], None]:
    """Has a storm rage around each commit. One of eight answers is lost."""
    plain, raging = TableLog.commit, list[Storm]()

    def commit(self: TableLog, loaded: LoadedTable, commit: Commit) -> None:
        raging[0].weather(loaded)
        plain(self, loaded, commit)
        if raging[0].draw.random() < 0.125:
            raise ExternalUnavailable("the answer was lost")

    monkeypatch.setattr(TableLog, "commit", commit)
    return raging.append


@pytest.mark.parametrize("seed", SEEDS)
def test_appends_are_there_once_whatever_happens(seed: int, tmp_path: Path, storms: Callable[[Storm], None]) -> None:
    writer = DeltaWriter("lake", "orders", COLUMNS, partition_by=["day"], on_new_run="append")
    storm = Storm(seed, str(tmp_path), writer)
    storms(storm)
    for _ in range(STEPS):
        storm.step()
    storm.end()
    wanted = Counter(one for table in storm.logged for one in table.column("id").to_pylist()) + Counter(storm.strangers)
    assert Counter(row[0] for row in rows_of(storm.uri, "id")) == wanted, f"seed {seed}"
    assert deltalake.DeltaTable(storm.uri).to_pyarrow_table().num_rows == sum(wanted.values())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("version", [None, "amount"])
def test_upserts_leave_the_last_row_of_each_key(
    seed: int, version: str | None, tmp_path: Path, storms: Callable[[Storm], None]
) -> None:
    writer = DeltaWriter("lake", "orders", COLUMNS, mode="upsert", primary_key=["id"], version=version)
    storm = Storm(seed, str(tmp_path), writer)
    storms(storm)
    for _ in range(STEPS):
        storm.step()
    storm.end()
    model: dict[int, int] = {}
    for table in storm.logged:
        model.update(zip(table.column("id").to_pylist(), table.column("amount").to_pylist(), strict=True))
    assert dict(rows_of(storm.uri, "id", "amount")) == model, f"seed {seed}"
    assert len(rows_of(storm.uri, "id")) == len(model)


@pytest.mark.parametrize("seed", SEEDS)
def test_days_have_the_rows_of_the_run_that_claimed_them_last(
    seed: int, tmp_path: Path, storms: Callable[[Storm], None]
) -> None:
    draw = random.Random(seed)
    days = ["2026-03-01", "2026-03-02"]
    made = DeltaWriter(
        "lake", "orders", COLUMNS, partition_by=["day"], on_new_run="overwrite", by=["day"], empty="replace"
    )
    storm = Storm(seed, str(tmp_path), made)
    storms(storm)
    begun: list[tuple[str, DeltaRun, list[pa.Table]]] = []
    claims: dict[str, int] = {}
    model: dict[str, list[int]] = {}
    for number in range(1, STEPS):
        if draw.random() < 0.5 or not begun:
            day = draw.choice(days)
            run = DeltaRun(made.for_run(day_params(day)), str(tmp_path), f"run{number}", ordinal=number)
            _until(run.open)
            claims[day] = number
            ids = range(number * 100, number * 100 + draw.randint(0, 5))
            storm.logged.append(orders(*ids, day=day))
            begun.append((day, run, [orders(one, day=day) for one in ids]))
            continue
        day, run, tables = draw.choice(begun)
        if claims[day] == run.ordinal:
            for _ in range(draw.randint(1, 2)):
                _until(partial(run.close, *tables))
            model[day] = [one for table in tables for one in table.column("id").to_pylist()]
        else:
            with suppress(Exception):
                run.close(*tables)
    wanted = sorted((day, one) for day, ids in model.items() for one in ids)
    assert sorted(rows_of(storm.uri, "day", "id")) == wanted, f"seed {seed}"


def _until(do: Callable[[], None]) -> None:
    for _ in range(50):
        try:
            do()
            return
        except (LockHeld, ExternalUnavailable):
            continue
    raise AssertionError("fifty attempts")
