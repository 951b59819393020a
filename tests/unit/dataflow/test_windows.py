"""EveryEvents and Tumbling: parts partition the event, `part` is `assign` again, triggers are level-triggered."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_logio.dataflow import EveryEvents, InputEvent, Tumbling
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError

HOUR = 3_600_000_000
UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}


def event(table: pa.Table, event_id: int = 1) -> InputEvent:
    return InputEvent("in", event_id, table)


def at(*texts: str | None, kind: Any = None) -> InputEvent:
    times = [None if text is None else datetime.fromisoformat(text) for text in texts]
    return event(pa.table({"row": range(len(times)), "t": pa.array(times, kind or pa.timestamp("us"))}))


def rows(parts: Any) -> dict[str, list[int]]:
    return {inset: part["row"].to_pylist() for inset, part in parts.items()}


micros = st.integers(-5 * 10**15, 5 * 10**16)
near = st.integers(0, 5 * HOUR)


@st.composite
def events(draw: st.DrawFn) -> InputEvent:
    times = draw(st.lists(st.one_of(near, near, micros), max_size=30))
    if draw(st.booleans()):
        times.sort()
    unit = draw(st.sampled_from(list(UNITS)))
    zone = draw(st.sampled_from([None, "UTC", "Europe/Berlin"]))
    ticks = pa.array([time // UNITS[unit] for time in times], pa.int64())
    table = pa.table({"row": pa.array(range(len(times)), pa.int64()), "t": ticks.cast(pa.timestamp(unit, zone))})
    cut = draw(st.integers(0, len(times)))  # several chunks, as after a concatenation
    return event(pa.concat_tables([table.slice(0, cut), table.slice(cut)]))


MONDAY = 4 * 86_400


def expected_window(tick: int, unit: str, seconds: int, origin: int = 0) -> str:
    start = (tick * UNITS[unit] - origin * 1_000_000) // (seconds * 1_000_000) * seconds + origin
    text = datetime.fromtimestamp(start, UTC).replace(tzinfo=None)
    return text.isoformat(timespec="minutes" if seconds % 60 == 0 else "seconds")


@settings(deadline=None)
@given(
    events(),
    st.sampled_from([("1h", 3600), ("15m", 900), ("30s", 30), ("1d", 86_400), ("7d", 604_800), ("1w", 604_800)]),
)
def test_tumbling_parts_partition_the_event(drawn: InputEvent, length: tuple[str, int]) -> None:
    window = Tumbling(length[0], on="t")
    parts = window.assign(drawn, window.initial_state())
    by_row: dict[int, str] = {}
    for inset, part in parts.items():
        assert part.num_rows and part.column_names == ["row", "t"]
        assert part["row"].to_pylist() == sorted(part["row"].to_pylist()), "the order of the records is kept"
        for row in part["row"].to_pylist():
            assert row not in by_row
            by_row[row] = inset
    unit = drawn.table["t"].type.unit
    ticks = drawn.table["t"].cast(pa.int64()).to_pylist()
    origin = MONDAY if length[0] == "1w" else 0
    assert by_row == {row: expected_window(tick, unit, length[1], origin) for row, tick in enumerate(ticks)}
    for inset, part in parts.items():
        assert window.part(drawn, inset) == part, "a recovery finds the same again"
        assert length[0] != "1w" or datetime.fromisoformat(inset).isoweekday() == 1
    assert list(parts) == sorted(parts)


@settings(deadline=None)
@given(events())
def test_tumbling_part_is_assign_again(drawn: InputEvent) -> None:
    window = Tumbling("1h", on="t")
    for inset, part in window.assign(drawn, window.initial_state()).items():
        assert window.part(drawn, inset).equals(part)


@settings(deadline=None)
@given(st.lists(events(), min_size=2, max_size=3), st.sampled_from(["1h", "1w"]))
def test_tumbling_parts_are_found_in_whatever_order_they_are_asked_for(drawn: list[InputEvent], other: str) -> None:
    """Of several events in turn, and by two windows: what was found for the last one is remembered, and for no other."""
    windows = [Tumbling("15m", on="t"), Tumbling(other, on="t")]
    asked = [
        (window, event, inset, part)
        for window in windows
        for event in drawn
        for inset, part in window.assign(event, window.initial_state()).items()
    ]
    for place, (window, event, inset, part) in enumerate(asked):
        assert window.part(event, inset).equals(part)
        far, elsewhere, name, expected = asked[-1 - place]
        assert far.part(elsewhere, name).equals(expected)


@settings(deadline=None)
@given(st.lists(st.lists(near, min_size=1, max_size=8), max_size=8))
def test_tumbling_closes_a_window_when_a_later_one_is_seen(batches: list[list[int]]) -> None:
    """With a sorted stream every window is triggered once, in order, and never again receives records."""
    times = sorted(time for batch in batches for time in batch)
    window, state = Tumbling("1h", on="t"), Tumbling("1h", on="t").initial_state()
    closed: list[str] = []
    held: dict[str, bool] = {}
    begin = 0
    for batch in batches:
        ticks = times[begin : begin + len(batch)]
        begin += len(batch)
        parts = window.assign(event(pa.table({"t": pa.array(ticks, pa.timestamp("us"))})), state)
        assert not set(parts) & set(closed)
        for inset in parts:
            held[inset] = True
        ready = list(window.triggered(state, list(held)))
        assert ready == list(window.triggered(state, list(held))), "level-triggered: asking twice changes nothing"
        assert set(held) - set(ready) <= {state["watermark"]}
        for inset in ready:
            del held[inset]
        closed += ready
    assert closed == sorted(closed)
    assert len(held) <= 1


def test_tumbling_names_and_slices() -> None:
    window, state = Tumbling("1h", on="t"), {"watermark": None}
    parts = window.assign(at("2017-03-05T09:59:59", "2017-03-05T10:00:00", "2017-03-05T10:59:59.999999"), state)
    assert rows(parts) == {"2017-03-05T09:00": [0], "2017-03-05T10:00": [1, 2]}
    assert state == {"watermark": "2017-03-05T10:00"}
    assert window.triggered(state, ["2017-03-05T10:00", "2017-03-05T09:00"]) == ["2017-03-05T09:00"]


def test_tumbling_takes_an_event_in_any_order() -> None:
    window, state = Tumbling("1h", on="t"), {"watermark": "2017-03-05T09:00"}
    parts = window.assign(at("2017-03-05T11:00", "2017-03-05T09:30", "2017-03-05T11:30", "2017-03-05T09:10"), state)
    assert rows(parts) == {"2017-03-05T09:00": [1, 3], "2017-03-05T11:00": [0, 2]}
    assert state == {"watermark": "2017-03-05T11:00"}


def test_tumbling_slices_share_memory() -> None:
    table = at("2017-03-05T09:59:59", "2017-03-05T10:00:00", "2017-03-05T10:30:00").table
    part = Tumbling("1h", on="t").assign(event(table), {"watermark": None})["2017-03-05T10:00"]
    assert part["t"].chunk(0).buffers()[1].address == table["t"].chunk(0).buffers()[1].address


def test_tumbling_refuses_late_records_and_changes_nothing() -> None:
    state = {"watermark": "2017-03-05T10:00"}
    with pytest.raises(OperatorFailed) as caught:
        Tumbling("1h", on="t").assign(at("2017-03-05T09:59", "2017-03-05T08:00", "2017-03-05T12:00"), state)
    assert "2 late record(s), the earliest for window 2017-03-05T08:00" in str(caught.value)
    assert "in the order of their names, as texts are sorted: 'part-10' before 'part-9'" in str(caught.value)
    assert "ordered_by='t'" in str(caught.value)
    assert state == {"watermark": "2017-03-05T10:00"}


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        (at("2017-03-05T09:59", None), "column 't' has 1 null(s) in event 1 on port 'in'"),
        (event(pa.table({"t": [1, 2]})), "timestamp or date in column 't', which is int64"),
        (event(pa.table({"tt": [1, 2]})), "Did you mean 'tt'?"),
    ],
)
def test_tumbling_refuses_what_has_no_time(drawn: InputEvent, words: str) -> None:
    with pytest.raises(OperatorFailed) as caught:
        Tumbling("1h", on="t").assign(drawn, {"watermark": None})
    assert words in str(caught.value)


def test_tumbling_refuses_years_it_cannot_name() -> None:
    far = event(pa.table({"t": pa.array([10**18], pa.timestamp("us"))}))
    with pytest.raises(OperatorFailed, match="outside the years 1 to 9999"):
        Tumbling("1h", on="t").assign(far, {"watermark": None})


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_tumbling_by_date_column(kind: Any) -> None:
    assert rows(Tumbling("1d", on="t").assign(at("2017-03-05", "2017-03-06", kind=kind), {"watermark": None})) == {
        "2017-03-05T00:00": [0],
        "2017-03-06T00:00": [1],
    }


def test_tumbling_by_nanoseconds_rounds_down() -> None:
    ticks = pa.array([-1, 0], pa.int64()).cast(pa.timestamp("ns"))
    parts = Tumbling("1h", on="t").assign(event(pa.table({"row": [0, 1], "t": ticks})), {"watermark": None})
    assert rows(parts) == {"1969-12-31T23:00": [0], "1970-01-01T00:00": [1]}


def test_tumbling_event_without_records_is_used_by_nobody() -> None:
    state = {"watermark": None}
    assert Tumbling("1h", on="t").assign(at(), state) == {}
    assert state == {"watermark": None}


def test_tumbling_tags_are_window_starts() -> None:
    tags = Tumbling("30s", on="t").tags(["2017-03-05T10:00:30"])
    assert tags["window_start"].type == pa.timestamp("us")
    assert tags["window_start"].to_pylist() == [datetime(2017, 3, 5, 10, 0, 30)]  # noqa: DTZ001


@pytest.mark.parametrize("length", ["5h", "7m", "25h", "36h", "0h", "1", "h", "1.5h", "1y", "-1h", "", None, 3600])
def test_tumbling_refuses_lengths_that_fit_no_day(length: Any) -> None:
    with pytest.raises(PipelineDefinitionError, match="window length"):
        Tumbling(length, on="t")


@pytest.mark.parametrize("count", [0, -1, 1.5, "3", True])
def test_every_events_refuses_what_is_no_count(count: Any) -> None:
    with pytest.raises(PipelineDefinitionError, match="at least 1"):
        EveryEvents(count)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(0, 30))
def test_every_events_numbers_batches_from_one(size: int, total: int) -> None:
    window = EveryEvents(size)
    state = window.initial_state()
    table = pa.table({"a": [1]})
    insets: list[str] = []
    for number in range(1, total + 1):
        (inset,) = window.assign(event(table, number), state)
        assert window.part(event(table, number), inset) is table
        insets.append(inset)
        complete = window.triggered(state, sorted(set(insets)))  # text order on purpose: "10" before "2"
        assert complete == [str(batch) for batch in range(1, number // size + 1)]
    assert insets == [str(number // size + 1) for number in range(total)]
    assert state == {"events": total}


def test_every_events_are_in_order_of_number() -> None:
    assert sorted(["10", "9"], key=EveryEvents(3).order) == ["9", "10"]


def test_windows_on_real_data(transactions: Any) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(transactions, columns=["product_id", "transaction_timestamp"])
    window = Tumbling("1h", on="transaction_timestamp")
    state, counts = window.initial_state(), dict[str, int]()
    for begin in range(0, table.num_rows, 1000):
        for inset, part in window.assign(event(table.slice(begin, 1000)), state).items():
            counts[inset] = counts.get(inset, 0) + part.num_rows
    hours = pc.floor_temporal(table["transaction_timestamp"].cast(pa.timestamp("us")), unit="hour")
    expected = {v["values"].isoformat(timespec="minutes"): v["counts"] for v in pc.value_counts(hours).to_pylist()}
    assert counts == expected
    assert len(counts) == 8_003


def test_windows_of_weeks_are_not_those_of_seven_days() -> None:
    weeks, days = Tumbling("1w", on="t"), Tumbling("7d", on="t")
    assert weeks.describe() != days.describe() and weeks.progress_name() != days.progress_name()
    assert days.describe() == {"window": "Tumbling", "seconds": 604_800, "on": "t"}, (
        "as runs of earlier versions have it"
    )
