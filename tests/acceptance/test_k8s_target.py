"""`make test-k8s`, on Kubernetes' own API server, whose pods are processes here: there are no images and no real kubelet."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from airflow_logio.launch.driver_arguments import APPLICATION_PROPERTY
from airflow_logio.launch.processes import APPLICATION
from tests.support import hosts
from tests.support.airflow_installation import ROOT
from tests.support.kubernetes import real
from tests.support.kubernetes_runs import Cluster, cluster_of, with_password

NAMESPACE = "logio-test"
NEEDED = {
    "LOGIO_K8S_IMAGE": "logio",
    "LOGIO_K8S_NAMESPACE": NAMESPACE,
    "LOGIO_K8S_LOG": "postgresql://127.0.0.1:1/log",
    "LOGIO_K8S_WAREHOUSE": "postgresql://127.0.0.1:1/warehouse",
}
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.spark,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on the PATH"),
]


def run(variables: Mapping[str, str]) -> tuple[int, str]:
    """Its exit code, and what it has printed."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "tests.k8s"],
        cwd=ROOT,
        env={**kept, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def kubeconfig(folder: Path, server: str) -> Path:
    context = {"name": "it", "context": {"cluster": "it", "user": "it"}}
    cluster, user = {"name": "it", "cluster": {"server": server}}, {"name": "it", "user": {}}
    says = {"current-context": "it", "contexts": [context], "clusters": [cluster], "users": [user]}
    path = folder / "kubeconfig"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **says}))
    return path


def test_what_cannot_work_is_said_in_one_line_before_anything_is_made(tmp_path: Path) -> None:
    unreachable = str(kubeconfig(tmp_path, "http://127.0.0.1:1"))
    nowhere = str(tmp_path / "none")
    for variables, said in (
        ({**NEEDED, "LOGIO_K8S_IMAGE": "", "LOGIO_K8S_LOG": ""}, "LOGIO_K8S_IMAGE, LOGIO_K8S_LOG: not set; docker/k8s"),
        ({**NEEDED, "KUBECONFIG": nowhere}, "no cluster is named (error: current-context must exist"),
        ({**NEEDED, "KUBECONFIG": unreachable}, "http://127.0.0.1:1 does not list the pods of the namespace ("),
        (
            {**NEEDED, "KUBECONFIG": unreachable, "LOGIO_K8S_CONF": "[]"},
            "LOGIO_K8S_CONF must be a JSON object of texts",
        ),
    ):
        code, printed = run(variables)
        assert code == 2 and printed.startswith(f"make test-k8s: {said}") and printed.count("\n") == 1, printed


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "kubernetes").mkdir()
    with real.kubernetes(tmp_path / "kubernetes") as server, cluster_of(server, tmp_path) as made:
        yield made


@pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))
@pytest.mark.skipif(real.why_not() is not None, reason=str(real.why_not()))
def test_it_finds_both_pipelines_exact_and_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    api, pods = cluster.api, f"/api/v1/namespaces/{NAMESPACE}/pods"
    api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    log, warehouse = (with_password(cluster.postgres.new_database(migrated=False)) for _ in range(2))
    conf = {
        "spark.kubernetes.driver.master": cluster.for_pods,
        "spark.pyspark.python": sys.executable,
        APPLICATION_PROPERTY: f"local://{APPLICATION}",
        "spark.kubernetes.driver.request.cores": "1",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
    }
    variables = {"LOGIO_K8S_LOG": log, "LOGIO_K8S_WAREHOUSE": warehouse, "LOGIO_K8S_CONF": json.dumps(conf)}
    code, printed = run({**NEEDED, **variables, "KUBECONFIG": str(kubeconfig(tmp_path, cluster.server.url))})
    assert code == 0 and printed.count("exact: 40 rows") == 2 and printed.count("is deleted") == 2, printed
    assert api.get(pods)["items"] == api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"] == []
