"""A hand-written operator behind a quarantining one: an end that a retry has taken back does not end its stream."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_logio.contrib.paper_api import Logio
from airflow_logio.dataflow import Count, ManualOperator, Pipeline, from_one, stateless
from airflow_logio.driver.committer import serialize
from airflow_logio.driver.logics.operator_specs import captured_inputs, specs_of
from airflow_logio.errors import LineageUnknown
from airflow_logio.lineage.event_search import events_holding
from airflow_logio.lineage.record_fates import Fate
from airflow_logio.lineage.why_not import why_not
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.lineage.queries import backward
from airflow_logio.store.port import LogStore
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.payloads.bodies import Bodies
from airflow_logio.ui.lineage_documents import held_document
from tests.support.logs import SOMEBODY
from tests.unit.contrib.paper_api.support import Bench, Feed, received, values

UNLUCKY = 13


class Last(ManualOperator):
    order_insensitive = True

    def run(self, logio: Logio) -> None:
        raise NotImplementedError


class Checked:
    """An author's function that is broken until it is mended."""

    def __init__(self) -> None:
        self.mended = False

    def check(self, records: pa.Table) -> pa.Table:
        if UNLUCKY in records["value"].to_pylist() and not self.mended:
            raise ValueError(f"cannot use {UNLUCKY}")
        return records


def launch_and_pump(bench: Bench) -> None:
    """A driver of group ``checked``, step by step, as far as it comes."""
    store, run = bench.store, bench.run.run_id
    status = store.group(run, "checked")
    claim = store.claim(run, "checked", expected=status.incarnation, reason="test", by_user=True)
    session = store.session(store.register(claim, SOMEBODY))
    session.open()
    specs, receivers = specs_of(bench.pipeline, ["checked"], Connections("p", {}, WriterIdentity("run", 1, 0.0), 1.0))
    protocol, bodies = GroupProtocol(specs, receivers, captured_inputs(bench.pipeline)), Bodies(None)

    def commit() -> None:
        if effects := protocol.close_step():
            session.commit(serialize(effects, bodies))

    protocol.rebuild(session.recover(["checked"]), bodies.unpacked)
    protocol.resume()
    commit()
    for port in protocol.inputs_from_log():
        for logged in session.fetch(port, 0, max_events=99, max_bytes=1 << 30):
            protocol.deliver(port, bodies.unpacked(logged.event))
            commit()
    assert protocol.is_finished()
    protocol.finish()
    commit()


def test_it_waits_for_what_is_retried(store: LogStore) -> None:
    checked = Checked()
    made = Pipeline("p")
    made.operator("feed", Feed())
    made.operator("checked", stateless(on_error="quarantine")(checked.check), "feed")
    made.operator("last", Last(), "checked")
    made.sink("done", Count(), "last")
    bench = Bench(store, pipeline=made.freeze(), urls={})
    bench.feed([1], [UNLUCKY], [2], end=True)
    launch_and_pump(bench)
    assert store.group(bench.run.run_id, "checked").state is GroupState.FINISHED
    checked.mended = True
    assert store.retry_quarantined(bench.run.run_id).to_launch == ("checked",)
    last, got = bench.ready("last"), []
    for _ in range(2):
        event = received(last)
        got += values(event)
        last.assign_in_sets((), event.info)
    assert last.receive(timeout=0.1) is None and not last.has_ended(), "the end it finds has been taken back"
    launch_and_pump(bench)
    while (later := last.receive(timeout=1)) is not None:
        got += values(later)
        last.assign_in_sets((), later.info)
    assert last.has_ended() and got == [1, 2, UNLUCKY]


def test_what_is_made_after_an_end_that_was_taken_back_is_searched(store: LogStore) -> None:
    """The end had a number, too, so that the events of the port are fewer than their numbers."""
    checked = Checked()
    made = Pipeline("p")
    made.operator("feed", Feed())
    made.operator("checked", stateless(on_error="quarantine", depends=from_one())(checked.check), "feed")
    made.sink("done", Count(), "checked")
    made.lineage("feed.out", "checked.out")
    bench = Bench(store, pipeline=made.freeze(), urls={})
    bench.feed([1], [UNLUCKY], [2], end=True)
    launch_and_pump(bench)
    unlucky = {"value": str(UNLUCKY)}
    aside = why_not(store, bench.run, "checked.out", unlucky)
    assert [met.fate for met in aside.searches[1].met] == [Fate.ASIDE]
    checked.mended = True
    store.retry_quarantined(bench.run.run_id)
    launch_and_pump(bench)
    (found,) = events_holding(store, bench.run, "checked.out", unlucky)
    assert (found.records, found.searched, found.sent) == ({4: 1}, 3, 3)
    held = held_document(store, bench.run, "checked.out", unlucky, None, None)
    assert held["events"] == [{"port": "checked.out", "event": 4, "records": 1}] and held["before"] is None
    assert why_not(store, bench.run, "checked.out", unlucky).is_there
    never = why_not(store, bench.run, "checked.out", {"value": "99"})
    assert not any(one.found for one in never.searches) and all(one.is_whole for one in never.searches)
    with pytest.raises(LineageUnknown, match=r"number 3 of checked\.out .* is the end of its stream, and no event"):
        backward(store, bench.run, "checked.out", 3)
