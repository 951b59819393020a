"""Logs that earlier versions have written, kept as they were: refused with the command to run, upgraded, and gone on with.

`older_logs/<revision>.json` holds the rows of a run that was recovered once (incarnation 2 is running): events on their
way, held and used, a pending write action, a state with its context, a state event, lineage and read actions. From 0003 on
there is a second one, with replicas: one was recovered, a slot has moved, a request to scale is open. A new migration needs
one more, written by the code before it. (0008 has changed how PostgreSQL stores bodies, and no row: they are those of 0007.)
In 0009 a day was given up and begun again, and another DAG run of that day drains. In 0010 a task has decided to begin a day.
In 0011 a person has given a day up, and let the next run take it over.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory

from airflow_logio.errors import LogInconsistent, LogioError, SchemaMismatch
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import decode_state
from airflow_logio.protocol.replicas import Slot
from airflow_logio.protocol.states import GroupState, RunState, ScalingState
from airflow_logio.status.recoveries import recoveries
from airflow_logio.store import open_store
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Allowed
from airflow_logio.store.rules.row_forms import seal
from airflow_logio.store.sql import migrate, schema
from airflow_logio.store.sql.engines import beat_engine, log_engine, writing
from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import SQL
from tests.support.logs import IN, assigned, fetched, held, sent, spec, start_driver
from tests.support.replicated import GROUP, A, B, C, inbox, launch, slots, taken

FOLDER = Path(__file__).parent / "older_logs"
OLDER = sorted(path.stem for path in FOLDER.glob("*.json"))
WITH_REPLICAS = [revision for revision in OLDER if revision >= "0003"]
LAST = OLDER[-1]

Rows = dict[str, list[dict[str, Any]]]
GONE = dict.fromkeys(("logio_fence", "logio_group", "logio_driver", "logio_heartbeat", "logio_waiting"), "replica")
GONE["logio_state"] = "slot"
"""Columns that a later revision has dropped; every row had 0 there."""

OLD_BEATS = sa.MetaData(naming_convention=schema.metadata.naming_convention)
"""Tables of heartbeats as they were up to 0003; the others have not changed."""
for _name, *_more in (
    (
        "logio_heartbeat",
        sa.Column("incarnation", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("ready", sa.Boolean, nullable=False),
        sa.Column("rss_bytes", sa.BigInteger, nullable=False),
    ),
    ("logio_waiting", sa.Column("parked", sa.Boolean, nullable=False)),
):
    sa.Table(
        _name,
        OLD_BEATS,
        sa.Column("run_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("group_name", sa.String(250), primary_key=True),
        sa.Column("replica", sa.Integer, primary_key=True, server_default=sa.text("0")),
        *_more,
    )


def recorded(revision: str) -> Rows:
    def plain(value: Any) -> Any:
        return base64.b64decode(value["bytes"]) if isinstance(value, dict) else value

    tables = json.loads((FOLDER / f"{revision}.json").read_text())
    return {name: [{key: plain(value) for key, value in row.items()} for row in rows] for name, rows in tables.items()}


@pytest.fixture(params=SQL)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/older.db"
        return
    server = request.getfixturevalue("postgres_server")
    url = server.new_database(migrated=False)
    yield url
    server.drop_database(url)


@pytest.fixture(params=OLDER)
def older(request: pytest.FixtureRequest, empty_url: str) -> tuple[str, str]:
    """(URL, revision) of a log as the version that made this revision has left it."""
    leave(empty_url, request.param)
    return empty_url, request.param


@pytest.fixture
def last(empty_url: str) -> str:
    """URL of a log as the version before this one has left it."""
    leave(empty_url, LAST)
    return empty_url


def leave(url: str, revision: str) -> None:
    found = recorded(revision)
    engine = log_engine(url)
    with writing(engine) as connection:
        command.upgrade(migrate._config(connection), revision)
        for name in found.keys() & schema.metadata.tables.keys():
            connection.execute(sa.delete(sa.table(name)))  # 0010 has named the new log
            connection.execute(sa.insert(_table(name, found[name])), found[name])
        if connection.dialect.name == "postgresql":  # the rows were written with their ids
            serial = {"logio_run": "run_id", "logio_event_log": "row_id", "logio_scaling": "request_id"}
            for name in found.keys() & serial.keys():
                column = serial[name]
                follow = f"SELECT setval(pg_get_serial_sequence('{name}', '{column}'), max({column})) FROM {name}"
                connection.execute(sa.text(follow))
    beats = beat_engine(url, engine)
    OLD_BEATS.create_all(beats)
    for table in (schema.load, schema.output, schema.address):
        if table.name in found:
            table.create(beats)
    with writing(beats) as connection:
        for name in found.keys() & schema.beat_metadata.tables.keys():
            connection.execute(sa.insert(_table(name, found[name])), found[name])
    for opened in (engine, beats):
        opened.dispose()


def test_every_earlier_revision_has_left_a_log() -> None:
    revisions = {script.revision for script in ScriptDirectory.from_config(migrate._config()).walk_revisions()}
    assert set(OLDER) == revisions - {schema.REVISION}


def test_it_is_refused_with_the_command_to_run(older: tuple[str, str]) -> None:
    url, revision = older
    for create in (False, True):  # whoever starts a run may create tables, and migrates none: others may be at work
        with pytest.raises(SchemaMismatch, match=f"schema {revision}.*needs {schema.REVISION}.*`logio db upgrade`"):
            open_store(url, create=create)


def test_an_upgrade_keeps_every_row(older: tuple[str, str]) -> None:
    url, revision = older
    assert migrate.upgrade(url) == schema.REVISION
    assert_kept(url, revision)


def test_an_upgrade_makes_the_declared_tables(older: tuple[str, str]) -> None:
    """With their primary keys, those of heartbeats included: of these no revision tells."""
    url, _ = older
    migrate.upgrade(url)
    for engine, metadata in engines(url):
        inspector = sa.inspect(engine)
        for table in metadata.sorted_tables:
            assert {column["name"] for column in inspector.get_columns(table.name)} == set(table.c.keys()), table.name
            key = inspector.get_pk_constraint(table.name)
            assert key["constrained_columns"] == list(table.primary_key.columns.keys()), table.name
            assert key["name"] in (f"pk_{table.name}", None), "SQLite has none where it counts keys by itself"
        engine.dispose()


def test_its_runs_are_in_order_and_later_ones_come_behind_them(older: tuple[str, str]) -> None:
    url, revision = older
    migrate.upgrade(url)
    store = open_store(url)
    runs = sorted(store.list_runs(), key=lambda run: run.run_id)
    assert [run.ordinal for run in runs] == [run.run_id for run in runs] == list(range(1, len(runs) + 1))
    last_of = {run.spec.key.pipeline: run.ordinal for run in runs}
    for name, ordinal in last_of.items():
        later = spec(dag_run="after the upgrade")
        assert store.start_run(replace(later, key=replace(later.key, pipeline=name))).ordinal == ordinal + 1
    if revision >= "0009":
        days = [run.uid for run in reversed(runs) if run.partition == "2026-03-01"]
        others = {"0009": 6, "0010": 7, "0011": 8}.get(revision, 9)
        assert len(days) == 3 and last_of == {"sales": 2, "clicks": 5, "other": others}
        assert [run.uid for run in store.list_runs(partition="2026-03-01")] == days
    store.dispose()


def test_what_a_person_has_said_of_the_next_run_of_a_day_is_kept(empty_url: str) -> None:
    leave(empty_url, "0011")
    migrate.upgrade(empty_url)
    store = open_store(empty_url)
    (given_up,) = store.list_runs(partition="2026-03-03")
    after = replace(given_up.spec, key=replace(given_up.spec.key, dag_run_id="begun after the upgrade"))
    assert store.start_run(after).spec.allowed == {Allowed.TAKE_OVER}
    assert store.find_run(given_up.uid).next_allowed == frozenset()
    store.dispose()


def test_a_version_without_ordinals_that_has_the_log_open_begins_no_run_and_commits(empty_url: str) -> None:
    """It should not be there. The run would have no place in the order; what its drivers commit is as it was."""
    leave(empty_url, "0009")
    migrate.upgrade(empty_url)
    ((engine, _), (beats, _)) = engines(empty_url)
    beats.dispose()
    rows = recorded("0009")["logio_run"]
    begun = {**rows[0], "run_id": 100, "uid": "0" * 32, "dag_run_id": "begun by the earlier version"}
    with pytest.raises(LogInconsistent, match="ordinal"), writing(engine) as connection:
        connection.execute(sa.insert(_table("logio_run", rows)), begun)
    with writing(engine) as connection:
        commit = "UPDATE logio_fence SET commit_no = commit_no + 1 WHERE run_id = 1 AND group_name = 'g'"
        assert connection.execute(sa.text(commit)).rowcount == 1
    engine.dispose()


def test_an_upgrade_names_the_log(empty_url: str, tmp_path: Path) -> None:
    leave(empty_url, "0009")
    other = f"sqlite:///{tmp_path}/other.db"
    leave(other, "0009")
    uids = []
    for url in (empty_url, other, empty_url, other):
        migrate.upgrade(url)
        store = open_store(url)
        uids.append(store.log_uid())
        store.dispose()
    assert uids[:2] == uids[2:] and len(set(uids)) == 2
    assert all(len(uid) == 32 for uid in uids)


def test_an_upgrade_that_dies_leaves_the_log_as_it_was(last: str) -> None:
    program = (
        "import os, sys; from airflow_logio.store.sql import migrate; upgrade = migrate._upgrade_beats\n"
        "migrate._upgrade_beats = lambda connection: (upgrade(connection), os._exit(9))\n"
        "migrate.upgrade(sys.argv[1])"
    )
    assert subprocess.run([sys.executable, "-c", program, last], timeout=60, check=False).returncode == 9
    with pytest.raises(SchemaMismatch, match=f"schema {LAST}.*`logio db upgrade`"):
        open_store(last)
    assert_kept(last, LAST, gone={})
    assert migrate.upgrade(last) == schema.REVISION
    assert_kept(last, LAST)


def test_an_upgrade_that_came_as_far_as_the_heartbeats_is_done_again(last: str) -> None:
    """On SQLite they are in a file of their own, which is committed first."""
    for engine, metadata in engines(last):
        if metadata is schema.beat_metadata:
            with writing(engine) as connection:
                migrate._upgrade_beats(connection)
        engine.dispose()
    with pytest.raises(SchemaMismatch, match=f"schema {LAST}.*`logio db upgrade`"):
        open_store(last)
    for _ in range(2):
        assert migrate.upgrade(last) == schema.REVISION
        assert_kept(last, LAST)


def test_an_upgrade_waits_for_the_commit_of_a_driver(empty_url: str) -> None:
    """It should not be there; but then its commit is in the log, and its next one fails: 0005 has renamed a column."""
    leave(empty_url, "0004")
    ((engine, _), (beats, _)) = engines(empty_url)
    beats.dispose()
    commit = "UPDATE logio_fence SET commit_no = commit_no + 1 WHERE run_id = 1 AND group_name = 'g'"
    state = "UPDATE logio_state SET state = state WHERE run_id = 1 AND op = 'receiver' AND state_id = 0"
    upgrading = threading.Thread(target=migrate.upgrade, args=(empty_url,))
    with writing(engine) as connection:
        connection.execute(sa.text(commit))
        connection.execute(sa.text(state))
        upgrading.start()
        upgrading.join(0.3)
        assert upgrading.is_alive()
    upgrading.join(60)
    with pytest.raises(LogioError, match="state"), writing(engine) as connection:
        connection.execute(sa.text(commit))
        connection.execute(sa.text(state))
    with engine.connect() as connection:
        found = connection.execute(sa.text("SELECT commit_no FROM logio_fence WHERE run_id = 1")).scalar_one()
    engine.dispose()
    assert found == 3


def assert_kept(url: str, revision: str, *, gone: Mapping[str, str] = GONE) -> None:
    for engine, metadata in engines(url):
        for name, rows in recorded(revision).items():
            if name not in metadata.tables:
                continue
            kept = [{column: value for column, value in row.items() if column != gone.get(name)} for row in rows]
            if name == "logio_state" and gone and revision < "0005":
                kept = [
                    {**{k: v for k, v in row.items() if k != "state"}, "sealed": seal(row["state"])} for row in kept
                ]
            assert name not in gone or all(row.get(gone[name], 0) == 0 for row in rows)
            with engine.connect().execution_options(logio_writes=False) as connection:
                found = connection.execute(sa.select(_table(name, kept))).all()
            assert _comparable(found) == _comparable([tuple(row.values()) for row in kept]), name
        engine.dispose()


def engines(url: str) -> list[tuple[sa.Engine, sa.MetaData]]:
    """Where the tables of the log are, and where those of heartbeats."""
    engine = log_engine(url)
    return [(engine, schema.metadata), (beat_engine(url, engine), schema.beat_metadata)]


def _table(name: str, rows: list[dict[str, Any]]) -> sa.TableClause:
    return sa.table(name, *(sa.column(column) for column in rows[0]))


def _comparable(rows: Iterable[Iterable[Any]]) -> list[str]:
    """Booleans are numbers in SQLite, bytes are views in PostgreSQL."""
    plain = {bool: int, memoryview: bytes}
    return sorted(repr([plain.get(type(value), lambda same: same)(value) for value in row]) for row in rows)


def test_its_run_goes_on(older: tuple[str, str]) -> None:
    """A driver of the new code takes over: nothing is lost, and what was done is not done again."""
    url, _ = older
    migrate.upgrade(url)
    store = open_store(url)
    run = store.find_run("run-1")
    assert (run.state, run.spec.key.pipeline, run.spec.groups) == (RunState.RUNNING, "sales", ("g",))
    assert store.group(run.run_id, "g").state is GroupState.RUNNING
    assert store.declare_dead(GroupRef(run.run_id, "g", 2), "upgraded")
    driver = start_driver(store, run=run, expected=2)
    recovered = driver.session.recover(["receiver"])
    context = decode_state("receiver", recovered.states["receiver"]).context
    assert (context.marks, context.triggered, context.state_events) == ({"in": 4}, ["B"], {"B": 1})
    assert recovered.snapshots == (("receiver", "B", b"at B"),)
    assert [(write.number, write.body, dict(write.header)) for write in recovered.writes] == [
        (2, b"w2", {"action": "insert"})
    ]
    assert held(driver.session) == [(1, "B"), (4, "B")]
    assert fetched(driver.session) == [5]
    assert driver.session.acknowledged([IN]) == {IN: (4, 16)}
    driver.session.commit(
        [assigned(5, "C"), fx.MarkDone("receiver", "B", 3), fx.WritesDone("receiver", "wh", 2, 2), sent(6)]
    )
    assert fetched(driver.session) == [6]
    assert held(driver.session) == [(5, "C")]
    assert driver.session.open().commit_no == 3
    assert store.start_run(run.spec).uid == run.uid
    store.dispose()


@pytest.mark.parametrize("revision", WITH_REPLICAS)
def test_its_replicas_go_on(empty_url: str, revision: str) -> None:
    leave(empty_url, revision)
    migrate.upgrade(empty_url)
    store = open_store(empty_url)
    assert isinstance(store, SqlLogStore)
    run = store.find_run("run-2")
    assert slots(store, run) == [Slot(0, A), Slot(1, B, 1), Slot(2, B), Slot(3, B)]
    states = {status.group: (status.state, status.incarnation, status.beat) for status in store.groups(run.run_id)}
    assert states == {
        "feed": (GroupState.RUNNING, 1, 0),
        A: (GroupState.RUNNING, 2, 11),
        B: (GroupState.RUNNING, 1, 12),
        C: (GroupState.RETIRED, 0, 0),
        "end": (GroupState.NEW, 0, 0),
    }
    assert [one.group for one in recoveries(store.drivers(run.run_id))] == [A]
    assert store.declare_dead(GroupRef(run.run_id, B, 1), "upgraded")
    driver = start_driver(store, group=B, run=run, expected=1)
    assert driver.session.slots() == {1: 1, 2: 0, 3: 0}
    assert held(driver.session, "work[1]") == [(1, "I"), (2, "I")]
    assert [fetched(driver.session, receiver=inbox(slot)) for slot in (1, 2)] == [[], [1, 2]]
    driver.session.commit([taken(1, 2)])
    assert store.heartbeat(driver.ref, 1, ready=True, rss_bytes=1) is GroupState.RUNNING
    driver.session.wait(0.01)
    driver.session.close()
    launch(store, run, C)
    assert store.rescale(run.run_id, GROUP, {2: C, 3: C}) == 2
    (asked, done) = store.scalings(run.run_id)
    assert (asked.state, done.state) == (ScalingState.REQUESTED, ScalingState.DONE)
    store.dispose()
