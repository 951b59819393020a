"""What has happened in a run: stops that are over, as far as the records of drivers tell them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.states import GroupState
from airflow_logio.run_report.causes import HIDDEN
from airflow_logio.run_report.report import Reporter
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import DriverIdentity, GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.ui.run_history import LONGEST_CAUSE, happenings
from tests.support.logs import spec


def launched(store: LogStore, run: Run, expected: int, reason: str, *, by_user: bool = False) -> GroupRef:
    claim = store.claim(run.run_id, "g", expected=expected, reason=reason, by_user=by_user)
    return store.register(claim, DriverIdentity("host", "boot", 4711 + expected, 12.5))


def told(store: LogStore, run: Run, *, shown: bool = True) -> list[tuple[int, str, str]]:
    """Incarnation, kind and text of what has happened to the group, but for how long it stood still."""
    found: list[dict[str, Any]] = happenings(Reporter(store, run).look(), shown=shown)["latest"]
    of_group = [one for one in found if one["group"] == "g"]
    return sorted(
        (one["incarnation"], one["kind"], re.sub(r"after \d+ s", "after 0 s", one["text"])) for one in of_group
    )


def ends(store: LogStore, run: Run, *, shown: bool = True) -> list[tuple[int, str, str]]:
    return [one for one in told(store, run, shown=shown) if one[1] != "launch"]


def test_a_parking_stays_in_the_history_when_the_group_runs_again(store: LogStore) -> None:
    run = store.start_run(spec("g"))
    assert store.park(launched(store, run, 0, "first launch"), "ExternalUnavailable: no answer.")
    assert ends(store, run) == [(1, "parked", "ExternalUnavailable: no answer.")]
    launched(store, run, 1, "logio retry", by_user=True)
    after = "parked, or dead and not recovered; launched again on request after 0 s"
    assert ends(store, run) == [(1, "stopped", f"ExternalUnavailable: no answer ({after})")]
    assert ends(store, run, shown=False) == [(1, "stopped", f"{HIDDEN} ({after})")]
    assert (2, "launch", "logio retry") in told(store, run)


def test_what_was_parked_for_its_budget_is_known_by_the_rule_of_the_log(store: LogStore) -> None:
    run = store.start_run(spec("g", budget=RecoveryBudget(recoveries=1)))
    assert store.declare_dead(launched(store, run, 0, "first launch"), "killed")
    assert store.declare_dead(launched(store, run, 1, "killed"), "killed again")
    with pytest.raises(Exception, match="was recovered 1 times"):
        store.claim(run.run_id, "g", expected=2, reason="killed again")
    assert [one[:2] for one in ends(store, run)] == [(1, "death"), (2, "death"), (2, "parked")]
    store.declare_dead(launched(store, run, 2, "logio retry", by_user=True), "killed anew")
    launched(store, run, 3, "killed anew")
    spent = "killed again (its recovery budget was spent; launched again on request after 0 s)"
    assert ends(store, run) == [(1, "death", "killed"), (2, "stopped", spent), (3, "death", "killed anew")]


def test_a_halt_stays_in_the_history_and_a_recovery_is_no_stop(store: LogStore) -> None:
    run = store.start_run(spec("g"))
    ref = launched(store, run, 0, "first launch")
    store.request(run.run_id, "g", GroupState.HALTED)
    assert store.halted(ref)
    assert ends(store, run) == [(1, "halted", "it was asked to halt")]
    store.declare_dead(launched(store, run, 1, "resumed", by_user=True), "killed")
    launched(store, run, 2, "killed")
    halted = "halted, or had finished, or was not needed as a replica; launched again on request after 0 s"
    for shown in (True, False):  # it has no error that may be hidden
        assert ends(store, run, shown=shown) == [(1, "ended", halted), (2, "death", "killed" if shown else HIDDEN)]


def test_a_long_error_leaves_room_for_what_came_of_it(store: LogStore) -> None:
    run = store.start_run(spec("g"))
    assert store.park(launched(store, run, 0, "first launch"), "x" * 2 * LONGEST_CAUSE)
    launched(store, run, 1, "logio retry", by_user=True)
    ((_, _, text),) = ends(store, run)
    assert text.endswith("after 0 s)") and len(text) <= LONGEST_CAUSE + 3
