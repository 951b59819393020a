"""A real MariaDB on a free port, ended with the test: a database that SQLAlchemy reaches, and that is not for tables.

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

import sqlalchemy as sa

from tests.support.debian import libraries, unpacked
from tests.support.postgres import unprivileged
from tests.support.waiting import eventually


@contextmanager
def mariadb() -> Iterator[str]:
    """Yield the URL of an empty database."""
    program, options, library_path = _program()
    folder = Path(tempfile.mkdtemp(prefix="logio-mariadb-"))
    (folder / "data").mkdir()
    as_user = unprivileged()
    if as_user:
        for path in (folder, folder / "data"):
            shutil.chown(path, as_user["user"], as_user["group"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [program, "--no-defaults", f"--datadir={folder / 'data'}", "--skip-grant-tables", "--skip-networking=0"]
    command += ["--bind-address=127.0.0.1", f"--port={port}", "--socket=", f"--pid-file={folder / 'pid'}", *options]
    command += ["--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--innodb-use-native-aio=0"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={"LD_LIBRARY_PATH": library_path, "PATH": os.defpath},
            **as_user,
        )
    server = sa.create_engine(f"mysql+pymysql://root@127.0.0.1:{port}/", poolclass=sa.NullPool)
    try:
        eventually(lambda: _answers(server, process), what="MariaDB answers", timeout=60)
        with server.begin() as connection:
            connection.execute(sa.text("CREATE DATABASE shop"))
        yield f"mysql+pymysql://root@127.0.0.1:{port}/shop"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(server: sa.Engine, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "MariaDB ended while it was starting"
    try:
        server.connect().close()
    except sa.exc.OperationalError:
        return False
    return True


def _program() -> tuple[str, list[str], str]:
    """MariaDB, the options that tell it where its files are, and where it finds libraries that are not installed."""
    found = shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is not None:
        return found, [], ""
    folder = unpacked("mariadb-server-core", "liburing", "libaio", "libnuma", "libpmem")
    shared = folder / "usr" / "share" / "mysql"
    options = [f"--lc-messages-dir={shared}", f"--character-sets-dir={shared / 'charsets'}"]
    return str(folder / "usr" / "sbin" / "mariadbd"), options, libraries(folder)
