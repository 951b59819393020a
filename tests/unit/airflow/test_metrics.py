"""Metrics, sent by Airflow's own code in a process of its own to a socket that the test reads."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]
# What the supervisor of a task does before the task, and the triggerer by what it imports.
INITIALIZE = {
    "task": """
from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
if hasattr(stats, "initialize"):
    stats.initialize(
        factory=stats_utils.get_stats_factory(), export_legacy_names=conf.getboolean("metrics", "legacy_names_on")
    )
else:  # Airflow 3.2
    stats.Stats.initialize(factory=stats_utils.get_stats_factory(stats.Stats))
""",
    "triggerer": "import airflow.jobs.triggerer_job_runner",
}
REPORT = """
from dataclasses import replace
from airflow_logio import metrics
from airflow_logio.status.recoveries import Recovery
from airflow_logio.status.snapshot import Observer
from airflow_logio.protocol.states import ScalingState
from airflow_logio.testing.memory_log import MemoryLogStore
from airflow_logio.triggers.group import GroupReporter
from tests.support.replicated import GROUP, A, B, launch, replicated_run
from tests.support.two_groups import TwoGroups

def watch(reporter, store, run):
    [sight] = store.sight([run.uid])
    reporter.report(sight.groups, store.figures([run.run_id])[run.run_id], sight.requests)

recovery = Recovery("totals", 2, "killed", 99.25, 100.0, 100.5, 101.0, 104.0, None, None)
metrics.report_recovery_begun("sales", recovery)
metrics.report_recovered("sales", replace(recovery, first_commit_at=106.5))
metrics.report_recovery_begun("sales", replace(recovery, last_beat_at=None))
metrics.report_recovered("sales", recovery)
flow = TwoGroups(MemoryLogStore())
flow.send(10, 500)
flow.use(7, 350)
snapshot = Observer(flow.store, flow.run).take()
metrics.report_group(snapshot, "totals")
metrics.report_group(snapshot, "nobody")
store = MemoryLogStore()
run = replicated_run(store)
reporter = GroupReporter(run, GROUP, print)
watch(reporter, store, run)
launch(store, run, A)
driver = launch(store, run, B)
store.park(driver.ref, "no")
store.settle_scaling(store.request_scaling(run.run_id, GROUP, 1, by="test").request_id, ScalingState.REFUSED)
watch(reporter, store, run)
print("reported")
"""
SENT = {
    "logio.group.recoveries,pipeline=sales,group=totals": ["1|c", "1|c"],
    "logio.group.detection_seconds,pipeline=sales,group=totals": ["750.000000|ms"],
    "logio.group.recovery_seconds,pipeline=sales,group=totals": ["6500.000000|ms"],
    "logio.group.incarnation,pipeline=sales,group=totals": ["1|g"],
    "logio.group.lag_events,pipeline=sales,group=totals": ["3|g"],
    "logio.group.undone_events,pipeline=sales,group=totals": ["3|g"],
    "logio.port.undone_events,pipeline=sales,group=totals,port=total.in": ["3|g"],
    "logio.port.undone_events,pipeline=sales,group=totals,port=save.in": ["0|g"],
    "logio.port.events,pipeline=sales,group=totals,port=total.in,direction=in": ["7|g"],
    "logio.port.records,pipeline=sales,group=totals,port=total.in,direction=in": ["350|g"],
    # Of a group of which one of two replicas is parked, and a request to scale it refused, between two looks.
    "logio.group.recoveries,pipeline=sales,group=work": ["0|c"],
    "logio.group.scalings,pipeline=sales,group=work,outcome=done": ["0|c"],
    "logio.group.scalings,pipeline=sales,group=work,outcome=refused": ["0|c", "1|c"],
    "logio.group.incarnation,pipeline=sales,group=work": ["0|g", "1|g"],
    "logio.group.parked,pipeline=sales,group=work": ["0|g", "1|g"],
    "logio.group.halted,pipeline=sales,group=work": ["0|g", "0|g"],
    "logio.group.quarantined,pipeline=sales,group=work": ["0|g", "0|g"],
    "logio.group.recoveries_left,pipeline=sales,group=work": ["9|g", "9|g"],
    "logio.group.replicas,pipeline=sales,group=work": ["0|g", "1|g"],
    "logio.group.lag_events,pipeline=sales,group=work": ["0|g", "0|g"],
    "logio.group.undone_events,pipeline=sales,group=work": ["0|g", "0|g"],
    "logio.port.undone_events,pipeline=sales,group=work,port=work.in": ["0|g", "0|g"],
}


@pytest.fixture
def sink() -> Iterator[socket.socket]:
    """Where StatsD would listen."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))
        opened.setblocking(False)
        yield opened


def received(sink: socket.socket) -> dict[str, list[str]]:
    """Name with tags → values, of this package's metrics that have arrived."""
    found: dict[str, list[str]] = {}
    while True:
        try:
            text = sink.recv(65_536).decode()
        except BlockingIOError:
            return found
        for line in text.splitlines():
            if match := re.fullmatch(r"airflow\.(logio\.[^:]+):(.+)", line):
                found.setdefault(match[1], []).append(match[2])


def report(process: str, configuration: Mapping[str, str], tmp_path: Path) -> str:
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": str(ROOT),
        **{f"AIRFLOW__METRICS__{name}": value for name, value in configuration.items()},
    }
    ended = subprocess.run(
        [sys.executable, "-c", INITIALIZE[process] + REPORT],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert "reported" in ended.stdout
    return ended.stderr


@pytest.mark.parametrize("process", ["task", "triggerer"])
def test_metrics_arrive_with_tags_as_airflow_is_configured(process: str, sink: socket.socket, tmp_path: Path) -> None:
    port = str(sink.getsockname()[1])
    statsd = {"STATSD_ON": "True", "STATSD_HOST": "127.0.0.1", "STATSD_PORT": port, "STATSD_INFLUXDB_ENABLED": "True"}
    said = report(process, statsd, tmp_path)
    found: dict[str, list[str]] = {}

    def all_there() -> bool:
        for name, values in received(sink).items():
            found.setdefault(name, []).extend(values)
        return sum(map(len, found.values())) >= sum(map(len, SENT.values()))

    eventually(all_there, what=f"metrics arrive; the process said: {said}", timeout=120)
    assert found == SENT


def test_without_metrics_nothing_is_sent_and_nothing_fails(sink: socket.socket, tmp_path: Path) -> None:
    said = report("task", {"STATSD_HOST": "127.0.0.1", "STATSD_PORT": str(sink.getsockname()[1])}, tmp_path)
    assert received(sink) == {}
    assert "cannot be sent" not in said


def test_a_backend_that_fails_is_logged_once_and_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.common.compat.sdk import Stats

    from airflow_logio import metrics
    from airflow_logio.status.recoveries import Recovery

    def refuse(*_arguments: object, **_settings: object) -> None:
        raise OSError("the backend is gone")

    said: list[str] = []
    monkeypatch.setattr(metrics.log, "warning", lambda text, *values: said.append(text % values))
    monkeypatch.setattr(Stats, "incr", refuse)
    monkeypatch.setattr(metrics, "_failed", set())
    recovery = Recovery("totals", 2, "killed", None, 100.0, 100.5, None, None, None, None)
    metrics.report_recovery_begun("sales", recovery)
    metrics.report_recovery_begun("sales", recovery)
    assert said == ["metric logio.group.recoveries cannot be sent: OSError: the backend is gone (logged once)"]
