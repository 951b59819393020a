"""Connections of type `spark`, and the operator's arguments, as the settings of a launch.

What they have in common with Airflow's Spark provider is in `test_spark_provider.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import conf

from airflow_logio import _compat
from airflow_logio.errors import ConfigurationError, ManagerUnavailable
from airflow_logio.hooks.kubernetes import access_of
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.hooks.spark import spark_target
from airflow_logio.launch.managers.known_managers import Managers, resolve_accesses_by
from airflow_logio.launch.managers.kubernetes_api import KubernetesAccess
from airflow_logio.launch.spark_settings import SparkArguments, SparkSettings, SparkTarget
from airflow_logio.operators._task.launches import check_place
from airflow_logio.store.records.driver_records import Submission
from tests.support.airflow_connections import connection


def test_no_connection_is_local() -> None:
    assert spark_target(None) == SparkTarget(master="local[1]")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (connection("spark"), "has no host"),
        (connection("spark", host="local", extra={"spark-binary": "/bin/sh"}), "may only name one of"),
        (connection("spark", host="local", extra={"spark-home": "/opt"}), "set SPARK_HOME for the workers"),
    ],
)
def test_what_a_connection_may_not_say(fields: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_X", fields)
    with pytest.raises(ConfigurationError, match=message):
        spark_target("spark_x")


def test_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {
        "queue": "root.etl",
        "deploy-mode": "client",
        "spark-binary": "spark3-submit",
        "namespace": "etl",
        "principal": "etl@R",
    }
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_X", connection("spark", host="yarn", extra=extra))
    settings = SparkArguments(yarn_queue="root.mine").settings(spark_target("spark_x"))
    assert (settings.master, settings.queue, settings.deploy_mode) == ("yarn", "root.mine", "client")
    assert (settings.spark_binary, settings.principal) == ("spark3-submit", "etl@R")
    assert settings.conf == {}, "a namespace is Kubernetes'"


def test_what_the_form_fills_in_says_nothing_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = connection("spark", host="local", extra={"spark-binary": "spark-submit", "deploy-mode": "", "queue": None})
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_X", fields)
    assert SparkArguments().settings(spark_target("spark_x")) == SparkSettings("local", spark_binary="spark-submit")


def test_arguments_override_the_group() -> None:
    settings = SparkArguments(driver_memory="2g", conf={"spark.x": 1, "spark.y": True}).settings(spark_target(None))
    conf = settings.effective_conf({"spark.driver.memory": "512m", "spark.x": "0", "spark.z": "kept"})
    assert {key: conf[key] for key in ("spark.driver.memory", "spark.x", "spark.y", "spark.z")} == {
        "spark.driver.memory": "2g",
        "spark.x": "1",
        "spark.y": "true",
        "spark.z": "kept",
    }


def test_a_property_without_value_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="None"):
        SparkArguments(env_vars={"TOKEN": None}).settings(spark_target(None))


def test_they_are_found_among_all_arguments_of_an_operator() -> None:
    values = {name: None for name in SparkArguments.__slots__} | {
        "jars": "a.jar",
        "verbose": True,
        "use_krb5ccache": False,
        "connect": False,
        "pipeline": "an argument that is not Spark's",
    }
    assert SparkArguments.among(values) == SparkArguments(jars="a.jar", verbose=True)


# --- where drivers cannot live ----------------------------------------------------------------------------------------


def test_a_pod_that_ends_with_its_task_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    with pytest.raises(ConfigurationError, match=r"KubernetesExecutor ends the machine of a task.*workers that stay"):
        check_place(SparkSettings(), _compat.pods_end_with_their_task(None))


@pytest.mark.parametrize(
    ("executor", "ends"),
    [
        (None, False),
        ("LocalExecutor", False),
        ("CeleryExecutor", False),
        ("airflow.providers.cncf.kubernetes.executors.kubernetes_executor.KubernetesExecutor", True),
        ("pods:my.KubernetesExecutor", True),
        ("KubernetesExecutor", True),
    ],
)
def test_executors(executor: str | None, ends: bool) -> None:
    assert (_compat.pods_end_with_their_task(executor) is not None) == ends


ECS = "airflow.providers.amazon.aws.executors.ecs.ecs_executor.AwsEcsExecutor"


@pytest.mark.parametrize(
    ("configured", "executor", "ends"),
    [
        (f"LocalExecutor,ecs:{ECS}", None, False),
        (f"LocalExecutor,ecs:{ECS}", "ecs", True),
        (f"LocalExecutor,ecs:{ECS}", ECS, True),
        (f"LocalExecutor,ecs:{ECS}", "AwsEcsExecutor", True),
        (f"LocalExecutor,ecs:{ECS}", "LocalExecutor", False),
        (f"ecs:{ECS},LocalExecutor", None, True),
        ("pods:KubernetesExecutor;research=CeleryExecutor,pods:LocalExecutor", "CeleryExecutor", False),
        (f"KubernetesExecutor;research={ECS}", None, True),
    ],
)
def test_executors_are_known_by_aliases_and_of_teams(
    configured: str, executor: str | None, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", configured)
    assert (_compat.pods_end_with_their_task(executor) is not None) == ends


@pytest.mark.parametrize("executor", [None, "fast"])
def test_where_teams_differ_the_process_tells(executor: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task does not know its team: a machine for one task runs `execute_workload`."""
    configured = f"fast:airflow.executors.local_executor.LocalExecutor;research=fast:{ECS}"
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", configured)
    assert _compat.pods_end_with_their_task(executor) is None
    asked = f"from airflow_logio import _compat; print(_compat.pods_end_with_their_task({executor!r}))"
    above = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    done = subprocess.run(
        [sys.executable, "-c", above, asked, "airflow.sdk.execution_time.execute_workload"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split()[-1] == "AwsEcsExecutor"


@pytest.mark.parametrize(("said", "deferrable"), [(None, True), ("False", False), ("True", True)])
def test_waiting_is_deferred_unless_somebody_says_otherwise(
    said: str | None, deferrable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's own default is not to defer, and it writes that into each airflow.cfg that it generates."""
    if not conf.has_section("operators"):
        conf.add_section("operators")
    monkeypatch.setitem(conf._sections["operators"], "default_deferrable", "false")
    if said is not None:
        monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", said)
    assert _compat.default_deferrable() is deferrable


# --- Spark Connect ----------------------------------------------------------------------------------------------------


def test_a_connection_of_a_connect_server(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"conn_type": "spark_connect", "host": "sc://spark.example.com", "port": 15002, "login": "me & you"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_X", json.dumps({**fields, "password": "t0ken", "extra": {"use_ssl": True}}))
    target = spark_target("spark_x")
    assert target.master == "sc://spark.example.com:15002/;user_id=me%20%26%20you;use_ssl=True"
    assert target.token == "t0ken" and "t0ken" not in repr(target)
    settings = SparkArguments().settings(target)
    assert (settings.token, settings.connect) == ("t0ken", False)


@pytest.mark.parametrize("host", ["", "sc://", "host/path"])
def test_a_connect_server_without_a_host_is_refused(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_X", json.dumps({"conn_type": "spark_connect", "host": host}))
    with pytest.raises(ConfigurationError, match=r"'spark_x' has host .*e\.g\. spark\.example\.com"):
        spark_target("spark_x")


def test_a_connection_of_kubernetes_says_with_what_it_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pod = Submission("kubernetes", "https://api", "logio-a-g-1", "logio")
    try:
        log = connection("logio", extra={"path": str(tmp_path / "log.db")})
        monkeypatch.setenv("AIRFLOW_CONN_LOGIO_DEFAULT", log)
        LogioHook().get_store(create=True).dispose()
        assert access_of("") is None
        monkeypatch.setenv("AIRFLOW__LOGIO__KUBERNETES_CONN_ID", "kube")
        with pytest.raises(ManagerUnavailable, match="kubernetes_conn_id is 'kube', and there is no such connection"):
            Managers().at(pod)
        extra = {"kube_config_path": "/etc/kube/config", "cluster_context": "prod"}
        monkeypatch.setenv("AIRFLOW_CONN_KUBE", connection("kubernetes", extra=extra))
        assert access_of("") == KubernetesAccess(Path("/etc/kube/config"), context="prod")
        shown = Managers().at(pod).output_command(pod)
        assert shown == "kubectl --context prod -n logio logs logio-a-g-1"
        given = Managers(KubernetesAccess(context="given")).at(pod)
        assert given.output_command(pod).startswith("kubectl --context given ")
    finally:
        resolve_accesses_by(lambda _: None)
