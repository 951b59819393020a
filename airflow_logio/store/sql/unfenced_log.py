"""Output and addresses of drivers: rows beside the heartbeats, on SQLite in their file, so they wait for no writer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_logio.store.port.unfenced_port import KEPT_INCARNATIONS, AddressBook, DirectAddress, OutputLog, OutputPart
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import inserting, now, reading, writing


class SqlOutputLog(OutputLog):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, ref: GroupRef, number: int, position: int, text: str, *, mark: str = "", oldest: int = 1) -> None:
        table = schema.output
        keys = {"run_id": ref.run_id, "group_name": ref.group, "incarnation": ref.incarnation}
        with writing(self._engine, durable=False) as connection:
            clock = now(connection.dialect.name)
            values = {"number": number, "position": position, "mark": mark, "at": clock, "text": text}
            insert = inserting(connection.dialect.name, table).values(**keys, **values)
            connection.execute(insert.on_conflict_do_nothing(index_elements=[*keys, "number"]))
            if oldest > 1:
                of_driver = (table.c[name] == value for name, value in keys.items())
                connection.execute(sa.delete(table).where(*of_driver, table.c.number < oldest))
            if number == 1:
                of_group = (table.c.run_id == ref.run_id, table.c.group_name == ref.group)
                before = table.c.incarnation < ref.incarnation - KEPT_INCARNATIONS
                connection.execute(sa.delete(table).where(*of_group, before))

    def parts(
        self, run_id: int, group: str, incarnation: int, *, after: int = 0, most: int | None = None
    ) -> Sequence[OutputPart]:
        table = schema.output
        of_driver = (table.c.run_id == run_id, table.c.group_name == group, table.c.incarnation == incarnation)
        query = sa.select(table).where(*of_driver, table.c.number > after).order_by(table.c.number.desc()).limit(most)
        with reading(self._engine) as connection:
            return [_part(row) for row in connection.execute(query)][::-1]

    def written_since(self, run_ids: Collection[int], at: float, *, most: int) -> Mapping[int, Sequence[OutputPart]]:
        if not run_ids:
            return {}
        table = schema.output
        driver = (table.c.run_id, table.c.group_name, table.c.incarnation)
        rank = sa.func.row_number().over(partition_by=driver, order_by=table.c.number.desc()).label("rank")
        ranked = sa.select(table, rank).where(table.c.run_id.in_(run_ids), table.c.at > at).subquery()
        order = (ranked.c.run_id, ranked.c.group_name, ranked.c.incarnation, ranked.c.number)
        found: dict[int, list[OutputPart]] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(sa.select(ranked).where(ranked.c.rank <= most).order_by(*order)):
                found.setdefault(row.run_id, []).append(_part(row))
        return found


def _part(row: sa.Row[Any]) -> OutputPart:
    return OutputPart(row.group_name, row.incarnation, row.number, row.position, row.mark, row.at, row.text)


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
