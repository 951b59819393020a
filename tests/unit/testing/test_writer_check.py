"""The check of an author's writer: it passes what is right, and says in words what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from airflow_logio.dataflow import (
    CheckableWriter,
    ConditionalWriter,
    IdempotentWriter,
    Marker,
    ParquetWriter,
    WriteAction,
)
from airflow_logio.testing.writers import check_writer

System = dict[str, Any]
RECORDS = [pa.table({"a": [number]}) for number in range(4)]


def amount(action: WriteAction) -> int:
    return int(action.records.column("a")[0].as_py())


class _InMemory:
    system: System

    @contextmanager
    def connect(self, url: str) -> Iterator[System]:
        yield self.system


class Right(_InMemory, ConditionalWriter[System]):
    def apply(self, client: System, marker: Marker, actions: Sequence[WriteAction]) -> None:
        for action in marker.unapplied(actions, *client["markers"].get(marker.key, (0, 0))):
            client["rows"].append(amount(action))
        client["markers"][marker.key] = (actions[-1].number, marker.token)


class WithoutMarker(Right):
    def apply(self, client: System, marker: Marker, actions: Sequence[WriteAction]) -> None:
        client["rows"] += map(amount, actions)


class WithoutToken(Right):
    def apply(self, client: System, marker: Marker, actions: Sequence[WriteAction]) -> None:
        number, _ = client["markers"].get(marker.key, (0, 0))
        for action in marker.unapplied(actions, number):
            client["rows"].append(amount(action))
        client["markers"][marker.key] = (actions[-1].number, marker.token)


class AllOrNothing(Right):
    """Takes a group that was applied in part for one that was applied whole."""

    def apply(self, client: System, marker: Marker, actions: Sequence[WriteAction]) -> None:
        number, token = client["markers"].get(marker.key, (0, 0))
        if len(marker.unapplied(actions, number, token)) == len(actions):
            client["rows"] += map(amount, actions)
        client["markers"][marker.key] = (actions[-1].number, marker.token)


class Askable(_InMemory, CheckableWriter[System]):
    def is_applied(self, client: System, action: WriteAction) -> bool:
        return action.key in client["keys"]

    def write(self, client: System, action: WriteAction) -> None:
        client["rows"].append(amount(action))
        client["keys"].add(action.key)


class AskedByNumber(Askable):
    def is_applied(self, client: System, action: WriteAction) -> bool:
        return any(key.endswith(f"/{action.number}") for key in client["keys"])


class Forgetful(Askable):
    def is_applied(self, client: System, action: WriteAction) -> bool:
        return False


class Put(_InMemory, IdempotentWriter[System]):
    def write(self, client: System, action: WriteAction) -> None:
        client["values"][action.key] = amount(action)


class Appended(Put):
    def write(self, client: System, action: WriteAction) -> None:
        client["rows"].append(amount(action))


def check(writer: Any) -> System:
    system: System = {"rows": [], "markers": {}, "keys": set(), "values": {}}
    writer.system = system
    check_writer(writer, "memory:", RECORDS, lambda: (list(system["rows"]), sorted(system["values"].items())))
    return system


@pytest.mark.parametrize("kind", [Right, Askable, Put])
def test_a_right_writer_passes(kind: Any) -> None:
    system = check(kind("crm"))
    assert (system["rows"] or list(system["values"].values())) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (WithoutMarker, "write actions 1 and 2 were executed again after a recovery, and have changed something"),
        (WithoutToken, "a driver with token 1 may write although token 3 has written"),
        (AllOrNothing, "write action 3 was lost behind actions that were executed before"),
        (AskedByNumber, "is_applied says yes for another run's write action"),
        (Forgetful, "write actions 1 and 2 were executed again after a recovery, and have changed something"),
        (Appended, "write actions 1 and 2 were executed again after a recovery, and have changed something"),
    ],
)
def test_a_wrong_writer_is_told_what_is_wrong(kind: Any, words: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check(kind("crm"))
    assert words in str(caught.value)


def test_a_check_that_sees_nothing_says_so() -> None:
    writer = Put("crm")
    writer.system = {"values": {}}
    with pytest.raises(AssertionError, match="have changed nothing that `contents` sees"):
        check_writer(writer, "memory:", RECORDS, lambda: None)


def test_the_ready_made_writer_of_files_passes(tmp_path: Path) -> None:
    def contents() -> list[int]:
        found = ds.dataset(tmp_path, format="parquet").to_table()
        return sorted(found.column("a").to_pylist()) if "a" in found.column_names else []

    check_writer(ParquetWriter("lake"), str(tmp_path), RECORDS, contents)
    assert contents() == [0, 1, 2, 3]
