"""A program that runs a pod in namespaces of its own: it makes the pod's files, and becomes the container's command.

Its argument is a file that `pods.py` has written; the network is that of the program itself. There are no
images: a pod sees the folders of this machine, except where something else is mounted. Nothing is made on the machine itself:
a folder that gets a new entry is made anew in memory, and each of its other entries is mounted there.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass, field

READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18
MOUNTS, NAMES, MEMORY, PROCESSES = 0x20000, 0x4000000, 0x8000000, 0x20000000
"""Namespaces."""
END_WITH_PARENT = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Place:
    """What a path of the pod is: that of this machine, or `source` of it; with other places in it."""

    source: str | None = None
    read_only: bool = False
    inside: dict[str, Place] = field(default_factory=dict)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mounting {source} at {target}: {os.strerror(number)}")


def places(mounts: list[dict[str, object]]) -> Place:
    """A tree of the mounts, whose paths are resolved: `/var/run` may be a link."""
    root = Place("/")
    for one in mounts:
        path = str(one["path"]).rstrip("/")
        parent, _, name = path.rpartition("/")
        here = root
        for part in [*os.path.realpath(parent or "/").split("/"), name]:
            if part:
                here = here.inside.setdefault(part, Place())
        here.source, here.read_only = str(one["source"]), bool(one["read_only"])
    return root


def build(there: str | None, here: str, place: Place) -> None:
    """Make folder `here` out of folder `there` of this machine, and of what is in the place."""
    for entry in os.scandir(there) if there is not None else ():
        if entry.name in place.inside:
            continue
        target = f"{here}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), target)
        elif entry.is_dir() or entry.is_file():
            attach(entry.path, target)
    for name, inner in place.inside.items():
        source = inner.source
        if source is None:
            real = None if there is None else os.path.realpath(f"{there}/{name}")
            source = real if real is not None and os.path.isdir(real) else None
        target = f"{here}/{name}"
        if inner.inside or source is None:
            os.mkdir(target)
            build(source, target, inner)
        else:
            attach(source, target)
            if inner.read_only:
                mount(source, target, "", BIND | REMOUNT | READ_ONLY)


def attach(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        with open(target, "w"):
            pass
    mount(source, target, "", BIND | RECURSIVE)


def main(file: str) -> None:
    with open(file) as text:
        pod = json.load(text)
    socket.sethostname(pod["hostname"])
    root = pod["root"]
    mount("none", "/", "", RECURSIVE | PRIVATE)
    mount("tmpfs", root, "tmpfs", 0, "mode=755")
    tree = places(pod["mounts"])
    tree.inside["proc"] = Place(pod["empty"])
    build("/", root, tree)
    mount("proc", f"{root}/proc", "proc", 0)
    os.chroot(root)
    os.chdir(pod["folder"])
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and its children would inherit that
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(pod["command"][0], pod["command"], pod["environment"])
    except OSError as error:
        sys.stderr.write(f"exec {pod['command'][0]}: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def run(file: str, begun: int) -> int:
    """The pod's exit code, as a shell says it: 128 + n if signal n has ended it.

    The pod ends with this process, and this process with its parent. `begun` is a descriptor that is closed when the pod's
    command runs.
    """
    parent = os.getppid()
    _libc.prctl(END_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    if _libc.unshare(MOUNTS | NAMES | MEMORY | PROCESSES) != 0:
        raise OSError(ctypes.get_errno(), "no namespaces")
    first = os.fork()
    if first == 0:
        _libc.prctl(END_WITH_PARENT, signal.SIGKILL)
        os.set_inheritable(begun, False)
        main(file)
    os.close(begun)
    code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2])))
