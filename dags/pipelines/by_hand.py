"""The paper's Listings 1 to 3 (Section 6.3), corrected: operators written by hand, beside ready-made ones.

readings ── days ── publish ── done     totals by day and place → day_totals (by hand), published_days

`readings` reads a file that may be replaced at any time, so its one read action is not replayable. `days` is a Middle
Writer with a global state (how many readings it has seen) and windows: an Input Set per day, closed by a later day.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_logio import Count, ManualOperator, Pipeline, TableWriter
from airflow_logio.contrib.paper_api import ActionInfo, EventInfo, Logio, ReadProgress, StateInfo, StreamEvent
from pipelines.day_totals import DayTotals

RECORDS_PER_EVENT = 20


# [START source]
class Readings(ManualOperator):
    """Listing 1: a source with a non-replayable read action, and its recovery (Algorithms 1 and 6)."""

    inputs = ()

    def run(self, logio: Logio) -> None:
        for event in logio.fetch_resend_events():
            logio.send(event.port)
        logio.initialize_context()
        state = logio.get_proc_state() or {"offset": 0}
        if logio.last_read_action() is None:
            action = ActionInfo(logio.get_action_id(), description={"file": logio.params["readings"]})
            logio.initialize_read_action(action, StateInfo(logio.get_state_id()), state)  # Step 1
        if (read := logio.last_read_action()) and read.progress is ReadProgress.INCOMPLETE:
            path, records = self.store_read_action(logio, read.info)  # Step 2.a
            logio.complete_read_action(read.info, path, records)  # Step 2.b
        if (read := logio.last_read_action()) and read.progress is ReadProgress.COMPLETE:
            self.generate_output_events(logio, read.info, str(read.action_data), state)  # Step 2.c
        if (read := logio.last_read_action()) and read.progress is ReadProgress.DONE:
            # Step 2.d: after the loop. The listing has it inside, and loses the effect after the first event.
            logio.drop_read_action(read.info, lambda path: Path(path).unlink(missing_ok=True))

    def store_read_action(self, logio: Logio, action: ActionInfo) -> tuple[str, int]:
        """Stores the effect under the driver's own token, and discards what earlier drivers left unfinished (Algorithm 6
        Step 4.a). A replaced driver that does not know it may leave a file behind: the log never names it."""
        folder = Path(logio.params["store"]) / logio.run_uid
        folder.mkdir(parents=True, exist_ok=True)
        for earlier in folder.glob("*.parquet"):
            if int(earlier.stem) < logio.token:
                earlier.unlink(missing_ok=True)
        content = logio.execute_read(action, Path(logio.params["readings"]).read_bytes)
        path = folder / f"{logio.token}.parquet"
        path.write_bytes(content)
        for written in (path, folder):
            make_durable(written)
        return str(path), pq.read_metadata(path).num_rows

    def generate_output_events(self, logio: Logio, action: ActionInfo, path: str, state: dict[str, Any]) -> None:
        effect = pq.read_table(path)
        while state["offset"] < effect.num_rows:
            batch = effect.slice(state["offset"], RECORDS_PER_EVENT)
            state["offset"] += batch.num_rows
            with logio.begin_transaction() as transaction:
                transaction.log_source_event(EventInfo(logio.get_event_id("out"), "out"), batch)
                transaction.store_state(StateInfo(logio.get_state_id()), state)
                if state["offset"] == effect.num_rows:
                    transaction.done_event(action)
            logio.send("out")


def make_durable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


# [END source]


# [START middle]
class Days(ManualOperator):
    """A Middle Writer; `DayWindows` holds its changing state."""

    def writes(self) -> Mapping[str, str | None]:
        return {"warehouse": "conditional"}

    def run(self, logio: Logio) -> None:
        with closing(DayTotals(logio.url("warehouse"), logio.marker("warehouse"))) as warehouse:
            windows = DayWindows(logio, warehouse)
            windows.on_recovery()
            while (event := logio.receive(state=windows.state)) is not None:
                windows.on_input(event)
            windows.trigger(at_end=True)
            windows.generate()


class DayWindows:
    def __init__(self, logio: Logio, warehouse: DayTotals) -> None:
        self.logio = logio
        self.warehouse = warehouse
        self.state: dict[str, Any] = {"seen": 0, "latest": -1, "days": {}}  # global state; days: Input Set → day
        self.held: dict[str, list[tuple[EventInfo, pa.Table]]] = {}  # event state

    def on_input(self, event: StreamEvent) -> None:
        """Listing 2: State Update (Algorithm 2), Triggering, Generation (Algorithm 3)."""
        if not self.logio.check_event(event.info):
            return
        days = [day for day in pc.unique(event.data["day"]).to_pylist() if part_of(event.data, day).num_rows]
        if days and self.logio.update_context(event.info):
            self.state["seen"] += event.data.num_rows - event.data["value"].null_count
            self.state["latest"] = max(self.state["latest"], *days)
        inset_ids = [self.inset_of(day) for day in days]
        self.logio.assign_in_sets(inset_ids, event.info)  # () for an event that no Input Set uses: done at once
        for inset_id, day in zip(inset_ids, days, strict=True):
            self.held.setdefault(inset_id, []).append((event.info, part_of(event.data, day)))
        self.trigger()
        self.generate()

    def inset_of(self, day: int) -> str:
        """The open Input Set of a day, or a new one if there is none."""
        triggered = self.logio.triggered_in_sets()
        for inset_id, known in self.state["days"].items():
            if known == day and inset_id not in triggered:
                return str(inset_id)
        inset_id = self.logio.get_inset_id()
        self.state["days"][inset_id] = day
        return inset_id

    def trigger(self, *, at_end: bool = False) -> None:
        """Triggers every window that is complete. Each trigger commits with the assignment that caused it, and with the state
        that its generation will read."""
        triggered = self.logio.triggered_in_sets()
        for inset_id, day in sorted(self.state["days"].items(), key=lambda window: window[1]):
            if inset_id not in triggered and (at_end or day < self.state["latest"]):
                self.logio.log_state_event(StateInfo(self.logio.get_state_id()), inset_id, self.state)

    def generate(self) -> None:
        for inset_id in self.logio.triggered_in_sets():
            seen = (self.logio.get_proc_state(inset_id) or {})["seen"]
            used = self.held.pop(inset_id)
            totals = totals_of(self.state["days"].pop(inset_id), [part for _, part in used], seen)
            output = EventInfo(self.logio.get_event_id("out"), "out")
            write = EventInfo(self.logio.get_event_id(connection="warehouse"), connection="warehouse")
            with self.logio.begin_transaction() as transaction:
                transaction.log_output_events([output, write], [totals, totals], inset_id, [info for info, _ in used])
                transaction.store_state(StateInfo(self.logio.get_state_id()), self.state)
            self.logio.send("out")
            self.process_write_actions()

    def process_write_actions(self) -> None:
        for action in self.logio.get_write_actions():
            self.logio.execute_write(action, self.warehouse.apply)
            self.logio.done_event(action)

    def on_recovery(self) -> None:
        """Listing 3 (Algorithms 7, 8, 9): nothing is triggered before every event is reloaded."""
        for event in self.logio.fetch_resend_events():
            self.logio.send(event.port)
        self.process_write_actions()
        self.state = self.logio.get_proc_state() or self.state
        self.logio.initialize_context()
        for event in self.logio.fetch_ack_events():
            part = part_of(event.data, self.state["days"][event.inset_id])
            self.held.setdefault(event.inset_id, []).append((event.info, part))
        self.generate()
        self.trigger()
        self.generate()


# [END middle]


def part_of(readings: pa.Table, day: int) -> pa.Table:
    """Readings of a day that have a value."""
    return readings.filter(pc.and_(pc.equal(readings["day"], day), pc.is_valid(readings["value"])))


def totals_of(day: int, parts: list[pa.Table], seen: int) -> pa.Table:
    sums = pa.concat_tables(parts).group_by("place", use_threads=False).aggregate([("value", "sum")]).sort_by("place")
    days, seens = (pa.repeat(pa.scalar(value, pa.int64()), sums.num_rows) for value in (day, seen))
    return pa.table({"day": days, "place": sums["place"], "total": sums["value_sum"], "seen": seens})


# [START pipeline]
by_hand = Pipeline("by_hand", params={"readings": str, "store": str}, connections=["warehouse"])
readings = by_hand.operator("readings", Readings())
days = by_hand.operator("days", Days(), readings)
columns = {"day": "bigint", "place": "text", "total": "bigint", "seen": "bigint"}
publish = by_hand.writer("publish", TableWriter("warehouse", "published_days", columns, on_new_run="replace"), days)
done = by_hand.sink("done", Count(), publish)
by_hand.group("publish", publish, done)
by_hand.lineage("readings.out", "days.out")
# [END pipeline]
