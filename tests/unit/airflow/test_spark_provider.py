"""What the installed Spark provider makes of connections and arguments, and what LOG.io makes of them: the same, but for the
differences that are listed here, each with its reason."""

from __future__ import annotations

import base64
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.providers.apache.spark.hooks import spark_submit as upstream
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import DAG, AirflowException
from airflow.providers_manager import ProvidersManager

from airflow_logio.errors import ConfigurationError
from airflow_logio.hooks.spark import spark_target
from airflow_logio.launch.driver_process import with_keytab
from airflow_logio.launch.spark_settings import SparkArguments, SparkSettings
from airflow_logio.launch.spark_submit import command
from airflow_logio.operators._task.arguments import recipe_of
from airflow_logio.operators.spark import LogioSparkOperator
from tests.support.airflow_connections import connection
from tests.unit.airflow.support import context

REF = "pipelines.sales:sales"
KEYTAB = b"\x05\x02 not a real one"
IN_BASE64 = base64.b64encode(KEYTAB).decode()

LOCAL = connection("spark", host="local[1]")
YARN = connection("spark", host="yarn", extra={"queue": "etl", "deploy-mode": "client", "namespace": "x"})
KERBEROS = connection("spark", host="yarn", extra={"principal": "etl@R", "keytab": IN_BASE64})
KUBERNETES = connection("spark", host="k8s://https://api", port=443, extra={"namespace": "etl"})

CONNECTIONS = {
    "local, by the form": LOCAL,
    "local, by URI": "spark://local%5B2%5D",
    "empty fields of the form": connection("spark", host="local", extra={"namespace": None, "deploy-mode": None}),
    "yarn, by the form": YARN,
    "standalone, by URI": "spark://head:7077",
    "standalone, by the form": connection("spark", host="spark://head", port=7077),
    "standalone, host and port": connection("spark", host="head", port=7077),
    "standalone, two masters": connection("spark", host="spark://a:7077,b:7077"),
    "kubernetes, by the form": KUBERNETES,
    "kubernetes, by URI": "k8s://https%3A%2F%2Fapi:443?namespace=etl",
    "cluster mode": connection("spark", host="yarn", extra={"deploy-mode": "cluster"}),
    "another binary": connection("spark", host="local", extra={"spark-binary": "spark3-submit"}),
    "the form's default binary": connection("spark", host="local", extra={"spark-binary": "spark-submit"}),
    "kerberos": KERBEROS,
}
DIFFERENT: Mapping[str, tuple[str, dict[str, str], dict[str, str]]] = {
    # The address of a YARN cluster is in its configuration, and Spark knows no master "yarn://".
    "yarn, by URI": ("yarn://", {"master": "yarn://"}, {"master": "yarn"}),
    # What `airflow connections add --conn-type spark` makes where the provider is not installed.
    "a generic type": (
        connection("generic", host="local[1]"),
        {"master": "generic://local[1]"},
        {"master": "local[1]"},
    ),
    # An empty field of the form is no value.
    "an empty field": (connection("spark", host="yarn", extra={"queue": ""}), {"queue": ""}, {"queue": "None"}),
}


@pytest.fixture(autouse=True)
def kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook only wants to see that the provider of Kubernetes is there: client mode does not use it."""
    monkeypatch.setattr(upstream, "kube_client", object(), raising=False)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda fields: monkeypatch.setenv("AIRFLOW_CONN_SPARK_X", fields)


def of_hook() -> dict[str, str]:
    found = upstream.SparkSubmitHook(conn_id="spark_x")._connection
    keytab = None
    if found["keytab"]:
        file = Path(found["keytab"])  # which the hook makes in the folder of temporary files, and leaves there
        keytab = file.read_bytes()
        file.unlink()
    return _compared(found, keytab)


def of_ours() -> dict[str, str]:
    target = spark_target("spark_x")
    found = {
        "master": target.master,
        "queue": target.yarn_queue,
        "deploy_mode": target.deploy_mode,
        # Where a connection names none, ours is that of SPARK_HOME or of the worker's own pyspark, and not the first on PATH.
        "spark_binary": target.spark_binary or "spark-submit",
        "namespace": target.namespace,
        "principal": target.principal,
    }
    return _compared(found, target.keytab_content)


def _compared(found: Mapping[str, Any], keytab: bytes | None) -> dict[str, str]:
    names = ("master", "queue", "deploy_mode", "spark_binary", "namespace", "principal")
    return {**{name: str(found[name]) for name in names}, "keytab": str(keytab)}


# --- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", CONNECTIONS.values(), ids=CONNECTIONS)
def test_a_connection_means_what_it_means_to_the_hook(fields: str, connected: Callable[[str], None]) -> None:
    connected(fields)
    assert of_ours() == of_hook()


@pytest.mark.parametrize(("fields", "theirs", "ours"), DIFFERENT.values(), ids=DIFFERENT)
def test_but_for_these(
    fields: str, theirs: dict[str, str], ours: dict[str, str], connected: Callable[[str], None]
) -> None:
    connected(fields)
    assert {name: value for name, value in of_hook().items() if of_ours()[name] != value} == theirs
    assert {name: of_ours()[name] for name in theirs} == ours


@pytest.mark.parametrize("extra", [{"spark-binary": "/bin/sh"}, {"spark-home": "/opt"}])
def test_both_refuse_it(extra: dict[str, str], connected: Callable[[str], None]) -> None:
    connected(connection("spark", host="local", extra=extra))
    for refuse, error in ((of_hook, ValueError), (of_ours, ConfigurationError)):
        with pytest.raises(error, match=next(iter(extra))):
            refuse()


def test_a_missing_one_is_yarn_to_the_hook_and_here_an_error_with_a_command_that_keeps_the_type() -> None:
    assert upstream.SparkSubmitHook(conn_id="spark_typo")._connection["master"] == "yarn"
    with pytest.raises(ConfigurationError) as missing:
        spark_target("spark_typo")
    words = shlex.split(str(missing.value).partition("airflow connections add ")[2].partition("   ")[0])
    assert words[:2] == ["spark_typo", "--conn-json"]
    assert json.loads(words[2]) == {"conn_type": "spark", "host": "local[1]"}


def test_the_form_is_that_of_the_provider() -> None:
    fields = {name for name in ProvidersManager().connection_form_widgets if name.startswith("extra__spark__")}
    assert {
        f"extra__spark__{name}" for name in ("queue", "deploy-mode", "spark-binary", "principal", "keytab")
    } <= fields


# --- command lines ----------------------------------------------------------------------------------------------------

ARGUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": (LOCAL, {}),
    "a cluster": (
        "spark://head:7077",
        {"total_executor_cores": 4, "executor_cores": 2, "executor_memory": "2g", "driver_memory": "1g"},
    ),
    "yarn": (YARN, {"num_executors": 3, "yarn_queue": "mine", "deploy_mode": "client", "proxy_user": "ann"}),
    "the connection's queue": (YARN, {}),
    "kubernetes": (KUBERNETES, {"conf": {"spark.kubernetes.namespace": "mine"}}),
    "the connection's namespace": (KUBERNETES, {}),
    "libraries": (
        LOCAL,
        {
            "packages": "a:b:1",
            "exclude_packages": "c:d",
            "repositories": "https://repo",
            "jars": "/opt/a.jar,/opt/b.jar",
            "files": "/etc/f",
            "archives": "/opt/env.tgz#env",
            "driver_class_path": "/opt/conf",
            "properties_file": "/etc/spark.conf",
            "py_files": "/opt/a.zip",
        },
    ),
    "properties": (LOCAL, {"conf": {"spark.a": "1", "spark.b": "x y"}, "verbose": True, "name": "orders"}),
    "kerberos": (YARN, {"keytab": "/etc/k", "principal": "me@R"}),
    "a ticket cache": (YARN, {"use_krb5ccache": True, "principal": "me@R"}),
    "nought": (LOCAL, {"num_executors": 0, "executor_cores": 0}),
    "another binary": (LOCAL, {"spark_binary": "sh"}),
}


def options(words: list[str]) -> set[tuple[str, str]]:
    """The options of a command line before its application, each with its value; of a binary its name."""
    rest, found = list(words[1:]), {("binary", os.path.basename(words[0]))}
    while rest and rest[0].startswith("--"):
        option = rest.pop(0)
        found.add((option, "" if option == "--verbose" else rest.pop(0)))
    return found


def of_operators(arguments: Mapping[str, Any]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """The command lines of SparkSubmitOperator and of ours."""
    named = {"task_id": "totals", "conn_id": "spark_x", **arguments}
    theirs = SparkSubmitOperator(application="theirs.py", **named)._get_hook()._build_spark_submit_command("theirs.py")
    task = LogioSparkOperator(pipeline=REF, **named)
    recipe = recipe_of(task, context())
    settings = SparkArguments.from_given(recipe.arguments).settings(spark_target(recipe.spark_conn_id))
    ours = command(settings, settings.effective_conf({}), "ours", None, Path("/ours.py"), Path("/ours.json"))
    return options(theirs), options(ours)


OUR_PROPERTIES = {("--conf", f"{name}={value}") for name, value in SparkSettings().effective_conf({}).items()}
"""How batches are evaluated, and that a driver of this machine is small: what a task says wins over them."""
INTENDED = {("--name", "ours"), ("--deploy-mode", "client"), *OUR_PROPERTIES}
"""The mode is always given: a properties file must not send a driver to where its launcher cannot see it."""


@pytest.mark.parametrize(("fields", "arguments"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_make_the_same_command_line(
    fields: str, arguments: dict[str, Any], connected: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    connected(fields)
    monkeypatch.setenv("KRB5CCNAME", "FILE:/tmp/cache")
    theirs, ours = of_operators(arguments)
    assert theirs - ours <= {("--name", "arrow-spark")}
    assert ours - theirs <= INTENDED


@pytest.mark.parametrize("fields", ["yarn://", KUBERNETES, "spark://head:7077"])
def test_environment_variables_are_in_no_property(fields: str, connected: Callable[[str], None]) -> None:
    """Upstream passes them to YARN and Kubernetes as properties, which their users see; in client mode nothing needs that."""
    connected(fields)
    theirs, ours = of_operators({"env_vars": {"TOKEN": "hush"}})
    assert not any("hush" in value for _, value in ours)
    assert any("hush" in value for _, value in theirs) == ("head" not in fields)


# --- kerberos ---------------------------------------------------------------------------------------------------------


def test_a_keytab_of_the_connection_becomes_a_file_of_the_driver_alone(
    connected: Callable[[str], None], tmp_path: Path
) -> None:
    connected(KERBEROS)
    settings = SparkArguments().settings(spark_target("spark_x"))
    assert "not a real one" not in repr(settings) and IN_BASE64 not in repr(settings)
    file = tmp_path / "driver.keytab"
    placed = with_keytab(settings, file)
    assert file.read_bytes() == KEYTAB and file.stat().st_mode & 0o777 == 0o600
    words = command(placed, {}, "n", None, Path("/a.py"), Path("/c.json"))
    assert words[words.index("--keytab") + 1] == str(file) and words[words.index("--principal") + 1] == "etl@R"
    own = SparkArguments(keytab="/etc/k").settings(spark_target("spark_x"))
    assert (own.keytab, own.keytab_content) == ("/etc/k", None), "an argument overrides the connection"


def test_a_keytab_that_is_none_is_refused_without_showing_it(connected: Callable[[str], None]) -> None:
    connected(connection("spark", host="yarn", extra={"keytab": "hush"[:3]}))
    with pytest.raises(ConfigurationError, match=r"keytab is not in base64.*`base64 <path of the keytab>`") as refused:
        spark_target("spark_x")
    assert "'hus'" not in str(refused.value)


def test_a_ticket_caches_principal_is_that_of_the_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__KERBEROS__PRINCIPAL", "airflow@R")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_X", YARN)
    task = LogioSparkOperator(task_id="totals", pipeline=REF, conn_id="spark_x", use_krb5ccache=True)
    recipe = recipe_of(task, context())
    assert (recipe.arguments["principal"], recipe.arguments["use_krb5ccache"]) == ("airflow@R", True)


# --- arguments that are ours, and that are not ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"post_submit_commands": ["true"]}, "a task downstream"),
        ({"durable": False}, r"a retry always resumes.*LogioFreshRunOperator"),
        ({"reconnect_on_retry": False}, "a retry always resumes"),
        ({"application": "a.py"}, "give pipeline and group"),
        ({"yarn_track_via_rm_api": True}, "read from the log"),
    ],
)
def test_what_means_nothing_here_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"task 'totals': LogioSparkOperator has no {next(iter(arguments))}.*{reason}"
    ):
        LogioSparkOperator(task_id="totals", pipeline=REF, **arguments)


def test_what_is_so_anyway_is_taken_and_default_args_are_heard() -> None:
    LogioSparkOperator(
        task_id="totals", pipeline=REF, durable=True, yarn_track_via_rm_api=False, post_submit_commands=[]
    )
    with DAG("d", schedule=None, default_args={"durable": False}), pytest.raises(ConfigurationError, match="durable"):
        LogioSparkOperator(task_id="totals", pipeline=REF)
    with pytest.raises((AirflowException, TypeError), match="nonsense"):
        LogioSparkOperator(task_id="totals", pipeline=REF, nonsense=1)


def test_group_and_name_are_templates_and_the_interval_has_two_names() -> None:
    task = LogioSparkOperator(
        task_id="totals", pipeline=REF, group="{{ params.g }}", name="of {{ params.g }}", status_poll_interval=7
    )
    task.render_template_fields({"params": {"g": "totals"}})
    assert (task.group, task.name, task.poll_interval) == ("totals", "of totals", 7)
    assert (
        LogioSparkOperator(task_id="totals", pipeline=REF, status_poll_interval=7, poll_interval=2).poll_interval == 2
    )


def test_spark_arguments_are_one_value_and_attributes_that_templates_are_rendered_in() -> None:
    task = LogioSparkOperator(task_id="totals", pipeline=REF, conf={"spark.x": "{{ params.g }}"}, driver_memory="1g")
    assert task.spark == SparkArguments(conf={"spark.x": "{{ params.g }}"}, driver_memory="1g")
    task.render_template_fields({"params": {"g": "totals"}})
    assert (task.spark.conf, task.driver_memory) == ({"spark.x": "totals"}, "1g")
    task.driver_memory = "2g"
    assert task.spark == SparkArguments(conf={"spark.x": "totals"}, driver_memory="2g")


# --- OpenLineage ------------------------------------------------------------------------------------------------------


def injected(arguments: Mapping[str, Any]) -> dict[str, Any]:
    task = LogioSparkOperator(task_id="totals", pipeline=REF, conn_id=None, conf={"spark.a": 1}, **arguments)
    run = SimpleNamespace(logical_date=None, run_after=pendulum.datetime(2026, 11, 21), clear_number=0, conf={})
    ti = SimpleNamespace(
        dag_id="d", task_id="totals", try_number=1, map_index=-1, get_template_context=lambda: {"dag_run": run}
    )
    recipe = recipe_of(task, {"ti": ti})
    assert task.conf == {"spark.a": 1}, "what Airflow shows of the task has none of it"
    return dict(recipe.arguments["conf"])


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Let the deployment's OpenLineage send events there."""
    from airflow.providers.openlineage import conf as openlineage
    from airflow.providers.openlineage.plugins.listener import get_openlineage_listener

    def forget() -> None:
        get_openlineage_listener.cache_clear()
        for name in ("transport", "is_disabled", "config_path"):
            getattr(getattr(openlineage, name), "cache_clear", lambda: None)()

    def configure(fields: dict[str, Any]) -> None:
        monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(fields))
        forget()

    yield configure
    forget()


def test_openlineage_is_as_the_task_or_the_deployment_says(
    transport: Callable[[dict[str, Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport({"type": "http", "url": "http://lineage:5000"})
    assert injected({}) == {"spark.a": "1"}
    parent = injected({"openlineage_inject_parent_job_info": True})
    assert (parent["spark.openlineage.parentJobName"], parent["spark.a"]) == ("d.totals", "1")
    assert injected({"openlineage_inject_parent_job_info": True}) == parent, "a later segment of the task has the same"
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__SPARK_INJECT_TRANSPORT_INFO", "True")
    assert injected({})["spark.openlineage.transport.url"] == "http://lineage:5000"
    assert injected({"openlineage_inject_transport_info": False}) == {"spark.a": "1"}


@pytest.mark.parametrize(
    "secret",
    [
        {"auth": {"type": "api_key", "apiKey": "hush"}},
        {"custom_headers": {"Authorization": "hush"}},
        {"url": "https://ann:hush@lineage"},
        {"endpoint": "api/v1/lineage?key=hush"},
    ],
)
def test_a_key_of_the_transport_is_never_a_property(
    secret: dict[str, Any], transport: Callable[[dict[str, Any]], None]
) -> None:
    transport({"type": "http", "url": "https://lineage", **secret})
    with pytest.raises(ConfigurationError, match=r"spark\.openlineage\.transport.*properties_file") as refused:
        injected({"openlineage_inject_transport_info": True})
    assert "hush" not in str(refused.value)


def test_a_deployments_transport_with_a_key_is_left_out(
    transport: Callable[[dict[str, Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not asked for in this DAG, and the task may only have a group to watch."""
    transport({"type": "http", "url": "https://lineage", "auth": {"type": "api_key", "apiKey": "hush"}})
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__SPARK_INJECT_TRANSPORT_INFO", "True")
    assert injected({}) == {"spark.a": "1"}
