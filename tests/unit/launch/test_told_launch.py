"""What a driver on a node makes of log and node: the same as a launcher on its own machine would have given it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError, Fenced, UnknownRun
from airflow_logio.launch import bundle
from airflow_logio.launch.code_bundle import collect
from airflow_logio.launch.driver_arguments import DriverArguments
from airflow_logio.launch.driver_config import DriverConfig, needs_of
from airflow_logio.launch.launcher import LaunchContext, Launched, Launcher, resolve
from airflow_logio.launch.nodes import told_launch
from airflow_logio.launch.nodes.node_connections import NodeConnections
from airflow_logio.launch.processes import own_identity
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, GroupRef, LaunchRecipe, Submission
from airflow_logio.store.records.run_records import Run
from tests.support.logs import spec

PIPELINE = """
import os
from airflow_logio.dataflow import ParquetSource, Pipeline, TableWriter, stateless

TOKEN = os.environ.get("SHOP_TOKEN", "none")

@stateless
def same(table):
    return table

told = Pipeline("told", connections=["wh", "unused"], environment=["SHOP_TOKEN"])
read = told.source("read", ParquetSource("/none.parquet", records_per_event=1))
made = told.operator("made", same, read)
save = told.writer("save", TableWriter("wh", "sums", {"a": "text"}, on_new_run="replace"), made)
told.group("g", read, made, save)
"""
WAREHOUSE = "postgresql://w:hunter22@db/w"
NODE = NodeConnections(
    "file /etc/logio.json",
    "postgresql://logio:hunter22@db/logio",
    "/shared/payloads",
    {"wh_prod": WAREHOUSE, "wh_of_task": f"{WAREHOUSE}2", "other": "mysql://a:b@c/d"},
    {"SHOP_TOKEN": "of the node", "OTHER": "of another pipeline"},
)


class _Nowhere(Launcher):
    def launch(self, claim: Claim, launch: object) -> Launched:
        raise AssertionError("nothing is launched here")


@dataclass
class Told:
    """A claim of group ``g`` of a run, whose code is in the log."""

    store: LogStore
    source: Path
    folder: Path

    def __post_init__(self) -> None:
        (self.source / "told_pipeline.py").write_text(PIPELINE)
        self.ref = bundle.parse_ref(f"{self.source / 'told_pipeline.py'}:told")
        code = collect(self.ref)
        self.run: Run = self.store.start_run(
            replace(
                spec("g"),
                pipeline_ref=str(self.ref),
                bundle_root=str(self.source),
                connections={"wh": "wh_prod", "unused": "not_on_the_node"},
                code_digest=code.digest,
            ),
            code=code.kept(),
        )
        self.claim = self.store.claim(self.run.run_id, "g", expected=0, reason="test")

    @property
    def pipeline(self) -> Pipeline:
        return bundle.load(self.ref)

    def arguments(self, claim: Claim | None = None) -> DriverArguments:
        name = Submission("standalone", "spark://m:7077", "logio-x")
        return DriverArguments.of(claim or self.claim, name, {})

    def note(self, recipe: LaunchRecipe) -> None:
        self.store.note_launch(self.run.run_id, "g", recipe)

    def config(self, node: NodeConnections = NODE, told: DriverArguments | None = None) -> DriverConfig:
        told = told or self.arguments()
        run, claim = told_launch.claim_of(self.store, told, node)
        assert claim == replace(self.claim, nonce=told.nonce)
        return told_launch.config_of(self.store, run, claim, told, node, self.folder)


@pytest.fixture
def told(log_store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    for name in ("SHOP_TOKEN", "OTHER"):
        monkeypatch.delenv(name, raising=False)
    for name in ("dags", "scratch"):
        (tmp_path / name).mkdir()
    path = list(sys.path)
    yield Told(log_store, tmp_path / "dags", tmp_path / "scratch")
    sys.path[:] = path
    sys.modules.pop("told_pipeline", None)


@pytest.mark.parametrize("is_noted", [True, False])
def test_it_is_what_a_launcher_would_have_given(told: Told, is_noted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_noted:
        told.note(LaunchRecipe("spark_default", needs=needs_of(told.pipeline, "g", 0)))
    found = told.config()
    monkeypatch.setenv("SHOP_TOKEN", "of the node")
    urls, launcher = {"wh": WAREHOUSE}, _Nowhere()
    context = LaunchContext(
        told.store, NODE.log_url, told.run, told.pipeline, told.ref, urls, launcher, payloads=NODE.payloads
    )
    given = resolve(context, "g", 0).config(told.claim)
    root, archive = told.folder / "code", told.folder / "bundle.zip"
    assert found == replace(given, bundle_root=str(root), executor_code=str(archive))
    assert (root / "told_pipeline.py").read_text() == PIPELINE and archive.is_file()
    assert "OTHER" not in os.environ and os.environ["SHOP_TOKEN"] == "of the node"


def test_no_source_is_needed_and_the_module_sees_its_variables_when_it_is_imported(told: Told) -> None:
    (told.source / "told_pipeline.py").unlink()
    config = told.config()
    assert config.environment == {"SHOP_TOKEN": "of the node"}
    assert sys.modules["told_pipeline"].TOKEN == "of the node"
    assert not {"SHOP_TOKEN", "OTHER"} & os.environ.keys()


def test_the_ids_of_the_task_precede_those_of_the_run(told: Told) -> None:
    told.note(LaunchRecipe(connections={"wh": "wh_of_task"}))
    assert told.config().connections == {"wh": f"{WAREHOUSE}2"}


def test_needs_of_other_code_do_not_count(told: Told) -> None:
    stale = replace(needs_of(told.pipeline, "g", 0), code=1, environment=("GONE",), connections={"unused": True})
    told.note(LaunchRecipe(needs=stale))
    assert told.config().environment == {"SHOP_TOKEN": "of the node"}


def test_a_variable_of_the_drivers_own_environment_counts_where_the_file_has_none(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "of the container")
    assert told.config(replace(NODE, environment={})).environment == {"SHOP_TOKEN": "of the container"}
    assert os.environ["SHOP_TOKEN"] == "of the container"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"connections": {}}, "needs connection 'wh_prod' (the pipeline calls it 'wh'), which is not under"),
        ({"connections": {"wh_prod": "hunter22/"}}, "connection 'wh_prod': the database URL cannot be parsed"),
        ({"environment": {}}, "names environment variable 'SHOP_TOKEN', which is neither under `environment` in file"),
    ],
)
def test_what_a_node_lacks_is_named(told: Told, change: Mapping[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        told.config(replace(NODE, **change))  # type: ignore[arg-type]
    assert said in str(refused.value) and NODE.place in str(refused.value) and "hunter22" not in str(refused.value)


@pytest.mark.parametrize("version", ["0.0.1", ""])
def test_another_version_of_this_package_is_refused(told: Told, version: str) -> None:
    with pytest.raises(ConfigurationError, match="install the same version on all nodes"):
        told.config(told=replace(told.arguments(), version=version))


def test_installed_code_that_a_node_lacks_is_named(told: Told) -> None:
    lost = replace(told.run, spec=replace(told.run.spec, pipeline_ref="shop_of_elsewhere.flows:told"))
    with pytest.raises(ConfigurationError, match=r"does not have module 'shop_of_elsewhere.flows': install the same"):
        told_launch._ref(lost, is_kept=False)
    assert told_launch._ref(lost, is_kept=True).bundle_root == told.source
    here = replace(told.run, spec=replace(told.run.spec, pipeline_ref="email.message:told", bundle_root="/elsewhere"))
    assert (told_launch._ref(here, is_kept=False).bundle_root / "email").is_dir(), "installed in another folder"


def test_a_claim_that_is_not_to_be_had(told: Told) -> None:
    for other in (
        replace(told.claim, group="h"),
        replace(told.claim, incarnation=2),
        replace(told.claim, run_uid="f" * 32),
    ):
        with pytest.raises(UnknownRun, match=r"file /etc/logio.json of .* names the log: is it that of the run"):
            told_launch.claim_of(told.store, told.arguments(other), NODE)
    told.store.register(told.claim, own_identity())
    with pytest.raises(Fenced, match="is the claim of a driver that has registered"):
        told.config()
    told.store.declare_dead(GroupRef(told.run.run_id, "g", 1), "test")
    with pytest.raises(Fenced, match="has ended"):
        told.config()
