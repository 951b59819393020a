"""What a driver prints: its file on the machine that launched it, what goes to the log, and what a supervisor shows.

The file is rotated; beside it lies what was there before. What the log keeps of it is bounded, in whole lines, and without
secrets (ADR-98).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import BinaryIO

from airflow_logio.launch.redaction import Redaction
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.unfenced_port import OutputLog, OutputPart
from airflow_logio.store.records.driver_records import DriverRecord, GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus

LOG_NAME = "driver.log"
TAIL_LINES = 20
WORDS_LINES = 40
"""What a task log shows of a driver that has ended."""
TAIL_BYTES = 64 * 1024
BYTES_PER_SECOND = 4 * 1024
"""What may go to the log in the long run; a burst of `TAIL_BYTES` goes at once."""
KEPT_BYTES = 2**20
"""What the log keeps of each incarnation."""
LONGEST_LINE = 8 * 1024
"""A longer line is cut, behind its secrets."""
LEFT_OUT = "... {left_out:,} bytes left out: {whole} has more\n"
CUT = " ... {more:,} more characters"
LEAST_PARTS = 16
LATE_SECONDS = 5.0
"""A part may become visible so long after it was written. What was said already is found again, and not said again."""
FIRST_PARTS = 16
"""Parts that are read first: mostly they have all lines that are wanted."""
_BYTES = 256


def older(log_path: Path) -> Path:
    """Where the part of a log is that was rotated last; there is none before the first rotation."""
    return log_path.with_name(f"{log_path.name}.1")


def tail(log_path: str | None, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a driver's log, if it is on this machine."""
    if log_path is None:
        return []
    try:
        return end_of(Path(log_path), lines)
    except OSError:
        return []


def end_of(log_path: Path, lines: int) -> list[str]:
    """The last lines of a log, at most `TAIL_BYTES`, also across a rotation. Raises OSError."""
    found = _end(log_path)
    if len(found) < TAIL_BYTES and older(log_path).is_file():
        found = (_end(older(log_path)) + found)[-TAIL_BYTES:]
    return found.decode(errors="replace").splitlines()[-lines:]


def _end(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
        return file.read()


class LogReader:
    """Reads a log that grows and is rotated. `read` returns what has been added; raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._has_begun = False

    def read(self) -> bytes:
        """First all there is, then what is new."""
        before = b"" if self._has_begun or not older(self._path).is_file() else older(self._path).read_bytes()
        with self._path.open("rb") as file:
            if file.seek(0, 2) < self._read:  # rotated: what was not read yet is in the older part
                before = _from(older(self._path), self._read)
                self._read = 0
            file.seek(self._read)
            added = file.read()
        self._has_begun = True
        self._read += len(added)
        return before + added


def _from(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read()


class LogTail:
    """Reads behind a `position` of the file, if the bytes before it have this `mark`; else all of it: it was rotated.

    `read` returns how many new bytes were skipped, because they are more than `most`, and the others. Raises `OSError`.
    """

    def __init__(self, path: Path, most: int, position: int = 0, mark: str | None = None) -> None:
        self._path = path
        self._most = most
        self.position = position
        self._mark = mark_of(b"") if mark is None else mark
        self._before = b""

    def read(self) -> tuple[int, bytes]:
        with self._path.open("rb") as file:
            left = b""
            skipped = 0
            if not self._is_there(file):
                skipped, left = self._rest_of_older()
                self.position, self._before, self._mark = 0, b"", mark_of(b"")
            missed, added = self._behind(file)
        if missed:
            skipped, left = skipped + len(left), b""
        return skipped + missed, left + added

    def _behind(self, file: BinaryIO) -> tuple[int, bytes]:
        size = file.seek(0, 2)
        begins = max(self.position, size - self._most)
        missed = begins - self.position
        file.seek(begins)
        added = file.read(size - begins)
        self.position = begins + len(added)
        self._before = (added if missed else self._before + added)[-_BYTES:]
        if added:
            self._mark = mark_of(self._before)
        return missed, added

    def _is_there(self, file: BinaryIO) -> bool:
        length = int(self._mark.partition(":")[0])
        if file.seek(0, 2) < self.position or length > self.position:
            return False
        file.seek(self.position - length)
        return mark_of(file.read(length)) == self._mark

    def _rest_of_older(self) -> tuple[int, bytes]:
        """What was not read before the rotation, if the older part is that of the last one."""
        try:
            with older(self._path).open("rb") as file:
                return self._behind(file) if self._is_there(file) else (0, b"")
        except FileNotFoundError:
            return 0, b""


def mark_of(before: bytes) -> str:
    """What tells whether a file has these bytes before a position, without saying what they are."""
    end = before[-_BYTES:]
    return f"{len(end)}:{hashlib.sha256(end).hexdigest()[:32]}"


class OutputParts:
    """What one process sends of a driver's log. Call `send` about once per second.

    `whole` is said to have all of it, by default the file.
    """

    def __init__(
        self, log: OutputLog, ref: GroupRef, path: Path, host: str, redaction: Redaction, *, whole: str | None = None
    ) -> None:
        self._log = log
        self._ref = ref
        self._path = path
        self._whole = whole or f"{path} on {host}"
        self._redaction = redaction
        self._tail = LogTail(path, TAIL_BYTES)
        self._waiting = b""
        self._left_out = 0
        self._is_inside_line = False
        self._before = b""
        """Bytes of the file before those that wait, as far as they are known."""
        self._allowed = float(TAIL_BYTES)
        self._number = 0
        self._part: _Part | None = None
        self._sizes: deque[int] = deque()
        """Bytes of the parts that are kept."""

    def resume(self, sent: Sequence[OutputPart]) -> None:
        """Continue behind the parts that another process has sent of this log."""
        if sent:
            last = sent[-1]
            self._tail = LogTail(self._path, TAIL_BYTES, last.position, last.mark)
            self._number = last.number
            self._sizes.extend(len(part.text) for part in sent)

    def send(self, seconds: float, *, all_of_it: bool = False, is_ended: bool = False) -> None:
        """Send what is new, and what has been waiting; `seconds` have passed since the last time. `all_of_it`: more than is
        allowed per second. `is_ended`: nothing follows, so the last line is whole.

        Raises `OSError` if the file cannot be read, and `LogUnavailable`: then it is sent the next time.
        """
        self._allowed = min(TAIL_BYTES, self._allowed + seconds * BYTES_PER_SECOND)
        self._send_part()
        self._take()
        size = len(self._waiting) if is_ended else _whole_lines(self._waiting)
        if not all_of_it and size > self._allowed:
            size = _whole_lines(self._waiting[: int(self._allowed)])
        if size or (is_ended and self._left_out):
            self._part = self._next(size)
            self._send_part()

    def _take(self) -> None:
        skipped, added = self._tail.read()
        if skipped:
            self._left_out += len(self._waiting) + skipped
            self._waiting, self._is_inside_line, self._before = b"", True, b""
        self._waiting += added
        if (excess := len(self._waiting) - TAIL_BYTES) > 0:
            self._leave_out(excess)
            self._is_inside_line = True
        if self._is_inside_line and (begins := _first_line(self._waiting)):
            self._leave_out(begins)
            self._is_inside_line = False

    def _leave_out(self, size: int) -> None:
        self._left_out += size
        self._before = self._waiting[:size]
        self._waiting = self._waiting[size:]

    def _next(self, size: int) -> _Part:
        whole = self._waiting[:size]
        lines = whole.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}").splitlines(keepends=True)
        text = "".join(map(_cut, self._redaction.of("".join(lines)).splitlines(keepends=True)))
        if self._left_out:
            text = LEFT_OUT.format(left_out=self._left_out, whole=self._whole) + text
        position = self._tail.position - (len(self._waiting) - size)
        # Before the beginning of the file: what waits still was rotated, and only the file of now can be read again.
        before = (self._before + whole)[-1024:] if position > 0 else b""
        return _Part(self._number + 1, max(0, position), mark_of(before[-max(0, position) :]), text, size)

    def _send_part(self) -> None:
        if (part := self._part) is None:
            return
        oldest = part.number - len(self._sizes)
        self._log.add(self._ref, part.number, part.position, part.text, mark=part.mark, oldest=oldest)
        self._part, self._number = None, part.number
        self._before = (self._before + self._waiting[: part.size])[-1024:]
        self._waiting, self._left_out = self._waiting[part.size :], 0
        self._allowed -= part.size
        self._sizes.append(part.size)
        while sum(self._sizes) > KEPT_BYTES:  # removed with the next part
            self._sizes.popleft()


@dataclass(frozen=True, slots=True)
class _Part:
    """Sent again and again as it is, until the log has answered: it may have kept a part and been unable to say so."""

    number: int
    position: int
    mark: str
    text: str
    size: int


def add_rest(log: OutputLog, ref: GroupRef, path: Path, host: str, redaction: Redaction) -> None:
    """Send what a driver that has ended could not send itself, at most the last `TAIL_BYTES`.

    Raises `OSError` and `LogUnavailable`.
    """
    rest = OutputParts(log, ref, path, host, redaction)
    rest.resume(log.parts(ref.run_id, ref.group, ref.incarnation))
    rest.send(0.0, all_of_it=True, is_ended=True)


def _whole_lines(text: bytes) -> int:
    """Bytes up to the end of the last whole line. Progress bars end theirs with a carriage return."""
    return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1


def _first_line(text: bytes) -> int:
    """Bytes before the first line that begins in `text`; 0 if none does."""
    return text.find(b"\n") + 1


def _cut(line: str) -> str:
    more = len(line.rstrip("\r\n")) - LONGEST_LINE
    return line if more <= 0 else f"{line[:LONGEST_LINE]}{CUT.format(more=more)}\n"


class SentReader:
    """Reads what a driver has sent to the log. `read` returns what has been added. Raises `LogUnavailable`."""

    def __init__(self, store: LogStore, run_id: int, driver: DriverRecord) -> None:
        self._store = store
        self._run_id = run_id
        self._driver = driver
        self._number = 0

    def read(self) -> bytes:
        driver = self._driver
        parts = self._store.output.parts(self._run_id, driver.group, driver.incarnation, after=self._number)
        self._number = parts[-1].number if parts else self._number
        return "".join(part.text for part in parts).encode()


def sent_lines(store: LogStore, run: Run, status: GroupStatus, most: int) -> list[str]:
    """The last lines that the group's last driver has sent. Raises `LogUnavailable`."""
    wanted = FIRST_PARTS
    while True:
        parts = store.output.parts(run.run_id, status.group, status.incarnation, most=wanted)
        lines = "".join(part.text for part in parts).splitlines()
        # The first of the lines may have begun in an earlier part.
        if len(lines) > most or len(parts) < wanted:
            return lines[-most:]
        wanted *= 4


# --- in the log of a task ---------------------------------------------------------------------------------------------

MOST_PREFIX = 30
"""Characters that stand before what a driver has said: which driver, and when."""
_TIME = len("00:00:00 ")
_LOGGED = re.compile(
    r"""(?x)
    (?: \d{4}-\d\d-\d\d[ ](?P<time>\d\d:\d\d:\d\d),\d{3}[ ](?P<level>[A-Z]+)[ ].+?[ ](?P<name>\S+)  # Python
      | \d\d/\d\d/\d\d[ ](?P<jvm_time>\d\d:\d\d:\d\d)[ ](?P<jvm_level>[A-Z]+)[ ](?P<jvm_name>\S+)        # Spark
    ):[ ](?P<message>.*)"""
)
"""A line that a driver, or the JVM beside it, has logged."""
_UNNAMED = ("airflow_logio", "__main__", "root")
"""Loggers whose names tell an author nothing."""
_OF_ERROR = re.compile(
    r"Traceback \(most recent|Caused by: |During handling of|The above exception|Driver stacktrace:"
    r"|(: )?[\w.$]*(Error|Exception)\b"
)
"""How a line of a traceback begins that is not indented; that of the JVM's error has a colon behind the one of Py4J."""
_TRACEBACK = "Traceback (most recent"
_AS_JSON = re.compile(r'\{"ts":.*?"level":"([A-Z]+)"')
"""A line of Spark's structured logging."""
_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "CRITICAL": logging.CRITICAL,
}
"""Any other one is information: a task's log has no levels of an author's own."""


class DriverLines:
    """The lines of one driver, in their order, as a task's log has them: with the level that they were logged with.

    What is printed has none, and is information; a traceback belongs to the line before it.
    """

    def __init__(self, group: str, incarnation: int) -> None:
        who = f" #{incarnation}] "
        room = MOST_PREFIX - _TIME - len(who) - 1
        name = group if len(group) <= room else f"{group[: room - 6]}…{group[-5:]}"
        self.who = f"[{name}{who}"
        self._level = logging.INFO
        self._is_in_traceback = False

    def of(self, line: str) -> tuple[int, str]:
        """Its level, and its text without what the task's log says itself."""
        if (logged := _LOGGED.match(line)) is None:
            return self._level_of(line), f"{self.who}{line}"
        level = logged["level"] or logged["jvm_level"]
        self._level = _LEVELS.get(level, logging.INFO)
        self._is_in_traceback = False
        name = logged["name"] or logged["jvm_name"]
        source = "" if name.partition(".")[0] in _UNNAMED else f"{name}: "
        return self._level, f"{self.who}{logged['time'] or logged['jvm_time']} {source}{logged['message']}"

    def _level_of(self, line: str) -> int:
        """Of a line that was not logged."""
        if line.startswith(_TRACEBACK):
            self._is_in_traceback = True
            self._level = max(self._level, logging.ERROR)
        elif (structured := _AS_JSON.match(line)) is not None:
            self._level, self._is_in_traceback = _LEVELS.get(structured[1], logging.INFO), False
        elif line.strip() and not line[0].isspace():
            belongs = self._is_in_traceback or _OF_ERROR.match(line) is not None
            self._level = self._level if belongs else logging.INFO
            self._is_in_traceback = False
        return self._level


class OutputRelay:
    """The one relay of a group and its replicas; `say` gets each line with its level (`DriverLines`).

    `relayed`: group or replica → incarnation and number of the part that was said last. What earlier incarnations than
    those printed is not said.
    """

    def __init__(
        self, members: Collection[str], relayed: Mapping[str, Sequence[int]], say: Callable[[int, str], None]
    ) -> None:
        self._members = members
        self._relayed = {group: (incarnation, number) for group, (incarnation, number) in relayed.items()}
        self._ended: dict[str, tuple[int, int]] = {}
        """Group → the last part of the incarnation before. The rest of that incarnation may come late."""
        self._say = say
        self._lines: dict[tuple[str, int], DriverLines] = {}
        """(group, incarnation) → its lines."""

    @property
    def relayed(self) -> dict[str, list[int]]:
        """As in the constructor, and plain data; only drivers that something was said of."""
        return {group: [incarnation, number] for group, (incarnation, number) in self._relayed.items() if number}

    def relay(self, parts: Sequence[OutputPart]) -> None:
        """Say what was not said; `parts` are in the order of their drivers."""
        for part in parts:
            if part.group in self._members:
                self._relay(part)

    def _relay(self, part: OutputPart) -> None:
        place, last = (part.incarnation, part.number), self._relayed.get(part.group, (0, 0))
        ended = self._ended.get(part.group, (0, 0))
        if place <= last and not (part.incarnation == ended[0] and place > ended):
            return
        driver = (part.group, part.incarnation)
        lines = self._lines.setdefault(driver, DriverLines(*driver))
        known = next((number for incarnation, number in (last, ended) if incarnation == part.incarnation), 0)
        if part.number > known + 1:
            self._say(logging.INFO, f"{lines.who}... lines left out: `logio logs` has more of them")
        for line in part.text.splitlines():
            self._say(*lines.of(line))
        if place > last:
            if part.incarnation > last[0] > 0:
                self._ended[part.group] = last
            self._relayed[part.group] = place
        else:
            self._ended[part.group] = place


def most_parts(interval: float) -> int:
    """How many parts of each driver one look takes: it sends one per second, and looks may be late."""
    return LEAST_PARTS + 2 * ceil(interval)


def beginning(incarnations: Mapping[str, int], relayed: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """From where a relay says what drivers print: behind what was relayed, and not from before these incarnations."""
    return {group: (incarnation, 0) for group, incarnation in incarnations.items()} | dict(relayed)
