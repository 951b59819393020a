"""What a simulated driver can do next, and where it would die now."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from airflow_logio.protocol.commit import CommitStep
from airflow_logio.protocol.life import LifeStep
from airflow_logio.protocol.writes import WriteStep
from airflow_logio.testing.simulator.sites import Site

if TYPE_CHECKING:
    from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
    from airflow_logio.testing.simulator.driver.threads import SimulatedWriter, Source

Option = tuple[str, object]
"""A verb and what it is about: a port, an operator, a writer."""

_BEGINNING = {
    LifeStep.OPEN: "open",
    LifeStep.ASK_SLOTS: "ask",
    LifeStep.READ: "recover",
    LifeStep.REBUILD: "rebuild",
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


@cache
def method_of(verb: str) -> str:
    """The name of a driver's method for a step, as one object: Python remembers by that where it has found a method."""
    return sys.intern(f"_{verb}")


def options_of(driver: SimulatedDriver) -> list[Option]:
    """Steps that would change something, in the order in which an undisturbed driver takes them."""
    if not driver.is_alive:
        return []
    if not driver.is_registered:
        return [("register", None)]
    wants = driver.life.wants
    if wants is LifeStep.RUN:
        out = _running(driver)
        if driver.plan.name in driver.world.to_halt and not driver.is_replaced:
            out.insert(0, ("halt" if driver.halts else "beat", None))
        if driver.world.wished and not driver.loop.draining:
            _wishes(driver, out)
        return out if driver.ready or not driver.plan.replica_of else [("beat", None), *out]
    if wants is LifeStep.WAIT:
        return [("check", None)] if driver.ready else [("beat", None), ("check", None)]
    if wants in (LifeStep.STOP, LifeStep.HALT):
        return [*_transaction(driver), *_acting(driver), ("join", None)]
    return [(_BEGINNING[wants], None)]


def _running(driver: SimulatedDriver) -> list[Option]:
    out = _transaction(driver)
    _writing(driver, out)
    _inputs(driver, out)
    if driver.jobs:
        _generating(driver, out)
    if driver.held_up.is_full() and not driver.held_up.lags():
        out.append(("wait", None))
    if driver.loop.has_step:
        out.append(("close", None))
    elif driver.loop.is_finished():
        out.append(("finish", None))
    elif not out and (driver.plan.replica_of or driver.world.scenario.retries):
        out.append(("check", None))
    return out


def _writing(driver: SimulatedDriver, out: list[Option]) -> None:
    for key, writer in driver.writers.items():
        wants = writer.wants
        if wants is WriteStep.COMPARE or wants is WriteStep.APPLY:
            if not driver.is_replaced or not driver.world.scenario.crash_stop:
                out.append(("apply", key))
        elif wants is WriteStep.REPORT:
            out.append(("note_writes", key))
        elif writer.pending:
            out.append(("take_writes", key))


def _wishes(driver: SimulatedDriver, out: list[Option]) -> None:
    """What an undisturbed driver does before anything else. It hears a wish with its next heartbeat."""
    if driver.heard:
        if not driver.loop.finishing:
            out.insert(0, ("drain", None))
    elif driver.plan.name in driver.world.wished and not driver.is_replaced:
        out.insert(0, ("beat", None))


def _transaction(driver: SimulatedDriver) -> list[Option]:
    committer = driver.committer
    if committer.wants is None:
        return [("take", None)] if committer.steps and driver.is_running else []
    if committer.wants is CommitStep.HAND_OVER:
        return [("hand_over", None)]
    if not driver.is_in_doubt:
        return [("commit", None)]
    return [] if not driver.may_read_back() and driver.world.is_in_doubt(driver) else [("resolve", None)]


def _acting(driver: SimulatedDriver) -> list[Option]:
    """What is still on its way to external systems when the group stops."""
    if driver.is_replaced and driver.world.scenario.crash_stop:
        return []
    return [("apply", key) for key, writer in driver.writers.items() if writer.wants is WriteStep.APPLY]


def _inputs(driver: SimulatedDriver, out: list[Option]) -> None:
    known = driver.world.known
    for port, cursor in driver.cursors.items():
        if known.get(port, 0) > cursor:
            out.append(("fetch", port))
    observes = driver.observes()
    operators = driver.protocol.operators
    if driver.evaluating is not None:
        out += [("evaluate", port) for port, events in driver.evaluating.arriving.items() if events]
        if driver.evaluating.removals:
            out.append(("remove", None))
    for port, events in driver.inbox.items():
        if events and observes and (operators[port.operator].order is None or driver.has_its_turn(port)):
            out.append(("deliver", port))
    _reading(driver, observes, out)


def _reading(driver: SimulatedDriver, observes: bool, out: list[Option]) -> None:
    for name, source in driver.reading.sources.items():
        if observes and source.obtained is not None:
            out.append(("note_effect", name))
        elif observes and source.inbox:
            out.append(("emit", name))
        elif observes and not source.has_more:
            out.append(("end_source", name))
        if source.storing is not None or source.evaluating:
            out.append(("advance", name))
        if source.may_read:
            out.append(("read", name))
    for drop in driver.reading.drops:
        out.append(("discard", drop))


def _generating(driver: SimulatedDriver, out: list[Option]) -> None:
    for name, job in driver.jobs.items():
        if job is None:
            if driver.protocol.operators[name].next_triggered():
                out.append(("start_job", name))
        else:
            out.append(("run_job" if job.ended is None else "note_job", name))


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
