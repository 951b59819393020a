"""A drain that would leave a writer with a part of what it closes is refused before anything is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.errors import ProtocolViolation
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.protocol.states import GroupState
from airflow_logio.supervision.stop_run import StopMode, StopRun
from tests.support.logs import SOMEBODY, finish
from tests.support.owned_day import OwnedDay
from tests.support.running import PlainLauncher, Running, running

BUNDLE = Path(__file__).parents[2] / "support" / "bundle"


@pytest.fixture
def run(sqlite_url: str, tmp_path: Path) -> Iterator[Running]:
    day = OwnedDay(sqlite_url, f"sqlite:///{tmp_path}/warehouse.db", tmp_path)
    day.reads(0)
    with day.run("run") as begun:
        yield begun


def wishes(run: Running) -> dict[str, GroupState]:
    return {status.group: status.desired for status in run.store.groups(run.run.run_id)}


@pytest.mark.parametrize("group", [None, "reading"])
def test_a_run_that_owns_a_day_is_not_drained(run: Running, group: str | None) -> None:
    before = wishes(run)
    with pytest.raises(ProtocolViolation) as refused:
        StopRun(run.store, run.run, StopMode.DRAIN, group).request()
    uid = run.run.uid[:8]
    for said in (
        "run of owned_day is not drained: its sources would end early",
        "writer 'keep' (TableWriter of table 'clicks', on_new_run='overwrite', by=('day',), connection 'warehouse')",
        f"Let the run finish; or halt it (`logio stop {uid}`), and `logio retry {uid}` resumes it",
        f"`logio again {uid}` gives it up",
    ):
        assert said in str(refused.value)
    assert wishes(run) == before, "no group was asked"


def test_a_group_is_drained_behind_which_nothing_closes(run: Running) -> None:
    StopRun(run.store, run.run, StopMode.DRAIN, "beside").request()
    assert {name for name, wish in wishes(run).items() if wish is GroupState.DRAINING} == {"beside"}


def test_it_is_halted_like_any_other(run: Running) -> None:
    StopRun(run.store, run.run, StopMode.HALT).request()
    assert set(wishes(run).values()) == {GroupState.HALTED}


def test_the_rest_of_a_run_is_drained_when_all_that_closes_has_finished(run: Running) -> None:
    for group in ("reading", "replacing"):
        claim = run.store.claim(run.run.run_id, group, expected=0, reason="test")
        finish(run.store, run.store.register(claim, SOMEBODY))
    StopRun(run.store, run.run, StopMode.DRAIN).request()
    assert {name for name, wish in wishes(run).items() if wish is GroupState.DRAINING} == {"beside"}


def test_an_authors_writer_that_closes_is_no_different(sqlite_url: str, tmp_path: Path) -> None:
    """Its run has no partition to begin again."""
    data = tmp_path / "t.parquet"
    pq.write_table(pa.table({"store_id": [1], "quantity": [1]}), data)
    ref = parse_ref(f"{BUNDLE / 'held_day.py'}:pipeline")
    given = {"params": {"transactions": str(data), "fault": ""}, "connections": {"warehouse": "w.db"}}
    refused = pytest.raises(ProtocolViolation, match=r"writer 'day' \(Day, a class of .* `logio fresh ")
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(sqlite_url, "", tmp_path, launcher, ref=ref, **given) as run, refused:
        StopRun(run.store, run.run, StopMode.DRAIN).request()
