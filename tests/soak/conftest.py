"""Says at the end what cannot be seen in dots: how many storms there were."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = (one for every in terminalreporter.stats.values() for one in every if isinstance(one, pytest.TestReport))
    properties = [
        (name, value) for report in reports if report.when == "call" for name, value in report.user_properties
    ]
    counts = [value for name, value in properties if name == "storms"]
    for said in (value for name, value in properties if name == "stability"):
        terminalreporter.write_line(str(said))
    if counts:
        terminalreporter.write_line(f"{sum(map(int, map(str, counts)))} storms, in {len(counts)} processes")
