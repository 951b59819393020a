"""Garbage collection reads through indexes: what has passed and what is kept costs nothing.

Every statement that it sends is explained by the database, in a log with many rows of every kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.effects import Effect, Kept
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from tests.support.garbage import expiry
from tests.support.logs import OUT, start_driver

KEPT_ROWS = 20_000
BIG = {"logio_event_log", "logio_event_data", "logio_event_lineage", "logio_state", "logio_read_action"}

EFFECTS: dict[str, Effect] = {
    "collect": fx.Collect(("receiver", "sender"), 100),
    "shared": fx.SweepShared(OUT, 0, 100),
    "events": expiry(OUT, limit=100),
    "reads": fx.ExpireLineage("receiver", Kept.READS, -1.0, 0, 100, "wh"),
    "states": fx.ExpireLineage("receiver", Kept.STATES, -1.0, 0, 100),
    "read actions": fx.ExpireLineage("sender", Kept.SOURCE_READS, -1.0, 0, 100, ports=("out",)),
}


def fill(store: SqlLogStore, run_id: int) -> None:
    """Kept rows of every kind, and a few that are garbage."""

    def log(n: int, operator: str, channel: str, *, kept: bool = True, port: str | None = "in") -> dict[str, Any]:
        sender = {"send_op": operator, "send_port": "out", "channel": channel}
        receiver = {"rec_op": "receiver", "rec_port": port, "inset_id": f"I{n}"}
        return {"run_id": run_id, "event_id": n, "status": "done", "kept": kept, **sender, **receiver}

    def body(n: int, operator: str, channel: str, *, kept: bool = True) -> dict[str, Any]:
        key = {"run_id": run_id, "send_op": operator, "channel": channel, "event_id": n}
        return {**key, "header": b"\x80", "body": b"body" * 30, "kept": kept, "logged_at": 1.0 if kept else None}

    many, few = range(1, KEPT_ROWS + 1), range(KEPT_ROWS + 1, KEPT_ROWS + 301)
    rows: dict[sa.Table, list[dict[str, Any]]] = {
        schema.event_log: [
            *(log(n, "sender", "out") for n in many),
            *(log(n, "receiver", "read:wh", port=None) for n in many),
            *(log(n, "receiver", "state:", port=None) for n in many),
            *(log(n, "sender", "side", kept=False) for n in few),
            *(log(n, "receiver", "state:", kept=False, port=None) for n in few),
        ],
        schema.event_data: [
            *(body(n, "sender", "out") for n in many),
            *(body(n, "receiver", "read:wh") for n in many),
            *(body(n, "sender", "side", kept=False) for n in few),
        ],
        schema.state: [{"run_id": run_id, "op": "receiver", "state_id": n, "sealed": b"s"} for n in (*many, *few)],
        schema.event_lineage: [
            {"run_id": run_id, "send_op": "receiver", "send_port": "out", "event_id": n, "inset_id": f"I{n}"}
            for n in many
            if n % 2
        ],
        schema.read_action: [
            {
                "run_id": run_id,
                "op": operator,
                "conn_id": connection,
                "action_id": n,
                "status": "complete",
                "action_desc": "{}",
                "kept": True,
            }
            for n in many
            for operator, connection in (("receiver", "wh"), ("sender", "source"))
        ],
    }
    with store.engine.begin() as connection:
        for table, values in rows.items():
            connection.execute(sa.insert(table), values)


@contextmanager
def explained(store: SqlLogStore, plans: list[tuple[str, str]]) -> Iterator[None]:
    """Collects the plan of every statement that deletes or reads rows, as it is sent."""
    prefix = "EXPLAIN QUERY PLAN " if store.engine.dialect.name == "sqlite" else "EXPLAIN "

    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, *_: object) -> None:
        if statement.startswith("SELECT set_config("):  # the settings of a transaction, in front of its first statement
            statement = statement.partition("; ")[2]
        if re.match(r"(DELETE|SELECT)", statement) and any(table in statement for table in BIG):
            other = cursor.connection.cursor()
            other.execute(prefix + statement, parameters)
            plans.append((statement, "\n".join(str(row[-1]) for row in other.fetchall())))
            other.close()

    sa.event.listen(store.engine, "before_cursor_execute", explain)
    try:
        yield
    finally:
        sa.event.remove(store.engine, "before_cursor_execute", explain)


@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "statistics"])
def test_no_statement_scans_what_is_kept(sql_store: SqlLogStore, analyzed: bool) -> None:
    driver = start_driver(sql_store)
    fill(sql_store, driver.run.run_id)
    if analyzed:
        with sql_store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")
    for name, effect in EFFECTS.items():
        plans: list[tuple[str, str]] = []
        with explained(sql_store, plans):
            driver.session.commit([effect])
        assert plans, name
        for statement, plan in plans:
            assert not scans(plan), f"{name}:\n{statement}\n{plan}"


def scans(plan: str) -> bool:
    """Whether a plan reads a large table from end to end."""
    whole = re.findall(r"Seq Scan on (\w+)", plan) + re.findall(r"SCAN (\w+)(?! VIRTUAL)", plan)
    # Run and operator alone find all that an operator has; but for what is garbage, in the index of garbage.
    whole += re.findall(
        r"SEARCH (\w+) USING (?!INDEX \w+_garbage|INTEGER PRIMARY KEY)[^(]*\([^ ]+(?: AND [^ ]+)?\)$",
        plan,
        re.MULTILINE,
    )
    return bool(BIG & set(whole)) or "Join Filter" in plan  # which compares every row with every other


@pytest.mark.parametrize("effect", ["collect"])
def test_the_partial_index_is_used(sql_store: SqlLogStore, effect: str) -> None:
    driver = start_driver(sql_store)
    fill(sql_store, driver.run.run_id)
    plans: list[tuple[str, str]] = []
    with explained(sql_store, plans):
        driver.session.commit([EFFECTS[effect]])
    assert "ix_logio_event_log_garbage" in plans[0][1]
    assert any("ix_logio_read_action_garbage" in plan for _, plan in plans)
