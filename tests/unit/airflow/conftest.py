"""An Airflow home of these tests' own, before anything imports airflow; and a log, a DAG and a launcher for operators."""

from __future__ import annotations

import os
import tempfile

_HOME = tempfile.mkdtemp(prefix="logio-airflow-home-")
os.environ.update(
    AIRFLOW_HOME=_HOME,
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__API_AUTH__JWT_SECRET="of these tests",  # tasks that run in this process ask for it below Airflow 3.3
    AIRFLOW__LOGIO__POLL_INTERVAL="0.01",
)

import atexit  # noqa: E402
import shutil  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
from airflow import settings  # noqa: E402
from airflow.models import import_all_models  # noqa: E402
from airflow.models.base import Base  # noqa: E402
from sqlalchemy import event  # noqa: E402

from airflow_logio.store import open_store  # noqa: E402
from airflow_logio.store.port import LogStore  # noqa: E402
from airflow_logio.triggers import base, group, log_poller  # noqa: E402
from tests.support.airflow_connections import connection  # noqa: E402
from tests.unit.airflow.support import FakeLauncher  # noqa: E402

atexit.register(shutil.rmtree, _HOME, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_connections_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections come from the environment of one test only."""
    for name in [name for name in os.environ if name.startswith("AIRFLOW_CONN_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_executor_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triggers of these tests wake their tasks as soon as they find something."""
    monkeypatch.setattr(base, "SETTLING_SECONDS", 0.0)
    monkeypatch.setattr(group, "LAST_WORDS_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def no_poller_left_over() -> Iterator[None]:
    """Whatever a test does to triggers, they leave their poller."""
    yield
    assert not log_poller._pollers


@pytest.fixture
def log(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogStore]:
    """A log in SQLite, known to Airflow as `logio_default`; the warehouse of the test pipeline is `warehouse_db`."""
    path = sqlite_url.removeprefix("sqlite:///")
    monkeypatch.setenv("AIRFLOW_CONN_LOGIO_DEFAULT", connection("logio", extra={"path": path}))
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE_DB", connection("sqlite", host=path + ".warehouse"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection("spark", host="local[1]"))
    store = open_store(sqlite_url, application="test")
    yield store
    store.dispose()


@pytest.fixture
def launcher() -> Iterator[FakeLauncher]:
    fake = FakeLauncher()
    yield fake
    fake.end_all()


@pytest.fixture
def airflow_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Airflow's own database, with nothing in it."""
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{tmp_path / 'airflow.db'}")
    settings.configure_vars()
    settings.configure_orm()
    import_all_models()
    event.listen(settings.engine, "connect", lambda made, _: made.execute("PRAGMA synchronous = OFF"))
    Base.metadata.create_all(settings.engine)
    yield
    settings.Session.remove()
    settings.engine.dispose()
    monkeypatch.delenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN")
    settings.configure_vars()
    settings.configure_orm()
