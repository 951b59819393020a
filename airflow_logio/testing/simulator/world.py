"""The world of one schedule: the log, the external systems, and the groups with all drivers: dead, alive and undead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from airflow_logio.errors import EpochVoid, Fenced, LogioError, Park
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.effects import ExpireLineage, Kept, SweepShared
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, GroupRef
from airflow_logio.store.records.run_records import OperatorShape, RunKey, RunSpec
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.testing.simulator.actions import Action, Incarnation, Site, Verb
from airflow_logio.testing.simulator.datasets import DatasetWorld
from airflow_logio.testing.simulator.driver.options import Option, options_of, sites_of
from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from airflow_logio.testing.simulator.driver.sources import StoredEffect
from airflow_logio.testing.simulator.external_systems import ExternalSystem
from airflow_logio.testing.simulator.offers import SimulatedOffers
from airflow_logio.testing.simulator.plan import Batch, GroupPlan, Scenario, Sweep, senders_of
from airflow_logio.testing.simulator.scaling import Scaling, applications
from airflow_logio.testing.simulator.violation import Violation
from airflow_logio.testing.simulator.watch.log_watch import LogWatch

MAX_ZOMBIES = 2
RETRIES = 3
"""Most retries of an Input Set. If its operator always raises, it stays quarantined."""


class World:
    """`perform` takes one action. If the action is not possible now, it does nothing and returns False.

    Raises `Violation` if something happened that must not happen.
    """

    driver_class: type[SimulatedDriver] = SimulatedDriver

    def __init__(self, scenario: Scenario, store: LogStore, watch: LogWatch) -> None:
        self.scenario = scenario
        self.store = store
        self.watch = watch
        self.systems: dict[str, ExternalSystem] = {name: make() for name, make in scenario.externals.items()}
        self.groups = {plan.name: plan for plan in scenario.groups(self.systems)}
        """Groups as the author sees them. A replicated group is one, with the operators of all slots."""
        self.plans = applications(self.groups, scenario.replicated)
        """Units that are claimed and recovered separately: groups, and each replica of a replicated group."""
        specs = [spec for plan in self.groups.values() for spec in plan.operators]
        asks_log = scenario.retries or scenario.drains or scenario.replicated or any(spec.closes for spec in specs)
        self.run = store.start_run(
            RunSpec(
                RunKey(scenario.name, "simulation", "schedule"),
                "simulated",
                "",
                tuple(self.plans),
                {},
                {},
                "graph",
                "code",
                RecoveryBudget(recoveries=1_000_000),
                operators=_shapes(self.groups) if asks_log else {},
                replicated=scenario.replicated,
            )
        )
        self.watch.begin(
            self.groups, self.systems, _from_log(self.groups), scenario.retention, scenario.kept, scenario.replicated
        )
        self.replayed = {spec.name: spec.logic for spec in specs if spec.replay and spec.logic is not None}
        """Replay operators → their logic."""
        self.offers = SimulatedOffers(scenario.codec, watch.bodies)
        self.is_bounded = not scenario.replicated and not any(spec.port_order for spec in specs)
        """Senders wait for receivers that lag."""
        self.sweeps = _sweeps_of(scenario, self.groups)
        """Sweeps of the last group, which finishes last."""
        self.with_sources = [
            name for name, plan in self.plans.items() if any(not spec.inputs for spec in plan.operators)
        ]
        self.drivers: dict[str, list[SimulatedDriver]] = {name: [] for name in self.plans}
        self.incarnations = dict.fromkeys(self.plans, 0)
        self.scaling: Scaling = Scaling(self)
        self.to_claim = {name: name not in self.scaling.retired for name in self.plans}
        self.finished: set[str] = set()
        self.wished: set[str] = set()
        """Groups that were asked to drain."""
        self._halted: set[str] = set()
        """Groups that a person launches: a retry has taken back their end, they were asked to halt, or they have parked."""
        self._parked: set[str] = set()
        """Groups that wait for a person to retry what their writers lack."""
        self.to_halt: set[str] = set()
        """Groups that were asked to halt, and have not: their drivers die before they hear it, or halt."""
        self.known: dict[Port, int] = {}
        """Receiver port → greatest event_id that is logged for it, so that fetching may find something."""
        self.datasets: DatasetWorld | None = None if scenario.datasets is None else scenario.datasets(self)
        """What a scenario with datasets brings: its payload store, above all."""
        if self.datasets is not None:
            self.watch.contents = self.datasets.watch
        self.effects: dict[str, list[Batch]] = {}
        """Payload store: reference → stored effect of a non-replayable read action."""
        self.commits = 0
        self.crashes = 0
        self.sites: Counter[Site] = Counter()
        self._readings: Counter[str] = Counter()
        self._tries: Counter[tuple[str, ...]] = Counter()
        """(operator, Input Set) → how often it was retried."""
        self._doubts: dict[str, tuple[Incarnation, fx.Effects]] = {}

    # --- the scheduler's side -----------------------------------------------------------------------------------------

    def is_over(self) -> bool:
        """Whether every group has finished, and knows it or is dead, and nothing is left to retry."""
        return (
            len(self.finished | self.scaling.retired) == len(self.plans)
            and not any(drivers and drivers[-1].is_alive for drivers in self.drivers.values())
            and not self.may_retry()
            and self.scaling.is_over()
        )

    def may_retry(self) -> bool:
        tries = self._tries
        return self.scenario.retries and any(tries[one[1:]] < RETRIES for one in self.watch.tables.quarantine)

    def newest(self, group: str) -> SimulatedDriver | None:
        drivers = self.drivers[group]
        return drivers[-1] if drivers else None

    def options(self, driver: SimulatedDriver) -> list[Option]:
        """Steps of a driver that would change something, in the order in which an undisturbed driver takes them."""
        return options_of(driver)

    def leave(self, driver: Incarnation) -> bool:
        """A replica without slots takes itself out of use, if all slots are done."""
        return self.scaling.leave(driver)

    def zombies(self, group: str) -> list[SimulatedDriver]:
        """Replaced drivers that do not know it."""
        return [driver for driver in self.drivers[group][:-1] if driver.is_alive]

    def perform(self, action: Action) -> bool:
        """Take one action of a schedule."""
        if action.verb in _SUPERVISION:
            return _SUPERVISION[action.verb](self, action)
        drivers = self.drivers[action.group]
        if action.age >= len(drivers):
            return False
        driver = drivers[-1 - action.age]
        if not driver.is_alive:
            return False
        try:
            return driver.perform(action)
        except Fenced as error:
            self._refused(driver, error)
        except EpochVoid:
            driver.void()
        except Violation:
            raise
        except Exception as error:
            self._failed(driver, error)
        return True

    # --- the driver's side --------------------------------------------------------------------------------------------

    def commit(self, driver: Incarnation, effects: fx.Effects) -> tuple[Collected, ...]:
        """The log's part of a commit, which then is visible to all. Returns what its garbage collection has done."""
        collected = driver.session.commit(effects)
        self.watch.after_commit(driver, effects)
        self.commits += 1
        known = self.known
        for effect in effects:
            if type(effect) is fx.LogEvent:
                for delivery in effect.deliveries:
                    known[delivery.receiver] = effect.event.event_id
            elif type(effect) is fx.FinishGroup:
                self.finished.add(driver.plan.name)
        return collected

    def doubt(self, driver: Incarnation, effects: fx.Effects) -> None:
        """The connection breaks inside the transaction, which holds the fence row until the database has decided."""
        driver.session.check()  # the fence statement of the transaction has passed
        self._doubts[driver.plan.name] = (driver, effects)

    def is_locked(self, group: str) -> bool:
        return group in self._doubts

    def is_in_doubt(self, driver: Incarnation) -> bool:
        doubt = self._doubts.get(driver.plan.name)
        return doubt is not None and doubt[0] is driver

    def count_reading(self, driver: Incarnation, name: str, action_id: int) -> int:
        """A driver is about to read a source that is not replayable: the number of this reading, which never repeats."""
        if not driver.is_replaced:
            self.watch.a_complete_read_action_is_never_read_again(name, action_id)
        self._readings[name] += 1
        return self._readings[name]

    # --- supervision --------------------------------------------------------------------------------------------------

    def _claim(self, action: Action) -> bool:
        """Launch the next incarnation. The claim waits for the fence row, like any other transaction."""
        group = action.group
        if not self.to_claim[group] or group in self.finished or self.is_locked(group):
            return False
        expected, by_user = self.incarnations[group], group in self._halted
        self.to_claim[group] = False
        if group in self.scaling.retired:
            return self.scaling.is_not_recovered(group)
        claim = self.store.claim(self.run.run_id, group, expected=expected, reason="simulated", by_user=by_user)
        self._halted.discard(group)
        self.to_halt.discard(group)
        self.begin(group, claim)
        return True

    def begin(self, group: str, claim: Claim) -> None:
        """Start the process of a claim."""
        self.incarnations[group] = claim.incarnation
        self.drivers[group].append(self.driver_class(self, self.plans[group], claim))
        for driver in self.drivers[group][: -1 - MAX_ZOMBIES]:
            driver.end()

    def _crash(self, action: Action) -> bool:
        driver = self.newest(action.group)
        if driver is None or not driver.is_alive:
            return False
        self.sites.update(sites_of(driver))
        self.crashes += 1
        driver.end()
        self._declare_dead(driver)
        return True

    def _suspect(self, action: Action) -> bool:
        """A supervisor considers a live driver dead. From the next claim on, it is a zombie."""
        driver = self.newest(action.group)
        if driver is None or not driver.is_alive or driver.is_replaced or self.to_claim[action.group]:
            return False
        self.crashes += 1
        self.sites.update(sites_of(driver))
        self._declare_dead(driver)
        return True

    def _declare_dead(self, driver: SimulatedDriver) -> None:
        group = driver.plan.name
        if driver.is_replaced:
            return  # by a claim whose driver has not started yet
        self.store.declare_dead(GroupRef(self.run.run_id, group, driver.number), "simulated")
        self.to_claim[group] = group not in self.finished

    def _kill(self, action: Action) -> bool:
        drivers, age = self.drivers[action.group], action.age
        if not 0 < age < len(drivers) or not drivers[-1 - age].is_alive:
            return False
        drivers[-1 - age].end()
        return True

    def _sweep(self, action: Action) -> bool:
        """Remove payloads that the log does not name, if their incarnation is fenced or its group has finished."""
        if self.datasets is not None:
            self.datasets.sweep(action.group, action.many)
            return True
        named = self.watch.references()
        for path in list(self.effects):
            effect = StoredEffect.of(path)
            fenced = effect.incarnation < self.incarnations[effect.group] or effect.group in self.finished
            if fenced and path not in named:
                del self.effects[path]
        return True

    def _gc(self, action: Action) -> bool:
        """A person types `logio gc`, once or again, or the process takes another step; `about` is which process."""
        if self.datasets is None or not isinstance(action.about, int) or not self.is_over():
            return False
        self.datasets.collect(action.about, action.many, dies=action.outcome == "dies")
        return True

    def _decide(self, action: Action) -> bool:
        """The database ends a transaction whose client is gone; it commits or rolls back."""
        if action.group not in self._doubts:
            return False
        driver, effects = self._doubts.pop(action.group)
        if action.outcome == "commit":
            try:
                self.commit(driver, effects)
            except LogioError as error:  # its statements had passed, so only a defect can refuse it
                raise Violation("no_group_is_parked", f"{action.group}: {error}") from error
        return True

    def _intrude(self, action: Action) -> bool:
        """A driver of an earlier run keeps writing to a table; `about` is (connection, which of them)."""
        connection, number = action.about if isinstance(action.about, tuple) else ("", 0)
        earlier = self.systems[connection].earlier
        if number >= len(earlier):
            return False
        earlier[number].advance(action.many)
        return True

    def databases(self) -> list[str]:
        """The connections whose databases have staging tables."""
        return [name for name, system in self.systems.items() if system.stages]

    def _server(self, action: Action) -> bool:
        """A server of staging tables crashes, or commits what a task attempt has loaded that has lost."""
        system = self.systems[str(action.about)]
        return system.crash() if action.outcome == "crash" else system.commit_late()

    def earlier_runs(self) -> list[tuple[str, int]]:
        """The drivers of earlier runs, as `_intrude` names them."""
        return [(name, number) for name, system in self.systems.items() for number in range(len(system.earlier))]

    def _wish(self, action: Action) -> bool:
        """A person asks a group with sources to drain, again or for the first time. Waits for the fence row."""
        group = action.group
        if group not in self.with_sources or group in self.finished or group in self._halted or self.is_locked(group):
            return False
        self.store.request(self.run.run_id, group, GroupState.DRAINING)
        self.wished.add(group)
        newest = self.newest(group)
        waits = newest is not None and newest.is_alive and not newest.is_registered
        self.watch.asked_to_drain(group, self.incarnations[group] + (not waits))
        return True

    def _stop(self, action: Action) -> bool:
        """A person asks a group to halt, and launches it again when it has. Waits for the fence row."""
        group, newest = action.group, self.newest(action.group)
        busy = group in self.wished or group in self.finished or self.to_claim[group] or self.is_locked(group)
        if busy or self.scenario.replicated or newest is None or not newest.is_running or newest.loop.finishing:
            return False
        self.store.request(self.run.run_id, group, GroupState.HALTED)
        self.to_halt.add(group)
        self._halted.add(group)
        return True

    def has_halted(self, driver: Incarnation) -> None:
        """Its threads are joined; if it was not replaced meanwhile, the log says that it has halted."""
        group = driver.plan.name
        if self.store.halted(driver.session.ref) and not driver.is_replaced:
            self.to_claim[group] = True
        driver.end()

    def has_parked(self, driver: Incarnation) -> None:
        """Its writer lacks Input Sets that are set aside, or so the log said when it was asked."""
        group, run_id = driver.plan.name, self.run.run_id
        if not any(run == run_id for run, _, _ in self.watch.tables.quarantine):
            raise Violation("a_group_parks_for_what_is_set_aside", f"{group} has parked, and nothing is set aside")
        self._parked.add(group)
        self.to_claim[group] = False  # it may have been declared dead before: no supervisor recovers it now
        driver.end()

    def _retry(self, _action: Action) -> bool:
        """A person puts quarantined Input Sets back, and launches what had finished. Waits for the fence rows of all."""
        if self._doubts or not self.may_retry():
            return False
        with self.watch.retrying():
            retried = self.store.retry_quarantined(self.run.run_id)
        self._tries.update((one.operator, one.inset_id) for one in retried.input_sets)
        self.watch.reopened.update(retried.to_launch)
        to_launch, self._parked = {*retried.to_launch, *self._parked}, set()
        for group in sorted(to_launch):
            self.finished.discard(group)
            self.scaling.retired.discard(group)
            self._halted.add(group)
            self.to_claim[group] = True
        return True

    def _refused(self, driver: SimulatedDriver, error: Fenced) -> None:
        """Refused by the log, or by an external system that a slot's new owner has written to. The epoch is then void."""
        if driver.slots is not None:
            if driver.is_stopping:
                return  # a writer whose driver no longer listens
            if driver.is_running and self._is_void(driver):
                return
        self._fenced(driver, error)

    def _fenced(self, driver: SimulatedDriver, error: Fenced) -> None:
        name = driver.plan.name
        if not driver.is_replaced and not self.to_claim[name] and name not in self.scaling.retired:
            raise Violation("only_the_replaced_are_fenced", f"{driver.plan.name}: {error}") from error
        driver.end()

    def _failed(self, driver: SimulatedDriver, error: Exception) -> None:
        """A zombie that reads what others have changed may fail in any way. When it parks its group, it is refused."""
        if driver.is_replaced and isinstance(error, Park):
            try:
                driver.session.park(str(error))
            except Fenced:
                driver.end()
                return
        if driver.slots is not None and self._is_void(driver):
            return
        kind = "no_group_is_parked" if isinstance(error, LogioError) else "no_step_raises"
        what = f"{driver.plan.name}, incarnation {driver.number}: {type(error).__name__}: {error}"
        raise Violation(kind, what) from error

    @staticmethod
    def _is_void(driver: SimulatedDriver) -> bool:
        """An inconsistency that a replica finds may be the work of another one that has got a slot (`GroupEpoch.run`)."""
        try:
            driver.session.check()
        except EpochVoid:
            driver.void()
            return True
        except Fenced:
            driver.end()
            return True
        return False

    def close(self) -> None:
        """Drop all references: cycles would wait for the garbage collector."""
        self.drivers.clear()
        self.scaling.close()
        self.offers.close()
        self._doubts.clear()
        for system in self.systems.values():
            system.close()
        self.watch.close()


_SUPERVISION: Mapping[Verb, Callable[[World, Action], bool]] = {
    Verb.CLAIM: World._claim,
    Verb.CRASH: World._crash,
    Verb.SUSPECT: World._suspect,
    Verb.KILL: World._kill,
    Verb.DECIDE: World._decide,
    Verb.SWEEP: World._sweep,
    Verb.GC: World._gc,
    Verb.INTRUDE: World._intrude,
    Verb.SERVER: World._server,
    Verb.STOP: World._stop,
    Verb.RETRY: World._retry,
    Verb.WISH: World._wish,
    Verb.REQUEST: lambda world, action: world.scaling.request(action.group, action.about),
    Verb.EMPLOY: lambda world, action: world.scaling.employ(action.group, action.many, action.about),
    Verb.EXECUTE: lambda world, action: world.scaling.execute(action.about, action.many),
    Verb.DISMISS: lambda world, action: world.scaling.dismiss(action.about),
    Verb.SUPERVISE: lambda world, _action: world.scaling.supervise(),
    Verb.OVERDUE: lambda world, action: world.scaling.overdue(action.group),
    Verb.PLACE: lambda world, action: world.scaling.place(action.group, action.about),
    Verb.REVIVE: lambda world, action: world.scaling.revive(action.group),
    Verb.END: lambda world, _action: world.scaling.end_run(),
}


# --- what a scenario's plans say --------------------------------------------------------------------------------------


def _shapes(plans: Mapping[str, GroupPlan]) -> dict[str, OperatorShape]:
    """The graph as the log keeps it. A retry looks up the ends of streams behind an Input Set in it."""
    senders = senders_of(plans)
    return {
        spec.name: OperatorShape(
            plan.name, {port: str(senders[Port(spec.name, port)]) for port in spec.inputs}, spec.outputs
        )
        for plan in plans.values()
        for spec in plan.operators
    }


def _sweeps_of(scenario: Scenario, plans: Mapping[str, GroupPlan]) -> Sequence[Sweep]:
    """As `driver/garbage.py`, but without an order: every batch must be harmless at any time."""
    if scenario.retention is None:
        return ()
    if scenario.sweeps is not None:
        return scenario.sweeps
    return [*_expiring(plans, scenario.retention), *_shared(plans)]


def _expiring(plans: Mapping[str, GroupPlan], retention: float) -> Iterator[Sweep]:
    def expiry(operator: str, kept: Kept, name: str = "", ports: tuple[str, ...] = ()) -> Sweep:
        return lambda limit: ExpireLineage(operator, kept, retention, 0, limit, name, ports)

    for plan in plans.values():
        for spec in plan.operators:
            ports = tuple(sorted(spec.lineage_out))
            for port in ports:
                yield expiry(spec.name, Kept.EVENTS, port)
            if ports and not spec.inputs:
                yield expiry(spec.name, Kept.SOURCE_READS, ports=ports)
            if ports and spec.reads_state:
                yield expiry(spec.name, Kept.STATES)


def _shared(plans: Mapping[str, GroupPlan]) -> Iterator[Sweep]:
    group_of = {spec.name: plan.name for plan in plans.values() for spec in plan.operators}
    kept = {Port(spec.name, port) for plan in plans.values() for spec in plan.operators for port in spec.lineage_out}

    def sweep(sender: Port) -> Sweep:
        return lambda limit: SweepShared(sender, 0, limit)

    for plan in plans.values():
        for sender, receivers in plan.receivers.items():
            if sender not in kept and len({group_of[receiver.operator] for receiver in receivers}) > 1:
                yield sweep(sender)


def _from_log(plans: Mapping[str, GroupPlan]) -> frozenset[tuple[str, str]]:
    """Input ports whose events come from the log."""
    return frozenset(
        (port.operator, port.name)
        for plan in plans.values()
        for port in GroupProtocol(plan.operators, plan.receivers, plan.lineage_in).inputs_from_log()
    )
