"""Runs whose drivers a standalone master starts: a small pipeline that waits where a test wants it, and a node's file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_logio.launch import bundle
from airflow_logio.launch.code_bundle import collect
from airflow_logio.launch.driver_arguments import CONNECTIONS_PROPERTY
from airflow_logio.launch.managers.submission_server import REST_PROPERTY
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.liveness import Lease
from airflow_logio.supervision.clusters.left_drivers import LeftDrivers
from tests.support.gated_runs import GatedRun, NoLauncher
from tests.support.running import Running, running
from tests.support.spark_cluster import Cluster
from tests.support.waiting import eventually

GATES = (10, 20, 30, 40)
NUMBERS = 50
TOKEN, PASSWORD = "t0ken-of-the-node", "pw-of-the-log"
"""Secrets that only the node's file has."""
PIPELINE = f"""
import os
import time
from pathlib import Path

from airflow_logio.dataflow import ParquetSource, Pipeline, TableWriter, stateless


@stateless
def double(numbers):
    gates = Path(os.environ["GATES"])
    found = numbers.column("n").to_pylist()
    for number in found:
        if number in {GATES}:
            (gates / f"held-{{number}}-{{time.time()}}").touch()
            while not (gates / f"open-{{number}}").exists():
                time.sleep(0.02)
    return numbers.append_column("twice", [[2 * number for number in found]])


pipeline = Pipeline("gated", params={{"numbers": str}}, connections=["warehouse"], environment=["GATES", "SHOP_TOKEN"])
read = pipeline.source("read", ParquetSource("{{numbers}}", records_per_event=1))
made = pipeline.operator("double", double, read)
columns = {{"n": "bigint", "twice": "bigint"}}
save = pipeline.writer("save", TableWriter("warehouse", "doubles", columns, on_new_run="replace"), made)
pipeline.group("make", read, made)
pipeline.group("save", save)
"""
EXPECTED = [(number, 2 * number) for number in range(NUMBERS)]


def write_node_file(
    path: Path, log_url: str, connections: Mapping[str, str], environment: Mapping[str, str], **more: str
) -> Path:
    """What a node has to say to drivers; `more`: the payload store."""
    says = {"log": log_url, "connections": dict(connections), "environment": dict(environment), **more}
    path.touch(mode=0o600)
    path.write_text(json.dumps(says))
    return path


def on_cluster(cluster: Cluster, node_file: Path, rest: str | None = None, **conf: str) -> SparkSettings:
    """Settings of drivers that the master starts."""
    ours = {CONNECTIONS_PROPERTY: str(node_file), REST_PROPERTY: rest or cluster.rest}
    made = cluster.settings({**ours, **conf})
    return SparkSettings(made.master, "cluster", made.conf, executor_memory="512m", executor_cores=1)


@dataclass
class Gated(GatedRun):
    """A run of the small pipeline."""

    warehouse_url: str

    def rows(self) -> list[tuple[int, int]]:
        connection = psycopg2.connect(self.warehouse_url.replace("+psycopg2", ""))
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT n, twice FROM doubles ORDER BY n, twice")
                return list(cursor.fetchall())
        finally:
            connection.close()


@contextmanager
def gated(
    cluster: Cluster,
    folder: Path,
    log_url: str,
    warehouse_url: str,
    *,
    rest: str | None = None,
    lease: Lease | None = None,
    **more: Any,
) -> Iterator[Gated]:
    """A run of the small pipeline on the cluster, which is supervised by the test; `rest` is where the master is asked."""
    settings = lambda node: on_cluster(cluster, node, rest)  # noqa: E731
    with gated_by(settings, folder, log_url, warehouse_url, lease=lease, **more) as made:
        try:
            yield made
        except Exception as error:
            for one in sorted((cluster.folder / "worker").glob("driver-*/std*")):
                error.add_note(f"--- {one.parent.name}/{one.name}\n{one.read_text(errors='replace')[-1500:]}")
            raise


@contextmanager
def gated_by(
    settings: Callable[[Path], SparkSettings],
    folder: Path,
    log_url: str,
    warehouse_url: str,
    *,
    lease: Lease | None = None,
    **more: Any,
) -> Iterator[Gated]:
    """A run of the small pipeline whose drivers have these settings, which are told the node's file."""
    source, gates = folder / "dags", folder / "gates"
    for one in (source, gates):
        one.mkdir()
    (source / "gated_pipeline.py").write_text(PIPELINE)
    pq.write_table(pa.table({"n": range(NUMBERS)}), folder / "numbers.parquet")
    ref = bundle.parse_ref(f"{source / 'gated_pipeline.py'}:pipeline")
    told = {"GATES": str(gates), "SHOP_TOKEN": TOKEN}
    log = log_url.replace("@", f":{PASSWORD}@", 1)
    node = write_node_file(folder / "node.json", log, {"warehouse": warehouse_url}, told)
    with running(
        log_url,
        warehouse_url,
        folder,
        NoLauncher(folder / "none"),
        ref=ref,
        params={"numbers": str(folder / "numbers.parquet")},
        code=collect(ref),
        spark=settings(node),
        lease=lease or Lease(15, 240),
        **more,
    ) as run:
        yield Gated(run, gates, warehouse_url)


def shows_no_secret(cluster: Cluster) -> None:
    """Neither the pages of master and workers, nor their files, nor what runs on this machine: arguments and properties of
    drivers and executors are in all of them."""
    state = cluster.state()
    pages = [f"http://{cluster.address}:{cluster.ui_port}/{path}" for path in ("", "json/")]
    pages += [f"{worker['webuiaddress']}/{path}" for worker in state["workers"] for path in ("", "json/")]
    drivers = [one["id"] for one in (*state["activedrivers"], *state["completeddrivers"])]
    pages += [f"{cluster.rest}/v1/submissions/status/{driver}" for driver in drivers]
    found = {}
    for page in pages:
        with urlopen(page, timeout=30) as answer:
            found[page] = answer.read().decode(errors="replace")
    for path in cluster.folder.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):  # a driver that ends removes its own
            found[str(path)] = path.read_text(errors="replace")
    found |= {f"process {one.pid}": " ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])}
    assert drivers and any("SparkSubmit" in text for text in found.values()), "it looks where drivers are shown"
    assert not [place for place, text in found.items() if TOKEN in text or PASSWORD in text]


def leaves_nothing(run: Running, cluster: Cluster, *, confirmed: bool = True) -> None:
    """The master has no driver of the run any more. `confirmed`: the log has it of each that it has ended; of one whose id is
    not known that takes minutes."""
    left = LeftDrivers(run.store, run.context.managers, [run.run.run_id])
    ended = lambda: left.look_after() == [] or not confirmed  # noqa: E731
    eventually(ended, what="all ends are confirmed", timeout=180, every=0.5)
    eventually(lambda: not cluster.state()["activedrivers"], what="the master has no driver", timeout=60, every=0.2)
