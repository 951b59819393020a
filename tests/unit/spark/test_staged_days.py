"""A day whose records are datasets: executors load all of them into one staging table, the closing transaction moves it.

Tasks are executed here, one after the other, by the code that executors run; on a Spark session: acceptance/test_staging.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.dataflow.writers.action_writers import EVENT, WriteAction
from airflow_logio.dataflow.writers.owned_days import OwnedDay
from airflow_logio.driver.logics.adapters import written_in_files
from airflow_logio.errors import (
    ExternalUnavailable,
    Fenced,
    LogInconsistent,
    LogUnavailable,
    OperatorFailed,
    WriteRefused,
)
from airflow_logio.protocol.logic import Write
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.spark import table_staging
from airflow_logio.spark.table_staging import StagingTarget
from airflow_logio.systems.payloads import EpochPayloads, Payloads
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.staging_tables import StagingTables, noted
from airflow_logio.systems.warehouse import Warehouse
from tests.support.datasets import dataset_of
from tests.support.table_days import D1, D2, Run, execute, rows
from tests.support.table_runs import Superseding, numbered

STAGING = "SELECT count(*) FROM pg_class WHERE relname LIKE 'logio_staging_%' AND relkind = 'r'"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Warehouse]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/wh.db" if is_sqlite else str(request.getfixturevalue("postgres_url"))
    opened = Warehouse("wh", url)
    yield opened
    opened.close()


@pytest.fixture
def server(postgres_url: str) -> Iterator[Warehouse]:
    opened = Warehouse("wh", postgres_url)
    yield opened
    opened.close()


@pytest.fixture
def epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EpochPayloads:
    monkeypatch.setattr(table_staging, "STAGED_BYTES", 0)
    return Payloads(str(tmp_path / "payloads")).epoch("run", "g", 1, 0)


def of_day(numbers: range, day: str | None = D1, who: str = "x") -> pa.Table:
    days = [None if day is None else date.fromisoformat(day)] * len(numbers)
    return pa.table(
        {"day": pa.array(days, pa.date32()), "a": pa.array(numbers, pa.int64()), "who": [who] * len(numbers)}
    )


class Tasks:
    """A session whose tasks are executed at once."""

    def range(self, start: int, end: int, _step: int, _partitions: int) -> Tasks:
        self._numbers = pa.record_batch({"id": pa.array(range(start, end), pa.int64())})
        return self

    def mapInArrow(self, load: Any, _schema: str) -> Tasks:
        self._load = load
        return self

    def toArrow(self) -> pa.Table:
        return pa.Table.from_batches(self._load([self._numbers]))


class Closing:
    """The driver of a run whose held write actions are datasets, or tables."""

    def __init__(self, warehouse: Warehouse, epoch: EpochPayloads, run: Run) -> None:
        self.warehouse, self.epoch, self.run = warehouse, epoch, run
        self.jobs: list[str] = []
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        url = warehouse.engine.url.render_as_string(hide_password=False)
        dataset = Payloads(epoch.root).dataset
        self.target = StagingTarget(run.target(warehouse), url, dataset, epoch, self.job)

    def job(self, description: str, start: Callable[[Any], pa.Table]) -> pa.Table:
        self.jobs.append(description)
        self.before()
        lines = start(Tasks())
        self.after()
        return lines

    def open(self) -> None:
        self.target.apply(self.warehouse, self.run.marker, [self.run.action(1, pa.table({}), "begin")])

    def close(self, *bodies: Dataset | pa.Table) -> None:
        actions = [self.action(number, body) for number, body in enumerate(bodies, 2)]
        outside = sum(isinstance(body, Dataset) for body in bodies)
        group = HeldGroup(2, len(bodies) + 2, sum(body.num_rows for body in bodies), outside)
        closing = self.run.action(group.last, pa.table({}), "close")
        with self.target.connect("") as client:
            self.target.apply_held(client, self.run.marker, group, closing, [[one] for one in actions])

    def action(self, number: int, body: Dataset | pa.Table) -> WriteAction:
        if isinstance(body, Dataset):
            made = self.run.action(number, pa.table({}))
            described = {**made.description, EVENT: 40 + number}
            return replace(made, description=described, dataset=str(body.reference))
        return self.run.action(number, body)

    def again(self, **changed: Any) -> Closing:
        """The next driver."""
        return Closing(self.warehouse, self.epoch, replace(self.run, token=self.run.token + 1, **changed))

    def left(self) -> list[Any]:
        with self.warehouse.engine.connect() as connection:
            tables = connection.execute(sa.text(STAGING)).scalar_one()
            return [tables, connection.execute(sa.select(sa.func.count()).select_from(noted)).scalar_one()]


Make = Callable[..., Closing]


@pytest.fixture
def make(epoch: EpochPayloads) -> Make:
    return lambda warehouse, run=None: Closing(warehouse, epoch, run or Run(2))


def numbers(found: Sequence[tuple[str, int, str]], day: str = D1) -> list[int]:
    return [a for at, a, _ in found if at == day]


def test_datasets_and_tables_of_a_day_replace_it_as_one(warehouse: Warehouse, epoch: EpochPayloads, make: Make) -> None:
    """One staging table for all datasets, whose files are counted through; in SQLite they pass through the driver."""
    Run(1).all(warehouse, 1, 2)
    Run(1, D2, uid="other").all(warehouse, 3)
    driver = make(warehouse)
    driver.open()
    first = dataset_of(epoch, of_day(range(10, 30)), of_day(range(30, 31)), purpose="d/1")
    none = dataset_of(epoch, of_day(range(0)), purpose="d/2")
    second = dataset_of(epoch, of_day(range(31, 50)), of_day(range(50, 60)), of_day(range(60, 70)), purpose="d/3")
    table = of_day(range(70, 75))
    driver.close(first, table, none, second, of_day(range(75, 80)))
    assert numbers(rows(warehouse)) == list(range(10, 80)) and numbers(rows(warehouse), D2) == [3]
    is_staged = warehouse.engine.dialect.name == "postgresql"
    assert len(driver.jobs) == is_staged
    if is_staged:
        assert "write actions 2 to 5 of 'save'" in driver.jobs[0] and driver.left() == [0, 0]
    driver.close(first, table, none, second, of_day(range(75, 80)))
    driver.again().close(first, table, none, second, of_day(range(75, 80)))
    assert len(driver.jobs) == is_staged, "what is done is not staged again"
    assert numbers(rows(warehouse)) == list(range(10, 80))


def test_rows_that_executors_load_are_the_runs(warehouse: Warehouse, epoch: EpochPayloads, make: Make) -> None:
    """Whatever their days are: they take the place of those that an earlier run of the partition has written."""
    keyed = (("primary_key", ("day", "a")),)
    Superseding(1, options=keyed).all(warehouse, 1, 2)
    Superseding(2, D2, options=keyed).all(warehouse, 3)
    driver = make(warehouse, Superseding(3, options=keyed))
    driver.open()
    first = dataset_of(epoch, of_day(range(10, 12)), of_day(range(2), D2), purpose="d/1")
    driver.close(first, of_day(range(12, 13)), dataset_of(epoch, of_day(range(3, 4), D2), purpose="d/2"))
    mine = [*((D1, a, "x", 1) for a in (10, 11, 12)), *((D2, a, "x", 1) for a in (0, 1, 3))]
    assert numbered(warehouse) == sorted([*mine, (D2, 3, "clicks2", 2)])
    assert len(driver.jobs) == (warehouse.engine.dialect.name == "postgresql")


def test_an_event_id_is_that_of_each_action(warehouse: Warehouse, epoch: EpochPayloads, make: Make) -> None:
    driver = make(warehouse, Run(1, options=(("lineage_column", "came_with"),)))
    driver.open()
    driver.close(*(dataset_of(epoch, of_day(range(one, one + 2)), purpose=f"d/{one}") for one in (10, 20)))
    with warehouse.engine.connect() as connection:
        found = connection.execute(sa.text("SELECT a, came_with FROM t ORDER BY a")).all()
    assert [tuple(row) for row in found] == [(10, 42), (11, 42), (20, 43), (21, 43)]


@pytest.mark.parametrize("other", [D2, None])
def test_a_record_of_another_day_is_counted_and_leaves_the_old_day(
    warehouse: Warehouse, epoch: EpochPayloads, make: Make, other: str | None
) -> None:
    Run(1).all(warehouse, 1)
    driver = make(warehouse)
    driver.open()
    right, wrong = (
        dataset_of(epoch, of_day(range(10, 30)), purpose="d/1"),
        dataset_of(epoch, of_day(range(30, 40)), of_day(range(3), other), purpose="d/2"),
    )
    says = rf"3 of (33|13|3) records are not of day={D1}, .* they have {other or 'null'} there.*logio again --partition {D1}"
    with pytest.raises(WriteRefused, match=says):
        driver.close(right, wrong)
    assert rows(warehouse) == [(D1, 1, "clicks1")]
    if warehouse.engine.dialect.name == "postgresql":
        assert driver.left() == [0, 0]


def test_audits_see_what_is_in_files(warehouse: Warehouse, epoch: EpochPayloads, make: Make) -> None:
    seen: list[int] = []

    def each(records: Iterator[pa.Table]) -> None:
        seen.extend(a for table in records for a in table.column("a").to_pylist())

    audits = {"each": each, "few": "SELECT day, count(*) AS n FROM t GROUP BY day HAVING count(*) > 4"}
    driver = make(warehouse, Run(2, options=(("audit", audits),)))
    driver.open()
    made = dataset_of(epoch, of_day(range(10, 13)), of_day(range(13, 15)))
    with pytest.raises(WriteRefused, match=rf"audit 'few' refuses .*1 row: \(day={D1}, n=5\)"):
        driver.close(made)
    assert sorted(seen) == [10, 11, 12, 13, 14] and rows(warehouse) == []
    driver.close(dataset_of(epoch, of_day(range(3)), purpose="d/2"))
    assert numbers(rows(warehouse)) == [0, 1, 2]


@pytest.mark.postgres
def test_a_refused_row_is_told_by_its_action(server: Warehouse, epoch: EpochPayloads, make: Make) -> None:
    execute(server, "CREATE TABLE t (day DATE, a BIGINT, who VARCHAR(3))")
    driver = make(server, Run(1, columns={}))
    driver.open()
    wrong = [of_day(range(5)), of_day(range(5, 6), who="long")]
    datasets = [dataset_of(epoch, of_day(range(10, 12)), purpose="d/1"), dataset_of(epoch, *wrong, purpose="d/2")]
    with pytest.raises(
        WriteRefused, match=r"column 'who'.*write action 3, row [05] \(counted from 0\): a text of more than 3"
    ):
        driver.close(*datasets)
    assert rows(server) == [] and driver.left() == [0, 0]


@pytest.mark.postgres
def test_rows_that_are_lost_or_gone_are_staged_again(server: Warehouse, epoch: EpochPayloads, make: Make) -> None:
    """As after a crash of the server, which empties the table, and by hand."""
    Run(1).all(server, 1)
    driver = make(server)
    driver.open()
    datasets = [dataset_of(epoch, of_day(range(one, one + 5)), purpose=f"d/{one}") for one in (10, 20)]

    def change(statement: str) -> None:
        with server.engine.begin() as connection:
            [(name,)] = connection.execute(sa.text("SELECT table_name FROM logio_staging"))
            connection.exec_driver_sql(statement.format(name))

    driver.after = partial(change, "DELETE FROM {} WHERE logio_file = 1")
    with pytest.raises(ExternalUnavailable, match="has 0 records of file 1, 5 were loaded"):
        driver.close(*datasets)
    driver.after = partial(change, "DROP TABLE {}")
    with pytest.raises(ExternalUnavailable, match="is gone"):
        driver.close(*datasets)
    assert rows(server) == [(D1, 1, "clicks1")]
    driver.after = lambda: None
    driver.close(*datasets)
    assert numbers(rows(server)) == [*range(10, 15), *range(20, 25)] and driver.left() == [0, 0]


@pytest.mark.postgres
@pytest.mark.parametrize("wakes", ["before", "after"])
def test_a_zombie_that_stages_is_swept_and_fenced(
    server: Warehouse, epoch: EpochPayloads, make: Make, wakes: str
) -> None:
    """The next driver begins while the job of the earlier one is under way, or is done."""
    Run(1).all(server, 1)
    zombie = make(server)
    zombie.open()
    one, other = (dataset_of(epoch, of_day(range(a, a + 5)), purpose=f"d/{a}") for a in (10, 20))
    successor = zombie.again()
    setattr(zombie, wakes, lambda: successor.close(other))
    with pytest.raises((Fenced, ExternalUnavailable)) as met:
        zombie.close(one)
    assert numbers(rows(server)) == list(range(20, 25)), met.value
    setattr(zombie, wakes, lambda: None)
    with pytest.raises(Fenced):
        zombie.close(one)
    assert numbers(rows(server)) == list(range(20, 25)) and successor.left() == [0, 0]


@pytest.mark.postgres
def test_a_younger_run_shuts_out_one_that_stages(server: Warehouse, epoch: EpochPayloads, make: Make) -> None:
    older, younger = make(server), make(server, Run(3))
    older.open()
    younger.open()
    one, other = (dataset_of(epoch, of_day(range(a, a + 5)), purpose=f"d/{a}") for a in (10, 20))
    older.after = lambda: younger.close(other)
    with pytest.raises(WriteRefused, match="claimed by run clicks3"):
        older.close(one)
    assert numbers(rows(server)) == list(range(20, 25)) and older.left() == [0, 0]


@pytest.mark.postgres
def test_what_cannot_be_staged_passes_through_the_driver(server: Warehouse, epoch: EpochPayloads, make: Make) -> None:
    execute(server, "CREATE TABLE t (day DATE, a BIGINT, who TEXT, logio_file BIGINT)")
    driver = make(server, Run(1, columns={}))
    driver.open()
    made = of_day(range(10, 15)).append_column("logio_file", pa.array([1] * 5))
    driver.close(dataset_of(epoch, made))
    assert numbers(rows(server)) == list(range(10, 15)) and not driver.jobs


@pytest.mark.postgres
def test_a_column_that_some_datasets_lack_has_its_default(server: Warehouse, epoch: EpochPayloads, make: Make) -> None:
    execute(server, "CREATE TABLE t (day DATE, a BIGINT, who TEXT DEFAULT 'default')")
    driver = make(server, Run(1, columns={}))
    driver.open()
    lacks = of_day(range(20, 22)).drop_columns(["who"])
    driver.close(dataset_of(epoch, of_day(range(10, 12))), dataset_of(epoch, lacks, purpose="d/2"))
    assert [who for _, _, who in rows(server)] == ["x", "x", "default", "default"] and not driver.jobs


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["text", "timestamptz"])
def test_hours_are_told_apart_in_a_staging_table(
    server: Warehouse, epoch: EpochPayloads, make: Make, kind: str
) -> None:
    def of_hour(number: int) -> pa.Table:
        start = datetime(2026, 10, 25, number, tzinfo=UTC)
        hours = (
            pa.array([start] * 3, pa.timestamp("us", "UTC")) if kind == "timestamptz" else [f"{start:%Y-%m-%dT%HZ}"] * 3
        )
        return pa.table({"hour": hours, "a": pa.array(range(3), pa.int64())})

    driver = make(server, Run(1, "2026-10-25T01Z", by="hour", columns={"hour": kind, "a": "bigint"}))
    driver.open()
    right, wrong = dataset_of(epoch, of_hour(1)), dataset_of(epoch, of_hour(2), purpose="d/2")
    with pytest.raises(WriteRefused, match=r"3 of 6 records are not of hour=2026-10-25T01Z.* they have 2026-10-25.02"):
        driver.close(right, wrong)
    driver.close(right)
    with server.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(DISTINCT hour), count(*) FROM t")).one() == (1, 3)


def test_a_payload_store_that_is_away_is_no_log_that_is(
    warehouse: Warehouse, epoch: EpochPayloads, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a log that is away one waits outside; for the store, between attempts."""
    Run(1).all(warehouse, 1)
    driver = make(warehouse)
    driver.open()
    made = dataset_of(epoch, of_day(range(10, 15)))

    def away(*_: Any) -> None:
        raise LogUnavailable("the payload store is away")

    with monkeypatch.context() as patch:
        patch.setattr(Dataset, "_check", away)
        with pytest.raises(ExternalUnavailable, match="payload store"):
            driver.close(made)
    assert rows(warehouse) == [(D1, 1, "clicks1")]
    path = Path(made.file_paths()[0])
    body = path.read_bytes()
    path.unlink()
    with pytest.raises(LogInconsistent, match="has lost a file"):
        driver.close(made)
    path.write_bytes(body)
    driver.close(made)
    assert numbers(rows(warehouse)) == list(range(10, 15))


@pytest.mark.postgres
def test_one_staging_table_is_found_and_dropped_when_a_driver_has_died(
    server: Warehouse, epoch: EpochPayloads, make: Make
) -> None:
    driver = make(server)
    driver.open()
    made = dataset_of(epoch, of_day(range(10, 15)))

    def die() -> None:
        raise KeyboardInterrupt

    driver.after = die
    driver.target._drop = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        driver.close(made)
    assert driver.left() == [1, 1] and len(StagingTables(server).of_run(driver.run.name)) == 1
    successor = driver.again()
    successor.close(made)
    assert numbers(rows(server)) == list(range(10, 15)) and successor.left() == [0, 0]


INSTANT = 1792886400
"""The start of hour 2026-10-25T00Z, in seconds."""
KINDS: list[tuple[str, Any, Any, Any]] = [
    ("day", pa.date32(), date(2026, 3, 1), date(2026, 3, 2)),
    ("day", pa.string(), D1, D2),
    ("day", pa.large_string(), D1, "2026-3-1"),
    ("day", pa.dictionary(pa.int32(), pa.string()), D1, D2),
    ("day", pa.string(), D1, D1 + "x" * 500),
    ("hour", pa.timestamp("s", "UTC"), INSTANT, INSTANT + 1),
    ("hour", pa.timestamp("us", "UTC"), INSTANT * 10**6, INSTANT * 10**6 - 1),
    ("hour", pa.timestamp("ns"), INSTANT * 10**9, INSTANT * 10**9 + 1),
    ("hour", pa.string(), "2026-10-25T00Z", "2026-10-25T01Z"),
]


@pytest.mark.parametrize(("name", "kind", "mine", "other"), KINDS)
def test_footers_tell_of_another_day_before_the_log_has_it(
    epoch: EpochPayloads, name: str, kind: Any, mine: Any, other: Any
) -> None:
    """Those that say nothing let pass: then the closing counts."""
    start = {"day": "2026-03-01T00:00:00+00:00", "hour": "2026-10-25T00:00:00+00:00"}[name]
    owned = OwnedDay.of_run(name, {name: D1 if name == "day" else "2026-10-25T00Z", f"{name}_start": start})
    cases: list[tuple[list[list[Any]], str]] = [
        ([[mine] * 5, []], ""),
        ([[mine, other, mine]], "at least 1 of 3 records"),
        ([[other] * 4], "4 of 4 records"),
        ([[mine] * 3, [other] * 2], "at least 2 of 5 records"),
        ([[mine, None, None]], "at least 2 of 3 records"),
        ([[None] * 3], "3 of 3 records"),
    ]
    for number, (values, says) in enumerate(cases):
        tables = [pa.table({name: pa.array(some, kind), "a": pa.array([1] * len(some))}) for some in values]
        made = dataset_of(epoch, *tables, purpose=f"d/{number}")
        if not says:
            owned.check_spans("t", made.spans(name), made.num_rows)
            assert all(span.bounds is not None for span in made.spans(name)), "or it shows nothing"
            continue
        with pytest.raises(OperatorFailed, match=f"t: {says} are not of {name}=2026"):
            owned.check_spans("t", made.spans(name), made.num_rows)
        owned.check_spans("t", made.spans("other"), made.num_rows)


def test_records_stay_in_files_up_to_the_closing_if_they_can_be_of_a_day(epoch: EpochPayloads) -> None:
    """Nothing is sent on. What has no column of a day is refused before the log has it."""
    writer = Run(1, columns={}).writer

    def made_of(table: pa.Table) -> Any:
        event: Any = SimpleNamespace(payload=dataset_of(epoch, table), about={}, event_id=7)
        return written_in_files(writer, "in", event)

    [write] = made_of(of_day(range(5)))
    assert isinstance(write, Write) and write.records == 5 and write.header == {"action": "insert"}
    with pytest.raises(OperatorFailed, match="column 'day', by which the run owns its rows, is needed, once"):
        made_of(pa.table({"a": [1]}))
    with pytest.raises(OperatorFailed, match="is double, and must be a date or a text"):
        made_of(pa.table({"day": [1.5]}))
    with pytest.raises(
        OperatorFailed, match=f"table 't': at least 1 of 3 records are not of day={D1}.*they have {D2} there"
    ):
        made_of(pa.table({"day": [D1, D2, D1], "a": [1, 2, 3]}))
