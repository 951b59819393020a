"""How write actions are executed, by guarantee: who is asked, what is repeated, what an error says (Algorithms 5 and 8)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.error import URLError

import httpx
import pyarrow as pa
import pytest
import requests

from airflow_logio.dataflow import CheckableWriter, ConditionalWriter, IdempotentWriter, Marker, WriteAction
from airflow_logio.dataflow.pipeline.definition import CallLimit
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.driver.writer_threads import WriterThread
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    FailurePoint,
    Fenced,
    LogInconsistent,
    OperatorFailed,
    WriteRefused,
)
from airflow_logio.protocol.writes import Applied, Compared, PendingWrite
from airflow_logio.systems.arrow import encode
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.execution import executor_of
from airflow_logio.systems.payloads.bodies import Bodies
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import start_driver
from tests.support.waiting import eventually


class System:
    """An external system that remembers what is done to it. `errors` are raised by the next writes, None is no error."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.opened = self.open = 0
        self.asked: list[int] = []
        self.written: list[int] = []
        self.lost: list[int] = []
        """Numbers that are written although the caller hears of an error."""

    @contextmanager
    def connected(self) -> Iterator[System]:
        self.opened += 1
        self.open += 1
        try:
            yield self
        finally:
            self.open -= 1

    def take(self, number: int) -> None:
        if self.errors and (error := self.errors.pop(0)) is not None:
            if number in self.lost:
                self.written.append(number)
            raise error
        self.written.append(number)


class Checked(CheckableWriter[System]):
    def __init__(self, system: System) -> None:
        super().__init__("crm")
        self._system = system

    def connect(self, url: str) -> Any:
        return self._system.connected()

    def is_applied(self, client: System, action: WriteAction) -> bool:
        client.asked.append(action.number)
        return action.number in client.written

    def write(self, client: System, action: WriteAction) -> None:
        client.take(action.number)


class Repeated(IdempotentWriter[System]):
    def __init__(self, system: System) -> None:
        super().__init__("crm")
        self._system = system

    def connect(self, url: str) -> Any:
        return self._system.connected()

    def write(self, client: System, action: WriteAction) -> None:
        client.take(action.number)


class Conditional(ConditionalWriter[dict[str, Any]]):
    """A dict as an external system: a list of numbers, and rows of markers."""

    def __init__(self, system: dict[str, Any]) -> None:
        super().__init__("crm")
        self._system = system

    @contextmanager
    def connect(self, url: str) -> Iterator[dict[str, Any]]:
        yield self._system

    def apply(self, client: dict[str, Any], marker: Marker, actions: Sequence[WriteAction]) -> None:
        for action in marker.unapplied(actions, *client.get(marker.key, (0, 0))):
            client.setdefault("rows", []).append(action.number)
        client[marker.key] = (actions[-1].number, marker.token)


def connections(seconds: float = 30, token: int = 1) -> Connections:
    return Connections("p", {"crm": "crm:"}, WriterIdentity("run", token, 1.0), seconds)


def pending(*numbers: int) -> list[PendingWrite]:
    body = encode(pa.table({"a": [1]}))
    return [PendingWrite("save", "crm", number, {"action": "insert"}, 1, body) for number in numbers]


def execute(writer: ActionWriter, *numbers: int, recovered: int = 0, seconds: float = 30, token: int = 1) -> None:
    executor = executor_of("save", writer, connections(seconds, token))
    try:
        executor.execute(pending(*numbers), recovered, threading.Event())
    finally:
        executor.close()


AWAY = ConnectionError("away")


class Refused(Exception):
    """An error of some library."""


# --- checkable ----------------------------------------------------------------------------------------------------------


def test_what_is_written_for_the_first_time_is_not_asked_for() -> None:
    system = System()
    execute(Checked(system), 1, 2, 3)
    assert (system.asked, system.written) == ([], [1, 2, 3])


def test_after_a_recovery_every_pending_action_is_asked_for_and_the_others_are_not() -> None:
    system = System()
    system.written = [4, 5]
    execute(Checked(system), 4, 5, 6, 7, 8, recovered=7)
    assert (system.asked, system.written) == ([4, 5, 6, 7], [4, 5, 6, 7, 8])


def test_after_a_failed_attempt_the_whole_group_is_asked_for() -> None:
    system = System(None, AWAY)
    execute(Checked(system), 1, 2, 3)
    assert (system.asked, system.written) == ([1, 2, 3], [1, 2, 3])


def test_a_success_of_which_nobody_heard_is_not_repeated() -> None:
    system = System(None, AWAY)
    system.lost = [2]
    execute(Checked(system), 1, 2, 3)
    assert system.written == [1, 2, 3]


def test_one_question_may_do_for_a_group() -> None:
    class Bulk(Checked):
        def unapplied(self, client: System, actions: Sequence[WriteAction]) -> Sequence[WriteAction]:
            client.asked.append(len(actions))
            return [action for action in actions if action.number > 2]

    system = System()
    execute(Bulk(system), 1, 2, 3, recovered=3)
    assert (system.asked, system.written) == ([3], [3])


@pytest.mark.parametrize("answer", [None, 1, "yes"])
def test_an_answer_that_is_neither_yes_nor_no_is_refused(answer: Any) -> None:
    class Vague(Checked):
        def is_applied(self, client: System, action: WriteAction) -> bool:
            return answer  # type: ignore[no-any-return]

    with pytest.raises(
        OperatorFailed, match=r"is_applied must answer True or False, it answered .* for run/save/crm/0/1"
    ):
        execute(Vague(System()), 1, recovered=1)


# --- idempotent and conditional -----------------------------------------------------------------------------------------


def test_an_idempotent_group_is_repeated_as_a_whole() -> None:
    system = System(None, AWAY)
    execute(Repeated(system), 1, 2, 3, recovered=3)
    assert system.written == [1, 1, 2, 3]


def test_a_conditional_system_applies_what_it_has_not_seen() -> None:
    system: dict[str, Any] = {}
    execute(Conditional(system), 1, 2)
    execute(Conditional(system), 1, 2, 3, recovered=3, token=2)
    assert system["rows"] == [1, 2, 3]
    assert system["run/save/crm/0"] == (3, 2)


def test_a_conditional_system_refuses_who_was_replaced_and_notices_a_restored_copy() -> None:
    system: dict[str, Any] = {"run/save/crm/0": (3, 2)}
    with pytest.raises(Fenced, match="token 2 has written, but this driver holds 1"):
        execute(Conditional(system), 4, token=1)
    with pytest.raises(LogInconsistent, match="restored from an older copy"):
        execute(Conditional(system), 5, token=2)
    assert "rows" not in system


def look(writer: ActionWriter, *numbers: int, log_end: int, token: int = 2) -> None:
    executor = executor_of("save", writer, connections(token=token))
    assert executor.compares
    try:
        executor.compare(pending(*numbers), log_end, threading.Event())
    finally:
        executor.close()


def test_a_log_that_has_lost_commits_is_noticed() -> None:
    """What it gives out now has other contents than what the system has applied under the same numbers."""
    system: dict[str, Any] = {"run/save/crm/0": (7, 1)}
    with pytest.raises(LogInconsistent, match=r"up to 7, but the log has given out numbers up to 4 only"):
        look(Conditional(system), 5, 6, 7, 8, log_end=4)
    with pytest.raises(Fenced, match="token 1 has written"):
        look(Conditional(system), 8, log_end=7, token=0)
    assert system == {"run/save/crm/0": (7, 1)}


def test_a_look_at_the_marker_applies_nothing_and_leaves_the_client_alone() -> None:
    """Whatever the author's code makes of the error that ends the step."""

    class Rude(Conditional):
        def apply(self, client: dict[str, Any], marker: Marker, actions: Sequence[WriteAction]) -> None:
            try:
                super().apply(client, marker, actions)
            except Exception as error:
                raise ConnectionError("the transaction failed") from error

    for writer in (Conditional, Rude):
        system: dict[str, Any] = {"run/save/crm/0": (4, 1)}
        look(writer(system), 5, log_end=4)
        look(writer(system), 3, 4, log_end=4)
        assert system == {"run/save/crm/0": (4, 1)}


def test_an_attempt_that_read_nothing_has_compared_nothing() -> None:
    class Slow(Conditional):
        tries = 0

        def apply(self, client: dict[str, Any], marker: Marker, actions: Sequence[WriteAction]) -> None:
            self.tries += 1
            if self.tries == 1:
                raise AWAY
            super().apply(client, marker, actions)

    system: dict[str, Any] = {"run/save/crm/0": (3, 1)}
    with pytest.raises(LogInconsistent, match="it has lost commits"):
        look(Slow(system), 1, 2, log_end=2)


# --- what is not promised -----------------------------------------------------------------------------------------------


def test_a_question_and_a_write_are_not_one_step_so_two_drivers_may_both_write() -> None:
    system, both_have_asked = System(), threading.Barrier(2)

    class Slow(Checked):
        def write(self, client: System, action: WriteAction) -> None:
            both_have_asked.wait(60)
            super().write(client, action)

    drivers = [
        threading.Thread(target=execute, args=(Slow(system), 1), kwargs={"recovered": 1, "token": token})
        for token in (1, 2)
    ]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(60)
    assert (system.asked, system.written) == ([1, 1], [1, 1])


def test_a_zombie_of_an_idempotent_writer_may_bring_an_older_value_back() -> None:
    system = System()
    execute(Repeated(system), 1, 2, recovered=1, token=2)
    execute(Repeated(system), 1, token=1)
    assert system.written == [1, 2, 1], "harmless if 1 and 2 commute"


# --- errors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("away", [ExternalUnavailable("away"), AWAY, TimeoutError("away")], ids=repr)
def test_a_client_that_has_failed_is_closed_and_another_one_tried(away: Exception) -> None:
    system = System(away, away)
    execute(Repeated(system), 1)
    assert (system.written, system.opened, system.open) == ([1], 3, 0)


def test_an_author_says_which_errors_mean_away() -> None:
    class Strange(Repeated):
        unavailable = (LookupError,)

    system = System(KeyError("away"), AWAY)
    execute(Strange(system), 1)
    assert system.written == [1], "besides those that always mean it"


def test_an_error_of_a_library_says_how_an_author_declares_it_as_an_outage() -> None:
    with pytest.raises(OperatorFailed, match=r"If this means .* add Refused to `unavailable` of the writer of 'save'"):
        execute(Repeated(System(Refused("quota spent"))), 1)


@pytest.mark.parametrize(
    "error", [URLError(TimeoutError()), requests.ConnectTimeout(), httpx.ConnectError("refused")], ids=repr
)
def test_connection_errors_of_http_libraries_mean_away(error: Exception) -> None:
    system = System(error)
    execute(Repeated(system), 1)
    assert (system.written, system.opened, system.open) == ([1], 2, 0)


def test_any_other_error_names_operator_connection_and_write_actions() -> None:
    system = System(None, ValueError("no such field"))
    with pytest.raises(
        OperatorFailed,
        match="pipeline 'p', operator 'save', connection 'crm', write actions 7 to 9: ValueError: no such field",
    ) as caught:
        execute(Repeated(system), 7, 8, 9)
    assert caught.value.at == FailurePoint("save", action="write action 7 on 'crm'"), "where it comes back, if it does"
    assert system.open == 0


def test_what_the_system_refuses_for_good_is_not_replayed() -> None:
    system = System(WriteRefused("the account is closed"))
    with pytest.raises(WriteRefused, match="the account is closed"):
        execute(Repeated(system), 1)
    assert (system.written, system.open) == ([], 0)


def test_a_system_that_stays_away_ends_the_replay_with_what_to_do() -> None:
    system = System(*[AWAY] * 100)
    with pytest.raises(ExternalUnavailable) as caught:
        execute(Repeated(system), 1, 2, seconds=0.3)
    for words in (
        "write actions 1 to 2 of 'save': after ",
        "attempts in 0.3 s",
        "away",
        "`logio retry` resumes it",
    ):
        assert words in str(caught.value)
    assert system.open == 0


def test_a_write_that_takes_longer_than_it_is_replayed_survives_an_outage() -> None:
    class Long(Repeated):
        def write(self, client: System, action: WriteAction) -> None:
            time.sleep(0.05)
            super().write(client, action)

    system = System(AWAY)
    execute(Long(system), 1, 2, seconds=0.02)
    assert system.written == [1, 2]


def test_the_writers_own_patience_goes_before_the_runs() -> None:
    class Patient(Repeated):
        replay_seconds = 30

    system = System(AWAY, AWAY)
    execute(Patient(system), 1, seconds=0.01)
    assert system.written == [1]


def test_a_group_with_a_hole_is_refused() -> None:
    with pytest.raises(LogInconsistent, match="jump from 1 to 3"):
        execute(Repeated(System()), 1, 3)


def test_a_connection_that_the_run_does_not_have_is_named() -> None:
    class Elsewhere(Repeated):
        connection = "erp"

        def __init__(self, system: System) -> None:
            super().__init__(system)
            self.connection = "erp"

    with pytest.raises(ConfigurationError, match="connection 'erp' is used by the pipeline"):
        execute(Elsewhere(System()), 1)


# --- the thread ---------------------------------------------------------------------------------------------------------


class Thread:
    """A writer thread and what it has told."""

    def __init__(self, writer: ActionWriter, shared: Connections, operator: str = "save") -> None:
        self.applied: list[Applied] = []
        self.errors: list[BaseException] = []
        executor = executor_of(operator, writer, shared)
        self.writer = WriterThread(
            operator,
            writer,
            executor,
            Bodies(None),
            start_driver(MemoryLogStore()).session,
            self._told,
            self.errors.append,
        )

    def _told(self, one: Applied | Compared) -> None:
        assert isinstance(one, Applied)
        self.applied.append(one)

    def numbers(self) -> list[tuple[int, int]]:
        return [(one.first, one.last) for one in self.applied]


def test_groups_are_as_large_as_the_writer_says_and_the_client_is_closed_at_the_end() -> None:
    class Pairs(Repeated):
        actions_at_once = 2

    system = System()
    thread = Thread(Pairs(system), connections())
    thread.writer.add(pending(1, 2, 3, 4, 5))
    eventually(lambda: len(system.written) == 5, what="all are written")
    thread.writer.stop().join()
    assert thread.numbers() == [(1, 2), (3, 4), (5, 5)]
    assert (system.opened, system.open, thread.errors) == (1, 0, [])


def test_a_thread_asks_only_for_what_it_was_handed_at_recovery() -> None:
    system = System()
    system.written = [1, 2]
    thread = Thread(Checked(system), connections())
    thread.writer.add(pending(1, 2, 3), recovered=True)
    thread.writer.add(pending(4, 5))
    eventually(lambda: len(system.written) == 5, what="all are written")
    thread.writer.stop().join()
    assert (system.asked, system.written) == ([1, 2, 3], [1, 2, 3, 4, 5])


def test_writers_of_one_connection_take_turns_and_stop_at_once_while_it_is_away() -> None:
    shared = connections(90)
    inside = threading.Semaphore(1)
    together: list[bool] = []

    class Alone(Repeated):
        def write(self, client: System, action: WriteAction) -> None:
            together.append(not inside.acquire(blocking=False))
            time.sleep(0.002)
            inside.release()
            super().write(client, action)

    systems = [System(), System()]
    threads = [Thread(Alone(one), shared, name) for one, name in zip(systems, ("a", "b"), strict=True)]
    for number in range(1, 30):
        for thread in threads:
            thread.writer.add(pending(number))
    eventually(lambda: all(len(one.written) == 29 for one in systems), what="all are written")
    assert not any(together)
    for one in systems:
        one.errors = [AWAY] * 1000
    for thread in threads:
        thread.writer.add(pending(30))
    eventually(lambda: all(len(one.errors) < 998 for one in systems), what="both have been tried again")
    began = time.monotonic()
    for thread in threads:
        thread.writer.stop().join()
    assert time.monotonic() - began < 40


def test_a_connection_whose_end_hangs_is_a_call_as_well() -> None:
    """It counts against the limit of the operator's calls, and is shown."""
    release = threading.Event()

    class NeverEnds(Conditional):
        @contextmanager
        def connect(self, url: str) -> Iterator[dict[str, Any]]:
            try:
                yield {}
            finally:
                release.wait(90)

        def apply(self, client: dict[str, Any], marker: Marker, actions: Sequence[WriteAction]) -> None:
            raise AWAY

    given = connections(5)
    given.calls.limits = {"save": CallLimit(0.2)}
    executor = executor_of("save", NeverEnds({}), given)

    def write() -> None:
        with suppress(ExternalUnavailable):
            executor.execute(pending(1), 0, release)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        eventually(lambda: given.calls.overrun() is not None, what="the call is over its limit")
        assert "the end of connection 'crm' of operator 'save'" in str(given.calls.longest())
    finally:
        release.set()
        thread.join(60)
