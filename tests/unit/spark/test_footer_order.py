"""The order of files, as their footers prove it: every order that there is is found, everything else is refused."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.errors import OperatorFailed
from airflow_logio.spark.spark_effects import in_proven_order
from airflow_logio.systems.payloads import EpochPayloads, Payloads
from airflow_logio.systems.payloads.manifests import DataFile
from tests.support.datasets import dataset_of


@pytest.fixture
def epoch(tmp_path: Path) -> EpochPayloads:
    return Payloads(str(tmp_path)).epoch("run", "g", 1, 0)


def files_of(epoch: EpochPayloads, *columns: Any, kind: Any = None) -> list[DataFile]:
    """A file per list of values; a list of lists is a file of several row groups."""
    found: list[DataFile] = []
    for number, values in enumerate(columns):
        groups = values if values and isinstance(values[0], list) else [values]
        batches = [pa.record_batch({"at": pa.array(group, kind), "note": ["x"] * len(group)}) for group in groups]
        found += dataset_of(epoch, pa.Table.from_batches(batches), purpose=f"d/{number}").manifest.files
    return found


def values_of(epoch: EpochPayloads, files: list[DataFile]) -> list[Any]:
    tables = [pa.parquet.read_table(Path(epoch.root) / file.path, partitioning=None) for file in files]
    return list(pa.concat_tables(tables).column("at").to_pylist())


def test_files_that_follow_each_other_are_put_in_order(epoch: EpochPayloads) -> None:
    """Drawn at random, cut at random, equal values on both sides of a cut; compared with `sorted`."""
    rng = random.Random(5)
    for attempt in range(6):
        values = sorted(rng.randrange(-20, 20) for _ in range(40))
        cuts = sorted(rng.sample(range(1, 40), rng.randrange(0, 12)))
        columns = [values[a:b] for a, b in itertools.pairwise([0, *cuts, 40])]
        rng.shuffle(columns)
        made = files_of(epoch, *columns)
        assert values_of(epoch, in_proven_order(epoch.files, made, "at")) == values, attempt


def parsed(kind: Any, text: str) -> Any:
    if pa.types.is_integer(kind):
        return int(text)
    return dt.date.fromisoformat(text[:10]) if pa.types.is_date(kind) else dt.datetime.fromisoformat(text)


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32(), pa.int8(), pa.int16()])
def test_times_and_small_numbers_are_compared_as_they_are(epoch: EpochPayloads, kind: Any) -> None:
    values = [
        ["1582-10-04T00:00", "1969-12-31T00:00"],
        ["1970-01-01T00:00", "2024-03-31T02:30"],
        ["9999-12-31T00:00"],
    ]
    if pa.types.is_integer(kind):
        values = [["-100", "-1"], ["0", "1"], ["100"]]
    columns = [[parsed(kind, one) for one in column] for column in values]
    made = files_of(epoch, *reversed(columns), kind=kind)
    found = values_of(epoch, in_proven_order(epoch.files, made, "at"))
    assert [str(one)[:10] for one in found] == [str(one)[:10] for column in values for one in column]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (([1, 5], [4, 9]), r"files are not in the order of column 'at', .*one ends at 5, the next begins at 4"),
        (([1, 9], [3, 3]), r"one ends at 9, the next begins at 3"),
        (([1, 5], [1, 5]), r"one ends at 5, the next begins at 1"),
        (
            ([[4, 6], [1, 3]],),
            r"parts of a file are not in the order of column 'at'.* one ends at 6, the next begins at 1",
        ),
        (
            ([1, 2], [3, None, None]),
            r"'at', by which the source is ordered, is null in 2 records of .*: fill it, or leave",
        ),
        (([None, 4], [3, 3]), r"is null in 1 records"),
    ],
)
def test_files_that_overlap_and_nulls_are_refused(epoch: EpochPayloads, columns: Any, says: str) -> None:
    with pytest.raises(OperatorFailed, match=says):
        in_proven_order(epoch.files, files_of(epoch, *columns), "at")


def test_a_file_that_does_not_say_is_refused(epoch: EpochPayloads) -> None:
    """Texts are in the footer as bytes, cut to a length; numbers with fractions leave NaN out."""
    for values in (["a", "b"], [0.5, 1.5]):
        with pytest.raises(OperatorFailed, match=r"does not say between which values its column 'at' is"):
            in_proven_order(epoch.files, files_of(epoch, values), "at")


def test_no_files_are_in_order(epoch: EpochPayloads) -> None:
    assert in_proven_order(epoch.files, [], "at") == []
