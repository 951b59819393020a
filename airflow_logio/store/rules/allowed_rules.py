"""What a person lets one run do in the days that it owns, and which run that is (`Allowed`; design, "Days").

It is said of a run that begins (`logio run`), or of one that is given up (`logio again`): then the next run of that
partition has it. It is kept in the description of the run, so that each of its drivers has it. A run that is there is never
allowed more: what it may do would depend on when a driver has read it. The same for every adapter of the log.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from airflow_logio.errors import ConfigurationError, IncompatibleRun, ProtocolViolation, WriteRefused
from airflow_logio.protocol.run_writers import Together
from airflow_logio.protocol.states import RunState
from airflow_logio.store.records.run_records import Allowed, Run, RunSpec


def options_of(allowed: Collection[Allowed]) -> str:
    """As a person types them."""
    return " ".join(sorted(one.option for one in allowed))


def options_in(error: str) -> Sequence[Allowed]:
    """What a refused write says that only a person lets the next run do: the options of `logio again` that its text names.
    Another driver of that run would be told the same. One that reads a folder in doubt is told so, too, and can be resumed
    when that is decided."""
    if f"{WriteRefused.__name__}: " not in error:
        return []
    return [one for one in Allowed if re.search(rf"`logio again [^`]*{one.option}", error)]


def check_allowed(spec: RunSpec, allowed: Collection[Allowed]) -> None:
    """Raises `ConfigurationError` if such a run owns no day, so that there is nothing to allow."""
    if not allowed:
        return
    what = f"{options_of(allowed)} is for runs that own a day, or an hour, of a table or folder"
    if spec.partition is None:
        raise ConfigurationError(
            f"{what}: this run of pipeline {spec.key.pipeline!r} is for no partition. Leave it out, or name the partition "
            "with --partition"
        )
    if not any(one.together is Together.BY_PARTITION for one in spec.writers or ()):
        raise ConfigurationError(f"{what}: no writer of pipeline {spec.key.pipeline!r} has by=(...). Leave it out")


def check_allowed_before(run: Run, spec: RunSpec) -> None:
    """Raises `IncompatibleRun` if a run that is there is asked for with more than it was allowed when it began."""
    if more := spec.allowed - run.spec.allowed:
        options, uid = options_of(more), run.uid[:8]
        raise IncompatibleRun(
            f"run {run.spec.key}, uid {uid}, was begun without {options}, and it stays so: `logio again {uid} {options}` "
            f"gives it up, then the same command begins one that may. Nothing was changed"
        )


def next_allowed(run: Run, newest: Run | None, allowed: Collection[Allowed]) -> frozenset[Allowed]:
    """What the next run of the partition has once that is said of this one, which is given up; `newest` is the youngest run
    of the partition.

    Raises `ConfigurationError` if there is nothing to allow, and `ProtocolViolation` if a younger run has begun.
    """
    check_allowed(run.spec, allowed)
    if newest is not None and newest.run_id != run.run_id:
        uid, options = newest.uid[:8], options_of(allowed)
        raise ProtocolViolation(
            f"run {newest.spec.key}, uid {uid}, of partition {newest.partition} has begun after run {run.uid[:8]}, and is "
            f"{newest.state.value}. To let the one after it have {options}: `logio again {uid} {options}`"
        )
    return run.next_allowed.union(allowed, () if newest is None else newest.next_allowed)


def handed_on(newest: Run | None) -> frozenset[Allowed]:
    """What the run that begins next in a partition is allowed by what was said of the youngest one before it."""
    if newest is None or newest.state is not RunState.SUPERSEDED:
        return frozenset()
    return newest.next_allowed
