"""One schedule: a world, a scheduler, an oracle."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from airflow_logio.protocol.replicas import is_merger
from airflow_logio.protocol.source import READ_CONNECTION
from airflow_logio.protocol.values import Port
from airflow_logio.store.rules.row_forms import READS, WRITES, read_channel
from airflow_logio.testing.simulator.actions import Action, Site
from airflow_logio.testing.simulator.drains import prefix_of
from airflow_logio.testing.simulator.oracle import (
    Records,
    aside_of,
    compare,
    difference,
    lineage_of,
    records_of,
    unordered,
)
from airflow_logio.testing.simulator.plan import Observed, Read, Scenario, UpTo, senders_of
from airflow_logio.testing.simulator.scheduler import Seeded, Undisturbed
from airflow_logio.testing.simulator.simulated_logs import log_of
from airflow_logio.testing.simulator.violation import Violation
from airflow_logio.testing.simulator.watch.log_watch import LogWatch
from airflow_logio.testing.simulator.world import World

MIN_EVENTS, MIN_COMMITS, MIN_CRASHES = 200, 50, 3
"""The least that a schedule by seed must have; a drained one is shorter."""
REMEMBERED = 200
"""Most failure-free runs over parts of the input that are kept."""


Narrate = Callable[[World, Action], Callable[[bool], None]]


@dataclass(frozen=True)
class FailedSchedule:
    """What is wrong, and the choices that led to it."""

    scenario: str
    seed: int
    invariant: str
    what: str
    trace: Sequence[Action] = field(repr=False, default=())


@dataclass(frozen=True)
class ScheduleFigures:
    """Figures of one schedule."""

    steps: int
    events: int
    commits: int
    crashes: int
    sites: Counter[Site]
    drained: bool = False
    """The run was drained, so the schedule may be short."""


@dataclass(frozen=True)
class ReferenceRun:
    """A failure-free run: its size, and its result."""

    events: int
    observed: Observed


class Simulator:
    """Runs schedules of one scenario on a log of `log_of`. Tests that break something replace `world_class`."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        world_class: type[World] = World,
        store: str = "memory",
        watch_class: type[LogWatch] = LogWatch,
    ) -> None:
        self.scenario = scenario
        self._world_class = world_class
        self._log = log_of(store)
        self._watch_class = watch_class
        self._reference: ReferenceRun | None = None
        self._parts: dict[tuple[tuple[str, UpTo], ...], Observed] = {}
        """How far sources were read → the result of a failure-free run over that part."""
        self._records: dict[tuple[tuple[str, UpTo], ...], Records] = {}
        """The same for the pipeline without replication; the empty key is for the whole input."""

    def reference(self) -> ReferenceRun:
        """The failure-free run. Raises `Violation` if even that is not what the scenario expects."""
        if self._reference is None:
            plain = Simulator(self.scenario)
            world, watch = plain.world()
            Undisturbed(world).run()
            observed = plain.observed(world, watch)
            if wrong := compare(self.scenario, observed, None):
                raise Violation("a_run_without_failures_is_right", wrong)
            self._reference = ReferenceRun(watch.events, self._settled(world, watch, observed))
            world.close()
        return self._reference

    def world(self) -> tuple[World, LogWatch]:
        """A new world, in which nothing is claimed yet."""
        log, tables = self._log()
        watch = self._watch_class(tables)
        return self._world_class(self.scenario, log, watch), watch

    def observed(self, world: World, watch: LogWatch) -> Observed:
        """What can be observed at the end of a schedule."""
        passing = _passing(world)
        # A drained run may have stored a whole effect, or none: that row has no records of its own.
        passed_over = (WRITES, read_channel(READ_CONNECTION)) if self.scenario.datasets else (WRITES,)
        ports = {
            _channel(*channel): bodies
            for channel, bodies in watch.channels.items()
            if not channel[1].startswith(passed_over) and Port(*channel) not in passing
        }
        writes = {
            f"{operator}>{connection}": [action.body for action in applied]
            for connection, system in sorted(world.systems.items())
            for (operator, _), applied in sorted(system.applied.items())
        }
        return Observed(
            ports,
            writes,
            lineage_of(watch.tables),
            world.systems,
            aside_of(watch.tables),
            len(world.effects),
            watch.expired,
            watch.read(tuple(self.scenario.sources)),
        )

    def _settled(self, world: World, watch: LogWatch, observed: Observed) -> Observed:
        """The part that can be compared with another run; regardless of order if Input Sets may come late."""
        if self.scenario.retries and self.scenario.deterministic:
            return unordered(observed, watch.logged(), senders_of(world.groups), self.scenario.codec)
        return observed

    def run(self, seed: int) -> tuple[ScheduleFigures, FailedSchedule | None]:
        """Run one schedule. The same seed gives the same schedule."""
        self.reference()
        collects = gc.isenabled()
        gc.disable()  # a world is freed at once; looking for cycles while there is one costs a third of the time
        try:
            return self._schedule(seed)
        finally:
            if collects:
                gc.enable()

    def _schedule(self, seed: int) -> tuple[ScheduleFigures, FailedSchedule | None]:
        """Frees its world before it returns."""
        reference = self.reference()
        world, watch = self.world()
        scheduler = Seeded(world, seed, reference.events)
        failure: FailedSchedule | None = None
        try:
            scheduler.run()
            self._judge(world, watch, reference)
        except Violation as error:
            failure = FailedSchedule(self.scenario.name, seed, error.invariant, error.what, tuple(scheduler.trace))
        figures = self._figures(world, watch, scheduler)
        scheduler.close()
        world.close()
        return figures, failure

    def record(self, seed: int) -> Sequence[Action]:
        """The choices of a schedule."""
        world, _ = self.world()
        scheduler = Seeded(world, seed, self.reference().events)
        scheduler.run()
        world.close()
        return tuple(scheduler.trace)

    def replay(self, seed: int, actions: Sequence[Action], narrate: Narrate | None = None) -> FailedSchedule | None:
        """Repeat the same choices, or some of them; then run to the end without failures.

        `narrate` gets every choice before it is taken, and returns a function that is told whether it was possible.
        """
        reference = self.reference()
        world, watch = self.world()
        taken: list[Action] = []
        failure: FailedSchedule | None = None
        try:
            for action in actions:
                tell = narrate(world, action) if narrate else None
                taken.append(action)
                done = False
                try:
                    done = world.perform(action)
                except Violation:
                    done = True
                    raise
                finally:
                    if tell is not None:
                        tell(done)
                if not done:
                    taken.pop()
            Undisturbed(world).run()
            self._judge(world, watch, reference)
        except Violation as error:
            failure = FailedSchedule(self.scenario.name, seed, error.invariant, error.what, tuple(taken))
        world.close()
        return failure

    def _judge(self, world: World, watch: LogWatch, reference: ReferenceRun) -> None:
        world.scaling.conclude()
        self._judge_result(world, watch, reference)
        if world.datasets is not None:
            world.datasets.conclude()

    def _judge_result(self, world: World, watch: LogWatch, reference: ReferenceRun) -> None:
        observed, wanted = self.observed(world, watch), reference.observed
        if not self.scenario.deterministic and (wrong := _unlike_the_log(observed, watch)):
            raise Violation("destinations_have_what_the_log_says", wrong)
        if self.scenario.plain is not None and self.scenario.deterministic:
            found = records_of(
                observed, watch.logged(), _senders(world), self._authored, _ordered(world), self.scenario.codec
            )
            if wrong := difference(self._plain(observed.read if world.wished else None), found):
                raise Violation("replicas_make_what_one_would_make", wrong)
            return
        if world.wished and self.scenario.deterministic:
            wanted = self._over(observed.read)
        wrong = compare(self.scenario, self._settled(world, watch, observed), wanted)
        if wrong:
            raise Violation("destinations_are_those_of_a_run_without_failures", wrong)

    def _over(self, read: Read) -> Observed:
        """The result of a failure-free run over the part of the input that was read."""
        key = tuple(sorted(read.items()))
        if key not in self._parts:
            if len(self._parts) >= REMEMBERED:
                self._parts.clear()
            self._parts[key] = Simulator(prefix_of(self.scenario, read)).reference().observed
        return self._parts[key]

    def _plain(self, read: Read | None) -> Records:
        """The result of the same pipeline without replication, over the part of the input that was read."""
        key = () if read is None else tuple(sorted(read.items()))
        if key not in self._records:
            assert self.scenario.plain is not None
            if len(self._records) >= REMEMBERED:
                self._records.clear()
            scenario = self.scenario.plain if read is None else prefix_of(self.scenario.plain, read)
            self._records[key] = Simulator(scenario).records()
        return self._records[key]

    def records(self) -> Records:
        """The result of a failure-free run, record by record. Raises `Violation` if it is not the expected one."""
        world, watch = self.world()
        Undisturbed(world).run()
        observed = self.observed(world, watch)
        if wrong := compare(self.scenario, observed, None):
            raise Violation("a_run_without_failures_is_right", wrong)
        operators = _operators(world)
        return records_of(observed, watch.logged(), _senders(world), operators, operators, self.scenario.codec)

    @cached_property
    def _authored(self) -> frozenset[str]:
        """Operators as their author named them."""
        assert self.scenario.plain is not None
        return _operators(Simulator(self.scenario.plain).world()[0])

    @staticmethod
    def _figures(world: World, watch: LogWatch, scheduler: Seeded) -> ScheduleFigures:
        return ScheduleFigures(
            len(scheduler.trace), watch.events, world.commits, world.crashes, world.sites, bool(world.wished)
        )


def _unlike_the_log(observed: Observed, watch: LogWatch) -> str:
    """What is wrong even if no two runs are alike: a write action that a destination has twice, not at all, out of order, or
    with other contents than the log. Empty if nothing is."""
    logged = {
        f"{operator}>{channel.removeprefix(WRITES)}": bodies
        for (operator, channel), bodies in watch.channels.items()
        if channel.startswith(WRITES)
    }
    for writer in sorted(logged.keys() | observed.writes.keys()):
        wanted, found = logged.get(writer, []), observed.writes.get(writer, [])
        if len(wanted) != len(found):
            return f"{writer} has applied {len(found)} write actions, and the log has {len(wanted)}"
        for number, (one, other) in enumerate(zip(wanted, found, strict=True), start=1):
            if one != other:
                return f"{writer} has applied another write action {number} than the one that the log has"
    return ""


def _channel(operator: str, name: str) -> str:
    """A port as ``operator.port``; the stored effects of side-effect reads as ``operator<connection``."""
    return f"{operator}<{name.removeprefix(READS)}" if name.startswith(READS) else f"{operator}.{name}"


def _passing(world: World) -> frozenset[Port]:
    """Ports whose events stay inside a group and are in no lineage: which of them reach the log depends on where steps end.
    What becomes of them is compared further on."""
    found: set[Port] = set()
    for plan in world.groups.values():
        traced = {spec.name: spec.lineage_out for spec in plan.operators}
        for port, receivers in plan.receivers.items():
            stays = bool(receivers) and all(to.operator in traced for to in receivers)
            if stays and port.name not in traced.get(port.operator, ()):
                found.add(port)
    return frozenset(found)


def _senders(world: World) -> Mapping[str, str]:
    return {str(receiver): str(sender) for receiver, sender in senders_of(world.groups).items()}


def _operators(world: World) -> frozenset[str]:
    return frozenset(spec.name for plan in world.groups.values() for spec in plan.operators)


def _ordered(world: World) -> frozenset[str]:
    """Mergers that keep the order; they have a state."""
    specs = [spec for plan in world.groups.values() for spec in plan.operators]
    return frozenset(spec.name for spec in specs if is_merger(spec.name) and not spec.stateless)
