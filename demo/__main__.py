"""``python -m demo``: runs the demonstration, and keeps Airflow running until Ctrl-C.

With ONCE=1 it ends with the run; the exit code is 0 only if the result is exact and the DAG run has succeeded. DAG names
the DAG to show, by default ``logio_sales``.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from types import FrameType

from rich.console import Console

from airflow_logio.cli.display import Progress
from airflow_logio.errors import LogioError
from demo.demonstration import Demonstration
from demo.examples import example
from demo.places import Places
from demo.standalone import Standalone

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130


def main() -> int:
    once = os.environ.get("ONCE", "") not in ("", "0")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
    try:
        shown = example(os.environ.get("DAG") or "logio_sales")
        places = Places.of_this_clone(copies_dags=shown.changes_code)
        demo = Demonstration(places, Progress(console), Standalone(places), shown, shows_login=not once)
    except LogioError as error:
        console.print(f"demo: {error}", style="red", markup=False)
        return 1
    interrupts = Interrupts()
    try:
        return _run(demo, console, once=once)
    except KeyboardInterrupt:
        console.print(
            "\nstopping Airflow and the drivers; press Ctrl-C again to quit without waiting for them", markup=False
        )
        return INTERRUPTED
    finally:
        try:
            interrupts.begin_cleaning()
        finally:
            demo.stop(interrupts.is_patient)


def _run(demo: Demonstration, console: Console, *, once: bool) -> int:
    try:
        verdict = demo.run()
    except LogioError as error:
        console.print(f"demo: {error}", style="red", markup=False)
        return 1
    console.print(f"\n{verdict}. {demo.watch.total:.0f} s in all; details: {demo.places.summary}", markup=False)
    if not once:
        console.print(f"the run: {demo.page}{demo.login}", markup=False)
        console.print("It runs until Ctrl-C.", markup=False)
        try:
            while True:
                demo.look_after_airflow()
                time.sleep(1)
        except LogioError as error:
            console.print(f"demo: {error}", style="red", markup=False)
            return 1
    return 0 if verdict.is_good else 1


class Interrupts:
    """Ctrl-C, SIGTERM and SIGHUP: the first one interrupts the demonstration; later ones only speed up the clean-up.

    Install it once, in the main thread. It raises KeyboardInterrupt there once, unless the clean-up has begun.
    """

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


if __name__ == "__main__":
    sys.exit(main())
