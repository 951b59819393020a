"""What differs between the pipeline that a run was started with and the one that is there now, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from airflow_logio.errors import IncompatibleRun
from airflow_logio.store.records.run_records import Run

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


def check_graph(run: Run, fingerprint: str, graph: Mapping[str, Any]) -> None:
    """Raises `IncompatibleRun` if the pipeline of this fingerprint and description is not the one that `run` was started
    with; it names what has changed (operator, setting, from, to).
    """
    if fingerprint == run.spec.graph_fingerprint:
        return
    changes = list(changes_between(run.spec.graph, graph)) if run.spec.graph else []
    said = "; ".join(changes[:MOST_CHANGES]) or f"its graph was {run.spec.graph_fingerprint}, now {fingerprint}"
    more = f"; and {len(changes) - MOST_CHANGES} more changes" if len(changes) > MOST_CHANGES else ""
    uid = run.uid[:8]
    continued = (
        f"Restore that version and `logio retry {uid}`"
        if run.spec.code_digest is None
        else f"`logio retry {uid}` continues it with the version that it has"
    )
    raise IncompatibleRun(
        f"run {run.spec.key} was started by another version of pipeline {run.spec.key.pipeline!r}: {said}{more}. "
        f"{continued}, or start a fresh run (`logio fresh {uid}`)"
    )


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
