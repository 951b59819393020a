"""Hints to a Dispatcher about the replicas behind it: anything that it could be told. No result depends on a hint."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.replication import Dispatcher, Routes

MOST_WAITING = 5


class AnyRoutes:
    """Some slots, owned by some replicas, have room. Each answer names others."""

    def __init__(self, slots: int, seed: str) -> None:
        self._slots = list(range(slots))
        self._random = random.Random(seed)

    def replicas(self) -> Sequence[Sequence[int]]:
        with_room = self._random.sample(self._slots, self._random.randint(1, len(self._slots)))
        owners: dict[int, list[int]] = {}
        for slot in with_room:
            owners.setdefault(self._random.randrange(len(with_room)), []).append(slot)
        return list(owners.values())

    def backlog(self, slot: int) -> int:
        return self._random.randrange(MOST_WAITING)


def any_routes(pipeline: Pipeline) -> Mapping[str, Routes]:
    """The hints for all Dispatchers of one schedule."""
    return {
        name: AnyRoutes(operator.slots, name)
        for name, operator in pipeline.operators.items()
        if isinstance(operator, Dispatcher)
    }
