"""What a driver makes again of the events of replay operators takes a bounded share of its memory."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_logio.driver.made_again import size
from airflow_logio.protocol.replay import MADE_BYTES

MOST_SETS = 20_000


@pytest.mark.parametrize("records", [0, 1])
def test_tables_of_next_to_nothing_take_what_a_table_takes(records: int) -> None:
    """A million of them, with no records at all, would be gigabytes."""
    table = pa.table({"a": pa.array(range(records), pa.int64())})
    assert MADE_BYTES / MOST_SETS < size(table) < 10_000


def test_a_slice_takes_what_it_was_cut_from() -> None:
    whole = pa.table({"a": pa.array(range(100_000), pa.int64())})
    assert size(whole.slice(5, 1)) >= 800_000
