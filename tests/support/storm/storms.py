"""One storm: a random pipeline runs to its end in random weather, and what it leaves is compared with the oracle."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import psutil

from airflow_logio.launch.processes import APPLICATION
from airflow_logio.protocol.states import GroupState
from airflow_logio.status.run_summary import Outcome
from tests.conftest import QUICK
from tests.support.logs import open_sql_store
from tests.support.storm import authored
from tests.support.storm.answers import Answers
from tests.support.storm.places import Place
from tests.support.storm.plan import plan_of
from tests.support.storm.shape import Terminal, drawn
from tests.support.storm.supervisors import Command, Here, Supervisor
from tests.support.storm.weather import LEASE, Weather, armed

MOST_SECONDS = 300.0
"""After so long the run should have finished."""
PROGRAMS = {Terminal.COMMAND: "tests.support.storm.terminal", Terminal.SPARK: "airflow_logio.cli"}


class Storm:
    """Use it as a context: at its end no process of the run is left."""

    def __init__(self, seed: int, place: Place) -> None:
        self.shape = drawn(seed)
        self._place = place
        self.store = open_sql_store(place.log_url, patience=QUICK)
        ref = authored.written(place.folder / "code", seed)
        params = place.furnish(self.shape)
        self.supervisor: Supervisor
        if self.shape.terminal is Terminal.HERE:
            self.supervisor = Here(place, self.store, ref, params, lambda groups: armed(seed, groups), {"lease": LEASE})
        else:
            program = PROGRAMS[self.shape.terminal]
            self.supervisor = Command(place, self.store, ref, params, program, seed)
        self.plan = plan_of(self.shape, place.outages)
        wild = self.shape.terminal is Terminal.HERE
        self.weather = Weather(seed, place, self.supervisor.logs, self.store, self.plan, wild=wild)

    def blow(self) -> None:
        """Until the run has finished, and nothing is set aside any more."""
        ends_at = time.monotonic() + MOST_SECONDS

        def look(supervisor: Supervisor) -> None:
            assert time.monotonic() < ends_at, "the run never ends"
            self.weather.look(supervisor)

        while (outcome := self.supervisor.supervise(look)) is not Outcome.FINISHED:
            if outcome is Outcome.QUARANTINED:
                self._place.trouble.unlink(missing_ok=True)
                self.supervisor.mend()

    def check(self) -> None:
        """What came out is right. What was planned has happened, but for what the weather knows to have `failed`."""
        self.weather.clear()
        missing = [one for one in self.plan if not self.weather.told[one] and one not in self.weather.failed]
        assert not missing, f"the run has ended without {missing}"
        Answers(self.shape, self._place, self.store, self.supervisor.run).check()
        states = {one.state for one in self.store.groups(self.supervisor.run.run_id)}
        assert states <= {GroupState.FINISHED, GroupState.RETIRED}, states
        assert not self._drivers(), "drivers are left"

    def close(self) -> None:
        self.weather.clear()
        self.supervisor.close()
        left = self._drivers()
        for driver in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                driver.kill()
        psutil.wait_procs(left, timeout=10)
        self.store.dispose()

    def last_words(self) -> str:
        logs = sorted(self.supervisor.logs.rglob("driver.log"), key=lambda log: log.stat().st_mtime)[-8:]
        ends = [f"--- {log.parent}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]) for log in logs]
        said = [repr(self.shape), repr(dict(self.weather.told)), self.supervisor.last_words()]
        return "\n".join([*said, *ends])

    def _drivers(self) -> list[psutil.Process]:
        """Every driver's command line names a file below the storm's folder."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = " ".join(process.cmdline())
                if APPLICATION.name in words and f"{self._place.folder}/" in words:
                    found.append(process)
        return found


@contextlib.contextmanager
def storm(seed: int, place: Place) -> Iterator[Storm]:
    one = Storm(seed, place)
    try:
        yield one
    except BaseException as error:
        error.add_note(one.last_words())
        raise
    finally:
        one.close()
