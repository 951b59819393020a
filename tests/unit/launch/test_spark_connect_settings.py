"""What drivers of a Spark Connect server may be told, and what they are started with."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from zipfile import ZipFile

import pytest
import typer

from airflow_logio.cli.spark_options import SparkOptions
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import driver_process, spark_settings, spark_submit
from airflow_logio.launch.driver_config import DriverConfig, DriverKind, driver_kind
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.spark.session_safety import FRAMES_SAFETY
from airflow_logio.store.records.driver_records import Claim
from tests.support.launches import launch_of

ELSEWHERE = SparkSettings(master="sc://spark.example.com:15002", token="secret")
SHARED = SparkSettings(connect=True)
CONFIG = DriverConfig("sqlite://", Claim(1, "uid", "group", 1, "nonce", recovery=False), "module", "attr", "/", {})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"driver_memory": "4g"},
            r"driver_memory='4g' cannot be set for the Spark Connect server sc://spark.example.com",
        ),
        ({"num_executors": 3}, "num_executors=3 cannot be set"),
        ({"jars": "a.jar"}, "jars='a.jar' cannot be set"),
        ({"keytab": "/k"}, "keytab='/k' cannot be set"),
        (
            {"conf": {"spark.executor.memory": "8g"}},
            r"spark\.executor\.memory: a session .* has properties of spark\.sql\.\* only",
        ),
        ({"py_files": "a.zip, hdfs://host/b.zip"}, "py_files has hdfs://host/b.zip: .* files of its own machine only"),
        ({"connect": True}, "is a Spark Connect server already: leave connect"),
    ],
)
def test_what_belongs_to_the_server_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        spark_submit.check(replace(ELSEWHERE, **given))


def test_what_a_client_may_be_told_is_taken() -> None:
    spark_submit.check(
        replace(ELSEWHERE, conf={"spark.sql.ansi.enabled": "true"}, py_files="a.zip", env_vars={"A": "b"}, verbose=True)
    )


def test_a_token_in_an_address_is_refused_and_not_said() -> None:
    with pytest.raises(ConfigurationError, match="has its token in it") as refused:
        spark_submit.check(replace(ELSEWHERE, master="sc://host:1/;user_id=me;token=abc%3D"))
    assert "abc" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "address", "token"),
    [
        ("sc://host:1/;user_id=me;token=abc%3D;use_ssl=true", "sc://host:1/;user_id=me;use_ssl=true", "abc="),
        ("sc://host", "sc://host", None),
        ("spark://host;token=x", "spark://host;token=x", None),
    ],
)
def test_a_token_is_taken_out_of_an_address(given: str, address: str, token: str | None) -> None:
    assert spark_settings.split_token(given) == (address, token)


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_submit, "_is_found", lambda module: module != "grpc")
    with pytest.raises(
        ConfigurationError, match=r"need grpcio, which this Python lacks: pip install 'pyspark\[connect\]'"
    ):
        spark_submit.check(ELSEWHERE)


def test_a_keytab_of_a_connection_is_refused_for_a_shared_server() -> None:
    with pytest.raises(ConfigurationError, match="keytab from a file"):
        spark_submit.check(replace(SHARED, keytab_content=b"keytab"))


@pytest.mark.parametrize("name", ["authenticate.token", "grpc.binding.address", "grpc.binding.port"])
def test_where_a_shared_server_listens_cannot_be_set(name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"spark\.connect\.{name} cannot be set for .*, or start a server yourself"
    ):
        spark_submit.check(replace(SHARED, conf={f"spark.connect.{name}": "1"}))


@pytest.mark.parametrize("settings", [ELSEWHERE, SHARED])
def test_a_session_has_the_properties_of_sessions(settings: SparkSettings) -> None:
    asked = replace(settings, conf={"spark.sql.shuffle.partitions": "9"})
    conf = asked.effective_conf({"spark.sql.shuffle.partitions": "3", "spark.sql.ansi.enabled": "false"}, frames=True)
    assert conf["spark.sql.shuffle.partitions"] == "9", "the launch decides over the group"
    assert conf["spark.sql.ansi.enabled"] == "false"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert FRAMES_SAFETY.items() <= conf.items()
    assert {name for name in conf if not name.startswith("spark.sql.")} == set()


@pytest.mark.parametrize("settings", [ELSEWHERE, SHARED])
def test_a_group_with_properties_of_an_application_is_refused(settings: SparkSettings) -> None:
    with pytest.raises(ConfigurationError, match=r"spark\.executor\.cores: a session of the Spark Connect server"):
        settings.effective_conf({"spark.executor.cores": "2"})


def test_a_shared_server_has_the_properties_of_the_launch() -> None:
    settings = replace(SHARED, master="local[2]", conf={"spark.executor.memory": "3g"}, jars="a.jar", token="secret")
    command = spark_submit.server_command(settings)
    assert command[-3:] == ["--class", spark_submit.SERVER_CLASS, "spark-internal"]
    assert {"spark.executor.memory=3g", "spark.connect.grpc.binding.address=127.0.0.1"} <= set(command)
    assert command[command.index("--jars") + 1] == "a.jar"
    assert command[command.index("--driver-memory") + 1] == "2g"
    assert "secret" not in " ".join(command)
    pools = next(part for part in command if "allocation.file" in part).partition("=")[2]
    assert pools.startswith("file:///"), "whatever file system the cluster takes paths for"
    assert "FAIR" in Path(unquote(urlsplit(pools).path)).read_text()


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(ELSEWHERE)


def test_a_token_in_an_address_is_refused_on_a_command_line() -> None:
    with pytest.raises(typer.BadParameter, match="SPARK_CONNECT_AUTHENTICATE_TOKEN"):
        SparkOptions.given("sc://host/;token=abc")


def test_the_token_of_an_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "secret")
    assert SparkOptions.given("sc://host").settings().token == "secret"
    assert SparkOptions.given("local[1]").settings().token is None


def test_a_run_remembers_that_its_drivers_share_a_server() -> None:
    kept = SparkOptions(**SparkOptions.given(connect=True).to_keep())
    assert kept.settings().connect and "--connect" in str(kept)
    assert not SparkOptions.given(connect=False).over(kept).settings().connect
    assert SparkOptions.given().over(kept).settings().connect


def test_a_shared_server_gets_what_spark_reads_and_no_variable_of_a_driver() -> None:
    given = {"SPARK_LOCAL_DIRS": "/fast", "HADOOP_CONF_DIR": "/conf", "PYTHONPATH": "/more", "SHOP_TOKEN": "secret"}
    recipes = [
        driver_process.server_recipe(Path("/run"), replace(SHARED, env_vars=given | more), key="k")
        for more in ({}, {"OF_THIS_TASK": "1"})
    ]
    assert recipes[0] == recipes[1], "drivers with other variables share it"
    environment = recipes[0].environment
    assert {name: environment.get(name) for name in given} == {**given, "SHOP_TOKEN": None}
    assert "secret" not in repr(recipes[0])


def started(folder: Path, settings: SparkSettings, *, needs_spark: bool, code: bool = True) -> driver_process._Process:
    """How a driver is started in this folder."""
    launch = launch_of(replace(CONFIG, needs_spark=needs_spark), settings, settings.effective_conf({}))
    return driver_process._process(folder, CONFIG.claim, launch, folder / "bundle.zip" if code else None, "a name")


def environment(folder: Path, settings: SparkSettings, *, needs_spark: bool) -> Mapping[str, str]:
    return started(folder, settings, needs_spark=needs_spark).environment


@pytest.mark.parametrize("needs_spark", [True, False])
def test_a_driver_of_python_alone_imports_what_tasks_import(tmp_path: Path, needs_spark: bool) -> None:
    """spark-submit puts `py_files` on the path of its driver; without it, the environment of the driver does."""
    (tmp_path / "one.py").write_text("VALUE = 1\n")
    with ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("two.py", "VALUE = 2\n")
    folder = tmp_path / "driver"
    folder.mkdir()
    py_files = f"{tmp_path / 'one.py'}, {tmp_path / 'two.zip'}"
    given = SparkSettings(connect=needs_spark, py_files=py_files, env_vars={"PYTHONPATH": "/more"})
    found = environment(folder, given, needs_spark=needs_spark)
    assert found["PYTHONPATH"].endswith(f"{os.pathsep}/more")
    question = [sys.executable, "-c", "import one, two; print(one.VALUE + two.VALUE)"]
    assert subprocess.run(question, env=found, capture_output=True, text=True, check=True).stdout == "3\n"


def test_a_session_that_a_function_makes_for_itself_has_the_settings_of_the_launch(tmp_path: Path) -> None:
    settings = SparkSettings(master="local[3]", conf={"spark.x": "a b"}, token="secret", jars="a.jar")
    arguments = shlex.split(environment(tmp_path, settings, needs_spark=False)["PYSPARK_SUBMIT_ARGS"])
    assert arguments[-1] == "pyspark-shell"
    assert arguments[arguments.index("--master") + 1] == "local[3]"
    assert arguments[arguments.index("--jars") + 1] == "a.jar"
    assert arguments[arguments.index("--py-files") + 1] == str(tmp_path / "bundle.zip")
    assert "spark.x=a b" in arguments and "secret" not in " ".join(arguments)


def test_who_has_spark_submit_or_a_server_needs_nothing_of_that(tmp_path: Path) -> None:
    for settings in (SparkSettings(py_files="a.zip"), SHARED):
        found = environment(tmp_path, settings, needs_spark=True)
        assert {"PYSPARK_SUBMIT_ARGS", "PYTHONPATH"}.isdisjoint(found)


@pytest.mark.parametrize(
    ("given", "is_alone"),
    [
        ({}, True),
        ({"py_files": "/here/a.zip"}, True),
        ({"py_files": "/here/a.zip,hdfs://host/b.zip"}, False),
        ({"conf": {"spark.pyspark.python": "/opt/python"}}, False),
        ({"conf": {"spark.submit.pyFiles": "/here/a.zip"}}, False),
    ],
)
def test_what_only_spark_submit_understands_keeps_spark_submit(given: dict[str, Any], is_alone: bool) -> None:
    settings = SparkSettings(**given)
    assert (driver_kind(settings, settings.effective_conf({}), spark=False) is DriverKind.PYTHON) is is_alone


def test_a_driver_of_python_alone_is_the_python_that_was_asked_for(tmp_path: Path) -> None:
    settings = SparkSettings(env_vars={"PYSPARK_DRIVER_PYTHON": "/opt/python"})
    process = started(tmp_path, settings, needs_spark=False, code=False)
    assert process.command[0] == "/opt/python" and not process.config.has_jvm
    process = started(tmp_path, settings, needs_spark=True, code=False)
    assert process.command[0].endswith("spark-submit") and process.config.has_jvm
