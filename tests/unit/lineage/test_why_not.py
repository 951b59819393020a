"""Why a record is not among the output: on logs written by hand, with each fate that a record can have."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from io import StringIO
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from airflow_logio.cli import lineage as lineage_command
from airflow_logio.cli.app import main
from airflow_logio.cli.common import PIPE_WIDTH
from airflow_logio.errors import LineageUnknown
from airflow_logio.lineage import event_search, record_fates
from airflow_logio.lineage import why_not as why_not_module
from airflow_logio.lineage.event_search import Holding
from airflow_logio.lineage.record_fates import Fate, Met, RecordFates
from airflow_logio.lineage.record_values import Stretch
from airflow_logio.lineage.search_limits import SearchedSoFar, SearchLimits, SearchStopped, Spent
from airflow_logio.lineage.why_not import AnswerWatch, WhyNot, why_not
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.record_rules import WHOLE, Dependence, Part, RecordRules, Uses
from airflow_logio.protocol.values import Event, Kind, MadeOf, Port, Status
from airflow_logio.run_report.why_not_text import searched_said, why_not_lines
from airflow_logio.store import open_store
from airflow_logio.store.lineage.result import EventNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import Delivered
from airflow_logio.store.records.run_records import OperatorShape, Run, ScopeShape
from airflow_logio.systems.arrow import encode
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import spec, start_driver

SOURCE, CLEAN, HOURLY = Port("source", "out"), Port("clean", "out"), Port("hourly", "out")
HOUR = pa.array([datetime.fromisoformat("2024-01-01T10:00")], pa.timestamp("us"))
HOURS = Part("at", 3600)
BY_HOUR = RecordRules({"out": Dependence(Uses.SOME, {"in": {"shop": "shop_id"}}, ("hour",), HOURS)}, {"": HOURS})
RENAMED = RecordRules({"out": Dependence(Uses.ONE, {"in": {"shop_id": "shop_id", "at": "at"}})}, {"": WHOLE})


def sale(shop: str, at: str) -> pa.Table:
    return pa.table({"shop_id": [shop], "at": pa.array([datetime.fromisoformat(at)], pa.timestamp("us"))})


SALES = {
    1: sale("left_out", "2024-01-01T10:05"),
    2: sale("waiting", "2024-01-01T11:05"),
    3: sale("unused", "2024-01-01T11:06"),
    4: sale("ignored", "2024-01-01T11:07"),
    5: sale("aside", "2024-01-01T12:05"),
}


@dataclass
class Logged:
    store: LogStore
    run: Run

    def asked(self, **values: str) -> WhyNot:
        return why_not(self.store, self.run, "hourly.out", values)

    def fates(self, **values: str) -> list[Met]:
        return [met for one in self.asked(**values).searches for met in one.met]


def logged(
    store: LogStore,
    hourly: RecordRules = BY_HOUR,
    clean: RecordRules = RENAMED,
    *,
    made: pa.Table | None = None,
    replayed: bool = False,
    ended: bool = False,
) -> Logged:
    """source → clean → hourly: `clean` has sent five of six events on, whose fates differ; of the first, an hour was made.

    `replayed`: `hourly` is a replay operator. `ended`: the source's stream has ended.
    """
    shapes = {
        "source": OperatorShape("g", {}, ("out",), (), ("out",), ("out",)),
        "clean": OperatorShape("g", {"in": "source.out"}, ("out",), ("in",), ("out",), (), clean),
        "hourly": OperatorShape("g", {"in": "clean.out"}, ("out",), ("in",), ("out",), (), hourly),
    }
    named = replace(spec("g"), operators=shapes, scopes=(ScopeShape("source.out", "hourly.out"),))
    driver = start_driver(store, run=store.start_run(named))
    insets = {1: (("2024-01-01T10:00", Status.DONE),), 2: (("2024-01-01T11:00", Status.UNDONE),), 4: ()}
    insets[5] = (("2024-01-01T12:00", Status.UNDONE),)
    commit: fx.Effects = []
    for number, table in {**SALES, 6: sale("dropped", "2024-01-01T10:06")}.items():
        body = encode(table)
        used = fx.Delivery(Port("clean", "in"), ((str(number), Status.DONE),), fused=True, kept=True)
        commit += [fx.LogEvent(Event(SOURCE, number, Kind.DATA, 1, None, body), (used,), kept=True)]
        commit.append(fx.CountEvents(SOURCE, "out", 1, 1))
        if number != 6:
            delivery = fx.Delivery(Port("hourly", "in"), insets.get(number, ()), fused=number in insets, kept=True)
            commit += [
                fx.LogEvent(Event(CLEAN, number, Kind.DATA, 1, None, body), (delivery,), kept=True),
                fx.RecordLineage(CLEAN, number, str(number)),
                fx.CountEvents(CLEAN, "out", 1, 1),
            ]
    if ended:
        commit += [fx.LogEvent(Event(SOURCE, 7, Kind.END, 0, None, b""), (), kept=True)]
    made_of = MadeOf("2024-01-01T10:00", 0, b"digest", 9) if replayed else None
    hour = made if made is not None else pa.table({"hour": HOUR, "shop": ["x"]})
    commit += [
        fx.LogEvent(Event(HOURLY, 1, Kind.DATA, 1, None, encode(hour), made_of=made_of), (), kept=True),
        fx.RecordLineage(HOURLY, 1, "2024-01-01T10:00"),
        fx.CountEvents(HOURLY, "out", 1, 1),
        fx.SetAside("hourly", "2024-01-01T12:00", 1, "ValueError: no price"),
    ]
    driver.session.commit(commit)
    return Logged(store, driver.run)


@pytest.mark.parametrize(
    ("shop", "event", "inset", "fate", "made"),
    [
        ("left_out", 1, "2024-01-01T10:00", Fate.LEFT_OUT, (1,)),
        ("waiting", 2, "2024-01-01T11:00", Fate.WAITING, ()),
        ("unused", 3, None, Fate.UNUSED_YET, ()),
        ("ignored", 4, None, Fate.IGNORED, ()),
        ("aside", 5, "2024-01-01T12:00", Fate.ASIDE, ()),
    ],
)
def test_what_has_become_of_a_record(
    log_store: LogStore, shop: str, event: int, inset: str | None, fate: Fate, made: tuple[int, ...]
) -> None:
    run = logged(log_store)
    error = "ValueError: no price" if fate is Fate.ASIDE else ""
    events = tuple(EventNode(HOURLY, number) for number in made)
    assert run.fates(shop=shop) == [Met(event, "hourly", inset, fate, events, error)]
    with log_store.lineage(run.run) as log:
        (row,) = log.deliveries_of(CLEAN, [event])
        status = {Fate.ASIDE: Status.ASIDE, Fate.LEFT_OUT: Status.DONE, Fate.IGNORED: Status.DONE}.get(
            fate, Status.UNDONE
        )
        assert row == Delivered(event, Port("hourly", "in"), inset, status)


def test_the_operator_that_dropped_it_and_a_source_that_never_had_it() -> None:
    run = logged(MemoryLogStore())
    answer = run.asked(shop="dropped", hour="2024-01-01T10:00")
    assert [(str(one.port), len(one.found)) for one in answer.searches] == [
        ("hourly.out", 0),
        ("clean.out", 0),
        ("source.out", 1),
    ]
    ten, eleven = (datetime.fromisoformat(f"2024-01-01T{hour}:00") for hour in (10, 11))
    assert answer.searches[1].values == {"shop_id": "dropped", "at": Stretch(ten, eleven)}
    assert answer.searches[2].met == (Met(6, "clean", "6", Fate.LEFT_OUT),)
    never = run.asked(shop="dropped", hour="2024-01-01T11:00")
    assert [one.found for one in never.searches] == [{}, {}, {}], "it was there an hour before"
    assert never.notes == ["source is a source, and none of its events so far has such a record"]


def test_it_is_there_after_all() -> None:
    answer = logged(MemoryLogStore()).asked(shop="x")
    assert answer.is_there and len(answer.searches) == 1


def test_where_nothing_leads_further() -> None:
    silent = logged(MemoryLogStore(), RecordRules({}, {"": Part("at", 3600)})).asked(shop="waiting")
    assert silent.notes == ["hourly does not say what shop depends on (depends=...)"]
    only_hour = RecordRules({"out": Dependence(Uses.SOME, {}, ("hour",), HOURS)}, BY_HOUR.parts)
    partly = logged(MemoryLogStore(), only_hour).asked(shop="waiting", hour="2024-01-01T11:00")
    assert partly.searches[1].not_followed == {"shop": "hourly"} and not partly.notes
    assert [met.fate for met in partly.searches[1].met] == [Fate.WAITING, Fate.UNUSED_YET, Fate.IGNORED], "of that hour"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"hour": "2024-01-01T10:30"},
            r"no window of hourly starts at 2024-01-01T10:30: .* starts at 2024-01-01T10:00",
        ),
        ({"our": "2024"}, "the events of hourly.out have no column 'our'"),
    ],
)
def test_what_cannot_be_asked(values: Mapping[str, str], said: str) -> None:
    with pytest.raises(LineageUnknown, match=said):
        logged(MemoryLogStore()).asked(**values)


def test_a_start_of_a_window_with_a_zone() -> None:
    made = pa.table({"hour": HOUR.cast(pa.timestamp("us", "UTC")), "shop": ["x"]})
    answer = logged(MemoryLogStore(), made=made).asked(shop="waiting", hour="2024-01-01T13:00+02:00")
    assert [met.fate for met in answer.searches[1].met] == [Fate.WAITING]


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("us")])
def test_a_time_without_a_zone_is_utc(kind: pa.DataType) -> None:
    """What a person types, whether or not the column has a zone: Spark's have one."""
    there = logged(MemoryLogStore(), made=pa.table({"hour": HOUR.cast(kind), "shop": ["x"]}))
    for text in ("2024-01-01T10:00", "2024-01-01 10:00:00"):
        assert there.asked(shop="x", hour=text).is_there
    assert not there.asked(shop="x", hour="2024-01-01T11:00").is_there
    if kind.tz:
        assert there.asked(shop="x", hour="2024-01-01T11:00+01:00").is_there


def test_two_conditions_on_one_column_are_both_meant() -> None:
    twice = Dependence(Uses.ONE, {"in": {"one": "shop_id", "other": "shop_id"}})
    made = pa.table({"one": ["x"], "other": ["x"]})
    run = logged(MemoryLogStore(), RecordRules({"out": twice}, {"": WHOLE}), made=made)
    answer = run.asked(one="waiting", other="unused")
    assert str(answer.searches[1].values["shop_id"]) == "waiting and unused"
    assert not any(search.found for search in answer.searches), "no record has two shops"
    at = RecordRules({"out": Dependence(Uses.SOME, {"in": {"t": "at"}}, ("hour",), HOURS)}, {"": HOURS})
    run = logged(MemoryLogStore(), at, made=pa.table({"t": HOUR, "hour": HOUR}))
    assert not run.asked(t="2024-01-01T10:06", hour="2024-01-01T11:00").searches[1].found
    assert run.asked(t="2024-01-01T11:05", hour="2024-01-01T11:00").searches[1].found == {2: 1}


def test_what_a_replay_operator_has_made_is_not_known() -> None:
    """Neither that the record is there, nor that it is not."""
    run = logged(MemoryLogStore(), replayed=True)
    answer = run.asked(shop="left_out")
    assert not answer.is_there and "replay operator" in answer.notes[0]
    assert (answer.searches[0].searched, answer.searches[0].sent) == (0, 1)
    (left_out, *_) = answer.searches[1].met
    assert left_out.fate is Fate.LEFT_OUT and not left_out.is_output_known
    told = " ".join(why_not_lines(answer))
    assert "not all records behind it were searched" in told and "has left it out" not in told


def test_limits_end_the_search_and_are_said() -> None:
    run = logged(MemoryLogStore())

    def limited(port: str, limits: SearchLimits, **values: str) -> WhyNot:
        return why_not(run.store, run.run, port, values, limits=limits)

    newest = limited("clean.out", SearchLimits(seconds=0), shop_id="left_out")
    (search,) = newest.searches
    assert search.is_cut and (search.searched, search.sent) == (1, 5)
    assert newest.notes == ["of clean.out only the newest events were searched: earlier ones may have such a record"]
    assert "only the newest 1 of 5 events searched" in next(why_not_lines(newest))
    whole = limited("hourly.out", SearchLimits(found=9), shop="left_out")
    assert [one.is_cut for one in whole.searches] == [False, False] and not whole.notes
    assert whole.searches[1].met[0].made == (EventNode(HOURLY, 1),)
    some = limited("hourly.out", SearchLimits(size=1), shop="left_out")
    assert len(some.searches) == 1
    assert some.notes == ["clean.out was not searched: the limits of this search are reached"]
    with pytest.raises(LineageUnknown, match="as far as was searched, the events of clean"):
        limited("clean.out", SearchLimits(seconds=0), x="1")


def test_what_is_made_while_it_is_searched_is_not_said_to_leave_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is searched before its input: what it sends between the two was not looked at."""
    run, search = logged(MemoryLogStore()), event_search.events_holding

    def before_the_output_was_sent(store: LogStore, of: Run, port: Port, *rest: Any) -> Sequence[Holding]:
        (one,) = search(store, of, port, *rest)
        return [replace(one, sent=0, searched=0, newest=0)] if port == HOURLY else [one]

    monkeypatch.setattr(why_not_module, "events_holding", before_the_output_was_sent)
    answer = run.asked(shop="left_out")
    (met,) = answer.searches[1].met
    assert (met.fate, met.made) == (Fate.MADE_SINCE, (EventNode(HOURLY, 1),))
    told = " ".join(why_not_lines(answer))
    assert "made event 1, which was not searched: ask again" in told and "left it out" not in told


def test_it_is_said_if_there_was_no_time_for_all_that_has_become_of_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    only_hour = RecordRules({"out": Dependence(Uses.SOME, {}, ("hour",), HOURS)}, BY_HOUR.parts)
    run, search, late = logged(MemoryLogStore(), only_hour), event_search.events_holding, []

    def then_late(store: LogStore, of: Run, port: Port, *rest: Any) -> Sequence[Holding]:
        found = search(store, of, port, *rest)
        late.extend([port] if port == CLEAN else [])
        return found

    monkeypatch.setattr(why_not_module, "events_holding", then_late)
    monkeypatch.setattr(Spent, "is_late", lambda _: bool(late))
    asked = {"shop": "waiting", "hour": "2024-01-01T11:00"}
    whole = run.asked(**asked).searches[1]
    assert len(whole.met) == 3 and not whole.is_met_cut, "so few are always looked at"
    late.clear()
    monkeypatch.setattr(record_fates, "LEAST_FATES", 1)
    some = run.asked(**asked).searches[1]
    assert len(some.met) == 1 and some.is_met_cut


class Watching(AnswerWatch):
    """Looks on, and ends the search once it has come so far."""

    def __init__(self, last: str = "") -> None:
        self.seen: list[str] = []
        self.answers: list[WhyNot] = []
        self._last = last

    def looks(self, so_far: SearchedSoFar) -> None:
        self.seen.append(searched_said(so_far))

    def grows(self, so_far: Callable[[], WhyNot]) -> None:
        self.answers.append(so_far())

    def is_stopped(self) -> bool:
        return self._last in self.seen


def test_who_waits_sees_the_search_move_and_the_answer_grow() -> None:
    run, watch = logged(MemoryLogStore()), Watching()
    answer = why_not(run.store, run.run, "hourly.out", {"shop": "aside"}, watch=watch)
    assert list(dict.fromkeys(watch.seen)) == [
        "hourly.out: 0 of 1 event",
        "hourly.out: 1 of 1 event",
        *(f"clean.out: {number} of 5 events" for number in range(6)),
    ]
    assert [len(one.searches) for one in watch.answers] == [1, 2, 2]
    found, whole = watch.answers[1].searches[1], answer.searches[1]
    assert (found.found, found.met) == (whole.found, ()), "found, before it is asked what has become of it"
    assert whole.found and whole.met
    assert watch.answers[-1].searches == answer.searches
    assert watch.answers[0].searches == answer.searches[:1]


def test_who_waits_ends_the_search_at_an_event() -> None:
    run, watch = logged(MemoryLogStore()), Watching(last="clean.out: 2 of 5 events")
    with pytest.raises(SearchStopped):
        why_not(run.store, run.run, "hourly.out", {"shop": "aside"}, watch=watch)
    assert watch.seen[-1] == "clean.out: 2 of 5 events" and len(watch.answers) == 1


def test_what_has_become_of_records_is_not_asked_any_more_when_no_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    only_hour = RecordRules({"out": Dependence(Uses.SOME, {}, ("hour",), HOURS)}, BY_HOUR.parts)
    run, watch, fate = logged(MemoryLogStore(), only_hour), Watching(last="gone"), RecordFates._fate
    fates = []

    def then_gone(*given: Any) -> Met:
        fates.append(fate(*given))
        watch.seen.append("gone")
        return fates[-1]

    monkeypatch.setattr(RecordFates, "_fate", then_gone)
    asked = {"shop": "waiting", "hour": "2024-01-01T11:00"}
    with pytest.raises(SearchStopped):
        why_not(run.store, run.run, "hourly.out", asked, watch=watch)
    assert len(fates) == 1


def test_a_terminal_shows_how_far_the_search_is(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    store = open_store(sqlite_url)
    logged(store)
    store.dispose()
    shown = Console(file=StringIO(), force_terminal=True, width=PIPE_WIDTH)
    monkeypatch.setattr(lineage_command, "err", shown)
    monkeypatch.setattr(lineage_command, "EVERY_SECONDS", 0.0)
    assert logio(monkeypatch, "--where", "shop=aside", "--why-not") == 0
    assert isinstance(shown.file, StringIO) and "searching clean.out: 5 of 5 events" in shown.file.getvalue()


def test_the_end_of_a_stream_has_no_columns() -> None:
    handed_on = RecordRules({"out": Dependence(Uses.ONE)}, {"": WHOLE})
    run = logged(MemoryLogStore(), BY_HOUR, handed_on, ended=True)
    assert [len(one.found) for one in run.asked(shop="dropped").searches] == [0, 0, 1]


def logio(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["logio", "lineage", "run-1", "hourly.out", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command(sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LOGIO_URL", sqlite_url)
    store = open_store(sqlite_url)
    logged(store)
    store.dispose()
    assert logio(monkeypatch, "--where", "shop=left_out", "--where", "hour=2024-01-01T10:00", "--why-not") == 0
    printed = capsys.readouterr().out
    assert " ".join(printed.split()) == (
        "hourly.out: no record has shop=left_out and hour=2024-01-01T10:00 (1 event searched) "
        "clean.out: 1 record with shop_id=left_out and at in 2024-01-01T10:00 to 2024-01-01T11:00, in 1 event: 1 "
        "(5 events searched) event 1, Input Set 2024-01-01T10:00 of hourly: it was generated and made event 1, without such "
        "a record: hourly has left it out"
    )
    assert logio(monkeypatch, "--where", "shop=aside", "--why-not", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["searches"][1]["met"][0]["error"] == "ValueError: no price" and not found["is_there"]
    assert logio(monkeypatch, "--where", "shop=x", "--why-not") == 0
    assert "it is there" in capsys.readouterr().out
    assert logio(monkeypatch, "1", "--why-not") == 2
