"""`Schedule`: the number of replicas depends on the time of day."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta

from croniter import croniter

from airflow_logio.supervision.policies.policy import Decision, Figures, Policy

_WORD = re.compile(r"[A-Za-z]+")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")


@dataclass(frozen=True, slots=True)
class Schedule(Policy):
    """Holds the number of the entry whose time was the latest: ``Schedule({"0 8 * * 1-5": 4, "0 20 * * *": 0})``.

    Cron expressions of five fields, in UTC; of entries with the same time the last one counts. 0 is kept to once nothing is
    left to do: a group with work keeps one replica.

    :param entries: cron expression → replicas.
    """

    entries: Mapping[str, int]
    _: KW_ONLY
    minimum: int | None = None
    maximum: int | None = None

    def check(self) -> None:
        Policy.check(self)
        if not isinstance(self.entries, Mapping) or not self.entries:
            self.refuse(f'entries are {self.entries!r}; give cron expressions and replicas, {{"0 8 * * 1-5": 4}}')
        for expression, replicas in self.entries.items():
            if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
                self.refuse(f"{expression!r} asks for {replicas!r}; give a number of replicas, from 0 on")
            self._check_expression(expression)

    def wanted(self, figures: Figures) -> Decision:
        now = datetime.fromtimestamp(figures.at, UTC)
        times = [(latest(expression, now), place, expression) for place, expression in enumerate(self.entries)]
        at, _, expression = max(times)
        replicas = self.entries[expression]
        return Decision(replicas, f"entry {expression!r} of {at:%Y-%m-%d %H:%M} UTC holds, which says {replicas}")

    def _check_expression(self, expression: str) -> None:
        fields = expression.split() if isinstance(expression, str) else []
        # Other words are extensions, such as `R` for another random time whenever it is asked for.
        words = {word.upper() for field in fields for word in _WORD.findall(field)}
        if len(fields) != 5 or words.difference(_DAYS, _MONTHS):
            self.refuse(f"{expression!r} is no cron expression of five fields, such as '0 8 * * 1-5'")
        try:
            latest(expression, datetime(2026, 1, 1, tzinfo=UTC))
        except ValueError as error:
            self.refuse(f"{expression!r} is no cron expression with a time to come: {error}")


def latest(expression: str, now: datetime) -> datetime:
    """The latest time of an expression that is not after `now`. Raises `ValueError`."""
    # The library looks strictly before the time that it is given, by the second.
    after = now.replace(microsecond=0) + timedelta(seconds=1)
    found: datetime = croniter(expression, after).get_prev(datetime)
    return found
