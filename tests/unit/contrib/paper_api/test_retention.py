"""Hand-written operators in a lineage scope with a retention: what they have logged goes with their events."""

from __future__ import annotations

from dataclasses import replace

from airflow_logio.contrib.paper_api import ActionInfo, EventInfo, StateInfo
from airflow_logio.dataflow import Count, Pipeline
from airflow_logio.driver.garbage import sweeps_of
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Port
from airflow_logio.store.port import LogStore
from tests.support.garbage import left
from tests.support.logs import SOMEBODY
from tests.unit.contrib.paper_api.support import Bench, Feed, Middle, generate, output, received, table

MANY = 5


def test_read_actions_and_states_are_swept(store: LogStore) -> None:
    made = Pipeline("api", connections=["wh", "elsewhere"])
    for name in ("feed", "more"):
        made.operator(name, Feed())
    made.operator("mid", Middle(), a="feed", b="more")
    made.sink("done", Count(), "mid.out")
    made.sink("rest", Count(), "mid.rest")
    made.lineage("feed.out", "mid.out", retention="1h")
    bench = Bench(store, pipeline=made.freeze())
    feed = bench.ready("feed")
    for number in range(MANY):
        action = ActionInfo(feed.get_action_id(), replayable=True)
        feed.initialize_read_action(action, StateInfo(feed.get_state_id()), {})
        with feed.begin_transaction() as transaction:
            transaction.log_source_event(EventInfo(feed.get_event_id("out"), "out"), table(number))
        feed.send("out")
        feed.done_event(action)
    mid = bench.ready("mid")
    for _ in range(MANY - 1):  # the last one stays
        event = received(mid, "a")
        inset = mid.get_inset_id()
        mid.assign_in_sets([inset], event.info)
        mid.log_state_event(StateInfo(mid.get_state_id()), inset, {"seen": 1})
        generate(mid, inset, event, outputs=[output(mid)])
    claim = store.claim(bench.run.run_id, "done", expected=0, reason="test")
    done = store.session(store.register(claim, SOMEBODY))
    done.open()
    receiver = Port("done", "in")
    for logged in done.fetch(receiver, 0, max_events=99, max_bytes=1 << 30):
        done.commit([fx.Acknowledge(logged.event.sender, receiver, logged.event.event_id, (), kept=False)])
    sessions = {"mid": bench.epochs["mid"]._session, "feed": bench.epochs["feed"]._session, "done": done}
    for _ in range(2):
        for group, session in sessions.items():
            for sweep in sweeps_of(bench.pipeline, group):
                session.commit([replace(sweep, retention_seconds=-1.0).batch(0, 99)])
            session.commit([fx.Collect((group,), 99)])
    found = left(store)
    assert found.reads == [("source", MANY)], "that of the event that was not used"
    assert (len(found.bodies), found.lineage) == (1, [])
    assert found.states == []
