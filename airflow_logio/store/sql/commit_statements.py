"""The statements of every commit, each built once: to build one takes longer than the server takes to execute it.

They change rows that are there: events are assigned to Input Sets, Input Sets concluded, states stored, counters raised.
Parameters begin with ``b_``, so that none of them is taken for a column. Rows are added by `bulk_rows`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from airflow_logio.protocol.values import Status
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import now

_RUN = sa.bindparam("b_run", type_=sa.BigInteger)


@cache
def pass_fence() -> sa.Update:
    """Raise the commit number of an incarnation (`b_group`, `b_incarnation`, `b_epoch`) from `b_before` to `b_number`."""
    table = schema.fence
    return (
        sa.update(table)
        .where(
            table.c.run_id == _RUN,
            table.c.group_name == sa.bindparam("b_group"),
            table.c.incarnation == sa.bindparam("b_incarnation"),
            table.c.epoch == sa.bindparam("b_epoch"),
            table.c.commit_no == sa.bindparam("b_before"),
        )
        .values(commit_no=sa.bindparam("b_number"))
    )


@cache
def assign(dialect: str) -> sa.Update:
    """Assign waiting events of a receiver (`b_op`, `b_port`) to Input Sets.

    On PostgreSQL `b_event_ids`, `b_insets` and `b_statuses` are arrays; on SQLite an event is a row of parameters:
    `b_event_id`, `b_inset`, `b_status`.
    """
    table = schema.event_log
    if dialect != "postgresql":
        row = (*_waits(table), table.c.event_id == sa.bindparam("b_event_id"))
        return sa.update(table).where(*row).values(inset_id=sa.bindparam("b_inset"), status=sa.bindparam("b_status"))
    arrays = [_array("b_event_ids", sa.BigInteger), _array("b_insets", sa.Text), _array("b_statuses", sa.Text)]
    given = sa.func.unnest(*arrays).table_valued("event_id", "inset_id", "status").render_derived(name="given")
    log = table.alias("log")
    found = _looked_up(sa.select(log.c.row_id).where(*_waits(log)), log.c.event_id, given.c.event_id)
    rows = (
        sa.select(found.c.row_id, given.c.inset_id, given.c.status).join_from(given, found, sa.true()).subquery("rows")
    )
    return (
        sa.update(table)
        .where(table.c.row_id == rows.c.row_id, table.c.status == Status.UNDONE.value)
        .values(inset_id=rows.c.inset_id, status=rows.c.status)
    )


def _waits(log: Any) -> Sequence[sa.ColumnElement[bool]]:
    """As in `delivery`: worded so that the index of Input Sets is of no use."""
    return (
        log.c.run_id == _RUN,
        log.c.rec_op == sa.bindparam("b_op"),
        log.c.rec_port == sa.bindparam("b_port"),
        (log.c.inset_id + "").is_(None),
        log.c.status == Status.UNDONE.value,
        # A pending write action looks the same, if its connection has the name of this port.
        log.c.send_port.is_not(None),
    )


@cache
def conclude(dialect: str) -> sa.Executable:
    """Give the undone rows of Input Sets of `b_op` the status `b_status`.

    The Input Sets are `b_insets`, as `listed` gives them. Returns (Input Set, input port) of each row, on PostgreSQL with
    how many there are.
    """
    table = schema.event_log
    if dialect != "postgresql":
        wanted = sa.func.json_each(sa.bindparam("b_insets")).table_valued("value")
        undone = (*_undone(table), table.c.inset_id.in_(sa.select(wanted.c.value)))
        update = sa.update(table).where(*undone).values(status=sa.bindparam("b_status"))
        return update.returning(table.c.inset_id, table.c.rec_port)
    given = sa.func.unnest(_array("b_insets", sa.Text)).table_valued("inset_id").render_derived(name="given")
    log = table.alias("log")
    found = _looked_up(sa.select(log.c.row_id).where(*_undone(log)), log.c.inset_id, given.c.inset_id)
    rows = sa.select(found.c.row_id).join_from(given, found, sa.true()).subquery("rows")
    update = sa.update(table).where(table.c.row_id == rows.c.row_id, table.c.status == Status.UNDONE.value)
    moved = update.values(status=sa.bindparam("b_status")).returning(table.c.inset_id, table.c.rec_port).cte("moved")
    query = sa.select(moved.c.inset_id, moved.c.rec_port, sa.func.count())
    return query.group_by(moved.c.inset_id, moved.c.rec_port)


def _undone(log: Any) -> Sequence[sa.ColumnElement[bool]]:
    return (log.c.run_id == _RUN, log.c.rec_op == sa.bindparam("b_op"), log.c.status == Status.UNDONE.value)


def _looked_up(rows: sa.Select[Any], column: sa.ColumnElement[Any], key: sa.ColumnElement[Any]) -> Any:
    """Those rows whose `column` is the key, looked up by PostgreSQL in the index that ends with it, one key at a time.

    Its statistics of a new log say that there is one row, and then every index that begins alike is as good as the right
    one: all rows of the operator would be read for each commit, or for each key. To put them in order only the right one
    will do. OFFSET keeps the look-ups from becoming a join, and an equation would say that there is nothing to order.
    """
    return rows.where(column >= key, column <= key).order_by(column).offset(sa.literal_column("0")).lateral("found")


def listed(dialect: str, values: Sequence[str]) -> Any:
    """Texts as the one parameter that `conclude` takes."""
    return list(values) if dialect == "postgresql" else json.dumps(list(values))


@cache
def store_state(dialect: str) -> sa.Insert:
    """Takes rows of STATE."""
    insert = _insert(dialect, schema.state)
    return insert.on_conflict_do_update(  # type: ignore[no-any-return]
        index_elements=["run_id", "op", "state_id"], set_={"sealed": insert.excluded.sealed}
    )


@cache
def count(dialect: str) -> sa.Insert:
    """Add to counters. Takes rows without their times: these are the database's."""
    table = schema.port_counter
    given = [column.name for column in table.columns if not column.name.endswith("_at")]
    clock = now(dialect)
    insert = _insert(dialect, table).values(
        **{name: sa.bindparam(name) for name in given}, first_at=clock, last_at=clock
    )
    added = {name: table.c[name] + insert.excluded[name] for name in ("events", "records", "bytes")}
    return insert.on_conflict_do_update(  # type: ignore[no-any-return]
        index_elements=["run_id", "op", "port", "direction"], set_={**added, "last_at": insert.excluded.last_at}
    )


def _insert(dialect: str, table: sa.Table) -> Any:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def _array(name: str, kind: type[sa.types.TypeEngine[Any]]) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=postgresql.ARRAY(kind))
