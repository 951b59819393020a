"""The source of docs/how-to/write-a-source.md: crashes lose nothing, and a file that has changed is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_logio.errors import SourceChanged
from airflow_logio.testing import Simulator, pipeline_scenario
from tests.support.bundle.json_lines import JsonLines, pipeline


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders.jsonl"
    records = [{"id": number, "store": f"s{number % 7}", "cents": number * 3} for number in range(350)]
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def test_crashes_lose_nothing_and_repeat_nothing(orders: Path) -> None:
    simulator = Simulator(pipeline_scenario(pipeline, params={"orders": str(orders)}))
    for seed in range(100):
        _, failure = simulator.run(seed)
        assert failure is None, failure


def test_reading_goes_on_behind_the_offset(orders: Path) -> None:
    source, params = JsonLines(), {"orders": str(orders)}
    whole = list(source.read(params, source.action(params), 0))
    assert [batch.next_offset for batch in whole] == [100, 200, 300, 350]
    assert list(source.read(params, source.action(params), 200)) == whole[2:]


def test_a_file_that_has_grown_is_refused(orders: Path) -> None:
    source, params = JsonLines(), {"orders": str(orders)}
    action = source.action(params)
    orders.write_text(orders.read_text() + '{"id": 0, "store": "", "cents": 0}\n')
    with pytest.raises(SourceChanged):
        list(source.read(params, action, 0))
