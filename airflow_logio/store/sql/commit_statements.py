"""The statements of every commit, each built once: to build one takes longer than the server takes to execute it.

They change rows that are there: events are assigned to Input Sets, Input Sets concluded, states stored, counters raised so
that figures need not read events.
Parameters begin with ``b_``, so that none of them is taken for a column. Rows are added by `bulk`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection
from sqlalchemy.sql.dml import ReturningUpdate

from airflow_logio.protocol.values import Port, Status
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import inserting, now

_RUN = sa.bindparam("b_run", type_=sa.BigInteger)


@cache
def pass_fence(dialect: str) -> ReturningUpdate[Any]:
    """Raise the commit number of an incarnation (`b_group`, `b_incarnation`, `b_epoch`) from `b_before` to `b_number`.

    Returns the time by the database's clock, or no row if the commit number is another one.
    """
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
        .returning(now(dialect))
    )


@cache
def assign(dialect: str) -> sa.Update:
    """Assign waiting events of a receiver (`b_op`, `b_port`) to Input Sets.

    On PostgreSQL `b_event_ids`, `b_insets` and `b_statuses` are arrays; on SQLite an event is a row of parameters:
    `b_event_id`, `b_inset`, `b_status`.
    """
    table = schema.event_log
    waiting = sa.update(table).where(
        table.c.run_id == _RUN,
        table.c.rec_op == sa.bindparam("b_op"),
        table.c.rec_port == sa.bindparam("b_port"),
        table.c.inset_id.is_(None),
        table.c.status == Status.UNDONE.value,
        # A pending write action looks the same, if its connection has the name of this port.
        table.c.send_port.is_not(None),
    )
    if dialect == "postgresql":
        arrays = [_array("b_event_ids", sa.BigInteger), _array("b_insets", sa.Text), _array("b_statuses", sa.Text)]
        columns = ("event_id", "inset_id", "status")
        rows = sa.func.unnest(*arrays).table_valued(*columns).render_derived(name="assigned")
        return waiting.where(table.c.event_id == rows.c.event_id).values(inset_id=rows.c.inset_id, status=rows.c.status)
    return waiting.where(table.c.event_id == sa.bindparam("b_event_id")).values(
        inset_id=sa.bindparam("b_inset"), status=sa.bindparam("b_status")
    )


@cache
def conclude(dialect: str) -> sa.Executable:
    """Give the undone rows of Input Sets of `b_op` the status `b_status`.

    The Input Sets are `b_insets`, as `listed` gives them. Returns (Input Set, input port) of each row, on PostgreSQL with
    how many there are.
    """
    table = schema.event_log
    update = (
        sa.update(table)
        .where(
            table.c.run_id == _RUN,
            table.c.rec_op == sa.bindparam("b_op"),
            table.c.status == Status.UNDONE.value,
            _is_listed(dialect, table.c.inset_id, "b_insets"),
        )
        .values(status=sa.bindparam("b_status"))
        .returning(table.c.inset_id, table.c.rec_port)
    )
    if dialect != "postgresql":
        return update
    moved = update.cte("moved")
    query = sa.select(moved.c.inset_id, moved.c.rec_port, sa.func.count())
    return query.group_by(moved.c.inset_id, moved.c.rec_port)


def listed(dialect: str, values: Sequence[str]) -> Any:
    """Texts as the one parameter that `conclude` takes."""
    return list(values) if dialect == "postgresql" else json.dumps(list(values))


def _is_listed(dialect: str, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
    if dialect == "postgresql":
        return column == sa.any_(_array(name, sa.Text))
    wanted = sa.func.json_each(sa.bindparam(name)).table_valued("value")
    return column.in_(sa.select(wanted.c.value))


@cache
def end_writes() -> sa.Update:
    """Give the pending write actions `b_first` to `b_last` of `b_op` on `b_channel` the status done."""
    table = schema.event_log
    pending = (
        table.c.run_id == _RUN,
        table.c.send_op == sa.bindparam("b_op"),
        table.c.channel == sa.bindparam("b_channel"),
        table.c.event_id.between(sa.bindparam("b_first"), sa.bindparam("b_last")),
        table.c.status == Status.UNDONE.value,
    )
    return sa.update(table).where(*pending).values(status=Status.DONE.value)


@cache
def store_state(dialect: str) -> sa.Insert:
    """Takes rows of STATE."""
    insert = inserting(dialect, schema.state)
    return insert.on_conflict_do_update(  # type: ignore[no-any-return]
        index_elements=["run_id", "op", "state_id"], set_={"sealed": insert.excluded.sealed}
    )


@cache
def count(dialect: str) -> sa.Insert:
    """Add to counters of run `b_run`; the times are the database's.

    On PostgreSQL a column is one parameter, ``b_op`` and so on, an array; on SQLite a counter is a row of them.
    """
    table = schema.port_counter
    given = [column for column in table.columns if column.name != "run_id" and not column.name.endswith("_at")]
    names, clock = [column.name for column in given], now(dialect)
    if dialect == "postgresql":
        arrays = [_array(f"b_{column.name}", type(column.type)) for column in given]
        rows = sa.func.unnest(*arrays).table_valued(*names).render_derived(name="counted")
        values = sa.select(_RUN, *rows.c, clock, clock)
        insert = inserting(dialect, table).from_select(["run_id", *names, "first_at", "last_at"], values)
    else:
        parameters: dict[str, Any] = {name: sa.bindparam(f"b_{name}") for name in names}
        insert = inserting(dialect, table).values(run_id=_RUN, **parameters, first_at=clock, last_at=clock)
    added = {name: table.c[name] + insert.excluded[name] for name in ("events", "records", "bytes")}
    return insert.on_conflict_do_update(  # type: ignore[no-any-return]
        index_elements=["run_id", "op", "port", "direction"], set_={**added, "last_at": insert.excluded.last_at}
    )


_PARAMETERS = ("b_op", "b_port", "b_direction", "b_events", "b_records", "b_bytes")


def add_to_counters(connection: Connection, run_id: int, counts: Mapping[tuple[Port, str], Sequence[int]]) -> None:
    """Add events, records and bytes, or subtract them, by (port, direction), in the transaction that changes the
    numbers."""
    changed = {key: total for key, total in counts.items() if any(total)}
    if not changed:
        return
    rows = [(*port, direction, *total) for (port, direction), total in changed.items()]
    statement, run = count(connection.dialect.name), {"b_run": run_id}
    if connection.dialect.name == "postgresql":
        connection.execute(statement, run | dict(zip(_PARAMETERS, map(list, zip(*rows, strict=True)), strict=True)))
    else:
        connection.execute(statement, [run | dict(zip(_PARAMETERS, row, strict=True)) for row in rows])


def _array(name: str, kind: type[sa.types.TypeEngine[Any]]) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=postgresql.ARRAY(kind))
