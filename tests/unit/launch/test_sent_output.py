"""The last lines that a driver has sent: no more of them is read than is shown."""

from __future__ import annotations

from unittest import mock

import pytest

from airflow_logio.errors import LogUnavailable
from airflow_logio.launch.driver_log import FIRST_PARTS, sent_lines
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import start_driver


def test_few_parts_are_read_of_many() -> None:
    store = MemoryLogStore()
    driver = start_driver(store)
    for number in range(1, 10 * FIRST_PARTS):
        store.output.add(driver.ref, number, number, f"begins {number}\nends ")
    status = store.group(driver.run.run_id, "g")
    with mock.patch.object(type(store.output), "parts", autospec=True, side_effect=type(store.output).parts) as read:
        assert sent_lines(store, driver.run, status, 2) == [f"ends begins {10 * FIRST_PARTS - 1}", "ends "]
        assert [call.kwargs for call in read.call_args_list] == [{"most": FIRST_PARTS}]
        read.reset_mock()
        lines = sent_lines(store, driver.run, status, 2 * FIRST_PARTS)
        assert len(lines) == 2 * FIRST_PARTS and lines[0].startswith("ends begins")
        assert len(read.call_args_list) == 2
    assert sent_lines(store, driver.run, status, 10_000)[0] == "begins 1"


def test_a_log_that_is_away_is_not_a_driver_that_has_printed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryLogStore()
    driver = start_driver(store)
    status = store.group(driver.run.run_id, "g")

    def away(*_: object, **__: object) -> object:
        raise LogUnavailable("connection refused")

    monkeypatch.setattr(type(store.output), "parts", away)
    with pytest.raises(LogUnavailable):
        sent_lines(store, driver.run, status, 10)
