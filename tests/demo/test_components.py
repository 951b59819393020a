"""Airflow's components under the eyes of the demonstration: what is gone is named, and started again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from demo import demonstration
from demo.examples import example
from demo.standalone import (
    AGAIN_SECONDS,
    COMPONENTS,
    UNHEALTHY_SECONDS,
    AirflowComponents,
    component_of,
)
from tests.support.waiting import eventually

WELL = dict.fromkeys(COMPONENTS, "healthy")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Airflow:
    """Its components are processes that only wait, under the command lines that Airflow's have."""

    def __init__(self) -> None:
        self.started: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "import time; time.sleep(300)", "/venv/bin/airflow", name]
        self.started.append((name, subprocess.Popen(command)))
        return self.started[-1][1]

    def last(self, name: str) -> subprocess.Popen[bytes]:
        return [process for one, process in self.started if one == name][-1]


@pytest.fixture
def airflow() -> Iterator[Airflow]:
    made = Airflow()
    for name in COMPONENTS:
        process = psutil.Process(made.start(name).pid)
        eventually(lambda process=process: component_of(process), what="its command line is there")  # type: ignore[misc]
    yield made
    for _, process in made.started:
        process.kill()
        process.wait()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def components(airflow: Airflow, clock: Clock, said: list[str]) -> AirflowComponents:
    watched = AirflowComponents(airflow.start, said.append, clock)
    watched.remember([psutil.Process(process.pid) for _, process in airflow.started])
    return watched


def test_components_are_told_apart(airflow: Airflow) -> None:
    assert [component_of(psutil.Process(process.pid)) for _, process in airflow.started] == list(COMPONENTS)
    assert component_of(psutil.Process()) is None


def test_one_that_is_gone_is_named_and_started_again(
    airflow: Airflow, components: AirflowComponents, said: list[str]
) -> None:
    components.look(WELL)
    assert said == []
    for _ in range(2):
        airflow.last("triggerer").kill()
        airflow.last("triggerer").wait()
        components.look({})
        assert said[-1].startswith("Airflow's triggerer has ended; it is started again (pid ")
        components.look(WELL)
    assert [name for name, _ in airflow.started] == [*COMPONENTS, "triggerer", "triggerer"]
    assert len(said) == 2


def test_one_that_is_gone_while_a_dag_is_parsed_is_started_again(
    airflow: Airflow, components: AirflowComponents, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the DAG would never be there."""

    class Parsing:
        def import_errors(self) -> list[str]:
            return []

        def has_dag(self, _dag_id: str) -> bool:
            if len(airflow.started) == len(COMPONENTS):
                airflow.last("dag-processor").kill()
                airflow.last("dag-processor").wait()
            return airflow.last("dag-processor").poll() is None

        def health(self) -> dict[str, str]:
            return {}

        def check_alive(self) -> None: ...

    monkeypatch.setattr(demonstration, "HEALTH_SECONDS", 0.0)
    parsing: Any = Parsing()
    places: Any = None
    progress: Any = SimpleNamespace(say=lambda _: None)
    demo = demonstration.Demonstration(
        places, progress, parsing, example("logio_sales"), _airflow=parsing, _components=components
    )
    demo._wait_for_dag(parsing)
    assert len(said) == 1 and said[0].startswith("Airflow's dag-processor has ended; it is started again")


def test_one_that_hangs_is_replaced_after_a_while(
    airflow: Airflow, components: AirflowComponents, clock: Clock, said: list[str]
) -> None:
    hung, ill = airflow.last("triggerer"), {**WELL, "triggerer": "unhealthy"}
    components.look(ill)
    clock.now += UNHEALTHY_SECONDS - 1
    components.look(WELL)  # it was late only
    components.look(ill)
    clock.now += UNHEALTHY_SECONDS - 1
    components.look(ill)
    components.look({})  # no answer says nothing
    components.look(ill)
    assert said == [] and hung.poll() is None
    clock.now += UNHEALTHY_SECONDS
    components.look(ill)
    assert len(said) == 1 and "triggerer was unhealthy for 60 s" in said[0]
    eventually(lambda: hung.poll() is not None, what="the old one is ended")
    clock.now += AGAIN_SECONDS - 1
    components.look(ill)
    assert len(said) == 1, "the new one is given time"
