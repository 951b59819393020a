"""Sources that cannot be replayed, on real driver processes: an external system that is another one at every look.

The oracle is the journal of the external system. What stands in the warehouse must be, part by part, what one complete
read has returned, and that read must be the last one: a look after the effect was in the log would be a later one.
"""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch import bundle
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.supervision.tidying import tidy
from airflow_logio.systems.payloads import Payloads, clear_away
from tests.support.bundle.exchange import EMPTY_PART, PARTS, open_exchange
from tests.support.crash_sites import IN_PAYLOADS, IN_REMOVALS, IN_STORES
from tests.support.grocery import assert_exact, expected, write_slice, written
from tests.support.object_store import ObjectStore
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, Running, has_ended, running
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

pytestmark = pytest.mark.acceptance

EXCHANGE = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'exchange.py'}:exchange")
SHOP = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'shop.py'}:shop")
QUOTES = 100
BODIES = ("feed", "save")
"""The groups whose bodies are in the payload store, if they are large."""


@dataclass
class Journal:
    """What the external system has noted."""

    path: Path

    def query(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as database:
            return database.execute(statement).fetchall()

    def reads(self) -> dict[int, list[tuple[int, bool]]]:
        """Part → its reads in order: (read id, whether it was taken to the end)."""
        reads: dict[int, list[tuple[int, bool]]] = {}
        for part, read, complete in self.query("SELECT part, read_id, complete FROM look ORDER BY read_id"):
            reads.setdefault(part, []).append((read, bool(complete)))
        return reads

    def seen(self, read: int) -> set[Any]:
        return set(self.query(f"SELECT * FROM seen WHERE read_id = {int(read)}"))


@dataclass
class Watched:
    """A run of the exchange pipeline, with what to ask about it."""

    run: Running
    launcher: PlainLauncher
    journal: Journal
    warehouse_url: str
    payloads: str

    def files(self) -> list[str]:
        return Payloads(self.payloads).find(self.run.run.uid)

    def assert_exact_whoever_looks(self) -> None:
        """Each part is what one complete read has returned: a zombie may look at the next part beside its successor, and
        later than that, until it is told that it was replaced. Nothing of it is used."""
        reads = self.journal.reads()
        found = rows_of(self.warehouse_url, "SELECT part, id, read_id, price, padding FROM quotes")
        assert len(found) == len(set(found))
        for part in range(PARTS):
            complete = [self.journal.seen(read) for read, is_complete in reads[part] if is_complete]
            rows = {row for row in found if row[0] == part}
            assert rows in complete, f"part {part} is not what one of its complete reads returned: {reads[part]}"
            assert bool(rows) == (part != EMPTY_PART)

    def assert_exact(self) -> None:
        reads = self.journal.reads()
        assert sorted(reads) == list(range(PARTS))
        found = rows_of(self.warehouse_url, "SELECT part, id, read_id, price, padding FROM quotes")
        assert len(found) == len(set(found))
        for part, of_part in reads.items():
            last, complete = of_part[-1]
            assert complete, f"part {part} continued with a read that was not taken to its end"
            rows = {row for row in found if row[0] == part}
            assert rows == self.journal.seen(last), f"part {part} is not what read {last}, its last one, returned"
            assert bool(rows) == (part != EMPTY_PART)

    def assert_nothing_left(self) -> None:
        tidy(self.run.store, self.run.run.run_id, Payloads(self.payloads).remove)
        clear_away(self.payloads, self.run.store, self.run.run)
        assert self.files() == []


@pytest.fixture
def watch(log_url: str, tmp_path: Path) -> Any:
    """Starts a run; `padding` is the size of one row in characters. Payloads are in a folder if there are no `objects`."""

    @contextmanager
    def start(
        armed: dict[tuple[str, int], str],
        *,
        padding: int = 0,
        quotes: int = QUOTES,
        objects: ObjectStore | None = None,
        **more: Any,
    ) -> Iterator[Watched]:
        urls = {
            "exchange": open_exchange(tmp_path / "exchange.db", quotes),
            "warehouse": f"sqlite:///{tmp_path / 'quotes.db'}",
        }
        payloads = str(tmp_path / "payloads") if objects is None else f"s3://{objects.new_bucket()}/logio"
        variables = {} if objects is None else objects.variables
        launcher = PlainLauncher(tmp_path / "drivers", armed, everywhere=variables)
        settings = {"ref": EXCHANGE, "connections": urls, "params": {"padding": padding}, "payloads": payloads}
        with running(log_url, "", Path(), launcher, **settings, **more) as run:
            yield Watched(run, launcher, Journal(tmp_path / "exchange.db"), urls["warehouse"], payloads)

    return start


def test_without_a_crash_everything_is_read_once(watch: Any) -> None:
    with watch({}) as watched:
        watched.run.finish()
        assert [len(reads) for reads in watched.journal.reads().values()] == [1] * PARTS
        watched.assert_exact()
        assert watched.files() == [], "the drivers themselves have discarded what they had stored"


@pytest.mark.parametrize("point", IN_STORES)
def test_dying_around_a_stored_effect_twice(point: CrashPoint, watch: Any) -> None:
    armed = {("feed", 1): f"{point}:1", ("feed", 2): f"{point}:2"}
    with watch(armed) as watched:
        watched.run.finish()
        assert watched.run.status("feed").incarnation == 3, f"{point} was not passed"
        watched.assert_exact()
        counts = [len(reads) for reads in watched.journal.reads().values()]
        if point in {CrashPoint.BEFORE_STORE, CrashPoint.BEFORE_DROP, CrashPoint.AFTER_DROP}:
            assert counts == [1] * PARTS, "nothing was read when the driver died, or all of it was in the log"
        else:
            assert sum(counts) == PARTS + 2, "each death has cost one read"
        watched.assert_nothing_left()


@pytest.mark.parametrize("nth", [1, 2, 3, 5])
@pytest.mark.parametrize("point", [CrashPoint.BEFORE_COMMIT, CrashPoint.AFTER_COMMIT, CrashPoint.IN_LOG_TRANSACTION])
def test_dying_around_a_commit_twice(point: CrashPoint, nth: int, watch: Any) -> None:
    armed = {("feed", incarnation): f"{point}:{nth}" for incarnation in (1, 2)}
    with watch(armed) as watched:
        watched.run.finish()
        assert watched.run.status("feed").incarnation == 3, f"{point} was not passed {nth} times"
        watched.assert_exact()
        watched.assert_nothing_left()


@pytest.mark.parametrize("point", [CrashPoint.BEFORE_COMMIT, CrashPoint.AFTER_COMMIT, CrashPoint.BEFORE_WRITE])
def test_bodies_too_large_for_the_log(point: CrashPoint, watch: Any) -> None:
    """Events and write actions of two megabytes: their bodies are in the payload store, and go when no event needs them."""
    armed = {(group, incarnation): f"{point}:2" for group in ("feed", "save", "done") for incarnation in (1, 2)}
    with watch(armed, padding=100_000, quotes=40) as watched:
        watched.run.until(lambda: any("/bodies/" in path for path in watched.files()), "a body outside the log")
        watched.run.finish()
        assert watched.run.status("save").incarnation == 3
        watched.assert_exact()
        watched.assert_nothing_left()


@pytest.mark.parametrize("point", IN_PAYLOADS)
def test_dying_around_a_body_too_large_for_the_log_twice(point: CrashPoint, watch: Any) -> None:
    """A driver that dies leaves bodies that no row names: the next one clears them away, if it does not die of that, too."""
    armed = {(group, 1): f"{CrashPoint.AFTER_BODY}:2" for group in BODIES}
    armed |= {(group, incarnation): f"{point}:1" for group in BODIES for incarnation in (2, 3)}
    with watch(armed, padding=100_000, quotes=40) as watched:
        watched.run.finish()
        died = {group: watched.run.status(group).incarnation - 1 for group in BODIES}
        assert died == dict.fromkeys(BODIES, 3), f"{point} was not passed: {died}"
        watched.assert_exact()
        watched.assert_nothing_left()


@pytest.mark.postgres
@pytest.mark.parametrize("log_url", ["postgres"], indirect=True)
def test_effects_and_bodies_in_an_object_store(
    watch: Any, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over S3, with the clients that users have. This process sweeps and removes, as drivers do."""
    for name, value in objects.variables.items():
        monkeypatch.setenv(name, value)
    deaths = {
        "feed": (CrashPoint.IN_STORE, CrashPoint.AFTER_STORE, CrashPoint.AFTER_BODY),
        "save": (CrashPoint.BEFORE_BODY, CrashPoint.AFTER_BODY),
    }
    armed = {(group, n): f"{point}:1" for group, points in deaths.items() for n, point in enumerate(points, 1)}
    with watch(armed, padding=100_000, quotes=40, objects=objects) as watched:
        watched.run.finish()
        died = {group: watched.run.status(group).incarnation - 1 for group in deaths}
        assert died == {group: len(points) for group, points in deaths.items()}, "every one of them was passed"
        watched.assert_exact()
        watched.assert_nothing_left()


@pytest.mark.parametrize("point", IN_REMOVALS)
def test_dying_around_the_removal_of_collected_bodies_twice(point: CrashPoint, watch: Any) -> None:
    """One event is under way at a time, so that `save` waits for `done`, and lives when it collects what it has used."""
    armed = {("save", 1): f"{point}:1", ("save", 2): f"{point}:1", ("done", 1): f"{CrashPoint.AFTER_COMMIT}:2"}
    with watch(armed, padding=100_000, quotes=40, backlog=BacklogBound(events=1)) as watched:
        run, drivers = watched.run, watched.launcher.drivers
        run.until(lambda: run.is_running("save", 2), "save has died", "feed", "save")
        run.until(lambda: ("done", 1) in drivers, "done lets it continue", "done")
        assert drivers["done", 1].wait(timeout=60) == -signal.SIGKILL, "for an event or two"
        run.until(lambda: run.is_running("save", 3), "save has died again", "feed", "save")
        run.finish()
        assert run.status("save").incarnation == 3
        watched.assert_exact()
        watched.assert_nothing_left()


@pytest.mark.postgres
@pytest.mark.parametrize("log_url", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    ("point", "nth"), [(CrashPoint.IN_STORE, 2), (CrashPoint.AFTER_STORE, 1), (CrashPoint.BEFORE_DROP, 1)]
)
def test_a_zombie_that_goes_on_storing_changes_nothing(point: CrashPoint, nth: int, watch: Any) -> None:
    """Stopped around its stored effect, replaced without being ended, continued when its successor has swept."""
    with watch({("feed", 1): f"{point}:{nth}:stop"}, end_old_drivers=False, lease=Lease(6, 60)) as watched:
        run = watched.run
        run.until(lambda: run.is_running("feed"), "the source runs")
        zombie = run.process("feed")
        run.until(lambda: run.is_running("feed", 2) or run.status("feed").state == "finished", "the source is replaced")
        zombie.send_signal(signal.SIGCONT)
        run.finish()
        eventually(lambda: has_ended(zombie), what="the zombie ends", timeout=60)
        assert run.status("feed").incarnation == 2
        watched.assert_exact_whoever_looks()
        watched.assert_nothing_left()


@pytest.mark.parametrize("point", [CrashPoint.BEFORE_COMMIT, CrashPoint.AFTER_COMMIT])
def test_dying_between_the_files_of_a_replayable_source(
    point: CrashPoint, log_url: str, warehouse_url: str, tmp_path: Path
) -> None:
    """Three files, three read actions; each is read from where the log says, and the stream ends after the last."""
    for number in range(3):
        write_slice(tmp_path / f"part-{number}.parquet", 2_500, start=2_500 * number)
    pattern = tmp_path / "part-*.parquet"
    armed = {("ingest", incarnation): f"{point}:{incarnation + 1}" for incarnation in (1, 2, 3)}
    bound = BacklogBound(events=2)  # or one slow commit takes so many of its 30 events that too few commits are left
    launcher = PlainLauncher(tmp_path / "drivers", armed)
    with running(log_url, warehouse_url, pattern, launcher, backlog=bound) as run:
        run.finish()
        assert run.status("ingest").incarnation == 4, f"{point} was not passed"
    assert written(warehouse_url).hourly == expected(pattern, PLAIN_RECORDS_PER_BATCH).hourly


@pytest.mark.parametrize("point", [CrashPoint.AFTER_STORE, CrashPoint.AFTER_COMMIT])
def test_queries_of_a_database(point: CrashPoint, log_url: str, tmp_path: Path) -> None:
    """One group reads by two queries, of both kinds; each row of the database comes out once."""
    rows = {(key, f"item {key}") for key in range(1_050)}
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
        database.executemany("INSERT INTO item VALUES (?, ?)", sorted(rows))
        database.commit()
    urls = {"shop": f"sqlite:///{tmp_path / 'shop.db'}", "warehouse": f"sqlite:///{tmp_path / 'warehouse.db'}"}
    launcher = PlainLauncher(tmp_path / "drivers", {("read", incarnation): f"{point}:1" for incarnation in (1, 2)})
    settings = {"ref": SHOP, "connections": urls, "params": {"least": 50}, "payloads": str(tmp_path / "payloads")}
    with running(log_url, "", Path(), launcher, **settings) as run:
        run.finish()
        assert run.status("read").incarnation == 3
    with closing(sqlite3.connect(tmp_path / "warehouse.db")) as database:
        sales, stock = (database.execute(f"SELECT id, name FROM {table}").fetchall() for table in ("sales", "stock"))
    assert (len(sales), set(sales)) == (1_050, rows)
    assert (len(stock), set(stock)) == (1_000, {row for row in rows if row[0] >= 50})


def test_a_file_overwritten_in_place_while_its_driver_reads_it_parks_the_group_and_resumes_when_it_is_back(
    log_url: str, warehouse_url: str, tmp_path: Path
) -> None:
    """Back-pressure holds the source when the file is overwritten: what it reads then reaches no table."""
    path = write_slice(tmp_path / "transactions.parquet", 20_000)
    original, other = path.read_bytes(), write_slice(tmp_path / "other.parquet", 20_000, start=20_000).read_bytes()
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(log_url, warehouse_url, path, launcher, backlog=BacklogBound(events=8)) as run:
        run.until(lambda: run.is_running("ingest") and run.count("ingest.out", "out") > 3, "ingest reads", "ingest")
        overwrite(path, other)
        run.until(lambda: run.status("ingest").state is GroupState.PARKED, "ingest notices it")
        assert "SourceChanged" in (run.status("ingest").error or "")
        overwrite(path, original)
        run.relaunch("ingest")
        run.finish()
    assert_exact(warehouse_url, path, PLAIN_RECORDS_PER_BATCH)


def overwrite(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
