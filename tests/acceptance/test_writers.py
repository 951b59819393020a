"""External systems of an author's own, with every guarantee, on real driver processes; compared with DuckDB's answer."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest
from pyarrow import fs
from sqlalchemy import text

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.launch.driver_config import REPLACED
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.sql.engines import log_engine
from tests.support.crash_sites import IN_EXTERNAL_WRITES, IN_PARKS, IN_QUESTIONS
from tests.support.object_store import ObjectStore
from tests.support.running import PlainLauncher, Running, running

pytestmark = pytest.mark.acceptance

OWN_SYSTEMS = parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'own_systems.py'}:pipeline")
RECORDS_PER_EVENT = 250
WRITERS = ("books", "lake")


@dataclass(frozen=True)
class Systems:
    """The external systems of a run, below one folder."""

    folder: Path
    lake: str | None = None
    """Where its files are if not in the folder; `bring` copies them there."""

    @classmethod
    def make(cls, folder: Path) -> Systems:
        (folder / "lake").mkdir(parents=True)
        (folder / "atlas").write_text(json.dumps({store: f"region {store % 7}" for store in range(40_000)}))
        return cls(folder)

    @property
    def connections(self) -> dict[str, str]:
        found = {name: str(self.folder / name) for name in ("ledger", "journal", "lake", "atlas")}
        return found if self.lake is None else found | {"lake": self.lake}

    def bring(self, objects: ObjectStore) -> None:
        """Copy the lake's files out of an object store, for DuckDB."""
        assert self.lake is not None
        source = self.lake.removeprefix("s3://")
        fs.copy_files(source, str(self.folder / "lake"), source_filesystem=objects.files())

    def leave(self, name: str) -> None:
        Path(f"{self.folder / name}.away").touch()

    def come_back(self, name: str) -> None:
        Path(f"{self.folder / name}.away").unlink()

    def postings(self) -> list[tuple[int, int]]:
        """(number, quantity) in the order of arrival."""
        return self._rows("ledger", "SELECT number, quantity FROM postings ORDER BY rowid")

    def _rows(self, name: str, query: str) -> list[tuple[int, int]]:
        with contextlib.closing(sqlite3.connect(self.folder / name)) as client:
            return client.execute(query).fetchall()

    def assert_exact(self, transactions: Path) -> None:
        """Every event arrived once, in order, with its own records, in each system, and nothing half-written is left."""
        self.assert_exact_for_readers(transactions)
        assert not list(self.folder.rglob("*.tmp"))

    def assert_exact_for_readers(self, transactions: Path) -> None:
        """As above; a zombie that ends while it writes may leave a hidden file behind its successor."""
        wanted = f"""
            SELECT file_row_number // {RECORDS_PER_EVENT} + 1 AS event, store_id,
                   'region ' || (store_id % 7) AS region, quantity::bigint AS quantity
            FROM read_parquet('{transactions}', file_row_number = true)"""
        lake = f"{self.folder}/lake/sales/*/lake/*.parquet"
        files = f"""
            SELECT regexp_extract(filename, '([0-9]+).parquet', 1)::bigint, store_id, region, quantity::bigint
            FROM read_parquet('{lake}', filename = true)"""
        with duckdb.connect() as connection:
            sums = f"SELECT event, sum(quantity)::bigint FROM ({wanted}) GROUP BY event ORDER BY event"
            events = connection.execute(sums).fetchall()
            found = sorted(connection.execute(files).fetchall())
            assert found == sorted(connection.execute(wanted).fetchall())
        assert self.postings() == events
        assert self._rows("journal", "SELECT number, quantity FROM entries ORDER BY rowid") == events


@pytest.fixture
def systems(tmp_path: Path) -> Systems:
    return Systems.make(tmp_path / "systems")


def started(log_url: str, systems: Systems, transactions: Path, launcher: PlainLauncher, **settings: Any) -> Any:
    settings = {"ref": OWN_SYSTEMS, "connections": systems.connections, **settings}
    return running(log_url, "", transactions, launcher, **settings)


def reads_logged(log_url: str) -> list[str]:
    engine = log_engine(log_url)
    with engine.connect() as connection:
        found = (
            connection.execute(text("SELECT action_desc FROM logio_read_action WHERE op = 'regions'")).scalars().all()
        )
    engine.dispose()
    return [str(row) for row in found]


POINTS = [
    CrashPoint.BEFORE_COMMIT,
    CrashPoint.AFTER_COMMIT,
    CrashPoint.BEFORE_WRITE,
    *IN_EXTERNAL_WRITES,
    CrashPoint.AFTER_WRITE,
]


@pytest.mark.parametrize("point", POINTS)
def test_dying_around_a_write_action_twice_changes_nothing(
    point: CrashPoint, log_url: str, systems: Systems, small_transactions: Path, tmp_path: Path
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers", {(group, i): f"{point}:2" for group in WRITERS for i in (1, 2)})
    with started(log_url, systems, small_transactions, launcher) as run:
        run.finish()
        died = {group: run.status(group).incarnation for group in WRITERS}
    systems.assert_exact(small_transactions)
    assert all(incarnation == 3 for incarnation in died.values()), f"{point} was not passed: {died}"


def test_dying_around_files_in_an_object_store_changes_nothing(
    sqlite_url: str, objects: ObjectStore, systems: Systems, small_transactions: Path, tmp_path: Path
) -> None:
    systems = replace(systems, lake=f"s3://{objects.new_bucket()}/lake")
    points = (CrashPoint.BEFORE_WRITE, CrashPoint.IN_EXTERNAL_WRITE, CrashPoint.AFTER_WRITE)
    armed = {("lake", incarnation): f"{point}:2" for incarnation, point in enumerate(points, 1)}
    launcher = PlainLauncher(tmp_path / "drivers", armed, everywhere=objects.variables)
    with started(sqlite_url, systems, small_transactions, launcher) as run:
        run.finish()
        assert run.status("lake").incarnation == 4, "one of the points was not passed"
    systems.bring(objects)
    systems.assert_exact(small_transactions)


@pytest.mark.parametrize("point", IN_QUESTIONS)
def test_dying_around_the_question_what_was_written_twice(
    point: CrashPoint, log_url: str, systems: Systems, small_transactions: Path, tmp_path: Path
) -> None:
    """The first driver leaves a group of write actions half executed; the next two ask, and die of it."""
    armed = {("books", 1): f"{CrashPoint.IN_EXTERNAL_WRITE}:1", ("books", 2): f"{point}:1", ("books", 3): f"{point}:1"}
    with started(log_url, systems, small_transactions, PlainLauncher(tmp_path / "drivers", armed)) as run:
        run.finish()
        assert run.status("books").incarnation == 4, f"{point} was not passed"
    systems.assert_exact(small_transactions)


@pytest.mark.parametrize("point", IN_PARKS)
def test_dying_around_the_end_that_a_person_is_needed_for_twice(
    point: CrashPoint, log_url: str, systems: Systems, small_transactions: Path, tmp_path: Path
) -> None:
    """Before the log says that the group is parked it is recovered, and finds the same; behind it, a person retries."""
    systems.leave("ledger")
    launcher = PlainLauncher(tmp_path / "drivers", {("books", n): f"{point}:1" for n in (1, 2)})
    with started(log_url, systems, small_transactions, launcher, replay_seconds=0.3) as run:
        if point is CrashPoint.AFTER_PARK:
            for incarnation in (1, 2):
                parked(run, "books")
                assert launcher.drivers["books", incarnation].wait(timeout=60) == -signal.SIGKILL
                run.relaunch("books")
        parked(run, "books")
        assert run.status("books").incarnation == 3, f"{point} was not passed"
        systems.come_back("ledger")
        run.relaunch("books")
        run.finish()
        assert run.status("books").incarnation == 4
    systems.assert_exact(small_transactions)


@pytest.mark.parametrize("name", ["ledger", "journal", "atlas"])
def test_a_system_that_is_away_for_a_while_is_waited_for(
    name: str, sqlite_url: str, systems: Systems, small_transactions: Path, tmp_path: Path
) -> None:
    systems.leave(name)
    group = "lake" if name == "atlas" else "books"
    with started(sqlite_url, systems, small_transactions, PlainLauncher(tmp_path / "drivers")) as run:
        run.until(lambda: "replaying (attempt 3)" in run.log_of(group), f"{name} is tried again and again")
        systems.come_back(name)
        run.finish()
        assert [run.status(one).incarnation for one in run.groups] == [1, 1, 1]
    systems.assert_exact(small_transactions)


@pytest.mark.parametrize("name", ["ledger", "atlas"])
def test_a_group_whose_system_stays_away_is_parked_and_goes_on_exactly_when_retried(
    name: str, log_url: str, systems: Systems, small_transactions: Path, tmp_path: Path
) -> None:
    group = "lake" if name == "atlas" else "books"
    launcher = PlainLauncher(tmp_path / "drivers")
    with started(log_url, systems, small_transactions, launcher, replay_seconds=1.5) as run:
        if name == "ledger":
            run.until(lambda: run.count("ledger.ledger", "write") > 0, "the ledger has begun")
        systems.leave(name)
        parked(run, group)
        status = run.status(group)
        assert status.error is not None
        assert "is still unavailable" in status.error
        assert "`logio retry` resumes it" in status.error
        assert ("operator 'ledger', connection 'ledger', write action" in status.error) is (name == "ledger")
        systems.come_back(name)
        run.relaunch(group)
        run.finish()
        assert run.status(group).incarnation == 2, "once by hand, never by a supervisor"
    systems.assert_exact(small_transactions)


def parked(run: Running, group: str) -> None:
    run.until(lambda: run.status(group).state is GroupState.PARKED, f"{group} is parked")


def test_an_error_of_the_authors_code_names_the_write_actions_and_uses_up_the_budget(
    sqlite_url: str, systems: Systems, small_transactions: Path, tmp_path: Path
) -> None:
    with contextlib.closing(sqlite3.connect(systems.folder / "ledger")) as client:
        client.execute("CREATE TABLE postings (note TEXT)")
    launcher = PlainLauncher(tmp_path / "drivers")
    with started(sqlite_url, systems, small_transactions, launcher, recoveries=1) as run:
        parked(run, "books")
        error = run.status("books").error or ""
        assert "operator 'ledger', connection 'ledger', write action" in error
        assert "OperationalError: " in error
        with contextlib.closing(sqlite3.connect(systems.folder / "ledger")) as client:
            client.execute("DROP TABLE postings")
        run.relaunch("books")
        run.finish()
    systems.assert_exact(small_transactions)


@pytest.mark.postgres
@pytest.mark.parametrize("point", [CrashPoint.BEFORE_WRITE, CrashPoint.IN_EXTERNAL_WRITE])
def test_a_zombie_of_a_writer_of_files_writes_what_its_successor_has_written(
    point: CrashPoint, postgres_url: str, systems: Systems, small_transactions: Path, tmp_path: Path
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers", {("lake", 1): f"{point}:2:stop"})
    lease = Lease(seconds=6, launch_seconds=60)
    with started(postgres_url, systems, small_transactions, launcher, lease=lease, end_old_drivers=False) as run:
        run.until(lambda: run.is_running("lake"), "lake runs")
        zombie = run.process("lake")
        run.until(lambda: zombie.status() == psutil.STATUS_STOPPED, f"lake has stopped at {point}")
        run.finish()
        zombie.send_signal(signal.SIGCONT)
        child = next(child for child in launcher.children if child.pid == zombie.pid)
        assert child.wait(timeout=60) == REPLACED, run.log_of("lake")
    systems.assert_exact_for_readers(small_transactions)


def test_every_lookup_is_a_read_action_of_the_log(
    sqlite_url: str, systems: Systems, small_transactions: Path, tmp_path: Path
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers")
    with started(sqlite_url, systems, small_transactions, launcher) as run:
        run.finish()
        described = [json.loads(row) for row in reads_logged(sqlite_url)]
    assert len(described) == 20_000 // RECORDS_PER_EVENT
    assert described[0]["function"] == "regions"
    assert described[0]["description"] == {"file": "regions"}
    assert described[0]["keys"] > 0
