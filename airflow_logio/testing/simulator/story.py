"""Tells a schedule as a story: one sentence per choice, in the terms of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.testing.simulator.actions import Action, Verb
from airflow_logio.testing.simulator.driver.options import sites_of
from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from airflow_logio.testing.simulator.scaling import Move, Work
from airflow_logio.testing.simulator.simulation import FailedSchedule, Simulator
from airflow_logio.testing.simulator.world import World


def tell(simulator: Simulator, failure: FailedSchedule) -> list[str]:
    """The sentences of a failing schedule; the last one says what is wrong."""
    sentences: list[str] = []
    reading: tuple[str, int] | None = None

    def narrate(world: World, action: Action) -> Callable[[bool], None]:
        sentence = _sentence(world, action)

        def performed(done: bool) -> None:
            nonlocal reading
            if not done:
                return
            on = (action.group, action.age) if action.verb in (Verb.READ, Verb.EMIT) else None
            if on is None or on != reading:  # repeated reads of a source are one sentence
                sentences.append(sentence)
            reading = on

        return performed

    simulator.replay(failure.seed, failure.trace, narrate)
    sentences.append("From here on nothing fails: every driver does its work until the end.")
    return [*sentences, f"Then: {failure.invariant.replace('_', ' ')} — violated: {failure.what}"]


def _sentence(world: World, action: Action) -> str:
    if action.verb in _SUPERVISION:
        return _SUPERVISION[action.verb](world, action)
    drivers = world.drivers[action.group]
    if action.age >= len(drivers):
        return ""
    driver = drivers[-1 - action.age]
    zombie = ", replaced without knowing it" if driver.is_replaced else ""
    actor = f"group {action.group}, incarnation {driver.number}{zombie}"
    return f"{actor}: {_TELL[action.verb](driver, action)}"


# --- what others do to a group ----------------------------------------------------------------------------------------


def _claim(world: World, action: Action) -> str:
    number = world.incarnations[action.group] + 1
    old = [str(driver.number) for driver in world.drivers[action.group] if driver.is_alive]
    left = f"; incarnation {', '.join(old)} is alive and does not know it" if old else ""
    return f"group {action.group}: incarnation {number} is claimed{left}"


def _crash(world: World, action: Action) -> str:
    driver = world.newest(action.group)
    where = ", ".join(site.value.replace("_", " ") for site in sites_of(driver)) if driver else ""
    return f"group {action.group}, incarnation {driver.number if driver else '?'}: CRASHES ({where})"


def _suspect(world: World, action: Action) -> str:
    return f"group {action.group}, incarnation {world.incarnations[action.group]}: is considered dead, but is alive"


def _decide(_world: World, action: Action) -> str:
    how = "commits" if action.outcome == "commit" else "rolls back"
    return f"group {action.group}: the database {how} the transaction whose connection broke"


def _move(action: Action) -> str:
    assert isinstance(action.about, Move)
    slots = ", ".join(f"{number} to {owner or 'no replica'}" for number, owner in action.about.placement) or "none"
    retired = f", and {', '.join(action.about.retire)} retires" if action.about.retire else ""
    return f"slots of {action.group} are placed by hand: {slots}{retired}"


def _work(world: World, action: Action) -> str:
    work = action.about
    assert isinstance(work, Work)
    if work.role == "supervisor":
        return f"executor {action.many}, a supervisor, begins to look"
    key = f", with key {work.key!r}" if work.key else ""
    asks = f"{work.replicas} replica(s) of {action.group}{key}"
    if action.verb is Verb.REQUEST:
        return f"a {work.role} asks for {asks}"
    return f"executor {action.many}, a {work.role}, begins, for {asks}"


def _executor(world: World, action: Action) -> str:
    executor = world.scaling.executors.get(action.about)
    if executor is None:
        return f"executor {action.about} is gone"
    carried = executor.carrying or executor.request
    what = f"request {carried.request_id}" if carried else "no request yet"
    return f"executor {action.about}, a {executor.work.role} ({what})"


_SUPERVISION: dict[Verb, Callable[[World, Action], str]] = {
    Verb.CLAIM: _claim,
    Verb.CRASH: _crash,
    Verb.SUSPECT: _suspect,
    Verb.DECIDE: _decide,
    Verb.KILL: lambda _world, action: f"group {action.group}: an old driver is killed",
    Verb.INTRUDE: lambda _world, action: (
        f"a driver of an earlier run keeps writing to {action.about}, up to {action.many} steps"
    ),
    Verb.STOP: lambda _world, action: f"a person asks group {action.group} to halt",
    Verb.RETRY: lambda _world, _action: "a person retries all quarantined Input Sets",
    Verb.WISH: lambda _world, action: f"a person asks group {action.group} to drain",
    Verb.REQUEST: _work,
    Verb.EMPLOY: _work,
    Verb.EXECUTE: lambda world, action: (
        f"{_executor(world, action)}: asks the log up to {action.many} times, then waits"
    ),
    Verb.DISMISS: lambda world, action: f"{_executor(world, action)}: DIES",
    Verb.SUPERVISE: lambda _world, _action: "a supervisor looks, and does what there is to do",
    Verb.OVERDUE: lambda _world, action: f"replica {action.group} was claimed and never came: it is considered dead",
    Verb.PLACE: lambda _world, action: _move(action),
    Verb.REVIVE: lambda _world, action: f"a supervisor tries to recover replica {action.group}, which is retired",
    Verb.END: lambda _world, _action: "the log is asked whether the run has finished",
    Verb.SERVER: lambda _world, action: (
        f"the server of {action.about} CRASHES: unlogged tables are empty"
        if action.outcome == "crash"
        else f"a task attempt that has lost commits what it has loaded on {action.about}"
    ),
    Verb.GC: lambda _world, action: (
        f"`logio gc` number {action.about} asks log and store up to {action.many} times"
        f"{', then DIES' if action.outcome else ''}"
    ),
    Verb.SWEEP: lambda _world, action: (
        f"payloads{f' of {action.group}' if action.group else ''} that no row names and whose driver is fenced are removed"
    ),
}


# --- what a driver does -----------------------------------------------------------------------------------------------


def _rebuild(driver: SimulatedDriver, _action: Action) -> str:
    recovered = driver.recovered
    held, writes = len(recovered.acknowledged), len(recovered.writes)
    return f"rebuilds its memory: {held} acknowledged events reloaded, {writes} write actions pending"


def _deliver(driver: SimulatedDriver, action: Action) -> str:
    assert isinstance(action.about, Port)
    waiting = list(driver.inbox.get(action.about, ()))[: action.many]
    again = driver.delivered.get(action.about)
    first = f"event {again.event_id} comes once more; " if action.outcome == "again" and again else ""
    ends = ", the last is the end of the stream" if waiting and waiting[-1].kind is Kind.END else ""
    return f"{first}uses events {_range(event.event_id for event in waiting)} at {action.about}{ends}"


def _fetch(driver: SimulatedDriver, action: Action) -> str:
    assert isinstance(action.about, Port)
    cursor = 0 if action.outcome == "again" else driver.cursors.get(action.about, 0)
    return f"fetches up to {action.many} events of {action.about} behind event {cursor}"


def _take(driver: SimulatedDriver, action: Action) -> str:
    queue = list(driver.committer.steps)[: action.many]
    steps = f"{len(queue)} step{'s' if len(queue) > 1 else ''}"
    return f"prepares commit {driver.fence.commit_no + 1} of {steps}: {_summary([e for step in queue for e in step])}"


def _commit(driver: SimulatedDriver, action: Action) -> str:
    number = driver.fence.commit_no + 1
    return {
        "": f"commits {number}",
        "lost": f"commits {number}; the acknowledgement is lost",
        "fails": f"tries to commit {number}; the connection breaks, nothing is committed",
        "doubt": f"sends commit {number}; the connection breaks before the database has decided",
    }[action.outcome]


def _apply(driver: SimulatedDriver, action: Action) -> str:
    assert isinstance(action.about, tuple)
    writer = driver.writers.get(action.about)
    numbers = _range(write.number for write in writer.taken) if writer else "?"
    steps = f", up to {action.many} steps of the transaction" if writer and writer.attempt else ""
    how = {"": steps, "lost": f"{steps}; the answer is lost", "fails": "; the connection breaks"}[action.outcome]
    again = "tries again to apply" if writer and writer.tried else "applies"
    return f"{again} write actions {numbers} of {action.about[0]} at {action.about[1]}{how}"


def _note_writes(driver: SimulatedDriver, action: Action) -> str:
    assert isinstance(action.about, tuple)
    writer = driver.writers.get(action.about)
    numbers = _range(write.number for write in writer.taken) if writer else "?"
    return f"notes that write actions {numbers} of {action.about[0]} are done"


def _about(text: str) -> Callable[[SimulatedDriver, Action], str]:
    return lambda _driver, action: text.format(about=action.about, many=action.many)


_TELL: dict[Verb, Callable[[SimulatedDriver, Action], str]] = {
    Verb.REGISTER: _about("registers"),
    Verb.OPEN: lambda driver, _: "raises its epoch" if driver.life.raises_epoch else "reads its fence row",
    Verb.ASK: _about("asks which slots it owns"),
    Verb.RECOVER: _about("reads the log"),
    Verb.REBUILD: _rebuild,
    Verb.FETCH: _fetch,
    Verb.DELIVER: _deliver,
    Verb.EVALUATE: _about("evaluates what has come on {about}, up to {many} steps with its files"),
    Verb.ADVANCE: _about("evaluates what source {about} has read, up to {many} steps with its files"),
    Verb.REMOVE: _about("removes files that no row names any more, up to {many} steps"),
    Verb.READ: _about("reads source {about}, and makes events of what it has read"),
    Verb.NOTE_EFFECT: _about("notes that the effect of the read action of {about} is stored"),
    Verb.EMIT: _about("makes events of what it has read of source {about}"),
    Verb.END_SOURCE: _about("ends the read action of source {about}"),
    Verb.WAIT: _about("waits for a receiver that lags"),
    Verb.DRAIN: _about("is asked to drain: its sources read no further, and end where they stand"),
    Verb.DISCARD: _about("discards the stored effect {about}"),
    Verb.START_JOB: _about("starts a job of up to {many} Input Sets of {about}"),
    Verb.RUN_JOB: _about("runs the job of {about}"),
    Verb.NOTE_JOB: _about("takes the results of the job of {about}"),
    Verb.CLOSE: _about("closes its step"),
    Verb.CLOSE_WRITER: _about("asks the log whether all is there, and closes a writer if it is"),
    Verb.PARK: lambda driver, _: f"parks its group: {driver.short}",
    Verb.FINISH: _about("finishes"),
    Verb.BEAT: _about("sends a heartbeat"),
    Verb.COLLECT: _about("plans to collect up to {many} rows of garbage"),
    Verb.EXPIRE: _about("plans a batch of up to {many} rows of retention"),
    Verb.CHECK: _about("looks at its fence"),
    Verb.TAKE: _take,
    Verb.COMMIT: _commit,
    Verb.RESOLVE: lambda driver, _: f"asks the log what became of commit {driver.fence.commit_no + 1}",
    Verb.HAND_OVER: _about("releases what is durable now: write actions to their writers"),
    Verb.TAKE_WRITES: _about("hands up to {many} write actions to the writer {about}"),
    Verb.APPLY: _apply,
    Verb.NOTE_WRITES: _note_writes,
    Verb.VOID: _about("declares its memory void"),
    Verb.HALT: _about("halts: it observes nothing more"),
    Verb.JOIN: _about("joins its threads"),
}


def _summary(effects: Sequence[fx.Effect]) -> str:
    """The contents of a transaction, in the order of the paper's steps."""
    groups: dict[str, list[int]] = {}
    said: list[str] = []
    for effect in effects:
        match effect:
            case fx.LogEvent(event=event):
                groups.setdefault(f"events {{}} of {event.sender} logged", []).append(event.event_id)
            case fx.Acknowledge(receiver=receiver, event_id=event_id, assignments=assignments):
                where = f"assigned to Input Sets {_names(assignments)}" if assignments else "used by no Input Set"
                groups.setdefault(f"events {{}} at {receiver} {where}", []).append(event_id)
            case fx.LogWrite(operator=operator, number=number):
                groups.setdefault(f"write actions {{}} of {operator} logged", []).append(number)
            case fx.MarkDone(operator=operator, inset_id=inset_id):
                said.append(f"Input Set {inset_id} of {operator} done")
            case fx.WritesDone(operator=operator, first=first, last=last):
                said.append(f"write actions {_range([first, last])} of {operator} done")
            case fx.StoreState() | fx.CountEvents() | fx.RecordLineage():
                pass
            case _:
                said.append(_words(type(effect).__name__))
    return "; ".join([*(text.format(_range(ids)) for text, ids in groups.items()), *said]) or "states and counters"


def _names(assignments: fx.Assignments) -> str:
    return ", ".join(f"{inset_id} ({status.value})" for inset_id, status in assignments)


def _words(name: str) -> str:
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


def _range(numbers: Iterable[Any]) -> str:
    found = list(numbers)
    if not found:
        return "none"
    return str(found[0]) if len(found) == 1 or found[0] == found[-1] else f"{found[0]}-{found[-1]}"
