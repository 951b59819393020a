"""The days of a pipeline as a calendar: the same from the log in memory, in SQLite and in PostgreSQL, however many runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.dataflow.pipeline.days import Hours
from airflow_logio.errors import ConfigurationError, UnknownRun
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.run_writers import Repeats, Together, WriterShape
from airflow_logio.protocol.scope_rules import DAYS_READ, DayAsRead, table_place
from airflow_logio.protocol.states import RunState
from airflow_logio.protocol.values import Port
from airflow_logio.run_report.calendar import (
    HIDDEN_STATE,
    MOST_SHOWN,
    Calendar,
    CalendarReader,
    Day,
    DayState,
    calendar_document,
)
from airflow_logio.run_report.causes import HIDDEN
from airflow_logio.run_report.report import Reporter
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.day_records import Standing
from airflow_logio.store.records.run_records import Allowed, OperatorShape, Run, RunSpec
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import writing
from airflow_logio.store.sql.store import SqlLogStore
from tests.support.logs import UNDONE, sent, spec, start_driver
from tests.support.statements import counted_statements

DAYS = {"partition": "Days", "name": "day", "zone": "Europe/Berlin", "rules": "r"}
HOURS = {**DAYS, "partition": "Hours", "name": "hour"}
DRIVER, FRAME = (f"airflow_logio.dataflow.functions.own_partition.{kind}" for kind in ("_OwnRecords", "_OwnFrame"))
OPERATORS = {
    "own": OperatorShape("g", {"in": "web.out"}, ("own", "other")),
    "late": OperatorShape("g", {"in": "own.other"}, ("out",)),
    "keep_late": OperatorShape("g", {"in": "late.out"}),
    "save": OperatorShape("g", {"in": "own.own"}),
}
NOON = datetime(2026, 3, 9, 11, tzinfo=UTC).timestamp()
"""In Berlin, 8 March has ended and 9 March has not."""


def of(partition: str, *, divided: Mapping[str, str] = DAYS, function: str = "", **other: Any) -> RunSpec:
    graph = {"partition": divided, "operators": {"own": {"settings": {"function": function}}}}
    shapes = {"web": OperatorShape("g", {}, ("out",)), **OPERATORS}
    return replace(spec("g", **{"dag_run": partition, **other}), partition=partition, graph=graph, operators=shapes)


def finished(store: LogStore, of_run: RunSpec, *counts: fx.CountEvents) -> Run:
    run = store.start_run(of_run)
    start_driver(store, run=run).session.commit([*counts, fx.FinishGroup()])
    assert store.finish_run(run.run_id)
    return store.find_run(run.uid)


def removed(store: LogStore, run: Run) -> None:
    while store.remove_run(run.run_id, 10_000).more:
        pass


def calendar(store: LogStore, **asked: str) -> Calendar:
    return CalendarReader(store, clock=lambda: NOON).read("sales", **asked)


def states(found: Calendar) -> dict[str, DayState]:
    return {day.key.text: day.state for day in found.days}


def day(found: Calendar, key: str) -> Day:
    return next(day for day in found.days if day.key.text == key)


def test_each_day_is_as_its_youngest_run_is(log_store: LogStore) -> None:
    finished(log_store, of("2026-03-01"))
    old = finished(log_store, of("2026-03-02"))
    log_store.supersede(old.run_id, because="a late file")
    again = finished(log_store, of("2026-03-02"))
    log_store.start_run(of("2026-03-04"))
    red = start_driver(log_store, run=log_store.start_run(of("2026-03-05")))
    red.session.park("WriteRefused: day=2026-03-05 is of another log: `logio again ... --take-over`")
    given_up = log_store.start_run(of("2026-03-06"))
    log_store.supersede(given_up.run_id, because="the input was wrong")
    found = calendar(log_store)
    assert states(found) == {
        "2026-03-01": DayState.DONE,
        "2026-03-02": DayState.DONE,
        "2026-03-03": DayState.MISSING,
        "2026-03-04": DayState.RUNNING,
        "2026-03-05": DayState.RED,
        "2026-03-06": DayState.GIVEN_UP,
        "2026-03-07": DayState.NO_RUN_YET,
        "2026-03-08": DayState.NO_RUN_YET,
    }
    replaced = day(found, "2026-03-02")
    assert [run.uid for run in replaced.runs] == [again.uid, old.uid]
    assert (replaced.replaced, replaced.because) == (1, "a late file")
    stopped = day(found, "2026-03-05")
    assert str(stopped.cause).startswith("WriteRefused: day=2026-03-05")
    assert (stopped.options, stopped.condition.word) == ([Allowed.TAKE_OVER], "parked")
    assert stopped.condition.next_step.startswith("its cause names the `logio again` for the next run")
    assert day(found, "2026-03-06").because == "the input was wrong"


def test_two_dag_runs_of_one_day_are_one_day(log_store: LogStore) -> None:
    finished(log_store, of("2026-03-01"))
    second = finished(log_store, of("2026-03-01", dag_run="backfill"))
    (only, *_) = calendar(log_store).days
    assert (only.runs[0].uid, only.replaced, only.because) == (second.uid, 1, None)


def test_runs_of_others_are_none_of_it(log_store: LogStore) -> None:
    finished(log_store, of("2026-03-01"))
    finished(log_store, spec("g", dag_run="without a day"))
    other = of("2026-02-01")
    finished(log_store, replace(other, key=replace(other.key, pipeline="clicks")))
    leaving = finished(log_store, of("2026-03-05"))
    log_store.remove_run(leaving.run_id, 10_000, keep_row=True)
    assert next(iter(states(calendar(log_store)))) == "2026-03-01"
    assert set(states(calendar(log_store)).values()) == {DayState.DONE, DayState.NO_RUN_YET, DayState.REMOVED}
    with pytest.raises(UnknownRun, match="no run of a day or hour of pipeline 'nothing'"):
        CalendarReader(log_store).read("nothing")


def test_a_day_whose_runs_were_removed_is_not_missing(log_store: LogStore) -> None:
    finished(log_store, of("2026-03-01"))
    gone = finished(log_store, of("2026-03-02"))
    finished(log_store, of("2026-03-04"))
    removed(log_store, gone)
    found = calendar(log_store)
    assert list(states(found).values())[:4] == [DayState.DONE, DayState.REMOVED, DayState.MISSING, DayState.DONE]
    cell = calendar_document(found)["rows"][0]["cells"][1]
    assert cell["condition"].startswith("was removed from the log on ")
    hidden = calendar_document(found, may_read=lambda _: False)["rows"][0]["cells"]
    assert [one["state"] for one in hidden[:3]] == [HIDDEN_STATE, HIDDEN_STATE, "missing"]


def test_ends_are_chosen_and_those_outside_of_the_log_are_refused(log_store: LogStore) -> None:
    for number in (1, 3, 5):
        finished(log_store, of(f"2026-03-0{number}"))
    assert list(states(calendar(log_store, first="2026-03-02", last="2026-03-03"))) == ["2026-03-02", "2026-03-03"]
    part = calendar(log_store, last="2026-03-03")
    assert (part.has_earlier, part.has_later) == (False, True)
    with pytest.raises(
        ConfigurationError, match=r"of 2026-04-01\.\. there is nothing: the log has runs from 2026-03-01 to"
    ):
        calendar(log_store, first="2026-04-01")
    with pytest.raises(ConfigurationError, match="no day"):
        calendar(log_store, first="March")


def count(operator: str, name: str, direction: str, records: int) -> fx.CountEvents:
    return fx.CountEvents(Port(operator, name), direction, 1, records, 1)


def test_late_records_are_those_that_the_log_has_counted(log_store: LogStore) -> None:
    by_driver = of("2026-03-01", function=DRIVER)
    finished(log_store, by_driver, count("own", "own", "out", 900), count("own", "other", "out", 41))
    finished(log_store, of("2026-03-02", function=DRIVER), count("own", "own", "out", 900))
    finished(log_store, of("2026-03-03", function=DRIVER))
    found = calendar(log_store)
    assert [day.late for day in found.days[:3]] == [41, 0, None]
    assert found.counts_late


def test_in_plans_late_records_are_counted_when_they_are_written(log_store: LogStore) -> None:
    """Port `other` then counts no records: they are only part of a plan."""
    counts = (count("own", "own", "out", 0), count("own", "other", "out", 0), count("save", "warehouse", "write", 10))
    finished(log_store, of("2026-03-01", function=FRAME), *counts, count("keep_late", "lake", "write", 7))
    finished(log_store, of("2026-03-02", function=FRAME), *counts)
    assert [day.late for day in calendar(log_store).days[:2]] == [7, 0]
    without = of("2026-03-03", function=FRAME)
    shapes = {name: shape for name, shape in without.operators.items() if name != "keep_late"}
    finished(log_store, replace(without, operators=shapes), *counts[:2])
    assert [day.late for day in calendar(log_store).days[:3]] == [None, None, None]
    assert not calendar(log_store).counts_late


def late_for(key: str, records: int) -> fx.CountEvents:
    return count("own", key, fx.LATE, records)


def came(found: Calendar) -> dict[str, dict[str, int]]:
    return {day.key.text: {one.came_with: one.records for one in day.came} for day in found.days if day.came}


def test_records_that_came_late_are_told_for_the_day_that_they_are_of(log_store: LogStore) -> None:
    """By the runs that stand, until the day is computed again after them."""
    first = of("2026-03-01", function=DRIVER)
    finished(log_store, first, late_for("2026-03-03", 1))
    finished(log_store, of("2026-03-02", function=DRIVER), late_for("2026-03-01", 5), late_for("earlier", 70))
    finished(log_store, of("2026-03-03", function=DRIVER), late_for("2026-03-01", 4), late_for("2026-03-02", 2))
    assert came(calendar(log_store)) == {
        "2026-03-01": {"2026-03-02": 5, "2026-03-03": 4},
        "2026-03-02": {"2026-03-03": 2},
    }, "a record of 3 March came before its run"
    finished(log_store, of("2026-03-02", function=DRIVER, dag_run="backfill"), late_for("2026-03-01", 8))
    found = calendar(log_store)
    assert came(found) == {"2026-03-01": {"2026-03-02": 8, "2026-03-03": 4}}, "only of the run that stands"
    assert calendar_document(found)["rows"][0]["cells"][0]["came"] == {"2026-03-02": 8, "2026-03-03": 4}
    assert came(calendar(log_store, last="2026-03-01")) == came(found), "with runs that are not shown"
    finished(log_store, replace(first, key=replace(first.key, dag_run_id="again")))
    assert came(calendar(log_store)) == {}


def test_what_was_known_before_is_not_told_once_more(log_store: LogStore) -> None:
    """With a lookback each run has the day before computed again, which brings once more what it had brought."""
    finished(log_store, of("2026-03-01", function=DRIVER))
    finished(log_store, of("2026-03-02", function=DRIVER), late_for("2026-03-01", 5))
    finished(log_store, of("2026-03-01", function=DRIVER, dag_run="back 1"))
    finished(log_store, of("2026-03-03", function=DRIVER), late_for("2026-03-02", 7))
    finished(log_store, of("2026-03-02", function=DRIVER, dag_run="back 2"), late_for("2026-03-01", 5))
    assert came(calendar(log_store)) == {}
    finished(log_store, of("2026-03-02", function=DRIVER, dag_run="more"), late_for("2026-03-01", 8))
    assert came(calendar(log_store)) == {"2026-03-01": {"2026-03-02": 3}}
    finished(log_store, of("2026-03-02", function=DRIVER, dag_run="none"))
    assert came(calendar(log_store)) == {}


def test_of_runs_at_work_at_once_it_is_not_known_what_the_one_has_found(log_store: LogStore) -> None:
    finished(log_store, of("2026-03-01", function=DRIVER))
    brings = log_store.start_run(of("2026-03-02", function=DRIVER))
    session = start_driver(log_store, run=brings).session
    session.commit([late_for("2026-03-01", 3)])
    finished(log_store, of("2026-03-01", function=DRIVER, dag_run="at once"))
    assert came(calendar(log_store)) == {"2026-03-01": {"2026-03-02": 3}}, "more may have come behind it"
    session.commit([late_for("2026-03-01", 1), fx.FinishGroup()])
    log_store.finish_run(brings.run_id)
    assert came(calendar(log_store)) == {"2026-03-01": {"2026-03-02": 4}}
    after = log_store.start_run(of("2026-03-01", function=DRIVER, dag_run="after"))
    assert came(calendar(log_store)) == {}, "it is being computed with them"
    log_store.supersede(after.run_id)
    assert came(calendar(log_store)) == {"2026-03-01": {"2026-03-02": 4}}, "given up, it has had none"


def test_what_came_for_a_day_without_a_run(log_store: LogStore) -> None:
    finished(log_store, of("2026-03-01", function=DRIVER), late_for("2026-03-08", 1))
    gone = finished(log_store, of("2026-03-02", function=DRIVER))
    finished(log_store, of("2026-03-04", function=DRIVER), late_for("2026-03-02", 2), late_for("2026-03-03", 3))
    removed(log_store, gone)
    found = calendar(log_store)
    assert states(found)["2026-03-08"] is DayState.NO_RUN_YET
    assert came(found) == {"2026-03-02": {"2026-03-04": 2}, "2026-03-03": {"2026-03-04": 3}}
    cells = calendar_document(found)["rows"][0]["cells"]
    assert [cell.get("came") for cell in cells[:4]] == [None, {"2026-03-04": 2}, {"2026-03-04": 3}, None]


def test_what_came_with_runs_that_may_not_be_seen_is_not_told(log_store: LogStore) -> None:
    finished(log_store, of("2026-03-01", function=DRIVER))
    other = of("2026-03-02", function=DRIVER)
    finished(log_store, replace(other, key=replace(other.key, dag_id="secret")), late_for("2026-03-01", 5))
    seen = calendar_document(calendar(log_store), may_read=lambda dag: dag != "secret")
    assert "came" not in seen["rows"][0]["cells"][0]


def test_counts_of_late_records_are_none_of_the_figures_of_a_run(log_store: LogStore) -> None:
    run = finished(
        log_store, of("2026-03-02", function=DRIVER), count("own", "other", "out", 5), late_for("2026-03-01", 5)
    )
    assert [row.direction for row in log_store.progress(run.run_id)] == ["out"]
    assert [row.direction for row in log_store.figures([run.run_id])[run.run_id].ports] == ["out"]


def test_a_day_of_hours_has_as_many_cells_as_its_clock_has_hours(log_store: LogStore) -> None:
    hours = Hours("hour", zone="Europe/Berlin").range_of("2025-10-24T22:00Z..2025-10-26T22:00Z")
    for key in (hours[0], hours[-1]):
        finished(log_store, of(key.text, divided=HOURS))
    rows = list(CalendarReader(log_store, clock=lambda: NOON).read("sales").rows())
    assert [(row.name, row.before, len(row.days)) for row in rows] == [
        ("2025-10-25", 0, 24),
        ("2025-10-26", 0, 25),
    ]
    assert [(row.before, len(row.days)) for row in calendar(log_store, first="2025-10-26T00:00Z").rows()] == [(2, 23)]


def test_who_may_not_see_a_run_sees_that_there_is_something(log_store: LogStore) -> None:
    red = start_driver(log_store, run=log_store.start_run(of("2026-03-01")))
    red.session.park("ValueError: a secret")
    finished(log_store, of("2026-03-03"))
    found = calendar(log_store)
    first, missing, *_ = calendar_document(found, may_read=lambda _: False)["rows"][0]["cells"]
    assert first == {"key": "2026-03-01", "state": HIDDEN_STATE}
    assert missing == {"key": "2026-03-02", "state": "missing"}
    (first, *_) = calendar_document(found, may_read_errors=lambda _: False)["rows"][0]["cells"]
    assert first["cause"] == HIDDEN
    (first, *_) = calendar_document(found)["rows"][0]["cells"]
    assert first["cause"] == "ValueError: a secret"


# --- days that were read ----------------------------------------------------------------------------------------------


def reader(live_run: str, day: str = "2026-03-05") -> RunSpec:
    """A run of another pipeline that has read 2 March of a folder, as that run had left it."""
    one = of(day)
    day_read = ["/lake/clicks", "day=2026-03-02", live_run]
    actions = {"web": {"start": 0, "end": 1, "plan": {"limit": 1, DAYS_READ: [day_read]}}}
    return replace(one, key=replace(one.key, pipeline="top"), actions=actions)


def standing(store: LogStore, run: Run) -> tuple[Standing, str | None]:
    (found,) = store.days_read([run.run_id])[run.run_id]
    assert found[:4] == ("web", "/lake/clicks", "day=2026-03-02", found.live_run)
    return found.standing, found.by


def test_what_was_computed_from_a_day_that_was_replaced_is_marked(log_store: LogStore) -> None:
    """Only once the later run has finished; before, it is said to be under way."""
    old = finished(log_store, of("2026-03-02"))
    finished(log_store, of("2026-03-01"))
    top = finished(log_store, reader(old.uid))
    assert standing(log_store, top) == (Standing.AS_READ, None)
    assert Reporter(log_store, top).look().warnings == []
    log_store.supersede(old.run_id, because="a late file")
    assert standing(log_store, top) == (Standing.AGAIN, None)
    new = log_store.start_run(of("2026-03-02"))
    assert standing(log_store, top) == (Standing.AGAIN, new.uid)
    start_driver(log_store, run=new).session.commit([fx.FinishGroup()])
    log_store.finish_run(new.run_id)
    assert standing(log_store, top) == (Standing.REPLACED, new.uid)
    said = f"day=2026-03-02 of /lake/clicks as run {old.uid[:8]} had left it, which was replaced by run {new.uid[:8]}"
    assert Reporter(log_store, top).look().warnings == [f"computed from {said}"]
    (cell, *_) = calendar_document(CalendarReader(log_store, clock=lambda: NOON).read("top"))["rows"][0]["cells"]
    assert (cell["state"], cell["stale"]) == ("done", [said])
    log_store.supersede(new.run_id)
    assert standing(log_store, top) == (Standing.REPLACED, new.uid), "what it has written stands"
    again = finished(log_store, reader(new.uid, "2026-03-06"))
    assert standing(log_store, again) == (Standing.AGAIN, None)


def test_another_dag_run_of_the_day_replaces_it_too(log_store: LogStore) -> None:
    old = finished(log_store, of("2026-03-02"))
    top = finished(log_store, reader(old.uid))
    new = finished(log_store, of("2026-03-02", dag_run="backfill"))
    assert standing(log_store, top) == (Standing.REPLACED, new.uid)


def test_a_later_run_that_was_given_up_before_it_had_finished_has_replaced_nothing(log_store: LogStore) -> None:
    old = finished(log_store, of("2026-03-02"))
    top = finished(log_store, reader(old.uid))
    given_up = log_store.start_run(of("2026-03-02", dag_run="backfill"))
    log_store.supersede(given_up.run_id)
    assert standing(log_store, top) == (Standing.AGAIN, given_up.uid)


def test_a_run_that_was_removed_is_still_known_to_have_been_replaced(log_store: LogStore) -> None:
    old = finished(log_store, of("2026-03-02"))
    top = finished(log_store, reader(old.uid))
    log_store.supersede(old.run_id)
    new = finished(log_store, of("2026-03-02"))
    removed(log_store, old)
    assert standing(log_store, top) == (Standing.REPLACED, new.uid)
    log_store.supersede(top.run_id)
    removed(log_store, top)
    assert log_store.days_read([top.run_id]) == {}


def test_of_a_run_of_another_log_it_is_not_known(log_store: LogStore) -> None:
    top = finished(log_store, reader("f" * 32))
    assert standing(log_store, top) == (Standing.ELSEWHERE, None)


def of_table(live_run: str, *, is_whole: bool = True, table: str = "Public.Top", **other: Any) -> RunSpec:
    """A run of another pipeline that reads 2 March of a table."""
    one = of("2026-03-05", **other)
    day_read = DayAsRead(table_place(table, "wh"), "day=2026-03-02", live_run, is_whole)
    return replace(one, key=replace(one.key, pipeline="top"), days_read={"web": (day_read,)})


def owning(day: str, *place: str, **other: Any) -> RunSpec:
    """A run that owns its day of a table, in the order (connection, table, schema)."""
    shape = WriterShape("save", "a table", place, Together.BY_PARTITION, Repeats.REPLACED)
    return replace(of(day, **other), writers=(shape,))


def marked(store: LogStore, run: Run) -> tuple[Standing, str | None]:
    (found,) = store.days_read([run.run_id])[run.run_id]
    return found.standing, found.by


def test_a_day_that_was_being_filled_when_it_was_read_is_marked_when_it_is_full(log_store: LogStore) -> None:
    """What fills its day at once has it before its end; so does a first run that has claimed it."""
    filling = log_store.start_run(of("2026-03-02"))
    top = finished(log_store, of_table(filling.uid, is_whole=False))
    assert marked(log_store, top) == (Standing.AGAIN, filling.uid)
    said = "day=2026-03-02 of table Public.Top of connection wh before run " + filling.uid[:8]
    assert Reporter(log_store, top).look().warnings == [
        f"computed from {said} had finished it, which it has not done since"
    ]
    start_driver(log_store, run=filling).session.commit([fx.FinishGroup()])
    log_store.finish_run(filling.run_id)
    assert marked(log_store, top) == (Standing.REPLACED, filling.uid)
    assert Reporter(log_store, top).look().warnings == [
        f"computed from {said} had finished it, which it has done since"
    ]
    again = log_store.start_run(of("2026-03-02", dag_run="backfill"))
    assert marked(log_store, top) == (Standing.REPLACED, filling.uid)
    start_driver(log_store, run=again).session.commit([fx.FinishGroup()])
    assert marked(log_store, top) == (Standing.REPLACED, again.uid)
    assert f"{said} had finished it, which was replaced by run {again.uid[:8]}" in str(
        log_store.days_read([top.run_id])[top.run_id][0]
    )


def test_what_was_filled_before_the_reading_run_began_is_whole(log_store: LogStore) -> None:
    """Though its warehouse cannot tell: it was asked before, and the run reads later."""
    full = finished(log_store, of("2026-03-02"))
    top = finished(log_store, of_table(full.uid, is_whole=False))
    assert marked(log_store, top) == (Standing.AS_READ, None)
    removed(log_store, full)
    also = finished(log_store, of_table(full.uid, is_whole=False, dag_run="also"))
    assert marked(log_store, also) == (Standing.AS_READ, None)


def test_what_a_run_has_set_aside_may_still_come_into_a_day_that_it_fills(log_store: LogStore) -> None:
    short = log_store.start_run(of("2026-03-02"))
    begin, end = Port("web", "out"), Port("own", "in")
    acknowledged = fx.Acknowledge(begin, end, 1, (("A", UNDONE),))
    driver = start_driver(log_store, run=short)
    driver.session.commit([sent(1, sender=begin, receiver=end), acknowledged])
    driver.session.commit([fx.SetAside("own", "A", 1, "ValueError: no"), fx.FinishGroup()])
    top = finished(log_store, of_table(short.uid, is_whole=False))
    assert marked(log_store, top) == (Standing.REPLACED, short.uid)


def test_a_day_that_no_run_had_is_marked_when_one_has_it(log_store: LogStore) -> None:
    """Of a table of that name, whatever the connection is called: a mark too many is better than none."""
    top = finished(log_store, of_table("", is_whole=False))
    assert marked(log_store, top) == (Standing.AS_READ, None)
    finished(log_store, owning("2026-03-01", "wh", "top", "public"))
    finished(log_store, owning("2026-03-02", "wh", "top", "audit", dag_run="another schema"))
    finished(log_store, owning("2026-03-02", "wh", "stop", dag_run="another table"))
    finished(log_store, of("2026-03-02", dag_run="writes nothing"))
    assert marked(log_store, top) == (Standing.AS_READ, None)
    first = log_store.start_run(owning("2026-03-02", "dwh", "top", dag_run="the first"))
    assert marked(log_store, top) == (Standing.AGAIN, first.uid)
    start_driver(log_store, run=first).session.commit([fx.FinishGroup()])
    assert marked(log_store, top) == (Standing.REPLACED, first.uid)
    (said,) = Reporter(log_store, top).look().warnings
    assert f"before a run was known to have it, which was replaced by run {first.uid[:8]}" in said


def test_days_that_no_run_had_cost_as_many_statements_however_many_there_are(sql_store: SqlLogStore) -> None:
    read = [finished(sql_store, of_table("", is_whole=False, dag_run=f"of {number}")).run_id for number in range(3)]
    finished(sql_store, owning("2026-03-02", "wh", "top"))
    with counted_statements() as of_one:
        sql_store.days_read(read[:1])
    with counted_statements() as of_all:
        found = sql_store.days_read(read)
    assert {one.standing for days in found.values() for one in days} == {Standing.REPLACED}
    assert (len(found), len(of_all)) == (3, len(of_one))


def test_a_run_does_not_mark_itself(log_store: LogStore) -> None:
    """It may read the day of a table that it is about to replace."""
    one = owning("2026-03-02", "wh", "top")
    day_read = DayAsRead(table_place("top", "wh"), "day=2026-03-02", "", is_whole=False)
    own = finished(log_store, replace(one, days_read={"web": (day_read,)}))
    assert marked(log_store, own) == (Standing.AS_READ, None)


# --- many runs --------------------------------------------------------------------------------------------------------


def many(store: SqlLogStore, of_first: RunSpec, keys: list[str]) -> None:
    """A finished run for each, as copies of the last one."""
    first = finished(store, replace(of_first, partition=keys[-1]))
    with writing(store.engine) as connection:
        row = dict(
            connection.execute(sa.select(schema.run).where(schema.run.c.run_id == first.run_id)).mappings().one()
        )
        copies = [
            {
                **row,
                "run_id": number,
                "uid": f"{number:032x}",
                "dag_run_id": f"of {key}",
                "partition": key,
                "ordinal": number,
            }
            for number, key in enumerate(keys[:-1], first.run_id + 1)
        ]
        connection.execute(sa.insert(schema.run), copies)


@pytest.mark.parametrize("what", ["two years of days", "1,200 hours"])
def test_a_calendar_costs_as_many_statements_however_many_runs_there_are(what: str, sql_store: SqlLogStore) -> None:
    if what == "1,200 hours":
        keys = [
            (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=at)).strftime("%Y-%m-%dT%HZ") for at in range(1_200)
        ]
        of_first = of(keys[0], divided={**HOURS, "zone": "UTC"}, function=DRIVER)
    else:
        keys = [(date(2024, 3, 8) + timedelta(days=at)).isoformat() for at in range(731)]
        of_first = of(keys[0], function=DRIVER)
    assert len(keys) <= MOST_SHOWN
    many(sql_store, of_first, keys)
    with counted_statements() as of_all:
        found = calendar(sql_store)
    assert [day.key.text for day in found.days if day.state is DayState.DONE] == keys
    assert DayState.MISSING not in found.totals
    with counted_statements() as of_few:
        calendar(sql_store, first=keys[-3])
    assert len(of_all) == len(of_few)
    assert sum("SELECT" in one for one in of_all) == 7, of_all
    with sql_store.engine.connect() as connection:
        for statement in of_all:
            assert _by_index(connection, statement, keys), statement


def _by_index(connection: sa.Connection, statement: str, keys: list[str]) -> bool:
    """Whether SQLite finds rows of runs by an index; for PostgreSQL small tables say nothing about plans."""
    if connection.dialect.name != "sqlite" or "logio_run" not in statement:
        return True
    given = ["sales"] * statement.count("?")
    plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", tuple(given)).all()
    return not any(str(row[-1]).startswith("SCAN logio_run") and "INDEX" not in str(row[-1]) for row in plan)


def test_a_run_whose_texts_are_damaged_hides_no_other_day(sql_store: SqlLogStore) -> None:
    damaged = finished(sql_store, of("2026-03-01"))
    finished(sql_store, of("2026-03-02"))
    with writing(sql_store.engine) as connection:
        if connection.dialect.name == "sqlite":
            because = sa.cast(sa.literal(b"\xff\xfe", sa.LargeBinary), sa.Text)
            connection.execute(
                sa.update(schema.run).where(schema.run.c.run_id == damaged.run_id).values(because=because)
            )
    assert list(states(calendar(sql_store)).values())[:2] == [DayState.DONE, DayState.DONE]


def test_a_red_run_that_ends_while_it_is_looked_at_is_as_it_is_then(log_store: LogStore) -> None:
    run = log_store.start_run(of("2026-03-01"))
    driver = start_driver(log_store, run=run)
    driver.session.commit([fx.FinishGroup()])

    class Ends(CalendarReader):
        def _sights(self, runs: Any, at: float) -> Any:
            assert runs[0].state is RunState.RUNNING
            log_store.finish_run(run.run_id)
            return super()._sights(runs, at)

    (only, *_) = Ends(log_store, clock=lambda: NOON).read("sales").days
    assert only.state is DayState.DONE
