"""What a simulated driver can do next, and where it would die now."""

from __future__ import annotations

from airflow_logio.protocol.commit import CommitStep
from airflow_logio.protocol.life import LifeStep
from airflow_logio.protocol.writes import WriteStep
from airflow_logio.testing.simulator.actions import Site, Verb
from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from airflow_logio.testing.simulator.driver.sources import Source
from airflow_logio.testing.simulator.driver.writing import SimulatedWriter

Option = tuple[Verb, object]
"""A verb and what it is about: a port, an operator, a writer."""

_BEGINNING = {
    LifeStep.OPEN: Verb.OPEN,
    LifeStep.ASK_SLOTS: Verb.ASK,
    LifeStep.READ: Verb.RECOVER,
    LifeStep.REBUILD: Verb.REBUILD,
}
_BEGINNING_SITES = {
    LifeStep.OPEN: Site.AFTER_REGISTER,
    LifeStep.ASK_SLOTS: Site.BEFORE_RECOVERY,
    LifeStep.READ: Site.BEFORE_RECOVERY,
    LifeStep.REBUILD: Site.IN_RECOVERY,
    LifeStep.WAIT: Site.IDLE,
    LifeStep.STOP: Site.EPOCH_VOID,
    LifeStep.HALT: Site.HALTING,
}


def options_of(driver: SimulatedDriver) -> list[Option]:
    """Steps that would change something, in the order in which an undisturbed driver takes them."""
    if not driver.is_alive:
        return []
    if not driver.is_registered:
        return [(Verb.REGISTER, None)]
    wants = driver.life.wants
    if wants is LifeStep.RUN:
        out = _running(driver)
        if driver.plan.name in driver.world.to_halt and not driver.is_replaced:
            out.insert(0, (Verb.HALT if driver.halts else Verb.BEAT, None))
        if driver.world.wished and not driver.loop.draining:
            _wishes(driver, out)
        return out if driver.ready or not driver.plan.replica_of else [(Verb.BEAT, None), *out]
    if wants is LifeStep.WAIT:
        return [(Verb.CHECK, None)] if driver.ready else [(Verb.BEAT, None), (Verb.CHECK, None)]
    if wants in (LifeStep.STOP, LifeStep.HALT):
        return [*_transaction(driver), *_acting(driver), (Verb.JOIN, None)]
    return [(_BEGINNING[wants], None)]


def _running(driver: SimulatedDriver) -> list[Option]:
    if driver.short:
        return [(Verb.PARK, None)]
    out = _transaction(driver)
    _writing(driver, out)
    _inputs(driver, out)
    if driver.jobs:
        _generating(driver, out)
    if driver.back_pressure.is_full() and not driver.back_pressure.lags():
        out.append((Verb.WAIT, None))
    if driver.loop.has_step:
        out.append((Verb.CLOSE, None))
    elif driver.loop.to_close():
        out.append((Verb.CLOSE_WRITER, None))
    elif driver.loop.is_finished():
        out.append((Verb.FINISH, None))
    elif not out and (driver.plan.replica_of or driver.world.scenario.retries):
        out.append((Verb.CHECK, None))
    return out


def _writing(driver: SimulatedDriver, out: list[Option]) -> None:
    for key, writer in driver.writers.items():
        wants = writer.wants
        if wants is WriteStep.COMPARE or wants is WriteStep.APPLY:
            if not driver.is_replaced or not driver.world.scenario.crash_stop:
                out.append((Verb.APPLY, key))
        elif wants is WriteStep.REPORT:
            out.append((Verb.NOTE_WRITES, key))
        elif writer.pending:
            out.append((Verb.TAKE_WRITES, key))


def _wishes(driver: SimulatedDriver, out: list[Option]) -> None:
    """What an undisturbed driver does before anything else. It hears a wish with its next heartbeat."""
    if driver.heard:
        if not driver.loop.finishing:
            out.insert(0, (Verb.DRAIN, None))
    elif driver.plan.name in driver.world.wished and not driver.is_replaced:
        out.insert(0, (Verb.BEAT, None))


def _transaction(driver: SimulatedDriver) -> list[Option]:
    committer = driver.committer
    if committer.wants is None:
        return [(Verb.TAKE, None)] if committer.steps and driver.is_running else []
    if committer.wants is CommitStep.HAND_OVER:
        return [(Verb.HAND_OVER, None)]
    if not driver.is_in_doubt:
        return [(Verb.COMMIT, None)]
    return [] if not driver.may_read_back() and driver.world.is_in_doubt(driver) else [(Verb.RESOLVE, None)]


def _acting(driver: SimulatedDriver) -> list[Option]:
    """What is still on its way to external systems when the group stops."""
    if driver.is_replaced and driver.world.scenario.crash_stop:
        return []
    return [(Verb.APPLY, key) for key, writer in driver.writers.items() if writer.wants is WriteStep.APPLY]


def _inputs(driver: SimulatedDriver, out: list[Option]) -> None:
    known = driver.world.known
    for port, cursor in driver.cursors.items():
        if known.get(port, 0) > cursor:
            out.append((Verb.FETCH, port))
    observes = driver.observes()
    operators = driver.protocol.operators
    if driver.evaluating is not None:
        out += [(Verb.EVALUATE, port) for port, events in driver.evaluating.arriving.items() if events]
        if driver.evaluating.removals:
            out.append((Verb.REMOVE, None))
    for port, events in driver.inbox.items():
        if events and observes and (operators[port.operator].order is None or driver.has_its_turn(port)):
            out.append((Verb.DELIVER, port))
    _reading(driver, observes, out)


def _reading(driver: SimulatedDriver, observes: bool, out: list[Option]) -> None:
    for name, source in driver.reading.sources.items():
        if observes and source.obtained is not None:
            out.append((Verb.NOTE_EFFECT, name))
        elif observes and source.inbox:
            out.append((Verb.EMIT, name))
        elif observes and not source.has_more:
            out.append((Verb.END_SOURCE, name))
        if source.storing is not None or source.evaluating:
            out.append((Verb.ADVANCE, name))
        if source.may_read:
            out.append((Verb.READ, name))
    for drop in driver.reading.drops:
        out.append((Verb.DISCARD, drop))


def _generating(driver: SimulatedDriver, out: list[Option]) -> None:
    for name, job in driver.jobs.items():
        if job is None:
            if driver.protocol.operators[name].next_triggered():
                out.append((Verb.START_JOB, name))
        else:
            out.append((Verb.RUN_JOB if job.ended is None else Verb.NOTE_JOB, name))


def sites_of(driver: SimulatedDriver) -> list[Site]:
    """Where it would die now, thread by thread."""
    if not driver.is_registered:
        return [Site.BEFORE_REGISTER]
    if (wants := driver.life.wants) is not LifeStep.RUN:
        return [_BEGINNING_SITES[wants]]
    found = _commit_sites(driver)
    if driver.heard:
        found.append(Site.AFTER_DRAIN if driver.drained else Site.BEFORE_DRAIN)
    if driver.fresh:
        found.append(Site.AFTER_RECOVERY)
    if driver.committer.steps:
        found.append(Site.STEP_QUEUED)
    if driver.loop.has_step:
        found.append(Site.IN_STEP)
    found += [_write_site(writer) for writer in driver.writers.values() if writer.wants is not None]
    found += [_reading_site(driver, name, source) for name, source in driver.reading.sources.items()]
    found += [Site.BEFORE_DROP for _ in driver.reading.drops] + [Site.AFTER_DROP for _ in driver.reading.dropped]
    if driver.evaluating is not None:
        evaluated = any(driver.evaluating.arriving.values())
        evaluated = evaluated or any(source.evaluating for source in driver.reading.sources.values())
        found += [Site.IN_EVALUATION] if evaluated else []
        found += [Site.IN_REMOVAL] if driver.evaluating.removals else []
    found += [Site.BEFORE_JOB if job.ended is None else Site.AFTER_JOB for job in driver.jobs.values() if job]
    return found or [Site.IDLE]


def _commit_sites(driver: SimulatedDriver) -> list[Site]:
    wants = driver.committer.wants
    if wants is None:
        return []
    committed = wants is CommitStep.HAND_OVER
    if committed:
        found = [Site.AFTER_COMMIT]
    elif driver.is_in_doubt:
        found = [Site.IN_DOUBT if driver.world.is_in_doubt(driver) else Site.COMMIT_UNKNOWN]
    else:
        found = [Site.BEFORE_COMMIT]
    if driver.loop.finishing:
        found.append(Site.AFTER_FINISH if committed else Site.BEFORE_FINISH)
    return found


def _write_site(writer: SimulatedWriter) -> Site:
    if writer.wants is WriteStep.REPORT:
        return Site.AFTER_WRITE
    return Site.WRITE_UNKNOWN if writer.tried else Site.BEFORE_WRITE


def _reading_site(driver: SimulatedDriver, name: str, source: Source) -> Site:
    if source.obtained is not None:
        return Site.AFTER_STORE
    if source.stored is None and not driver.protocol.source(name).spec.replayable:
        return Site.BEFORE_STORE
    return Site.AFTER_READ if source.inbox else Site.BEFORE_READ
