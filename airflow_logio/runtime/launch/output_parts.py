"""How a driver's log becomes parts of the output that the log keeps: bounded, in whole lines, without secrets (ADR-98)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from airflow_logio.runtime.launch.driver_log import TAIL_BYTES, LogReader
from airflow_logio.runtime.launch.redaction import Redaction
from airflow_logio.store.output_port import OutputLog, OutputPart
from airflow_logio.store.records import GroupRef

BYTES_PER_SECOND = 4 * 1024
"""What may go to the log in the long run; a burst of `TAIL_BYTES` goes at once."""
KEPT_BYTES = 2**20
"""Of an incarnation, in the log."""
LONGEST_LINE = 8 * 1024
"""A line that has not ended is sent as it is then."""
LEFT_OUT = "... {left_out:,} bytes left out: {path} on {host} has all\n"


class OutputParts:
    """What one process sends of a driver's log. Call `send` about once per second."""

    def __init__(self, log: OutputLog, ref: GroupRef, path: Path, host: str, redaction: Redaction) -> None:
        self._log = log
        self._ref = ref
        self._path = path
        self._host = host
        self._redaction = redaction
        self._reader = LogReader(path)
        self._waiting = b""
        self._left_out = 0
        self._allowed = float(TAIL_BYTES)
        self._number = 0
        self._sizes: deque[int] = deque()
        """Bytes of the parts that are kept."""

    def resume(self, sent: Sequence[OutputPart]) -> None:
        """Continue behind the parts that another process has sent of this log. Raises `OSError`."""
        if not sent:
            return
        last = sent[-1]
        # The position says nothing of a file that was emptied since: all that it has is new.
        self._reader = LogReader(self._path, last.position if self._ends_there(last) else 0)
        self._number = last.number
        self._sizes.extend(len(part.text) for part in sent)

    def send(self, seconds: float, *, last: bool = False) -> None:
        """Send what is new, and what has been waiting; `seconds` have passed since the last time. `last`: all that waits.

        Raises `OSError` if the file cannot be read, and `LogUnavailable`: then it is sent the next time.
        """
        self._allowed = min(TAIL_BYTES, self._allowed + seconds * BYTES_PER_SECOND)
        self._waiting += self._reader.read()
        if (excess := len(self._waiting) - TAIL_BYTES) > 0:
            cut = self._waiting.find(b"\n", excess) + 1 or excess
            self._left_out += cut
            self._waiting = self._waiting[cut:]
        whole = len(self._waiting) if last else self._whole_lines()
        if not last and whole > self._allowed:
            whole = self._waiting.rfind(b"\n", 0, int(self._allowed)) + 1
        if whole or (last and self._left_out):
            self._add(whole)

    def _ends_there(self, part: OutputPart) -> bool:
        """Whether the file has the last line of a part before its position."""
        with self._path.open("rb") as file:
            file.seek(max(0, part.position - LONGEST_LINE))
            before = file.read(min(part.position, LONGEST_LINE))
        found = self._redaction.of(before.decode(errors="replace")).splitlines()
        return found[-1:] == part.text.splitlines()[-1:]

    def _whole_lines(self) -> int:
        whole = self._waiting.rfind(b"\n") + 1
        return whole if len(self._waiting) - whole < LONGEST_LINE else len(self._waiting)

    def _add(self, size: int) -> None:
        text = self._redaction.of(
            self._waiting[:size].decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        )
        if self._left_out:
            text = LEFT_OUT.format(left_out=self._left_out, path=self._path, host=self._host) + text
        position = max(0, self._reader.position - (len(self._waiting) - size))
        number = self._number + 1
        self._log.add(self._ref, number, position, text, oldest=number - len(self._sizes))
        self._number = number
        self._waiting, self._left_out = self._waiting[size:], 0
        self._allowed -= size
        self._sizes.append(size)
        while sum(self._sizes) > KEPT_BYTES:  # removed with the next part
            self._sizes.popleft()


def add_rest(log: OutputLog, ref: GroupRef, path: Path, host: str, redaction: Redaction) -> None:
    """Send what a driver that has ended could not send itself, at most the last `TAIL_BYTES`.

    Raises `OSError` and `LogUnavailable`.
    """
    rest = OutputParts(log, ref, path, host, redaction)
    rest.resume(log.parts(ref.run_id, ref.group, ref.incarnation))
    rest.send(0.0, last=True)
