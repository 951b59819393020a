"""One run of a pipeline in a log of its own, for `LocalRun` to supervise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_logio.launch import bundle
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.launcher import LaunchContext, LocalProcessLauncher
from airflow_logio.launch.start_run import run_spec
from airflow_logio.store import open_store


@contextmanager
def bench_run(
    ref: PipelineRef, log_url: str, folder: Path, params: Mapping[str, Any], connections: Mapping[str, str]
) -> Iterator[LaunchContext]:
    """The run is started, and its drivers are to work in `folder`; sources begin when all of them are up.

    `connections`: name → URL.
    """
    pipeline = bundle.load(ref)
    store = open_store(log_url, application="logio bench")
    try:
        spec = run_spec(
            pipeline,
            ref,
            dag_id="bench",
            dag_run_id=ref.attr,
            params=params,
            connections={name: name for name in connections},
            hold_sources=True,
        )
        launcher = LocalProcessLauncher(folder / "drivers")
        yield LaunchContext(store, log_url, store.start_run(spec), pipeline, ref, connections, launcher)
    finally:
        store.dispose()
