"""Who owns a table, and what a marker refuses: the external half of exactly-once (docs/design.md, "What is promised")."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio import databases
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ConfigurationError, Fenced, LockHeld, LogInconsistent, OperatorFailed, WriteRefused
from airflow_logio.protocol.external_rules import Owner
from airflow_logio.systems.warehouse import Warehouse
from tests.support.postgres import PostgresServer

REPLACE = TableWriter("wh", "t", {"a": "bigint", "who": "text"}, on_new_run="replace")
APPEND = TableWriter("wh", "t", {"a": "bigint", "who": "text"}, on_new_run="append")
OLD, NEW = ("old", 1.0), ("new", 2.0)


def marker(run: tuple[str, float], token: int = 1, operator: str = "publish") -> Marker:
    return Marker(run[0], operator, "wh", 0, token, run[1])


def action(run: tuple[str, float], number: int, operator: str = "publish") -> WriteAction:
    """The first one begins the run; each other one inserts its number."""
    table, kind = (pa.table({}), "begin") if number == 1 else (records(run, number), "insert")
    return WriteAction(run[0], operator, "wh", number, 1, table, {"action": kind})


def records(run: tuple[str, float], *values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64()), "who": pa.array([run[0]] * len(values), pa.string())})


def apply(warehouse: Warehouse, run: tuple[str, float], *numbers: int, token: int = 1) -> None:
    warehouse.apply(marker(run, token), REPLACE, [action(run, number) for number in numbers])


def run_appends(
    warehouse: Warehouse, run: tuple[str, float], *numbers: int, token: int = 1, given_up: tuple[str, ...] = ()
) -> None:
    actions = [action(run, number) for number in numbers]
    warehouse.apply(marker(run, token), APPEND, actions, given_up=given_up)


def contents(warehouse: Warehouse) -> list[tuple[int, str]]:
    with warehouse.engine.connect() as connection:
        return [(row.a, row.who) for row in connection.execute(sa.text("SELECT a, who FROM t ORDER BY a, who"))]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/wh.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def warehouse(url: str) -> Iterator[Warehouse]:
    opened = Warehouse("wh", url)
    yield opened
    opened.close()


def test_what_was_applied_is_not_applied_again(warehouse: Warehouse) -> None:
    apply(warehouse, NEW, 1, 2, 3)
    apply(warehouse, NEW, 2, 3)
    apply(warehouse, NEW, 2, 3, 4)
    assert contents(warehouse) == [(2, "new"), (3, "new"), (4, "new")]


@pytest.mark.parametrize("columns", [{"a": "bigint", "who": "text"}, None])
def test_each_row_has_the_event_that_it_came_with(warehouse: Warehouse, columns: dict[str, str] | None) -> None:
    """Also if a recovered driver repeats write actions; in a table that is made, and in one that was there before."""
    if columns is None:
        with warehouse.engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE t (event BIGINT, a BIGINT, who TEXT)"))
    writer = TableWriter("wh", "t", columns, on_new_run="append", lineage_column="event")
    numbers = {2: 41, 3: 42, 4: 2**40}
    actions = [action(NEW, 1)] + [
        replace(action(NEW, number), records=writer.records(InputEvent("in", event, records(NEW, number, 10 * number))))
        for number, event in numbers.items()
    ]
    warehouse.apply(marker(NEW), writer, actions[:2])
    warehouse.apply(marker(NEW), writer, actions[1:3])
    warehouse.apply(marker(NEW, token=2), writer, actions[2:])
    with warehouse.engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT event, a FROM t ORDER BY event, a")).all()
    assert [tuple(row) for row in rows] == [(event, a) for n, event in numbers.items() for a in (n, 10 * n)]


def test_a_table_without_its_lineage_column_is_refused(warehouse: Warehouse) -> None:
    with warehouse.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE t (a BIGINT, who TEXT)"))
    declared = "It is the lineage column: add it yourself: ALTER TABLE t ADD COLUMN"
    for columns, says in (({"a": "bigint", "who": "text"}, declared), (None, "event")):
        writer = TableWriter("wh", "t", columns, on_new_run="append", lineage_column="event")
        rows = writer.records(InputEvent("in", 7, records(NEW, 2)))
        with pytest.raises((ConfigurationError, WriteRefused, OperatorFailed), match=says):
            warehouse.apply(marker(NEW), writer, [action(NEW, 1), replace(action(NEW, 2), records=rows)])
    assert contents(warehouse) == []


def test_a_lower_token_is_refused(warehouse: Warehouse) -> None:
    apply(warehouse, NEW, 1, 2, token=2)
    with pytest.raises(Fenced, match="token 2 has written, but this driver holds 1"):
        apply(warehouse, NEW, 3, token=1)
    assert contents(warehouse) == [(2, "new")]


def test_a_warehouse_behind_the_log_is_noticed(warehouse: Warehouse) -> None:
    with pytest.raises(LogInconsistent, match="restored from an older copy"):
        apply(warehouse, NEW, 2)


def test_an_older_run_cannot_begin_after_a_newer_one(warehouse: Warehouse) -> None:
    apply(warehouse, NEW, 1, 2)
    with pytest.raises(WriteRefused, match="a newer run has taken it over"):
        apply(warehouse, OLD, 1)
    assert contents(warehouse) == [(2, "new")]


def test_a_run_that_was_taken_over_writes_no_more(warehouse: Warehouse) -> None:
    apply(warehouse, OLD, 1, 2)
    apply(warehouse, NEW, 1, 2)
    with pytest.raises(WriteRefused, match="must not write to it any more"):
        apply(warehouse, OLD, 3)
    assert contents(warehouse) == [(2, "new")]


def test_a_run_that_appends_leaves_earlier_ones_their_table(warehouse: Warehouse) -> None:
    """What a person puts back into yesterday's run is written, though today's has begun; each write action once."""
    run_appends(warehouse, OLD, 1, 2)
    run_appends(warehouse, NEW, 1, 2)
    run_appends(warehouse, OLD, 2, 3)
    run_appends(warehouse, ("older", 0.5), 1, 2)
    assert contents(warehouse) == [(2, "new"), (2, "old"), (2, "older"), (3, "old")]
    with pytest.raises(Fenced):
        run_appends(warehouse, OLD, 4, token=0)


def test_a_run_that_claims_a_table_shuts_out_earlier_ones_that_append(warehouse: Warehouse) -> None:
    run_appends(warehouse, OLD, 1, 2)
    apply(warehouse, NEW, 1, 2)
    with pytest.raises(WriteRefused, match="a newer run has taken it over"):
        run_appends(warehouse, OLD, 3)
    with pytest.raises(WriteRefused, match="a newer run has taken it over"):
        run_appends(warehouse, ("older", 0.5), 1)
    run_appends(warehouse, ("newest", 3.0), 1, 2)
    apply(warehouse, NEW, 3)
    assert contents(warehouse) == [(2, "new"), (2, "newest"), (3, "new")]


def test_a_fresh_run_shuts_out_the_one_that_was_given_up_and_no_other(warehouse: Warehouse) -> None:
    """Its drivers may be out of reach; a person may have removed its rows. Others that append are healthy."""
    healthy, given_up = ("healthy", 0.5), ("old",)
    run_appends(warehouse, healthy, 1, 2)
    run_appends(warehouse, OLD, 1, 2)
    run_appends(warehouse, NEW, 1, 2, given_up=given_up)
    with pytest.raises(Fenced):
        run_appends(warehouse, OLD, 3)
    with pytest.raises(WriteRefused, match="run old was given up, and run new has begun in its place"):
        warehouse.apply(
            marker(OLD, operator="other"), APPEND, [action(OLD, 1, "other"), action(OLD, 2, "other")]
        )  # a writer of it that had written nothing yet
    with pytest.raises(WriteRefused, match="run old was given up"):
        warehouse.check_not_replaced(APPEND, Owner(*OLD))
    warehouse.check_not_replaced(APPEND, Owner(*healthy))
    run_appends(warehouse, healthy, 3, 4)
    run_appends(warehouse, ("newest", 3.0), 1, 2)
    run_appends(warehouse, NEW, 3, given_up=given_up)
    assert contents(warehouse) == [
        *((2, who) for who in ("healthy", "new", "newest", "old")), (3, "healthy"), (3, "new"), (4, "healthy")
    ]  # fmt: skip


def test_a_fresh_run_begins_once_however_often_its_first_action_is_tried(warehouse: Warehouse) -> None:
    """Its transaction is lost before the commit; then two writers of it begin."""
    run_appends(warehouse, OLD, 1, 2)
    broken = replace(action(NEW, 2), records=pa.table({"a": [2], "other": ["x"]}))
    with pytest.raises(WriteRefused):
        warehouse.apply(marker(NEW), APPEND, [action(NEW, 1), broken], given_up=("old",))
    run_appends(warehouse, OLD, 3)
    for operator in ("publish", "beside"):
        actions = [action(NEW, number, operator) for number in (1, 2)]
        warehouse.apply(marker(NEW, operator=operator), APPEND, actions, given_up=("old",))
    with pytest.raises(Fenced):
        run_appends(warehouse, OLD, 4)
    assert contents(warehouse) == [(2, "new"), (2, "new"), (2, "old"), (3, "old")]


def test_what_an_earlier_version_has_left_of_a_fresh_run_is_taken_back_as_the_message_says(
    warehouse: Warehouse,
) -> None:
    """It made a fresh run that appends the owner of its table, so that healthy runs were refused. The rows of these are
    there: a fresh run of theirs would append them again."""
    run_appends(warehouse, OLD, 1, 2)
    run_appends(warehouse, NEW, 1, 2)
    as_earlier = sa.text("UPDATE logio_owner SET run_uid = 'new', started_at = 2.0 WHERE table_name = 't'")
    with warehouse.engine.begin() as connection:
        connection.execute(as_earlier)
    with pytest.raises(WriteRefused, match="appends as well") as refused:
        run_appends(warehouse, OLD, 3)
    advised = str(refused.value).partition("retry this run: ")[2]
    with warehouse.engine.begin() as connection:
        assert connection.execute(sa.text(advised)).rowcount == 1
    run_appends(warehouse, OLD, 3)
    run_appends(warehouse, NEW, 3)
    assert contents(warehouse) == [(2, "new"), (2, "old"), (3, "new"), (3, "old")]


def test_a_run_that_replaces_deletes_no_rows_of_one_that_was_started_later(warehouse: Warehouse) -> None:
    """By the clock of its log; whichever began to write first."""
    run_appends(warehouse, NEW, 1, 2)
    with pytest.raises(
        WriteRefused, match=r"run new writes to it as well, and was started later \(1970-01-01 00:00:02"
    ):
        apply(warehouse, OLD, 1, 2)
    apply(warehouse, ("newest", 3.0), 1, 2)
    run_appends(warehouse, ("last", 4.0), 1)
    assert contents(warehouse) == [(2, "newest")]
    with warehouse.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM t"))
    with pytest.raises(WriteRefused, match="a newer run has taken it over"):
        apply(warehouse, ("earlier", 2.5), 1, 2)
    apply(warehouse, ("between", 3.5), 1, 2)
    run_appends(warehouse, ("last", 4.0), 2)
    assert contents(warehouse) == [(2, "between"), (2, "last")], "the later one had written no row"


def test_a_run_that_begins_under_an_earlier_clock_says_which_clocks(warehouse: Warehouse) -> None:
    apply(warehouse, NEW, 1, 2)
    said = (
        r"By its clock, .* later \(1970-01-01 00:00:02\.000.*\) than this one \(1970-01-01 00:00:01.*`logio fresh old`"
    )
    with pytest.raises(WriteRefused, match=said):
        apply(warehouse, OLD, 1, 2)


def test_before_a_retry_it_is_known_whether_a_newer_run_has_the_table(warehouse: Warehouse) -> None:
    warehouse.check_not_replaced(REPLACE, Owner(*OLD))
    apply(warehouse, OLD, 1, 2)
    run_appends(warehouse, NEW, 1, 2)
    warehouse.check_not_replaced(REPLACE, Owner(*OLD))
    apply(warehouse, ("newest", 3.0), 1)
    for writer in (REPLACE, APPEND):
        with pytest.raises(WriteRefused, match="belongs to run newest"):
            warehouse.check_not_replaced(writer, Owner(*OLD))
        warehouse.check_not_replaced(writer, Owner("newest", 3.0))


def test_a_table_that_was_dropped_is_made_again_by_the_next_run(warehouse: Warehouse) -> None:
    run_appends(warehouse, OLD, 1, 2)
    with warehouse.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE t"))
    run_appends(warehouse, NEW, 1, 2)
    assert contents(warehouse) == [(2, "new")]


def test_a_lock_that_another_session_holds_is_told_from_other_outages(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "BUSY_TIMEOUT_SECONDS", 0.1)
    with closing(Warehouse("wh", url)) as first, closing(Warehouse("wh", url)) as second:
        apply(first, OLD, 1, 2)
        emptied = sa.text("DELETE FROM t")
        with first.for_writes() as holder, holder.begin():
            holder.execute(emptied)
            with (
                pytest.raises(LockHeld, match=r"connection 'wh': .*lock"),
                second.translated(),
                second.for_writes({"lock_timeout": "100ms"}) as waiting,
                waiting.begin(),
            ):
                waiting.execute(emptied)
        apply(second, OLD, 3)
        assert contents(second) == [(3, "old")]


@pytest.mark.postgres
def test_a_new_run_waits_for_rows_that_are_being_written_and_replaces_them(postgres_url: str) -> None:
    old, new = Warehouse("wh", postgres_url), Warehouse("wh", postgres_url)
    apply(old, OLD, 1, 2)
    inside, go_on = threading.Event(), threading.Event()

    @sa.event.listens_for(old.engine, "commit")
    def _pause(_connection: object) -> None:
        inside.set()
        go_on.wait(60)

    writing = threading.Thread(target=apply, args=(old, OLD, 3))
    beginning = threading.Thread(target=apply, args=(new, NEW, 1, 2))
    writing.start()
    assert inside.wait(60), "the old run holds its rows uncommitted"
    beginning.start()
    beginning.join(0.3)
    assert beginning.is_alive(), "the new run waits for them"
    go_on.set()
    for thread in (writing, beginning):
        thread.join(60)
    assert contents(new) == [(2, "new")]
    old.close()
    new.close()


@pytest.mark.postgres
def test_two_writers_of_one_table_begin_at_once(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database(migrated=False)
    errors: list[Exception] = []
    barrier = threading.Barrier(2)
    append = TableWriter("wh", "t", {"a": "bigint"}, on_new_run="append")

    def begin(operator: str) -> None:
        warehouse = Warehouse("wh", url)
        barrier.wait()
        try:
            warehouse.apply(marker(NEW, operator=operator), append, [action(NEW, 1, operator)])
        except Exception as error:
            errors.append(error)
        warehouse.close()

    threads = [threading.Thread(target=begin, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    postgres_server.drop_database(url)


@pytest.mark.parametrize(
    "url", ["postgresql://u:pass@host:54s3cret/db", "postgresql://u:se@s3cret@host/db", "nothing://u:s3cret@host/db"]
)
def test_no_part_of_a_url_that_cannot_be_used_is_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Warehouse("wh", url)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_relative_sqlite_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be an absolute path"):
        Warehouse("wh", "sqlite:///wh.db")


@pytest.mark.postgres
def test_a_table_with_an_identity_column_is_read_and_written(postgres_url: str) -> None:
    """PostgreSQL describes it in JSON, which engines of warehouses leave as text."""
    warehouse = Warehouse("wh", postgres_url)
    with warehouse.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE t (id bigint GENERATED BY DEFAULT AS IDENTITY, note text)"))
    writer = TableWriter("wh", "t")
    opening = WriteAction("new", "publish", "wh", 1, 1, pa.table({}), {"action": "begin"})
    insert = WriteAction("new", "publish", "wh", 2, 1, pa.table({"note": ["a", "b"]}), {"action": "insert"})
    warehouse.apply(marker(NEW), writer, [opening, insert])
    assert warehouse.read(TableRead("wh", "t")).to_pylist() == [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}]
    warehouse.close()
