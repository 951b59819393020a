"""A run keeps the column types that it was started with: commands refuse a pipeline that declares others."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.cli import preparation, retry, run
from airflow_logio.launch import spark_submit
from airflow_logio.launch import start_run as run_specs
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import RunSpec
from tests.support.logs import start_driver

PRICES = Path(__file__).parents[2] / "support" / "bundle" / "prices.py"

Logio = Callable[..., tuple[int, str]]


@pytest.fixture
def logio(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Logio) -> Iterator[Logio]:
    """Exit code and what is said, of a command that imports the pipeline as it is; nothing is launched."""

    def supervise(context: LaunchContext, *_: object) -> int:
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    monkeypatch.setenv("LOGIO_CONN_WAREHOUSE", f"sqlite:///{tmp_path / 'warehouse.db'}")
    for module in (run, retry):
        monkeypatch.setattr(module, "supervise", supervise)
    monkeypatch.setattr(retry, "_launch", lambda context, group: 1)
    monkeypatch.setattr(spark_submit, "check", lambda _settings: None)
    pq.write_table(pa.table({"item": [1], "price": [1.5]}), tmp_path / "prices.parquet")
    shutil.copy(PRICES, tmp_path / "shop_prices.py")
    monkeypatch.syspath_prepend(str(tmp_path))

    def command(*arguments: str) -> tuple[int, str]:
        sys.modules.pop("shop_prices", None)
        return typed(*arguments)

    yield command
    sys.modules.pop("shop_prices", None)


RUN = ("run", "shop_prices.py:prices", "--param", "transactions=prices.parquet", "--run-id", "mine")


def edit(tmp_path: Path, text: str, wanted: str) -> None:
    file = tmp_path / "shop_prices.py"
    file.write_text(file.read_text().replace(text, wanted) + "\n# so that its size is another one\n")


def types(store: LogStore) -> str:
    settings: dict[str, str] = store.find_run("mine").spec.graph["operators"]["save"]["settings"]["columns"]
    return settings["price"]


NEW = ("retry", "mine", "--code", "new")


def refused(logio: Logio, command: tuple[str, ...], column: str, before: str, now: str) -> str:
    """What a command says that refuses a changed type: operator, column, both types, and a fresh run as the next step."""
    code, said = logio(*command)
    said = " ".join(said.split())
    assert code != 0 and f"operator 'save', columns, {column} was '{before}', is now '{now}'" in said, said
    assert "start a fresh run (`logio fresh " in said, said
    return said


def test_another_type_is_refused_and_the_run_continues_with_its_own(
    logio: Logio, store: LogStore, tmp_path: Path
) -> None:
    assert logio(*RUN)[0] == 0
    assert store.park(start_driver(store, group="store", run=store.find_run("mine")).ref, "a decimal is no double")
    edit(tmp_path, '"double"', '"decimal(20,2)"')
    for command in (RUN, NEW):
        said = refused(logio, command, "price", "double", "decimal(20,2)")
        assert "continues it with the version that it has" in said, said
    assert logio("retry", "mine")[0] == 0
    assert types(store) == "double"


def test_a_fresh_run_has_the_other_type(logio: Logio, store: LogStore, tmp_path: Path) -> None:
    assert logio(*RUN)[0] == 0
    edit(tmp_path, '"double"', '"decimal(20,2)"')
    assert logio("fresh", "mine", "--yes")[0] == 0
    code, said = logio(*RUN)
    assert (code, types(store)) == (0, "decimal(20,2)"), said


def test_a_run_that_keeps_no_code_is_refused_by_both_commands(
    logio: Logio, store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version began it: it is resumed with the code that is there now."""

    def without_code(*given: Any, code: object, **more: Any) -> RunSpec:
        return run_specs.run_spec(*given, **more)

    monkeypatch.setattr(preparation, "run_spec", without_code)
    assert logio(*RUN)[0] == 0
    edit(tmp_path, '"double"', '"text"')
    for command in (RUN, ("retry", "mine"), NEW):
        assert "Restore that version and `logio retry" in refused(logio, command, "price", "double", "text")
    assert types(store) == "double"


def test_every_change_is_named(logio: Logio, store: LogStore, tmp_path: Path) -> None:
    assert logio(*RUN)[0] == 0
    edit(tmp_path, '"double"', '"text"')
    edit(tmp_path, "records_per_event=10", "records_per_event=20")
    for command in (RUN, NEW):
        assert "records_per_event was 10, is now 20" in refused(logio, command, "price", "double", "text")
    assert types(store) == "double"
