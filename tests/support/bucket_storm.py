"""Runs that publish into a bucket, one after the other, while requests fail and drivers are killed, stopped and continued."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from airflow_logio.systems.payloads import Payloads
from tests.support import bucket_publisher
from tests.support.faulty_store import BROKEN, EXPIRED, SLOW_DOWN, Cut, Effect, FaultyStore, LostAnswer, Request
from tests.support.forked import ForkedProcess
from tests.support.lakes import BucketLake
from tests.support.publishers import Publisher, Row
from tests.support.waiting import eventually

MODES = ("append", "overwrite", "replace")
STORES = 3
EFFECTS: Sequence[Effect] = (SLOW_DOWN, BROKEN, EXPIRED, LostAnswer(), Cut())
MOST_SECONDS = 300.0


@dataclass
class BucketStorm:
    """`lake.url` leads through `way`. `variables` are those of drivers."""

    seed: int
    lake: BucketLake
    way: FaultyStore
    variables: Mapping[str, str]
    folder: Path
    hurt: int = 0
    failed: int = 0
    zombies: list[ForkedProcess] = field(default_factory=list)
    drivers: list[ForkedProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._faults = random.Random(self.seed + 1)  # asked by other threads
        self.mode = MODES[self.seed % len(MODES)]
        self._payloads = str(self.folder / "payloads")
        self.rows = [self._drawn(run) for run in range(1, 4)]

    def _drawn(self, run: int) -> list[list[Row]]:
        """The write actions of a run; a row is of one run, one action and one place in it."""
        return [
            [
                (run * 10_000 + number * 100 + place, self._chance.randrange(STORES))
                for place in range(self._chance.randint(1, 5))
            ]
            for number in range(self._chance.randint(2, 4))
        ]

    def expected(self) -> list[Row]:
        """What counts in the end, in plain Python."""
        counts: list[Row] = []
        for actions in self.rows:
            new = [row for action in actions for row in action]
            gone = {store for _, store in new} if self.mode == "overwrite" else set()
            counts = [row for row in counts if row[1] not in gone and self.mode != "replace"] + new
        return sorted(counts)

    def blow(self) -> None:
        """Until all runs are done, and all drivers have ended."""
        self.way.fail(self._is_hit, SLOW_DOWN)  # its effect is drawn anew for each request
        try:
            for run, actions in enumerate(self.rows, start=1):
                self._run(run, actions)
        finally:
            self.way.heal()
        for zombie in self.zombies:
            os.kill(zombie.pid, signal.SIGCONT)
        for driver in self.drivers:
            code = driver.wait(MOST_SECONDS)
            assert code in (0, bucket_publisher.REFUSED, -signal.SIGKILL), self._said()

    def _is_hit(self, _: Request) -> bool:
        if self._faults.random() > 0.07:
            return False
        self.failed += 1
        self.way.faults[0].effect = self._faults.choice(EFFECTS)
        return True

    def _run(self, run: int, actions: Sequence[Sequence[Row]]) -> None:
        made = Publisher(self.lake.url, Payloads(self._payloads), run, self.mode)
        datasets = [made.action(number, rows).dataset for number, rows in enumerate(actions, start=2)]
        token = 1
        while True:
            driver = self._driver(run, token, datasets)
            if token > 3 or self._chance.random() < 0.2:
                assert driver.wait(MOST_SECONDS) == 0, self._said()
                return
            after = len(self.way.requests) + self._chance.randint(3, 40)
            eventually(
                lambda driver=driver, after=after: len(self.way.requests) >= after or driver.poll() is not None,  # type: ignore[misc]
                timeout=MOST_SECONDS,
            )
            if driver.poll() is not None:
                assert driver.returncode == 0, self._said()
                return
            self.hurt += 1
            if self._chance.random() < 0.5:
                driver.kill()
            else:
                os.kill(driver.pid, signal.SIGSTOP)
                self.zombies.append(driver)
            if self.zombies and self._chance.random() < 0.5:  # perhaps one of an older run
                os.kill(self.zombies.pop(self._chance.randrange(len(self.zombies))).pid, signal.SIGCONT)
            token += 1

    def _driver(self, run: int, token: int, datasets: Sequence[str | None]) -> ForkedProcess:
        config = self.folder / f"{run}.{token}.json"
        given = {"lake": self.lake.url, "payloads": self._payloads, "run": run, "mode": self.mode, "token": token}
        config.write_text(json.dumps({**given, "datasets": datasets}))
        argv = [bucket_publisher.__file__, str(config)]
        self.drivers.append(ForkedProcess(argv, self.variables, config.with_suffix(".log"), seed=token))
        return self.drivers[-1]

    def _said(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return f"seed {self.seed}: " + "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in logs)
