"""A log that a person names with --log: each command that is printed asks that log, with the Spark options of the run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence

import pytest

from airflow_logio.cli import retry
from airflow_logio.commands import with_log
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.status import condition
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from tests.support.logs import SOMEBODY
from tests.unit.cli.test_fresh import SALES, Logio, logio, start

__all__ = ["logio", "start"]  # fixtures

SPARK = ("--master", "local[3]", "--driver-memory", "777m", "--conf", "spark.x=1", "--conf", "spark.api.token=hush")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("`logio retry 12345678` continues it", "`logio retry 12345678 --log prod` continues it"),
        ("`logio retry 12345678 all --code new`.", "`logio retry 12345678 all --code new --log prod`."),
        ("`logio status` lists them; `logio gc`", "`logio status --log prod` lists them; `logio gc --log prod`"),
        ("create them with `logio db upgrade`", "create them with `logio db upgrade --log prod`"),
        ("`logio retry` resumes it; logio stop x", "`logio retry` resumes it; logio stop x"),
        ("`logio retry 1 --log prod`", "`logio retry 1 --log prod`"),
    ],
)
def test_a_command_in_a_sentence_names_the_log(said: str, shown: str) -> None:
    assert with_log(said, "prod") == shown
    assert with_log(said, None) == with_log(said, "logio_default") == said


@pytest.fixture
def prod(logio: Logio, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The log is `prod`; the default one is another."""
    monkeypatch.delenv("LOGIO_URL")
    monkeypatch.setenv("LOGIO_CONN_PROD", sqlite_url)
    return "prod"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[SparkSettings]:
    """With which settings `logio retry` launches; nothing is launched."""
    found: list[SparkSettings] = []
    monkeypatch.setattr(retry, "_launch", lambda context, _group: found.append(context.settings))
    monkeypatch.setattr(retry, "supervise", lambda *_: 0)
    return found


def typed(said: str) -> Sequence[Sequence[str]]:
    """The commands that are printed, as a shell splits them."""
    return [shlex.split(one)[1:] for one in re.findall(r"`(logio [a-z]+ [^`]*)`", " ".join(said.split()))]


def test_what_is_printed_works_as_it_is_printed(
    prod: str,
    logio: Logio,
    start: Callable[..., Run],
    store: LogStore,
    launched: list[SparkSettings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(condition, "LEFT_SECONDS", -1.0)
    run = start("monday", "--log", prod, *SPARK)
    for number, group in enumerate(store.groups(run.run_id)):
        ref = store.register(store.claim(run.run_id, group.group, expected=0, reason="test"), SOMEBODY)
        driver_says = f"another version: `logio retry {run.uid[:8]}` resumes it"
        assert store.park(ref, driver_says) if number == 0 else store.halted(ref)
    refused = logio("run", SALES, "--run-id", "tuesday", "--alone", "--log", prod)[1]
    shown, listed = logio("status", run.uid[:8], "--log", prod)[1], logio("status", "--log", prod)[1]
    as_json = json.loads(logio("status", "--json", "--log", prod)[1])[0]["next_step"]
    as_it_was = json.loads(logio("status", run.uid, "--json", "--log", prod)[1])
    told = next(group["last_error"]["text"] for group in as_it_was["groups"].values() if group["last_error"])
    for said in (refused, shown, listed, as_json, as_it_was["next_step"], told):
        commands = typed(said)
        assert commands and all(command[-2:] == ["--log", prod] for command in commands), said
    for command in typed(as_json):
        assert logio(*command)[0] == 0
    assert len(launched) == 4, "the command found the run"
    code, said = logio("fresh", run.uid[:3], "--log", prod)
    assert code == 1 and "`logio status" not in said
    code, said = logio("fresh", run.uid, "--log", prod)
    assert code == 0 and f"`logio run ... --run-id monday --log {prod}` begins the fresh one" in said
    code, said = logio("status", "none", "--log", prod)
    assert code == 1 and f"`logio status --log {prod}` lists the runs" in " ".join(said.split())


def test_drivers_of_a_retry_get_the_spark_options_of_the_start(
    logio: Logio, start: Callable[..., Run], store: LogStore, launched: list[SparkSettings]
) -> None:
    run = start("monday", *SPARK)
    assert run.spec.spark == {
        "master": "local[3]",
        "driver_memory": "777m",
        "conf": {"spark.x": "1", "spark.api.token": None},
    }
    halt(store, run)
    code, said = logio("retry", run.uid)
    assert code == 0 and "drivers are launched with --master 'local[3]' --driver-memory 777m --conf spark.x=1" in said
    assert "--conf spark.api.token=..., which may be a secret and was not kept" in " ".join(said.split())
    assert "hush" not in said
    wanted = SparkSettings(master="local[3]", driver_memory="777m", conf={"spark.x": "1"})
    assert launched == [wanted] * 4
    launched.clear()
    code, said = logio("retry", run.uid, "--master", "local[2]", "--conf", "spark.api.token=quiet")
    assert code == 0 and "was not kept" not in said and "quiet" not in said
    conf = {"spark.x": "1", "spark.api.token": "quiet"}
    assert launched == [SparkSettings(master="local[2]", driver_memory="777m", conf=conf)] * 4


def test_a_continued_run_keeps_its_spark_options_and_says_so(
    logio: Logio, start: Callable[..., Run], store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[LaunchContext] = []

    def supervise(context: LaunchContext, *_: object) -> int:
        contexts.append(context)
        return 0

    monkeypatch.setattr("airflow_logio.cli.run.supervise", supervise)
    run = start("monday", "--master", "local[3]")
    parameters = [f"--param={name}={value}" for name, value in run.spec.params.items()]
    code, said = logio("run", SALES, *parameters, "--run-id", "monday")
    assert code == 0 and "Spark options" not in said and contexts[-1].settings.master == "local[3]"
    code, said = logio("run", SALES, *parameters, "--run-id", "monday", "--driver-memory", "2g")
    assert code == 0 and "keeps the Spark options it was started with: --master 'local[3]'" in " ".join(said.split())
    assert (contexts[-1].settings.master, contexts[-1].settings.driver_memory) == ("local[3]", "2g")
    assert store.find_run("monday").spec.spark == {"master": "local[3]"}


def halt(store: LogStore, run: Run) -> None:
    for group in store.groups(run.run_id):
        ref = store.register(store.claim(run.run_id, group.group, expected=0, reason="test"), SOMEBODY)
        assert store.halted(ref)
