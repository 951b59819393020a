"""A replicated group as a fluid: records arrive at a rate, and each replica that is busy processes as many per second."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_logio.store.records.driver_records import Load
from airflow_logio.supervision.policies import Change, Decision, Figures, Policy

SECONDS = 10.0


def load(busy: float, records_in: float = 0.0, *, seconds: float = SECONDS, blocked: float = 0.0) -> Load:
    taken = round(records_in)
    return Load(seconds, busy, 1 - busy - blocked, blocked, int(taken > 0), taken, 0, 0)


@dataclass
class LinearGroup:
    """`rate` is in records per busy second of one replica; `arrivals` in records per second."""

    rate: float
    arrivals: float
    replicas: int = 1
    backlog: float = 0.0
    least: int = 0
    most: int = 16
    at: float = 0.0
    last: Change | None = None
    history: list[int] = field(default_factory=list)

    def after(self, seconds: float) -> Figures:
        """Time passes; the figures are of its last ten seconds."""
        processed = 0.0
        for _ in range(round(seconds / SECONDS)):
            there = self.backlog + self.arrivals * SECONDS
            processed = min(there, self.replicas * self.rate * SECONDS)
            self.backlog = there - processed
        self.at += seconds
        busy = processed / (self.replicas * self.rate * SECONDS) if self.replicas else 0.0
        mine = processed / self.replicas if self.replicas else 0.0
        return Figures(
            group="work",
            at=self.at,
            replicas=self.replicas,
            least=self.least,
            most=self.most,
            loads={f"work.{n}": load(busy, mine) for n in range(1, self.replicas + 1)},
            arrivals=self.arrivals,
            backlog=round(self.backlog),
            events=int(self.backlog > 0),
            last=self.last,
        )

    def follow(self, policy: Policy, looks: int, seconds: float = 100.0) -> list[int]:
        """Replicas after each look, and the decision carried out."""
        for _ in range(looks):
            self.obey(policy.decide(self.after(seconds)))
        return self.history

    def obey(self, decision: Decision) -> None:
        if decision.replicas != self.replicas:
            self.replicas, self.last = decision.replicas, Change(decision.replicas, self.at)
        self.history.append(self.replicas)
