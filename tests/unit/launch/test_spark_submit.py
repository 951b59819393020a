"""The command line of a driver: which spark-submit, what stands on it, and where relative paths lead."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_logio import DatasetWriter
from airflow_logio.dataflow import Pipeline, SparkSource, stateless
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import spark_submit
from airflow_logio.launch.spark_settings import SparkArguments, SparkSettings, SparkTarget
from airflow_logio.launch.spark_submit import check, command, find_spark_submit, group_properties, spark_version
from airflow_logio.spark.session_safety import ONE_ATTEMPT, SHUFFLE_SAFETY


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def line(settings: SparkSettings, group: dict[str, str] | None = None) -> list[str]:
    conf = settings.effective_conf(group or {})
    return command(settings, conf, "of the launch", None, Path("/driver.py"), Path("/driver.json"))


@pytest.mark.parametrize("frames", [False, True])
def test_what_a_task_makes_when_it_runs_again_is_kept_apart_in_both_modes(frames: bool) -> None:
    """A job of mode `executors` may lose an executor, too, and mix records of two computations. No author turns that off."""
    off = dict.fromkeys(SHUFFLE_SAFETY, "false")
    conf = SparkSettings(conf=off).effective_conf(off, frames=frames)
    assert SHUFFLE_SAFETY.items() <= conf.items()


# --- the binary -------------------------------------------------------------------------------------------------------


def test_a_name_is_looked_up_on_path_and_spark_submit_may_be_missing_there(tmp_path: Path) -> None:
    """Upstream only looks on PATH; a worker that is started by its path has no virtual environment there."""
    path = {"PATH": str(tmp_path / "bin")}
    of_pyspark = find_spark_submit(None, {"PATH": "/nowhere"})
    assert of_pyspark.endswith("/pyspark/bin/spark-submit")
    assert find_spark_submit("spark-submit", path) == of_pyspark
    for name in ("spark-submit", "spark3-submit"):
        on_path = executable(tmp_path / "bin" / name)
        assert find_spark_submit(name, path) == str(on_path)
    assert find_spark_submit(None, path) == of_pyspark
    with pytest.raises(ConfigurationError, match=r"'spark2-submit' is not an executable.*looked up on PATH"):
        find_spark_submit("spark2-submit", path)


def test_spark_home_counts(tmp_path: Path) -> None:
    home = {"PATH": "/nowhere", "SPARK_HOME": str(tmp_path)}
    with pytest.raises(ConfigurationError, match=r"SPARK_HOME is .* but there is no .*/bin/spark-submit"):
        find_spark_submit(None, home)
    there = executable(tmp_path / "bin" / "spark-submit")
    assert find_spark_submit(None, home) == find_spark_submit("spark-submit", home) == str(there)
    assert line(SparkSettings(env_vars={"SPARK_HOME": str(tmp_path)}))[0] == str(there), "of the driver's environment"


def test_a_relative_binary_is_found_from_the_folder_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = executable(tmp_path / "bin" / "mine")
    monkeypatch.chdir(tmp_path)
    assert find_spark_submit("bin/mine", os.environ) == str(there)
    assert SparkArguments(spark_binary="bin/mine").placed(tmp_path).spark_binary == str(there)
    assert SparkArguments(spark_binary="spark3-submit").placed(tmp_path).spark_binary == "spark3-submit"


# --- options ----------------------------------------------------------------------------------------------------------


def test_driver_memory_stands_there_only_where_it_was_said() -> None:
    """An option decides against the properties file and spark-defaults.conf."""

    def memory(settings: SparkSettings, group: dict[str, str] | None = None) -> str | None:
        words = line(settings, group)
        assert not any(word.startswith("spark.driver.memory=") for word in words)
        return words[words.index("--driver-memory") + 1] if "--driver-memory" in words else None

    group = {"spark.driver.memory": "2g"}
    assert memory(SparkSettings()) is None
    assert memory(SparkSettings(properties_file="/etc/spark.conf")) is None
    assert memory(SparkSettings(), group) == "2g"
    assert memory(SparkSettings(conf={"spark.driver.memory": "3g"}), group) == "3g"
    assert memory(SparkSettings(conf={"spark.driver.memory": "3g"}, driver_memory="4g"), group) == "4g"


@pytest.mark.skipif(sys.platform == "darwin", reason="names of files are UTF-8 there, whatever the locale")
@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ({}, {"LC_CTYPE": "C.UTF-8"}),
        ({"LANG": "C"}, {"LANG": "C", "LC_CTYPE": "C.UTF-8"}),
        ({"LANG": "de_DE.UTF-8"}, {"LANG": "de_DE.UTF-8"}),
        (
            {"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"},
            {"LC_ALL": "C.UTF-8", "LANG": "en_US.UTF-8", "LC_CTYPE": "C.UTF-8"},
        ),
        ({"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C.UTF-8"}),
    ],
)
def test_a_driver_of_a_service_without_a_locale_finds_files_by_any_name(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], driver: dict[str, str]
) -> None:
    names = ("LANG", "LC_ALL", "LC_CTYPE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = spark_submit.environment(SparkSettings())
    assert {name: found[name] for name in names if name in found} == driver
    of_server = spark_submit.server_environment(SparkSettings())
    assert {name: of_server[name] for name in names if name in of_server} == driver


def test_a_name_is_that_of_the_application() -> None:
    assert "of the launch" in line(SparkSettings())
    words = line(SparkSettings(name="orders"))
    assert words[words.index("--name") + 1] == "orders" and "of the launch" not in words


def test_a_ticket_cache_must_be_there_before_anything_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KRB5CCNAME", raising=False)
    settings = SparkArguments(use_krb5ccache=True, principal="etl@R").settings(SparkTarget())
    with pytest.raises(ConfigurationError, match="use_krb5ccache: there is no KRB5CCNAME"):
        check(settings)
    assert "spark.kerberos.renewal.credentials=ccache" in line(settings)


def test_relative_paths_lead_from_the_task_and_addresses_stay(tmp_path: Path) -> None:
    given = SparkArguments(
        jars="lib/a.jar, /opt/b.jar,hdfs://n/c.jar,local:/opt/d.jar",
        archives="env.tgz#env",
        py_files="one.py",
        driver_class_path="lib/*:/opt/conf",
        properties_file="spark.conf",
        keytab="../etl.keytab",
        conf={"spark.jars": "x.jar", "spark.app.name": "x.jar", "spark.kerberos.keytab": "/etc/k", "spark.n": 1},
    ).placed(tmp_path / "task")
    here = tmp_path / "task"
    assert given == SparkArguments(
        jars=f"{here}/lib/a.jar, /opt/b.jar,hdfs://n/c.jar,local:/opt/d.jar".replace(", ", ","),
        archives=f"{here}/env.tgz#env",
        py_files=f"{here}/one.py",
        driver_class_path=f"{here}/lib/*:/opt/conf",
        properties_file=f"{here}/spark.conf",
        keytab=f"{tmp_path}/etl.keytab",
        conf={
            "spark.jars": f"{here}/x.jar",
            "spark.app.name": "x.jar",
            "spark.kerberos.keytab": "/etc/k",
            "spark.n": 1,
        },
    )
    assert SparkArguments().placed(here) == SparkArguments()


# --- shuffles that Spark does not look after ---------------------------------------------------------------------------

PUSHED = {"spark.shuffle.push.enabled": " TRUE "}
REMOTE = {"spark.shuffle.manager": "org.apache.spark.shuffle.celeborn.SparkShuffleManager"}


@stateless(mode="dataframe")
def same(rows: Any) -> Any:
    return rows


def lake(spark: dict[str, str] | None = None) -> Pipeline:
    pipeline = Pipeline("lake", connections=["lake"])
    read = pipeline.source("read", SparkSource(lambda spark: spark.range(3)))
    pipeline.writer("save", DatasetWriter("lake", "out"), pipeline.operator("same", same, read))
    pipeline.group("frames", "read", "same", "save", spark=spark or {})
    return pipeline


def properties(settings: SparkSettings, spark: dict[str, str] | None = None, *, frames: bool = True) -> dict[str, str]:
    return group_properties(settings, lake(spark), "frames", frames=frames)


@pytest.mark.parametrize("conf", [PUSHED, REMOTE])
def test_shuffles_that_may_mix_two_attempts_are_refused_wherever_they_are_set(
    conf: dict[str, str], tmp_path: Path
) -> None:
    """Before anything starts: by the pipeline, the launch or its connection, a file of properties, the site."""
    ((name, value),) = conf.items()
    (tmp_path / "spark-defaults.conf").write_text(f"# {name} none\n\n spark.x 1\n{name}    {value}\n")
    (tmp_path / "own.conf").write_text(f"{name} = {value}\n")
    site = {"SPARK_CONF_DIR": str(tmp_path)}
    ways: list[tuple[SparkSettings, dict[str, str]]] = [
        (SparkSettings(), conf),
        (SparkSettings(conf=conf), {}),
        (SparkSettings(conf=conf, connect=True), {}),
        (SparkSettings(env_vars=site), {}),
        (SparkSettings(env_vars=site, connect=True), {}),
        (SparkSettings(properties_file=str(tmp_path / "own.conf")), {}),
    ]
    for settings, group in ways:
        with pytest.raises(ConfigurationError) as refused:
            properties(settings, group)
        said = str(refused.value)
        assert said.startswith(f"group 'frames' of pipeline 'lake': {name}=")
        assert "records of two computations could be mixed" in said
        assert ("spark.shuffle.push.enabled=false" if conf is PUSHED else "spark.shuffle.manager=sort") in said
        assert properties(settings, group, frames=False) is not None, "other modes are as they were"
    better = {"spark.shuffle.push.enabled": "false", "spark.shuffle.manager": "sort"}
    assert properties(SparkSettings(env_vars=site), better), "the pipeline decides over the site"
    assert properties(SparkSettings(env_vars=site, properties_file=str(tmp_path / "none.conf"))), (
        "which is not read then"
    )


@pytest.mark.parametrize(
    "manager", ["sort", "SORT", "tungsten-sort", "org.apache.spark.shuffle.sort.SortShuffleManager"]
)
def test_sparks_own_shuffles_are_as_ever(manager: str) -> None:
    assert properties(SparkSettings(conf={"spark.shuffle.manager": manager, "spark.shuffle.push.enabled": "false"}))


# --- the version of Spark (ADR-199) ----------------------------------------------------------------------------------

ATTEMPTS = "spark.stage.maxConsecutiveAttempts"


def home(folder: Path, *versions: str) -> dict[str, str]:
    """The environment of a driver on a machine with a Spark that has these jars."""
    executable(folder / "bin" / "spark-submit")
    (folder / "jars").mkdir(exist_ok=True)
    for version in versions:
        (folder / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return {"SPARK_HOME": str(folder)}


@pytest.mark.parametrize("version", ["4.0.0", "4.1.3", "4.1.0-amzn-0", None])
def test_a_spark_that_may_mix_two_computations_fails_a_job_whose_shuffle_is_lost(
    version: str | None, tmp_path: Path
) -> None:
    """Whatever pipeline and launch say; in both modes with jobs. SPARK_HOME counts, and not what is installed."""
    settings = SparkSettings(conf={ATTEMPTS: "4"}, env_vars=home(tmp_path, *filter(None, [version])))
    assert spark_version(settings) == version
    for frames in (True, False):
        conf = properties(settings, {ATTEMPTS: "9"}, frames=frames)
        assert {name: conf.get(name) for name in ONE_ATTEMPT} == ONE_ATTEMPT


def test_a_spark_that_compares_them_has_its_own_attempts_in_mode_executors(tmp_path: Path) -> None:
    """In mode `dataframe` there are more jobs than it compares in."""
    assert ATTEMPTS not in properties(SparkSettings(), frames=False), "the installed one"
    for version in ("4.2.0", "4.10.1", "5.0.0-SNAPSHOT"):
        settings = SparkSettings(env_vars=home(tmp_path / version, version))
        assert properties(settings, {ATTEMPTS: "9"}, frames=False)[ATTEMPTS] == "9"
        assert properties(settings, {ATTEMPTS: "9"})[ATTEMPTS] == "1"


def test_of_two_versions_the_earlier_one_counts_and_what_is_not_known_is_no_version(tmp_path: Path) -> None:
    """A script that is named may start another Spark than SPARK_HOME, and a cluster the one that its nodes have."""
    assert spark_version(SparkSettings(env_vars=home(tmp_path / "mixed", "4.2.0", "4.1.1"))) == "4.1.1"
    site = home(tmp_path / "site", "4.2.0")
    script = executable(tmp_path / "bin" / "mine")
    assert spark_version(SparkSettings(spark_binary=str(script), env_vars=site)) is None
    home(tmp_path / "other", "4.1.1")
    other = str(tmp_path / "other" / "bin" / "spark-submit")
    assert spark_version(SparkSettings(spark_binary=other, env_vars=site)) == "4.1.1"
    assert spark_version(SparkSettings("yarn", env_vars=site)) == "4.2.0"
    assert spark_version(SparkSettings("yarn", "cluster", env_vars=site)) is None


def test_a_spark_that_cannot_evaluate_chains_is_refused_before_anything_starts(tmp_path: Path) -> None:
    early = SparkSettings(env_vars=home(tmp_path / "early", "3.5.8"))
    with pytest.raises(
        ConfigurationError, match=r"^group 'frames' of pipeline 'lake': .* Spark 4\.0 or later, .* 3\.5\.8"
    ):
        properties(early)
    assert properties(early, frames=False)
    served = SparkSettings(connect=True, env_vars=home(tmp_path / "served", "4.1.3"))
    with pytest.raises(ConfigurationError, match=r"would have Spark 4\.1\.3, .* 4\.2 or later there; without a server"):
        properties(served)
    assert properties(served, frames=False)
