"""What `make demo` says at its end: where to look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from airflow_logio.errors import ConfigurationError
from demo import __main__ as demo
from demo.demonstration import Demonstration

PAGE = "http://localhost:8080/dags/logio_sales/runs/demo/plugin/logio_run"


class Ended:
    """A demonstration whose DAG run has ended; Airflow then fails, which ends the wait for Ctrl-C."""

    page, login = PAGE, ", login admin / secret"
    watch = SimpleNamespace(total=61.2)
    places = SimpleNamespace(summary="summary.json")

    def __init__(self, *, exact: bool) -> None:
        self.exact = exact

    def run(self) -> bool:
        return self.exact

    def look_after_airflow(self) -> None:
        raise ConfigurationError("Airflow has ended")


@pytest.mark.parametrize("exact", [True, False])
def test_the_address_of_the_page_is_the_last_thing_that_is_said(
    capsys: pytest.CaptureFixture[str], *, exact: bool
) -> None:
    ended: Any = Ended(exact=exact)
    assert demo._run(ended, Console(width=200), once=False) == 1
    said = capsys.readouterr().out
    assert said.splitlines()[1].startswith("exact. 61 s" if exact else "NOT exact. 61 s")
    assert f"the run: {PAGE}, login admin / secret" in said
    assert demo._run(ended, Console(width=200), once=True) == (0 if exact else 1)
    assert PAGE not in capsys.readouterr().out, "with ONCE=1 Airflow has ended"


def test_it_leads_to_the_tab_of_the_dag_run() -> None:
    page = Demonstration.page.fget  # type: ignore[attr-defined]
    known = SimpleNamespace(
        standalone=SimpleNamespace(url="http://localhost:8080"),
        example=SimpleNamespace(dag_id="logio_sales"),
        run_id="demo",
    )
    assert page(known) == PAGE
