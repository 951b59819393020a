"""The code of a run, from the log: several runs in one process, damage, and what is not in the log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import bundle, driver_process
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.code_bundle import CodeBundle, Loaded, code_for, collect, load_kept, newest, take_new
from airflow_logio.launch.driver_config import DriverConfig, Launch
from airflow_logio.launch.driver_folders import FORGOTTEN_SECONDS, KEPT_INCARNATIONS, KEYTAB_NAME, processes_under
from airflow_logio.launch.driver_log import LOG_NAME
from airflow_logio.launch.launcher import LaunchContext, Launched, Launcher, LocalProcessLauncher, launch_group
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.store.records.driver_records import Claim, GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.testing.memory_log.store import MemoryLogStore
from tests.support.deployments import Deployments
from tests.support.logs import spec
from tests.support.waiting import eventually

SOURCE = """
from airflow_logio import Count, ParquetSource, Pipeline
from stall.names import VERSION

numbers = Pipeline("numbers", params={"numbers": str})
read = numbers.source("read", ParquetSource("{numbers}"))
numbers.group("g", read, numbers.sink("done", Count(), read))
numbers.version = VERSION
"""


TWO_GROUPS = """
from airflow_logio import Count, ParquetSource, Pipeline
from stall.names import VERSION

numbers = Pipeline("numbers", params={"numbers": str}, environment=[f"{VERSION.upper()}_TOKEN"])
read = numbers.source("read", ParquetSource("{numbers}"))
done = numbers.sink("done", Count(), read)
numbers.group("read", read, spark={"spark.of": VERSION})
numbers.group("done", done, spark={"spark.of": VERSION})
"""


def version(name: str) -> dict[str, str]:
    return {"stall/__init__.py": "", "stall/names.py": f"VERSION = {name!r}", "stall/numbers.py": SOURCE}


@dataclass
class CodeReceiver(Launcher):
    """Starts nothing; notes which code the driver would get."""

    codes: list[CodeBundle] = field(default_factory=list)
    configs: list[DriverConfig] = field(default_factory=list)
    confs: list[Mapping[str, str]] = field(default_factory=list)

    def launch(self, claim: Claim, launch: Launch) -> Launched:
        self.codes.append(launch.code)
        self.configs.append(launch.config(claim))
        self.confs.append(launch.conf)
        return Launched(None, None)


class Stall:
    """A log, and a folder in which versions are deployed one after the other."""

    def __init__(self, folder: Path) -> None:
        self.deployments = Deployments(folder, "stall")
        self.ref = PipelineRef("stall.numbers", "numbers", folder)
        self.store = MemoryLogStore()

    def started(self, name: str) -> Run:
        """A run that begins with the version of that name."""
        self.deployments.deploy(version(name))
        code, made = collect(self.ref), spec(dag_run=name)
        made = replace(
            made, code_digest=code.digest, pipeline_ref=str(self.ref), bundle_root=str(self.deployments.folder)
        )
        return self.store.start_run(made, code=code.kept())

    def current(self) -> Loaded:
        return bundle.load(self.ref), self.ref

    def loaded(self, run: Run) -> str:
        pipeline, ref = load_kept(self.store, run, self.current, newest(self.store, run))
        assert ref == self.ref
        return str(vars(pipeline)["version"])

    def given(self, run: Run, number: int = 0) -> str:
        return code_for(self.store, run, self.ref, number).files["stall/names.py"].decode().partition("= ")[2]

    def damage(self, run: Run, by: bytes | None) -> None:
        (key,) = [key for key in self.store.tables.code if key[0] == run.run_id]
        if by is None:
            del self.store.tables.code[key]
        else:
            self.store.tables.code[key] = by


@pytest.fixture
def stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stall]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = Stall(tmp_path / "folder")
    yield found
    found.deployments.forget()


def test_a_process_that_looks_after_several_runs_loads_each_as_it_began(stall: Stall) -> None:
    first, second, third = (stall.started(name) for name in ("first", "second", "third"))
    assert [stall.loaded(run) for run in (first, third, second, third, first)] == [
        "first",
        "third",
        "second",
        "third",
        "first",
    ]


def test_what_a_process_has_imported_stays_what_it_was(stall: Stall) -> None:
    run = stall.started("first")
    stall.deployments.deploy(version("second"))
    stall.current()
    module, path = sys.modules["stall.numbers"], list(sys.path)
    assert stall.loaded(run) == "first"
    assert (sys.modules["stall.numbers"], sys.path) == (module, path)


def test_a_version_that_cannot_be_imported_is_not_needed(stall: Stall) -> None:
    run = stall.started("first")
    stall.deployments.deploy({**version("second"), "stall/numbers.py": "import nothing_of_that_name"})
    assert (stall.loaded(run), stall.given(run)) == ("first", "'first'")
    stall.deployments.remove()
    assert stall.loaded(run) == "first"


@pytest.mark.parametrize("damage", [b"no archive", b"", None])
def test_damaged_code_is_replaced_by_the_same_version_and_by_no_other(stall: Stall, damage: bytes | None) -> None:
    run = stall.started("first")
    stall.damage(run, damage)
    assert (stall.loaded(run), stall.given(run)) == ("first", "'first'")
    stall.deployments.deploy(version("second"))
    with pytest.raises(ConfigurationError) as refused:
        stall.given(run)
    said = str(refused.value)
    assert (
        str(run.spec.key) in said
        and "stall.numbers:numbers" in said
        and f"`logio retry {run.uid[:8]} --code new`" in said
    )
    assert ("damaged" if damage is not None else "its row is lost") in said
    assert take_new(stall.store, run, "g", stall.current(), by="a person") == 1
    assert (stall.loaded(run), stall.given(run, 1)) == ("second", "'second'")


def test_a_run_of_an_earlier_version_of_this_package_takes_what_is_there(stall: Stall) -> None:
    stall.deployments.deploy(version("second"))
    run = stall.store.start_run(spec())
    assert (stall.loaded(run), stall.given(run)) == ("second", "'second'")


def test_code_that_is_taken_while_a_group_is_launched_is_what_the_driver_gets(
    stall: Stall, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The launcher has looked, and not claimed: log and driver agree all the same."""
    run = stall.started("first")
    stall.deployments.deploy(version("second"))
    claim, launcher = stall.store.claim, CodeReceiver()

    def taken_before(*arguments: Any, **settings: Any) -> Claim:
        assert take_new(stall.store, run, "g", stall.current(), by="a person") == 1
        return claim(*arguments, **settings)

    monkeypatch.setattr(stall.store, "claim", taken_before)
    context = LaunchContext(
        stall.store, f"sqlite:///{tmp_path}/log.db", run, stall.current()[0], stall.ref, {}, launcher
    )
    assert launch_group(context, "g", expected=0, reason="test").code == 1
    (code,) = launcher.codes
    assert code.files["stall/names.py"] == b"VERSION = 'second'"


def test_launches_remove_what_drivers_have_left(stall: Stall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of earlier incarnations each time; of runs that are forgotten with the first driver of a group.

    A keytab is there for the driver that has it, and for its user, only.
    """
    monkeypatch.setattr("airflow_logio.launch.driver_config.needs_spark", lambda *_: True)
    run, work, submit = stall.started("first"), tmp_path / "work", tmp_path / "spark-submit"
    submit.write_text(f"#!/bin/sh\necho $*\nstat -c %a {KEYTAB_NAME}\n")
    submit.chmod(0o755)
    forgotten, before = work / ("f" * 32), time.time() - 2 * FORGOTTEN_SECONDS
    (forgotten / "g" / "1").mkdir(parents=True)
    for folder in (forgotten / "g" / "1", forgotten / "g", forgotten):
        os.utime(folder, (before, before))
    url, settings = (
        f"sqlite:///{tmp_path}/log.db",
        SparkSettings(spark_binary=str(submit), principal="etl@R", keytab_content=b"the keys"),
    )
    launcher = LocalProcessLauncher(work)
    context = LaunchContext(stall.store, url, run, stall.current()[0], stall.ref, {}, launcher, settings)
    incarnations = range(1, KEPT_INCARNATIONS + 3)
    for number in incarnations:
        claim = launch_group(context, "g", expected=number - 1, reason="test", by_user=True)
        assert not forgotten.exists()
        folder = work / run.uid / "g" / str(number)
        output = folder / LOG_NAME
        eventually(lambda output=output: output.read_text().endswith("\n600\n"), what="it has printed")  # type: ignore[misc]
        eventually(lambda folder=folder: not processes_under(folder), what="the driver has ended")  # type: ignore[misc]
        assert [file.parent for file in work.rglob(KEYTAB_NAME)] == [folder]
        assert f"--keytab {folder}/{KEYTAB_NAME} --principal etl@R" in output.read_text()
        assert stall.store.declare_dead(GroupRef(claim.run_id, "g", number), "it has ended")
    driver_process.reap()
    left = sorted(int(folder.name) for folder in (work / run.uid / "g").iterdir())
    assert left == list(incarnations)[-KEPT_INCARNATIONS - 1 :]


def test_a_group_is_launched_with_the_spark_properties_and_variables_of_its_own_code(
    stall: Stall, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A person has taken other code for another group of the run."""
    named = {"first": "FIRST_TOKEN", "second": "SECOND_TOKEN"}
    for name, variable in named.items():
        monkeypatch.setenv(variable, f"of {name}")
    stall.deployments.deploy({**version("first"), "stall/numbers.py": TWO_GROUPS})
    code = collect(stall.ref)
    begun = replace(
        spec("read", "done"), code_digest=code.digest, pipeline_ref=str(stall.ref), bundle_root=str(tmp_path)
    )
    run = stall.store.start_run(begun, code=code.kept())
    stall.deployments.deploy({**version("second"), "stall/numbers.py": TWO_GROUPS})
    assert take_new(stall.store, run, "read", stall.current(), by="a person") == 1

    number, launcher = newest(stall.store, run), CodeReceiver()
    pipeline, ref = load_kept(stall.store, run, stall.current, number)
    context = LaunchContext(stall.store, f"sqlite:///{tmp_path}/log.db", run, pipeline, ref, {}, launcher, code=number)
    for group in ("read", "done"):
        launch_group(context, group, expected=0, reason="test")
    assert [config.environment for config in launcher.configs] == [
        {"SECOND_TOKEN": "of second"}, {"FIRST_TOKEN": "of first"},
    ]  # fmt: skip
    assert [conf["spark.of"] for conf in launcher.confs] == ["second", "first"]
