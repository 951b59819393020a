"""From a driver's file to the log: whole lines, bounded, without secrets, and the rest when the driver is dead."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.driver.driver_output import LogRotation
from airflow_logio.errors import LogUnavailable
from airflow_logio.launch.driver_log import (
    BYTES_PER_SECOND,
    KEPT_BYTES,
    LONGEST_LINE,
    TAIL_BYTES,
    OutputParts,
    add_rest,
)
from airflow_logio.launch.redaction import Redaction
from airflow_logio.store.port.unfenced_port import OutputLog
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.testing.memory_log.store import MemoryLogStore

REF = GroupRef(1, "g", 2)
NO_SECRETS = Redaction(())
REDACTION_OF_ONE = Redaction(["postgresql://me:hunter22@db/x"])
LINE = "x" * 99 + "\n"


@pytest.fixture
def log() -> OutputLog:
    return MemoryLogStore().output


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "driver.log"
    path.touch()
    return path


@pytest.fixture
def sender(log: OutputLog, path: Path) -> OutputParts:
    return OutputParts(log, REF, path, "here", NO_SECRETS)


def said(path: Path, text: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def sent(log: OutputLog) -> list[str]:
    return [part.text for part in log.parts(1, "g", 2)]


def test_whole_lines_are_sent(log: OutputLog, path: Path, sender: OutputParts) -> None:
    sender.send(1.0)
    assert sent(log) == []
    said(path, "one\ntwo\nthr")
    sender.send(1.0)
    sender.send(1.0)
    said(path, "ee\nnul\0 and \xff\n10 %\r20".encode("latin-1"))
    sender.send(1.0)
    replaced = "nul\N{REPLACEMENT CHARACTER} and \N{REPLACEMENT CHARACTER}\n"
    assert sent(log) == ["one\ntwo\n", f"three\n{replaced}10 %\r"]


def test_a_long_line_is_cut_behind_its_secrets(log: OutputLog, path: Path) -> None:
    sender = OutputParts(log, REF, path, "here", Redaction(["postgresql://me:hunter22@db/x"]))
    said(path, "y" * (LONGEST_LINE - 4) + " hunter22" + "z" * 100 + "\nnext\n")
    sender.send(1.0)
    (text,) = sent(log)
    assert text == "y" * (LONGEST_LINE - 4) + " *** ... 100 more characters\nnext\n"
    said(path, "w" * (2 * TAIL_BYTES) + " password=x")
    sender.send(100.0)
    assert len(sent(log)) == 1
    said(path, "yz\nwhole\n")
    sender.send(100.0)
    assert sent(log)[1].splitlines()[1:] == ["whole"], "nothing that begins inside a line"


def test_a_burst_goes_at_once_and_then_so_much_per_second(log: OutputLog, path: Path, sender: OutputParts) -> None:
    said(path, LINE * (TAIL_BYTES // 100 + 500))
    sender.send(0.0)
    (first,) = sent(log)
    notice, _, rest = first.partition("\n")
    assert rest == LINE * (len(rest) // 100)
    assert notice == f"... {path.stat().st_size - len(rest):,} bytes left out: {path} on here has more"
    said(path, LINE * 100)
    sender.send(1.0)
    sender.send(1.0)
    assert all(BYTES_PER_SECOND - 200 <= len(text) <= BYTES_PER_SECOND + 200 for text in sent(log)[1:])
    sender.send(0.0, all_of_it=True)
    assert "".join(sent(log)).count(LINE) == (len(rest) + 10_000) // 100


def test_so_much_of_an_incarnation_is_kept(log: OutputLog, path: Path, sender: OutputParts) -> None:
    for number in range(30):
        said(path, f"{number}\n" + LINE * 600)
        sender.send(100.0)
    kept = sent(log)
    assert KEPT_BYTES - 2 * TAIL_BYTES <= sum(map(len, kept)) <= KEPT_BYTES + TAIL_BYTES
    assert kept[-1].startswith("29\n")


@pytest.mark.parametrize("is_kept", [False, True])
def test_what_the_log_does_not_take_is_sent_later(
    log: OutputLog, path: Path, sender: OutputParts, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """It may have been kept all the same: the answer was lost."""
    said(path, "one\n")
    with monkeypatch.context() as unavailable:
        add = log.add

        def refuse(*given: Any, **more: Any) -> None:
            if is_kept:
                add(*given, **more)
            raise LogUnavailable("stopped")

        unavailable.setattr(log, "add", refuse)
        for text in ("two\n", "three\n"):
            with pytest.raises(LogUnavailable):
                sender.send(1.0)
            said(path, text)
    sender.send(1.0)
    said(path, "four\n")
    sender.send(1.0)
    assert sent(log) == ["one\n", "two\nthree\n", "four\n"]


@pytest.mark.parametrize("after", ["3\n", "a line that is longer than all there was before\n"])
def test_a_rotation_loses_nothing(log: OutputLog, path: Path, sender: OutputParts, after: str) -> None:
    said(path, "one\n")
    sender.send(1.0)
    said(path, "two\n")
    assert LogRotation(path, most_bytes=1).look()
    said(path, after)
    sender.send(1.0)
    said(path, "last\n")
    sender.send(1.0)
    assert sent(log) == ["one\n", f"two\n{after}", "last\n"]


def test_of_a_flood_only_the_end_is_read(log: OutputLog, path: Path, sender: OutputParts) -> None:
    said(path, "first\n")
    sender.send(1.0)
    with path.open("ab") as file:
        file.truncate(2**33)  # a sparse file
    said(path, "\nlast\n")
    tracemalloc.start()
    sender.send(100.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**21
    assert sent(log)[1].splitlines()[-1] == "last"
    assert f"{2**33 - 6 + 1:,} bytes left out" in sent(log)[1]


@pytest.mark.parametrize("rotated", [False, True])
def test_the_rest_of_a_dead_driver_is_sent_once(log: OutputLog, path: Path, sender: OutputParts, rotated: bool) -> None:
    said(path, "one\nhal")
    sender.send(1.0)
    if rotated:
        said(path, "f\n")
        sender.send(1.0)
        assert LogRotation(path, most_bytes=1).look()
        said(path, "last words")
        expected = ["one\n", "half\n", "last words"]
    else:
        said(path, "f\nlast words")
        expected = ["one\n", "half\nlast words"]
    for _ in range(2):
        add_rest(log, REF, path, "here", NO_SECRETS)
    assert sent(log) == expected


def test_of_a_driver_that_could_send_nothing_the_end_is_sent(log: OutputLog, path: Path) -> None:
    said(path, LINE * 1_000 + "last words\n")
    add_rest(log, REF, path, "here", NO_SECRETS)
    (text,) = sent(log)
    assert text.startswith("... ") and text.endswith("last words\n")
    assert len(text) < TAIL_BYTES + 200
    os.unlink(path)
    with pytest.raises(OSError, match="No such file"):
        add_rest(log, REF, path, "here", NO_SECRETS)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("could not connect: postgresql://me:s3cr%2Ft@db/x", "could not connect: postgresql://me:***@db/x"),
        ("the password is s3cr/t, or s3cr%2Ft", "the password is ***, or ***"),
        ("another://you:hunter2@host/x?y=1", "another://you:***@host/x?y=1"),
        ("my_api_key = abc,def;x'", "my_api_key = ***"),
        ("spark.ssl.keyPassword=hush --conf spark.x=1", "spark.ssl.keyPassword=*** --conf spark.x=1"),
        ('{"token": "t0k with blanks", "n": 1}', '{"token": "***", "n": 1}'),
        ("(fs.azure.account.key.me.net,AbC==)", "(fs.azure.account.key.me.net,***"),
        ("Authorization: Bearer abcdefgh.x", "Authorization: Bearer ***"),
        ("run --db-password hush --n 1", "run --db-password *** --n 1"),
        ("password token=abc", "password token=***"),
        ("key of the store: AKIA1234, of the variable: v4riable", "key of the store: ***, of the variable: ***"),
        ("DB_PASS=x", "DB_PASS=***"),
        ("me and postgresql and db and x and path", "me and postgresql and db and x and path"),
        ("tokens: 5 of them, token=None, secret: true", "tokens: 5 of them, token=None, secret: true"),
        ("secretary: Bob, compass=north", "secretary: Bob, compass=north"),
        ('File "/opt/airflow/dags/p.py", false', 'File "/opt/airflow/dags/p.py", false'),
    ],
)
def test_secrets_are_hidden(text: str, expected: str) -> None:
    urls = (
        "postgresql://me:s3cr%2Ft@db/x?application_name=path",
        "sqlite:///x.db",
        "postgresql://airflow:airflow@db",
        "x://[",
    )
    variables = {"DB_PASSWORD": "v4riable", "PWD": "/opt/airflow", "TOKENIZERS_PARALLELISM": "false", "PIN_TOKEN": "me"}
    assert Redaction(urls, "s3://AKIA1234@bucket/x", variables).of(text) == expected


@pytest.mark.parametrize(
    "text", ["1." * 32_768, "a-b_" * 16_384, "secret" * 11_000, "://a:b" * 11_000, "token " * 11_000]
)
def test_no_line_takes_long(text: str) -> None:
    """While it is looked at, nothing else of the driver's Python runs, its heartbeat included."""
    began = time.process_time()
    REDACTION_OF_ONE.of(text)
    assert time.process_time() - began < 2.0


def test_secrets_are_hidden_in_what_is_sent(log: OutputLog, path: Path) -> None:
    said(path, "it is hunter22\n")
    OutputParts(log, REF, path, "here", Redaction(["postgresql://me:hunter22@db/x"])).send(1.0)
    assert sent(log) == ["it is ***\n"]


def test_parts_name_where_they_end(log: OutputLog, path: Path, sender: OutputParts) -> None:
    positions: Sequence[int] = []
    said(path, "one\ntw")
    sender.send(1.0)
    said(path, "o\n")
    sender.send(1.0)
    positions = [part.position for part in log.parts(1, "g", 2)]
    assert positions == [4, 8]
