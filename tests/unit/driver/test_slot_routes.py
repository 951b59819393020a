"""What a Dispatcher sees of replicas: who has room, who lags, and when it must wait itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from airflow_logio.dataflow import ByKey, Dispatcher, InputEvent, LeastLoaded, Partition, RoundRobin
from airflow_logio.driver.back_pressure import ASK_EVERY_SECONDS, Backlog, SlotRoutes
from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.replicas import Slot
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.run_records import BacklogBound

SLOTS = 4
BOUND = 10


class Log:
    """Owners and counters, as a test sets them; `asked` counts questions."""

    def __init__(self, *owners: str | None) -> None:
        self.owners = list(owners)
        self.sent = [0] * SLOTS
        self.taken = [0] * SLOTS
        self.is_away = False
        self.asked = 0
        self.now = 0.0

    def acknowledged(self, receivers: Sequence[Port]) -> Mapping[Port, tuple[int, int]]:
        self.asked += 1
        if self.is_away:
            raise LogUnavailable("away")
        return {receiver: (self.taken[slot_number(receiver)], 0) for receiver in receivers}

    def slots(self) -> Sequence[Slot]:
        return [Slot(number, owner) for number, owner in enumerate(self.owners)]

    def last_sent(self, slot: int) -> int:
        return self.sent[slot]

    def clock(self) -> float:
        return self.now

    def routes(self, partition: Partition, *, ordered: bool = False) -> SlotRoutes:
        bound = BacklogBound(events=BOUND)
        backlogs = [
            Backlog([port(n)], self.acknowledged, bound, partial(self.last_sent, n), clock=self.clock)
            for n in range(SLOTS)
        ]
        dispatcher = Dispatcher(partition, SLOTS, ordered=ordered)
        return SlotRoutes(dispatcher, backlogs, self.acknowledged, self.slots, self.clock)

    def later(self) -> None:
        self.now += ASK_EVERY_SECONDS


def port(slot: int) -> Port:
    return Port(f"work[{slot}]", "in")


def slot_number(receiver: Port) -> int:
    return int(receiver.operator[5:-1])


def test_slots_are_seen_by_who_owns_them() -> None:
    log = Log("a", "b", "a", None)
    routes = log.routes(RoundRobin())
    assert [list(mine) for mine in routes.replicas()] == [[0, 2], [1]]
    assert log.asked == 1
    routes.replicas()
    assert log.asked == 1, "a hint is not asked for with every event"
    log.owners = ["b"] * 4
    log.later()
    assert [list(mine) for mine in routes.replicas()] == [[0, 1, 2, 3]]


def test_a_replica_that_stands_still_keeps_its_backlog_and_then_the_others_take_everything() -> None:
    log = Log("dead", "b", "b", "b")
    routes, partition = log.routes(RoundRobin()), RoundRobin()
    for number in range(1, 101):
        ((slot, _),) = partition.part(InputEvent("in", number, None), SLOTS, routes)
        log.sent[slot] += 1
        if slot:
            log.taken[slot] += 1
        log.later()
        assert not routes.is_full()
    assert log.sent[0] == BOUND
    assert sum(log.sent) == 100


def test_who_must_wait_for_one_slot_and_who_for_all() -> None:
    log = Log("a", "a", "b", "b")
    log.sent[0] = BOUND
    assert not log.routes(RoundRobin()).is_full()
    assert not log.routes(LeastLoaded()).is_full()
    assert log.routes(ByKey("k", slots=SLOTS)).is_full(), "the next event of that slot has nowhere else to go"
    assert log.routes(RoundRobin(), ordered=True).is_full(), "what overtakes it would be held by the Merger"
    log.sent = [BOUND] * SLOTS
    assert log.routes(RoundRobin()).is_full()
    log.taken[3] = 1
    assert not log.routes(RoundRobin()).is_full()


def test_a_group_that_sleeps_gets_events_up_to_the_bound() -> None:
    log = Log(None, None, None, None)
    routes = log.routes(RoundRobin())
    assert [list(mine) for mine in routes.replicas()] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("is_away", [False, True])
def test_an_outage_leaves_what_was_known(is_away: bool) -> None:
    log = Log("a", "a", "b", "b")
    routes = log.routes(LeastLoaded())
    log.sent, log.taken = [5, 5, 0, 5], [0, 0, 0, 0]
    routes.replicas()
    log.taken, log.is_away = [5, 5, 0, 0], is_away
    log.later()
    routes.replicas()
    assert routes.backlog(0) == (5 if is_away else 0)
