"""Generation by hand (Algorithm 3): the rows used and no others, triggers that survive, lineage, ids without a gap."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.contrib.paper_api import ActionInfo, EventInfo, Logio, StateInfo, StreamEvent
from airflow_logio.errors import ApiMisuse, LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import log_rows
from tests.unit.contrib.paper_api.support import Bench, assigned, generate, output, table


def one_set(bench: Bench) -> tuple[Logio, str, StreamEvent]:
    bench.feed([1])
    mid = bench.ready()
    inset = mid.get_inset_id()
    return mid, inset, assigned(mid, inset)


def commits(bench: Bench, operator: str = "mid") -> list[fx.Effects]:
    """What the driver of the operator commits from now on."""
    session, made = bench.epochs[operator]._session, []
    commit = session.commit

    def recording(effects: fx.Effects) -> Any:
        made.append(effects)
        return commit(effects)

    session.commit = recording  # type: ignore[method-assign]
    return made


# --- Input Sets -------------------------------------------------------------------------------------------------------


def test_marking_done_other_events_than_the_log_holds_is_refused(bench: Bench) -> None:
    bench.feed([1], [2], [3])
    mid = bench.ready()
    inset, other = mid.get_inset_id(), mid.get_inset_id()
    used = [assigned(mid, inset), assigned(mid, inset)]
    foreign = assigned(mid, other)
    for wrong, message in (
        (used[:1], "event 2 of port 'a' is not used"),
        ([*used, foreign], "event 3 .* not in the log"),
    ):
        with pytest.raises(ApiMisuse, match=message):
            generate(mid, inset, *wrong)
    generate(mid, inset, *used)
    with pytest.raises(ApiMisuse, match="has no Input Set"):
        generate(mid, inset, *used)


def test_a_log_that_holds_other_rows_refuses_the_commit() -> None:
    store = MemoryLogStore()
    bench = Bench(store)
    mid, inset, event = one_set(bench)
    mid.begin_transaction().commit()
    (row,) = store.tables.events.undone_of(bench.run.run_id, "mid", inset)
    with store.tables.transaction():
        store.tables.unlog(row)
    with pytest.raises(LogInconsistent, match="expects 1 row"):
        generate(mid, inset, event)


def test_an_input_set_may_be_empty(bench: Bench) -> None:
    mid = bench.ready()
    generate(mid, mid.get_inset_id(), outputs=[output(mid)])
    assert ("done", 1, None, "undone") in log_rows(bench.store)


def test_several_output_sets_in_one_transaction(bench: Bench) -> None:
    bench.feed([1], [2])
    mid = bench.ready()
    sets = [mid.get_inset_id(), mid.get_inset_id()]
    events = [assigned(mid, inset) for inset in sets]
    with mid.begin_transaction() as transaction:
        for inset, event in zip(sets, events, strict=True):
            transaction.log_output_events([output(mid), output(mid, "rest")], [table(1)] * 2, inset, [event.info])
    assert [row[:2] for row in log_rows(bench.store) if row[0] in ("done", "rest")] == [
        ("done", 1), ("done", 2), ("rest", 1), ("rest", 2),
    ]  # fmt: skip


# --- triggers ---------------------------------------------------------------------------------------------------------


def test_a_trigger_commits_with_the_assignment_that_caused_it(bench: Bench) -> None:
    mid, inset, _ = one_set(bench)
    mid.trigger(inset)
    mid.begin_transaction().commit()
    mid = bench.ready()
    assert mid.triggered_in_sets() == (inset,)


def test_a_generation_sees_the_state_of_its_trigger_whatever_fails(bench: Bench) -> None:
    bench.feed([1], [2])
    mid = bench.ready()
    first, second = mid.get_inset_id(), mid.get_inset_id()
    state = {"seen": 1}
    event = assigned(mid, first)
    mid.log_state_event(StateInfo(mid.get_state_id()), first, state)
    state["seen"] = 2
    assert mid.get_proc_state(first) == {"seen": 1}
    assigned(mid, second)
    with mid.begin_transaction() as transaction:
        transaction.store_state(StateInfo(mid.get_state_id()), state)
    mid = bench.ready()
    assert (mid.triggered_in_sets(), mid.get_proc_state(first), mid.get_proc_state()) == (
        (first,), {"seen": 1}, {"seen": 2},
    )  # fmt: skip
    generate(mid, first, event)
    with pytest.raises(ApiMisuse, match="no state is logged"):
        mid.get_proc_state(first)
    mid = bench.ready()
    assert mid.triggered_in_sets() == ()
    with pytest.raises(ApiMisuse, match="no state is logged"):
        mid.get_proc_state(first)


def test_triggering_twice_is_refused(bench: Bench) -> None:
    mid, inset, _ = one_set(bench)
    mid.trigger(inset)
    with pytest.raises(ApiMisuse, match="is triggered"):
        mid.log_state_event(StateInfo(mid.get_state_id()), inset, {})


# --- ids --------------------------------------------------------------------------------------------------------------


def test_event_ids_are_logged_once_and_without_a_gap(bench: Bench) -> None:
    mid, inset, event = one_set(bench)
    with pytest.raises(ApiMisuse, match="has not given"):
        generate(mid, inset, event, outputs=[EventInfo(1, "out")])
    first, second = output(mid), output(mid)
    with pytest.raises(ApiMisuse, match="would leave a gap"):
        generate(mid, inset, event, outputs=[second])
    first, second = output(mid), output(mid)
    with pytest.raises(ApiMisuse, match="is logged already"):
        generate(mid, inset, event, outputs=[first, first])
    generate(mid, inset, event, outputs=[output(mid)])
    inset = mid.get_inset_id()
    with pytest.raises(ApiMisuse, match="is logged already"):
        generate(mid, inset, outputs=[EventInfo(1, "out")])
    assert bench.ready().get_event_id("out") == 2


def test_unknown_ports_and_missing_records_are_refused_and_end_the_transaction(bench: Bench) -> None:
    mid, inset, event = one_set(bench)
    with pytest.raises(ApiMisuse, match="no output port 'a'"):
        mid.get_event_id("a")
    transaction = mid.begin_transaction()
    with pytest.raises(ApiMisuse, match="no records"):
        transaction.log_output_events([output(mid), output(mid)], [table(1), None], inset, [event.info])
    with pytest.raises(ApiMisuse, match="is over"):
        transaction.commit()
    with pytest.raises(ApiMisuse, match=r"port .* or a connection"):
        EventInfo(1)
    with pytest.raises(ApiMisuse, match=r"port .* or a connection"):
        EventInfo(1, "out", "wh")


# --- lineage (Section 3.1) --------------------------------------------------------------------------------------------


def of_kind(kind: type[Any], made: list[fx.Effects]) -> list[Any]:
    return [effect for effects in made for effect in effects if isinstance(effect, kind)]


def test_lineage_is_recorded_for_ports_in_out_and_input_sets_with_events_in_in(bench: Bench) -> None:
    bench.feed([1])
    bench.feed([2], source="more")
    mid = bench.ready()
    made = commits(bench)
    inside, outside = mid.get_inset_id(), mid.get_inset_id()
    in_scope, beside = assigned(mid, inside), assigned(mid, outside, port="b")
    generate(mid, inside, in_scope, outputs=[output(mid), output(mid, "rest")])
    generate(mid, outside, beside, outputs=[output(mid)])
    recorded = of_kind(fx.RecordLineage, made)
    assert [(str(effect.sender), effect.event_id, effect.inset_id) for effect in recorded] == [("mid.out", 1, inside)]


def test_lineage_of_an_input_set_that_was_assigned_before_the_failure(bench: Bench) -> None:
    mid, inset, event = one_set(bench)
    mid.begin_transaction().commit()
    mid = bench.ready()
    made = commits(bench)
    generate(mid, inset, event, outputs=[output(mid)])
    assert [effect.inset_id for effect in of_kind(fx.RecordLineage, made)] == [inset]


def test_a_side_effect_read_is_part_of_the_lineage_of_an_input_set_outside_the_scope(bench: Bench) -> None:
    bench.feed([2], source="more")
    mid = bench.ready()
    made = commits(bench)
    inset = mid.get_inset_id()
    event = assigned(mid, inset, port="b")
    action = ActionInfo(mid.get_action_id("elsewhere"), "elsewhere", {"table": "t"})
    effect = mid.execute_read(action, lambda: table(7))
    with mid.begin_transaction() as transaction:
        transaction.log_read_event(action, effect, inset)
        transaction.log_output_events([output(mid)], [table(1)], inset, [event.info])
    (read,) = of_kind(fx.LogRead, made)
    assert (read.connection, read.inset_ids, read.records) == ("elsewhere", (inset,), 1)
    assert [effect.inset_id for effect in of_kind(fx.RecordLineage, made)] == [inset]
    mid.send("out")
    with pytest.raises(ApiMisuse, match="or that is used"), mid.begin_transaction() as transaction:
        transaction.log_read_event(action, pa.table({}), mid.get_inset_id())
