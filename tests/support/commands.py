"""`logio` from within a test, on the log and the warehouse of a run, with the test's own way to start drivers."""

from __future__ import annotations

import pytest

from airflow_logio.cli import preparation
from airflow_logio.cli.app import main
from airflow_logio.launch import spark_submit
from tests.support.running import Running


class Terminal:
    """Commands as a person gives them."""

    def __init__(self, run: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        use(run, monkeypatch)

    def logio(self, *arguments: str) -> tuple[int, str, str]:
        """One command: exit code, standard output, standard error."""
        self._capsys.readouterr()
        self._monkeypatch.setattr("sys.argv", ["logio", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self._capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err


def use(run: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find the run's log and warehouse, and start drivers as the run does."""
    monkeypatch.setenv("LOGIO_URL", run.context.log_url)
    for name, url in run.context.connections.items():
        monkeypatch.setenv(f"LOGIO_CONN_{name.upper()}", url)
    monkeypatch.setattr(preparation, "LocalProcessLauncher", lambda _: run.context.launcher)
    monkeypatch.setattr(spark_submit, "check", lambda _: None)
