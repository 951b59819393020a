"""From a driver's file to the log: whole lines, bounded, without secrets, and the rest when the driver is dead."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from airflow_logio.errors import LogUnavailable
from airflow_logio.runtime.driver.log_rotation import LogRotation
from airflow_logio.runtime.launch.driver_log import TAIL_BYTES
from airflow_logio.runtime.launch.output_parts import BYTES_PER_SECOND, KEPT_BYTES, LONGEST_LINE, OutputParts, add_rest
from airflow_logio.runtime.launch.redaction import Redaction
from airflow_logio.store.memory.store import MemoryLogStore
from airflow_logio.store.output_port import OutputLog
from airflow_logio.store.records import GroupRef

REF = GroupRef(1, "g", 2)
NO_SECRETS = Redaction(())
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


def test_whole_lines_are_sent_and_a_part_of_one_when_it_is_long(
    log: OutputLog, path: Path, sender: OutputParts
) -> None:
    sender.send(1.0)
    assert sent(log) == []
    said(path, "one\ntwo\nthr")
    sender.send(1.0)
    sender.send(1.0)
    said(path, "ee\nnul\0 and \xff\n".encode("latin-1"))
    sender.send(1.0)
    said(path, "y" * LONGEST_LINE)
    sender.send(1.0)
    assert sent(log) == [
        "one\ntwo\n",
        "three\nnul\N{REPLACEMENT CHARACTER} and \N{REPLACEMENT CHARACTER}\n",
        "y" * LONGEST_LINE,
    ]


def test_a_burst_goes_at_once_and_then_so_much_per_second(log: OutputLog, path: Path, sender: OutputParts) -> None:
    said(path, LINE * (TAIL_BYTES // 100 + 500))
    sender.send(0.0)
    (first,) = sent(log)
    notice, _, rest = first.partition("\n")
    assert rest == LINE * (len(rest) // 100)
    assert notice == f"... {path.stat().st_size - len(rest):,} bytes left out: {path} on here has all"
    said(path, LINE * 100)
    sender.send(1.0)
    sender.send(1.0)
    assert all(BYTES_PER_SECOND - 100 <= len(text) <= BYTES_PER_SECOND + 100 for text in sent(log)[1:])
    sender.send(0.0, last=True)
    assert "".join(sent(log)).count(LINE) == (len(rest) + 10_000) // 100


def test_so_much_of_an_incarnation_is_kept(log: OutputLog, path: Path, sender: OutputParts) -> None:
    for number in range(30):
        said(path, f"{number}\n" + LINE * 600)
        sender.send(100.0)
    kept = sent(log)
    assert KEPT_BYTES - 2 * TAIL_BYTES <= sum(map(len, kept)) <= KEPT_BYTES + TAIL_BYTES
    assert kept[-1].startswith("29\n")


def test_what_the_log_does_not_take_is_sent_later(log: OutputLog, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = OutputParts(log, REF, path, "here", NO_SECRETS)
    said(path, "one\n")
    with monkeypatch.context() as unavailable:

        def refuse(*_: object, **__: object) -> None:
            raise LogUnavailable("stopped")

        unavailable.setattr(log, "add", refuse)
        with pytest.raises(LogUnavailable):
            sender.send(1.0)
    said(path, "two\n")
    sender.send(1.0)
    assert sent(log) == ["one\ntwo\n"]


def test_a_rotation_loses_nothing(log: OutputLog, path: Path, sender: OutputParts) -> None:
    said(path, "one\n")
    sender.send(1.0)
    said(path, "two\n")
    assert LogRotation(path, most_bytes=1).look()
    said(path, "3\n")
    sender.send(1.0)
    assert sent(log) == ["one\n", "two\n3\n"]


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
        ("my_api_key = abc'", "my_api_key = ***'"),
        ("spark.ssl.keyPassword=hush --conf spark.x=1", "spark.ssl.keyPassword=*** --conf spark.x=1"),
        ('{"token": "t0k", "n": 1}', '{"token": "***", "n": 1}'),
        ("key of the store: AKIA1234, of the variable: v4riable", "key of the store: ***, of the variable: ***"),
        ("me and postgresql and db and x and path", "me and postgresql and db and x and path"),
        (
            "a line about tokens: 5 of them, at https://host/path",
            "a line about tokens: *** of them, at https://host/path",
        ),
    ],
)
def test_secrets_are_hidden(text: str, expected: str) -> None:
    urls = ("postgresql://me:s3cr%2Ft@db/x?application_name=path", "sqlite:///x.db")
    redaction = Redaction(
        urls, "s3://AKIA1234@bucket/x", {"DB_PASSWORD": "v4riable", "PATH": "path", "PIN_TOKEN": "me"}
    )
    assert redaction.of(text) == expected


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
