"""Drivers on clusters in a terminal: what `logio status` and `logio logs` say of them, and which options are kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from msgspec import structs

from airflow_logio.cli.app import main
from airflow_logio.cli.connection_file import ConnectionUrls
from airflow_logio.cli.preparation import Wanted, load
from airflow_logio.cli.spark_options import SparkOptions
from airflow_logio.errors import ConfigurationError
from airflow_logio.status.condition import place_on_cluster
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, GroupRef, ManagerSaid, Submission
from tests.support.logs import SOMEBODY, spec

PIPELINE = """
from airflow_logio.dataflow import ParquetSource, Pipeline, TableWriter, stateless

@stateless
def same(table):
    return table

shop = Pipeline("shop", connections=["warehouse"], environment=["SHOP_TOKEN"])
read = shop.source("read", ParquetSource("/none.parquet", records_per_event=1))
made = shop.operator("made", same, read)
save = shop.writer("save", TableWriter("warehouse", "sums", {"a": "text"}, on_new_run="replace"), made)
shop.group("g", read, made, save)
"""
SUBMISSION = Submission("standalone", "http://127.0.0.1:1", "logio-1-g-1-abc", id="driver-20261130120000-0001")


@pytest.fixture
def store(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogStore]:
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    found = open_store(sqlite_url)
    yield found
    found.dispose()


Terminal = Callable[..., tuple[str, str]]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """A command that succeeds: standard output, standard error."""

    def command(*arguments: str) -> tuple[str, str]:
        monkeypatch.setattr("sys.argv", ["logio", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert not ended.value.code, printed.err
        return printed.out, printed.err

    return command


def submitted(store: LogStore) -> Claim:
    run = store.start_run(spec("g"))
    claim = store.claim(run.run_id, "g", expected=0, reason="test")
    assert store.submitting(claim, structs.replace(SUBMISSION, id=""))
    store.note_id(GroupRef(run.run_id, "g", 1), SUBMISSION)
    store.submitted(claim, log_path=None, launcher=None)
    return claim


def test_status_says_why_a_driver_waits_and_where_it_was_submitted(store: LogStore, terminal: Terminal) -> None:
    claim = submitted(store)
    store.note_said(GroupRef(claim.run_id, "g", 1), ManagerSaid("queued", "no free cores", 1_796_040_005.0))
    assert "queued since" in " ".join(terminal("status", claim.run_uid)[0].split())
    (group,) = json.loads(terminal("status", claim.run_uid, "--json")[0])["groups"].values()
    assert group["cluster"]["id"] == SUBMISSION.id
    assert group["cluster"]["says"] == "queued since 12:00:05 UTC: no free cores"

    store.register(claim, SOMEBODY, reported=SUBMISSION)
    assert "queued" not in terminal("status", claim.run_uid)[0]


def test_logs_names_what_shows_the_lines_of_the_jvm(store: LogStore, terminal: Terminal) -> None:
    claim = submitted(store)
    ref = store.register(claim, SOMEBODY, reported=SUBMISSION)
    store.output.add(ref, 1, 0, "a line of its Python\n")
    out, err = terminal("logs", claim.run_uid, "g")
    assert out == "a line of its Python\n"
    assert SUBMISSION.id in err and "is on its node" in err


def test_the_deploy_mode_is_kept_with_the_run_and_another_one_refused() -> None:
    given = SparkOptions.given("spark://master:7077", deploy_mode="cluster")
    assert given.settings().deploy_mode == "cluster"
    assert SparkOptions(**given.to_keep()) == given
    assert str(given) == "--master spark://master:7077 --deploy-mode cluster"
    assert SparkOptions.given("local[2]").over(given).deploy_mode == "cluster"
    with pytest.raises(typer.BadParameter, match="none of Spark's"):
        SparkOptions.given(deploy_mode="clustered")


def test_the_page_says_as_what_a_driver_was_submitted(store: LogStore) -> None:
    claim = submitted(store)
    assert place_on_cluster(store.group(claim.run_id, "g")) == f"standalone: {SUBMISSION.id}"
    store.register(
        claim, SOMEBODY, reported=structs.replace(SUBMISSION, manager="yarn", id="application_1_1", attempt=2)
    )
    assert place_on_cluster(store.group(claim.run_id, "g")) == "yarn: application_1_1, attempt 2"


def test_variables_of_a_pipeline_are_those_of_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that only submits need not have them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHOP_TOKEN", raising=False)
    monkeypatch.setenv("LOGIO_CONN_WAREHOUSE", "postgresql://w@127.0.0.1/w")
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "shop_of_nodes.py").write_text(PIPELINE)
    monkeypatch.setitem(sys.modules, "shop_of_nodes", None)
    del sys.modules["shop_of_nodes"]
    for mode in ("client", "cluster"):
        spark = SparkOptions.given("spark://master:7077", deploy_mode=mode)
        wanted = Wanted("shop_of_nodes.py:shop", {}, {}, spark=spark)
        if mode == "client":
            with pytest.raises(ConfigurationError, match="'SHOP_TOKEN', which is not set in the process that launches"):
                load(wanted, ConnectionUrls.load(print))
        else:
            assert load(wanted, ConnectionUrls.load(print)).pipeline.environment == ("SHOP_TOKEN",)
