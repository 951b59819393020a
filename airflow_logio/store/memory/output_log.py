"""`OutputLog` in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from airflow_logio.store.memory.tables import GroupKey, Tables
from airflow_logio.store.output_port import KEPT_INCARNATIONS, OutputLog, OutputPart
from airflow_logio.store.records import GroupRef


class MemoryOutputLog(OutputLog):
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def add(self, ref: GroupRef, number: int, position: int, text: str, *, mark: str = "", oldest: int = 1) -> None:
        tables, group = self._tables, GroupKey(ref.run_id, ref.group)
        with tables.transaction():  # what is not put wakes no session, as with heartbeats
            parts = tables.output.setdefault((group, ref.incarnation), {})
            part = OutputPart(ref.group, ref.incarnation, number, position, mark, tables.now(), text)
            parts.setdefault(number, part)
            for gone in [one for one in parts if one < oldest]:
                del parts[gone]
            if number == 1:
                first = ref.incarnation - KEPT_INCARNATIONS
                for old in [key for key in tables.output if key[0] == group and key[1] < first]:
                    del tables.output[old]

    def parts(
        self, run_id: int, group: str, incarnation: int, *, after: int = 0, most: int | None = None
    ) -> Sequence[OutputPart]:
        with self._tables.transaction():
            parts = self._tables.output.get((GroupKey(run_id, group), incarnation), {})
            found = [parts[number] for number in sorted(parts) if number > after]
        return found if most is None else found[max(0, len(found) - most) :]

    def written_since(self, run_ids: Collection[int], at: float, *, most: int) -> Mapping[int, Sequence[OutputPart]]:
        found: dict[int, list[OutputPart]] = {}
        with self._tables.transaction():
            for key, incarnation in sorted(self._tables.output):
                parts = self._tables.output[key, incarnation]
                late = [parts[number] for number in sorted(parts) if parts[number].at > at][-most:]
                if key.run_id in run_ids and late:
                    found.setdefault(key.run_id, []).extend(late)
        return found
