"""Runs whose drivers are pods: a small pipeline of a group with Spark and one without, which waits where a test wants it."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from airflow_logio.launch import bundle
from airflow_logio.launch.code_bundle import collect
from airflow_logio.launch.driver_arguments import APPLICATION_PROPERTY, CONNECTIONS_PROPERTY
from airflow_logio.launch.managers.kubernetes import EXECUTOR, PART
from airflow_logio.launch.processes import APPLICATION
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.liveness import Lease
from airflow_logio.supervision.clusters.left_drivers import LeftDrivers
from tests.support.gated_runs import GatedRun, NoLauncher
from tests.support.kubernetes.api_server import ApiServer
from tests.support.kubernetes.client import Api
from tests.support.kubernetes.kubelet import Kubelet, kubelet
from tests.support.kubernetes.pods import Pod
from tests.support.kubernetes.real import Kubernetes
from tests.support.postgres import PostgresServer
from tests.support.running import Running, running
from tests.support.waiting import eventually

PASSWORD = "pw-of-the-log-and-the-warehouse"
NUMBERS = 40
EVERY = 5
"""Numbers that one job of Spark is about."""
GATES = (10, 20, 30)
PIPELINE = f"""
import os
import time
from pathlib import Path

from airflow_logio import EveryEvents, ParquetSource, Pipeline, TableWriter, generate, stateless


@stateless
def gate(numbers):
    gates = Path(os.environ["GATES"])
    for number in numbers.column("n").to_pylist():
        if number in {GATES}:
            (gates / f"held-{{number}}-{{time.time()}}").touch()
            while not (gates / f"open-{{number}}").exists():
                time.sleep(0.02)
    return numbers


@generate(SPARK)
def double(numbers):
    DOUBLED


pipeline = Pipeline("doubles", params={{"numbers": str}}, connections=["warehouse"], environment=["GATES"])
read = pipeline.source("read", ParquetSource("{{numbers}}", records_per_event=1))
held = pipeline.operator("gate", gate, read)
made = pipeline.operator("double", double, held, window=EveryEvents({EVERY}))
columns = {{"n": "bigint", "twice": "bigint"}}
save = pipeline.writer("save", TableWriter("warehouse", "doubles", columns, on_new_run="replace"), made)
pipeline.group("make", read, held, made)
pipeline.group("save", save)
"""
WITH_SPARK = ('mode="executors"', "return numbers.selectExpr('n', 'n * 2 AS twice')")
WITHOUT = (
    'mode="driver"',
    "return numbers.append_column('twice', [[2 * number for number in numbers.column('n').to_pylist()]])",
)
EXPECTED = [(number, 2 * number) for number in range(NUMBERS)]
SECRET, FOLDER = "logio", "/etc/logio"
Server = ApiServer | Kubernetes
"""The small one of the tests, or Kubernetes' own."""

ROLES = Path(__file__).parents[2] / "docker" / "k8s" / "rbac.yaml"
_REQUEST = re.compile(
    r"(?P<method>[A-Z]+) /api(?:s/[a-z0-9.]+)?/v1/namespaces(?:/default/(?P<resource>[a-z]+))?(?:/(?P<name>[^/?]+))?"
    r"(?:\?(?P<query>.*))?"
)
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update"}


def verbs_of(requests: Iterable[str]) -> set[tuple[str, str]]:
    """Resource and verb of each request, as Kubernetes calls them; those of nodes (sub-resources, Secrets) are left out."""
    found = set()
    for request in requests:
        asked = _REQUEST.fullmatch(request)
        if asked is None or asked["resource"] == "secrets":
            continue
        if asked["method"] == "GET":
            verb = "watch" if "watch=true" in (asked["query"] or "") else "get" if asked["name"] else "list"
        else:
            verb = _VERBS.get(asked["method"]) or ("delete" if asked["name"] else "deletecollection")
        found.add((asked["resource"] or "namespaces", verb))
    return found


def verbs_granted() -> set[tuple[str, str]]:
    """By the Roles that are shipped."""
    roles = [one for one in yaml.safe_load_all(ROLES.read_text()) if one["kind"] == "Role"]
    rules = [rule for role in roles for rule in role["rules"]]
    return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


def results(warehouse_url: str) -> list[tuple[int, int]]:
    """What the pipeline has written."""
    connection = psycopg2.connect(warehouse_url.replace("+psycopg2", ""))
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT n, twice FROM doubles ORDER BY n, twice")
            return list(cursor.fetchall())
    finally:
        connection.close()


@dataclass
class Cluster:
    """An API server, nodes, and a PostgreSQL that pods and this machine reach."""

    server: Server
    api: Api
    nodes: Kubelet
    postgres: PostgresServer

    @property
    def for_pods(self) -> str:
        return f"http://{self.nodes.network.address}:{self.server.port}"

    def settings(self, **conf: str) -> SparkSettings:
        """Of drivers that have what the Secret says."""
        ours = {
            "spark.kubernetes.container.image": "logio",
            "spark.kubernetes.driver.master": self.for_pods,
            "spark.kubernetes.driver.request.cores": "1",
            f"spark.kubernetes.driver.secrets.{SECRET}": FOLDER,
            CONNECTIONS_PROPERTY: f"{FOLDER}/connections.json",
            APPLICATION_PROPERTY: f"local://{APPLICATION}",
            "spark.pyspark.python": sys.executable,
            "spark.executor.instances": "1",
            "spark.driver.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
        }
        return SparkSettings(f"k8s://{self.server.url}", "cluster", {**ours, **conf}, executor_memory="512m")

    def make_secret(self, says: Mapping[str, Any]) -> None:
        """What drivers are told."""
        content = base64.b64encode(json.dumps(says).encode()).decode()
        path = "/api/v1/namespaces/default/secrets"
        self.api.create(path, {"metadata": {"name": SECRET}, "data": {"connections.json": content}})

    def pods(self) -> list[dict[str, Any]]:
        return list(self.api.get("/api/v1/namespaces/default/pods")["items"])

    def living(self) -> list[str]:
        """Names of pods that have not ended."""
        return [pod["metadata"]["name"] for pod in self.pods() if pod["status"]["phase"] not in {"Succeeded", "Failed"}]

    def pod_of(self, run: Running, group: str) -> Pod:
        submission = run.status(group).submission
        assert submission is not None
        return self.nodes.pod(submission.name)

    def executors(self) -> list[str]:
        """Names of executors' pods that run."""
        return [
            pod["metadata"]["name"]
            for pod in self.pods()
            if pod["status"]["phase"] == "Running" and pod["metadata"]["labels"].get(PART) == EXECUTOR
        ]

    def leaves_nothing(self, run: Running) -> None:
        """All that was submitted for a run that has ended is confirmed to have ended, and no pod is left."""
        left = LeftDrivers(run.store, run.context.managers, [run.run.run_id])
        eventually(lambda: not left.look_after(), what="all ends are confirmed", timeout=240, every=0.5)
        eventually(lambda: not self.living(), what="no pod is left that has not ended", timeout=60, every=0.2)

    @contextmanager
    def running(
        self,
        folder: Path,
        ref: bundle.PipelineRef,
        warehouse_url: str,
        params: Mapping[str, str],
        *,
        environment: Mapping[str, str] | None = None,
        lease: Lease | None = None,
        recoveries: int = 50,
    ) -> Iterator[Running]:
        """A run whose drivers are pods, which have from their Secret where log and warehouse are."""
        told = [with_password(url) for url in (self.postgres.new_database(), warehouse_url)]
        says = {"log": told[0], "connections": {"warehouse": told[1]}, "environment": dict(environment or {})}
        self.make_secret(says)
        with (
            running(
                told[0],
                told[1],
                folder,
                NoLauncher(folder / "none"),
                ref=ref,
                params=params,
                code=collect(ref),
                spark=self.settings(),
                lease=lease or Lease(15, 120),
                recoveries=recoveries,
            ) as run,
            self.explaining(run),
        ):
            yield run

    @contextmanager
    def explaining(self, run: Running) -> Iterator[None]:
        """What fails here says what became of the drivers of a run, and what pods have printed."""
        try:
            yield
        except Exception as error:
            for one in run.store.drivers(run.run.run_id):
                error.add_note(f"{one.group} {one.incarnation} because {one.reason}; ended: {one.error}")
            for log in sorted((self.nodes.folder / "pods").glob("*/log")):
                error.add_note(f"--- {log.parent.name}\n{log.read_text(errors='replace')[-2000:]}")
            raise


def with_password(url: str) -> str:
    """PostgreSQL trusts: any password will do, and a test can look for it."""
    return url.replace("@", f":{PASSWORD}@", 1)


@contextmanager
def cluster_of(server: Server, folder: Path, nodes: tuple[str, ...] = ("node-1", "node-2")) -> Iterator[Cluster]:
    image = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
    api = Api(server.url)
    with kubelet(server.url, folder / "kubelet", nodes, shared=[folder], image=image) as made:
        postgres = PostgresServer(host=made.network.address)
        try:
            postgres.create()
            postgres.start()
            yield Cluster(server, api, made, postgres)
        finally:
            postgres.destroy()
            api.close()


@dataclass
class Gated(GatedRun):
    """A run of the small pipeline."""

    cluster: Cluster
    warehouse_url: str

    def finish(self, timeout: float = 420) -> None:
        """The result is exact, and nothing is left that has not ended."""
        for gate in GATES:
            self.open(gate)
        self.run.finish(timeout=timeout)
        assert results(self.warehouse_url) == EXPECTED
        self.cluster.leaves_nothing(self.run)


@contextmanager
def gated(
    cluster: Cluster,
    folder: Path,
    *,
    spark: bool = True,
    lease: Lease | None = None,
    recoveries: int = 50,
) -> Iterator[Gated]:
    """A run of the small pipeline, which is supervised by the test; `spark`: group `make` runs jobs of Spark."""
    source, gates = folder / "dags", folder / "gates"
    for one in (source, gates):
        one.mkdir()
    mode, body = WITH_SPARK if spark else WITHOUT
    (source / "doubles.py").write_text(PIPELINE.replace("SPARK", mode).replace("DOUBLED", body))
    pq.write_table(pa.table({"n": range(NUMBERS)}), folder / "numbers.parquet")
    ref = bundle.parse_ref(f"{source / 'doubles.py'}:pipeline")
    warehouse_url = cluster.postgres.new_database(migrated=False)
    numbers, environment = {"numbers": str(folder / "numbers.parquet")}, {"GATES": str(gates)}
    with cluster.running(
        folder, ref, warehouse_url, numbers, environment=environment, lease=lease, recoveries=recoveries
    ) as run:
        yield Gated(run, gates, cluster, warehouse_url)
