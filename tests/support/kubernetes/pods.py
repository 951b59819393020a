"""One pod that runs: a process of this machine in namespaces of its own, with an address."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

from tests.support.hosts import Host
from tests.support.kubernetes.problems import Object
from tests.support.waiting import eventually

HERE = Path(__file__).parent


@dataclass
class Pod:
    """Known by its uid: names are used again."""

    namespace: str
    name: str
    uid: str
    node: str
    folder: Path
    host: Host
    started_at: str = ""
    ended_at: str = ""
    cause: tuple[str, str] | None = None
    """Why the node has ended it, and in more words: `Evicted`, for example."""
    container_cause: str | None = None
    """`OOMKilled`, for example."""
    reported: Object = field(default_factory=dict)
    """The status that the API server has, as far as this kubelet knows."""
    waiting: tuple[str, str] | None = None
    term_at: float | None = None
    """When it was told to end, on the monotonic clock."""
    _process: subprocess.Popen[bytes] | None = None
    _begun: int | None = None
    """Readable, because it is at its end, when the command runs."""

    @property
    def address(self) -> str:
        return self.host.address

    @property
    def log(self) -> str:
        """What it has printed."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def has_started(self) -> bool:
        return self._process is not None

    @property
    def has_begun(self) -> bool:
        """Whether its command runs, or has run."""
        if self._process is None:
            return False
        if self._begun is not None and select.select([self._begun], [], [], 0)[0]:
            os.close(self._begun)
            self._begun = None
        return self._begun is None

    @property
    def exit_code(self) -> int | None:
        """None before it has ended; 128 + n if signal n has ended it."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self.ended_at = self.ended_at or now()
        return 128 - code if code < 0 else code

    def start(
        self, command: list[str], environment: dict[str, str], workdir: str, mounts: list[dict[str, object]]
    ) -> None:
        for made in ("root", "empty", "tmp"):
            (self.folder / made).mkdir(exist_ok=True)
        files = [
            {"path": "/etc/hosts", "source": str(self.folder / "hosts"), "read_only": False},
            {"path": "/opt/entrypoint.sh", "source": str(HERE / "entrypoint.sh"), "read_only": True},
            {"path": "/opt/first.py", "source": str(HERE / "first.py"), "read_only": True},
            {"path": "/tmp", "source": str(self.folder / "tmp"), "read_only": False},
        ]
        what = {
            "hostname": self.name[:63],
            "root": str(self.folder / "root"),
            "empty": str(self.folder / "empty"),
            "mounts": [*files, *mounts],
            "command": command,
            "environment": environment,
            "folder": workdir,
        }
        (self.folder / "pod.json").write_text(json.dumps(what))
        self.started_at = now()
        self._begun, begun = os.pipe()
        program = [sys.executable, "-I", "-S", str(HERE / "pod_root.py"), str(self.folder / "pod.json"), str(begun)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self.host.namespace, *program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PATH": os.environ["PATH"]},
                start_new_session=True,
                pass_fds=(begun,),
            )
        os.close(begun)

    # --- its processes ------------------------------------------------------------------------------------------------

    @property
    def first(self) -> psutil.Process | None:
        """With which all others end; None if there is none."""
        if self._process is not None and self._process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                return next(iter(psutil.Process(self._process.pid).children()), None)
        return None

    def processes(self, program: str = "") -> list[psutil.Process]:
        """All of them whose program's name has `program` in it: `java`, `python`."""
        first, found = self.first, []
        for one in () if first is None else (first, *first.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                if program in one.name():
                    found.append(one)
        return found

    def terminate(self) -> None:
        """SIGTERM to the first process, which may have no handler: then nothing happens, as in any container."""
        if (first := self.first) is not None:
            self.term_at = self.term_at or time.monotonic()
            with suppress(psutil.NoSuchProcess):
                first.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to all."""
        if (first := self.first) is not None:
            with suppress(psutil.NoSuchProcess):
                first.kill()

    def kill_all_of(self, program: str) -> int:
        """SIGKILL to all processes of a program, `java` or `python`; how many there were. The first one is spared."""
        first, victims = self.first, self.processes(program)
        for victim in victims:
            if victim != first:
                with suppress(psutil.NoSuchProcess):
                    victim.kill()
        return len(victims)

    def end(self) -> None:
        """At once, and waited for."""
        if self._process is not None:
            eventually(lambda: self.has_begun, what=f"pod {self.name} begins")
            self.kill()
            self._process.wait(timeout=60)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
