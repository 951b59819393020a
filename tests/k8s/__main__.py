"""A pipeline with and without Spark on the cluster that KUBECONFIG names; its driver's pod is deleted on the way.

Nothing is shared with the pods but the image, the log and the warehouse. The result is compared with what is computed here.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg2

from airflow_logio.errors import LogioError
from airflow_logio.launch import bundle
from airflow_logio.launch.code_bundle import collect
from airflow_logio.launch.driver_arguments import CONNECTIONS_PROPERTY
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.liveness import Lease
from airflow_logio.store.sql import migrate
from airflow_logio.supervision.clusters.left_drivers import LeftDrivers
from tests.support.gated_runs import NoLauncher
from tests.support.kubernetes_runs import EXPECTED, NUMBERS, WITH_SPARK, WITHOUT, results
from tests.support.running import Running, running
from tests.support.waiting import eventually

log = logging.getLogger("test-k8s")

SECRET = "logio-test"
NEEDED = ("LOGIO_K8S_IMAGE", "LOGIO_K8S_NAMESPACE", "LOGIO_K8S_LOG", "LOGIO_K8S_WAREHOUSE")
CONF = "LOGIO_K8S_CONF"
"""May have more properties of Spark, as a JSON object: what this cluster demands of pods."""
MINUTES = 15
PIPELINE = """
import time

from airflow_logio import EveryEvents, Pipeline, QuerySource, TableWriter, generate, stateless


@stateless
def slow(numbers):
    time.sleep(1)
    return numbers


@generate(SPARK)
def double(numbers):
    DOUBLED


pipeline = Pipeline("doubles", connections=["warehouse"])
source = QuerySource(
    "warehouse",
    table="numbers",
    columns={"n": "bigint"},
    records_per_event=1,
    replayable=True,
    order_by="n",
    append_only=True,
)
read = pipeline.source("read", source)
slowed = pipeline.operator("slow", slow, read)
made = pipeline.operator("double", double, slowed, window=EveryEvents(5))
columns = {"n": "bigint", "twice": "bigint"}
save = pipeline.writer("save", TableWriter("warehouse", "doubles", columns, on_new_run="replace"), made)
pipeline.group("make", read, slowed, made)
pipeline.group("save", save)
"""


def main() -> int:
    try:
        refuse_what_cannot_work()
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
        run_both()
    except Unfit as error:
        sys.stderr.write(f"make test-k8s: {error}\n")
        return 2
    return 0


class Unfit(Exception):
    """Why nothing was tried, for a person."""


def refuse_what_cannot_work() -> None:
    """Before anything is made. Raises `Unfit`."""
    if missing := [name for name in NEEDED if not os.environ.get(name)]:
        raise Unfit(f"{', '.join(missing)}: not set; docker/k8s/README.md says what they are")
    more_conf()
    if shutil.which("kubectl") is None:
        raise Unfit("kubectl is not on the PATH; it makes the Secret, and deletes the pod of a driver")
    try:
        address = server()
    except subprocess.CalledProcessError as error:
        raise Unfit(
            f"no cluster is named ({last_line(error)}): let KUBECONFIG name a file whose current context is the cluster"
        ) from None
    try:
        kubectl("-n", os.environ["LOGIO_K8S_NAMESPACE"], "get", "pods", "-o", "name", "--request-timeout=30s")
    except subprocess.CalledProcessError as error:
        raise Unfit(f"{address} does not list the pods of the namespace ({last_line(error)})") from None


def run_both() -> None:
    """Raises `Unfit` for a log or a warehouse that cannot be used from here."""
    image, namespace, log_url, warehouse_url = (os.environ[name] for name in NEEDED)
    try:
        migrate.upgrade(log_url)
        has_numbers(warehouse_url)
    except (LogioError, psycopg2.Error) as error:
        raise Unfit(str(error).strip()) from None
    with secret(namespace, {"log": log_url, "connections": {"warehouse": warehouse_url}}):
        for mode, body in (WITHOUT, WITH_SPARK):
            try_out(PIPELINE.replace("SPARK", mode).replace("DOUBLED", body), image, namespace, log_url, warehouse_url)


def has_numbers(warehouse_url: str) -> None:
    with psycopg2.connect(plain(warehouse_url)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS numbers (n bigint PRIMARY KEY)")
        cursor.execute("INSERT INTO numbers SELECT generate_series(0, %s) ON CONFLICT DO NOTHING", [NUMBERS - 1])


def try_out(text: str, image: str, namespace: str, log_url: str, warehouse_url: str) -> None:
    """One run, in which the pod of group `make` is deleted when that has committed."""
    conf = {
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.authenticate.driver.serviceAccountName": "logio-driver",
        f"spark.kubernetes.driver.secrets.{SECRET}": "/etc/logio",
        CONNECTIONS_PROPERTY: "/etc/logio/connections.json",
        "spark.executor.instances": "1",
        "spark.driver.memory": "1g",
        **more_conf(),
    }
    settings = SparkSettings(f"k8s://{server()}", "cluster", conf, executor_memory="1g")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "doubles.py"
        path.write_text(text)
        ref = bundle.parse_ref(f"{path}:pipeline")
        with running(
            log_url,
            warehouse_url,
            Path(folder),
            NoLauncher(Path(folder) / "none"),
            ref=ref,
            name=f"test-k8s {time.time()}",
            params={},
            code=collect(ref),
            spark=settings,
            lease=Lease(15, 600),
        ) as run:
            run.until(lambda: has_committed(run, 1), "make has committed", timeout=MINUTES * 60)
            submission = run.status("make").submission
            assert submission is not None
            log.info("pod %s is deleted", submission.name)
            kubectl("-n", namespace, "delete", "pod", submission.name, "--wait=false")
            run.finish(timeout=MINUTES * 60)
            assert run.status("make").incarnation > 1, "the pod was deleted too late"
            assert results(warehouse_url) == EXPECTED
            left = LeftDrivers(run.store, run.context.managers, [run.run.run_id])
            eventually(lambda: not left.look_after(), what="all ends are confirmed", timeout=MINUTES * 60, every=2)
            kubectl("-n", namespace, "delete", "pods", "-l", f"airflow-logio/run={run.run.uid}")
    log.info("exact: %d rows", len(EXPECTED))


def has_committed(run: Running, incarnation: int) -> bool:
    drivers = [one for one in run.store.drivers(run.run.run_id) if one.group == "make"]
    return any(one.incarnation >= incarnation and one.first_commit_at is not None for one in drivers)


@contextmanager
def secret(namespace: str, says: dict[str, Any]) -> Iterator[None]:
    content = base64.b64encode(json.dumps(says).encode()).decode()
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "data": {"connections.json": content}}
    kubectl("-n", namespace, "apply", "-f", "-", told=json.dumps(made))
    try:
        yield
    finally:
        with suppress(subprocess.CalledProcessError):
            kubectl("-n", namespace, "delete", "secret", SECRET)


def more_conf() -> Mapping[str, str]:
    """Raises `Unfit`."""
    try:
        found = json.loads(os.environ.get(CONF) or "{}")
    except ValueError as error:
        raise Unfit(f"{CONF} is no JSON: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise Unfit(f'{CONF} must be a JSON object of texts, such as {{"spark.kubernetes.node.selector.zone": "a"}}')
    return found


def last_line(error: subprocess.CalledProcessError) -> str:
    return str((error.stderr or "").strip().rpartition("\n")[2]) or f"kubectl ended with {error.returncode}"


def server() -> str:
    """The API server of the kubeconfig's current context."""
    return kubectl("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")


def kubectl(*words: str, told: str | None = None) -> str:
    """What it prints. Raises `CalledProcessError`, which has what it complains of."""
    done = subprocess.run(["kubectl", *words], input=told, capture_output=True, text=True, check=False, timeout=300)
    try:
        done.check_returncode()
    except subprocess.CalledProcessError as error:
        error.add_note(done.stderr.strip())
        raise
    return done.stdout.strip()


def plain(url: str) -> str:
    return url.replace("+psycopg2", "")


if __name__ == "__main__":
    sys.exit(main())
