"""Rules of runs: when one has ended and another may begin, whether it still fits its pipeline, which code it gets.

The same for every adapter of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from airflow_logio.errors import (
    ConfigurationError,
    IncompatibleRun,
    LogInconsistent,
    OtherRunUnfinished,
    ProtocolViolation,
    UnknownRun,
)
from airflow_logio.protocol.liveness import TAKEN_BUDGET
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.run_writers import Together, in_conflict
from airflow_logio.protocol.states import ALIVE, CONCLUDED, ENDED, GroupState, RunState
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.driver_records import CodeChange, GroupRef
from airflow_logio.store.records.run_records import ConcurrentRuns, Run, RunKey, RunSpec, Supervision, senders_of
from airflow_logio.store.records.upkeep_records import RemovedRun
from airflow_logio.store.rules.allowed_rules import options_of


@dataclass(frozen=True, slots=True)
class GroupStates:
    """Group → state, and replicated group → how many of its slots are not done."""

    states: Mapping[str, GroupState]
    open_slots: Mapping[str, int] = field(default_factory=dict)

    def left(self) -> list[str]:
        """What a run still has to do, in words. Empty if it can finish."""
        groups = [f"{name} is {state.value}" for name, state in self.states.items() if state not in CONCLUDED]
        return groups + [f"{count} slot(s) of {name} are not done" for name, count in self.open_slots.items()]


def has_ended(run: Run, groups: GroupStates, *, unfinished: bool) -> bool:
    """Whether the run has nothing left to do; with `unfinished`, also if groups were halted, parked or never
    launched."""
    if run.state in (RunState.REMOVING, RunState.SUPERSEDED):
        return True
    if unfinished:
        return all(state in ENDED or state is GroupState.NEW for state in groups.states.values())
    return not groups.left()


def is_removable(run: Run, groups: GroupStates, *, unfinished: bool) -> bool:
    """Whether the run has ended, and the next run of its partition needs nothing of it; with `unfinished`, also a word that
    was said for that one is given up."""
    return has_ended(run, groups, unfinished=unfinished) and (unfinished or not run.next_allowed)


def check_removable(run: Run, groups: GroupStates, *, unfinished: bool) -> None:
    """Raises `ProtocolViolation` if the run has not ended, naming the groups, or has a word for the next run."""
    if is_removable(run, groups, unfinished=unfinished):
        return
    if has_ended(run, groups, unfinished=unfinished):
        raise ProtocolViolation(
            f"run {run.spec.key}, uid {run.uid[:8]}, stays in the log: it lets the next run of {run.partition} have "
            f"{options_of(run.next_allowed)}, and that has not begun. {how_to_begin_anew(run)}; --unfinished removes the run "
            "with that word"
        )
    left = groups.left()
    if unfinished:
        left = [
            f"{name} is {state.value}" for name, state in groups.states.items() if state in ALIVE | {GroupState.DEAD}
        ]
    raise ProtocolViolation(
        f"run {run.spec.key} has not ended: {', '.join(left)}; "
        + (
            f"`logio stop {run.uid[:8]}` halts it"
            if unfinished
            else f"`logio retry {run.uid[:8]}` resumes it, --unfinished gives it up"
        )
    )


def superseded(run: Run) -> str:
    """Why a superseded run does not resume, and how to begin the fresh one."""
    what = f"run {run.spec.key}, uid {run.uid[:8]}, was given up for a fresh run: it does not resume"
    return f"{what}. {how_to_begin_anew(run)}"


def check_not_given_up(run: Run) -> None:
    """Raises `ProtocolViolation` for a run that was given up: no advice that holds for its groups would help."""
    if run.state is RunState.SUPERSEDED:
        raise ProtocolViolation(superseded(run))


def computed_already(run: Run, what: str = "") -> str:
    """What a person is told who clears tasks of something that has finished, the run or a group of it: what to do to have
    it computed again. A run of a partition needs no giving up before: clearing the task that starts it means again."""
    uid = run.uid[:8]
    give_up = f"To compute the run again from its beginning, give it up (`logio fresh {uid}`, or DAG `logio_fresh`). "
    return (
        f"{what or f'run {run.spec.key}, uid {uid},'} has finished, and nothing of it is computed again: the log has its "
        f"results. {give_up if run.partition is None else ''}{how_to_begin_anew(run)}"
    )


def how_to_begin_anew(run: Run) -> str:
    """What a person does for the next generation of a superseded run to begin."""
    key = run.spec.key
    if run.damage is not None:  # what supervised it is not known
        return how_to_begin_after(key, None)
    if run.spec.supervision is Supervision.PROCESS:
        day = f" --partition {run.partition}" if run.partition is not None else ""
        return f"`logio run ...{day} --run-id {key.dag_run_id}` begins the fresh one{_what_stays(run)}"
    return (
        f"Clear DAG run {key.dag_run_id} of {key.dag_id} from the task that starts the run onwards: that task begins the "
        f"fresh one{_what_stays(run)}"
    )


def how_to_begin_after(key: RunKey, partition: str | None) -> str:
    """As `how_to_begin_anew`, of a run of which only its key is known."""
    day = f" --partition {partition}" if partition is not None else ""
    return (
        f"`logio run ...{day} --run-id {key.dag_run_id}` begins the next one; in Airflow, clear DAG run {key.dag_run_id} of "
        f"{key.dag_id} from the task that starts the run onwards"
    )


def _what_stays(run: Run) -> str:
    """What would be there twice: a fresh run makes all records anew, and its writers that append remove nothing."""
    found = [operator.get("settings", {}) for operator in run.spec.graph.get("operators", {}).values()]
    # A DatasetWriter that appends does not say so in its settings, but has `partition_by`.
    said = [(one.get("on_new_run", "append" if "partition_by" in one else ""), one) for one in found]
    appending = [one for mode, one in said if mode == "append" and "connection" in one]
    tables = [f"table {one['table']!r} of {one['connection']!r}" for one in appending if "table" in one]
    folders = [f"folder {one['folder'] or '.'!r} of {one['connection']!r}" for one in appending if "folder" in one]
    if not tables and not folders:
        return ""
    files = f" (its files have names that begin with {run.uid}, in the folders and in _logio)" if folders else ""
    return (
        f". What this run has appended to {', '.join((*tables, *folders))} stays, and the fresh one appends all of it again: "
        f"remove it before that begins{files}"
    )


AFTER_SECONDS = 0.001


def earliest_start(*earlier: Run | RemovedRun | None) -> float:
    """The time that a run of the next generation has started at, at the earliest: younger than the runs of its key before
    it, whatever the clock says by now. Tables and folders tell older runs from younger ones by these times."""
    return max((one.created_at + AFTER_SECONDS for one in earlier if one is not None), default=0.0)


def next_generation(before: Run | None, removed: RemovedRun | None) -> int:
    """The generation that begins after the newest one of its key in the log, and after the newest that was removed."""
    newest = 0 if before is None else before.spec.key.generation
    return max(newest, 0 if removed is None else removed.key.generation) + 1


MOST_ABOVE = 99_999_999_999
"""Names in lakes have twelve digits for an ordinal: there is room for the runs that come behind it."""


def check_above(above: int) -> None:
    """Raises `ConfigurationError` for what no ordinal can be above."""
    if not 0 <= above <= MOST_ABOVE:
        raise ConfigurationError(f"an ordinal above {above} cannot be given: say a number from 0 to {MOST_ABOVE}")


def next_ordinal(last: int, above: int) -> int:
    """What the next run of a pipeline gets, after `last`: more than a person has said it must be above."""
    return max(last, above) + 1


def check_partition(earlier: Run | None, spec: RunSpec) -> None:
    """Raises `IncompatibleRun` if a run is asked for under the name of one of another partition, also of one that was given
    up: its name says what it is for."""
    if earlier is None or None in (earlier.spec.partition, spec.partition):
        return  # its pipeline has gained partitions since, or has lost them
    if earlier.spec.partition != spec.partition:
        raise IncompatibleRun(
            f"run {earlier.spec.key}, uid {earlier.uid[:8]}, is for {earlier.spec.partition}, and now is asked for "
            f"{spec.partition}: a run keeps its partition, and so do its next generations. Give the run of "
            f"{spec.partition} a name of its own (another --run-id, another DAG run)"
        )


def check_superseding(run: Run, state: RunState, groups: GroupStates) -> bool:
    """Whether a run, now in `state`, is to be marked superseded; False if it is.

    Raises `ProtocolViolation`, naming the groups that are alive, and `UnknownRun` for a run that is being removed.
    """
    if state is RunState.REMOVING:
        raise UnknownRun(f"run {run.spec.key} is being removed from the log; there is nothing to replace")
    if state is RunState.SUPERSEDED:
        return False
    if alive := [f"{name} is {group.value}" for name, group in groups.states.items() if group in ALIVE]:
        raise ProtocolViolation(
            f"run {run.spec.key} cannot give way to a fresh one while it is active: {', '.join(alive)}; "
            f"`logio stop {run.uid[:8]}` halts it"
        )
    return True


def check_alone(spec: RunSpec, others: Iterable[tuple[Run, GroupStates]], concurrent: ConcurrentRuns) -> None:
    """Raises `OtherRunUnfinished` if the run must not begin beside one of these of its pipeline.

    Only those count that have a group which has not finished, also if it is halted or parked: once another run owns its
    tables, it can never write what is still missing.
    """
    if concurrent is ConcurrentRuns.ISOLATED:
        return
    by_word = (TABLES_TAKEN, _if_isolated(spec.supervision))
    for run, groups in others:
        if run.damage is not None and groups.left():
            raise OtherRunUnfinished(f"run {spec.key} is not started: {run.damage}; what its writers do is not known")
        found = why_not_beside(spec, run.spec) if concurrent is ConcurrentRuns.DERIVED else by_word
        if groups.left() and found is not None:
            raise OtherRunUnfinished(
                f"run {spec.key} is not started: {in_the_way(run, groups, spec.supervision, *found)}"
            )


TABLES_TAKEN = "could not write its tables any more once this one does"
"""What a later run may do to an unfinished one."""


def why_not_beside(spec: RunSpec, other: RunSpec) -> tuple[str, str] | None:
    """Why a run must not live beside an unfinished one of its pipeline, by what is known of both, and what lets them, if
    anything does; None if it may."""
    if spec.partition is not None and spec.partition == other.partition:
        return (
            f"is of partition {other.partition}, as this one would be: one run of a partition is computed at a time",
            "",
        )
    if spec.writers is None or other.writers is None:
        before = "" if spec.writers is None else ", which an earlier version began: what its writers do is not known"
        is_of_person = spec.supervision is Supervision.PROCESS  # a command has no word that allows it
        return f"{TABLES_TAKEN}{before}", "" if is_of_person else _if_isolated(spec.supervision)
    found = in_conflict(spec.writers, other.writers, apart=_are_apart(spec, other))
    if found is None:
        return None
    said = [f"writer {one.writer!r} ({one.what})" for one in dict.fromkeys(found)]
    own = [one.writer for one in dict.fromkeys(found) if one.is_of_author]
    if not own:
        return f"{TABLES_TAKEN}: {' and '.join(said)}", ""
    allow = f". If two runs may write by {' and '.join(own)} at once, say so in the class: runs_together = True"
    return f"may be disturbed by what this one writes: {' and '.join(said)}", allow


def _are_apart(spec: RunSpec, other: RunSpec) -> bool:
    """Whether they are of two partitions that have nothing in common: those of two lengths, or of two zones, may."""
    if spec.partition is None or other.partition is None or spec.partition == other.partition:
        return False
    mine, theirs = ({**one.graph.get("partition", {}), "rules": None} for one in (spec, other))
    return mine == theirs


def may_be_in_the_way(run: Run, groups: GroupStates) -> bool:
    """Whether an unfinished run may be what keeps some other run of its pipeline from beginning."""
    writers = run.spec.writers
    is_shared = writers is None or any(one.together is not Together.ALWAYS for one in writers)
    return bool(groups.left()) and (is_shared or run.partition is not None)


def in_the_way(
    run: Run, groups: GroupStates, supervision: Supervision, why: str = TABLES_TAKEN, unless: str = ""
) -> str:
    """Why a later run of the pipeline, supervised like that, does not begin before this one has finished, and what to do."""
    if run.damage is not None:
        return run.damage
    uid = run.uid[:8]
    left = ", ".join(groups.left())
    finish = (
        f"`logio retry {uid}` if no driver of it runs"
        if supervision is Supervision.PROCESS
        else f"clear its red tasks, or `logio retry {uid}`"
    )
    return (
        f"{_named(run)} has not finished ({left}), and {why}. Let it finish ({finish}), or give it up (`logio fresh {uid}`), "
        f"and start again{unless}"
    )


def _named(run: Run) -> str:
    of = "" if run.partition is None else f" of partition {run.partition},"
    return f"run {run.spec.key}, uid {run.uid[:8]},{of}"


def _if_isolated(supervision: Supervision) -> str:
    if supervision is Supervision.PROCESS:
        return ". If the runs share no tables, start this one without --alone"
    return (
        ". If runs of this pipeline share no tables, its author declares that: "
        'LogioPipelineGroup(concurrent_runs="isolated")'
    )


def shared_ports(spec: RunSpec) -> list[Port]:
    """Output ports with receivers in several groups and without lineage: two groups may both have left a body of such a
    port."""
    groups: dict[Port, set[str]] = {}
    for receiver, sender in senders_of(spec).items():
        groups.setdefault(sender, set()).add(spec.operators[receiver.operator].group)
    return [
        sender
        for sender, names in groups.items()
        if len(names) > 1 and sender.name not in spec.operators[sender.operator].lineage_out
    ]


def stopped(ref: GroupRef, state: str) -> str:
    """The error of a driver that must stop because its group was halted or parked from outside."""
    return (
        f"group {ref.group!r} is {state}: the driver of incarnation {ref.incarnation} commits nothing more, and exits"
    )


MOST_CHANGES = 5


LONGEST_VALUE = 80


_SECTIONS = {
    "operators": "operator {!r}",
    "groups": "group {!r}",
    "replicated": "replicated group {!r}",
    "params": "parameter {!r}",
    "senders": "what port {!r} receives",
}


_MISSING = object()
_ZONE_RULES = ", window, rules was "
"""In what `changes_between` says of windows of a zone: the pipeline is the same, the host is not."""


def check_graph(run: Run, fingerprint: str, graph: Mapping[str, Any]) -> None:
    """Raises `IncompatibleRun` if the pipeline of this fingerprint and description is not the one that `run` was started
    with; it names what has changed (operator, setting, from, to).
    """
    if is_graph_of(run, fingerprint, graph):
        return
    changes = list(changes_between(run.spec.graph, graph)) if run.spec.graph else []
    said = "; ".join(changes[:MOST_CHANGES]) or f"its graph was {run.spec.graph_fingerprint}, now {fingerprint}"
    more = f"; changes besides: {len(changes) - MOST_CHANGES}" if len(changes) > MOST_CHANGES else ""
    uid = run.uid[:8]
    begun = f"was started by another version of pipeline {run.spec.key.pipeline!r}"
    continued = (
        f"Restore that version and `logio retry {uid}`"
        if run.spec.code_digest is None
        else f"`logio retry {uid}` continues it with the version that it has"
    )
    if changes and all(_ZONE_RULES in change for change in changes):
        begun = "was started where time zones had other rules than on this host, so its windows would begin elsewhere"
        continued = f"Install the package `tzdata` that it began with and `logio retry {uid}`"
    if run.state is RunState.FINISHED:
        step = (
            f"It has finished. To compute it again with this version: `logio again {uid}`, which says what comes then"
        )
    else:
        step = f"{continued}, or start a fresh run (`logio fresh {uid}`)"
    raise IncompatibleRun(f"run {run.spec.key} {begun}: {said}{more}. {step}")


def is_graph_of(run: Run, fingerprint: str, graph: Mapping[str, Any]) -> bool:
    """Whether the pipeline of this fingerprint and description is the one that `run` was started with.

    An earlier version did not record whether operators get many Input Sets in one plan, because all did: a driver then calls
    them so (`together.contract_of`).
    """
    if fingerprint == run.spec.graph_fingerprint:
        return True
    recorded = run.spec.graph.get("operators", {})
    if all("many" in operator for operator in recorded.values()) or "operators" not in graph:
        return False
    plain = msgspec.json.decode(msgspec.json.encode(graph))  # as the log gives the recorded one back
    for name, operator in plain["operators"].items():
        if "many" not in recorded.get(name, {"many": None}):
            operator.pop("many", None)
    return bool(plain == run.spec.graph)


def changes_between(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """One sentence part for each setting of `Pipeline.describe` that differs. What was added or removed as a whole is one."""
    now = msgspec.json.decode(msgspec.json.encode(now))  # as the log gives `then` back
    for section in _keys(then, now):
        before, after = then.get(section, {}), now.get(section, {})
        if section not in _SECTIONS:
            yield from _changes(section, before, after)
            continue
        for name in _keys(before, after):
            where = _SECTIONS[section].format(name)
            yield from _changes(where, before.get(name, _MISSING), after.get(name, _MISSING))


def _changes(where: str, before: Any, after: Any) -> Iterator[str]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for name in _keys(before, after):
            # The settings of an operator are known by their own names.
            deeper = where if name == "settings" else f"{where}, {name}"
            yield from _changes(deeper, before.get(name, _MISSING), after.get(name, _MISSING))
    elif before is _MISSING:
        yield f"{where} is new"
    elif after is _MISSING:
        yield f"{where} is gone"
    else:
        yield f"{where} was {_shown(before)}, is now {_shown(after)}"


def _keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return list({**one, **other})


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


LONGEST = 250
"""Characters that the log keeps of who took code."""


def members(run: Run, group: str) -> tuple[str, ...]:
    """The groups of the log that share the code of `group`: itself, or all replicas. Raises `ProtocolViolation`."""
    base = replicated_group(group)
    found = run.spec.replicated[base].replicas if base in run.spec.replicated else (group,)
    if not set(found) <= set(run.spec.groups) or (group not in found and group != base):
        raise ProtocolViolation(f"run {run.spec.key} has no group {group!r}; it has {', '.join(run.spec.groups)}")
    return tuple(sorted(found))


def number_for(run: Run, state: RunState, changes: Sequence[CodeChange], current: int, digest: str) -> int:
    """The number of the code that a group gets: `current` if that is the code of this digest, otherwise a new one.

    Raises `ProtocolViolation` if the run, now in `state`, was given up.
    """
    if state is RunState.SUPERSEDED:
        raise ProtocolViolation(superseded(run))
    if digest == digest_of(run, changes, current):
        return current
    return max((change.number for change in changes), default=0) + 1


def digest_of(run: Run, changes: Sequence[CodeChange], number: int) -> str | None:
    """The digest of a code by its number. None for number 0 of a run that a version without kept code has begun."""
    if number == 0:
        return run.spec.code_digest
    found = [change.digest for change in changes if change.number == number]
    if not found:
        raise LogInconsistent(f"run {run.spec.key} has no code {number} in the log, only 0 to {len(changes)}")
    return found[0]


def taken_too_often(group: str) -> str:
    """The error of a group whose drivers its cluster manager takes again and again."""
    return (
        f"group {group!r}: its cluster manager took the room of {TAKEN_BUDGET.recoveries} drivers, or lost their nodes, "
        f"within {TAKEN_BUDGET.window_seconds / 3600:g} hours; it is parked. Give the group a queue, or nodes, that it can "
        "keep, and `logio retry` it"
    )
