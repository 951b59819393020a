"""A launch is resolved once: what is wrong with it is said before anything is claimed or ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import cluster_launch, launcher
from airflow_logio.launch.bundle import load, parse_ref
from airflow_logio.launch.code_bundle import CodeBundle
from airflow_logio.launch.driver_config import DriverKind, Launch, StandbyRecipe, launch_of_standby, needs_of
from airflow_logio.launch.launcher import (
    KnownLaunches,
    LaunchContext,
    Launched,
    Launcher,
    NotedLaunch,
    launch_group,
    resolve,
)
from airflow_logio.launch.processes import own_identity
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import Claim, LaunchRecipe
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import spec

PIPELINE = """
from airflow_logio.dataflow import ParquetSource, Pipeline, TableWriter, stateless

@stateless
def same(table):
    return table

shop = Pipeline("shop", connections=["wh"], environment=["SHOP_TOKEN"])
read = shop.source("read", ParquetSource("/none.parquet", records_per_event=1))
made = shop.operator("made", same, read)
save = shop.writer("save", TableWriter("wh", "sums", {"a": "text"}, on_new_run="replace"), made)
shop.group("g", read, made, save, spark={"spark.executor.memory": "1g"})
"""


@dataclass
class Recording(Launcher):
    """Starts nothing."""

    launches: list[Launch] = field(default_factory=list)
    refused: str | None = None

    def check(self, settings: SparkSettings) -> None:
        if self.refused is not None:
            raise ConfigurationError(self.refused)

    def launch(self, claim: Claim, launch: Launch) -> Launched:
        self.launches.append(launch)
        return Launched(own_identity(), None)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchContext:
    monkeypatch.setenv("SHOP_TOKEN", "a secret")
    file = tmp_path / "shop_of_launches.py"
    file.write_text(PIPELINE)
    ref, store = parse_ref(f"{file}:shop"), MemoryLogStore()
    pipeline = load(ref)
    return LaunchContext(store, "sqlite://", store.start_run(spec("g")), pipeline, ref, {}, Recording())


def no_token(context: LaunchContext) -> LaunchContext:
    del os.environ["SHOP_TOKEN"]
    return context


def no_such_java(context: LaunchContext) -> LaunchContext:
    return replace(context, launcher=Recording(refused="Java is needed"))


def a_server(context: LaunchContext) -> LaunchContext:
    return replace(context, settings=SparkSettings(master="sc://host:15002"))


def no_code(context: LaunchContext) -> LaunchContext:
    (context.ref.bundle_root / "shop_of_launches.py").unlink()
    return context


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        (no_token, "SHOP_TOKEN"),
        (no_such_java, "Java is needed"),
        (a_server, r"group 'g' of pipeline 'shop': spark\.executor\.memory"),
        (no_code, "module 'shop_of_launches' is no file in"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_claimed(
    context: LaunchContext, spoiled: Callable[[LaunchContext], LaunchContext], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        launch_group(spoiled(context), "g", expected=0, reason="test")
    status = context.store.group(context.run.run_id, "g")
    assert (status.state, status.incarnation) == (GroupState.NEW, 0)


def test_a_driver_is_started_with_what_was_resolved(context: LaunchContext) -> None:
    launch = resolve(context, "g", 0)
    claim = launch_group(context, "g", expected=0, reason="test")
    assert isinstance(context.launcher, Recording)
    assert context.launcher.launches == [launch]
    assert (launch.kind, launch.environment) == (DriverKind.PYTHON, {"SHOP_TOKEN": "a secret"})
    assert "a secret" not in repr(launch)
    config = launch.config(claim)
    assert (config.claim, config.module, config.environment) == (claim, "shop_of_launches", launch.environment)


def test_each_standby_is_launched_as_the_first_driver_was(context: LaunchContext) -> None:
    """A standby that takes over keeps a standby of its own: neither the settings nor the variables may change on the way."""
    launch = replace(resolve(context, "g", 0), standby=StandbyRecipe(context.settings, {"spark.cores.max": "2"}))
    config = launch.config(launch_group(context, "g", expected=0, reason="test"))
    for _ in range(2):
        changed = replace(context.settings, env_vars={"SPARK_LOCAL_DIRS": "/of/the/standby"})
        standby = launch_of_standby(config, changed, launch.code)
        assert (standby.settings, standby.standby) == (changed, launch.standby)
        assert (standby.environment, standby.conf) == ({"SHOP_TOKEN": "a secret"}, {"spark.cores.max": "2"})
        config = standby.config(config.claim)


KEPT = SimpleNamespace(digest="of the run's code")
"""What the log says of the code of a run."""


def test_a_supervisor_resolves_a_launch_once_and_looks_for_what_a_jvm_needs_each_time(
    context: LaunchContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_logio.launch.driver_config.needs_spark", lambda *_: True)
    monkeypatch.setattr("airflow_logio.launch.launcher.code_for", lambda *_: CodeBundle({"shop.py": b""}))
    monkeypatch.setattr(MemoryLogStore, "code", lambda *_: KEPT)
    launcher, known = context.launcher, KnownLaunches()
    assert isinstance(launcher, Recording)
    first = known.of(context, "g", 0)
    assert first.kind is DriverKind.SPARK_SUBMIT and known.of(context, "g", 0) is first
    launcher.refused = "there is no Java any more"
    with pytest.raises(ConfigurationError, match="no Java any more"):
        known.of(context, "g", 0)


@pytest.mark.parametrize(
    ("template", "defaults", "conf", "says"),
    [
        ("{name: a, env: [{name: X, value: pw-of-the-log}]}", "", {}, r"variable of container a in \S+pod.yaml X "),
        ("{name: a, env: [{name: MY_TOKEN, value: abcdef}]}", "", {}, "MY_TOKEN .* is called like a secret"),
        ("{name: a}", "spark.x  -Dpw=pw-of-the-log", {}, r"property in \S+defaults.conf spark.x "),
        (
            "{name: a}",
            "spark.kubernetes.driverEnv.MY_TOKEN=abcdef",
            {},
            "driverEnv.MY_TOKEN .* is called like a secret",
        ),
        ("{name: a}", "", {"spark.executorEnv.SHOP_TOKEN": "a secret"}, "property spark.executorEnv.SHOP_TOKEN "),
        ("{name: a}", "spark.x pw-of-the-log", {"spark.x": "1", "spark.executorEnv.SHOP_TOKEN": "of-executors"}, None),
        ("{name: a, env: [{name: X, valueFrom: {secretKeyRef: {name: s, key: k}}}]}", "spark.y 1", {}, None),
    ],
)
def test_no_secret_is_submitted_by_a_file_or_for_executors(
    template: str,
    defaults: str,
    conf: dict[str, str],
    says: str | None,
    context: LaunchContext,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the manager shows of a driver is in a pod template and in Spark's properties on this machine, too."""
    monkeypatch.setattr(cluster_launch, "check_possible", lambda *_, **__: None)  # it would ask for Java
    (tmp_path / "pod.yaml").write_text(f"spec: {{initContainers: [{{name: b}}], containers: [{template}]}}")
    (tmp_path / "defaults.conf").write_text(f"# a comment\n{defaults}\n")
    settings = SparkSettings("k8s://https://127.0.0.1:1", "cluster", properties_file=str(tmp_path / "defaults.conf"))
    given = {
        "spark.kubernetes.container.image": "logio:1",
        "spark.kubernetes.driver.podTemplateFile": str(tmp_path / "pod.yaml"),
        **conf,
    }
    on_cluster = replace(context, settings=settings, log_url="postgresql://logio:pw-of-the-log@db/logio")
    needs = replace(needs_of(context.pipeline, "g", 0), spark=True)
    if says is None:
        assert launcher._launch(on_cluster, needs, given, CodeBundle({})).conf == given
        return
    with pytest.raises(ConfigurationError, match=says) as caught:
        launcher._launch(on_cluster, needs, given, CodeBundle({}))
    assert not any(secret in str(caught.value) for secret in ("pw-of-the-log", "abcdef", "a secret.", "='a secret'"))


ROOT = Path(__file__).parents[3]
PIPELINES = {
    "frames": f"{ROOT}/dags/pipelines/orders_lake.py:orders_lake",
    "replicas": f"{ROOT}/dags/pipelines/sales_scaled.py:sales_scaled",
    "variables": f"{ROOT}/tests/support/bundle/outside.py:outside",
}


@pytest.mark.parametrize("name", [*PIPELINES, "a standby"])
@pytest.mark.parametrize("settings", [SparkSettings(), SparkSettings("spark://here:7077", conf={"spark.ui.port": "1"})])
def test_a_launch_by_what_the_log_has_noted_is_the_one_of_the_imported_pipeline(
    name: str, settings: SparkSettings, context: LaunchContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The note goes through the log, as part of the recipe."""
    monkeypatch.setattr("airflow_logio.launch.launcher.code_for", lambda *_: CodeBundle({"shop.py": b""}))
    monkeypatch.setattr(MemoryLogStore, "code", lambda *_: KEPT)
    standby = tmp_path / "shop_with_a_standby.py"
    standby.write_text(PIPELINE.replace('"1g"})', '"1g"}, standby=1)'))
    ref = parse_ref(PIPELINES.get(name, f"{standby}:shop"))
    pipeline = load(ref)
    imported = replace(context, imported=pipeline, ref=ref, settings=settings)
    for group in pipeline.applications:
        recipe = LaunchRecipe(needs=needs_of(pipeline, group, 0))
        noted = msgspec.json.decode(msgspec.json.encode(recipe), type=LaunchRecipe).needs
        assert noted is not None
        launch = NotedLaunch(noted).of(replace(imported, imported=None), group, 0)
        assert launch == resolve(imported, group, 0) and (launch.standby is None) == (name != "a standby")
        with pytest.raises(ConfigurationError, match="gets code 1, and the log has no note"):
            NotedLaunch(noted).of(imported, group, 1)


def test_the_digest_of_code_that_drivers_find_installed_is_compared_at_each_launch(
    context: LaunchContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package with compiled modules is not in the log: it may be upgraded in the middle of a run."""
    monkeypatch.setattr(MemoryLogStore, "code", lambda *_: KEPT)
    known = KnownLaunches()
    found = CodeBundle({"shop/fast.so": b"1"}, is_shipped=False)
    monkeypatch.setattr("airflow_logio.launch.launcher.code_for", lambda *_: found)
    assert known.of(context, "g", 0).code is found

    def upgraded(*_: object) -> CodeBundle:
        raise ConfigurationError("another version of the pipeline")

    monkeypatch.setattr("airflow_logio.launch.launcher.code_for", upgraded)
    with pytest.raises(ConfigurationError, match="another version"):
        known.of(context, "g", 0)
