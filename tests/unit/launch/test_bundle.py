"""One process, several versions of a pipeline: each is imported from its own folder, whatever was imported before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import bundle
from airflow_logio.launch.bundle import PipelineRef, load
from airflow_logio.launch.code_bundle import collect, load_kept
from airflow_logio.store.records.run_records import Run
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import spec

MODULE = """
from airflow_logio import ParquetSource, Pipeline
from airflow_logio.dataflow import Count
from shop_versions.names import NAME

flow = Pipeline(NAME, params={"path": str})
flow.group("all", flow.sink("count", Count(), flow.source("read", ParquetSource("{path}"))))
"""


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name in [name for name in sys.modules if name.startswith("shop_versions")]:
        del sys.modules[name]


def version(folder: Path, name: str, *, module: str = MODULE) -> PipelineRef:
    package = folder / name / "shop_versions"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "names.py").write_text(f"NAME = {name!r}")
    (package / "flow.py").write_text(module)
    return PipelineRef("shop_versions.flow", "flow", folder / name)


def test_each_version_is_imported_from_its_own_folder(tmp_path: Path) -> None:
    refs = [version(tmp_path, name) for name in ("first", "second")]
    for ref in (*refs, *refs, *reversed(refs)):
        assert load(ref).name == ref.bundle_root.name
    assert load(refs[0]) is load(refs[0]), "what is imported is not imported again"


def test_a_broken_version_leaves_the_other_one_as_it_is(tmp_path: Path) -> None:
    good, broken = version(tmp_path, "good"), version(tmp_path, "broken", module=f"{MODULE}\nraise ValueError('no')")
    assert load(good).name == "good"
    with pytest.raises(ConfigurationError, match="cannot be imported: ValueError: no"):
        load(broken)
    assert load(version(tmp_path, "later")).name == "later"


def test_a_supervisor_meets_a_folder_that_was_edited(tmp_path: Path) -> None:
    """It has imported the first version from there. Runs of both have the code that they were started with."""
    store, ref = MemoryLogStore(), version(tmp_path, "first")

    def started(dag_run: str) -> Run:
        code = collect(ref)
        found = replace(
            spec("all", dag_run=dag_run),
            pipeline_ref=f"{ref.module}:{ref.attr}",
            bundle_root=str(ref.bundle_root),
            code_digest=code.digest,
        )
        return store.start_run(found, code=code.kept())

    def name_of(run: Run) -> str:
        return load_kept(store, run, lambda: (load(ref), ref), 0)[0].name

    first = started("run-1")
    assert name_of(first) == "first"
    (ref.bundle_root / "shop_versions" / "names.py").write_text("NAME = 'second'")
    second = started("run-2")
    assert [name_of(run) for run in (second, first, second, first)] == ["second", "first", "second", "first"]


def test_of_all_that_is_imported_only_what_a_folder_has_too_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of Airflow has 5,000 modules: to look where each of them lies took a second."""
    looked_at: list[str] = []
    above = bundle._above

    def seen(file: Path, module: str) -> Path:
        looked_at.append(module)
        return above(file, module)

    monkeypatch.setattr(bundle, "_above", seen)
    found = []
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "looked_at_alone.py").write_text(f"VERSION = {version!r}")
        found.append(bundle.import_module(PipelineRef("looked_at_alone", "x", tmp_path / version)))
    assert [module.VERSION for module in found] == ["one", "two"]
    assert set(looked_at) == {"looked_at_alone"}
