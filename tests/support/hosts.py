"""Hosts of one machine: network namespaces on a bridge, each with a host name and process ids of its own.

They share files, as workers with a common file system do. A host can be cut off from the others, and lose power.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psutil

from tests.support.waiting import eventually

PROGRAMS = ("ip", "unshare", "nsenter")
NETWORK = "10.{first}.{second}"
HARDWARE = "02:00:00:00:00:01"
"""Address of each bridge; bridges do not see each other."""
FIRST, LAST = 11, 250
"""The hosts' places in it."""


TRIED = " && ".join(
    (
        "ip link add lgtried type bridge",
        "ip link add lgone type veth peer name lgother",
        "mount -t tmpfs none /tmp",
        "mkdir /tmp/etc",
        "mount --rbind /etc /tmp/etc",
    )
)
"""In namespaces of its own; root of a container may have been denied it."""


@cache
def why_not() -> str | None:
    """Why this machine cannot have them, in words; None if it can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        return f"hosts are Linux namespaces: they need root{' and ' + ', '.join(missing) if missing else ''}"
    alone = ["unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--mount-proc", "--fork"]
    done = subprocess.run([*alone, "sh", "-c", TRIED], capture_output=True, text=True, check=False)
    name = f"logio-tried-{os.getpid()}"
    if done.returncode == 0:
        done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
        _ip("netns", "del", name, check=False)
    return (
        None
        if done.returncode == 0
        else f"hosts are Linux namespaces, which are denied here: {done.stderr[:200].strip()}"
    )


@dataclass
class Host:
    """One of them, at `address`."""

    name: str
    address: str
    namespace: str
    link: str
    """Its end of the cable at the bridge."""
    first: psutil.Process | None = None
    """The process with which all others end."""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def power_on(self) -> None:
        alone = ["unshare", "--uts", "--pid", "--mount-proc", "--fork", "--kill-child"]
        script = f"hostname {self.name} && exec sleep infinity"
        outer = subprocess.Popen(["ip", "netns", "exec", self.namespace, *alone, "sh", "-c", script])
        self.started.append(outer)

        def sleeps() -> psutil.Process | None:
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(outer.pid).children()
                return next((one for one in children if "sleep" in one.cmdline()), None)
            return None

        self.first = eventually(sleeps, what=f"host {self.name} is up", timeout=30)

    def power_off(self) -> None:
        """All of its processes end at once, as the kernel ends a pid namespace."""
        if self.first is not None:
            with suppress(psutil.NoSuchProcess):
                self.first.kill()
            self.first = None
        for process in self.started:
            process.wait(timeout=30)
        self.started.clear()

    def run(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> None:
        """Start a program on this host, in a session of its own."""
        assert self.first is not None, f"host {self.name} is off"
        enter = ["nsenter", "--target", str(self.first.pid), "--net", "--uts", "--pid", "--mount", "--"]
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*enter, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
            )
        self.started.append(process)

    def cut_off(self) -> None:
        _ip("link", "set", self.link, "down")

    def reconnect(self) -> None:
        _ip("link", "set", self.link, "up")


@dataclass
class Network:
    """`address` is that of the machine itself on the bridge: servers for all hosts listen there."""

    number: int
    hosts: dict[str, Host] = field(default_factory=dict)
    _last: int = FIRST - 1

    @property
    def address(self) -> str:
        return f"{self._net}.1"

    def plug_in(self, name: str) -> Host:
        """A host that is off, at an address of its own."""
        place = self._free_place()
        host = Host(name, f"{self._net}.{place}", f"logio-{place}-{self.number}", f"lg{place}v{self.number}")
        self.hosts[name] = host
        _ip("netns", "add", host.namespace)
        _ip("link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
        _ip("link", "set", host.link, "master", self._bridge, "up")
        _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
        for link in ("eth0", "lo"):
            _ip("-n", host.namespace, "link", "set", link, "up")
        return host

    def unplug(self, name: str) -> None:
        """Its cable and its address are no more; it is off."""
        host = self.hosts.pop(name)
        for command in (("link", "del", host.link), ("netns", "del", host.namespace)):
            _ip(*command, check=False)

    def begin(self) -> None:
        self._clear()
        # Its own for good. A bridge takes the lowest hardware address of its cables, another one when hosts come and go, and
        # all others then send to the one that they have learnt, for a minute and more.
        _ip("link", "add", self._bridge, "address", HARDWARE, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    def end(self) -> None:
        for host in tuple(self.hosts.values()):
            host.power_off()
            self.unplug(host.name)
        _ip("link", "del", self._bridge, check=False)

    def _clear(self) -> None:
        """What a killed process of this number has left."""
        _ip("link", "del", self._bridge, check=False)
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
        for name in (line.split()[0] for line in listed.splitlines() if line.strip()):
            if name.startswith("logio-") and name.endswith(f"-{self.number}"):
                _ip("netns", "del", name, check=False)

    @property
    def _net(self) -> str:
        return NETWORK.format(first=64 + self.number // 250 % 64, second=self.number % 250)

    @property
    def _bridge(self) -> str:
        return f"lgb{self.number}"

    def _free_place(self) -> int:
        """In turn, so that an address is not that of a host of a moment ago."""
        taken = {int(host.address.rpartition(".")[2]) for host in self.hosts.values()}
        places = [*range(self._last + 1, LAST + 1), *range(FIRST, self._last + 1)]
        self._last = next(place for place in places if place not in taken)
        return self._last


@contextmanager
def network(*names: str) -> Iterator[Network]:
    """Hosts of these names, all of them on. They end with it, and all that runs on them."""
    net = Network(os.getpid())
    try:
        net.begin()
        for name in names:
            net.plug_in(name).power_on()
        yield net
    finally:
        net.end()


def _ip(*arguments: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
