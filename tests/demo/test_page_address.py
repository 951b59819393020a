"""What `make demo` says at its end: what is exact and what is not, and where to look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from airflow_logio.errors import ConfigurationError
from demo import __main__ as demo
from demo.checks import CheckResult, Comparison
from demo.demonstration import Demonstration, Verdict

PAGE = "http://localhost:8080/dags/logio_sales/runs/demo/plugin/logio_run"


class Ended:
    """A demonstration whose DAG run has ended; Airflow then fails, which ends the wait for Ctrl-C."""

    page, login = PAGE, ", login admin / secret"
    watch = SimpleNamespace(total=61.2)
    places = SimpleNamespace(summary="summary.json")

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def run(self) -> Verdict:
        return self.verdict

    def look_after_airflow(self) -> None:
        raise ConfigurationError("Airflow has ended")


def compared(**differing: int) -> CheckResult:
    return CheckResult(tuple(Comparison(table, 9, 9, many, ()) for table, many in differing.items()))


RIGHT, HALF = compared(hourly_sales=0, item_totals=0), compared(hourly_sales=0, item_totals=2)
VERDICTS = {
    "right": (Verdict("success", RIGHT), "exact. 61 s", 0),
    # A task that fails behind the last row takes nothing from the tables.
    "failed": (
        Verdict("failed", RIGHT),
        "exact: hourly_sales, item_totals; but the DAG run has ended as failed. 61 s",
        1,
    ),
    "wrong": (
        Verdict("success", HALF),
        "NOT exact: item_totals; exact: hourly_sales; the DAG run has ended as success. 61 s",
        1,
    ),
    "both": (
        Verdict("failed", compared(hourly_sales=1)),
        "NOT exact: hourly_sales; the DAG run has ended as failed. 61 s",
        1,
    ),
    "nothing": (
        Verdict("failed", None),
        "NOT checked: there is nothing to compare; the DAG run has ended as failed. 61 s",
        1,
    ),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_the_end_says_what_is_exact_what_is_not_and_where_to_look(
    capsys: pytest.CaptureFixture[str], case: str
) -> None:
    verdict, sentence, code = VERDICTS[case]
    ended: Any = Ended(verdict)
    assert demo._run(ended, Console(width=200), once=False) == 1
    said = capsys.readouterr().out
    assert said.splitlines()[1].startswith(sentence)
    assert f"the run: {PAGE}, login admin / secret" in said
    assert demo._run(ended, Console(width=200), once=True) == code
    assert PAGE not in capsys.readouterr().out, "with ONCE=1 Airflow has ended"


def test_it_leads_to_the_tab_of_the_dag_run() -> None:
    page = Demonstration.page.fget  # type: ignore[attr-defined]
    known = SimpleNamespace(
        standalone=SimpleNamespace(url="http://localhost:8080"),
        example=SimpleNamespace(dag_id="logio_sales"),
        run_id="demo",
    )
    assert page(known) == PAGE
