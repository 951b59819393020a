"""Databases on a disk that can be filled: a small file system of its own, mounted by root.

Without the right to mount one there are refusals instead: PostgreSQL gives them from a trigger, with the SQLSTATE of a full
disk, SQLite by a limit on the size of files, which holds for this whole process.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from airflow_logio.store.sql import migrate
from tests.support.postgres import PostgresServer, unprivileged

MEBIBYTES = 64


class SmallDisk:
    """`fill` leaves no room for another page of a table; `make_room` takes that back."""

    def __init__(self, url: str, folder: Path | None) -> None:
        self.url = url
        self._folder = folder

    def fill(self) -> None:
        if self._folder is None:
            _execute(self.url, *_REFUSALS)
            return
        with (self._folder / "ballast").open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(1 << 16))
            except OSError:
                pass
        assert shutil.disk_usage(self._folder).free < 1 << 16

    def make_room(self) -> None:
        if self._folder is None:
            _execute(self.url, "DROP FUNCTION no_room CASCADE")
            return
        (self._folder / "ballast").unlink()


_REFUSALS = (
    "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
    "'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$",
    "CREATE TRIGGER no_room BEFORE INSERT ON logio_event_data FOR EACH STATEMENT EXECUTE FUNCTION no_room()",
)


class SmallFolder:
    """As `SmallDisk`, for files."""

    def __init__(self, path: Path, *, is_mounted: bool) -> None:
        self.path = path
        self.is_mounted = is_mounted

    def fill(self) -> None:
        if self.is_mounted:
            SmallDisk("", self.path).fill()
            return
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    def make_room(self) -> None:
        if self.is_mounted:
            SmallDisk("", self.path).make_room()
            return
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def small_folder(otherwise: Path) -> Iterator[SmallFolder]:
    """A folder on a small disk; `otherwise` where none can be mounted."""
    with _mounted(owner=None) as folder:
        yield SmallFolder(folder or otherwise, is_mounted=folder is not None)


@contextmanager
def small_disk(server: PostgresServer) -> Iterator[SmallDisk]:
    with _mounted(unprivileged()) as folder:
        space = ""
        if folder is not None:
            _execute(server.url("postgres"), f"CREATE TABLESPACE small_disk LOCATION '{folder}/space'")
            space = " TABLESPACE small_disk"
        _execute(server.url("postgres"), f"CREATE DATABASE small_disk{space}")
        url = server.url("small_disk")
        try:
            migrate.upgrade(url)
            yield SmallDisk(url, folder)
        finally:
            server.drop_database(url)
            if folder is not None:
                _execute(server.url("postgres"), "DROP TABLESPACE small_disk")


@contextmanager
def _mounted(owner: Mapping[str, Any] | None) -> Iterator[Path | None]:
    folder = Path(tempfile.mkdtemp(prefix="logio-small-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={MEBIBYTES}m,mode=755", "tmpfs", str(folder)]
    is_mounted = os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0
    try:
        if is_mounted:
            folder.chmod(0o755)
            (folder / "space").mkdir()
            if owner is not None:
                shutil.chown(folder / "space", owner["user"], owner["group"])
        yield folder if is_mounted else None
    finally:
        if is_mounted:
            # Lazily: files that a test has left open keep the disk, and must not hide why the test has failed.
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def _execute(url: str, *statements: str) -> None:
    connection = psycopg2.connect(url)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
    finally:
        connection.close()
