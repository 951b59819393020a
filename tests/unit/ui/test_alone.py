"""`logio ui`: where it listens, and what it says when it cannot."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_logio.cli.app import commands
from airflow_logio.cli.page import retrying
from airflow_logio.errors import ConfigurationError, ProtocolViolation
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.ui.alone import LOOPBACK, serve
from airflow_logio.ui.looks import LogSource
from tests.support.page_readers import Retries
from tests.support.page_server import page_of
from tests.support.two_groups import TwoGroups


def test_a_port_that_is_taken_is_said(store: LogStore) -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} cannot be used: .* leave --port out"):
            serve(
                LogSource(lambda: store, None), Retries().retrying(), port, lambda _: pytest.fail("it said an address")
            )


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "airflow_logio.ui.alone", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    failed = CliRunner().invoke(commands(), ["ui"])
    assert isinstance(failed.exception, ConfigurationError)
    assert "the page needs uvicorn" in str(failed.exception) and "airflow-logio[ui]" in str(failed.exception)


def test_a_retry_is_the_command_in_a_process_of_its_own(
    flow: TwoGroups, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its sentence is the command's: that no process supervises what would be launched."""
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    monkeypatch.chdir(tmp_path)
    assert flow.store.park(flow.drivers["totals"].ref, "KeyError")
    with pytest.raises(
        ProtocolViolation, match=r"^run run-1 of sales was started by `logio run`, and no process supervises it"
    ):
        retrying(None).call(flow.store, flow.run, "totals")
    assert flow.store.group(flow.run.run_id, "totals").state is GroupState.PARKED


def test_its_address_names_this_machine_and_the_run(flow: TwoGroups, sqlite_url: str) -> None:
    with page_of(sqlite_url, flow.run.uid[:8]) as address:
        place, _, fragment = address.partition("#")
        assert place.startswith(f"http://{LOOPBACK}:")
        assert fragment.startswith("token=") and fragment.endswith(f"&run={flow.run.uid}")
        port = int(place.rstrip("/").rpartition(":")[2])
        with socket.create_connection((LOOPBACK, port), timeout=90) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
