"""Drivers that a cluster manager starts, as real processes: what they get of log and node, and what they leave."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.driver.on_node.container import PREFIX
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import bundle
from airflow_logio.launch.code_bundle import collect
from airflow_logio.launch.launcher import launch_group
from airflow_logio.launch.nodes import hdfs_connections
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import Claim
from airflow_logio.systems.payloads.hdfs_client import Hdfs as Client
from tests.support.hdfs import Hdfs, hdfs
from tests.support.listening import Listener
from tests.support.nodes import Node, NodeLauncher, NodeProcess, words_of
from tests.support.running import Running
from tests.support.yarn_cluster import free_port, why_no_yarn

pytestmark = pytest.mark.acceptance

NUMBERS = 40
PIPELINE = """
import os
import signal
import sys
from pathlib import Path

from airflow_logio.dataflow import ParquetSource, Pipeline, TableWriter, stateless

from helper import doubled

ANSWERED_AT_IMPORT = os.environ["SHOP_TOKEN"]


@stateless
def double(numbers):
    token = os.environ["SHOP_TOKEN"]
    assert token == ANSWERED_AT_IMPORT and "OTHER" not in os.environ and "LOGIO_CONNECTIONS_JSON" not in os.environ
    for number in numbers.column("n").to_pylist():
        print("doubles", number, "with", len(token), "letters of", token)
        if number == 20 and not (mark := Path(os.environ["MARK"])).exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    os.system("echo said by a child")
    sys.stderr.write("no end of line, ")
    return doubled(numbers)


pipeline = Pipeline("node", params={"numbers": str}, connections=["warehouse"], environment=["SHOP_TOKEN", "MARK"])
read = pipeline.source("read", ParquetSource("{numbers}", records_per_event=1))
made = pipeline.operator("double", double, read)
table = TableWriter("warehouse", "doubles", {"n": "bigint", "twice": "bigint"}, on_new_run="replace")
save = pipeline.writer("save", table, made)
pipeline.group("all", read, made, save)
"""
HELPER = """
import pyarrow.compute as pc


def doubled(numbers):
    return numbers.append_column("twice", pc.multiply(numbers.column("n"), 2))
"""
TOKEN = "t0ken-of-the-node"
PASSWORD = "pw-of-the-log"


def with_password(url: str) -> str:
    return url.replace("@", f":{PASSWORD}@", 1)


def put(content: bytes, url: str) -> None:
    """As a person would, for one user only."""
    folder, _, name = url.rpartition("/")
    file = Client(folder).begun(name)
    file.write(content)
    file.complete()


class Cluster:
    """A run whose code is in the log only, and a node that gets its drivers."""

    def __init__(self, tmp_path: Path, log_url: str, warehouse_url: str) -> None:
        self.mark = tmp_path / "killed"
        source = tmp_path / "dags"
        source.mkdir()
        (source / "node_pipeline.py").write_text(PIPELINE)
        (source / "helper.py").write_text(HELPER)
        pq.write_table(pa.table({"n": range(NUMBERS)}), tmp_path / "numbers.parquet")
        self.says = {
            "log": with_password(log_url),
            "payloads": str(tmp_path / "payloads"),
            "connections": {"warehouse": warehouse_url, "other": "mysql://a:b@c/d"},
            "environment": {"SHOP_TOKEN": TOKEN, "MARK": str(self.mark), "OTHER": "of another pipeline"},
        }
        self.node = Node(tmp_path / "node", self.says)
        self.node.folder.mkdir()
        self.node.write_file()
        self.launcher = NodeLauncher(self.node)
        ref = bundle.parse_ref(f"{source / 'node_pipeline.py'}:pipeline")
        code = collect(ref)
        self.run = Running(
            log_url,
            warehouse_url,
            tmp_path,
            self.launcher,
            ref=ref,
            params={"numbers": str(tmp_path / "numbers.parquet")},
            lease=Lease(15, 120),
            payloads=str(tmp_path / "payloads"),
            code=code,
        )
        self.warehouse_url = warehouse_url

    def rows(self) -> list[tuple[int, int]]:
        connection = psycopg2.connect(self.warehouse_url.replace("+psycopg2", ""))
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT n, twice FROM doubles ORDER BY n")
                return list(cursor.fetchall())
        finally:
            connection.close()

    def sent(self, incarnation: int) -> str:
        return "".join(part.text for part in self.run.store.output.parts(self.run.run.run_id, "all", incarnation))

    def claimed(self) -> Claim:
        """A claim of which no driver was started."""
        self.launcher.is_off = True
        try:
            status = self.run.status("all")
            return launch_group(self.run.context, "all", expected=status.incarnation, reason="test", by_user=True)
        finally:
            self.launcher.is_off = False

    def started(self, claim: Claim, **environment: str) -> NodeProcess:
        return self.node.start(words_of(claim, {}), **environment)

    def close(self) -> None:
        self.node.close()
        self.run.close()


@pytest.fixture
def cluster(
    tmp_path: Path, postgres_url: str, postgres_warehouse_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    for name in ("SHOP_TOKEN", "MARK"):
        monkeypatch.setenv(name, "of-the-launcher")
    made = Cluster(tmp_path, postgres_url, postgres_warehouse_url)
    try:
        yield made
    except Exception as error:
        error.add_note("\n".join(one.read_text() for one in made.node.folder.rglob("stdout")))
        raise
    finally:
        made.close()


def scratch_of(driver: NodeProcess) -> list[Path]:
    return list(driver.place.glob(f"{PREFIX}*"))


def test_a_driver_killed_on_its_node_is_recovered_exactly_and_the_log_has_what_it_printed(cluster: Cluster) -> None:
    """With the author's files gone: a node has never had them."""
    cluster.run.tend()
    shutil.rmtree(Path(cluster.run.context.ref.bundle_root))
    cluster.run.finish()
    assert cluster.rows() == [(number, 2 * number) for number in range(NUMBERS)]
    last = cluster.run.status("all").incarnation
    assert last > 1
    ends = {incarnation: driver.wait() for (_, incarnation), driver in cluster.launcher.drivers.items()}
    (killed,) = [cluster.launcher.drivers["all", one] for one, code in ends.items() if code == -signal.SIGKILL]
    finished = cluster.launcher.drivers["all", last]
    assert ends[last] == 0
    assert len(scratch_of(killed)) == 1 and not scratch_of(finished), (
        "the manager removes what a killed driver has left"
    )

    hidden = finished.output.replace(TOKEN, "***")
    assert cluster.sent(last) == hidden, "the log has all that the manager keeps, without secrets"
    assert hidden.count("said by a child") >= 1 and f"doubles {NUMBERS - 1} with {len(TOKEN)} letters of ***" in hidden
    assert "registered, pid" in hidden and PASSWORD not in hidden
    (record,) = [one for one in cluster.run.store.drivers(cluster.run.run.run_id) if one.incarnation == last]
    assert record.pid == finished.process.pid


def test_of_two_copies_with_the_same_arguments_one_is_the_driver(cluster: Cluster) -> None:
    cluster.mark.touch()
    claim = cluster.claimed()
    stranger = cluster.started(replace(claim, nonce="another"))
    assert stranger.wait() == 3, "a wrong nonce is refused"
    assert cluster.run.status("all").state is GroupState.SUBMITTED
    copies = [cluster.started(claim) for _ in range(2)]
    assert sorted(one.wait() for one in copies) == [0, 3]
    assert cluster.run.status("all").state is GroupState.FINISHED
    assert cluster.rows() == [(number, 2 * number) for number in range(NUMBERS)]
    late = cluster.started(claim)
    assert late.wait() == 3
    refused = [one for one in (*copies, late) if one.wait() == 3]
    assert all("this driver exits before its first read" in one.output for one in refused)
    assert not any(scratch_of(one) for one in (*copies, late, stranger))


def test_a_node_that_cannot_say_where_the_log_is_says_so_where_the_manager_shows_it(cluster: Cluster) -> None:
    claim = cluster.claimed()
    cluster.node.write_file('{"log": "postgresql://logio:hunter22@db/logio", "conections": {}}')
    driver = cluster.started(claim)
    assert driver.wait() == 1
    assert "unknown field `conections`" in driver.output and str(cluster.node.file) in driver.output
    assert "hunter22" not in driver.output and not scratch_of(driver)
    assert cluster.run.status("all").state is GroupState.SUBMITTED


def test_a_node_that_lacks_what_a_pipeline_needs_parks_its_group(cluster: Cluster) -> None:
    claim = cluster.claimed()
    cluster.node.write_file(json.dumps({name: cluster.says[name] for name in ("log", "environment")}))
    driver = cluster.started(claim)
    assert driver.wait() == 4
    status = cluster.run.status("all")
    assert status.state is GroupState.PARKED
    assert status.error is not None and "needs connection 'warehouse'" in status.error and PASSWORD not in status.error
    assert str(cluster.node.file) in status.error
    claim = cluster.claimed()
    cluster.node.write_file()
    cluster.node.file.chmod(0o640)
    loose = cluster.started(claim)
    assert loose.wait() == 1 and f"chmod 600 {cluster.node.file}" in loose.output


# --- connections in HDFS ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    pytest.importorskip("hdfs_native")
    if (why := why_no_yarn()) is not None:
        pytest.skip(why)
    with hdfs(tmp_path_factory.mktemp("hdfs")) as found:
        yield found


def test_connections_in_hdfs_are_waited_for_and_the_result_is_exact(cluster: Cluster, store: Hdfs) -> None:
    """The NameNode dies with the first driver, and is back when the second one has asked it."""
    url = f"{store.url}/etl/connections.json"
    put(json.dumps(cluster.says).encode(), url)
    cluster.node.named = url
    run = cluster.run
    run.until(cluster.mark.exists, "the first driver dies", timeout=300)
    store.kill("namenode")
    try:
        run.until(
            lambda: any("waiting for HDFS" in one.output for one in cluster.launcher.drivers.values()),
            "the second one waits",
            timeout=300,
        )
    finally:
        store.start_daemon("namenode")
        store.wait()
    run.finish(timeout=300)
    assert cluster.rows() == [(number, 2 * number) for number in range(NUMBERS)]
    assert run.status("all").incarnation == 2
    outputs = [one.output for one in cluster.launcher.drivers.values()]
    assert not any(secret in output for output in outputs for secret in (PASSWORD, cluster.warehouse_url))


def test_connections_in_hdfs_that_others_reach_or_no_driver_can_read_are_refused(
    cluster: Cluster, store: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, text = f"{store.url}/refused/connections.json", json.dumps(cluster.says).encode()
    put(text, url)
    client, path = Client(url).client, "/refused/connections.json"
    me = client.get_file_info(path).owner
    assert hdfs_connections.read(url) == text
    loose = f"others may read or change it (mode 0640): hdfs dfs -chmod 600 {url}"
    foreign = (
        f"belongs to 'anna', while drivers are {me!r} to HDFS: hdfs dfs -chown {me} {url}, or set HADOOP_USER_NAME=anna"
    )
    for spoil, says in (
        (lambda: client.set_permission(path, 0o640), loose),
        (lambda: (client.set_permission(path, 0o600), client.set_owner(path, "anna")), foreign),
        (lambda: client.delete(path), f"file {url}, which is to say where the log is, does not exist: put it there"),
        (lambda: client.mkdirs(path, 0o700, True), "is a folder: name the file in it"),
    ):
        spoil()
        with pytest.raises(ConfigurationError) as refused:
            hdfs_connections.read(url)
        assert says in str(refused.value) and PASSWORD not in str(refused.value)
    closed = f"{store.url}/refused/closed.json"
    put(text, closed)
    monkeypatch.setenv("HADOOP_USER_NAME", "berta")
    with pytest.raises(ConfigurationError, match=r"(?s)Permission denied.*HADOOP_USER_NAME: make that user the owner"):
        hdfs_connections.read(closed)
    monkeypatch.delenv("HADOOP_USER_NAME")

    put(b'{"log": "postgresql://logio:hunter22@db/logio", "conections": {}}', f"{store.url}/wrong.json")
    claim = cluster.claimed()
    cluster.node.named = f"{store.url}/wrong.json"
    driver = cluster.started(claim)
    assert driver.wait() == 1
    assert "unknown field `conections`" in driver.output and f"{store.url}/wrong.json" in driver.output
    assert "hunter22" not in driver.output and not scratch_of(driver)


def never_answers(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


def test_hdfs_that_stays_unavailable_or_silent_is_given_up(store: Hdfs) -> None:
    silent = Listener(never_answers)
    try:
        for port, seconds, says in (
            (free_port("127.0.0.1"), 5.0, "Connection refused"),
            (silent.port, 0.5, "no answer"),
        ):
            with pytest.raises(ConfigurationError) as refused:
                hdfs_connections.read(f"hdfs://127.0.0.1:{port}/c.json", seconds)
            assert f"for {seconds:g} s: " in str(refused.value) and says in str(refused.value)
            assert "does this node reach them? If the group is parked by then: `logio retry`" in str(refused.value)
    finally:
        silent.close()
    url = f"{store.url}/blocked.json"
    put(b"{}", url)
    store.kill("datanode")
    try:
        with pytest.raises(ConfigurationError, match=r"could not be read by node .* for 5 s"):
            hdfs_connections.read(url, 5.0)
    finally:
        store.start_daemon("datanode")
        store.wait()
