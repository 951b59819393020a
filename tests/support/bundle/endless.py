"""Sources without an end, one of each kind: replayable, not replayable, by hand. Each writes what it reads to its table.

`ticks` gives the numbers from 0 on; behind number `ticks_block`, the external system never answers again. `polls` reads one
poll after the other, each with a new `look`; behind poll `polls_block`, the question for the next one is never answered.
`turns` is a source by hand, which asks whether it is to drain.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from airflow_logio.contrib.paper_api import ActionInfo, EventInfo, Logio, ReadProgress, StateInfo
from airflow_logio.dataflow import ManualOperator, Pipeline, SourceBatch, TableWriter
from airflow_logio.dataflow.operators import SourceOperator

RECORDS_PER_EVENT = 10
RECORDS_PER_POLL = 50
PACE_SECONDS = 0.005
FOR_EVER = 3_600


class Ticks(SourceOperator):
    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"from": 0}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        while True:
            if offset == params["ticks_block"]:
                time.sleep(FOR_EVER)
            time.sleep(PACE_SECONDS)
            numbers = range(offset, offset + RECORDS_PER_EVENT)
            offset += RECORDS_PER_EVENT
            yield SourceBatch(pa.table({"number": pa.array(numbers, pa.int64())}), offset)


class Polls(SourceOperator):
    replayable = False

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"poll": 0, "block": params["polls_block"]}

    def next_action(self, params: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any] | None:
        if previous["poll"] == params["polls_block"]:
            time.sleep(FOR_EVER)
        return {"poll": previous["poll"] + 1}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        look = random.SystemRandom().randrange(2**31)
        for first in range(0, RECORDS_PER_POLL, RECORDS_PER_EVENT):
            time.sleep(PACE_SECONDS)
            columns = {
                "poll": [action["poll"]] * RECORDS_PER_EVENT,
                "number": list(range(first, first + RECORDS_PER_EVENT)),
                "look": [look] * RECORDS_PER_EVENT,
            }
            yield SourceBatch(pa.table(columns), first + RECORDS_PER_EVENT)


class Turns(ManualOperator):
    """One replayable read action without an end."""

    inputs = ()

    def run(self, logio: Logio) -> None:
        for unsent in logio.fetch_resend_events():
            logio.send(unsent.port)
        logio.initialize_context()
        state = logio.get_proc_state() or {"next": 0}
        if logio.last_read_action() is None:
            begun = ActionInfo(logio.get_action_id(), description={"from": 0}, replayable=True)
            logio.initialize_read_action(begun, StateInfo(logio.get_state_id()), state)
        read = logio.last_read_action()
        assert read is not None
        while not logio.is_draining:
            time.sleep(PACE_SECONDS)
            numbers = range(state["next"], state["next"] + RECORDS_PER_EVENT)
            state["next"] += RECORDS_PER_EVENT
            with logio.begin_transaction() as transaction:
                event = EventInfo(logio.get_event_id("out"), "out")
                transaction.log_source_event(event, pa.table({"number": pa.array(numbers, pa.int64())}))
                transaction.store_state(StateInfo(logio.get_state_id()), state)
            logio.send("out")
        if read.progress is ReadProgress.INCOMPLETE:
            logio.done_event(read.info)


endless = Pipeline("endless", params={"ticks_block": int, "polls_block": int}, connections=["warehouse"])
ticks = endless.source("ticks", Ticks())
polls = endless.source("polls", Polls())
turns = endless.operator("turns", Turns())
NUMBERS = {"number": "bigint"}
POLLS = {"poll": "bigint", "number": "bigint", "look": "bigint"}
writers = [
    endless.writer("save_ticks", TableWriter("warehouse", "ticks", NUMBERS, on_new_run="replace"), ticks),
    endless.writer("save_polls", TableWriter("warehouse", "polls", POLLS, on_new_run="replace"), polls),
    endless.writer("save_turns", TableWriter("warehouse", "turns", NUMBERS, on_new_run="replace"), turns),
]
endless.group("ticks", ticks)
endless.group("polls", polls)
endless.group("turns", turns)
endless.group("save", *writers)
