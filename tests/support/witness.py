"""An observer that looks at a run all the time while a test hurts it, and remembers what must never have been."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import TracebackType

import psutil

from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run

EVERY_SECONDS = 0.4
ENDING_SECONDS = 30.0
"""An old driver is fenced before the new one starts; for so long its process may be seen to end."""


class Witness:
    """`complaints`: incarnations that went back, and old drivers that lived on beside their successor that runs."""

    def __init__(self, store: LogStore, run: Run, drivers: Path) -> None:
        self._store = store
        self._run_id = run.run_id
        self._pattern = re.compile(re.escape(str(drivers)) + r"/([^/ ]+)/([^/ ]+)/(\d+)/")
        self._uid = run.uid
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="witness", daemon=True)
        self._newest: dict[str, int] = {}
        self._beside: dict[tuple[str, int], float] = {}
        self.looks = 0
        self.complaints: list[str] = []

    def __enter__(self) -> Witness:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(timeout=30)

    def processes(self) -> dict[tuple[str, int], list[psutil.Process]]:
        """(group, incarnation) → what runs of its driver on this machine."""
        found = defaultdict(list)
        for process in psutil.process_iter(["cmdline", "status"]):
            match = self._pattern.search(" ".join(process.info["cmdline"] or []))
            if match and match[1] == self._uid and process.info["status"] != psutil.STATUS_ZOMBIE:
                found[match[2], int(match[3])].append(process)
        return found

    def _watch(self) -> None:
        while not self._stopping.wait(EVERY_SECONDS):
            try:
                self._look()
            except LogUnavailable:
                continue
            except Exception as error:
                self.complaints.append(f"the witness cannot look: {error!r}")
                return

    def _look(self) -> None:
        groups = self._store.groups(self._run_id)
        for group in groups:
            if group.incarnation < self._newest.get(group.group, 0):
                self.complaints.append(
                    f"{group.group}: incarnation {group.incarnation} after {self._newest[group.group]}"
                )
            self._newest[group.group] = group.incarnation
        running = {group.group: group.incarnation for group in groups if group.state is GroupState.RUNNING}
        now = time.monotonic()
        beside = {key for key in self.processes() if key[1] < running.get(key[0], 0)}
        self._beside = {key: self._beside.get(key, now) for key in beside}
        for group_name, incarnation in [key for key, since in self._beside.items() if now - since > ENDING_SECONDS]:
            self.complaints.append(f"{group_name}: incarnation {incarnation} lives beside {running[group_name]}")
            del self._beside[group_name, incarnation]
        self.looks += 1
