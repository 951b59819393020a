"""Replicas that come and go while a run goes on, on real processes: the results are those of one that was left alone."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from airflow_logio.protocol.states import GroupState
from airflow_logio.runtime import bundle
from airflow_logio.runtime.scaling import Stage
from tests.support.grocery import assert_exact
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, Running, running

pytestmark = pytest.mark.acceptance

REPLICATED = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'replicated_sales.py'}:replicated")


def owners(run: Running) -> dict[str | None, int]:
    """Replica → how many slots it owns that are not done."""
    found: dict[str | None, int] = {}
    for slot in run.store.slots(run.run.run_id, "hourly"):
        if not slot.done:
            found[slot.owner] = found.get(slot.owner, 0) + 1
    return found


def test_a_group_is_scaled_up_and_down_while_it_runs(
    log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """From one replica to three, one of which is killed, and back to one."""
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(log_url, warehouse_url, small_transactions, launcher, ref=REPLICATED) as run:
        run.until(lambda: run.count("merge(hourly).out", "out") >= 3, "the first replica has published")
        assert owners(run) == {"hourly.1": 6}
        step = run.scale("hourly", 3)
        assert (step.stage, step.moved) == (Stage.DONE, 4)
        assert owners(run) == {"hourly.1": 2, "hourly.2": 2, "hourly.3": 2}
        begun = run.count("merge(hourly).out", "out")
        run.until(lambda: run.count("merge(hourly).out", "out") > begun + 3, "they work")
        run.signal("hourly.2", signal.SIGKILL)
        run.until(lambda: run.is_running("hourly.2", incarnation=2), "the killed replica is recovered")
        run.scale("hourly", 1)
        assert list(owners(run).values()) in ([6], [5], [4], []), "some slots may be done"
        retired = [
            name for name in ("hourly.1", "hourly.2", "hourly.3") if run.status(name).state is GroupState.RETIRED
        ]
        assert len(retired) == 2
        run.finish()
        assert run.store.finish_run(run.run.run_id)
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)
