"""What sessions of a Spark Connect server do and refuse: run as a process of its own, prints one JSON object.

Apart from the tests' process, whose pyspark is the classic one: the two do not go together in one.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_logio.driver.spark_jobs.job_groups import FunctionJobs
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import LogioError
from airflow_logio.launch import driver_process, shared_server, spark_submit
from airflow_logio.launch.shared_server import ServerClient
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.spark.connect_engine import ConnectEngine, ConnectTarget, ServerAddress, SessionName
from airflow_logio.spark.determinism import check_repeatable, check_safety
from airflow_logio.spark.engine import task_slots
from airflow_logio.spark.session_safety import FRAMES_SAFETY
from tests.support.waiting import eventually

SETTINGS = SparkSettings(master="local[3]", connect=True)


def said(attempt: Callable[[], object]) -> str:
    """What an attempt raises, in words; empty if it succeeds."""
    try:
        attempt()
    except LogioError as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Sessions:
    """Of one server."""

    def __init__(self, folder: Path) -> None:
        self.client = ServerClient(driver_process.server_recipe(folder, SETTINGS, key="key"))
        self.target = ConnectTarget(
            None, "tests", {"spark.sql.session.timeZone": "Asia/Tokyo"}, py_files=[shipped(folder)]
        )

    def of(self, incarnation: int, target: ConnectTarget | None = None, **name: Any) -> SparkSessions:
        named = SessionName("run", "group", incarnation, **name)
        return SparkSessions(ConnectEngine(target or self.target, named, self.client.connected))


def shipped(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shipped_code.py").write_text("def doubled(number):\n    return 2 * number\n")
    return str(folder / "shipped_code.py")


def plain(sessions: SparkSessions) -> dict[str, Any]:
    """Settings, code, slots, safety."""
    session = sessions.get()

    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from shipped_code import doubled  # type: ignore[import-not-found]

        for batch in batches:
            yield pa.record_batch({"id": pa.array([doubled(one) for one in batch.column(0).to_pylist()])})

    check_safety(session)
    for name, value in FRAMES_SAFETY.items():
        session.conf.set(name, value)
    return {
        "zone": session.conf.get("spark.sql.session.timeZone"),
        "doubled": sorted(row["id"] for row in session.range(3).mapInArrow(doubled, "id long").toArrow().to_pylist()),
        "slots": task_slots(session),
        "application": sessions.application is not None and bool(sessions.application.id),
    }


def actions(sessions: SparkSessions, folder: Path) -> dict[str, str]:
    """What functions of authors may not do, and may."""
    session = sessions.get()
    jobs = FunctionJobs(sessions, "the epoch")
    frame = session.range(10)
    large = "id > 0 AND " + " AND ".join(f"id <> {number}" for number in range(100, 4_000))

    def called(function: Callable[[], object]) -> str:
        sessions.entered("the epoch", "")
        with jobs.called() as group:
            function()
        assert session.getTags() == {"the epoch"}
        return said(lambda: jobs.refuse_actions(group))

    return {
        "count": called(frame.count),
        "collect": called(lambda: frame.where("id > 3").collect()),
        "write": called(lambda: frame.write.parquet(str(folder / "written"))),
        "large": called(lambda: frame.where(large).toArrow()),
        "lazy": called(lambda: frame.where("id > 3").groupBy().count()),
        "columns": called(lambda: frame.withColumnRenamed("id", "x").columns),
        "view": called(lambda: frame.createOrReplaceTempView("frame_of_ten")),
        "files": called(lambda: session.read.parquet(str(folder / "written")).columns),
    }


def repeatable(sessions: SparkSessions) -> dict[str, str]:
    """Outputs that are computed one by one."""
    from pyspark.sql import functions as F

    session = sessions.get()
    frame = session.range(10)
    steady = F.udf(lambda number: number + 1, "long")
    outputs = {
        "plain": frame.withColumn("twice", frame["id"] * 2),
        "steady": frame.withColumn("next", steady("id")),
        "random": frame.withColumn("x", F.rand()),
        "now": frame.withColumn("x", F.current_timestamp()),
        "sql": session.sql("SELECT id, uuid() AS x FROM range(3)"),
        "unsteady": frame.withColumn("x", steady.asNondeterministic()("id")),
        "wide": frame.selectExpr("*", *[f"id + {number} AS c{number}" for number in range(40)], "uuid() AS x"),
        "summed": frame.groupBy("id").agg(F.sum("id"), F.max("id"), F.count("*")),
        "collected": frame.groupBy("id").agg(F.collect_list("id")),
        "once": frame.dropDuplicates(["id"]),
        "some": frame.limit(3),
        "sampled": frame.sample(0.1, seed=1),
        "none": frame.limit(0),
        "Sample": frame.selectExpr("id AS Sample", "id AS `first(id)`"),
        "numbered": frame.zipWithIndex(),
        "rows": frame.selectExpr("sum(id) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING)"),
        "ranks": frame.selectExpr("rank() OVER (ORDER BY id)"),
        "joined": frame.join(frame.withColumn("x", F.shuffle(F.array(F.lit(1), F.lit(2)))), "id"),
    }
    return {name: said(partial(check_repeatable, {"a": made, "b": frame})) for name, made in outputs.items()}


def cancelled(sessions: SparkSessions) -> dict[str, Any]:
    """A job of one group is cancelled; that of another goes through; and Spark is not lost."""
    ended: dict[str, str] = {}

    def work(group: str) -> None:
        session = sessions.entered(group, "")

        def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                time.sleep(4)
                yield batch

        try:
            session.range(0, 1, 1, 1).mapInArrow(slowly, "id long").toArrow()
            ended[group] = "done"
        except Exception as error:
            ended[group] = "lost" if sessions.is_lost(error) else "cancelled"

    threads = [threading.Thread(target=work, args=(group,)) for group in ("one", "other")]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    sessions.cancel(["one"])
    for thread in threads:
        thread.join()
    return ended


def closed(sessions: Sessions, first: SparkSessions) -> dict[str, Any]:
    """The next incarnation ends the session of this one, and what this one sends is not done any more."""
    second = sessions.of(2)
    second.get()
    second.end_earlier()
    session = first.get()
    try:
        session.range(3).count()
        refused = False
    except Exception as error:
        refused = first.is_lost(error)
    assert first.returns()
    return {"refused": refused, "again": said(first.get), "successor": second.get().range(3).count()}


def wrong(sessions: Sessions) -> dict[str, str]:
    """Addresses, tokens and settings that are none."""
    url = sessions.client.connected().url
    name, static = SessionName("run", "wrong", 1), ConnectTarget(None, "tests", {"spark.sql.warehouse.dir": "/x"})

    def at(url: str, token: str | None) -> SparkSessions:
        made = SparkSessions(ConnectEngine(sessions.target, name, lambda _: ServerAddress(url, token)))
        made.patience = 1.0
        return made

    return {
        "token": said(at(url, "another").get),
        "address": said(at("sc://localhost:1", None).get),
        "static": said(sessions.of(9, static).get),
    }


def ended(sessions: Sessions, folder: Path) -> dict[str, Any]:
    """The server is killed, and another program has its port: what an open session then sends."""
    (of_server,) = (folder / shared_server.FOLDER).iterdir()
    server = shared_server.known(of_server)
    assert server is not None
    at_work = sessions.of(20)
    session = at_work.get()
    shared_server.end(server)
    got: list[bytes] = []
    with _listening(server.port) as listening:
        threading.Thread(target=_keep_all, args=(listening, got), daemon=True).start()
        with suppress(Exception):
            session.range(3).count()
        try:
            session.createDataFrame(pa.table({"secret": ["of a record"]})).toArrow()
            lost = False
        except Exception as error:
            lost = at_work.is_lost(error)
        shown = b"".join(got)
    return {"lost": lost, "got": server.token.encode() in shown or b"of a record" in shown}


def _listening(port: int) -> socket.socket:
    """The threads of a process that was killed end one after the other, and its sockets with the last of them."""

    def attempt() -> socket.socket | None:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            return None

    found = eventually(attempt, what="the port is free", timeout=60)
    assert found is not None
    return found


def _keep_all(listening: socket.socket, got: list[bytes]) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_keep, args=(connection, got), daemon=True).start()


def _keep(connection: socket.socket, got: list[bytes]) -> None:
    with suppress(OSError), connection:
        connection.sendall(bytes(9)[:3] + b"\x04" + bytes(5))  # settings of HTTP/2: a client begins to talk
        while more := connection.recv(65536):
            got.append(more)


def main(folder: Path) -> None:
    """Everything, in order."""
    sessions = Sessions(folder)
    first = sessions.of(1)
    found = {
        "plain": plain(first),
        "actions": actions(first, folder),
        "repeatable": repeatable(first),
        "cancelled": cancelled(first),
        "closed": closed(sessions, first),
        "wrong": wrong(sessions),
        "ended": ended(sessions, folder),
        "command": " ".join(spark_submit.server_command(SETTINGS)),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # as a driver does: pyspark would close sessions, of the wrong addresses too, for minutes


if __name__ == "__main__":
    main(Path(sys.argv[1]))
