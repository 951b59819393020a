"""Says at the end what cannot be seen in dots: how many storms there were."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = (one for every in terminalreporter.stats.values() for one in every if isinstance(one, pytest.TestReport))
    counts = [
        value
        for report in reports
        for name, value in report.user_properties
        if name == "storms" and report.when == "call"
    ]
    if counts:
        terminalreporter.write_line(f"{sum(map(int, map(str, counts)))} storms, in {len(counts)} processes")
