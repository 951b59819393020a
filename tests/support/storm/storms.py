"""One storm: a random pipeline runs to its end in random weather, and what it leaves is compared with the oracle."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.states import GroupState
from airflow_logio.runtime.figures.lineage_records import records
from airflow_logio.runtime.figures.run_summary import Outcome
from airflow_logio.runtime.launch import bundle
from airflow_logio.runtime.launch.code_bundle import collect
from airflow_logio.runtime.launch.launcher import LaunchContext, launch_group
from airflow_logio.runtime.launch.start_run import run_spec
from airflow_logio.runtime.supervision.local_run import LocalRun
from airflow_logio.store.lineage.authored_result import as_authored
from airflow_logio.store.lineage.queries import backward
from airflow_logio.store.lineage.result import EventNode
from airflow_logio.store.sql.store import SqlLogStore
from tests.store.small_disk import SmallFolder
from tests.support.logs import open_sql_store
from tests.support.postgres import PostgresServer
from tests.support.running import PlainLauncher
from tests.support.storm.oracle import Made, SourceEvent, after, records_of, results
from tests.support.storm.pipelines import COLUMNS
from tests.support.storm.shape import Shape, drawn
from tests.support.storm.weather import LEASE, Weather, armed
from tests.support.warehouse import rows_of

Row = tuple[int, ...]
SPELLS = 60
"""After so many ends of a supervisor nobody halts any more."""
MOST_QUERIES = 40


@dataclass(frozen=True, slots=True)
class Place:
    """Where a storm happens. `disk` is the log's, if it can be filled; `files` are SQLite databases."""

    folder: Path
    log_url: str
    warehouse_url: str
    server: PostgresServer | None = None
    disk: SmallFolder | None = None
    files: tuple[Path, ...] = ()


class Storm:
    """Use it as a context: at its end no process of the run is left."""

    def __init__(self, seed: int, place: Place) -> None:
        self.shape: Shape = drawn(seed)
        self._place = place
        self._trouble = place.folder / "trouble"
        self._trouble.touch()
        module = place.folder / f"storm_{seed}.py"
        module.write_text(f"from tests.support.storm.pipelines import pipeline_of\n\nstorm = pipeline_of({seed})\n")
        ref = bundle.parse_ref(f"{module}:storm")
        pipeline = bundle.load(ref)
        self.launcher = PlainLauncher(place.folder / "drivers", armed(seed, pipeline.applications))
        spec = run_spec(
            pipeline,
            ref,
            dag_id="storms",
            dag_run_id=f"seed {seed}",
            params={**self._files(), "trouble": str(self._trouble)},
            connections={"warehouse": "warehouse"},
            budget=RecoveryBudget(1_000, 600),
            lease=LEASE,
            code=(code := collect(ref)),
        )
        self.store: SqlLogStore = open_sql_store(place.log_url)
        self.run = self.store.start_run(spec, code=code.kept())
        urls = {"warehouse": place.warehouse_url}
        self._context = LaunchContext(self.store, place.log_url, self.run, pipeline, ref, urls, self.launcher)
        self.weather = Weather(
            seed, self.store, self.run, self._trouble, server=place.server, disk=place.disk, files=place.files
        )

    def blow(self) -> None:
        """Until the run has finished, and nothing is set aside any more."""
        for spell in range(2 * SPELLS):
            supervisor = LocalRun(self._context, poll=0.05, snapshot_every=0.1)
            outcome = supervisor.run(self.weather.over(supervisor) if spell < SPELLS else lambda _: None).outcome
            if outcome is Outcome.FINISHED:
                return
            if outcome is Outcome.PARKED:
                raise AssertionError(f"parked: {self._errors()}")
            if outcome is Outcome.QUARANTINED:
                self._mend()
        raise AssertionError(f"the run never ends: {self._errors()}")

    def check(self) -> None:
        """Tables, lineage and states, against plain Python."""
        made = results(self.shape, self._read())
        self._check_tables(made)
        self._check_lineage(made)
        states = {one.state for one in self.store.groups(self.run.run_id)}
        assert states <= {GroupState.FINISHED, GroupState.RETIRED}, states
        assert not [child for child in self.launcher.children if child.poll() is None], "drivers are left"

    # --- inside -------------------------------------------------------------------------------------------------------

    def _files(self) -> dict[str, str]:
        paths = {}
        for chain in self.shape.chains:
            path = self._place.folder / f"{chain.source}.parquet"
            columns = zip(*records_of(self.shape.seed, chain), strict=True)
            pq.write_table(pa.table([pa.array(one, pa.int64()) for one in columns], names=list(COLUMNS)), path)
            paths[chain.source] = str(path)
        return paths

    def _mend(self) -> None:
        self._trouble.unlink(missing_ok=True)
        for group in self.store.patience.call("retry", lambda: self.store.retry_quarantined(self.run.run_id)).to_launch:
            status = self.store.group(self.run.run_id, group)
            launch_group(self._context, group, expected=status.incarnation, reason="mended", by_user=True)

    def _errors(self) -> Mapping[str, str | None]:
        return {one.group: one.error for one in self.store.groups(self.run.run_id)}

    def _read(self) -> dict[str, int]:
        """Source → how many events it has read; all of them, unless it was drained."""
        counted = {str(row.port): row.events for row in self.store.progress(self.run.run_id) if row.direction == "out"}
        read = {chain.source: counted.get(f"{chain.source}.out", 0) for chain in self.shape.chains}
        if not self.weather.told["drain"]:
            assert read == {chain.source: chain.events for chain in self.shape.chains}
        return read

    def _check_tables(self, made: list[Made]) -> None:
        wanted = Counter[Row](record for one in made for record in one.records)
        tables = {"results": wanted}
        if self.shape.picky:
            tables["picked"] = wanted
        if self.shape.spread is not None:
            spread = after(self.shape.spread.step, made)
            tables["published"] = Counter[Row](record for one in spread for record in one.records)
        for table, expected in tables.items():
            assert_same(self._rows(table), expected, table)
        if self.shape.noise:
            noises = self._rows("noises", "noise")
            assert_same(Counter[Row]({row[:3]: n for row, n in noises.items()}), wanted, "noises")
            assert_same(self._rows("copies", "noise"), noises, "the copies")

    def _rows(self, table: str, *more: str) -> Counter[Row]:
        return Counter(rows_of(self._place.warehouse_url, f"SELECT {', '.join([*COLUMNS, *more])} FROM {table}"))

    def _check_lineage(self, made: list[Made]) -> None:
        scopes = self._context.pipeline.scopes
        if not scopes:
            return
        target = f"{scopes[0].target.operator}.out"
        origin = {record[0]: one.origin for one in made for record in one.records}
        for number in self._sample(self._sent(target)):
            found = as_authored(backward(self.store, self.run, target, number), self.run)
            [event] = found.roots
            ids = records(self.store, self.run, event)["id"].to_pylist()
            wanted = frozenset[SourceEvent]().union(*(origin[one] for one in ids))
            assert self._sources(found.events()) == wanted, f"lineage of {event}"

    def _sent(self, port: str) -> int:
        """How many events the log has of a port."""
        return max(
            row.events
            for row in self.store.progress(self.run.run_id)
            if row.direction == "out" and str(row.port) in (port, f"merge({port.partition('.')[0]}).out")
        )

    def _sample(self, events: int) -> range:
        return range(1, events + 1, max(1, events // MOST_QUERIES))

    def _sources(self, events: list[EventNode]) -> frozenset[SourceEvent]:
        names = {chain.source for chain in self.shape.chains}
        return frozenset((one.port.operator, one.event_id) for one in events if one.port.operator in names)

    def close(self) -> None:
        self.weather.clear()
        for child in self.launcher.children:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                child.kill()
            child.wait()
        self.store.dispose()

    def last_words(self) -> str:
        logs = sorted(self.launcher.work_dir.rglob("driver.log"), key=lambda log: log.stat().st_mtime)[-8:]
        ends = [f"--- {log.parent}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]) for log in logs]
        return "\n".join([repr(self.shape), repr(dict(self.weather.told)), *ends])


@contextlib.contextmanager
def storm(seed: int, place: Place) -> Iterator[Storm]:
    one = Storm(seed, place)
    try:
        yield one
    except BaseException as error:
        error.add_note(one.last_words())
        raise
    finally:
        one.close()


def assert_same(found: Counter[Row], wanted: Counter[Row], what: str) -> None:
    assert found == wanted, f"{what}: missing {sorted(wanted - found)[:5]}, too many {sorted(found - wanted)[:5]}"
