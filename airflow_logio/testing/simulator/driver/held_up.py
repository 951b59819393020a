"""What holds up a simulated group that sends: the backlogs of its output ports (design D5), with a bound that is soon met.

Groups with Dispatchers, and pipelines in which an operator waits for the turn of a port, have no bound here.
`driver/back_pressure.py` decides which of their connections have one. It needs a pipeline for that; a scenario has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_logio.driver.back_pressure import ASK_EVERY_SECONDS, Backlog
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.run_records import BacklogBound

if TYPE_CHECKING:
    from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver

BOUND = BacklogBound(events=12)


class HeldUp:
    """The back-pressure of one epoch. It exists only after the rebuild: it depends on what the log says was sent."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self._driver = driver
        mine = set(driver.protocol.operators)
        self._backlogs = [
            self._backlog(sender, others)
            for sender, receivers in driver.plan.receivers.items()
            if driver.world.is_bounded and (others := [to for to in receivers if to.operator not in mine])
        ]

    def _backlog(self, sender: Port, receivers: Sequence[Port]) -> Backlog:
        driver = self._driver
        last_sent, taken_back = driver.loop.last_sent, driver.loop.last_sent(sender)[1]
        asked = driver.session.acknowledged
        return Backlog(receivers, asked, BOUND, lambda: last_sent(sender)[0], taken_back, lambda: driver.now)

    def is_full(self) -> bool:
        """A receiver lags by the bound, as far as is known."""
        for backlog in self._backlogs:  # noqa: SIM110 - asked at every step
            if backlog.is_full():
                return True
        return False

    def lags(self) -> bool:
        """A receiver lags by the bound, as the log has it now: to wait would change nothing."""
        counters = self._driver.session.acknowledged
        return any(backlog.waiting_behind(counters(backlog.receivers)) >= BOUND.events for backlog in self._backlogs)

    def wait(self) -> bool:
        """Time passes until the receivers are asked again; False if they still lag."""
        self._driver.now += ASK_EVERY_SECONDS
        return not self.is_full()
