"""Ctrl-C, SIGTERM and SIGHUP: the first one interrupts the demonstration; later ones only speed up the clean-up."""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Install it once, in the main thread. It raises KeyboardInterrupt there once, unless the clean-up has begun."""

    def __init__(self) -> None:
        self.came = 0
        self._cleaning = False
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.came += 1
        if self.came == 1 and not self._cleaning:
            raise KeyboardInterrupt

    def begin_cleaning(self) -> None:
        """From now on signals are only counted."""
        self._cleaning = True
        self.came = min(self.came, 1)

    def is_patient(self) -> bool:
        """False after a signal that came during the clean-up."""
        return self.came < 2
