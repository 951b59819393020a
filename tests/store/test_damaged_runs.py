"""A flipped bit in the row of a run: that run is refused by name and can be given up; all others are as they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from airflow_logio.cli.app import main
from airflow_logio.errors import LogInconsistent, OtherRunUnfinished, UnknownRun
from airflow_logio.protocol.run_writers import WriterShape
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.status.condition import condition_of_run
from airflow_logio.store import open_store
from airflow_logio.store.records.run_records import Allowed, ConcurrentRuns, Run, Supervision
from airflow_logio.store.rules.described_runs import check_whole, described, encode_spec, sealed_spec
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.supervision.findings import FailureFinder
from airflow_logio.supervision.stop_run import give_up, run_to_give_up
from airflow_logio.testing.memory_log import MemoryLogStore
from airflow_logio.ui.run_list import listed_runs
from tests.support.logs import spec, start_driver

TEXTS = {"uid", "pipeline", "dag_id", "dag_run_id", "spec", "state"}
EVERY = 611
"""Of the bits of a description, one of so many is asked of the server: each place within a byte has its turn."""


def a_row(run: Run) -> dict[str, Any]:
    key = run.spec.key
    return {
        "run_id": run.run_id,
        "uid": run.uid,
        "pipeline": key.pipeline,
        "dag_id": key.dag_id,
        "dag_run_id": key.dag_run_id,
        "generation": key.generation,
        "partition": run.spec.partition,
        "spec": sealed_spec(encode_spec(run.spec), run.uid, run.ordinal),
        "state": run.state.value,
        "created_at": run.created_at,
        "ordinal": run.ordinal,
        "ended_at": None,
        "superseded_by": None,
        "because": None,
        "next_allowed": None,
    }


def flips(value: str | int) -> Iterator[str | int]:
    """The value with each of its bits flipped; what is no UTF-8 then, as rows are read (`described_runs`)."""
    if isinstance(value, int):
        yield from (value ^ 1 << bit for bit in range(31))
        return
    whole = value.encode()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped).decode(errors="surrogateescape")


def test_no_bit_of_a_row_makes_another_run() -> None:
    """Of every column by which a run is found and carried out, each bit. The same run, or marked: never another one."""
    made = MemoryLogStore().start_run(
        replace(spec("g", "h"), partition="2026-03-01", params={"limit": 5, "über": [1.5, None]})
    )
    row = a_row(made)
    assert described(SimpleNamespace(**row)) == made
    harmless = 0
    for column in [*sorted(TEXTS), "partition", "generation", "ordinal"]:
        for value in flips(row[column]):
            found = described(SimpleNamespace(**{**row, column: value}))
            if found.damage is None:
                assert (column, found) == ("spec", made)
                harmless += 1
                continue
            assert f"run_id {made.run_id}" in found.damage and "logio_run" in found.damage
            assert column == "state" or not (found.spec.groups or found.spec.params or found.spec.writers)
            with pytest.raises(LogInconsistent, match="use the version" if column == "state" else "logio fresh"):
                check_whole(found)
    words = frozenset(Allowed)
    stored = msgspec.json.encode(words).decode()
    assert described(SimpleNamespace(**{**row, "next_allowed": stored})).next_allowed == words
    for value in flips(stored):
        found = described(SimpleNamespace(**{**row, "next_allowed": value}))
        assert found.damage is not None and not found.next_allowed
    assert harmless < 150, "only in the last key itself, whose name no version before it knows"


@contextmanager
def stored(store: SqlLogStore, run: Run, column: str, value: str, table: sa.Table = schema.run) -> Iterator[None]:
    """Another value in the run's row, also bytes that are no UTF-8, which PostgreSQL lets no statement write."""
    is_sqlite = store.engine.dialect.name == "sqlite"
    raw = value.encode(errors="surrogateescape")

    def write(data: bytes) -> None:
        text = "CAST(:data AS TEXT)" if is_sqlite else "CAST(:data AS bytea)::text"
        with store.engine.begin() as connection:
            if not is_sqlite:
                connection.execute(sa.text("CREATE CAST (bytea AS text) WITHOUT FUNCTION"))
            update = sa.text(f"UPDATE {table.name} SET {column} = {text} WHERE run_id = :run")
            assert connection.execute(update, {"data": data, "run": run.run_id}).rowcount == 1
            if not is_sqlite:
                connection.execute(sa.text("DROP CAST (bytea AS text)"))

    with store.engine.connect() as connection:
        before = connection.execute(sa.select(table.c[column]).where(table.c.run_id == run.run_id)).scalar_one()
    write(raw)
    try:
        yield
    finally:
        if before is not None:
            write(before.encode())


def test_a_damaged_run_is_refused_and_no_other(sql_store: SqlLogStore) -> None:
    """In each list of runs, and in each look of a supervisor of all runs, whichever bit of the description it is."""
    other = start_driver(
        sql_store, run=sql_store.start_run(replace(spec(dag_run="other"), supervision=Supervision.DAG))
    )
    hurt = sql_store.start_run(replace(spec(dag_run="hurt", budget=None), supervision=Supervision.DAG))
    sql_store.declare_dead(other.ref, "killed")
    text = a_row(hurt)["spec"]
    cases = [value for number, value in enumerate(flips(text)) if number % EVERY == 0 and isinstance(value, str)]
    for value in cases:
        if described(SimpleNamespace(**{**a_row(hurt), "spec": value})).damage is None:
            continue
        with stored(sql_store, hurt, "spec", value):
            afresh = open_store(sql_store.engine.url.render_as_string(hide_password=False))
            assert [(run.uid, run.damage is None) for run in afresh.list_runs()] == [
                (hurt.uid, False),
                (other.run.uid, True),
            ]
            assert [(one.run.uid, one.run.damage is None) for one in afresh.sight(None)] == [
                (other.run.uid, True),
                (hurt.uid, False),
            ]
            look = FailureFinder(afresh).look()
            assert [one.run_uid for one in look.failed or ()] == [other.run.uid]
            for use in (
                lambda log: log.find_run(hurt.uid),
                lambda log: log.find_run("hurt"),
                lambda log: log.start_run(hurt.spec),
                lambda log: log.claim(hurt.run_id, "g", expected=0, reason="test"),
                lambda log: FailureFinder(log, run_uid=hurt.uid).look(),
            ):
                with pytest.raises(
                    LogInconsistent, match=f"uid {hurt.uid}.*run_id {hurt.run_id}.*logio fresh {hurt.uid[:8]}"
                ):
                    use(afresh)
            assert afresh.find_run(other.run.uid).spec == other.run.spec
            (seen,) = afresh.sight([hurt.uid])
            assert condition_of_run(seen.run, seen.groups, seen.run.created_at, None).word == "damaged"
            afresh.dispose()
    assert len(cases) > 6
    assert sql_store.find_run(hurt.uid).spec == hurt.spec


def test_lists_for_people_show_what_is_damaged(
    sql_store: SqlLogStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`logio status`, the page's list of runs and `logio gc`, with a description that is no UTF-8 any more."""
    other, hurt = (sql_store.start_run(spec(dag_run=name)) for name in ("other", "hurt"))
    text = a_row(hurt)["spec"].replace("limit", "l\udce9mit")
    with stored(sql_store, hurt, "spec", text):
        listed = {one["uid"]: one for one in listed_runs(sql_store, None, None).runs}
        assert listed[other.uid]["condition"] != "damaged" and listed[other.uid]["states"] == {"new": 1}
        assert listed[hurt.uid]["condition"] == "damaged" and listed[hurt.uid]["states"] == {"new": 1}
        assert f"logio fresh {hurt.uid[:8]}" in listed[hurt.uid]["next_step"]
        monkeypatch.setenv("LOGIO_URL", sql_store.engine.url.render_as_string(hide_password=False))
        assert logio(monkeypatch, "status", "--json") == 0
        said = {one["uid"]: one for one in json.loads(capsys.readouterr().out)}
        assert said[hurt.uid]["condition"] == "damaged" and said[hurt.uid]["groups"]["g"]["state"] == "new"
        assert said[other.uid]["condition"] != "damaged"
        assert logio(monkeypatch, "status", other.uid) == 0
        capsys.readouterr()
        assert logio(monkeypatch, "status", hurt.uid) == 1
        assert "is damaged in the log" in " ".join(capsys.readouterr().err.split())


def test_a_damaged_run_is_given_up_and_begun_anew(open_another: Any) -> None:
    """Its live driver obeys the halt, its dead one is fenced, and the fresh run has the next generation."""
    store = open_another()
    driver = start_driver(store, run=store.start_run(spec("g", "h")))
    with store.engine.begin() as connection:
        row = sa.update(schema.run).where(schema.run.c.run_id == driver.run.run_id)
        connection.execute(row.values(spec=a_row(driver.run)["spec"].replace('"limit":5', '"limit":7')))
    store.dispose()
    afresh = open_another()
    hurt = run_to_give_up(afresh, driver.run.uid)
    assert hurt.damage is not None
    assert afresh.declare_dead(driver.ref, "killed")
    assert "is given up" in give_up(afresh, hurt, 30.0)
    assert {one.state for one in afresh.groups(hurt.run_id)} == {GroupState.HALTED}
    fresh = afresh.start_run(spec("g", "h"))
    assert (fresh.spec.key.generation, fresh.spec.params) == (2, {"limit": 5})
    assert afresh.find_run(hurt.uid, damaged=True).superseded_by == fresh.uid
    assert [run.uid for run in afresh.removable(0.0)] == [hurt.uid]
    while afresh.remove_run(hurt.run_id, 100).more:
        pass
    with pytest.raises(UnknownRun):
        afresh.find_run(hurt.uid, damaged=True)


def logio(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of one command."""
    monkeypatch.setattr("sys.argv", ["logio", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_nothing_begins_beside_a_damaged_run_that_has_not_ended(open_another: Any) -> None:
    """What its writers do is not known. Also if its state is none any more."""
    store = open_another()
    hurt = store.start_run(replace(spec(dag_run="first"), writers=tuple[WriterShape, ...]()))
    nothing = replace(spec(dag_run="second"), writers=())
    for column, value in (("spec", a_row(hurt)["spec"].replace('"limit":5', '"limit":7')), ("state", "runnjng")):
        with stored(store, hurt, column, value), pytest.raises(OtherRunUnfinished, match=f"{hurt.uid}.*Restore"):
            store.start_run(nothing, concurrent=ConcurrentRuns.DERIVED)
    assert store.start_run(nothing, concurrent=ConcurrentRuns.DERIVED).state is RunState.RUNNING


@pytest.mark.parametrize("column", ["state", "desired"])
def test_a_group_whose_state_is_none_marks_its_run_and_no_other(sql_store: SqlLogStore, column: str) -> None:
    other = sql_store.start_run(spec(dag_run="other"))
    hurt = sql_store.start_run(spec(dag_run="hurt"))
    groups = schema.group
    with sql_store.engine.begin() as connection:
        connection.execute(sa.update(groups).where(groups.c.run_id == hurt.run_id).values({column: "halte$"}))
    seen = {one.run.uid: one for one in sql_store.sight(None)}
    assert seen[other.uid].run.damage is None and seen[other.uid].groups
    assert "halte$" in str(seen[hurt.uid].run.damage)


@pytest.mark.parametrize(("table", "column"), [("group", "error"), ("driver", "log_path")])
def test_a_text_that_is_none_marks_its_run_and_no_other(sql_store: SqlLogStore, table: str, column: str) -> None:
    """Of a group, or of its driver: a look at all runs reads them all in one statement."""
    other, hurt = (
        start_driver(sql_store, run=sql_store.start_run(replace(spec(dag_run=name), supervision=Supervision.DAG)))
        for name in ("other", "hurt")
    )
    sql_store.declare_dead(other.ref, "killed")
    with stored(sql_store, hurt.run, column, "g\udce9", schema.metadata.tables[f"logio_{table}"]):
        seen = {one.run.uid: one for one in sql_store.sight(None)}
        assert list(seen) == [other.run.uid, hurt.run.uid]
        assert seen[other.run.uid].run.damage is None and seen[other.run.uid].groups
        assert "a text of its groups or drivers is none" in str(seen[hurt.run.uid].run.damage)
        assert [one.run_uid for one in FailureFinder(sql_store).look().failed or ()] == [other.run.uid]
        listed = {one["uid"]: one["condition"] for one in listed_runs(sql_store, None, None).runs}
        assert listed[hurt.run.uid] == "damaged" != listed[other.run.uid]
        with pytest.raises(LogInconsistent):
            sql_store.groups(hurt.run.run_id)


def test_a_description_of_an_earlier_version_is_read(sql_store: SqlLogStore) -> None:
    made = sql_store.start_run(spec())
    assert described(SimpleNamespace(**{**a_row(made), "spec": encode_spec(made.spec)})) == made
