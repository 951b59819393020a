"""A storm of days in a lake: real processes publish days of one folder or bucket, and are killed, stopped and replaced.

A seed says what is to happen, but not when. At each look a reader by receipts must find, for each day, exactly the rows of
one run, and never those of an older one than before.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from airflow_logio.systems.payloads import Payloads
from tests.support import day_publisher
from tests.support.forked import ForkedProcess
from tests.support.lakes import Lake
from tests.support.publishers import DayPublisher, Publisher, Row

STORES = (1, 2)
"""The days."""
MOST_SECONDS = 600.0
GONE = "RESOURCE_NOT_FOUND"
"""What Arrow says of an object that goes between the two requests of a read."""
LOOK_SECONDS = 0.02
MOST_HURT = 3
"""Drivers of each run that are killed or stopped."""


@dataclass
class LakeRun:
    """A run of a day, and its processes."""

    ordinal: int
    store: int
    rows: list[Row]
    datasets: list[str]
    drivers: list[ForkedProcess] = field(default_factory=list)
    hurt: int = 0
    stopped: list[ForkedProcess] = field(default_factory=list)

    @property
    def newest(self) -> ForkedProcess:
        return self.drivers[-1]


@dataclass
class LakeStorm:
    """Each day gets `runs` runs, one after the other, whatever the one before is at."""

    seed: int
    lake: Lake
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    """By which processes reach the lake."""
    runs: int = 4
    told: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        self.payloads = Payloads(str(self.folder / "payloads"))
        self._runs: list[LakeRun] = []
        self._seen = dict.fromkeys(STORES, 0)
        """Day → the ordinal whose rows are there."""

    # --- from begin to end --------------------------------------------------------------------------------------------

    def blow(self) -> None:
        """Until each day is that of its youngest run."""
        before = Publisher(self.lake.url, self.payloads, 1)
        before.publish(before.action(2, [(-store, store) for store in STORES]))
        ends_at = time.monotonic() + MOST_SECONDS
        left = [store for store in STORES for _ in range(self.runs)]
        self.chance.shuffle(left)
        while left or any(run.newest.poll() != 0 for run in self._newest()):
            assert time.monotonic() < ends_at, f"seed {self.seed}: {[run.newest.poll() for run in self._newest()]}"
            if left and (self.chance.random() < 0.1 or not self._newest()):
                self._begin(left.pop())
            self._tend()
            self._hurt()
            self.look()
            time.sleep(LOOK_SECONDS)
        self._wake()
        for run in self._runs:
            for driver in run.drivers:
                driver.wait(timeout=MOST_SECONDS)
        self.look()
        for run in self._newest():
            assert self._seen[run.store] == run.ordinal, f"seed {self.seed}: day {run.store}"
        self._list()

    def close(self) -> None:
        for run in self._runs:
            for driver in run.drivers:
                driver.kill()

    def _list(self) -> None:
        """Who lists a day sees it as well, once a run of it was not disturbed: what zombies have left goes with that."""
        for store in STORES:
            run = self._begin(store)
            assert run.newest.wait(timeout=MOST_SECONDS) == 0, self._said(run)
        self.look()
        wanted = sorted(row for run in self._newest() for row in run.rows)
        assert self.lake.listed() == wanted, f"seed {self.seed}: {self.lake.listed()} and not {wanted}"

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _begin(self, store: int) -> LakeRun:
        ordinal = 10 + len(self._runs)
        made = DayPublisher(self.lake.url, self.payloads, ordinal, store=store)
        parts = [[(ordinal * 100 + 10 * part + one, store) for one in range(3)] for part in range(3)]
        datasets = [made.action(number, part).dataset or "" for number, part in enumerate(parts, 2)]
        run = LakeRun(ordinal, store, sorted(row for part in parts for row in part), datasets)
        self._runs.append(run)
        self._launch(run)
        return run

    def _launch(self, run: LakeRun) -> None:
        token = len(run.drivers) + 1
        config = self.folder / f"{run.ordinal}.{token}.json"
        given = {
            "lake": self.lake.url,
            "payloads": str(self.folder / "payloads"),
            "opened": str(self.folder / f"{run.ordinal}.opened"),
            "ordinal": run.ordinal,
            "token": token,
            "store": run.store,
            "line": {"log": "a"},
            "datasets": run.datasets,
        }
        config.write_text(json.dumps(given))
        argv = [day_publisher.__file__, str(config)]
        run.drivers.append(
            ForkedProcess(argv, self.variables, config.with_suffix(".log"), seed=self.chance.randint(0, 1))
        )

    def _newest(self) -> list[LakeRun]:
        return list({run.store: run for run in self._runs}.values())

    def _tend(self) -> None:
        """A run whose driver has died gets another one. The youngest of a day is never refused."""
        for run in self._newest():
            code = run.newest.poll()
            assert code in (None, 0, -signal.SIGKILL), f"seed {self.seed}: {code}: {self._said(run)}"
            if code == -signal.SIGKILL or (run.newest in run.stopped and self.chance.random() < 0.3):
                self._launch(run)

    def _said(self, run: LakeRun) -> str:
        return "\n".join(file.read_text() for file in sorted(self.folder.glob(f"{run.ordinal}.*.log")))

    # --- weather ------------------------------------------------------------------------------------------------------

    def _hurt(self) -> None:
        roll = self.chance.random()
        alive = [run for run in self._newest() if run.newest.poll() is None and run.hurt < MOST_HURT]
        if roll < 0.1:
            self._wake()
        elif roll < 0.6 and alive:
            run = self.chance.choice(alive)
            if run.newest in run.stopped:
                return
            run.hurt += 1
            stops = roll < 0.35
            os.kill(run.newest.pid, signal.SIGSTOP if stops else signal.SIGKILL)
            self.told["stood still" if stops else "killed"] += 1
            if stops:
                run.stopped.append(run.newest)

    def _wake(self) -> None:
        for run in self._runs:
            while run.stopped:
                driver = run.stopped.pop()
                if driver.poll() is None:
                    os.kill(driver.pid, signal.SIGCONT)
                    self.told["woke up"] += 1

    # --- what is seen -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """What counts now."""
        try:
            found = self.lake.counted()
        except OSError as error:  # a day was cleared meanwhile: list again
            if not isinstance(error, FileNotFoundError) and GONE not in str(error):
                raise
            self.told["listed again"] += 1
            return
        self.told["looks"] += 1
        for store in STORES:
            rows = [row for row in found if row[1] == store]
            runs = {run.ordinal: run.rows for run in self._runs if run.store == store} | {0: [(-store, store)]}
            ordinals = [ordinal for ordinal, wanted in runs.items() if wanted == rows]
            assert ordinals, f"seed {self.seed}: day {store} has {rows}"
            assert ordinals[0] >= self._seen[store], f"seed {self.seed}: day {store} is that of an older run"
            self._seen[store] = ordinals[0]
