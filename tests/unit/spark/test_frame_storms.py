"""Random pipelines of DataFrames, with hostile records, zones, names and keys, in one session: exact whatever they read."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.launch import bundle
from airflow_logio.launch.start_run import run_spec
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.payloads import Payloads
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.frame_groups import driven
from tests.support.frame_storm import oracle
from tests.support.frame_storm.pipelines import pipeline_of
from tests.support.frame_storm.places import Place, place_of
from tests.support.frame_storm.shape import Shape, drawn
from tests.support.logs import start_driver
from tests.support.postgres import PostgresServer

pytestmark = [
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:Did not recognize type"),
]

PATIENCE_SECONDS = 500.0
REF = bundle.PipelineRef("frames", "made", Path(__file__).parent)


@pytest.mark.parametrize("seed", [*range(12), 14, 16])
def test_what_a_random_pipeline_makes_is_what_duckdb_and_the_databases_join_say(
    seed: int, tmp_path: Path, sessions: SparkSessions, postgres_server: PostgresServer
) -> None:
    shape = drawn(seed)
    with place_of(shape, postgres_server, tmp_path) as place:
        (tmp_path / "over").touch()
        try:
            run(shape, place, sessions)
            oracle.check(shape, place)
        except BaseException as error:
            error.add_note(f"{shape!r}")
            raise


def run(shape: Shape, place: Place, sessions: SparkSessions) -> None:
    """All groups are one of this process."""
    made, params, urls = pipeline_of(shape.seed, alone=True), place.params(shape), place.connections
    store, stop = MemoryLogStore(), threading.Event()
    payloads = Payloads(str(place.folder / "payloads"))
    spec = run_spec(
        made, REF, dag_id="d", dag_run_id="r", params=params, connections=urls, payloads=str(place.folder / "payloads")
    )
    driver = start_driver(store, group="all", run=store.start_run(spec))
    identity = WriterIdentity(driver.run.uid, driver.ref.incarnation, driver.run.created_at)
    connections = Connections(made.name, urls, identity, 1.0, params=params)
    settings = EpochSettings(
        made.for_run(params), driver.run, "all", connections, sessions, lambda _: None, stop, payloads=payloads
    )
    session = sessions.get()
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", shape.zone or "UTC")
    try:
        assert driven(settings, driver, stop, PATIENCE_SECONDS)
    finally:
        session.conf.set("spark.sql.session.timeZone", before)
