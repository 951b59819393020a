"""Logs that earlier versions have written, kept as they were: refused with the command to run, upgraded, and gone on with.

`older_logs/<revision>.json` holds the rows of a run that was recovered once (incarnation 2 is running): events on their
way, held and used, a pending write action, a state with its context, a state event, lineage and read actions. A new
migration needs one more, written by the code before it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory

from airflow_logio.errors import SchemaMismatch
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import decode_state
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store.opening import open_store
from airflow_logio.store.records import GroupRef
from airflow_logio.store.sql import migrate, schema
from airflow_logio.store.sql.engines import beat_engine, log_engine, writing
from tests.conftest import SQL
from tests.support.logs import IN, assigned, fetched, held, sent, start_driver

FOLDER = Path(__file__).parent / "older_logs"
OLDER = sorted(path.stem for path in FOLDER.glob("*.json"))

Rows = dict[str, list[dict[str, Any]]]


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
    engine = log_engine(empty_url)
    with writing(engine) as connection:
        command.upgrade(migrate._config(connection), request.param)
        for name, rows in recorded(request.param).items():
            connection.execute(sa.insert(_table(name, rows)), rows)
        if connection.dialect.name == "postgresql":  # the rows were written with their ids
            for name, column in (("logio_run", "run_id"), ("logio_event_log", "row_id")):
                follow = f"SELECT setval(pg_get_serial_sequence('{name}', '{column}'), max({column})) FROM {name}"
                connection.execute(sa.text(follow))
    beats = beat_engine(empty_url, engine)
    schema.beat_metadata.create_all(beats)
    for opened in (engine, beats):
        opened.dispose()
    return empty_url, request.param


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
    engine = log_engine(url)
    with engine.connect() as connection:
        for name, rows in recorded(revision).items():
            found = connection.execute(sa.select(_table(name, rows))).all()
            assert _comparable(found) == _comparable([tuple(row.values()) for row in rows]), name
    engine.dispose()


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
    (run,) = store.list_runs()
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
