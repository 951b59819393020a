"""Runs that wait where a test wants it: at gates, whose openings and arrivals are files of a folder that all hosts share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.launcher import Launched, Launcher
from airflow_logio.store.records.driver_records import Claim
from tests.support.running import Running


@dataclass
class NoLauncher(Launcher):
    """Starts no process: drivers are the cluster manager's."""

    work_dir: Path

    def launch(self, claim: Claim, launch: Launch) -> Launched:
        raise AssertionError(f"a driver of {claim.group} was to start on this machine")


@dataclass
class GatedRun:
    """A run whose group `make` waits at gates, each with a number."""

    run: Running
    folder: Path
    """Of the gates."""
    seconds: dict[str, float] = field(default_factory=dict, kw_only=True)
    """What happened → seconds from there to the first commit of the next driver."""

    def held(self, number: int) -> list[Path]:
        return sorted(self.folder.glob(f"held-{number}-*"))

    def until_held(self, number: int, timeout: float = 300) -> None:
        """Supervise until a driver, or its executor, waits at a gate."""
        self.run.until(lambda: self.held(number), f"a driver waits at {number}", timeout=timeout)

    def open(self, number: int) -> None:
        (self.folder / f"open-{number}").touch()

    def is_recovered(self, what: str, fault: Callable[[], object], gate: int, timeout: float = 420) -> None:
        """Do what ends the driver of group `make`, which waits at a gate; open that when it is replaced, and supervise
        until it has committed."""
        before = self.run.status("make").incarnation
        begun = time.monotonic()
        fault()
        self.run.until(lambda: self.run.status("make").incarnation > before, f"{what}: it is dead", timeout=timeout)
        self.open(gate)

        def has_committed() -> bool:
            drivers = self.run.store.drivers(self.run.run.run_id)
            return any(
                one.first_commit_at is not None for one in drivers if one.group == "make" and one.incarnation > before
            )

        self.run.until(has_committed, f"make is recovered when {what}", timeout=timeout)
        self.seconds[what] = round(time.monotonic() - begun, 1)
