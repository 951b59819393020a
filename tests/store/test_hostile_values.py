"""Names, values and sizes an author or an operator of the system did not think of, through the log on its three stores."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import MAX_NAME, storable, unstorable
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import RunKey
from airflow_logio.store.sql import migrate
from tests.conftest import QUICK, SQL
from tests.support.logs import IN, OUT, UNDONE, assigned, contents, fetched, held, log_rows, sent, spec, start_driver

ODD = [
    "it's",
    'a "quoted" one',
    "a'; DROP TABLE logio_run; --",
    "%s %(name)s {x} $1 :name ? \\",
    "NULL",
    "{a,b}",
    "\n\t\r\x01",
    " leading and trailing ",
    "日本 😀 é e\u0301",
    "\u202eright to left",
    "a|b:c/d..",
    "x" * MAX_NAME,
    "é" * MAX_NAME,
]


def test_input_sets_of_any_name(log_store: LogStore) -> None:
    """Assigned, reloaded, marked done, set aside, and found in the lineage: each by itself."""
    session = start_driver(log_store).session
    session.commit([sent(1)])
    session.commit([assigned(1, *ODD)])
    assert sorted(inset or "" for _, inset in held(session)) == sorted(ODD)
    session.commit([fx.RecordLineage(OUT, 1, name) for name in ODD])
    for number, name in enumerate(ODD, start=1):
        state = fx.LogStateEvent("receiver", number, name, name.encode())
        session.commit(
            [state, fx.MarkDone("receiver", name, 2) if number % 2 else fx.SetAside("receiver", name, 2, name)]
        )
    assert held(session) == []
    status = {(inset or ""): status for receiver, _, inset, status in log_rows(log_store) if receiver == "receiver"}
    assert status == {name: "aside" if number % 2 else "done" for number, name in enumerate(ODD)}


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=MAX_NAME)


@pytest.fixture(scope="module", params=SQL)
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogStore]:
    """One log for all examples of a property."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('hostile')}/log.db"
    else:
        url = request.getfixturevalue("postgres_server").new_database(migrated=False)
    migrate.upgrade(url)
    store = open_store(url, patience=QUICK)
    yield store
    store.dispose()


_runs = iter(range(1, 1_000_000))


@given(
    names=st.lists(NAMES, min_size=1, max_size=4, unique=True),
    bodies=st.lists(st.binary(max_size=64), min_size=1, max_size=3),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_committed_is_what_is_recovered(log: LogStore, names: list[str], bodies: list[bytes]) -> None:
    session = start_driver(log, run=log.start_run(spec(dag_run=f"run {next(_runs)}"))).session
    session.commit([sent(number, body) for number, body in enumerate(bodies, start=1)])
    events = session.fetch(IN, 0, max_events=10, max_bytes=1 << 20)
    assert [logged.event.body for logged in events] == bodies
    session.commit([assigned(number, *names) for number in range(1, len(bodies) + 1)])
    recovered = session.recover(["receiver"]).acknowledged
    found = [(row.event.event_id, row.inset_id, row.event.body) for row in recovered]
    every = [(number, name, body) for number, body in enumerate(bodies, start=1) for name in names]
    assert sorted(found, key=repr) == sorted(every, key=repr)
    session.commit([fx.MarkDone("receiver", name, len(bodies)) for name in names])
    assert session.recover(["receiver"]).acknowledged == ()


@pytest.mark.parametrize("name", [*ODD, "a/b", "manual__2026-01-01T00:00:00+00:00"])
def test_runs_of_any_name(log_store: LogStore, name: str) -> None:
    key = RunKey(name, name, name)
    run = log_store.start_run(replace(spec(), key=key, params={name: name}, connections={name: name}))
    assert log_store.start_run(run.spec).uid == run.uid
    assert log_store.find_run(name).spec.params == {name: name}
    assert [found.uid for found in log_store.list_runs(pipeline=name)] == [run.uid]
    driver = start_driver(log_store, run=run)
    assert log_store.declare_dead(driver.ref, name)
    assert log_store.group(run.run_id, "g").error == name


REFUSED = ["", "x" * (MAX_NAME + 1), "a\0b", "a\ud800"]


@pytest.mark.parametrize("part", ["pipeline", "dag_id", "dag_run_id", "group"])
@pytest.mark.parametrize("name", REFUSED, ids=["empty", "too long", "with NUL", "half a surrogate pair"])
def test_a_run_the_log_cannot_name_is_refused_and_changes_nothing(log_store: LogStore, part: str, name: str) -> None:
    key: dict[str, Any] = {"pipeline": "p", "dag_id": "d", "dag_run_id": "r"}
    before = contents(log_store)
    named = spec(name) if part == "group" else replace(spec(), key=RunKey(**(key | {part: name})))
    with pytest.raises(ConfigurationError, match=f"the {part} of a run cannot be"):
        log_store.start_run(named)
    assert contents(log_store) == before
    assert unstorable(name)


@pytest.mark.parametrize(
    "text", ["x" * 100_000, "NUL \0 inside", "\ud800 half", *ODD], ids=lambda text: ascii(text[:12])
)
def test_an_error_of_any_text_is_no_obstacle(log_store: LogStore, text: str) -> None:
    """The text of an exception, or the tail of a driver's log: a group must be parked with it, whatever it holds."""
    driver = start_driver(log_store)
    driver.session.park(text)
    found = log_store.group(driver.run.run_id, "g").error
    assert found is not None
    assert found in (text, storable(text))
    assert driver.store.declare_dead(driver.ref, text) is False
    claim = log_store.claim(driver.run.run_id, "g", expected=1, reason=text, by_user=True)
    assert log_store.declare_dead(GroupRef(claim.run_id, "g", 2), text)
    log_store.claim(driver.run.run_id, "g", expected=2, reason=text)


def test_an_event_without_a_byte(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([sent(1, b""), sent(2, b"\0"), sent(3, bytes(range(256)))])
    events = session.fetch(IN, 0, max_events=10, max_bytes=1 << 20)
    assert [logged.event.body for logged in events] == [b"", b"\0", bytes(range(256))]
    session.commit([fx.Acknowledge(OUT, IN, n, (("A", UNDONE),)) for n in (1, 2, 3)])
    assert held(session) == [(1, "A"), (2, "A"), (3, "A")]


LARGE = """
import os, resource, sys
from airflow_logio.protocol import effects as fx
from airflow_logio.store import open_store
from tests.support.logs import IN, OUT, assigned, sent, start_driver

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

store = open_store(sys.argv[1], application="logio test")
session = start_driver(store).session
session.commit([sent(1)])
body = os.urandom(100 << 20)
before = peak()
session.commit([sent(2, body), sent(3)])
(small,) = session.fetch(IN, 0, max_events=10, max_bytes=1 << 20)
assert small.event.event_id == 1, "a small event is not held up by a large one behind it"
(large,) = session.fetch(IN, 1, max_events=10, max_bytes=1 << 20)
assert large.event.body == body
del large
session.commit([assigned(1, "A"), assigned(2, "A", "B", "C"), assigned(3, "A")])
recovered = session.recover(["receiver"]).acknowledged
assert [(row.event.event_id, row.inset_id) for row in recovered] == [
    (1, "A"), (2, "A"), (2, "B"), (2, "C"), (3, "A")
]
assert all(row.event.body == body for row in recovered[1:4])
session.commit([fx.MarkDone("receiver", "A", 3), fx.MarkDone("receiver", "B", 1), fx.MarkDone("receiver", "C", 1)])
print(peak() - before)
"""
LIMITS = {"sqlite": 450, "postgresql": 1100}
"""MiB beyond the body itself. psycopg2 sends bytes as text of twice their size, and joins them to a statement."""


def test_an_event_of_100_megabytes(log_url: str) -> None:
    """Through commit, delivery, three Input Sets and recovery, in a process of its own; memory is a few times its size."""
    done = subprocess.run(
        [sys.executable, "-c", LARGE, log_url], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) < LIMITS[log_url.partition(":")[0]]
    store = open_store(log_url, patience=QUICK)
    (run,) = store.list_runs()
    assert store.declare_dead(GroupRef(run.run_id, "g", 1), "its process has ended")
    successor = start_driver(store, run=run, expected=1)
    assert (fetched(successor.session), held(successor.session)) == ([], [])
    store.dispose()
