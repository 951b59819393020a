"""What the tests of commands share: the log, and a command as one types it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from airflow_logio.cli import app
from airflow_logio.cli.app import main
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from demo.data import load_products

_commands = app.commands


@cache
def _command() -> Callable[..., Any]:
    """`logio`, made once: Typer makes all commands anew for each that is typed, which took a quarter of these tests' time."""
    return typer.main.get_command(_commands())


@pytest.fixture(scope="session")
def warehouse_with_products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first `logio run` of the sales pipeline makes of a warehouse, to be copied: it takes a second."""
    path = tmp_path_factory.mktemp("with-products") / "warehouse.db"
    load_products(f"sqlite:///{path}")
    return path


@pytest.fixture
def store(sqlite_url: str) -> Iterator[LogStore]:
    """The log, on SQLite."""
    opened = open_store(sqlite_url)
    yield opened
    opened.dispose()


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """One command: its exit code, and all that it has said."""

    def command(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["logio", *arguments])
        monkeypatch.setattr(app, "commands", _command)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err

    return command
