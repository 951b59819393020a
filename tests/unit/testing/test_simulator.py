"""Ten thousand schedules, none of which loses, doubles or changes anything; and each is what it says it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest
import sqlalchemy as sa

from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol.states import ScalingState
from airflow_logio.store.records.status_records import ScalingRequest
from airflow_logio.store.sql.engines import log_engine
from airflow_logio.testing import INVARIANTS, LogWatch, Simulator, Site
from airflow_logio.testing.memory_log.tables import Tables
from airflow_logio.testing.simulator.drains import DRAIN_EVERY
from airflow_logio.testing.simulator.plan import UpTo
from airflow_logio.testing.simulator.scaling import Move, Work
from airflow_logio.testing.simulator.scheduler import Seeded
from airflow_logio.testing.simulator.simulated_logs import close_logs
from airflow_logio.testing.simulator.simulation import MIN_COMMITS, MIN_CRASHES, MIN_EVENTS
from airflow_logio.testing.simulator.world import World
from tests.simulator import SCENARIOS, reference
from tests.simulator.lake import DATASET_INVARIANTS
from tests.simulator.lake.dataset_watch import DatasetWatch
from tests.simulator.lake.published import PublishedFolder
from tests.simulator.lake.staging import StagingDatabase
from tests.support.postgres import PostgresServer

WITH_ARROW = {"sales": 120, "scaled": 60}
WITH_DATASETS = {"lake": 36, "effects": 36, "stored": 48}
"""A schedule of these takes a step for each file."""
WITH_REPLAY = {"replayed": 120, "recalled": 120, "rekeyed": 120}
"""What is made again is made again and again."""
WITH_A_DAY = {"day_in_one": 120, "day_in_two": 120, "day_in_three": 120}
"""Runs that close, which cannot be drained."""
PLAIN = 770
"""Schedules of the sales pipelines, with Arrow, and of each scenario of plain Python; some of each are drained."""
ON_SQLITE = 2
"""Of each scenario, on SQLite beside the log in memory."""
PARTS, OF_FEW = 16, 3
"""Of the schedules of a scenario, and of one that has few: `make test` takes one part of each."""
DONE, REFUSED = ScalingState.DONE, ScalingState.REFUSED


@cache
def simulator(name: str, store: str = "memory") -> Simulator:
    return Simulator(SCENARIOS[name](), store=store)


def schedules(name: str) -> int:
    return (WITH_ARROW | WITH_DATASETS | WITH_REPLAY | WITH_A_DAY).get(name, PLAIN)


def parts(name: str) -> int:
    return PARTS if schedules(name) == PLAIN else OF_FEW


def test_there_are_ten_thousand_that_are_not_drained() -> None:
    assert all(SCENARIOS[name]().drains != (name in WITH_A_DAY) for name in SCENARIOS)
    assert sum(schedules(name) - schedules(name) // DRAIN_EVERY for name in SCENARIOS) >= 10_000


@pytest.mark.parametrize(("name", "part"), [(name, part) for name in SCENARIOS for part in range(parts(name))])
def test_no_schedule_changes_what_comes_out(name: str, part: int) -> None:
    sites = Counter[Site]()
    for seed in range(part, schedules(name), parts(name)):
        figures, failure = simulator(name).run(seed)
        assert failure is None, f"logio simulate {reference(name)} --seed {seed} --schedules 1: {failure}"
        assert figures.drained or figures.events >= MIN_EVENTS
        assert figures.drained or figures.commits >= MIN_COMMITS
        assert figures.crashes >= MIN_CRASHES
        sites.update(figures.sites)
    assert sites[Site.AFTER_COMMIT] and sites[Site.AFTER_RECOVERY]
    assert sites[Site.IN_EVALUATION if name in WITH_DATASETS else Site.COMMIT_UNKNOWN]


@pytest.mark.parametrize("name", SCENARIOS)
def test_sqlite_and_memory_give_the_same_answers(name: str) -> None:
    seeds = (*range(ON_SQLITE), DRAIN_EVERY - 1, 2 * DRAIN_EVERY - 1)
    for seed in seeds[1:3] if name in WITH_DATASETS else seeds:
        _, failure = simulator(name, "sqlite").run(seed)
        assert failure is None, f"logio simulate {reference(name)} --log sqlite --seed {seed} --schedules 1: {failure}"


@pytest.fixture(scope="module")
def simulated_postgres(postgres_server: PostgresServer) -> Iterator[str]:
    """A database without tables; nothing is left in it."""
    url = postgres_server.new_database(migrated=False)
    yield url
    close_logs()
    engine = log_engine(url)
    assert [name for name in sa.inspect(engine).get_schema_names() if name.startswith("logio")] == []
    engine.dispose()
    postgres_server.drop_database(url)


@pytest.mark.postgres
@pytest.mark.parametrize("name", SCENARIOS)
def test_postgresql_and_memory_give_the_same_answers(name: str, simulated_postgres: str) -> None:
    """A seed that SQLite does not have; of every other scenario one that is drained. Every statement is a round trip."""
    seed = 3 * DRAIN_EVERY - 1 if list(SCENARIOS).index(name) % 2 else ON_SQLITE
    _, failure = Simulator(SCENARIOS[name](), store=simulated_postgres).run(seed)
    assert failure is None, (
        f"logio simulate {reference(name)} --log postgresql://... --seed {seed} --schedules 1: {failure}"
    )


def test_a_log_that_there_is_not_is_refused_and_its_password_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="memory, sqlite, or postgresql://") as refused:
        Simulator(SCENARIOS["linear"](), store="mysql://me:s3cret@host/log")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("name", ["linear", "synchronized", "feed"])
def test_drains_come_at_any_moment(name: str) -> None:
    """Before anything is read, in the middle, when all is read; several times, and to some groups only."""
    parts, asked = set[tuple[UpTo, ...]](), Counter[int]()
    for seed in range(DRAIN_EVERY - 1, 60 * DRAIN_EVERY, DRAIN_EVERY):
        one = simulator(name)
        world, watch = one.world()
        scheduler = Seeded(world, seed, one.reference().events)
        scheduler.run()
        if world.wished:
            parts.add(tuple(watch.read(tuple(one.scenario.sources)).values()))
            asked[sum(action.verb == "wish" for action in scheduler.trace)] += 1
    nothing = tuple(UpTo(0, 0) for _ in simulator(name).scenario.sources)
    assert nothing in parts
    assert len(parts) >= (5 if name == "feed" else 20)
    assert asked[1] and asked[2]


@pytest.mark.parametrize("name", ["spread", "copies", "keyed", "rekeyed", "scaled"])
def test_slots_move_at_any_moment(name: str) -> None:
    """Up, down, to no replica and back; for requests and by hand, at replicas that were committing or dead."""
    seen = Counter[str]()
    for seed in range(25):
        one = simulator(name)
        world, _ = one.world()
        scheduler = Seeded(world, seed, one.reference().events)
        scheduler.run()
        moves = [action.about for action in scheduler.trace if isinstance(action.about, Move)]
        seen.update(action.verb for action in scheduler.trace)
        seen["asleep"] += sum(one.replicas == 0 and one.state is DONE for one in _requests(world))
        seen["nobody"] += sum(bool(move.placement) and not any(owner for _, owner in move.placement) for move in moves)
        seen["retire"] += sum(bool(move.retire) for move in moves)
        seen["moved"] += world.scaling.moved
        seen["zombies"] += sum(len(drivers) > 1 for group, drivers in world.drivers.items() if "." in group)
    assert all(seen[what] for what in ("place", "ask", "revive", "end", "asleep", "nobody", "retire", "zombies"))
    assert seen["moved"] >= 50


@pytest.mark.parametrize("name", ["spread", "copies", "keyed", "scaled"])
def test_requests_are_met_and_superseded_by_executors_that_are_late_or_die(name: str) -> None:
    """By a supervisor, by the task or person that asked, by several at once; none is open at the end."""
    seen = Counter[str]()
    for seed in range(25):
        one = simulator(name)
        world, _ = one.world()
        scheduler = Seeded(world, seed, one.reference().events)
        scheduler.run()
        world.scaling.conclude()
        found = _requests(world)
        assert all(request.state in (DONE, REFUSED) for request in found)
        seen.update(action.verb for action in scheduler.trace)
        seen.update(request.by for request in found if request.state is DONE)
        seen["superseded"] += sum(request.note.startswith("superseded") for request in found)
        seen["of one key"] += sum(
            bool(action.about.key) for action in scheduler.trace if isinstance(action.about, Work)
        )
        seen["keys"] += sum(request.key is not None for request in found)
    assert all(seen[verb] for verb in ("request", "employ", "execute", "dismiss", "overdue"))
    assert all(seen[who] for who in ("controller", "task", "person", "dispatcher"))
    assert seen["superseded"] >= 25
    assert seen["of one key"] > seen["keys"], "a task that died has asked again"


def test_staging_tables_are_lost_and_gc_dies_at_any_moment() -> None:
    """Servers crash before the move, attempts that have lost commit, zombies stage and move, several `logio gc` die."""
    seen = Counter[str]()
    for seed in range(12):
        one = simulator("effects")
        world, watch = one.world()
        scheduler = Seeded(world, seed, one.reference().events)
        scheduler.run()
        seen["expired"] += len(watch.expired)
        for action in scheduler.trace:
            seen[f"{action.verb} {action.outcome}"] += 1
            seen[f"{action.verb} {action.about}"] += action.verb == "gc"
        for system in world.systems.values():
            seen.update(system.figures if isinstance(system, StagingDatabase) else ())
    staged = ("made", "late", "emptied", "short", "ended", "gone")
    assert all(seen[what] for what in (*staged, "server crash", "server load", "gc dies", "gc 0", "gc 1")), seen
    assert seen["made"] >= 300 and seen["expired"] >= 100


def _requests(world: World) -> Sequence[ScalingRequest]:
    return world.store.scalings(world.run.run_id)


def test_a_scenario_that_does_not_say_so_is_never_drained() -> None:
    plain = Simulator(replace(SCENARIOS["linear"](), drains=False))
    assert not any(plain.run(seed)[0].drained for seed in range(2 * DRAIN_EVERY))


def test_every_site_is_hit() -> None:
    """Every place where a driver can die in is one where some driver has died, and schedules count it.

    One whose group has finished and who does not know yet dies seldom: of groups that have finished, only those that die
    again a few steps after a death are hit, and a group that halts seldom dies as well: one seed in a hundred, and one in
    fifty. The first of these seeds is one from which they come soon.
    """
    sites = Counter[Site]()
    for seed in range(21_067, 22_067):
        slow = () if sites[Site.IN_REMOVAL] and sites[Site.IN_EVALUATION] else ("lake", "effects")
        for name in ("linear", "feed", "functions", "checkable", *slow):
            figures, _ = simulator(name).run(seed)
            sites.update(figures.sites)
        if len(sites) == len(Site):
            return
    raise AssertionError(f"no driver died in {set(Site) - set(sites)}")


@pytest.mark.parametrize("name", ["linear", "nondeterministic", "feed"])
def test_a_seed_is_a_schedule(name: str) -> None:
    first, second = Simulator(SCENARIOS[name]()), Simulator(SCENARIOS[name]())
    assert [first.record(seed) for seed in range(5)] == [second.record(seed) for seed in range(5)]
    assert first.record(1) != first.record(2)


def test_invariants_are_sentences_of_the_watches() -> None:
    assert len({invariant.__name__ for invariant in INVARIANTS}) == len(INVARIANTS) >= 15
    assert len(set(DATASET_INVARIANTS)) == len(DATASET_INVARIANTS) == 11
    watches = {type(part).__name__: type(part) for part in vars(LogWatch(Tables())).values()}
    watches |= {one.__name__: one for one in (DatasetWatch, PublishedFolder, StagingDatabase)}
    for invariant in (*INVARIANTS, *DATASET_INVARIANTS):
        owner, _, name = invariant.__qualname__.rpartition(".")
        assert getattr(watches[owner], name) is invariant, "it belongs to no watch that a LogWatch holds"
