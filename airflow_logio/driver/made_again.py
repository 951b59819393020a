"""Replay of operators in a driver (Section 5, ADR-106): any driver can make the events of any replay operator again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.driver.logics.operator_specs import specs_of
from airflow_logio.protocol.logic import Logic
from airflow_logio.protocol.replay import Offers, Replay
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.systems.arrow import bytes_held
from airflow_logio.systems.connections import Connections
from airflow_logio.systems.contents import digest_of
from airflow_logio.systems.payloads.bodies import Bodies, table_of


def replay_of(
    pipeline: Pipeline,
    connections: Connections,
    session: GroupSession,
    bodies: Bodies,
    is_rebuilding: Callable[[], bool],
    offers: Offers | None = None,
) -> Replay:
    """The replay of one epoch; `offers` is what senders hand over directly. Costs nothing where nothing is to be made again.

    It waits for a log that is unavailable while memory `is_rebuilding`; delivery asks again by itself, or ends.
    """
    known: dict[str, Logic] = {}

    def logic_of(operator: str) -> Logic:
        if operator not in known:
            (spec,), _ = specs_of(pipeline, [operator], connections)
            assert spec.logic is not None, f"{operator} is a source"
            known[operator] = spec.logic
        return known[operator]

    input_sets = partial(session.input_sets, still_wanted=is_rebuilding)
    return Replay(logic_of, input_sets, bodies.unpacked, contents, size, offers)


def contents(payload: Any) -> bytes:
    """The digest of an event's payload."""
    return digest_of(table_of(payload))


def size(payload: Any) -> int:
    """The bytes that an event's payload keeps in memory."""
    return bytes_held(table_of(payload))
