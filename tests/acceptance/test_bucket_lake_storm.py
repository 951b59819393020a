"""A lake in buckets of a store that fails in each way that stores fail in, and dies; while drivers and executors die as well.

Payloads and what is published are in two buckets of S3Proxy, behind a way with faults; the log is on PostgreSQL. What counts
is compared with DuckDB's reading of the orders, and `logio gc` leaves no object.
"""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyarrow import fs

from airflow_logio.crash import CrashPoint
from airflow_logio.protocol.liveness import Lease
from airflow_logio.systems.bucket_roots import BucketRoot
from airflow_logio.systems.payloads import task_files
from airflow_logio.systems.payloads.file_roots import data_files
from tests.support.bucket_lakes import BucketLakeFolders, executors
from tests.support.faulty_store import (
    BROKEN,
    EXPIRED,
    SLOW_DOWN,
    Answer,
    Cut,
    Delay,
    Effect,
    FaultyStore,
    LostAnswer,
    Request,
    Wait,
    faulty_store,
    named,
)
from tests.support.hadoop_aws import why_no_hadoop_aws
from tests.support.lakes import reached
from tests.support.object_store import s3proxy, why_no_s3proxy
from tests.support.running import ArmedSparkLauncher, Running, has_ended, running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(2400)]

log = logging.getLogger(__name__)
SEED = int(os.environ.get("LOGIO_STORM_SEED", "7"))
SHARE = 0.06
"""Of all requests, that fail."""
EFFECTS: tuple[Effect, ...] = (SLOW_DOWN, BROKEN, LostAnswer(), Cut(), Delay(1.5))
EXPIRED_REQUESTS, UNHEARD = 40, 10


class Faults:
    """Of some of the requests, drawn by a seed."""

    def __init__(self, way: FaultyStore) -> None:
        self._random = random.Random(SEED)
        self.met: Counter[tuple[str, str]] = Counter()
        """(operation, fault) → requests."""
        self._way, self._fault = way, way.fail(self._is_hit, SLOW_DOWN)

    def end(self) -> None:
        self._way.faults.remove(self._fault)

    def _is_hit(self, request: Request) -> bool:
        if self._random.random() > SHARE:
            return False
        effect = self._random.choice(EFFECTS)
        self.met[request.operation, effect.code if isinstance(effect, Answer) else type(effect).__name__] += 1
        self._fault.effect = effect  # the way is locked
        return True


class ServedLake(BucketLakeFolders):
    """Its store can be killed, and started again with what it has kept."""

    def __init__(self, folder: Path, warehouse_url: str, stack: ExitStack) -> None:
        self._kept = folder / "store"
        self._kept.mkdir()
        self._server = ExitStack()
        stack.callback(self.kill)
        objects = self._server.enter_context(s3proxy(self._kept))
        self.way = stack.enter_context(faulty_store(objects.port))
        through = objects.through(self.way.port)
        super().__init__(folder, warehouse_url, through)
        self.lake = f"{through.new_url('lake')}&consistent=yes"

    def settings(self) -> dict[str, Any]:
        found = super().settings()
        return {**found, "connections": {**found["connections"], "lake": self.lake}}

    def kill(self) -> None:
        self._server.close()

    def start(self) -> None:
        self._server = ExitStack()
        self.way.store_port = self._server.enter_context(s3proxy(self._kept)).port

    def assert_exact(self) -> None:
        fs.copy_files(
            self.lake.partition("?")[0].removeprefix("s3://"),
            str(self.published),
            source_filesystem=self.objects.files(),
        )
        super().assert_exact()


@pytest.fixture
def lake(tmp_path: Path, postgres_warehouse_url: str) -> Iterator[ServedLake]:
    if why := why_no_hadoop_aws() or why_no_s3proxy():
        pytest.skip(why)
    with ExitStack() as stack:
        made = ServedLake(tmp_path, postgres_warehouse_url, stack)
        stack.enter_context(reached(made.objects))
        yield made


def logio_gc(log_url: str, root: str, *more: str) -> str:
    """What the command says, as a person gives it."""
    environment = {**os.environ, "LOGIO_URL": log_url, "LOGIO_PAYLOADS": root}
    command = [sys.executable, "-m", "airflow_logio.cli", "gc", *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_exact_while_the_store_fails_and_dies(postgres_url: str, tmp_path: Path, lake: ServedLake) -> None:
    """A driver dies, an executor is killed, another driver stops while it publishes and wakes up behind its successor;
    credentials expire; the store is killed. A put of a driver that has died arrives when its run has been removed."""
    armed = {
        ("front", 1): f"{CrashPoint.AFTER_DATASET_JOB}:1",
        ("back", 1): f"{CrashPoint.IN_PUBLICATION}:1:stop",
        ("windows", 1): f"{CrashPoint.AFTER_DATASET_JOB}:1",
    }
    launcher = ArmedSparkLauncher(tmp_path / "drivers", armed)
    way = lake.way
    late = Wait()
    held = way.fail(
        lambda request: named("PutObject", key="/windows/1/")(request) and ".parquet" in request.key, late, 1
    )
    faults = Faults(way)
    settings = {"end_old_drivers": False, "lease": Lease(15, 120), **lake.settings()}
    with running(postgres_url, "", lake.orders, launcher, **settings) as run:
        run.until(
            lambda: run.is_running("front", 2) and executors(run.process("front")), "front has an executor", timeout=600
        )
        for process in executors(run.process("front")):
            process.kill()
        zombie, jvm = _stopped(run, "back")
        run.until(lambda: run.is_running("back", 2), "back is replaced", timeout=300)
        expired = way.fail(lambda _: True, EXPIRED, EXPIRED_REQUESTS)
        run.until(lambda: expired.met == EXPIRED_REQUESTS, "credentials have expired, and are renewed", timeout=300)
        lake.kill()
        run.until(lambda: way.unheard >= UNHEARD, "the store is missed", timeout=300)
        lake.start()
        run.until(lambda: run.count("orders.lake", "write") > 0, "its successor has published", timeout=900)
        zombie.resume()
        eventually(lambda: has_ended(zombie) and has_ended(jvm), what="the zombie and its JVM exit", timeout=300)
        run.finish(timeout=1500)
        assert run.status("windows").incarnation >= 2
        assert held.met == 1
        cost = way.counted()
        faults.end()
        log.info("seed %d, faults %s, requests %s, unheard %d", SEED, faults.met, cost, way.unheard)
        lake.assert_exact()
        logio_gc(postgres_url, lake.root)
        lake.assert_named(run.store, run)
        assert "removed run" in logio_gc(postgres_url, lake.root, "--older-than", "1s")
        assert lake.keys() == []
        _arrives(late, lake)
        files = data_files(lake.root)
        task_files.new_files(files, f"{run.run.uid}/back/1/0/late", (), pa.table({"n": [1]}).to_batches())
        assert len(lake.keys()) == 2
        assert "2 files of removed runs" in logio_gc(postgres_url, lake.root)
        assert lake.keys() == []
        assert {fault for _, fault in faults.met} == {"SlowDown", "InternalError", "LostAnswer", "Cut", "Delay"}


def _stopped(run: Running, group: str) -> tuple[psutil.Process, psutil.Process]:
    """The first driver of a group, which has stopped, and its JVM."""
    run.until(lambda: run.is_running(group), f"{group} runs", timeout=300)
    driver = run.process(group)
    jvm = driver.parent()
    assert jvm is not None
    run.until(lambda: driver.status() == psutil.STATUS_STOPPED, f"{group} has stopped", timeout=600)
    return driver, jvm


def _arrives(late: Wait, lake: ServedLake) -> None:
    late.gate.set()
    eventually(lake.keys, what="what was put is there", timeout=60)
    [key] = lake.keys()
    assert key.startswith(BucketRoot.of(lake.root).path)
    assert "/windows/1/" in key
