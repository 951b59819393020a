"""The simulator, for pipelines of this package and of its users: it crashes a pipeline in thousands of ways, by seed.

    from airflow_logio.testing import Simulator, pipeline_scenario

    def test_my_pipeline_survives():
        simulator = Simulator(pipeline_scenario(my_pipeline, tables={"warehouse": {"products": products}}))
        for seed in range(1_000):
            _, failure = simulator.run(seed)
            assert failure is None, failure

`logio simulate path/to/file.py:name` does the same from a terminal, on several cores, and tells each failure as a story.
"""

from __future__ import annotations

from airflow_logio.testing.simulator.actions import Site
from airflow_logio.testing.simulator.authored_pipeline import ScriptedSource, pipeline_scenario
from airflow_logio.testing.simulator.external_systems import ExternalSystem, Guarantee
from airflow_logio.testing.simulator.plan import (
    Batch,
    Destinations,
    GroupPlan,
    ListSource,
    Observed,
    Read,
    Scenario,
    UpTo,
)
from airflow_logio.testing.simulator.shrink import shrink
from airflow_logio.testing.simulator.simulation import FailedSchedule, ScheduleFigures, Simulator
from airflow_logio.testing.simulator.story import tell
from airflow_logio.testing.simulator.violation import Violation
from airflow_logio.testing.simulator.watch.log_watch import INVARIANTS, LogWatch

__all__ = [
    "INVARIANTS",
    "Batch",
    "Destinations",
    "ExternalSystem",
    "FailedSchedule",
    "GroupPlan",
    "Guarantee",
    "ListSource",
    "LogWatch",
    "Observed",
    "Read",
    "Scenario",
    "ScheduleFigures",
    "ScriptedSource",
    "Simulator",
    "Site",
    "UpTo",
    "Violation",
    "pipeline_scenario",
    "shrink",
    "tell",
]
