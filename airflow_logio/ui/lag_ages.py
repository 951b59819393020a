"""How old the lag of a connection is: since when its oldest event waits that the receiver has not acknowledged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_logio.protocol.values import Port
from airflow_logio.status.snapshot import ConnectionView

MOST_LOOKS = 64
"""Looks that are remembered of a connection that lags: of old ones fewer, but always the first."""


class LagAge(NamedTuple):
    seconds: float
    is_least: bool
    """It is as long as the connection has been looked at: its oldest event may have waited before."""


@dataclass(slots=True)
class _Seen:
    first_at: float
    sent: list[tuple[float, int]] = field(default_factory=list)
    """When it was looked at, and how many events had been sent by then, while some of them wait."""


class LagAges:
    """Found from looks at one run: what had been sent by an earlier one, and is not acknowledged by now, is at least so old.

    The log counts events, and does not say when each was sent. So an age is too short by the time between two looks that are
    remembered, a small part of it, and what lagged at the first look counts from there. A sum over slots would show no age:
    each of them acknowledges for itself. So connections are those of the log.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[Port, Port], _Seen] = {}

    def oldest(self, connections: Iterable[ConnectionView], at: float) -> LagAge | None:
        """Of all that lag, at a look at time `at`, in seconds since the epoch; None where nothing lags."""
        ages = [age for one in connections if (age := self._age(one, at)) is not None]
        return LagAge(max([age.seconds for age in ages]), any([age.is_least for age in ages])) if ages else None

    def _age(self, one: ConnectionView, at: float) -> LagAge | None:
        seen = self._seen.get((one.sender, one.receiver))
        if seen is None:
            seen = self._seen[one.sender, one.receiver] = _Seen(at)
        acknowledged = one.acknowledged.events
        if seen.sent and seen.sent[0][1] <= acknowledged:
            seen.sent = [look for look in seen.sent if look[1] > acknowledged]
        if one.sent.events <= acknowledged:
            return None
        if not seen.sent or one.sent.events > seen.sent[-1][1]:
            seen.sent.append((at, one.sent.events))
        if len(seen.sent) > MOST_LOOKS:
            del seen.sent[_least_missed(seen.sent, at)]
        since = seen.sent[0][0]
        return LagAge(max(0.0, at - since), since == seen.first_at)


def _least_missed(sent: list[tuple[float, int]], at: float) -> int:
    """The place of the look, neither the first nor the last, without which ages are off by the smallest part."""
    return min(range(1, len(sent) - 1), key=lambda place: _gap(sent, place) / (at - sent[place - 1][0] or 1.0))


def _gap(sent: list[tuple[float, int]], place: int) -> float:
    return sent[place + 1][0] - sent[place - 1][0]
