"""A payload store on HDFS, on its own daemons: what is written is whole or not there, and nothing is left."""

from __future__ import annotations

import errno
import gc
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from airflow_logio.errors import ConfigurationError, LogInconsistent, LogUnavailable
from airflow_logio.store.port import LogStore
from airflow_logio.systems.payloads import EpochPayloads, Payloads, hdfs_client, sweep_group, task_files
from airflow_logio.systems.payloads.dataset import dataset_at
from airflow_logio.systems.payloads.file_roots import data_files, located
from airflow_logio.systems.payloads.hdfs_client import Hdfs as Client
from airflow_logio.systems.payloads.hdfs_streams import Writing
from tests.support.datasets import dataset_of
from tests.support.hdfs import Hdfs, hdfs
from tests.support.logs import replace_driver, start_driver
from tests.support.relay import Relay, relay
from tests.support.waiting import eventually
from tests.support.yarn_cluster import site_xml, why_no_yarn

pytest.importorskip("hdfs_native")
pytestmark = pytest.mark.timeout(600)

ORDERS = pa.table({"id": list(range(1000)), "store": [number % 3 for number in range(1000)]})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    if (why := why_no_yarn()) is not None:
        pytest.skip(why)
    with hdfs(tmp_path_factory.mktemp("hdfs")) as found:
        yield found


@pytest.fixture
def root(cluster: Hdfs, request: pytest.FixtureRequest) -> str:
    return f"{cluster.url}/lake/{re.sub(r'[^a-z]+', '-', request.node.name)}"


@pytest.fixture
def payloads(root: str) -> Payloads:
    return Payloads(root)


@pytest.fixture
def epoch(payloads: Payloads) -> EpochPayloads:
    return payloads.epoch("run", "g", 1, 0)


def everything(root: str) -> list[str]:
    """Below a root, folders included."""
    return sorted(path for path, _ in Client(root).listed("", is_deep=True))


def test_bodies_are_read_as_they_were_written_and_removed_without_a_trace(
    payloads: Payloads, epoch: EpochPayloads, root: str
) -> None:
    bodies = [b"", b"a" * 5000, bytes(range(256)) * 20_000]
    refs = [str(epoch.store(f"bodies/a.out/{number}", body)) for number, body in enumerate(bodies)]
    assert [payloads.load("event", ref) for ref in refs] == bodies
    with payloads.opened("event", refs[2]) as file:
        assert file.read(3) == bodies[2][:3]
    paths = sorted(ref.partition("#")[0] for ref in refs)
    assert sorted(payloads.find("run")) == paths
    status = Client(root).status(paths[0])
    assert status.permission == 0o600
    payloads.remove(refs)
    payloads.remove(refs)
    payloads.discard([], "run")
    payloads.discard([], "run")
    assert everything(root) == []
    assert payloads.find("none") == []
    with pytest.raises(LogInconsistent, match="is missing"):
        payloads.load("event", refs[0])


def test_a_name_is_given_once(payloads: Payloads, root: str) -> None:
    ref = str(payloads.epoch("run", "g", 1, 0).store("bodies/a", b"first"))
    with pytest.raises(LogInconsistent, match="is there already"):
        payloads.epoch("run", "g", 1, 0).store("bodies/a", b"second")
    assert payloads.load("event", ref) == b"first"


def test_what_is_broken_off_is_not_there_whatever_is_collected(epoch: EpochPayloads, root: str) -> None:
    """A writer that is dropped completes its file: it must be gone by then."""
    for size in (100, 3 * 2**20):
        with pytest.raises(ValueError, match="of the reader"), epoch.created("effects/s/1") as file:
            file.write(bytes(size))
            raise ValueError("of the reader")

    def failing() -> Iterator[pa.RecordBatch]:
        yield from ORDERS.to_batches(100)
        raise ValueError("of the author")

    with pytest.raises(ValueError, match="of the author"):
        list(task_files.written(root, "d", (), failing()))
    gc.collect()
    assert [path for path in everything(root) if path.endswith(("parquet", "1.1", "1.2"))] == []


def test_a_line_says_of_a_file_what_every_reader_finds(root: str) -> None:
    found = [
        line
        for batch in task_files.written(root, "run/g/1/0/d.1", ("store",), ORDERS.to_batches(100))
        for line in batch.to_pylist()
    ]
    files = data_files(root)
    assert sorted(line["partition"] for line in found) == ["store=0", "store=1", "store=2"]
    for line in found:
        assert not line["error"]
        assert files.size(line["path"]) == line["size"]
        assert files.footer(line["path"], line["size"]) == line["footer"]
        assert files.footer(line["path"], line["size"] - 1) is None
        again, path = located(files.location(line["path"]))
        with again.open(path) as file:
            assert pq.read_table(file).num_rows == line["records"]
        [sealed] = task_files.sealed_files(root, 0o600, [line["path"]])
        assert sealed == (line["path"], line["size"], line["records"], line["footer"], "")
    assert task_files.sealed_files(root, 0o600, ["run/none"]) == []
    for ask in (lambda: files.footer("run/none", 1), lambda: files.size("run"), lambda: files.open("run/none")):
        with pytest.raises(FileNotFoundError):
            ask()


def test_a_dataset_is_written_owned_copied_and_removed(payloads: Payloads, epoch: EpochPayloads, root: str) -> None:
    made = dataset_of(epoch, ORDERS.slice(0, 500), ORDERS.slice(500), partition_by=("store",))
    own = epoch.own("write action 1", "own/1", made)
    assert {file.footer for file in own.manifest.files} == {file.footer for file in made.manifest.files}
    assert not set(own.file_paths()) & set(made.file_paths())
    epoch.copy(made.manifest.files, own.manifest.files)  # again: they are the same
    payloads.remove([str(made.reference)])
    with pytest.raises(LogInconsistent, match="has lost a file"):
        made.check()
    for found in (own, dataset_at(root, "w", str(own.reference)), payloads.dataset("w", str(own.reference))):
        assert sorted(found.table.column("id").to_pylist()) == list(range(1000))
        assert sum(table.num_rows for _, table in found.batches()) == 1000
    with pytest.raises(LogInconsistent, match="has lost a file"):
        epoch.own("write action 2", "own/2", made)
    payloads.remove([str(own.reference)])
    payloads.discard([], "run")
    assert everything(root) == []


def test_a_damaged_file_is_no_dataset(epoch: EpochPayloads, root: str) -> None:
    made = dataset_of(epoch, ORDERS)
    (file,) = made.manifest.files
    with data_files(root).open(file.path) as source:
        whole = source.read()
    for damaged, says in (
        (whole[:-1], "is not the file that its manifest names"),
        (whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:], "is not the file that its manifest names"),
        (whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], "the dataset of event 1 of s.out is damaged"),
    ):
        Client(root).remove(file.path)
        writing = Writing(Client(root), file.path)
        writing.write(damaged)
        writing.complete()
        with pytest.raises(LogInconsistent, match=re.escape(says)):
            list(made.batches())


def _flip(cluster: Hdfs, place: int, size: int) -> None:
    """One byte of each whole block of so many bytes, on the DataNode's disk."""
    for block in cluster.block_files():
        if block.stat().st_size == size:
            with block.open("r+b") as file:
                file.seek(place)
                [byte] = file.read(1)
                file.seek(place)
                file.write(bytes([byte ^ 1]))


def test_damaged_blocks_are_said_and_not_waited_for(
    cluster: Hdfs, payloads: Payloads, epoch: EpochPayloads, root: str
) -> None:
    """The client says of them what it says of DataNodes that are unavailable."""
    made = dataset_of(epoch, pa.table({"id": list(range(20_000))}))
    (file,) = made.manifest.files
    body = os.urandom(3_000_017)
    ref = str(epoch.store("bodies/a", body))
    _flip(cluster, file.size // 2, file.size)
    _flip(cluster, 2_999_999, len(body))
    made.check()  # size and footer are what they were
    for read in (lambda: list(made.batches()), lambda: made.table):
        with pytest.raises(LogInconsistent, match=r"the dataset of event 1 of s\.out is damaged"):
            read()
    for ask in (lambda: epoch.load("event 7", ref), lambda: payloads.opened("event 7", ref).__enter__()):
        with pytest.raises(LogInconsistent, match=r"the payload of event 7 is damaged.*Put it back"):
            ask()
    with pytest.raises(LogInconsistent, match=r"a\.1 is damaged"):
        payloads.content(ref.partition("#")[0])
    _flip(cluster, file.size - 3, file.size)
    with pytest.raises(LogInconsistent, match=r"the dataset of event 1 of s\.out is damaged"):
        made.check()
    with data_files(root).open(file.path) as source, pytest.raises(OSError, match="is damaged") as damaged:
        pq.read_metadata(source)
    assert damaged.value.errno == errno.EIO
    cluster.kill("datanode")
    with pytest.raises(LogUnavailable, match="none of the DataNodes"):
        payloads.load("event 7", ref)
    cluster.start_daemon("datanode")
    epoch.store("bodies/b", b"waits until the NameNode knows where it is now")


def test_bytes_are_handed_over_in_pieces_that_the_client_takes_at_once(root: str) -> None:
    """It takes what is no `bytes` one by one, and no other thread of a driver runs meanwhile."""
    taken: list[object] = []
    writing = Writing(Client(root), "big")
    writer = writing._writer

    class Noting:
        hsync, close = writer.hsync, writer.close

        def write(self, piece: bytes) -> int:
            taken.append((type(piece), len(piece)))
            return int(writer.write(piece))

    writing._writer = Noting()
    data = os.urandom(2 * 2**20 + 5)
    for given in (data, memoryview(data), bytearray(data), pa.py_buffer(data)):
        writing.write(given)
    assert writing.complete() == 4 * len(data)
    assert taken == [(bytes, 2**20), (bytes, 2**20), (bytes, 5)] * 4
    with data_files(root).open("big") as file:
        assert file.read() == data * 4


def test_a_process_that_was_forked_has_a_client_of_its_own(root: str) -> None:
    """The one of its parent waits for threads that are not there, when it is dropped."""
    files = Client(root)
    files.make_folder("a")
    child = os.fork()
    if not child:
        ended = 1
        try:
            gc.collect()
            ended = int([path for path, _ in files.listed("", is_deep=True)] != ["a"])
        finally:
            os._exit(ended)
    late = threading.Timer(60, os.kill, (child, 9))
    late.start()
    waited = os.waitpid(child, 0)
    late.cancel()
    late.join()
    assert waited == (child, 0)


@pytest.fixture
def way(cluster: Hdfs) -> Iterator[Relay]:
    with relay(cluster.ports["namenode"]) as made:
        yield made


def _calls() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "logio-hdfs-call"]


def test_a_copy_outlives_a_removal_that_comes_late(
    way: Relay, root: str, cluster: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is lost, and the copy is made again; what the NameNode was asked for then is carried out at last."""
    monkeypatch.setattr(hdfs_client, "ASKED_SECONDS", 5.0)
    late = root.replace(cluster.url, f"hdfs://127.0.0.1:{way.port}")
    made = dataset_of(Payloads(root).epoch("run", "g", 1, 0), ORDERS)
    target = f"{made.manifest.files[0].path}.copy"
    copies = [replace(made.manifest.files[0], path=target)]
    epoch = Payloads(late).epoch("run", "g", 1, 0)
    epoch.copy(made.manifest.files, copies)

    def held(asked: bytes) -> None:
        way.slow, slowed = re.compile(asked), way.slowed
        copying = threading.Thread(target=epoch.copy, args=(made.manifest.files, copies))
        copying.start()
        eventually(lambda: way.slowed > slowed or not copying.is_alive(), what="it is asked", timeout=60)
        way.slow = None
        copying.join()
        if way.slowed > slowed:
            way.quick.release(way.slowed - slowed)
        eventually(lambda: not _calls(), what="calls that were late have ended", timeout=60)

    for asked in (b"delete", b"rename2"):
        held(asked)
        assert data_files(root).footer(target, made.manifest.files[0].size) == made.manifest.files[0].footer


def test_a_namenode_that_says_nothing_is_left_for_the_other_one(
    cluster: Hdfs, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is cut off: connections are taken, or none is refused, and no answer comes."""
    monkeypatch.setattr(hdfs_client, "ASKED_SECONDS", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("HADOOP_CONF_DIR", str(_settings(tmp_path, address, cluster.url.removeprefix("hdfs://"))))
        epoch = Payloads(root.replace(cluster.url, "hdfs://lakes")).epoch("run", "g", 1, 0)
        ref = str(epoch.store("bodies/a", b"x"))
    assert Payloads(root).load("event", ref) == b"x"


def test_a_fenced_incarnation_is_swept_with_what_its_zombie_still_writes(
    log_store: LogStore, payloads: Payloads, root: str
) -> None:
    driver = start_driver(log_store)
    old, new = (payloads.epoch(driver.run.uid, "g", incarnation, 0) for incarnation in (1, 2))
    dataset_of(old, ORDERS)
    zombie = Writing(Client(root), f"{driver.run.uid}/g/1/0/bodies/late")
    zombie.write(b"late")
    replace_driver(driver)
    kept = new.store("bodies/a.out/1", b"of the living")
    assert sweep_group(payloads, log_store, driver.run, "g", below=2) == 3
    assert payloads.find(driver.run.uid) == [kept.path]
    with pytest.raises(FileNotFoundError):
        zombie.complete()
    assert not [path for path in everything(root) if path.startswith(f"{driver.run.uid}/g/1")]


def test_another_user_is_told_what_to_do(
    payloads: Payloads, epoch: EpochPayloads, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = str(epoch.store("bodies/a", b"x"))
    monkeypatch.setenv("HADOOP_USER_NAME", "eve")
    other = Payloads(root)
    for ask in (
        lambda: other.load("event", ref),
        lambda: other.find("run"),
        lambda: other.epoch("run", "g", 2, 0).store("bodies/a", b"x"),
        lambda: other.discard([ref.partition("#")[0]], "run"),
    ):
        with pytest.raises(ConfigurationError, match="hdfs dfs -chown"):
            ask()


def _settings(folder: Path, one: str, two: str) -> Path:
    """Of Hadoop's clients: the NameNodes of ``hdfs://lakes``."""
    properties = {
        "dfs.ha.namenodes.lakes": "one,two",
        "dfs.namenode.rpc-address.lakes.one": one,
        "dfs.namenode.rpc-address.lakes.two": two,
    }
    (folder / "hdfs-site.xml").write_text(site_xml(properties))
    (folder / "core-site.xml").write_text(site_xml({"fs.defaultFS": "hdfs://lakes"}))
    return folder


def test_a_nameservice_is_found_by_its_settings(
    cluster: Hdfs, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = root.replace(cluster.url, "hdfs://lakes")
    with pytest.raises(ConfigurationError, match="HADOOP_CONF_DIR"):
        Payloads(named).find("run")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(_settings(tmp_path, "127.0.0.1:1", cluster.url.removeprefix("hdfs://"))))
    ref = str(Payloads(named).epoch("run", "g", 1, 0).store("bodies/a", b"x"))
    assert Payloads(root).load("event", ref) == b"x"


def test_safe_mode_and_daemons_that_are_killed_are_waited_for(
    cluster: Hdfs, payloads: Payloads, epoch: EpochPayloads
) -> None:
    ref = str(epoch.store("bodies/a", b"kept"))
    stopped = payloads.epoch("run", "g", 2, 0)
    stopped.stop()
    cluster.admin("-safemode", "enter")
    with pytest.raises(LogUnavailable, match="SafeModeException"):
        stopped.store("bodies/b", b"x")
    cluster.admin("-safemode", "leave")
    assert payloads.load("event", ref) == b"kept"
    cluster.kill("datanode")
    with pytest.raises(LogUnavailable):
        payloads.load("event", ref)
    with pytest.raises(LogUnavailable):
        stopped.store("bodies/c", b"x")
    cluster.kill("namenode")
    with pytest.raises(LogUnavailable, match="Connection refused"):
        payloads.load("event", ref)
    cluster.start_daemon("namenode")
    cluster.start_daemon("datanode")
    cluster.wait()
    assert payloads.load("event", ref) == b"kept"
    again = str(epoch.store("bodies/d", b"again"))
    assert payloads.load("event", again) == b"again"
