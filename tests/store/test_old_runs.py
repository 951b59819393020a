"""Old runs leave the log by themselves, with what they have left elsewhere; a process that dies leaves the rest to others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import RunState
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.supervision import keeping
from airflow_logio.supervision.keeping import Places, remove_old
from airflow_logio.systems.payloads import Payloads
from airflow_logio.systems.warehouse import Warehouse
from tests.support.appending import MARKERS, append, marker, rows
from tests.support.logs import sent, spec, start_driver

DAYS = [f"2026-03-0{day}" for day in range(1, 6)]


@dataclass
class Month:
    """A log with a run for each day, each of which has appended a row to a table."""

    store: SqlLogStore
    warehouse: Warehouse
    url: str
    root: str

    def begin(self, day: str, *, keep: float | None = 0.0) -> Run:
        plain = spec(dag_run=f"of {day}")
        key = replace(plain.key, pipeline="clicks")
        asked = replace(plain, key=key, partition=day, keep_seconds=keep, connections={"wh": "warehouse_default"})
        return self.store.start_run(asked)

    def finished(self, day: str, *, keep: float | None = 0.0) -> Run:
        run = self.begin(day, keep=keep)
        driver = start_driver(self.store, run=run)
        driver.session.commit([sent(1), sent(2), fx.FinishGroup()])
        driver.session.close()
        self.write(run)
        assert self.store.finish_run(run.run_id)
        return run

    def write(self, run: Run) -> None:
        line = (self.store.log_uid(), "clicks", run.ordinal)
        append(self.warehouse, replace(marker(run.ordinal), run_uid=run.uid, line=line))

    def places(self, root: str | None = None) -> Places:
        return Places(root or self.root, {"warehouse_default": self.url}.get)

    def sweep(self, **options: Any) -> list[str]:
        return remove_old(self.store, self.places(), "clicks", pause_seconds=0.0, **options)

    def left(self) -> list[str]:
        found = self.store.list_runs(pipeline="clicks", limit=1000)
        return sorted(str(run.partition) for run in found if run.state is not RunState.REMOVING)


@pytest.fixture
def month(sql_store: SqlLogStore, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Month]:
    """The warehouse is another database than the log, of the same kind."""
    if sql_store.engine.dialect.name == "sqlite":
        url = f"sqlite:///{tmp_path}/warehouse.db"
    else:
        server = request.getfixturevalue("postgres_server")
        url = server.new_database(migrated=False)
        request.addfinalizer(lambda: server.drop_database(url))
    warehouse = Warehouse("wh", url)
    (tmp_path / "payloads").mkdir()
    yield Month(sql_store, warehouse, url, str(tmp_path / "payloads"))
    warehouse.close()


def test_what_is_old_enough_goes_with_all_that_it_has_left(month: Month) -> None:
    runs = [month.finished(day) for day in DAYS[:3]]
    waits = month.begin(DAYS[3])
    folder = Path(month.root, runs[0].uid)
    Payloads(month.root)  # makes it usable
    folder.mkdir(parents=True)
    (folder / "left.arrow").write_bytes(b"of an attempt that has lost")
    (said,) = month.sweep()
    assert re.fullmatch(
        rf"pipeline clicks: 3 run\(s\) removed from the log by keep_runs='0d', \d+ rows \({DAYS[0]} to {DAYS[2]}\)",
        said,
    )
    assert month.left() == [DAYS[3]]
    with month.store.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT DISTINCT run_id FROM logio_event_data")).scalars().all() == []
    assert not folder.exists() or not list(folder.iterdir())
    assert rows(month.warehouse, MARKERS) == []
    assert rows(month.warehouse) == [1, 2, 3], "what they have written stays"
    assert month.warehouse.removed_up_to(month.store.log_uid(), "clicks") == 3
    month.write(waits)
    assert month.sweep() == []


def test_a_run_that_waits_keeps_the_markers_behind_it(month: Month) -> None:
    """One row stands for all up to an ordinal: so those behind a run that may still write keep their own."""
    first, waits, third = month.finished(DAYS[0]), month.begin(DAYS[1]), month.finished(DAYS[2])
    month.begin(DAYS[3])
    assert month.sweep()
    assert month.left() == [DAYS[1], DAYS[3]]
    assert rows(month.warehouse, MARKERS) == [third.uid]
    month.write(waits)  # it has never written, and is not refused
    driver = start_driver(month.store, run=waits)
    driver.session.commit([fx.FinishGroup()])
    driver.session.close()
    assert month.store.finish_run(waits.run_id)
    assert month.sweep()
    assert rows(month.warehouse, MARKERS) == []
    assert month.warehouse.removed_up_to(month.store.log_uid(), "clicks") == third.ordinal
    assert first.uid != third.uid


def test_a_pipeline_that_says_nothing_keeps_all(month: Month) -> None:
    month.finished(DAYS[0])
    month.begin(DAYS[1], keep=None)
    assert month.sweep() == []
    assert month.left() == DAYS[:2]


def test_what_is_younger_stays(month: Month) -> None:
    month.finished(DAYS[0])
    month.begin(DAYS[1], keep=3600.0)
    assert month.sweep() == []
    assert month.left() == DAYS[:2]


def test_one_turn_in_ten_minutes(month: Month) -> None:
    month.finished(DAYS[0])
    month.begin(DAYS[1])
    assert len(remove_old(month.store, month.places(), "clicks")) == 1
    month.finished(DAYS[2])
    month.begin(DAYS[3])
    assert remove_old(month.store, month.places()) == []


@pytest.mark.parametrize("number", range(2, 27, 3))
def test_a_process_that_dies_leaves_the_rest_to_the_next_turn(month: Month, number: int) -> None:
    """At each of its steps: batches of the log, payloads, and the warehouse."""
    for day in DAYS[:2]:
        month.finished(day)
    month.begin(DAYS[2])
    steps = 0

    class Dies(BaseException):
        pass

    def step(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == number:
            raise Dies

    engines = (month.store.engine, month.warehouse.engine)
    warehouses = lambda *_: month.warehouse  # noqa: E731
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(keeping, "Warehouse", warehouses)
        patched.setattr(month.warehouse, "close", lambda: None)
        for engine in engines:
            sa.event.listen(engine, "commit", step)
        try:
            month.sweep()
        except Dies:
            pass
        finally:
            for engine in engines:
                sa.event.remove(engine, "commit", step)
    month.sweep()
    assert month.left() == [DAYS[2]]
    assert rows(month.warehouse, MARKERS) == []
    assert rows(month.warehouse) == [1, 2]
    assert len(month.store.removed_runs(pipeline="clicks")) == 2


def test_time_is_up_between_two_runs(month: Month) -> None:
    for day in DAYS[:3]:
        month.finished(day)
    month.begin(DAYS[3])
    assert month.sweep(most_seconds=-1.0) == []
    assert month.left() == DAYS[:4]


def test_a_run_stays_whose_payloads_are_not_known_here(month: Month, caplog: pytest.LogCaptureFixture) -> None:
    month.finished(DAYS[0])
    month.begin(DAYS[1])
    with month.store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE logio_event_data SET ref = 'payloads/x'"))
    assert remove_old(month.store, Places(None, lambda _: None), pause_seconds=0.0) == []
    assert month.left() == DAYS[:2]
    assert "where its payloads are is not known here" in caplog.text


def test_markers_of_a_connection_that_is_not_known_here_are_removed_another_time(month: Month) -> None:
    run = month.finished(DAYS[0])
    month.begin(DAYS[1])
    assert remove_old(month.store, Places(month.root, lambda _: None), pause_seconds=0.0)
    assert rows(month.warehouse, MARKERS) == [run.uid]
    month.sweep()
    assert rows(month.warehouse, MARKERS) == []


def test_nothing_fails_with_it(month: Month, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A finished run stays finished, whatever the log, a payload store or a warehouse says."""
    month.finished(DAYS[0])
    month.begin(DAYS[1])

    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk of the payloads")

    monkeypatch.setattr(Payloads, "find", fail)
    assert month.sweep() == []
    assert "the disk of the payloads" in caplog.text
    monkeypatch.undo()

    def away(*_: object, **__: object) -> None:
        raise LogUnavailable("gone")

    monkeypatch.setattr(month.store, "take_turns", away)
    assert month.sweep() == []
    monkeypatch.undo()
    assert month.sweep()
    assert month.left() == [DAYS[1]]
