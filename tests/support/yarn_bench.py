"""Applications in place of drivers on YARN, without a run: submitted, watched, let end."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from pathlib import Path

from airflow_logio.launch.driver_arguments import APPLICATION_PROPERTY
from airflow_logio.launch.driver_config import DriverConfig, Launch
from airflow_logio.launch.managers.cluster_manager import DriverSight, Sighting
from airflow_logio.launch.managers.yarn import YarnManager
from airflow_logio.store.records.driver_records import Claim, Submission
from tests.support import yarn_driver
from tests.support.launches import launch_of
from tests.support.waiting import eventually
from tests.support.yarn_cluster import YarnCluster

LONG = 400.0
"""For what takes a machine with other work some seconds."""
_numbers = itertools.count(1)


@dataclass
class Bench:
    """A cluster, and submissions to it."""

    cluster: YarnCluster

    def __post_init__(self) -> None:
        self.flags.mkdir()

    @property
    def flags(self) -> Path:
        return self.cluster.folder / "flags"

    def launch(self, does: str, **more: str) -> Launch:
        conf = {
            APPLICATION_PROPERTY: yarn_driver.__file__,
            "spark.yarn.appMasterEnv.FLAGS": str(self.flags),
            "spark.yarn.appMasterEnv.PYTHONPATH": str(Path(__file__).parents[2]),
            "spark.yarn.am.waitTime": "3600s",
            **more,
        }
        settings = self.cluster.settings(conf)
        config = DriverConfig("postgresql://nowhere/log", claim_of(does), "m", "p", "/", {})
        return launch_of(config, settings, settings.effective_conf({}))

    @property
    def manager(self) -> YarnManager:
        launch = self.launch("stays")
        return YarnManager.of_settings(launch.settings, launch.conf)

    def submitted(self, does: str, **more: str) -> Submission:
        claim, launch = claim_of(does), self.launch(does, **more)
        manager = YarnManager.of_settings(launch.settings, launch.conf)
        manager.check(launch.settings, launch.conf)
        found = manager.submit(manager.prepare(claim, launch), claim, launch)
        assert found.id.startswith("application_") and found.attempt == 0
        return found

    def seen(self, one: Submission) -> Sighting:
        return YarnManager.at(one).look([one])[one]

    def becomes(self, one: Submission, state: DriverSight) -> Sighting:
        def seen() -> Sighting | None:
            found = self.seen(one)
            return found if found.state is state else None

        try:
            found = eventually(seen, what=f"{one.name} is {state}", timeout=LONG, every=0.2)
        except AssertionError as error:
            error.add_note(f"{self.seen(one)}\n{self.cluster.output(one.id)}")
            raise
        assert found is not None
        return found

    def prints(self, one: Submission, *words: str) -> str:
        def printed() -> bool:
            return all(word in self.cluster.output(one.id) for word in words)

        eventually(printed, what=f"{one.name} prints {words}", timeout=LONG, every=0.1)
        return self.cluster.output(one.id)

    def let_end(self, one: Submission) -> None:
        (self.flags / one.name).touch()

    def ended(self, one: Submission) -> None:
        manager = YarnManager.at(one)
        eventually(lambda: manager.end(one), what=f"{one.name} has ended", timeout=LONG, every=0.2)
        eventually(lambda: not self.cluster.processes(one.id), what="its processes end", timeout=LONG, every=0.2)


def claim_of(does: str) -> Claim:
    return Claim(1, uuid.uuid4().hex, does, next(_numbers), uuid.uuid4().hex, recovery=False)
