"""What the demonstration tells its Airflow: connections, settings, nothing of ours on a command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_logio.errors import ConfigurationError
from demo.places import Places
from demo.standalone import Standalone, environment, free_port, log_connection, warehouse_connection
from tests.support.waiting import eventually


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path, tmp_path / "dags", f"sqlite:///{tmp_path}/log.db", f"sqlite:///{tmp_path}/warehouse.db")


def test_sqlite_files_become_connections() -> None:
    assert json.loads(log_connection("sqlite:////x/log.db")) == {"conn_type": "logio", "extra": {"path": "/x/log.db"}}
    assert json.loads(warehouse_connection("sqlite:////x/w.db")) == {"conn_type": "sqlite", "host": "/x/w.db"}


def test_servers_become_fields() -> None:
    made = json.loads(warehouse_connection("postgresql://me:s%40fe@db:5433/sales?sslmode=require"))
    assert made == {
        "conn_type": "postgres",
        "host": "db",
        "port": 5433,
        "schema": "sales",
        "login": "me",
        "password": "s@fe",
        "extra": {"sslmode": "require"},
    }
    assert json.loads(log_connection("postgresql://me@db/sales"))["conn_type"] == "logio"


def test_what_has_no_fields_is_named_by_its_url() -> None:
    made = json.loads(log_connection("postgresql://me:safe@/sales?host=/var/run/postgresql"))
    assert made["extra"]["sqlalchemy_url"] == "postgresql+psycopg2://me:safe@/sales?host=%2Fvar%2Frun%2Fpostgresql"


def test_an_unusable_url_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigurationError) as refused:
        log_connection("mysql://me:geheim@db/sales")
    assert "geheim" not in str(refused.value)


def test_the_instance_is_isolated(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "of another Airflow")
    monkeypatch.setenv("AIRFLOW_HOME", "/of/another/Airflow")
    made = environment(places, 8080)
    assert made["AIRFLOW_HOME"] == str(places.airflow_home)
    assert "AIRFLOW__CORE__FERNET_KEY" not in made
    assert made["AIRFLOW__LOGIO__WORK_DIR"] == str(places.drivers)
    assert made["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert environment(places, 8080)["AIRFLOW__API_AUTH__JWT_SECRET"] == made["AIRFLOW__API_AUTH__JWT_SECRET"]


def test_a_taken_port_is_replaced_by_another() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = int(taken.getsockname()[1])
        assert free_port(wanted) not in (0, wanted)


def test_stopping_ends_what_an_earlier_instance_left(places: Places) -> None:
    """A process of the same home, whose parent is gone; it has a session of its own."""
    left = subprocess.Popen(
        ["sleep", "600"],
        env={"AIRFLOW_HOME": str(places.airflow_home), "PATH": os.environ["PATH"]},
        start_new_session=True,
    )
    other = subprocess.Popen(["sleep", "600"], env={"AIRFLOW_HOME": "/elsewhere", "PATH": os.environ["PATH"]})
    try:
        Standalone(places).stop()
        assert eventually(lambda: left.poll() is not None, what="it has ended")
        assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.wait()
