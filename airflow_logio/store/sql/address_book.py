"""`AddressBook` over SQL: rows beside the heartbeats, on SQLite in their file, so that they wait for no writer of the log."""

from __future__ import annotations

from dataclasses import fields

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_logio.store.port.unfenced_port import AddressBook, DirectAddress
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import inserting, reading, writing

_NAMES = tuple(field.name for field in fields(DirectAddress))


class SqlAddressBook(AddressBook):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def put(self, ref: GroupRef, address: DirectAddress) -> None:
        table = schema.address
        keys = {"run_id": ref.run_id, "group_name": ref.group}
        values = {name: getattr(address, name) for name in _NAMES}
        with writing(self._engine, durable=False) as connection:
            insert = inserting(connection.dialect.name, table).values(**keys, **values)
            is_later = table.c.incarnation <= address.incarnation
            connection.execute(insert.on_conflict_do_update(index_elements=list(keys), set_=values, where=is_later))

    def of_group(self, run_id: int, group: str) -> DirectAddress | None:
        table = schema.address
        query = sa.select(*(table.c[name] for name in _NAMES)).where(
            table.c.run_id == run_id, table.c.group_name == group
        )
        with reading(self._engine) as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else DirectAddress(*row)
