"""`AddressBook` in memory."""

from __future__ import annotations

from airflow_logio.store.address_port import AddressBook, DirectAddress
from airflow_logio.store.memory.tables import GroupKey, Tables
from airflow_logio.store.records import GroupRef


class MemoryAddressBook(AddressBook):
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def put(self, ref: GroupRef, address: DirectAddress) -> None:
        key = GroupKey(ref.run_id, ref.group)
        with self._tables.transaction():  # what is not put wakes no session, as with heartbeats
            before = self._tables.addresses.get(key)
            if before is None or before.incarnation <= address.incarnation:
                self._tables.addresses[key] = address

    def of_group(self, run_id: int, group: str) -> DirectAddress | None:
        with self._tables.transaction():
            return self._tables.addresses.get(GroupKey(run_id, group))
