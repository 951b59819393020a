"""A hand-written operator behind a quarantining one: an end that a retry has taken back does not end its stream."""

from __future__ import annotations

import pyarrow as pa

from airflow_logio.api import Logio
from airflow_logio.dataflow import Count, ManualOperator, Pipeline, stateless
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.states import GroupState
from airflow_logio.runtime.driver.committer import serialize
from airflow_logio.runtime.driver.logics.operator_specs import captured_inputs, specs_of
from airflow_logio.runtime.payloads.bodies import Bodies
from airflow_logio.runtime.systems.connections import Connections, WriterIdentity
from airflow_logio.store.port import LogStore
from tests.support.logs import SOMEBODY
from tests.unit.api.support import Bench, Feed, received, values

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
