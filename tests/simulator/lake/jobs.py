"""The jobs of Spark that a simulated driver runs: each file that a task writes is two steps, and so is what makes a manifest.

A task attempt that loses leaves its file; the job's result does not name it (ADR-80).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from airflow_logio.protocol.values import Port
from airflow_logio.spark.spark_effects import put_effect
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.manifests import DataFile, Manifest, in_order
from airflow_logio.testing.simulator.stepwise import Steps
from tests.simulator.lake.storage import Record, SimulatedStorage, data_file, encoded

SCHEMA = '{"fields":[],"type":"struct"}'
"""The schema of every simulated DataFrame, as Spark has it."""
TASK_RECORDS = 3
"""Most records of a task, and so of a file."""
LOSES_EVERY = 3
"""One in so many files is written by an attempt that loses as well: another one of the same task is faster."""


class Piece(NamedTuple):
    """What one task writes."""

    records: Sequence[Record]
    partition: tuple[str, ...] = ()


class SimulatedJobs:
    """The jobs of one epoch. `arrow` is the schema of all records, as Arrow has it."""

    def __init__(self, storage: SimulatedStorage, payloads: EpochPayloads, arrow: str) -> None:
        self._storage = storage
        self._payloads = payloads
        self._arrow = arrow
        self._written = 0

    def materialized(
        self, where: str, purpose: str, records: Iterable[Record], partition_by: Sequence[str] = ()
    ) -> Steps[Dataset]:
        """As `dataset_jobs.materialized`."""
        files = yield from self._files(purpose, _pieces(records, partition_by))
        return self._put(where, purpose, files)

    def materialized_sets(
        self, where: Sequence[str], purpose: str, sets: Mapping[int, Sequence[Record]]
    ) -> Steps[Mapping[int, Dataset]]:
        """As `dataset_jobs.materialized_sets`, of the records of each place."""
        pieces = [
            Piece(piece.records, (str(place),)) for place, records in sets.items() for piece in _pieces(records, ())
        ]
        files = yield from self._files(purpose, pieces)
        made: dict[int, Dataset] = {}
        for place in sorted(sets):
            own = [DataFile(f.path, f.size, f.records, f.footer) for f in files if f.partition == (str(place),)]
            if own:
                made[place] = self._put(where[place], purpose, own)
                yield
        return made

    def effect(
        self, port: Port, action_id: int, records: Iterable[Record], bytes_per_event: int | None, *, named: bool
    ) -> Steps[tuple[str, int]]:
        """As `spark_effects.store_frame`, of records in order."""
        files = yield from self._files(f"datasets/{port}/{action_id}", _pieces(records, ()))
        return (
            yield from put_effect(
                self._payloads, port, action_id, files, SCHEMA, self._arrow, bytes_per_event, named=named
            )
        )

    def _put(self, where: str, purpose: str, files: Sequence[DataFile]) -> Dataset:
        return self._payloads.put(where, purpose, Manifest(SCHEMA, self._arrow, in_order(files)))

    def _files(self, purpose: str, pieces: Sequence[Piece]) -> Steps[list[DataFile]]:
        """What the job returns: durable files. Those of attempts that lost are beside them."""
        folder = self._payloads.new_folder(purpose)
        yield
        files = []
        for piece in pieces:
            self._written += 1
            if self._written % LOSES_EVERY == 0:
                yield from self._attempt(folder, piece)
            files.append((yield from self._attempt(folder, piece)))
        return files

    def _attempt(self, folder: str, piece: Piece) -> Steps[DataFile]:
        path, content = f"{folder}/{self._storage.new_name()}", encoded(piece.records)
        self._storage.begin(path, content[: len(content) // 2])
        yield
        self._storage.sync(path, content)
        yield
        return data_file(path, content, len(piece.records), piece.partition)


def _pieces(records: Iterable[Record], partition_by: Sequence[str]) -> list[Piece]:
    """What each task gets; of a partitioned folder, by the first value of a record."""
    if not partition_by:
        listed = list(records)
        return [Piece(listed[n : n + TASK_RECORDS]) for n in range(0, len(listed), TASK_RECORDS)]
    by_value = groupby(sorted(records, key=_first), _first)
    return [
        Piece(piece.records, (f"{partition_by[0]}={value}",))
        for value, group in by_value
        for piece in _pieces(group, ())
    ]


def _first(record: Record) -> Any:
    return record[0]
