"""Fixtures that all tests share: databases, and the log on each of its three stores."""

from __future__ import annotations

import gc
import json
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.rules.session_rules import Patience
from airflow_logio.store.sql import migrate
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support import compiled_once, left_behind, tiers
from tests.support.kubernetes.api_server import ApiServer, api_server
from tests.support.kubernetes.client import Api
from tests.support.logs import assert_counted
from tests.support.object_store import ObjectStore, object_store, s3proxy, why_no_s3proxy
from tests.support.postgres import RUNNING, PostgresServer
from tests.support.tiers import Tier

SQL = [pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.postgres)]
STORES = [pytest.param("memory"), *SQL]
QUICK = Patience(total_seconds=30, first_wait_seconds=0.01, longest_wait_seconds=0.1)
"""As patient as a test can be: a minute's outage is seconds here."""

compiled_once.install()


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("objects")) as store:
        yield store


@pytest.fixture(scope="session")
def proxied_objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """Another server than that of `objects`, which checks what it is asked."""
    if why := why_no_s3proxy():
        pytest.skip(why)
    with s3proxy(tmp_path_factory.mktemp("proxied")) as store:
        yield store


@pytest.fixture
def small_server() -> Iterator[ApiServer]:
    """A small API server of Kubernetes, which anyone may ask anything."""
    with api_server() as server:
        yield server


@pytest.fixture
def small_api(small_server: ApiServer) -> Iterator[Api]:
    api = Api(small_server.url)
    yield api
    api.close()


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts commands in the background with SIGINT ignored; their children inherit that, and hear no Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.tier != Tier.SLICE:  # what `make test` leaves out has not been looked through
        config.pluginmanager.register(left_behind)  # a session's fixtures do not know the hooks of this file


# --- tiers ------------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier", choices=list(Tier), default=Tier.ALL, help="which tests are run (tests/support/tiers.py)"
    )
    parser.addoption("--tree", default="", help="the state of the tree, for which a slice is drawn")
    parser.addoption("--tiers-to", metavar="FILE", help="write each collected test with its tiers (.ci/promises)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.option.tier == Tier.FAST and tiers.is_heavy(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.mark(items)
    if config.option.tiers_to:
        Path(config.option.tiers_to).write_text(json.dumps(tiers.of_each(items)), encoding="utf-8")
    tier = config.option.tier
    if "soak" not in config.option.markexpr:  # a `-m` of the user's replaces the one in pyproject.toml
        _keep(config, items, lambda item: item.get_closest_marker("soak") is None)
    if tier in (Tier.FAST, Tier.TEST):
        left = set(tiers.left_out(items))
        _keep(config, items, lambda item: item not in left)
    if tier == Tier.SLICE:
        slice_ = set(tiers.drawn(items, config.option.tree))
        _keep(config, items, slice_.__contains__)
    if tier == Tier.FAST:
        _keep(config, items, tiers.is_fast)
        if "airflow" in sys.modules:
            raise pytest.UsageError("a module of the fast tier imports Airflow: see PLACES in tests/support/tiers.py")


def _keep(config: pytest.Config, items: list[pytest.Item], wanted: Callable[[pytest.Item], bool]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if not wanted(item)])
    items[:] = filter(wanted, items)


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
def pytest_long_ones_first(config: pytest.Config, items: list[pytest.Item]) -> None:
    """When `-m` and `-k` have chosen. (pytest overlooks hooks whose names do not begin with its own.)"""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = tiers.dealt(items, workers)


def pytest_collectstart() -> None:
    """What is collected stays: to look for garbage in it, again and again, took half of the time, in each worker."""
    gc.disable()


def pytest_collection_finish() -> None:
    """No later search for garbage has to look at these 800,000 objects, and there are fewer searches: they took a tenth of
    the tests' time that is no server's, no driver's and no JVM's."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 20)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails says what the PostgreSQL of its session has last said: whether it has crashed, for example."""
    report = yield
    if report.failed and item.get_closest_marker("postgres") is not None:
        report.sections += [("PostgreSQL", one.last_words()) for one in RUNNING]
    return report


def pytest_runtest_teardown(item: pytest.Item) -> None:
    if item.config.option.tier == Tier.FAST:
        tiers.assert_light(item, sys.modules)


# --- databases and logs -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The session's PostgreSQL server, started when the first test asks for it."""
    server = PostgresServer(in_memory=True)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.destroy()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A PostgreSQL database of this test's own, with the tables of the log."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sqlite-template")
    migrate.upgrade(f"sqlite:///{folder}/log.db")
    return folder


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """An SQLite file of this test's own, with the tables of the log."""
    folder = tmp_path / "log"
    shutil.copytree(sqlite_template, folder)
    return f"sqlite:///{folder}/log.db"


@pytest.fixture(params=SQL)
def log_url(request: pytest.FixtureRequest) -> str:
    """A log database with its tables, on SQLite and on PostgreSQL."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=STORES)
def log_store(request: pytest.FixtureRequest) -> Iterator[LogStore]:
    """An empty log, in memory, on SQLite and on PostgreSQL."""
    store: LogStore
    if request.param == "memory":
        store = MemoryLogStore()
    else:
        url = str(request.getfixturevalue(f"{request.param}_url"))
        store = open_store(url, application="logio test", patience=QUICK)
    yield store
    if isinstance(store, SqlLogStore):
        assert_counted(store)
    store.dispose()
