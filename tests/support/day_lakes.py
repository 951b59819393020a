"""Days of a lake, in a folder or in a bucket: the runs that compute them, and what readers find there, by DuckDB."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from airflow_logio import Days, published_files
from airflow_logio.launch.bundle import PipelineRef, parse_ref
from airflow_logio.launch.driver_process import server_recipe
from airflow_logio.launch.shared_server import ServerClient, end, known
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.liveness import Lease
from airflow_logio.store.records.driver_records import GroupRef
from tests.support.frame_groups import query
from tests.support.object_store import ObjectStore
from tests.support.running import ArmedSparkLauncher, Running, has_ended, running
from tests.support.waiting import eventually

DAY, NEXT_DAY = (Days("day").key_of(day) for day in ("2024-03-09", "2024-03-10"))
COLUMNS = "id, epoch_us(ts), store, cents"

LEASE = Lease(seconds=600, launch_seconds=600)
"""Nothing is found dead by it: the test says what is taken for dead, and when."""
Rows = list[tuple[Any, ...]]


def pipeline(name: str) -> PipelineRef:
    return parse_ref(f"{Path(__file__).parent / 'bundle' / 'lake_days.py'}:{name}")


class Place(ABC):
    """Where drivers publish. Files are named as DuckDB opens them."""

    url: str
    settings: SparkSettings
    """How its drivers are launched."""

    @abstractmethod
    def counted(self, part: str) -> Sequence[str]:
        """The files that count, by the receipts."""

    @abstractmethod
    def listed(self, part: str) -> Sequence[str]:
        """The files that a reader finds who lists."""

    @abstractmethod
    def names(self) -> Sequence[str]:
        """Of all that is there."""


class Folder(Place):
    def __init__(self, folder: Path, settings: SparkSettings) -> None:
        folder.mkdir()
        self._folder, self.url, self.settings = folder, str(folder), settings

    def counted(self, part: str) -> Sequence[str]:
        return [file.path for file in published_files(self._folder / part)]

    def listed(self, part: str) -> Sequence[str]:
        return [str(path) for path in (self._folder / part).rglob("*.parquet")]

    def names(self) -> Sequence[str]:
        return [str(path.relative_to(self._folder)) for path in self._folder.rglob("*") if path.is_file()]


class Bucket(Place):
    """This process finds credentials as drivers do, at home."""

    def __init__(self, objects: ObjectStore, scratch: Path, settings: SparkSettings) -> None:
        self.url, self.settings = objects.new_url("lake"), settings
        self._base, _, self._options = self.url.partition("?")
        self._files, self._scratch = objects.files(), scratch

    def counted(self, part: str) -> Sequence[str]:
        found = published_files(f"{self._base}/{part}?{self._options}")
        return self._copied([file.path.removeprefix(f"{self._base}/") for file in found])

    def listed(self, part: str) -> Sequence[str]:
        return self._copied([name for name in self.names() if name.startswith(part) and name.endswith(".parquet")])

    def names(self) -> Sequence[str]:
        root = self._base.removeprefix("s3://")
        found = self._files.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
        return [info.path.removeprefix(f"{root}/") for info in found if info.is_file]

    def _copied(self, names: Sequence[str]) -> Sequence[str]:
        copies = Path(tempfile.mkdtemp(dir=self._scratch))
        root = self._base.removeprefix("s3://")
        for name in names:
            (copies / name).parent.mkdir(parents=True, exist_ok=True)
            with self._files.open_input_stream(f"{root}/{name}") as stream:
                (copies / name).write_bytes(stream.read())
        return [str(copies / name) for name in names]


class DayLake:
    """One day of a lake, and the runs that compute it from orders that are named as they are."""

    def __init__(self, root: Path, log_url: str, place: Place) -> None:
        self.place, self.payloads = place, root / "payloads"
        self._root, self.log_url = root, log_url

    def run(
        self,
        name: str,
        orders: tuple[pa.Table, ...],
        armed: Mapping[int, str] | None = None,
        *,
        log_url: str = "",
        **settings: Any,
    ) -> Any:
        """With drivers that die where they are armed, by incarnation; of another log, if it is given."""
        where = self.orders(name)
        where.mkdir()
        for number, table in enumerate(orders):
            pq.write_table(table, where / f"{number}.parquet")
        points = {("all", one): point for one, point in (armed or {}).items()}
        given = {
            "ref": pipeline("days"),
            "partition": DAY,
            "params": {"orders": str(where)},
            "connections": {"lake": self.place.url},
            "payloads": str(self.payloads),
            "spark": self.place.settings,
            "lease": LEASE,
            "name": name,
            **settings,
        }
        launcher = ArmedSparkLauncher(self._root / "drivers" / name, points)  # with a run, all that are below it end
        return running(log_url or self.log_url, "", where, launcher, **given)

    def orders(self, name: str) -> Path:
        return self._root / f"orders_{name}"

    # --- what is there, and what is to be there -----------------------------------------------------------------------

    def counted(self) -> Rows:
        return _read(self.place.counted(f"kept/day={DAY.text}"))

    def listed(self) -> Rows:
        return _read(self.place.listed("kept"))

    def expected(self, name: str) -> Rows:
        """Those of the run of that name that are of its day."""
        day = f"WHERE ts::DATE = DATE '{DAY.text}'"
        return query(f"SELECT {COLUMNS} FROM '{self.orders(name)}/*.parquet' {day} ORDER BY ALL")

    def late(self) -> Rows:
        """Orders of other days than their run's that count."""
        try:
            return _read(self.place.counted("late"))
        except FileNotFoundError:
            return []

    def late_listed(self) -> Rows:
        return _read(self.place.listed("late"))

    def expected_late(self, **days: str) -> Rows:
        """Those of runs by their names, each of its day."""
        parts = [
            f"SELECT {COLUMNS} FROM '{self.orders(name)}/*.parquet' WHERE ts::DATE <> DATE '{day}'"
            for name, day in days.items()
        ]
        return query(f"{' UNION ALL '.join(parts)} ORDER BY ALL")

    def assert_is(self, name: str) -> None:
        """The day is that run's, for readers who list as well."""
        assert self.counted() == self.listed() == self.expected(name) != []


def _read(files: Sequence[str]) -> Rows:
    if not files:
        return []
    return query(f"SELECT {COLUMNS} FROM read_parquet({list(files)}, hive_partitioning=true) ORDER BY ALL")


@contextmanager
def shared_server(folder: Path) -> Iterator[SparkSettings]:
    """How drivers are launched that are clients of one Spark Connect server, whichever run they are of."""
    recipe = server_recipe(folder, SparkSettings(connect=True, master="local[2]"), key="key")
    address = ServerClient(recipe).connected()
    try:
        yield SparkSettings(master=address.url, token=address.token)
    finally:
        started = known(Path(recipe.folder))
        assert started is not None
        end(started)


# --- drivers that stand still -----------------------------------------------------------------------------------------


def until_stopped(run: Running, incarnation: int = 1) -> psutil.Process:
    """The driver stands still where it is armed to."""
    run.until(lambda: run.is_running("all", incarnation), f"driver {incarnation} runs", timeout=300)
    process = run.process("all")
    run.until(lambda: process.status() == psutil.STATUS_STOPPED, f"driver {incarnation} stands still", timeout=300)
    return process


def take_for_dead(run: Running, incarnation: int = 1) -> None:
    """It may live."""
    assert run.store.declare_dead(GroupRef(run.run.run_id, "all", incarnation), "test")


def wake(process: psutil.Process) -> None:
    """One that stands still, and was replaced: it continues, finds that out, and ends."""
    process.resume()
    eventually(lambda: has_ended(process), what="it has ended", timeout=120)
