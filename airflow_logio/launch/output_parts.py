"""How a driver's log becomes parts of the output that the log keeps: bounded, in whole lines, without secrets (ADR-98)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_logio.launch.driver_log import TAIL_BYTES
from airflow_logio.launch.log_tail import LogTail, mark_of
from airflow_logio.launch.redaction import Redaction
from airflow_logio.store.port.unfenced_port import OutputLog, OutputPart
from airflow_logio.store.records.driver_records import GroupRef

BYTES_PER_SECOND = 4 * 1024
"""What may go to the log in the long run; a burst of `TAIL_BYTES` goes at once."""
KEPT_BYTES = 2**20
"""Of each incarnation, in the log."""
LONGEST_LINE = 8 * 1024
"""A longer line is cut, behind its secrets."""
LEFT_OUT = "... {left_out:,} bytes left out: {path} on {host} has more\n"
CUT = " ... {more:,} more characters"


@dataclass(frozen=True, slots=True)
class _Part:
    """Sent again and again as it is, until the log has answered: it may have kept a part and been unable to say so."""

    number: int
    position: int
    mark: str
    text: str
    size: int


class OutputParts:
    """What one process sends of a driver's log. Call `send` about once per second."""

    def __init__(self, log: OutputLog, ref: GroupRef, path: Path, host: str, redaction: Redaction) -> None:
        self._log = log
        self._ref = ref
        self._path = path
        self._host = host
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
            text = LEFT_OUT.format(left_out=self._left_out, path=self._path, host=self._host) + text
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
