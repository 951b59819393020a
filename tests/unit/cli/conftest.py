"""What the tests of commands share: the log, and a command as one types it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from airflow_logio.cli.app import main
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore


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
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err

    return command
