"""Runs: get-or-create, lookup, end."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import pytest
import sqlalchemy as sa

from airflow_logio.errors import (
    ConfigurationError,
    Fenced,
    IncompatibleRun,
    LogInconsistent,
    OtherRunUnfinished,
    RunRemoved,
    UnknownRun,
)
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.run_writers import Repeats, Together, WriterShape
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import ConcurrentRuns, Run, RunSpec
from airflow_logio.store.rules.run_rules import GroupStates, may_be_in_the_way
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from airflow_logio.testing.memory_log.tables import GroupKey
from tests.conftest import QUICK
from tests.store.conftest import OpenStore
from tests.support.faults import Injected, Pause, around_commit, before_statement, inject
from tests.support.logs import contents, replace_driver, spec, start_driver
from tests.support.racing import race


def test_a_run_is_created_once(log_store: LogStore) -> None:
    run = log_store.start_run(spec("a", "b"))
    again = log_store.start_run(spec("a", "b"))
    assert again == run
    assert run.spec == spec("a", "b")
    assert run.state is RunState.RUNNING
    assert [group.group for group in log_store.groups(run.run_id)] == ["a", "b"]
    assert {group.state for group in log_store.groups(run.run_id)} == {GroupState.NEW}


def test_many_starters_at_once_get_the_same_run(log_store: LogStore) -> None:
    runs = race(*[lambda: log_store.start_run(spec("a", "b"))] * 6)
    assert all(isinstance(run, Run) for run in runs), runs
    assert len({run.uid for run in runs if isinstance(run, Run)}) == 1
    assert len(log_store.list_runs()) == 1


def test_another_dag_run_is_another_run(log_store: LogStore) -> None:
    runs = [log_store.start_run(spec()), log_store.start_run(spec(dag_run="run-2"))]
    assert len({run.run_id for run in runs}) == len({run.uid for run in runs}) == 2


def test_another_graph_is_refused_and_changes_nothing(log_store: LogStore) -> None:
    log_store.start_run(spec("a"))
    before = contents(log_store)
    with pytest.raises(IncompatibleRun, match="graph-1, now graph-2"):
        log_store.start_run(spec("a", "new", graph="graph-2"))
    assert contents(log_store) == before


def test_changed_code_alone_is_the_same_run(log_store: LogStore) -> None:
    run = log_store.start_run(spec())
    assert log_store.start_run(replace(spec(), code_fingerprint="code-2")).uid == run.uid


def test_runs_are_found_by_uid_its_beginning_and_dag_run(log_store: LogStore) -> None:
    first = log_store.start_run(spec())
    second = log_store.start_run(spec(dag_run="run-2"))
    assert log_store.find_run(first.uid).uid == first.uid
    assert log_store.find_run(second.uid[:20]).uid == second.uid
    assert log_store.find_run("run-2").uid == second.uid
    assert [run.uid for run in log_store.list_runs()] == [second.uid, first.uid]
    assert log_store.list_runs(limit=1)[0].uid == second.uid
    assert log_store.list_runs(pipeline="another") == []


def test_a_partition_names_its_newest_run(log_store: LogStore) -> None:
    plain = spec()
    of_day = replace(plain, key=replace(plain.key, pipeline="cl@icks"), partition="2026-03-01")
    first = log_store.start_run(of_day)
    log_store.start_run(replace(of_day, key=replace(of_day.key, dag_run_id="other day"), partition="2026-03-02"))
    log_store.start_run(replace(of_day, key=replace(of_day.key, pipeline="other")))
    assert log_store.find_run("cl@icks@2026-03-01").uid == first.uid
    assert log_store.request(first.run_id, "g", GroupState.HALTED) and log_store.supersede(first.run_id)
    assert log_store.find_run("cl@icks@2026-03-01").uid == first.uid, "given up, and none has begun"
    second = log_store.start_run(of_day)
    assert log_store.find_run("cl@icks@2026-03-01").uid == second.uid != first.uid
    for name in ("cl@icks@2026-03-03", "@2026-03-01", "cl@icks@", "2026-03-01", plain.key.pipeline + "@None"):
        with pytest.raises(UnknownRun, match=name):
            log_store.find_run(name)
    named = log_store.start_run(spec(dag_run="cl@icks@2026-03-01"))
    assert log_store.find_run("cl@icks@2026-03-01").uid == named.uid, "a DAG run of that very name comes first"


def test_a_dag_run_named_as_a_runs_uid_does_not_take_its_place(log_store: LogStore) -> None:
    first = log_store.start_run(spec())
    log_store.start_run(spec(dag_run=first.uid))
    assert log_store.find_run(first.uid).uid == first.uid


def test_runs_are_listed_by_dag_and_dag_run(log_store: LogStore) -> None:
    first, second = (log_store.start_run(spec(dag_run=name)) for name in ("run-1", "run-2"))
    dag_id = first.spec.key.dag_id
    assert [run.uid for run in log_store.list_runs(dag_ids=[dag_id, "another"])] == [second.uid, first.uid]
    assert [run.uid for run in log_store.list_runs(dag_ids={dag_id}, dag_run_id="run-1")] == [first.uid]
    assert log_store.list_runs(dag_ids=["another"]) == log_store.list_runs(dag_ids=[]) == []
    assert log_store.list_runs(dag_run_id="run-3") == []
    assert log_store.request(first.run_id, "g", GroupState.HALTED) and log_store.supersede(first.run_id)
    assert [run.uid for run in log_store.list_runs(state=RunState.RUNNING)] == [second.uid]
    assert [run.uid for run in log_store.list_runs(state=RunState.SUPERSEDED)] == [first.uid]


def test_runs_are_found_by_parts_of_their_names(log_store: LogStore) -> None:
    first = log_store.start_run(spec(dag_run="Manual_1%"))
    second = log_store.start_run(spec(dag_run="manual-2"))
    named = {
        part: [run.uid for run in log_store.list_runs(named=part)] for part in ("MANUAL", "al_", "%", "sal", "dag")
    }
    assert named["MANUAL"] == named["sal"] == named["dag"] == [second.uid, first.uid]
    assert named["al_"] == named["%"] == [first.uid], "signs of SQL are only signs"
    third = log_store.start_run(spec(dag_run="ÜBUNG_3"))
    assert [run.uid for run in log_store.list_runs(named="ÜBUNG")] == [third.uid]
    assert log_store.list_runs(named="x'; --\x00") == []
    assert log_store.list_runs(named="manual", dag_ids=["another"]) == []


@pytest.mark.parametrize("name", ["nobody", "%", "_", "run-"])
def test_an_unknown_run_is_said_to_be_unknown(log_store: LogStore, name: str) -> None:
    log_store.start_run(spec())
    with pytest.raises(UnknownRun, match=name):
        log_store.find_run(name)


def test_an_ambiguous_beginning_is_refused(log_store: LogStore) -> None:
    log_store.start_run(spec())
    log_store.start_run(spec(dag_run="run-2"))
    with pytest.raises(UnknownRun, match="2 runs"):
        log_store.find_run("")


def test_an_unknown_group_is_said_to_be_unknown(log_store: LogStore) -> None:
    run = log_store.start_run(spec("a"))
    with pytest.raises(UnknownRun, match="'b'"):
        log_store.group(run.run_id, "b")


def test_a_run_finishes_when_all_groups_have(log_store: LogStore) -> None:
    run = log_store.start_run(spec("a", "b"))
    start_driver(log_store, group="a", run=run).session.commit([fx.FinishGroup()])
    assert not log_store.finish_run(run.run_id)
    assert log_store.find_run(run.uid).state is RunState.RUNNING
    start_driver(log_store, group="b", run=run).session.commit([fx.FinishGroup()])
    assert log_store.finish_run(run.run_id)
    finished = log_store.find_run(run.uid)
    assert finished.state is RunState.FINISHED
    assert finished.ended_at is not None
    assert log_store.finish_run(run.run_id)
    assert log_store.find_run(run.uid).ended_at == finished.ended_at, "the end is the first end"


# --- the order of runs ------------------------------------------------------------------------------------------------


def of(pipeline: str, dag_run: str, partition: str | None = None) -> RunSpec:
    plain = spec(dag_run=dag_run)
    return replace(plain, key=replace(plain.key, pipeline=pipeline), partition=partition)


def remove(store: LogStore, run: Run) -> None:
    while store.remove_run(run.run_id, 100, unfinished=True).more:
        pass


def test_ordinals_rise_with_each_run_of_a_pipeline(log_store: LogStore) -> None:
    clicks = [log_store.start_run(of("clicks", name)) for name in ("a", "b")]
    sales = log_store.start_run(of("sales", "a"))
    clicks.append(log_store.start_run(of("clicks", "c")))
    assert [run.ordinal for run in clicks] == [1, 2, 3] and sales.ordinal == 1
    assert log_store.start_run(of("clicks", "b")) == clicks[1], "to start it again is no new run"
    assert log_store.supersede(clicks[1].run_id)
    assert log_store.start_run(of("clicks", "b")).ordinal == 4, "the next generation is younger than all"
    assert log_store.find_run(clicks[1].uid).ordinal == 2
    assert {run.ordinal for run, _ in log_store.unfinished(pipeline="clicks")} == {1, 3, 4}


def test_an_ordinal_is_not_given_again_when_the_last_run_is_removed(log_store: LogStore) -> None:
    first = log_store.start_run(of("clicks", "a"))
    for number in (2, 3):
        last = log_store.start_run(of("clicks", "b"))
        assert last.ordinal == number
        remove(log_store, last)
    remove(log_store, first)
    assert log_store.start_run(of("clicks", "a")).ordinal == 4, "nor when no run is left"


def test_a_start_that_fails_gives_no_ordinal(log_store: LogStore) -> None:
    log_store.start_run(of("clicks", "a"))
    before = contents(log_store)
    with pytest.raises(OtherRunUnfinished):
        log_store.start_run(of("clicks", "b"), concurrent=ConcurrentRuns.REFUSE, above=40)
    assert contents(log_store) == before
    assert log_store.start_run(of("clicks", "b")).ordinal == 2


def test_starters_at_once_get_each_an_ordinal_of_its_own(log_store: LogStore) -> None:
    """Also those that find no row of the pipeline yet, and those that begin the same run."""
    names = [f"run {number // 2}" for number in range(8)]
    runs = race(*[lambda name=name: log_store.start_run(of("clicks", name)) for name in names])
    assert all(isinstance(run, Run) for run in runs), runs
    found = {run.uid: run.ordinal for run in runs if isinstance(run, Run)}
    assert sorted(found.values()) == [1, 2, 3, 4]
    by_ordinal = sorted(log_store.list_runs(), key=lambda run: run.ordinal)
    assert [run.run_id for run in by_ordinal] == sorted(run.run_id for run in by_ordinal)


def test_two_processes_give_ordinals_of_one_row(open_another: OpenStore) -> None:
    """The first stands still before each of its statements, while the other begins a run."""
    store, rival = open_another(), open_another(application="logio rival")
    number, reached, seen = 0, True, []
    while reached:
        number += 1
        pause, name = Pause(), f"clicks {number}"
        with ThreadPoolExecutor(2) as pool, before_statement(store, number, pause):
            starting = pool.submit(store.start_run, of(name, "a"))
            reached = pause.is_reached_before(starting)
            coming = pool.submit(QUICK.call, "the rival", lambda name=name: rival.start_run(of(name, "b")))
            wait([coming], 0.1)
            pause.release()
            runs = starting.result(90), coming.result(90)
        assert sorted(run.ordinal for run in runs) == [1, 2]
        by_ordinal = sorted(runs, key=lambda run: run.ordinal)
        assert by_ordinal[0].run_id < by_ordinal[1].run_id
        seen.append([run.ordinal for run in runs])
    assert number > 6 and [1, 2] in seen, "it was paused while it held the row"


def test_a_person_raises_the_order_above_what_tables_know(log_store: LogStore) -> None:
    log_store.start_run(of("clicks", "a"))
    above = log_store.start_run(of("clicks", "b"), above=45)
    assert above.ordinal == 46
    assert log_store.start_run(of("clicks", "b"), above=90) == above, "asked again, the run is there"
    assert log_store.start_run(of("clicks", "c"), above=7).ordinal == 47, "never lower"
    assert log_store.start_run(of("other", "a"), above=7).ordinal == 8, "the first one of a pipeline, too"
    before = contents(log_store)
    for wrong in (-1, 10**11, 10**20):
        with pytest.raises(ConfigurationError, match=f"above {wrong}"):
            log_store.start_run(of("clicks", "d"), above=wrong)
    assert contents(log_store) == before


def test_runs_are_listed_by_partition(log_store: LogStore) -> None:
    days = [log_store.start_run(of("clicks", f"of {day}", day)) for day in ("2026-03-01", "2026-03-02")]
    manual = log_store.start_run(of("clicks", "manual", "2026-03-01"))
    plain = log_store.start_run(of("clicks", "without"))
    other = log_store.start_run(of("sales", "a", "2026-03-01"))
    assert [run.partition for run in (*days, plain)] == ["2026-03-01", "2026-03-02", None]
    listed = log_store.list_runs(pipeline="clicks", partition="2026-03-01")
    assert [run.uid for run in listed] == [manual.uid, days[0].uid]
    assert [run.uid for run in log_store.list_runs(partition="2026-03-01")] == [other.uid, manual.uid, days[0].uid]
    assert log_store.list_runs(partition="2026-03") == []
    spring = log_store.list_runs(pipeline="clicks", partitions=("2026-02-28", "2026-03-01"))
    assert [run.uid for run in spring] == [manual.uid, days[0].uid]
    assert len(log_store.list_runs(partitions=("2026-03-01", "2026-03-02"))) == 4
    assert log_store.list_runs(partitions=("2026-03-03", "2026-03-01")) == []
    assert [run.uid for run in log_store.list_runs(named="26-03-01", pipeline="clicks")] == [manual.uid, days[0].uid]
    with pytest.raises(ConfigurationError, match="the partition of a run cannot be"):
        log_store.start_run(of("clicks", "odd", "2026\x00"))


def test_a_log_is_told_from_others(log_store: LogStore) -> None:
    uid = log_store.log_uid()
    assert log_store.log_uid() == uid and len(uid) == 32 and set(uid) <= set("0123456789abcdef")
    assert MemoryLogStore().log_uid() != uid


@pytest.mark.parametrize("rows", [0, 2])
def test_a_log_that_has_lost_its_name_says_so(sql_store: SqlLogStore, rows: int) -> None:
    with sql_store.engine.begin() as connection:
        connection.execute(sa.delete(schema.this_log))
        for number in range(rows):
            connection.execute(sa.insert(schema.this_log).values(uid=str(number) * 32))
    with pytest.raises(LogInconsistent, match=f"logio_log has {rows} rows instead of one"):
        sql_store.log_uid()


def test_a_start_that_dies_anywhere_begins_nothing(sql_store: SqlLogStore) -> None:
    before = contents(sql_store)
    number, failed = 0, True
    while failed:
        number += 1
        try:
            with before_statement(sql_store, number, inject):
                sql_store.start_run(of("clicks", "a", "2026-03-01"))
            failed = False
        except Injected:
            assert contents(sql_store) == before, f"failed at statement {number}"
    assert number > 6
    with around_commit(sql_store, after=inject), pytest.raises(Injected):
        sql_store.start_run(of("clicks", "b"))
    assert sql_store.start_run(of("clicks", "b")).ordinal == 2, "its commit was not acknowledged: the run is there"


def test_a_run_that_is_being_removed_has_given_its_name_back(log_store: LogStore) -> None:
    run = log_store.start_run(of("clicks", "nightly", "2026-03-01"))
    assert log_store.remove_run(run.run_id, 100, unfinished=True).more
    assert log_store.list_runs(pipeline="clicks", dag_run_id="nightly") == []
    with pytest.raises(RunRemoved):
        log_store.find_run("nightly")
    again = log_store.start_run(of("clicks", "nightly", "2026-03-01"))
    assert (again.uid == run.uid, again.ordinal, again.spec.key.generation) == (False, 2, 2)
    assert [one.uid for one in log_store.list_runs(dag_run_id="nightly")] == [again.uid]


def test_what_starts_have_decided_goes_with_the_run(sql_store: SqlLogStore) -> None:
    """Also what an attempt has decided since the removal began. What leads to no run, or to another one, stays."""
    run, other = (sql_store.start_run(of("clicks", name)) for name in ("a", "b"))

    def decide(dag_run: str, attempt: int, uid: str | None) -> None:
        row = {"pipeline": "clicks", "dag_id": "dag", "dag_run_id": dag_run, "try_number": attempt, "clear_number": 0}
        with sql_store.engine.begin() as connection:
            connection.execute(sa.insert(schema.start).values(**row, run_uid=uid, decision="begins"))

    def decided() -> list[tuple[str, int]]:
        with sql_store.engine.connect() as connection:
            rows = connection.execute(sa.select(schema.start.c.dag_run_id, schema.start.c.try_number))
            return sorted((name, attempt) for name, attempt in rows)

    decide("a", 1, run.uid)
    decide("a", 2, run.uid)
    decide("a", 3, None)
    decide("b", 1, other.uid)
    assert sql_store.remove_run(run.run_id, 100, unfinished=True).more
    assert decided() == [("a", 3), ("b", 1)]
    decide("a", 4, run.uid)
    while sql_store.remove_run(run.run_id, 100).more:
        pass
    assert decided() == [("a", 3), ("b", 1)]


# --- drains -----------------------------------------------------------------------------------------------------------


def drained_at(store: LogStore, run: Run) -> float | None:
    if isinstance(store, MemoryLogStore):
        return store.tables.groups[GroupKey(run.run_id, "g")].drained_at
    assert isinstance(store, SqlLogStore)
    with store.engine.connect() as connection:
        query = sa.select(schema.group.c.drained_at).where(schema.group.c.run_id == run.run_id)
        found: float | None = connection.execute(query).scalar_one()
        return found


def test_the_commit_that_drains_a_group_says_when(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    assert drained_at(log_store, driver.run) is None
    driver.session.commit([fx.DrainGroup()])
    first = drained_at(log_store, driver.run)
    assert first is not None and log_store.group(driver.run.run_id, "g").state is GroupState.DRAINING
    driver.session.commit([fx.DrainGroup()])
    assert drained_at(log_store, driver.run) == first, "again after a rebuild: it was drained before"
    later = replace_driver(driver)
    assert drained_at(log_store, driver.run) == first
    later.session.commit([fx.FinishGroup()])
    assert drained_at(log_store, driver.run) == first, "for good"


def test_a_drain_that_is_not_committed_has_not_been(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    replace_driver(driver)
    with pytest.raises(Fenced):
        driver.session.commit([fx.DrainGroup()])
    assert drained_at(log_store, driver.run) is None


# --- which runs may live at once --------------------------------------------------------------------------------------

WAREHOUSE = ("warehouse_id", "top")


def shape(
    together: Together, *place: str, writer: str = "save", what: str = "TableWriter", is_of_author: bool = False
) -> WriterShape:
    return WriterShape(writer, what, place or WAREHOUSE, together, Repeats.ADDED, is_of_author)


def day(number: int, *writers: WriterShape, **partition: str) -> RunSpec:
    """A run of a day, with these writers."""
    kind = {"partition": "Days", "name": "day", "zone": "UTC", "rules": "2026a"} | partition
    plain = of("clicks", f"run {number}", f"2026-03-0{number}")
    return replace(plain, writers=writers, graph={"partition": kind})


def beside(store: LogStore, there: RunSpec, comes: RunSpec) -> str | None:
    """What is said to a run that comes while another one is unfinished; None if it begins."""
    store.start_run(there)
    before = contents(store)
    try:
        run = store.start_run(comes, concurrent=ConcurrentRuns.DERIVED)
    except OtherRunUnfinished as refused:
        assert contents(store) == before
        return str(refused)
    assert run.spec == comes, "it comes back from the log as it was given"
    return None


@pytest.mark.parametrize("theirs", Together)
@pytest.mark.parametrize("mine", Together)
def test_what_two_writers_at_one_place_are_decides_whether_runs_live_at_once(
    log_store: LogStore, mine: Together, theirs: Together
) -> None:
    said = beside(log_store, day(1, shape(theirs)), day(2, shape(mine)))
    together = mine is theirs and mine is not Together.NEVER
    assert (said is None) is together, said
    if said is not None:
        assert "run run 1 of clicks, uid " in said and "of partition 2026-03-01, has not finished (g is new)" in said
        assert "could not write its tables any more once this one does: writer 'save' (TableWriter)" in said
        assert "Let it finish (`logio retry " in said and "give it up (`logio fresh " in said
        log_store.start_run(day(3, shape(mine)), concurrent=ConcurrentRuns.ISOLATED)  # the author knows better


@pytest.mark.parametrize("theirs", Together)
@pytest.mark.parametrize("mine", Together)
def test_runs_whose_writers_are_at_two_places_live_at_once(
    log_store: LogStore, mine: Together, theirs: Together
) -> None:
    lake = [shape(one, "lake_id", "sales", f"dt={place}") for place, one in enumerate((theirs, mine))]
    assert beside(log_store, day(1, lake[0]), day(2, lake[1])) is None
    assert beside(log_store, day(3, shape(theirs, "a", "top")), day(4, shape(mine, "b", "top"))) is None


@pytest.mark.parametrize(
    ("there", "comes", "words"),
    [
        ((), (), None),
        ((shape(Together.NEVER),), (), None),
        ((shape(Together.NEVER, "lake_id"),), (shape(Together.NEVER, "lake_id", "sales"),), "writer 'save'"),
        ((shape(Together.NEVER, "w", "top"),), (shape(Together.NEVER, "w", "top", "public"),), "writer 'save'"),
        ((shape(Together.BY_PARTITION, "lake_id"),), (shape(Together.ALWAYS, "lake_id", "late"),), None),
        ((shape(Together.NEVER, "lake_id", "dt=1"),), (shape(Together.ALWAYS, "lake_id"),), None),
        (
            (shape(Together.ALWAYS), shape(Together.NEVER, "crm", writer="send", what="Crm", is_of_author=True)),
            (shape(Together.ALWAYS), shape(Together.NEVER, "crm", writer="send", what="Crm", is_of_author=True)),
            r"writer 'send' \(Crm\)\. .* If two runs may write by send at once, .*runs_together = True",
        ),
        (
            (shape(Together.NEVER, writer="old", what="A"),),
            (shape(Together.NEVER, writer="new", what="B"),),
            r"writer 'new' \(B\) and writer 'old' \(A\)",
        ),
    ],
)
def test_which_writer_is_named(
    log_store: LogStore, there: tuple[WriterShape, ...], comes: tuple[WriterShape, ...], words: str | None
) -> None:
    said = beside(log_store, day(1, *there), day(2, *comes))
    assert said is None if words is None else (said is not None and re.search(words, said)), said


def test_a_run_that_only_appends_is_not_named_where_a_start_has_failed(log_store: LogStore) -> None:
    """The page knows the runs that are unfinished, and not what the refused one would have written."""

    def may_be(comes: RunSpec) -> bool:
        run = log_store.start_run(comes)
        return may_be_in_the_way(run, GroupStates({"g": GroupState.PARKED}))

    assert not may_be(replace(day(1, shape(Together.ALWAYS)), partition=None))
    assert may_be(replace(day(2, shape(Together.ALWAYS), shape(Together.NEVER)), partition=None))
    assert may_be(replace(day(3), writers=None, partition=None))
    assert may_be(day(4, shape(Together.ALWAYS))), "another run of that day may have been refused"
    assert not may_be_in_the_way(log_store.start_run(day(5)), GroupStates({"g": GroupState.FINISHED}))


def test_a_run_of_which_nothing_is_known_is_in_the_way(log_store: LogStore) -> None:
    """One that an earlier version began: it may replace tables."""
    said = beside(log_store, of("clicks", "old", "2026-03-01"), day(2, shape(Together.ALWAYS)))
    assert said is not None and "which an earlier version began: what its writers do is not known" in said


def test_one_run_of_a_partition_is_computed_at_a_time(log_store: LogStore) -> None:
    twice = replace(day(1, shape(Together.ALWAYS)), key=replace(day(1).key, dag_run_id="backfill"))
    said = beside(log_store, day(1, shape(Together.ALWAYS)), twice)
    assert said is not None and "is of partition 2026-03-01, as this one would be" in said
    assert "Let it finish" in said and "`logio fresh " in said
    (run,) = log_store.list_runs()
    assert log_store.supersede(run.run_id)
    assert log_store.start_run(twice, concurrent=ConcurrentRuns.DERIVED).partition == "2026-03-01"


@pytest.mark.parametrize(
    ("other", "is_apart"),
    [({}, True), ({"rules": "2026b"}, True), ({"partition": "Hours"}, False), ({"zone": "Europe/Berlin"}, False)],
)
def test_partitions_of_two_kinds_may_have_something_in_common(
    log_store: LogStore, other: dict[str, str], is_apart: bool
) -> None:
    mine = shape(Together.BY_PARTITION)
    assert (beside(log_store, day(1, mine), day(2, mine, **other)) is None) is is_apart


def test_a_red_day_is_in_nobodys_way_and_many_days_begin_at_once(log_store: LogStore) -> None:
    mine = shape(Together.BY_PARTITION)
    driver = start_driver(log_store, run=log_store.start_run(day(1, mine)))
    assert log_store.park(driver.ref, "it is red")
    begun = race(
        *[
            lambda number=number: log_store.start_run(day(number, mine), concurrent=ConcurrentRuns.DERIVED)
            for number in range(2, 8)
        ]
    )
    assert {one.partition for one in begun if isinstance(one, Run)} == {f"2026-03-0{number}" for number in range(2, 8)}


def test_of_two_days_that_replace_one_table_one_begins(log_store: LogStore) -> None:
    mine = shape(Together.NEVER)
    begun = race(
        *[
            lambda number=number: log_store.start_run(day(number, mine), concurrent=ConcurrentRuns.DERIVED)
            for number in range(1, 7)
        ]
    )
    assert sum(isinstance(one, Run) for one in begun) == 1, begun
    assert sum(isinstance(one, OtherRunUnfinished) for one in begun) == 5
