"""Code that a person takes for a group: which driver gets it, and which events say so."""

from __future__ import annotations

import threading
from dataclasses import replace

import msgspec
import pytest

from airflow_logio.errors import Fenced, LogInconsistent, ProtocolViolation, UnknownRun
from airflow_logio.protocol.states import GroupState, wish_after_claim
from airflow_logio.store.lineage.queries import backward
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, CodeChange, KeptCode
from airflow_logio.store.records.run_records import OperatorShape, Run, ScopeShape
from airflow_logio.store.sql import group_log
from tests.support.logs import OUT, SOMEBODY, contents, open_sql_store, sent, spec, start_driver
from tests.support.racing import race
from tests.support.replicated import GROUP, A, B, replicated_run


def begun(store: LogStore, *names: str) -> Run:
    return store.start_run(replace(spec(*names), code_digest="first"))


def take(store: LogStore, run: Run, digest: str, group: str = "g") -> int:
    return store.take_code(run.run_id, group, digest, f"code of {digest}", by="logio retry by somebody")


def shown(changes: list[CodeChange]) -> list[tuple[int, str, str]]:
    return [(change.number, change.group, change.digest) for change in changes]


def test_a_driver_gets_the_code_that_its_group_has_when_it_is_claimed(log_store: LogStore) -> None:
    run = begun(log_store, "g", "h")
    first = start_driver(log_store, run=run)
    assert take(log_store, run, "second") == 1
    assert (first.claim.code, first.ref.code) == (0, 0), "what it has in memory does not change"
    log_store.declare_dead(first.ref, "dead")
    second = start_driver(log_store, run=run, expected=1)
    assert (second.claim.code, second.ref.code) == (1, 1)
    other = log_store.claim(run.run_id, "h", expected=0, reason="other")
    assert other.code == 0
    assert {driver.group: driver.code for driver in log_store.drivers(run.run_id)} == {"g": 1, "h": 0}
    assert {status.group: status.code for status in log_store.groups(run.run_id)} == {"g": 1, "h": 0}


def test_taking_it_is_written_down(log_store: LogStore) -> None:
    run = begun(log_store, "g", "h")
    assert log_store.code_changes(run.run_id) == []
    assert [take(log_store, run, "second"), take(log_store, run, "second", "h"), take(log_store, run, "first")] == [
        1,
        2,
        3,
    ]
    changes = list(log_store.code_changes(run.run_id))
    assert shown(changes) == [(1, "g", "second"), (2, "h", "second"), (3, "g", "first")]
    assert {(change.taken_by, change.fingerprint[:8]) for change in changes} == {
        ("logio retry by somebody", "code of ")
    }
    assert [change.taken_at for change in changes] == sorted(change.taken_at for change in changes)
    assert changes[0].taken_at >= run.created_at


def test_taking_what_a_group_has_already_changes_nothing(log_store: LogStore) -> None:
    run = begun(log_store)
    before = contents(log_store)
    assert take(log_store, run, "first") == 0
    assert contents(log_store) == before
    assert take(log_store, run, "second") == 1
    before = contents(log_store)
    assert take(log_store, run, "second") == 1
    assert contents(log_store) == before


def test_a_run_of_an_earlier_version_may_take_code(log_store: LogStore) -> None:
    run = log_store.start_run(spec())
    assert take(log_store, run, "now") == 1
    assert shown(list(log_store.code_changes(run.run_id))) == [(1, "g", "now")]


def test_many_who_take_it_at_once_take_it_once(log_store: LogStore) -> None:
    run = begun(log_store)
    assert race(*[lambda: take(log_store, run, "second")] * 4) == [1, 1, 1, 1]
    assert len(log_store.code_changes(run.run_id)) == 1


def test_of_two_who_take_different_code_at_once_the_second_one_decides(log_store: LogStore) -> None:
    """Both are written down, with the number that each was told."""
    run = begun(log_store)
    told = race(lambda: take(log_store, run, "second"), lambda: take(log_store, run, "third"))
    assert sorted(told, key=str) == [1, 2]
    changes = {change.digest: change.number for change in log_store.code_changes(run.run_id)}
    assert changes == {"second": told[0], "third": told[1]}
    assert log_store.claim(run.run_id, "g", expected=0, reason="test").code == 2


def test_a_driver_with_the_earlier_code_commits_nothing_beside_one_with_the_later(log_store: LogStore) -> None:
    run = begun(log_store)
    zombie = start_driver(log_store, run=run)
    zombie.session.commit([sent(1)])
    take(log_store, run, "second")
    log_store.declare_dead(zombie.ref, "it does not answer")
    driver = start_driver(log_store, run=run, expected=1)
    with pytest.raises(Fenced):
        zombie.session.commit([sent(2)])
    driver.session.commit([sent(2)])
    with log_store.lineage(run) as log:
        assert [(number, header.code) for number, header in log.headers("sender", "out", [1, 2])] == [(1, 0), (2, 1)]


def test_what_is_wrong_is_refused_and_changes_nothing(log_store: LogStore) -> None:
    run = begun(log_store, "g", "h")
    before = contents(log_store)
    with pytest.raises(ProtocolViolation, match="no group 'i'; it has g, h"):
        take(log_store, run, "second", "i")
    with pytest.raises(UnknownRun):
        log_store.take_code(run.run_id + 1, "g", "second", "code", by="somebody")
    assert contents(log_store) == before
    log_store.supersede(run.run_id)
    with pytest.raises(ProtocolViolation, match="was given up for a fresh run"):
        take(log_store, run, "second")


def test_replicas_share_their_code(log_store: LogStore) -> None:
    run = replicated_run(log_store)
    assert take(log_store, run, "second", A) == 1
    codes = {status.group: status.code for status in log_store.groups(run.run_id)}
    assert (codes[A], codes[B], codes["feed"]) == (1, 1, 0)
    (change,) = log_store.code_changes(run.run_id)
    assert change.group == GROUP


def test_it_is_kept_with_the_run_and_with_no_other(log_store: LogStore) -> None:
    described = replace(spec("g", "h"), code_digest="first")
    run = log_store.start_run(described, code=b"one")
    assert log_store.start_run(described, code=b"another").uid == run.uid
    assert log_store.code(run.run_id, 0) == KeptCode(0, "first", b"one")
    assert log_store.take_code(run.run_id, "g", "second", "f", archive=b"two", by="somebody") == 1
    assert log_store.take_code(run.run_id, "h", "second", "f", archive=b"two", by="somebody") == 2
    assert log_store.take_code(run.run_id, "g", "installed", "f", by="somebody") == 3
    assert [log_store.code(run.run_id, number) for number in (0, 1, 2, 3)] == [
        KeptCode(0, "first", b"one"),
        KeptCode(1, "second", b"two"),
        KeptCode(2, "second", b"two"),
        KeptCode(3, "installed", None),
    ]
    with pytest.raises(LogInconsistent, match="has no code 4"):
        log_store.code(run.run_id, 4)
    other = log_store.start_run(replace(spec("g", dag_run="other"), code_digest="first"))
    assert log_store.code(other.run_id, 0) == KeptCode(0, "first", None)
    earlier = log_store.start_run(spec("g", dag_run="earlier"))
    assert log_store.code(earlier.run_id, 0) == KeptCode(0, None, None)


def test_removing_a_run_removes_it(log_store: LogStore) -> None:
    run = log_store.start_run(replace(spec(), code_digest="first"), code=b"one")
    take(log_store, run, "second")
    while log_store.remove_run(run.run_id, 100, unfinished=True).more:
        pass
    assert log_store.code_changes(run.run_id) == []


def test_lineage_tells_which_code_made_an_event(log_store: LogStore) -> None:
    shapes = {
        "sender": OperatorShape("g", {}, ("out",), lineage_out=("out",)),
        "receiver": OperatorShape("g", {"in": "sender.out"}, ("out",), lineage_in=("in",), lineage_out=("out",)),
    }
    described = replace(
        spec(), code_digest="first", operators=shapes, scopes=(ScopeShape("sender.out", "receiver.out"),)
    )
    run = log_store.start_run(described)
    first = start_driver(log_store, run=run)
    first.session.commit([msgspec.structs.replace(sent(1), kept=True)])
    take(log_store, run, "second")
    first.session.commit([msgspec.structs.replace(sent(2), kept=True)])
    log_store.declare_dead(first.ref, "dead")
    second = start_driver(log_store, run=run, expected=1)
    second.session.commit([msgspec.structs.replace(sent(3), kept=True)])
    result = backward(log_store, run, OUT, [1, 2, 3])
    assert [(event.event_id, event.code) for event in result.roots] == [(1, 0), (2, 0), (3, 1)]


def test_a_claim_that_is_under_way_comes_first(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the number, and not committed: the process that takes code waits, so that log and driver agree."""
    store, taker = open_sql_store(postgres_url), open_sql_store(postgres_url)
    run = begun(store)
    read, committed = threading.Event(), threading.Event()

    def slowly(desired: GroupState) -> GroupState:
        read.set()
        assert not committed.wait(0.5), "no process takes code meanwhile"
        return wish_after_claim(desired)

    monkeypatch.setattr(group_log, "wish_after_claim", slowly)

    def taken() -> int:
        assert read.wait(60)
        number = take(taker, run, "second")
        committed.set()
        return number

    claim, number = race(lambda: store.claim(run.run_id, "g", expected=0, reason="slow"), taken)
    assert isinstance(claim, Claim) and (claim.code, number) == (0, 1)
    assert store.register(claim, SOMEBODY).code == 0
    for opened in (store, taker):
        opened.dispose()


def test_effects_of_the_first_code_are_stored_as_before(log_store: LogStore) -> None:
    driver = start_driver(log_store, run=begun(log_store))
    driver.session.commit([sent(1)])
    with log_store.lineage(driver.run) as log:
        ((number, header),) = log.headers("sender", "out", [1])
    assert (number, header.code) == (1, 0)
