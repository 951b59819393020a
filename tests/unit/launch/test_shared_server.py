"""The server that drivers share: started once, known to those who come later, ended behind the last of them.

Here it is a program that listens; `acceptance/test_spark_connect.py` has Spark's.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import processes, shared_server
from airflow_logio.launch.application.connect_server import _has_clients
from airflow_logio.launch.shared_server import KEEPER, ServerClient, ServerRecipe
from airflow_logio.spark.connect_engine import ServerAddress
from tests.support.waiting import eventually

LISTENING = """
import os, socket, sys, time
port = int(sys.argv[sys.argv.index("--conf") + 1].partition("=")[2])
while (go := os.environ.get("GO")) and not os.path.exists(go):
    time.sleep(0.05)
time.sleep(float(os.environ.get("SLOW", 0)))
listening = socket.create_server(("127.0.0.1", port))
print("listening, token of", len(os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"]), flush=True)
while True:
    listening.accept()[0].close()
"""


@pytest.fixture
def recipe(tmp_path: Path) -> ServerRecipe:
    (tmp_path / "listening.py").write_text(LISTENING)
    command = [sys.executable, str(tmp_path / "listening.py"), "spark-internal"]
    return ServerRecipe(str(tmp_path / ".connect"), command, {"SLOW": "0.3"})


@pytest.fixture(autouse=True)
def ended(recipe: ServerRecipe) -> Iterator[None]:
    yield
    if server := shared_server.known(Path(recipe.folder)):
        shared_server.end(server)


def port_of(address: ServerAddress) -> int:
    return int(address.url.removeprefix("sc://localhost:"))


def state(recipe: ServerRecipe) -> shared_server.Server:
    server = shared_server.known(Path(recipe.folder))
    assert server is not None
    return server


def slow_server(recipe: ServerRecipe, folder: Path) -> ServerRecipe:
    """One that is known, and listens when there is a file `go` in `folder`. Its starter has died."""
    slow = ServerRecipe(recipe.folder, recipe.command, {"GO": str(folder / "go")})
    starter = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from airflow_logio.launch.shared_server import *\n"
            "ServerClient(ServerRecipe(sys.argv[1], sys.argv[3:], {'GO': sys.argv[2]})).connected()",
            slow.folder,
            slow.environment["GO"],
            *slow.command,
        ]
    )
    eventually(lambda: shared_server.known(Path(slow.folder)), what="the server is known, and does not listen yet")
    starter.kill()
    starter.wait()
    return slow


def test_clients_that_come_at_once_have_one_server(recipe: ServerRecipe) -> None:
    found: list[ServerAddress] = []
    clients = [ServerClient(recipe) for _ in range(4)]
    threads = [threading.Thread(target=lambda one=one: found.append(one.connected())) for one in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1
    port = port_of(found[0])
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    log = (Path(recipe.folder) / shared_server.LOG_NAME).read_text()
    assert log.count("listening") == 1


def test_each_client_holds_the_server_for_as_long_as_it_lives(recipe: ServerRecipe) -> None:
    """By a shared lock, which the process that keeps the server looks at. It is there before the server is."""
    held = Path(recipe.folder) / "clients"
    assert not (held.exists() and _has_clients(held))
    clients = [ServerClient(recipe) for _ in range(2)]
    for client in clients:
        client.connected()
        assert _has_clients(held), "or the server would end under it"
    left = [client._hold for client in clients]
    assert None not in left and len(set(left)) == 2
    os.close(left[0])  # type: ignore[arg-type]  # as the end of its process does
    assert _has_clients(held)
    os.close(left[1])  # type: ignore[arg-type]
    assert not _has_clients(held)


def test_its_token_is_for_its_owner_only(recipe: ServerRecipe) -> None:
    token = ServerClient(recipe).connected().token
    assert token is not None and len(token) >= 32
    holders = [path for path in Path(recipe.folder).iterdir() if path.is_file() and token in path.read_text()]
    assert [(path.name, path.stat().st_mode & 0o777) for path in holders] == [("server.json", 0o600)]
    assert Path(recipe.folder).stat().st_mode & 0o777 == 0o700
    shown = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert str(Path(recipe.folder)) in shown and token not in shown


def test_one_that_has_died_is_replaced(recipe: ServerRecipe) -> None:
    client = ServerClient(recipe)
    client.connected()
    dead = state(recipe)
    os.kill(dead.jvm.pid, signal.SIGKILL)
    eventually(lambda: processes.is_gone(dead.jvm), what="it is dead")
    client.connected()
    second = state(recipe)
    assert second.jvm != dead.jvm
    eventually(lambda: processes.is_gone(dead.keeper), what="who kept it has ended")
    os.kill(second.jvm.pid, signal.SIGSTOP)
    assert client.connected().url == second.url, "what does not answer a request is found by requests"
    os.kill(second.jvm.pid, signal.SIGCONT)


def test_one_whose_starter_has_died_is_waited_for(recipe: ServerRecipe, tmp_path: Path) -> None:
    slow = slow_server(recipe, tmp_path)
    begun = state(slow)
    (tmp_path / "go").touch()
    ServerClient(slow).connected()
    assert state(slow) == begun


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, recipe: ServerRecipe) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot be started in .*file/\.connect"):
        ServerClient(ServerRecipe(str(tmp_path / "file" / ".connect"), recipe.command)).connected()


def test_it_ends_behind_its_last_client(recipe: ServerRecipe, tmp_path: Path) -> None:
    """The keeper, with less patience, over a client that is a process and is killed."""
    folder = Path(recipe.folder)
    folder.mkdir()
    client = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys, time\nheld = open(sys.argv[1], 'a')\n"
            "fcntl.flock(held, fcntl.LOCK_SH)\nprint('held', flush=True)\ntime.sleep(60)",
            str(folder / "clients"),
        ],
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None and client.stdout.readline()
    impatient = (
        "import runpy, sys; sys.argv = sys.argv[1:]\n"
        "keeper = runpy.run_path(sys.argv[0])\n"
        "main = keeper['main']; main.__globals__.update(IDLE_SECONDS=0.5, LOOK_SECONDS=0.1)\n"
        "from pathlib import Path\nsys.exit(main(Path(sys.argv[1]), sys.argv[3:]))"
    )
    keeper = subprocess.Popen(
        [sys.executable, "-c", impatient, str(KEEPER), str(folder), "--", "sleep", "60"], stderr=subprocess.PIPE
    )
    eventually(lambda: list(folder.glob("*.pid")), what="the server is started")
    time.sleep(1.2)
    assert keeper.poll() is None, "it has a client"
    client.kill()
    client.communicate()
    _, said = keeper.communicate(timeout=60)
    assert (keeper.returncode, said) == (256 - signal.SIGTERM, b"no driver needs this server any more\n")


def test_groups_with_other_settings_have_another_server(tmp_path: Path) -> None:
    def folder(command: str, environment: dict[str, str], key: str = "key") -> Path:
        return shared_server.folder_of(tmp_path, [command], environment, key)

    assert folder("a", {"A": "1"}) == folder("a", {"A": "1"})
    others = {
        folder("a", {"A": "1"}),
        folder("b", {"A": "1"}),
        folder("a", {"A": "2"}),
        folder("a", {"A": "1"}, "other"),
    }
    assert len(others) == 4
    assert {one.parent for one in others} == {tmp_path / ".connect"}


def test_one_whose_application_has_ended_is_replaced(recipe: ServerRecipe) -> None:
    """It answers, and would fail each job. Who finds out first has it replaced, and none a second time."""
    clients = [ServerClient(recipe) for _ in range(2)]
    for client in clients:
        client.connected()
    first = state(recipe)
    clients[0].connected(has_ended=True)
    second = state(recipe)
    assert second.jvm != first.jvm and processes.is_gone(first.jvm)
    clients[1].connected(has_ended=True)
    assert state(recipe) == second


def test_a_keeper_that_is_killed_takes_the_server_along(recipe: ServerRecipe) -> None:
    ServerClient(recipe).connected()
    server = state(recipe)
    os.kill(server.keeper.pid, signal.SIGKILL)
    eventually(lambda: processes.is_gone(server.jvm), what="the server has ended")
