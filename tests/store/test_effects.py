"""Source reads, held events, quarantine and lineage's marks on every store: what effects change, and what they refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind, Port, Status
from airflow_logio.store.port import LogStore
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.faults import before_statement, inject
from tests.support.logs import (
    DONE,
    IN,
    OUT,
    UNDONE,
    assigned,
    contents,
    fetched,
    held,
    log_rows,
    replace_driver,
    sent,
    spec,
    start_driver,
)

OTHER = Port("other", "in")
ASIDE = Status.ASIDE


@dataclass(frozen=True)
class Table:
    """A few columns of a table, whichever store has it."""

    memory: Any
    sql: sa.Select[Any]

    def of(self, store: LogStore) -> list[tuple[Any, ...]]:
        if isinstance(store, MemoryLogStore):
            return sorted(self.memory(store.tables), key=repr)
        assert isinstance(store, SqlLogStore)
        with store.engine.connect().execution_options(logio_writes=False) as connection:
            return sorted((tuple(row) for row in connection.execute(self.sql)), key=repr)


LOG, DATA, READS, ASIDES = schema.event_log.c, schema.event_data.c, schema.read_action.c, schema.quarantine.c

READ_ACTIONS = Table(
    lambda tables: [(key[1], key[3], str(row.status), row.kept) for key, row in tables.reads.items()],
    sa.select(READS.op, READS.action_id, READS.status, READS.kept),
)
"""(operator, action_id, status, kept)"""
BODIES = Table(
    lambda tables: [(key.operator, key.channel, key.event_id, row.ref, row.kept) for key, row in tables.bodies.items()],
    sa.select(DATA.send_op, DATA.channel, DATA.event_id, DATA.ref, DATA.kept),
)
"""(operator, channel, event_id, reference, kept)"""
KEPT_ROWS = Table(
    lambda tables: [(row.receiver, row.body.event_id, row.inset_id) for row in tables.events.rows.values() if row.kept],
    sa.select(LOG.rec_op, LOG.event_id, LOG.inset_id).where(LOG.kept),
)
"""(receiver, event_id, Input Set) of the rows that lineage needs"""
QUARANTINE = Table(
    lambda tables: [(key[1], key[2], row.group, row.error) for key, row in tables.quarantine.items()],
    sa.select(ASIDES.op, ASIDES.inset_id, ASIDES.group_name, ASIDES.error),
)
"""(operator, Input Set, group, error)"""


# --- stored effects of read actions (Algorithm 1) ---------------------------------------------------------------------

BEGIN = fx.StartReadAction("source", "source", 1, {"queue": "q"})
STORED = fx.CompleteReadAction("source", "source", 1, ref="effects/1", records=3)
READ_DONE = fx.ReadDone("source", "source", 1)
DROP = fx.DropRead("source", "source", 1)


def test_the_life_of_a_stored_effect(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([BEGIN])
    assert READ_ACTIONS.of(log_store) == [("source", 1, "incomplete", False)]
    session.commit([STORED])
    assert READ_ACTIONS.of(log_store) == [("source", 1, "complete", False)]
    assert log_rows(log_store) == [("source", 1, None, "undone")], "event r, undone"
    ((operator, channel, event_id, ref, _),) = BODIES.of(log_store)
    assert (operator, channel, event_id, ref) == ("source", "read:source", 1, "effects/1"), "its data is the reference"
    recovered = session.recover(["source"])
    assert (recovered.acknowledged, recovered.writes) == ((), ()), "it is not an event for an input port"
    session.commit([READ_DONE])
    assert log_rows(log_store) == [("source", 1, None, "done")]
    session.commit([DROP])
    assert log_rows(log_store) == BODIES.of(log_store) == READ_ACTIONS.of(log_store) == []


def test_lineage_keeps_the_read_action_and_not_the_effect(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([fx.StartReadAction("source", "source", 1, {"queue": "q"}, kept=True), STORED, READ_DONE])
    session.commit([DROP])
    assert READ_ACTIONS.of(log_store) == [("source", 1, "complete", True)]
    assert log_rows(log_store) == BODIES.of(log_store) == []


def test_read_actions_of_one_source_are_apart(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([BEGIN, STORED, READ_DONE, fx.StartReadAction("source", "source", 2, {})])
    session.commit([fx.CompleteReadAction("source", "source", 2, ref="effects/2")])
    session.commit([DROP])
    assert log_rows(log_store) == [("source", 2, None, "undone")]
    assert READ_ACTIONS.of(log_store) == [("source", 2, "complete", False)]


def test_one_commit_may_hold_several_steps_of_a_read_action(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([BEGIN, STORED, READ_DONE])
    assert log_rows(log_store) == [("source", 1, None, "done")]


# --- held events (Steps 5 and 6 of Algorithm 3 swapped) ---------------------------------------------------------------


def waiting(event_id: int, *receivers: Port) -> fx.LogEvent:
    event = Event(OUT, event_id, Kind.DATA, 3, None, b"body")
    return fx.LogEvent(event, tuple(fx.Delivery(receiver) for receiver in receivers or (IN,)), held=True)


def test_a_held_event_is_not_delivered_before_it_is_released(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    driver.session.commit([sent(1), waiting(2), waiting(3), waiting(4)])
    assert fetched(driver.session) == [1]
    assert log_rows(log_store)[1] == ("receiver", 2, None, "held")
    driver.session.commit([fx.Release(OUT, 2, 3, rows=2)])
    assert fetched(driver.session) == [1, 2, 3]
    assert log_rows(log_store)[3] == ("receiver", 4, None, "held")


def test_a_held_event_stays_held_in_a_recovery(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    driver.session.commit([waiting(1)])
    driver = replace_driver(driver)
    assert fetched(driver.session) == []
    assert driver.session.recover(["receiver", "sender"]).acknowledged == ()
    driver.session.commit([fx.Release(OUT, 1, 1, rows=1)])
    assert fetched(driver.session) == [1]


def test_a_release_counts_the_rows_of_all_receivers(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([waiting(1, IN, OTHER), waiting(2, IN, OTHER)])
    session.commit([fx.Release(OUT, 1, 2, rows=4)])
    assert fetched(session) == fetched(session, receiver=OTHER) == [1, 2]


def test_an_event_may_be_held_and_released_in_one_commit(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([waiting(1), fx.Release(OUT, 1, 1, rows=1)])
    assert fetched(session) == [1]


def test_a_held_end_of_stream(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([fx.LogEvent(Event(OUT, 1, Kind.END), (fx.Delivery(IN),), held=True)])
    assert fetched(session) == []
    session.commit([fx.Release(OUT, 1, 1, rows=1)])
    assert fetched(session) == [1]


# --- quarantine -------------------------------------------------------------------------------------------------------


def test_rows_of_earlier_commits_and_of_this_one_are_set_aside(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([sent(1), sent(2), sent(3)])
    session.commit([assigned(1, "A", "B")])
    here = fx.Acknowledge(OUT, IN, 2, (("A", ASIDE), ("B", UNDONE)))
    session.commit([here, fx.SetAside("receiver", "A", 1, "ValueError: no")])
    assert log_rows(log_store) == [
        ("receiver", 1, "A", "aside"),
        ("receiver", 1, "B", "undone"),
        ("receiver", 2, "A", "aside"),
        ("receiver", 2, "B", "undone"),
        ("receiver", 3, None, "undone"),
    ]
    assert QUARANTINE.of(log_store) == [("receiver", "A", "g", "ValueError: no")]
    assert held(session) == [(1, "B"), (2, "B")], "recovery leaves it aside"
    assert fetched(session) == [3]


def test_a_state_event_is_set_aside_too(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([sent(1), sent(2)])
    session.commit([assigned(1, "A"), fx.LogStateEvent("receiver", 1, "A", b"at A")])
    session.commit([fx.SetAside("receiver", "A", 2, "no")])
    born = fx.LogStateEvent("receiver", 2, "B", b"at B", ASIDE)
    session.commit([fx.Acknowledge(OUT, IN, 2, (("B", ASIDE),)), born, fx.SetAside("receiver", "B", 0, "no")])
    assert session.recover(["receiver"]).snapshots == ()
    assert [row[3] for row in log_rows(log_store)] == ["aside"] * 4


def test_any_number_of_input_sets_is_set_aside_in_as_many_statements(sql_store: SqlLogStore) -> None:
    session = start_driver(sql_store).session
    counts = {}
    for number, many in enumerate((2, 500)):
        first = 1_000 * number + 1
        events = range(first, first + many)
        session.commit([sent(event) for event in events])
        session.commit([assigned(event, f"{event}", "odd" if event % 2 else "even") for event in events])
        with before_statement(sql_store, 0, inject) as seen:
            session.commit([fx.SetAside("receiver", f"{event}", 1, f"no {event}") for event in events])
        counts[many] = len(seen)
        wanted = [("receiver", f"{event}", "g", f"no {event}") for event in events]
        assert [row for row in QUARANTINE.of(sql_store) if int(row[1]) >= first] == wanted
        aside = {inset for _, _, inset, status in log_rows(sql_store) if status == "aside"}
        assert aside >= {f"{event}" for event in events} and not aside & {"odd", "even"}
    assert counts[500] == counts[2]


def test_one_of_many_input_sets_that_is_not_as_it_should_be_is_named(log_store: LogStore) -> None:
    """One row too many here and one too few there, in one commit: the sum is right, the Input Sets are not."""
    session = start_driver(log_store).session
    session.commit([sent(1), sent(2), sent(3)])
    session.commit([assigned(1, "A", "B"), assigned(2, "A"), assigned(3, "C")])
    before = contents(log_store)
    aside: list[fx.Effect] = [
        fx.SetAside("receiver", inset, rows, "no") for inset, rows in (("C", 1), ("A", 1), ("B", 2))
    ]
    with pytest.raises(LogInconsistent, match=r"Input Set 'A': the step expects 1 row\(s\) in the log, there are 2"):
        session.commit(aside)
    assert contents(log_store) == before


# --- what lineage keeps -----------------------------------------------------------------------------------------------


def test_rows_and_bodies_say_whether_lineage_needs_them(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    event = Event(OUT, 1, Kind.DATA, 3, None, b"body")
    fused = (fx.Delivery(IN, (("A", DONE), ("B", UNDONE)), fused=True, kept=True), fx.Delivery(OTHER, kept=False))
    session.commit([fx.LogEvent(event, fused, kept=True), sent(2), sent(3)])
    session.commit([fx.Acknowledge(OUT, IN, 2, (("A", DONE), ("C", UNDONE)), kept=True), assigned(3, "C")])
    kept = [row[1:] for row in KEPT_ROWS.of(log_store)]
    assert (1, "A") in kept and (1, "B") in kept and (2, "C") in kept
    assert not [row for row in kept if row[0] == 3], "not of a port outside the scope"
    assert not [row for row in KEPT_ROWS.of(log_store) if row[0] == "other"]
    assert [(row[2], row[4]) for row in BODIES.of(log_store)] == [(1, True), (2, False), (3, False)]


def test_side_effect_reads_are_kept(log_store: LogStore) -> None:
    session = start_driver(log_store).session
    session.commit([fx.LogRead("op", "wh", 1, {"table": "t"}, ("A", "B"), 1, None, b"rows")])
    assert READ_ACTIONS.of(log_store) == [("op", 1, "complete", True)]
    assert [row[2] for row in KEPT_ROWS.of(log_store)] == ["A", "B"], "a row per Input Set"
    assert [row[-1] for row in BODIES.of(log_store)] == [True], "one effect"


# --- refusals ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refused:
    what: str
    effect: fx.Effect


REFUSED = [
    Refused("an effect that is not stored is used up", fx.ReadDone("source", "source", 2)),
    Refused("an effect is used up twice", fx.ReadDone("source", "source", 3)),
    Refused("an effect is discarded before it is used up", fx.DropRead("source", "source", 1)),
    Refused("an effect that is not there is discarded", fx.DropRead("source", "source", 2)),
    Refused(
        "an effect is stored for a read action that was not begun", fx.CompleteReadAction("source", "source", 9, "x")
    ),
    Refused("an effect is stored twice", STORED),
    Refused("an effect of another source is used up", fx.ReadDone("receiver", "source", 1)),
    Refused("more is released than is held", fx.Release(OUT, 4, 5, rows=2)),
    Refused("less is released than is held", fx.Release(OUT, 4, 4, rows=0)),
    Refused("what was sent at once is released", fx.Release(OUT, 1, 1, rows=1)),
    Refused("more is set aside than there is", fx.SetAside("receiver", "A", 2, "no")),
    Refused("less is set aside than there is", fx.SetAside("receiver", "A", 0, "no")),
    Refused("an Input Set is set aside twice", fx.SetAside("receiver", "Q", 0, "no")),
    Refused("what was set aside is done", fx.MarkDone("receiver", "Q", 1)),
    Refused("a held event is acknowledged", assigned(4, "A")),
]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.what)
def test_a_refused_commit_leaves_nothing_behind(log_store: LogStore, refused: Refused) -> None:
    session = start_driver(log_store).session
    session.commit(
        [
            *(sent(n) for n in (1, 2, 3)),
            waiting(4),
            assigned(2, "A"),
            assigned(3, "Q"),
            BEGIN,
            STORED,
            fx.StartReadAction("source", "source", 2, {}),
            fx.StartReadAction("source", "source", 3, {}),
            fx.CompleteReadAction("source", "source", 3, ref="effects/3"),
            fx.ReadDone("source", "source", 3),
        ]
    )
    session.commit([fx.SetAside("receiver", "Q", 1, "no")])
    before = contents(log_store)
    with pytest.raises(LogInconsistent):
        session.commit([sent(6), fx.StoreState("receiver", b"new"), refused.effect])
    assert contents(log_store) == before
    session.commit([sent(5), READ_DONE, fx.Release(OUT, 4, 4, rows=1)])
    assert fetched(session) == [1, 4, 5], "the session can continue after a refusal"


def test_another_run_is_not_touched(log_store: LogStore) -> None:
    """The same operators, ports and Input Sets in a second run."""
    sessions = [start_driver(log_store, run=log_store.start_run(spec(dag_run=name))).session for name in ("one", "two")]
    for session in sessions:
        session.commit([sent(1), waiting(2), assigned(1, "A"), BEGIN, STORED])
    sessions[0].commit([fx.Release(OUT, 2, 2, rows=1), fx.SetAside("receiver", "A", 1, "no"), READ_DONE])
    sessions[0].commit([DROP])
    assert fetched(sessions[0]) == [2]
    assert fetched(sessions[1]) == []
    assert held(sessions[1]) == [(1, "A")]
    assert READ_ACTIONS.of(log_store) == [("source", 1, "complete", False)]
