"""Rows that were changed by hand, or by a defect: recognized, and named."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from airflow_logio.errors import Fenced, LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import Context, encode_state
from airflow_logio.protocol.values import Status
from airflow_logio.store.rules.row_forms import unseal
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from tests.support.logs import Driver, assigned, fetched, sent, start_driver


@pytest.fixture
def driver(sql_store: SqlLogStore) -> Driver:
    """Event 1 is held, 2 is on its way, and a write action is pending."""
    driver = start_driver(sql_store)
    driver.session.commit([sent(1), sent(2), assigned(1, "A"), fx.LogWrite("receiver", "wh", 1, {}, 1, None, b"w")])
    return driver


def execute(store: SqlLogStore, statement: str) -> None:
    with store.engine.begin() as connection:
        assert connection.execute(sa.text(statement)).rowcount > 0


DAMAGE = {
    "header": "UPDATE logio_event_data SET header = {garbage} WHERE event_id = {id} AND channel = '{channel}'",
    "body": "UPDATE logio_event_data SET body = {garbage} WHERE event_id = {id} AND channel = '{channel}'",
    "row": "DELETE FROM logio_event_data WHERE event_id = {id} AND channel = '{channel}'",
}


def damage(store: SqlLogStore, what: str, event_id: int, channel: str = "out") -> None:
    garbage = "'\\x00'::bytea" if store.engine.dialect.name == "postgresql" else "x'00'"
    execute(store, DAMAGE[what].format(garbage=garbage, id=event_id, channel=channel))


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_event_is_named_when_it_is_fetched(sql_store: SqlLogStore, driver: Driver, what: str) -> None:
    damage(sql_store, what, 2)
    with pytest.raises(LogInconsistent, match=r"event 2 of sender\.out"):
        fetched(driver.session)


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_event_is_named_when_it_is_reloaded(sql_store: SqlLogStore, driver: Driver, what: str) -> None:
    damage(sql_store, what, 1)
    with pytest.raises(LogInconsistent, match=r"event 1 of sender\.out"):
        driver.session.recover(["receiver"])


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_write_action_is_named(sql_store: SqlLogStore, driver: Driver, what: str) -> None:
    damage(sql_store, what, 1, "write:wh")
    with pytest.raises(LogInconsistent, match="write action 1 of receiver on wh"):
        driver.session.recover(["receiver"])


@pytest.mark.parametrize("what", ["header", "body"])
def test_a_flipped_bit_of_an_event_is_named_in_every_way_that_reads_it(
    sql_store: SqlLogStore, driver: Driver, what: str
) -> None:
    """Delivery, recovery and lineage; one bit of each third byte (every bit: `unit/hostile/test_bodies.py`)."""
    row = (schema.event_data.c.event_id == 2, schema.event_data.c.channel == "out")
    with sql_store.engine.begin() as connection:
        whole = bytes(connection.execute(sa.select(schema.event_data.c[what]).where(*row)).scalar_one())
    end = len(whole) - 10 if what == "header" else len(whole)  # without the name of its seal, a header is an older one
    for place in range(0, end, 3):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        with sql_store.engine.begin() as connection:
            connection.execute(sa.update(schema.event_data).where(*row).values({what: bytes(flipped)}))
        with pytest.raises(LogInconsistent, match=r"event 2 of sender\.out"):
            fetched(driver.session)
        if what == "header":
            with sql_store.lineage(driver.run) as log, pytest.raises(LogInconsistent, match=r"event 2 of sender\.out"):
                list(log.headers("sender", "out", [2]))
    with sql_store.engine.begin() as connection:
        connection.execute(sa.update(schema.event_data).where(*row).values({what: whole}))
    assert fetched(driver.session) == [2]


EVERY = 13


@pytest.mark.parametrize("state_id", [0, 7])
def test_no_bit_of_a_state_changes_unnoticed(sql_store: SqlLogStore, driver: Driver, state_id: int) -> None:
    """The current state, and one as it was at a trigger. Decoding alone notices six of seven.

    Every bit of what is stored is flipped; the log is asked for a recovery with one of thirteen (no divisor of eight, so that
    each place within a byte has its turn).
    """
    context = Context(marks={"in": 3}, triggered=["A"], state_events={"A": 7})
    state = fx.StoreState("receiver", encode_state(context, {"sum": 5}))
    driver.session.commit([state, fx.LogStateEvent("receiver", 7, "A", state.data, Status.UNDONE)])
    row = (schema.state.c.op == "receiver", schema.state.c.state_id == state_id)
    with sql_store.engine.begin() as connection:
        sealed = bytes(connection.execute(sa.select(schema.state.c.sealed).where(*row)).scalar_one())
    for bit in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(LogInconsistent, match="the state of operator 'receiver' is damaged"):
            unseal("receiver", bytes(flipped))
        if bit % EVERY:
            continue
        with sql_store.engine.begin() as connection:
            connection.execute(sa.update(schema.state).where(*row).values(sealed=bytes(flipped)))
        with pytest.raises(LogInconsistent, match="the state of operator 'receiver' is damaged"):
            driver.session.recover(["receiver"])
    with sql_store.engine.begin() as connection:
        connection.execute(sa.update(schema.state).where(*row).values(sealed=sealed))
    assert driver.session.recover(["receiver"]).states == {"receiver": state.data}


def test_a_lost_snapshot_is_named(sql_store: SqlLogStore, driver: Driver) -> None:
    driver.session.commit([fx.LogStateEvent("receiver", 1, "A", b"at A")])
    execute(sql_store, "DELETE FROM logio_state WHERE state_id = 1")
    with pytest.raises(LogInconsistent, match="state event 1 of receiver"):
        driver.session.recover(["receiver"])


@pytest.mark.parametrize("column", ["state", "desired"])
def test_an_unknown_state_of_a_group_is_named(sql_store: SqlLogStore, driver: Driver, column: str) -> None:
    execute(sql_store, f"UPDATE logio_group SET {column} = 'resting'")
    with pytest.raises(LogInconsistent, match="group 'g' is 'resting'"):
        sql_store.group(driver.run.run_id, "g")
    with pytest.raises(LogInconsistent, match="group 'g' is 'resting'"):
        if column == "state":
            sql_store.declare_dead(driver.ref, "test")
        else:
            sql_store.heartbeat(driver.ref, 1, ready=True, rss_bytes=0)


def test_an_unknown_state_of_a_run_is_named(sql_store: SqlLogStore, driver: Driver) -> None:
    execute(sql_store, "UPDATE logio_run SET state = 'resting'")
    with pytest.raises(LogInconsistent, match=f"{driver.run.uid}.*its state is 'resting'"):
        sql_store.find_run(driver.run.uid)


def test_an_unreadable_run_is_named(sql_store: SqlLogStore, driver: Driver) -> None:
    execute(sql_store, "UPDATE logio_run SET spec = '{}'")
    with pytest.raises(LogInconsistent, match=f"{driver.run.uid}.*its description cannot be read"):
        sql_store.find_run(driver.run.uid)


def test_a_deleted_fence_row_fences(sql_store: SqlLogStore, driver: Driver) -> None:
    execute(sql_store, "DELETE FROM logio_fence")
    with pytest.raises(Fenced, match="not in the log any more"):
        driver.session.commit([])


def test_no_bit_of_what_a_read_action_has_read_changes_unnoticed(sql_store: SqlLogStore, driver: Driver) -> None:
    """Its description is what lineage answers: from which file, queue or table. It stays with its action."""
    told = {"path": "/data/März/sales.parquet", "rows": 5}
    begun = [fx.StartReadAction("source", "source", number, told, kept=True) for number in (1, 2)]
    driver.session.commit([*begun, fx.StartReadAction("source", "other", 1, {}, kept=True)])
    table, is_sqlite = schema.read_action, sql_store.engine.dialect.name == "sqlite"
    first = (table.c.conn_id == "source", table.c.action_id == 1)

    def found(action_id: int = 1, connection: str = "source") -> list[tuple[int, dict[str, object]]]:
        with sql_store.lineage(driver.run) as log:
            return list(log.read_actions("source", connection, [action_id]))

    def store_text(data: bytes) -> None:
        value = "CAST(:data AS TEXT)" if is_sqlite else "CAST(:data AS bytea)::text"
        update = f"UPDATE {table.name} SET action_desc = {value} WHERE conn_id = 'source' AND action_id = 1"
        with sql_store.engine.begin() as connection:
            assert connection.execute(sa.text(update), {"data": data}).rowcount == 1

    if not is_sqlite:
        execute_ddl(
            sql_store, "CREATE CAST (bytea AS text) WITHOUT FUNCTION"
        )  # no statement writes bytes that are no text
    with sql_store.engine.begin() as connection:
        whole = connection.execute(sa.select(table.c.action_desc).where(*first)).scalar_one().encode()
    harmless = 0
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        if bit % 8 != 7 and bit // 8 < len(whole) - 20 and bit % 3:
            continue  # a third of the bits, all of those that make it no text, and all of the last key
        store_text(bytes(flipped))
        try:
            (read,) = found()
        except LogInconsistent as error:
            assert "read action 1 of 'source' on 'source'" in str(error)
            assert driver.run.uid in str(error) and table.name in str(error)
            assert found(2) == [(2, told)]
        else:
            assert {name: read[1][name] for name in told} == told
            harmless += 1
    assert 0 < harmless < 130, "in the last key itself, whose name no version before it knows"
    store_text(whole)
    assert found() == [(1, told)]
    assert found(connection="other") == [(1, {})]
    with sql_store.engine.begin() as connection:
        connection.execute(sa.update(table).where(*first).values(action_id=3))
    with pytest.raises(LogInconsistent, match="read action 3"):
        found(3)


def execute_ddl(store: SqlLogStore, statement: str) -> None:
    with store.engine.begin() as connection:
        connection.execute(sa.text(statement))
