"""A real PgBouncer between tests and the session's PostgreSQL, on a free port, ended with the test.

It is the one on this machine, or Debian's package, unpacked where nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
import sqlalchemy as sa

from tests.support.debian import libraries, unpacked
from tests.support.postgres import unprivileged
from tests.support.waiting import eventually


@contextmanager
def pgbouncer(server_url: str, *, pool_mode: str, pool_size: int = 2, drops: str = "") -> Iterator[str]:
    """Yield the URL of the same database through PgBouncer.

    Two server sessions are few, so that clients share them. It drops the start-up parameters of `drops`; all others that
    it does not know it refuses.
    """
    url = sa.engine.make_url(server_url)
    folder = Path(tempfile.mkdtemp(prefix="logio-pgbouncer-"))
    as_user = unprivileged()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    (folder / "users").write_text(f'"{url.username}" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n{url.database} = host={url.host} port={url.port} dbname={url.database}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = users\n"
        f"pool_mode = {pool_mode}\ndefault_pool_size = {pool_size}\nignore_startup_parameters = {drops}\n"
    )
    if as_user:
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, as_user["user"], as_user["group"])
    program, libraries = _program()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "pgbouncer.ini"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={"LD_LIBRARY_PATH": libraries, "PATH": os.defpath},
            **as_user,
        )
    try:
        through = url.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        eventually(lambda: _answers(through, process), what="PgBouncer answers")
        yield through
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "PgBouncer ended while it was starting"
    try:
        psycopg2.connect(url, connect_timeout=5).close()
    except psycopg2.OperationalError:
        return False
    return True


def _program() -> tuple[str, str]:
    """PgBouncer, and where it finds libraries that are not installed."""
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is not None:
        return found, ""
    folder = unpacked("pgbouncer", "libc-ares", "libcares", "libevent")
    return str(folder / "usr" / "sbin" / "pgbouncer"), libraries(folder)
