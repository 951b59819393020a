"""A shared server that does not start: lost, if it was killed, is slow or its machine is short of something; else
misconfigured. And another program that listens where the server was to listen, or has listened.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import grpc
import msgspec
import pytest

from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError, SparkLost
from airflow_logio.launch import driver_folders, processes, shared_server
from airflow_logio.launch.application.connect_server import STATE
from airflow_logio.launch.shared_server import ServerClient, ServerRecipe, first_error
from airflow_logio.spark.connect_channels import OnlyToServer
from airflow_logio.spark.connect_engine import (
    SILENT_SECONDS,
    ConnectEngine,
    ConnectTarget,
    ServerAddress,
    SessionName,
)
from tests.store.small_disk import small_folder
from tests.support.listening import Listener
from tests.support.waiting import eventually
from tests.unit.launch.test_shared_server import ended, port_of, recipe, slow_server, state

__all__ = ["ended", "recipe"]  # fixtures

FRAMES = "\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3255)\n" * 40
REFUSED = f"""\
26/11/30 01:48:00 INFO SparkContext: Running Spark version 4.2.0
26/11/30 01:48:00 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform
26/11/30 01:48:01 ERROR SparkContext: Error initializing SparkContext.
org.apache.spark.SparkException: Could not parse Master URL: 'locall[1]'
{FRAMES}Caused by: java.lang.IllegalArgumentException: locall
\t... 12 more
26/11/30 01:48:01 INFO SparkContext: SparkContext is stopping with exitCode 0
{FRAMES}"""


def instead(recipe: ServerRecipe, code: str) -> ServerRecipe:
    """A server that does this."""
    command = [sys.executable, "-c", f"import os, signal, sys, time\n{code}", "spark-internal"]
    return replace(recipe, command=command)


def refusal(recipe: ServerRecipe) -> LogioError:
    with pytest.raises(LogioError) as refused:
        ServerClient(recipe).connected()
    return refused.value


class Stranger:
    """Another program that listens on a port, and keeps what it is sent."""

    def __init__(self, port: int = 0) -> None:
        self.got = b""
        listener = eventually(lambda: self._listening(port), what="the port is free")
        assert listener is not None
        self.port, self.close = listener.port, listener.close

    def _listening(self, port: int) -> Listener | None:
        """None while a process that was killed still has the port."""
        try:
            return Listener(self._hear, port)
        except OSError:
            return None

    def _hear(self, connection: socket.socket) -> None:
        while more := connection.recv(4096):
            self.got += more


@contextmanager
def stranger(port: int = 0) -> Iterator[Stranger]:
    one = Stranger(port)
    try:
        yield one
    finally:
        one.close()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            r"killed while it started \(SIGKILL, as a machine does that has no mem",
        ),
        ("os.kill(os.getpid(), signal.SIGTERM)", r"killed while it started \(SIGTERM\)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", r"killed while it started \(SIGSEGV\)"),
        ("sys.exit(128 + signal.SIGKILL)  # a shell whose JVM was killed", r"killed while it started \(SIGKILL"),
        ("sys.exit(128 + signal.SIGTERM)  # a JVM that was asked to end", r"killed while it started \(SIGTERM"),
        (
            "os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)",
            "the process that keeps .* has ended .*: it was killed",
        ),
        ("sys.exit('java.io.IOException: No space left on device')", "exit code 1; the first error .*No space left"),
        ("sys.exit('# There is insufficient memory for the Java Runtime Environment')", "insufficient memory"),
        ("sys.exit('Error: unable to create native thread: possibly out of memory')", "native thread"),
        ("sys.exit('26/11/30 01:48:01 ERROR Backend: All masters are unresponsive!')", "masters are unresponsive"),
    ],
)
def test_a_server_that_was_killed_as_it_started_is_lost(recipe: ServerRecipe, code: str, said: str) -> None:
    """Or that had not what it needs for now: another start may succeed."""
    error = refusal(instead(recipe, code))
    assert isinstance(error, SparkLost), repr(error)
    assert re.search(said, str(error), re.DOTALL), str(error)
    if (left := shared_server.known(Path(recipe.folder))) is not None:
        eventually(lambda: processes.is_gone(left.jvm), what="nothing of it is left")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "sys.exit('Error: Unrecognized option: --fooo')",
            "exit code 1; the first error in .*:\nError: Unrecognized opt",
        ),
        ("sys.exit(0)", "exit code 0; it has said nothing"),
        ("sys.exit(255)  # no signal", "exit code 255"),
        (f"sys.stderr.write({REFUSED!r}); sys.exit(1)", "exit code 1; .*\n26.* ERROR .*\norg.*'locall.1.'\nCaused by"),
    ],
)
def test_a_server_that_ends_by_itself_is_misconfigured(recipe: ServerRecipe, code: str, said: str) -> None:
    """The excerpt begins with the first error of this start, whatever earlier ones have said, and has no frames."""
    folder = Path(recipe.folder)
    folder.mkdir()
    (folder / shared_server.LOG_NAME).write_text("26/11/29 00:00:00 ERROR Earlier: No space left on device\n")
    error = refusal(instead(recipe, code))
    assert isinstance(error, ConfigurationError), repr(error)
    assert re.search(said, str(error)), str(error)
    assert "Earlier" not in str(error) and "\tat " not in str(error)


@pytest.mark.parametrize("program", ["missing", "no_program"])
def test_a_program_that_cannot_be_executed_is_named(recipe: ServerRecipe, tmp_path: Path, program: str) -> None:
    (tmp_path / "no_program").write_text("")
    error = refusal(replace(recipe, command=[str(tmp_path / program), "spark-internal"]))
    assert isinstance(error, ConfigurationError)
    assert re.search(rf"first error in .*:\nError: .*{program} cannot be executed", str(error)), str(error)


def test_an_excerpt_has_no_secret(recipe: ServerRecipe) -> None:
    code = "sys.exit('Error: cannot log in with ' + os.environ['HADOOP_PASSWORD'])"
    error = refusal(instead(replace(recipe, environment={"HADOOP_PASSWORD": "c0rrect-horse"}), code))
    assert "cannot log in with ***" in str(error) and "c0rrect-horse" not in str(error)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (REFUSED, [*REFUSED.splitlines()[2:4], "Caused by: java.lang.IllegalArgumentException: locall"]),
        (
            "Error: Unrecognized option: --fooo\n\nWARNING: Using incubator modules: jdk.incubator.vector\n"
            "Usage: spark-submit [options] <app jar | python file | R file> [app arguments]\nOptions:\n",
            ["Error: Unrecognized option: --fooo"],
        ),
        (
            "/spark/bin/spark-class: line 71: /no/java/bin/java: No such file or directory\n",
            ["/spark/bin/spark-class: line 71: /no/java/bin/java: No such file or directory"],
        ),
        ("JAVA_HOME is not set\n", ["JAVA_HOME is not set"]),
        (
            '{"ts":"2026-11-30","level":"INFO","msg":"begun"}\n{"ts":"2026-11-30","level":"ERROR","msg":"ended"}\n'
            '{"ts":"2026-11-30","level":"INFO","msg":"stopping"}\n',
            ['{"ts":"2026-11-30","level":"ERROR","msg":"ended"}'],
        ),
        (
            '26/11/30 01:48:00 INFO A: no ERROR yet\nException in thread "main" a.B: c\n',
            ['Exception in thread "main" a.B: c'],
        ),
        (
            "2026-11-30 01:48:00,123 [main] INFO A: 0 of ERROR level\nof A\nINFO B\nERROR C: d\nWARN E\n",
            ["ERROR C: d"],
        ),
        (
            "INFO begun\nTerminating due to java.lang.OutOfMemoryError: Java heap space\n",
            ["Terminating due to java.lang.OutOfMemoryError: Java heap space"],
        ),
        ("", []),
    ],
)
def test_the_first_error_of_a_log_is_found(printed: str, shown: list[str]) -> None:
    assert first_error(printed).splitlines() == shown


def test_a_slow_server_is_left_to_itself_and_found_again(
    recipe: ServerRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait for its place on a cluster. Who waits has lost it, and finds it when it asks again."""
    slow, client = slow_server(recipe, tmp_path), ServerClient(recipe)
    begun, patience = state(slow), shared_server.START_SECONDS
    monkeypatch.setattr(shared_server, "START_SECONDS", 0.2)
    for _ in range(2):
        with pytest.raises(SparkLost, match=r"has not begun to listen within 0\.2 s"):
            client.connected()
    assert state(slow) == begun and not processes.is_gone(begun.jvm)
    monkeypatch.setattr(shared_server, "START_SECONDS", patience)
    (tmp_path / "go").touch()
    client.connected()
    assert state(slow) == begun


def test_a_server_that_never_listens_is_replaced(
    recipe: ServerRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = state(slow_server(recipe, tmp_path))
    patience, client = shared_server.START_SECONDS, ServerClient(recipe)
    start = client._started

    def patient() -> shared_server.Server:
        monkeypatch.setattr(shared_server, "START_SECONDS", patience)
        return start()

    monkeypatch.setattr(client, "_started", patient)
    monkeypatch.setattr(shared_server, "HUNG_SECONDS", 0.0)
    monkeypatch.setattr(shared_server, "START_SECONDS", 0.2)
    client.connected()
    assert state(recipe).jvm != hung.jvm and processes.is_gone(hung.jvm)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENOENT])
def test_a_folder_without_room_is_an_outage_and_no_server_is_left(
    recipe: ServerRecipe, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Its note cannot be written: no client would know it."""
    noted: list[shared_server.Server] = []

    def full(path: Path, content: bytes) -> None:
        noted.append(msgspec.json.decode(content, type=shared_server.Server))
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(driver_folders, "create_private", full)
        error = refusal(recipe)
    assert isinstance(error, SparkLost) and f"cannot be started in {recipe.folder}" in str(error)
    (server,) = noted
    eventually(lambda: processes.is_gone(server.keeper) and processes.is_gone(server.jvm), what="it has ended")
    ServerClient(recipe).connected()


def test_a_full_disk_is_an_outage(recipe: ServerRecipe, tmp_path: Path) -> None:
    with small_folder(tmp_path / "otherwise") as disk:
        folder = disk.path / ".connect"
        folder.mkdir(parents=True)
        on_disk = replace(recipe, folder=str(folder))
        disk.fill()
        try:
            error = refusal(on_disk)
        finally:
            disk.make_room()
        assert isinstance(error, SparkLost), repr(error)
        server = ServerClient(on_disk).connected()
        assert server.is_there is not None and server.is_there()
        shared_server.end(state(on_disk))


def test_a_folder_that_a_person_must_mend_is_a_misconfiguration(recipe: ServerRecipe, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "file" / ".connect"):
        assert isinstance(refusal(replace(recipe, folder=str(wrong))), ConfigurationError)


def test_a_program_that_took_the_port_first_gets_nothing(recipe: ServerRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server cannot listen there, and ends: another port is tried."""
    free = shared_server._free_port
    with stranger() as other:
        taken = [other.port]
        monkeypatch.setattr(shared_server, "_free_port", lambda: taken.pop() if taken else free())
        found = ServerClient(recipe).connected()
        assert port_of(found) != other.port
        assert other.got == b""


def test_programs_that_take_every_port_make_a_lost_server(
    recipe: ServerRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stranger() as other:
        monkeypatch.setattr(shared_server, "_free_port", lambda: other.port)
        error = refusal(recipe)
        assert isinstance(error, SparkLost) and f"did not get port {other.port}" in str(error)
        assert other.got == b""


def test_a_program_on_the_port_of_a_server_that_does_not_listen_yet_is_not_the_server(
    recipe: ServerRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = slow_server(recipe, tmp_path)
    with stranger(state(slow).port) as other:
        with monkeypatch.context() as patched:
            patched.setattr(shared_server, "START_SECONDS", 0.2)
            assert isinstance(refusal(slow), SparkLost)
        (tmp_path / "go").touch()  # now it cannot
        assert port_of(ServerClient(slow).connected()) != other.port
        assert other.got == b""


def test_a_program_on_the_port_of_a_server_that_has_died_is_not_the_server(recipe: ServerRecipe) -> None:
    client = ServerClient(recipe)
    first = client.connected()
    assert first.is_there is not None and first.is_there()
    os.kill(state(recipe).jvm.pid, signal.SIGKILL)
    eventually(lambda: not first.is_there(), what="it has died")  # type: ignore[misc]
    with stranger(port_of(first)) as other:
        second = client.connected()
        assert second.url != first.url and second.token != first.token
        assert other.got == b""


def test_what_an_earlier_boot_has_noted_is_not_the_server(recipe: ServerRecipe) -> None:
    """Its process numbers are of other processes, and its port of another program: neither ended nor asked."""
    folder = Path(recipe.folder)
    folder.mkdir()
    own = processes.identity_of(os.getpid())
    assert own is not None
    with stranger() as other:
        for boot in ("an-earlier-one/4026531836", "an-earlier-one"):
            before = msgspec.structs.replace(own, boot_id=boot)
            noted = shared_server.Server(other.port, "token", before, before)
            (folder / STATE).unlink(missing_ok=True)
            driver_folders.create_private(folder / STATE, msgspec.json.encode(noted))
            (folder / f"{os.getpid()}.pid").write_text(str(os.getpid()))
            assert port_of(ServerClient(recipe).connected()) != other.port
            shared_server.end(state(recipe))
        assert other.got == b""
    assert [path.name for path in folder.glob("*.pid") if path.name == f"{os.getpid()}.pid"] == []


def test_one_whose_keeper_has_died_is_replaced(recipe: ServerRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be ended by no process. (On Linux, it has died with it.)"""
    client = ServerClient(recipe)
    client.connected()
    first = state(recipe)
    os.kill(first.keeper.pid, signal.SIGKILL)
    eventually(lambda: processes.is_gone(first.keeper), what="its keeper has died")
    client.connected()
    assert state(recipe).jvm != first.jvm and processes.is_gone(first.jvm)


@pytest.mark.parametrize(
    ("lives", "seconds", "raised"),
    [
        (True, 0.0, None),
        (False, 0.0, SparkLost),
        (True, SILENT_SECONDS, SparkLost),
        (None, SILENT_SECONDS, None),
        (None, 1000.0, ExternalUnavailable),
    ],
)
def test_a_server_of_the_drivers_that_does_not_answer_is_lost_and_replaced(
    lives: bool | None, seconds: float, raised: type[LogioError] | None
) -> None:
    """One that a person has started (None) is waited for, and parks the group."""
    asked: list[bool] = []

    def address(is_of_no_use: bool) -> ServerAddress:
        asked.append(is_of_no_use)
        raise ConfigurationError("there is none")

    found = ServerAddress("sc://localhost:1", "token", None if lives is None else lambda: bool(lives))
    engine = ConnectEngine(ConnectTarget(None, "user"), SessionName("run", "group", 1), address)
    engine.patience = 900.0
    with pytest.raises(raised) if raised is not None else nullcontext():
        engine._check_patience(ConnectionError("silence"), found, seconds)
    with pytest.raises(ConfigurationError):
        engine.made()
    assert asked == [lives is True and raised is SparkLost], "the next attempt ends it"


def test_no_request_leaves_for_the_port_of_a_server_that_has_ended() -> None:
    """A channel connects again by itself: to whatever listens there then. Requests of all kinds, and none with a token."""
    with stranger() as other, grpc.insecure_channel(f"127.0.0.1:{other.port}") as channel:
        guarded = grpc.intercept_channel(channel, OnlyToServer(lambda: False))
        token = [("authorization", "Bearer secret")]
        single, many = (lambda: b"request"), (lambda: iter([b"request"]))
        for kind, request in (
            ("unary_unary", single),
            ("unary_stream", single),
            ("stream_unary", many),
            ("stream_stream", many),
        ):
            with pytest.raises(ConnectionError, match="has ended"):
                answer = getattr(guarded, kind)("/service/Method")(request(), metadata=token, timeout=60)
                list(answer)
        assert other.got == b""
